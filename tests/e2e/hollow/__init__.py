"""Hollow nodes: a small kubelet for tests that really runs the pods of fake nodes, as processes of this machine.

It is a test tool, no part of the product. It runs inside a cell (`e2e.cell`) and plays any number of nodes. A pod gets a network namespace
with an address on the cell's bridge; each of its containers a PID, mount and UTS namespace of its own over a copy-on-write view of
this machine's files, in which an image is only a name for a search path. What it does as a kubelet does: volumes (ConfigMap and Secret,
refreshed when they change, emptyDir, projected with a real token, downwardAPI, hostPath), environment with references, init
containers, restart policies, image pull (with a time, or failing), termination messages, activeDeadlineSeconds, deletion with grace,
memory limits (OOMKilled), readiness and liveness probes, Service names (a hosts file in every pod), link rates, node heartbeats.

What it does not: resource isolation of any other kind, Services with a cluster IP (a name leads to one ready pod), devices, ephemeral
containers, sidecars, lifecycle hooks, logs through the API.
"""
