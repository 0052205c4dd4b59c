"""`python -m probes.uccl_ep`: one lane of the driver. Started by the probe, not by hand."""

from probes.uccl_ep.lane import main

main()
