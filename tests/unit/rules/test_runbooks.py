"""Runbooks: one for each alert, with commands that exist, and a line for every reason."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from dashboards.rules import render
from dashboards.rules.catalogue import ALERTS
from dashboards.rules.reasons import LEADS_TO
from exporter.cli import app
from probes.reasons import Reason

BOOKS = Path(render.__file__).parent.parent / "runbooks"
PAGES = sorted(BOOKS.glob("*.md"))
SECTIONS = ("What it means", "How sure", "What to look at", "Likely causes", "How to stop the noise safely", "When to drain")
COMMAND = re.compile(r"^    (efa-pulse [^\n]*)|`(efa-pulse [^`]*)`", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def commands() -> list[tuple[str, str]]:
    return sorted({(page.name, (block or inline).partition("  #")[0].strip())
                   for page in PAGES for block, inline in COMMAND.findall(page.read_text())})


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert {page.stem for page in PAGES} == set(ALERTS) | {"reasons", "failures"}


@pytest.mark.parametrize("alert", ALERTS)
def test_a_runbook_answers_all_questions(alert: str) -> None:
    text = (BOOKS / f"{alert}.md").read_text()
    assert text.startswith(f"# {alert}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == list(SECTIONS)
    for section in SECTIONS:
        body = text.partition(f"## {section}\n")[2].partition("\n## ")[0]
        assert len(body.strip()) > 4, section
    assert re.search(r"^    (efa-pulse|kubectl|curl) ", text, re.MULTILINE)


@pytest.mark.parametrize(("page", "command"), commands(), ids=lambda value: value)
def test_a_command_of_a_runbook_parses(page: str, command: str) -> None:
    words = [word for word in shlex.split(command)[1:] if word != "--help"]
    at = get_command(app)
    context = at.make_context("efa-pulse", list(words), resilient_parsing=True)
    while hasattr(at, "commands"):
        name = words.pop(0)
        assert name in at.commands, f"{page}: there is no command {name}"
        at = at.commands[name]
    if not words:
        return  # the command is only named
    context = at.make_context(at.name, words, parent=context)
    assert context.args == []


def test_a_command_that_does_not_exist_would_be_noticed() -> None:
    status = get_command(app).commands["status"]  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="No such option"):
        status.make_context("status", ["--nonsense"])


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).is_file(), target


def test_every_reason_has_its_line() -> None:
    text = (BOOKS / "reasons.md").read_text()
    assert set(LEADS_TO) == set(Reason)
    for reason in Reason:
        line = next(line for line in text.splitlines() if line.startswith(f"| `{reason.value}` |"))
        for alert in LEADS_TO[reason]:
            assert alert in ALERTS
            assert f"[{alert}]({alert}.md)" in line


def test_silences_name_an_alert_that_exists() -> None:
    for page in PAGES:
        for name in re.findall(r"alertname=(\w+)|--disable (\w+)|--set (EfaPulse\w+)\.", page.read_text()):
            assert "".join(name) in ALERTS


def test_typer_is_what_the_commands_are_made_with() -> None:
    assert isinstance(app, typer.Typer)
