"""KV probes: blocks moved between two ranks by the engines that move KV cache in production, Mooncake and NIXL."""
