"""The witness: a small server beside the node's EFA devices that keeps ten minutes of their counters and answers for any window of them.

`GET /window?from=&to=` (Unix seconds of the node's clock; optionally `started=` and `ended=` of the whole run, so that the background is
taken from outside of it), `GET /metrics` for Prometheus, `GET /-/healthy`. It reads the host's sysfs only, needs no privilege, no device
and no dependency but h11, and stays below 30 MiB with 32 devices.
"""
