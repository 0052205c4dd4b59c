"""The configuration of the service: strict models, one module per domain, and how they are loaded and reloaded.

What the rest of the service uses:

- `load(path) -> Config`, or ConfigError that holds every problem with file, line, column, dotted path, what and what to do.
- `Config`: `.inventory .schedule .probes .canary .launch .thresholds .metrics .server .logging`; `Config()` is what an empty file gives;
  `.jobs() -> list[Job]` is what has to be measured, `.references()` the files and secrets it names.
- `Job`: `id probe target nodes transport deadline spec when lanes key`; `job.spec_with(folder)` is the spec with the key's file in it.
"""

from exporter.config.base import Secret, SecretError
from exporter.config.jobs import Job
from exporter.config.root import Config, Reference

__all__ = ["Config", "Job", "Reference", "Secret", "SecretError"]
