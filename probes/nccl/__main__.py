"""`python -m probes.nccl`: one lane. Started by the probe, not by hand."""

from probes.nccl.lane import main

main()
