"""Cases of the alerts of canaries. Rates are those of the defaults: a short prompt every minute."""

from __future__ import annotations

from collections.abc import Sequence

from alerting.case import Case, Check, Fired, Kind, Series, Suite, count, fired, held, rising, series
from alerting.nodes import many

LONG = 600
CHAT = {"target": "chat", "route": "router"}
BROKEN = many(7, 8)
"""A broken fabric, from minute 10 on."""


def requests(result: str, values: str, *, replica: str = "a", route: str = "router", target: str = "chat", prompt: str = "short") -> Series:
    return series("efapulse_canary_requests_total", values, replica, target=target, route=route, prompt=prompt, result=result)


def _down() -> Suite:
    said = (Fired(CHAT),)
    good = requests("ok", rising((0, 1, 20), (19, 0, LONG)))
    failing = requests("timeout_first_token", rising((0, 0, 20), (1, 1, LONG)))
    return Suite("EfaPulseCanaryDown", [
        Case(Kind.FIRES, "ten minutes after the last answer", [good, failing], [Check(20), Check(28), Check(32, said), Check(100, said)]),
        Case(Kind.FIRES, "for an endpoint that never answered",
            [requests("ok", held((0, LONG))), requests("connect_failed", rising((0, 1, LONG)))],
             [Check(2), Check(10, said)]),
        Case(Kind.NEAR_MISS, "one answer in the window", [
            requests("ok", rising((0, 0, 20), (1, 0, LONG))), requests("http_server_error", rising((0, 1, LONG)))], [Check(22), Check(26)]),
        Case(Kind.NEAR_MISS, "two failures only", [good, requests("truncated", held((0, 24), (1, 1), (2, LONG)))], [Check(32), Check(60)]),
        Case(Kind.NEAR_MISS, "shed requests are no failures", [good, requests("shed", rising((0, 0, 20), (1, 1, LONG)))], [Check(40)]),
        Case(Kind.NEAR_MISS, "a broken fabric explains it", [good, failing, *BROKEN], [Check(60)]),
        Case(Kind.RESOLVES, "with the first answer", [
            requests("ok", rising((0, 1, 20), (19, 0, 20), (20, 1, 60))), requests("timeout_first_token",
                rising((0, 0, 20), (1, 1, 20), (20, 0, 60)))],
            [Check(38, said), Check(42), Check(60)]),
        Case(Kind.RESTART, "the exporter begins again at 0", [
            requests("ok", rising((0, 1, 20), (19, 0, 20), (0, 0, 60))), requests("timeout_first_token",
                rising((0, 0, 20), (1, 1, 20), (0, 1, 60)))],
            [Check(minute, said) for minute in range(33, 60, 3)]),
        Case(Kind.RESTART, "another replica takes over and fails as well", [
            requests("ok", rising((0, 1, 20), (19, 0, 20)) + " stale"), requests("connect_failed",
                rising((0, 0, 20), (1, 1, 20)) + " stale"),
            requests("ok", held((0, LONG)), replica="b"), requests("connect_failed", rising((0, 0, 41), (1, 1, LONG)), replica="b")],
            [Check(minute, said) for minute in range(33, 60, 3)]),
        Case(Kind.MISSING, "no such target", [], [Check(60)]),
    ])


