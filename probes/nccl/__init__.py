"""NCCL collectives between GPUs: our own worker on nccl4py, nccl-tests as a second engine, and the parsers of its output.

`parse_file(path)` reads recorded nccl-tests output; see `probes.nccl.parse`.
"""

from probes.nccl.parse import parse_file, parse_text
from probes.nccl.run import ParsedRun
from probes.nccl.verdict import Expectations

__all__ = ["Expectations", "ParsedRun", "parse_file", "parse_text"]
