"""What every command's output has in common: brackets are text, a reader may go away, a mistake names the option that was given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

from exporter.cli import render, run


def test_brackets_are_text_in_lines_and_cells(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name")
    table.add_row("[/cell]")
    out = render.console()
    out.print("[/line]")
    out.print(table)
    told = capsys.readouterr().out
    assert "[/line]" in told
    assert "[/cell]" in told


@pytest.mark.parametrize("command", [["rules", "--list"], ["rules"]], ids=["by a table", "as plain text"])
def test_a_reader_that_goes_away_is_no_finding(command: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([sys.executable, "-m", "exporter", *command], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("listen", ["nowhere", ":99999", ":²", "127.0.0.1:", "127.0.0.1:-1"])
@pytest.mark.parametrize(("command", "option"), [(("demo",), "--listen"), (("simulate", "--nodes", "2", "--config", "CONFIG"), "--serve")])
def test_an_address_that_is_none_is_told_with_its_option(listen: str, command: tuple[str, ...], option: str, tmp_path: Path,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("canary: {targets: [{name: a, url: 'http://127.0.0.1:1', model: m}]}\n")
    assert run([str(config) if word == "CONFIG" else word for word in (*command, option, listen)]) == 64
    assert f"{option} {listen}: host:port is needed" in capsys.readouterr().err
