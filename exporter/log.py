"""The service's own log: structlog to standard error, for people on a terminal, JSON elsewhere. Its keys never hold secrets."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

from exporter.config.log import Logging


def configure(settings: Logging, stream: TextIO | None = None) -> None:
    """Apply the settings; may be called again after a reload. Lines of libraries (APScheduler, urllib3) come out the same way."""
    stream = stream or sys.stderr
    for_people = settings.format == "console" or (settings.format == "auto" and stream.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
        if for_people else structlog.processors.JSONRenderer())
    # Local variables in a traceback could hold a key or a prompt.
    tracebacks = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))
    errors: list[structlog.typing.Processor] = [] if for_people else [tracebacks]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *errors, renderer])
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    logging.getLogger("apscheduler").setLevel(max(logging.WARNING, root.level))


def get() -> structlog.typing.FilteringBoundLogger:
    """The log."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger("efa-pulse")
    return logger
