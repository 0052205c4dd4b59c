"""The configuration of the service: strict models, one module per domain, and how they are loaded and reloaded.

What the rest of the service uses:

- `load(path) -> Config`, or ConfigError whose `problems` hold everything wrong with file, line, column, dotted path, what and what to do.
  `load(path, references=False)` does not look whether the files and secrets it names are there (for CI and laptops).
- `Config`: `.inventory .schedule .probes .canary .launch .thresholds .metrics .server .logging`. `Config()` is what an empty file gives.
  `.jobs() -> list[Job]` is what has to be measured, `.references()` the files and secrets it names.
- `Job`: `id probe target nodes transport deadline spec when lanes key`; `job.spec_with(folder)` is the spec with the key's file in it.
- `schema() -> dict`, the JSON Schema of the file; `reference() -> str`, the documentation of every key.
- `Reloader(path, report)` watches the file and what it names; see its docstring.
- `worst_case(config) -> list[Capacity]`: bytes of the largest possible result of each probe against the limit.
- `Secret.read() -> str`, or SecretError.
"""

from exporter.config.base import Secret, SecretError
from exporter.config.capacity import Capacity, worst_case
from exporter.config.handbook import reference
from exporter.config.jobs import Job
from exporter.config.json_schema import schema
from exporter.config.load import load
from exporter.config.problems import ConfigError, Problem
from exporter.config.reload import Outcome, Reloader
from exporter.config.root import Config, Reference

__all__ = ["Capacity", "Config", "ConfigError", "Job", "Outcome", "Problem", "Reference", "Reloader", "Secret", "SecretError", "load",
           "reference", "schema", "worst_case"]