def _burn(alert: str, bad: str, steps: tuple[float, float], said: Fired, *, minutes: int, every: int,
          labels: Sequence[str] = ()) -> list[Case]:
    """The cases of one burn-rate alert. `steps` are failures per step that are enough and a little too few, of 60 requests an hour.

    `minutes` is the long window, `every` the pace in minutes.
    """
    enough, few = steps
    window, short = minutes // every, {360: 30, 4320: 360}[minutes] // every
    per = every  # requests per step
    wait = {360: 2, 4320: 15}[minutes]
    end = 2 * window

    def run(*parts: tuple[float, int], replica: str = "a", start: float = 0, tail: str = "") -> list[Series]:
        """Requests at one a minute, so many of them bad in each step."""
        bads, goods, total_bad, total_good = [], [], start, start
        for failures, steps in parts:
            bads.append((total_bad, failures, steps))
            goods.append((total_good, per - failures, steps))
            total_bad += failures * steps
            total_good += (per - failures) * steps
        return samples(bad, rising(*bads) + tail, rising(*goods) + tail, replica)

    def at(step: int) -> int:
        return step * every

    settled = window + wait // every + 3
    return [
        Case(Kind.FIRES, "both windows burn", run((enough, end)), [Check(at(settled), (said,)), Check(at(settled + short), (said,))]),
        Case(Kind.NEAR_MISS, "a little below the rate", run((few, end)), [Check(at(short)), Check(at(settled)),
                                                                          Check(at(settled + short))]),
        Case(Kind.NEAR_MISS, "the long window burns, but it is over", run((enough * 3, window // 2), (0, window)),
             [Check(at(window // 2 + short + 3)), Check(at(window))]),
        Case(Kind.NEAR_MISS, "the short window burns, the long one does not", run((0, window - 2), (few * 1.5, short // 3), (0, short)),
             [Check(at(window + 1)), Check(at(window + short // 3 + 1))]),
        Case(Kind.NEAR_MISS, "fewer than 30 canaries",
             samples(bad, rising((0, 8 / window, end)), rising((0, 20 / window, end))), [Check(at(settled))]),
        Case(Kind.NEAR_MISS, "two failures are no trend",
             samples(bad, rising((0, 2 / window, end)), rising((0, 29 / window, end))), [Check(at(settled))]),
        Case(Kind.NEAR_MISS, "a broken fabric explains it", [*run((enough, end)), *(
            series("efapulse_findings", held((1, end)), kind="group", probe=probe) for probe in ("nccl",))], [Check(at(settled))]),
        Case(Kind.RESOLVES, "when the short window is clean", run((enough, settled + 4), (0, end)),
             [Check(at(settled + 2), (said,)), Check(at(settled + short + 10))]),
        Case(Kind.RESTART, "counters begin again at 0", [
            *samples(bad, rising((0, enough, settled), (0, enough, window)),
                rising((0, per - enough, settled), (0, per - enough, window)))],
            [Check(at(step), (said,)) for step in range(settled, settled + short + 4, max(1, short // 4))]),
        Case(Kind.RESTART, "half of the window was counted by a replica that died", [
            *run((enough, window), tail=" stale"),
            *samples(bad, held(("_", 1)) + " " + rising((0, 0, window - 1), (0, enough, window)),
                     held(("_", 1)) + " " + rising((0, 0, window - 1), (0, per - enough, window)), "b")],
            [Check(at(window + window // 2), (said,))]),
        Case(Kind.MISSING, "no canary of this target", [], [Check(at(settled))]),
        Case(Kind.ZERO, "none has ended, or none of the long window is left", samples(bad, rising((0, 0, end)), rising((0, 0, end))),
             [Check(at(settled))]),
        Case(Kind.ZERO, "all were shed: nothing to judge", [requests("shed", rising((0, per, end))), *samples(
            bad, rising((0, 0, end)), rising((0, 0, end)))], [Check(at(settled))]),
    ]


def samples(bad: str, failures: str, goods: str, replica: str = "a") -> list[Series]:
    """The series in which failures and good requests are counted, for one kind of objective."""
    if bad == "availability":
        return [requests("http_server_error", failures, replica=replica), requests("ok", goods, replica=replica)]
    name, bound = {"ttft": ("efapulse_canary_ttft_seconds", "1.0"), "tpot": ("efapulse_canary_tpot_seconds", "0.1")}[bad]
    labels = {**CHAT, "prompt": "short", "clock": "kernel"}
    found = []
    # A series for the slow ones and one for all: what is counted in buckets is the sum of both, so they are kept apart by clock.
    for clock, values, slow in (("kernel", goods, False), ("user", failures, True)):
        own = {**labels, "clock": clock}
        found += [Series(f"{name}_count", own, values, replica), Series(f"{name}_bucket", {**own, "le": "+Inf"}, values, replica),
                  Series(f"{name}_bucket", {**own, "le": bound}, zeros(values) if slow else values, replica)]
    return found


def zeros(values: str) -> str:
    """The same samples, all 0: none was below the bound."""
    def zero(word: str) -> str:
        return word if word in ("_", "stale") else f"0+0x{word.rpartition('x')[2]}" if "x" in word else "0"

    return " ".join(map(zero, values.split()))


def _burns() -> list[Suite]:
    found = []
    for bad, title, more in (("availability", "Availability", {}), ("ttft", "Ttft", {"prompt": "short"}),
        ("tpot", "Tpot", {"prompt": "short"})):
        labels = {**CHAT, **more}
        # 1 a minute; a factor of 6 on 1 % is 6 %: 0.08 is enough, 0.05 is not.
        fast = _burn(f"EfaPulseCanary{title}BurnFast", bad, (0.08 * 10, 0.05 * 10), Fired(labels, "8%"), minutes=360, every=10)
        slow = _burn(f"EfaPulseCanary{title}BurnSlow", bad, (0.02 * 60, 0.008 * 60), Fired(labels, "2%"), minutes=4320, every=60)
        found += [Suite(f"EfaPulseCanary{title}BurnFast", fast, every=10), Suite(f"EfaPulseCanary{title}BurnSlow", slow, every=60)]
    return found


def _shed() -> Suite:
    said = (fired("60%", **CHAT),)
    def mix(shed: float, ok: float) -> list[Series]:
        return [requests("shed", rising((0, shed, 200))), requests("ok", rising((0, ok, 200)))]

    return Suite("EfaPulseCanaryShedOrUnknown", [
        Case(Kind.FIRES, "more than half of an hour", mix(0.6, 0.4), [Check(3), Check(66, said), Check(90, said)]),
        Case(Kind.FIRES, "disturbed ones count as well", [requests("disturbed", rising((0, 0.3, 200))), *mix(0.3, 0.4)], [Check(90, said)]),
        Case(Kind.NEAR_MISS, "half is not more than half", mix(0.5, 0.5), [Check(66), Check(150)]),
        Case(Kind.NEAR_MISS, "failures are for the SLO", [requests("timeout_total", rising((0, 1, 200)))], [Check(90)]),
        Case(Kind.NEAR_MISS, "nine canaries say nothing", mix(0.1, 0.05), [Check(90)]),
        Case(Kind.RESOLVES, "when the endpoint takes canaries again", [
            requests("shed", rising((0, 0.6, 80), (48, 0, 100))), requests("ok", rising((0, 0.4, 80), (32, 1, 100)))],
            [Check(78, said), Check(150)]),
        Case(Kind.RESTART, "counters begin again at 0", [
            requests("shed", rising((0, 0.6, 80), (0, 0.6, 80))), requests("ok", rising((0, 0.4, 80), (0, 0.4, 80)))],
            [Check(70, said), Check(79, said)]),
        Case(Kind.RESTART, "the other replica's counters at 0 do not dilute it", [
            *mix(0.6, 0.4), requests("shed", held((0, 200)), replica="b"), requests("ok", held((0, 200)), replica="b")], [Check(90, said)]),
        Case(Kind.MISSING, "no such target", [], [Check(90)]),
        Case(Kind.ZERO, "no canary has ended", mix(0, 0), [Check(90)]),
    ])


def _silent() -> Suite:
    said = (fired(target="chat"),)
    return Suite("EfaPulseCanarySilent", [
        Case(Kind.FIRES, "an hour after the last one", [requests("ok", rising((0, 1, 80), (79, 0, 200)))],
            [Check(79), Check(130), Check(152, said)]),
        Case(Kind.FIRES, "for a target that was never asked", [requests("ok", held((0, 200))), requests("shed", held((0, 200)))],
             [Check(55), Check(72, said)]),
        Case(Kind.NEAR_MISS, "one request in an hour", [requests("shed", held((0, 100), (1, 45), (2, 60)))], [Check(90 + 45), Check(200)]),
        Case(Kind.NEAR_MISS, "a new target has its time", [requests("ok", held(("_", 100), (0, 65)))], [Check(150), Check(163)]),
        Case(Kind.NEAR_MISS, "the other route is asked", [
            requests("ok", held((0, 200))), requests("ok", rising((0, 1, 200)), route="baseline")], [Check(100)]),
        Case(Kind.NEAR_MISS, "paused", [requests("ok", held((0, 200))), series("efapulse_paused", held((1, 200)))], [Check(100)]),
        Case(Kind.RESOLVES, "with the next one", [requests("ok", held((0, 100), (1, 100)))], [Check(90, said), Check(102)]),
        Case(Kind.RESTART, "a restart does not look like a request", [requests("ok", held((50, 90), (0, 100)))],
            [Check(85, said), Check(95, said), Check(120, said)]),
        Case(Kind.MISSING, "the target was removed", [requests("ok", held((50, 90), ("stale", 100)))], [Check(85, said), Check(160)]),
    ])


def _proofs() -> list[Suite]:
    found = []
    for alert, metric, own in (("EfaPulseCanaryIntegrity", "efapulse_canary_integrity_total", {"verdict": "mismatch"}),
                               ("EfaPulseCanaryCrosstalk", "efapulse_canary_crosstalk_total", {})):
        labels = {"target": "chat"}
        said = Fired(labels)
        cases = count(metric, labels={**labels, **own}, said=said, over=60, wait=0, fast=0.05, slow=0)
        once = Series(metric, {**labels, **own}, held((0, 5), (1, 100)))
        cases += [Case(Kind.FIRES, "at once, also when the fabric is broken", [once, *BROKEN],
            [Check(4), Check(5, (said,)), Check(20, (said,))]),
                  Case(Kind.NEAR_MISS, "good answers", [series(metric, rising((0, 1, 100)), target="chat", verdict="ok")] if own else
                       [series(metric, held((0, 100)), target="chat")], [Check(90)])]
        if own:
            cases.append(Case(Kind.NEAR_MISS, "a drift of equal engines", [series(metric, rising((0, 1, 100)), target="chat",
                                                                                  verdict="drift")],
                              [Check(90)]))
        found.append(Suite(alert, cases))
    return found


SUITES: tuple[Suite, ...] = (_down(), *_burns(), _shed(), _silent(), *_proofs())
