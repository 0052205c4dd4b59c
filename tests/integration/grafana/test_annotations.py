"""Annotations of verdict changes: which changes, how often, and what happens while Grafana does not answer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from grafana_double import EDITOR, GrafanaDouble, Refused, slow
from verdicts import canary, pair

from exporter.config import Config
from exporter.config.grafana import Grafana as Settings
from exporter.grafana.annotator import LINES, MOST_WAITING, Annotator
from exporter.service import Service
from exporter.status import Looked, StatusBoard

CHAT = {"id": "canary/chat/short", "probe": "canary", "target": "chat", "nodes": (), "next": 200.0, "prompt": "short"}


class World:
    """A board, a Grafana, and an annotator between them, with a clock of its own."""

    def __init__(self, url: str, token: Path, **annotations: Any) -> None:
        self.now = 0.0
        self.board = StatusBoard(clock=lambda: 100.0, pace=0.0)
        self.settings = Settings.model_validate({"url": url, "token": {"file": str(token)}, "annotations": {
            "enabled": True, "min_interval": "30s", **annotations}})
        self.annotator = Annotator(self.settings, lambda: self.board.snapshot, clock=lambda: 1000.0 + self.now, monotonic=lambda: self.now)

    def show(self, *verdicts: Any) -> None:
        """New verdicts, and a look at them."""
        for verdict in verdicts:
            self.board.verdict(verdict)
        self.board.turn(lambda: Looked(150.0 + self.now, jobs=(CHAT,)))
        self.annotator.turn()

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.annotator.turn()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(EDITOR)
    return file


@pytest.fixture
def world(url: str, token: Path) -> World:
    made = World(url, token, tags=("cluster-a",))
    made.show(pair("n-1"))
    return made


def bad(run_id: str = "n-2", nodes: tuple[str, str] = ("a", "b")) -> Any:
    return pair(run_id, nodes=nodes, reason="transfer_failed")


def test_what_turned_bad_is_marked_once_with_its_tags(world: World, grafana: GrafanaDouble) -> None:
    world.show(bad())
    world.show(bad("n-3"))
    world.later(100.0)
    (one,) = grafana.annotations
    assert (one["time"], one["tags"]) == (1_000_000, ["efa-pulse", "cluster-a"])
    assert one["text"] == "a is bad (nixl): transfer_failed\nb is bad (nixl): transfer_failed"


def test_recovery_is_marked_as_well(world: World, grafana: GrafanaDouble) -> None:
    world.show(bad())
    world.later(30.0)
    world.show(pair("n-4"))
    assert grafana.annotations[-1]["text"].startswith("a is good again (nixl): ok")


def test_what_could_not_be_measured_changes_nothing(world: World, grafana: GrafanaDouble) -> None:
    world.show(pair("n-2", reason="unscheduled"))
    world.later(100.0)
    assert grafana.annotations == []


def test_what_was_so_before_the_service_began_is_no_news(url: str, token: Path, grafana: GrafanaDouble) -> None:
    world = World(url, token)
    world.show(bad())
    world.board.remember("c", "nixl", "failed", "tcp_fallback", 50.0)
    world.show()
    world.later(100.0)
    assert grafana.annotations == []


def test_a_first_verdict_that_is_bad_is_news_and_a_good_one_is_not(world: World, grafana: GrafanaDouble) -> None:
    world.show(pair("n-5", nodes=("c", "d")), bad("n-6", ("e", "f")), canary("c-1"))
    assert [line.split()[0] for line in grafana.annotations[0]["text"].splitlines()] == ["e", "f"]


def test_canaries_are_marked_by_target_and_prompt(world: World, grafana: GrafanaDouble) -> None:
    world.show(canary("c-1"))
    world.show(canary("c-2", reason="timeout_first_token"))
    assert grafana.annotations[0]["text"] == "chat is bad (canary/short): timeout_first_token"


def test_what_comes_too_fast_goes_out_together(world: World, grafana: GrafanaDouble) -> None:
    world.show(bad())
    for index in range(20):
        world.show(bad(f"m-{index}", (f"x{index}", f"y{index}")))
    world.later(10.0)
    assert len(grafana.annotations) == 1
    world.later(25.0)
    assert len(grafana.annotations) == 2
    lines = grafana.annotations[1]["text"].splitlines()
    assert (len(lines), lines[-1]) == (LINES + 1, f"and {40 - LINES} more changes")


def test_the_queue_is_bounded_and_says_what_it_lost(world: World, grafana: GrafanaDouble) -> None:
    grafana.before = _fail
    for index in range(MOST_WAITING):
        world.show(bad(f"m-{index}", (f"x{index}", f"y{index}")))
    assert world.annotator.waiting == MOST_WAITING
    grafana.before = lambda *_: None
    world.later(10_000.0)
    assert grafana.annotations[0]["text"].endswith(f"and {2 * MOST_WAITING - LINES} more changes")
    assert world.annotator.waiting == 0


def test_a_grafana_in_trouble_is_asked_ever_more_rarely_and_loses_nothing(world: World, grafana: GrafanaDouble) -> None:
    grafana.before = _fail
    world.show(bad())
    for _ in range(60):
        world.later(10.0)
    asked = len(grafana.requests)
    assert 2 <= asked <= 5
    grafana.before = lambda *_: None
    world.later(300.0)
    assert len(grafana.annotations) == 1


def test_a_token_that_is_exchanged_is_taken(world: World, grafana: GrafanaDouble, token: Path) -> None:
    token.write_text("glsa_wrong")
    world.show(bad())
    assert grafana.annotations == []
    token.write_text(EDITOR)
    world.later(300.0)
    assert len(grafana.annotations) == 1


def test_it_ends_soon_while_grafana_does_not_answer(url: str, token: Path, grafana: GrafanaDouble,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.grafana.annotator.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("exporter.grafana.annotator.TIMEOUT_SECONDS", 0.5)
    grafana.before = slow(3.0)
    world = World(url, token)
    world.annotator.start()
    world.board.turn(lambda: Looked(150.0))
    time.sleep(0.2)
    world.board.verdict(bad())
    world.board.turn(lambda: Looked(151.0))
    time.sleep(0.3)
    began = time.monotonic()
    world.annotator.close()
    assert time.monotonic() - began < 2.5


def test_they_are_off_by_default() -> None:
    assert not Config().grafana.annotations.enabled
    service = Service(Config.model_validate({"server": {"listen": "127.0.0.1:0"}}))
    assert service.url


def _fail(*_: str) -> None:
    raise Refused(502, "Bad Gateway")
