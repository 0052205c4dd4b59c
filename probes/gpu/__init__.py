"""The GPUs of this machine: the CUDA driver and NVML through ctypes, and the gate that keeps a probe off a GPU that is in use."""
