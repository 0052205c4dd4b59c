"""Talking to the Kubernetes API: requests, watches, quantities. Knows nothing of probes."""
