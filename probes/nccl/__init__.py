"""NCCL collectives between GPUs: our own worker on nccl4py, nccl-tests as a second engine, and the parsers of its output."""

