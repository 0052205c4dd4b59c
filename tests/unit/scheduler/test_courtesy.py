"""Canaries make way: pauses after a refusal, longer each time, ended by any other answer."""

from __future__ import annotations

import pytest

from exporter.config.canary import Courtesy
from exporter.courtesy import Manners
from exporter.judge.judge import judge
from exporter.judge.verdict import Verdict
from exporter.runs import Run, RunSpec
from probes.reasons import Reason
from probes.result import Result, Stream

NOW = 1_000_000.0


def verdict(reason: Reason, *, target: str = "chat", probe: str = "canary", retry_after: float | None = None,
            http: int | None = 200) -> Verdict:
    stream = Stream(status=reason.value, http_status=http, retry_after=retry_after)
    result = Result.model_validate({"run_id": "r", "probe": probe, "target": target, "node": "here", "started": NOW, "finished": NOW,
                                    "reason": reason, "stream": stream})
    spec = RunSpec("r", probe, target, ("here",), "any", 60.0, {})
    return judge(Run(spec, (result,), NOW, NOW + 1))


def manners(**settings: float) -> Manners:
    return Manners(Courtesy.model_validate({"backoff": 60.0, "longest": 400.0, **settings}))


def test_a_target_that_sheds_is_left_alone_longer_each_time() -> None:
    kept = manners()
    pauses = []
    for _ in range(5):
        kept.heard(verdict(Reason.SHED, http=429), NOW)
        pauses.append(kept.waits("chat", NOW))
    assert pauses == [60.0, 120.0, 240.0, 400.0, 400.0]
    assert kept.waits("chat", NOW + 400) == 0.0


def test_a_longer_retry_after_wins_even_over_the_longest_pause() -> None:
    kept = manners()
    kept.heard(verdict(Reason.SHED, http=503, retry_after=3600.0), NOW)
    assert kept.waits("chat", NOW) == 3600.0


@pytest.mark.parametrize("reason", [Reason.OK, Reason.HTTP_SERVER_ERROR, Reason.TRUNCATED])
def test_any_other_answer_ends_the_pause(reason: Reason) -> None:
    kept = manners()
    kept.heard(verdict(Reason.SHED), NOW)
    kept.heard(verdict(reason), NOW + 61)
    assert kept.waits("chat", NOW + 61) == 0.0
    kept.heard(verdict(Reason.SHED), NOW + 100)
    assert kept.waits("chat", NOW + 100) == 60.0, "and the next one begins anew"


def test_no_answer_at_all_says_nothing_of_the_target() -> None:
    kept = manners()
    kept.heard(verdict(Reason.SHED), NOW)
    kept.heard(verdict(Reason.CONNECT_FAILED, http=None), NOW + 1)
    assert kept.waits("chat", NOW + 1) == 59.0


def test_targets_and_probes_are_apart() -> None:
    kept = manners()
    kept.heard(verdict(Reason.SHED), NOW)
    kept.heard(verdict(Reason.SHED, target="x", probe="nixl"), NOW)
    assert (kept.waits("other", NOW), kept.waits("x", NOW)) == (0.0, 0.0)
    kept.keep({"other"})
    assert kept.waits("chat", NOW) == 0.0
