"""EFA devices and counters of a node, and what proves how a worker's bytes travelled."""
