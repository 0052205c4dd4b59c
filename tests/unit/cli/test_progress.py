"""What a person sees while runs go on, and what `--nodes` may say."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from exporter.cli.cluster import node_names
from exporter.cli.exits import UsageError
from exporter.cli.progress import Progress
from exporter.runs import RunSpec


def run(name: str = "r1") -> RunSpec:
    return RunSpec(name, "mooncake", "a--b", ("a", "b"), "any", 60.0)


def test_without_a_terminal_every_change_is_one_line() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, width=120))
    with progress.shown([run()]):
        progress.said("r1", {0: "creating", 1: "creating"})
        progress.said("r1", {0: "pulling on a", 1: "creating"})
        progress.said("r1", {0: "pulling on a", 1: "creating"})
        progress.said("another", {0: "pending"})
        progress.refresh()
    assert out.getvalue().splitlines() == [
        "mooncake a--b: rank 0 its Job is being made", "mooncake a--b: rank 1 its Job is being made",
        "mooncake a--b: rank 0 pulling on a"]


def test_the_live_line_has_every_run_and_the_last_word() -> None:
    progress = Progress(Console(file=io.StringIO(), force_terminal=True, width=120))
    with progress.shown([run(), run("r2")]):
        assert progress.line().splitlines()[:2] == ["mooncake a--b: waiting for a place"] * 2
        progress.said("r1", {1: "running on [b]", 0: "waiting for the other ranks on a"})
        progress.note("r2", "asking the witnesses")
        progress.refresh()
        first, second, seconds = progress.line().splitlines()
    assert first == r"mooncake a--b: rank 0 waiting for the other ranks on a, rank 1 running on \[b]"
    assert second == "mooncake a--b: asking the witnesses"
    assert seconds == "0 s"


def test_nodes_are_named_once() -> None:
    assert node_names(" a, b,") == ("a", "b")
    for text in ("", ",", "a,b,a"):
        with pytest.raises(UsageError):
            node_names(text)
