"""The service's own log: one JSON object a line where no person looks, and no secrets in tracebacks."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from exporter import log
from exporter.config.log import Logging


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    before = logging.getLogger().handlers[:], logging.getLogger().level
    yield io.StringIO()
    structlog.reset_defaults()
    logging.getLogger().handlers[:], level = before
    logging.getLogger().setLevel(level)


def test_lines_are_json_objects_with_time_and_level(stream: io.StringIO) -> None:
    log.configure(Logging(), stream)
    log.get().info("ready", jobs=3)
    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"], line["jobs"]) == ("ready", "info", 3)
    assert line["timestamp"].endswith("Z")


def test_lines_of_libraries_come_out_the_same_way(stream: io.StringIO) -> None:
    log.configure(Logging(), stream)
    logging.getLogger("urllib3").warning("a retry")
    assert json.loads(stream.getvalue())["event"] == "a retry"


@pytest.mark.parametrize("settings", [Logging(), Logging(format="console")])
def test_a_traceback_shows_no_local_variables(stream: io.StringIO, settings: Logging) -> None:
    log.configure(settings, stream)
    key = "sk-very-secret"
    try:
        raise RuntimeError("broken" + key[:0])
    except RuntimeError:
        log.get().exception("failed")
    assert "broken" in stream.getvalue()
    assert key not in stream.getvalue()


def test_what_is_below_the_level_is_not_written(stream: io.StringIO) -> None:
    log.configure(Logging(level="error"), stream)
    log.get().warning("quiet")
    assert stream.getvalue() == ""
