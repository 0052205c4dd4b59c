"""What runs beside the hardware: probes, their transport evidence and the result document they leave.

This package imports nothing from `exporter` and needs only pydantic, h11, pyroute2 and pyyaml.
"""

__version__ = "0.1.0"
