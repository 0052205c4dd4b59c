"""Alerts of canaries: what users of an endpoint would see. SLOs by burn rate over two windows, outages, and answers that are wrong."""

from __future__ import annotations

from dashboards.rules.model import Alert, Component, Group, Severity, duration, number, pattern
from dashboards.rules.promql import FAILED, GOOD, UNKNOWN, increase

CANARY = Component.CANARY
MUTED = "unless ignoring (target, route{more}) (max without (probe) (efapulse:fabric_broken))"
REQUESTS = "efapulse_canary_requests_total"


def requests(results: str = "") -> str:
    """Requests of the window that ended with one of these results; all of them without any."""
    chosen = f'{{result=~"{results}"}}' if results else ""
    return increase(REQUESTS + chosen, "@window@", "prompt", "result")


def _burn(bad: str, all_of_them: str, long: str, short: str, more: str = "") -> str:
    """Two windows burn the error budget `factor` times faster than allowed; the long one has enough samples and failures to mean it."""
    def ratio(window: str) -> str:
        return f'efapulse:{bad}:increase{window}{{route="router"}} / efapulse:{all_of_them}:increase{window} > @factor@ * (1 - @objective@)'

    return (f"(\n  {ratio(long)}\n  and {ratio(short)}\n"
            f"  and round(efapulse:{all_of_them}:increase{long}) >= @samples@\n"
            f"  and round(efapulse:{bad}:increase{long}) >= @failures@\n)\n" + MUTED.format(more=more))


_LIMITS = {"samples": number("30", "canaries that count in the long window, at least"),
           "failures": number("3", "of these, canaries beyond the objective, at least")}
_SIZED = ("Two windows: the long one says that it matters, the short one that it still goes on, so that the alert resolves soon after the "
          "cause is gone. At one canary a minute 6 h hold 360 samples and 30 min hold 30, so one failure is 3.3 % of the short window: "
          "shorter windows, such as the usual 1 h / 5 min, would page for a single failed request. ")


def _slo(what: str, title: str, bad: str, good: str, meaning: str, more: str = "") -> tuple[Alert, Alert]:
    labels = {"slo": what.lower()}
    prompt = " for {{ $labels.prompt }} prompts" if more else ""
    fast = Alert(
        f"EfaPulseCanary{title}BurnFast", Severity.CRITICAL, CANARY, "2m", _burn(bad, good, "6h", "30m", more),
        f"{{{{ $labels.target }}}}: {{{{ $value | humanizePercentage }}}} of canaries{prompt} miss the {what} objective (6 h), still "
        f"going on",
        f"{meaning} At this rate a 30-day error budget is gone within @factor@ times less than 30 days.",
        _SIZED + "A factor of 6 spends 5 % of a 30-day budget in 6 h.",
        {"factor": number("6", "how many times faster than allowed the budget burns"), **_LIMITS}, {**labels, "burn": "fast"})
    slow = Alert(
        f"EfaPulseCanary{title}BurnSlow", Severity.WARNING, CANARY, "15m", _burn(bad, good, "3d", "6h", more),
        f"{{{{ $labels.target }}}}: {{{{ $value | humanizePercentage }}}} of canaries{prompt} miss the {what} objective (3 d), still "
        f"going on",
        f"{meaning} The error budget will not last for its 30 days.",
        _SIZED + "Over 3 d and 6 h a factor of 1 finds what is small and lasts: it spends 10 % of a 30-day budget in 3 d.",
        {"factor": number("1", "how many times faster than allowed the budget burns"), **_LIMITS}, {**labels, "burn": "slow"})
    return fast, slow


GROUP = Group("efapulse.canaries", (
    Alert(
        "EfaPulseCanaryDown", Severity.CRITICAL, CANARY, "1m",
        f"(\n  round({requests(FAILED)}) >= @failures@\n  unless {requests(GOOD)} > 0\n)\n" + MUTED.format(more=""),
        "{{ $labels.target }} ({{ $labels.route }}) answers no canary any more",
        "Every canary that could be judged failed, none was answered. Users of {{ $labels.target }} most likely see the same. "
        "efa-pulse status lists the last results by reason.",
        "A whole outage needs 22 min to burn 6 % of a 6 h window; this one sees it after three requests and no answer. Shed and disturbed "
        "requests do not count. A broken fabric explains it and pages by itself.",
        {"window": duration("10m", "time without an answer; at least three intervals of the short prompt"),
         "failures": number("3", "failed canaries in the window, at least")}),
    *_slo("availability", "Availability", "canary_failed", "canary_valid",
          "Canaries fail: connection, HTTP error, broken stream, time-out or an empty answer."),
    *_slo("TTFT", "Ttft", "canary_ttft_slow", "canary_ttft_measured",
          "The time to the first token is above its bound (@ttft_short@ s short prompt, @ttft_long@ s long): prefill queues or KV "
          "transfer.",
          ", prompt"),
    *_slo("TPOT", "Tpot", "canary_tpot_slow", "canary_tpot_measured",
          "The time per output token is above its bound (@tpot@ s): decode is overloaded or stalls.", ", prompt"),
    Alert(
        "EfaPulseCanaryShedOrUnknown", Severity.WARNING, CANARY, "5m",
        f"(\n  {requests(UNKNOWN)}\n  / {requests()} > @share@\n  and round({requests()}) >= @samples@\n)",
        "{{ $labels.target }} ({{ $labels.route }}): {{ $value | humanizePercentage }} of an hour's canaries were shed or not to be judged",
        "The endpoint answers 429 or 503, or the canary's own timing was disturbed. The SLOs leave such requests out, so for now they say "
        "little about {{ $labels.target }}.",
        "Shedding a canary is right behaviour of a full endpoint and no failure; but when most are shed for an hour, users are too, and "
        "nothing else would say so.",
        {"window": duration("1h", "time over which it is counted"), "share": number("0.5", "share that is too much"),
         "samples": number("10", "canaries in the window, at least")}),
    Alert(
        "EfaPulseCanarySilent", Severity.WARNING, CANARY, "10m",
        f"(\n  {increase(REQUESTS, '@window@', 'prompt', 'result', 'route')} == 0\n"
        f"  and sum without (instance, pod, prompt, result, route) ({REQUESTS} offset @window@) >= 0\n)\n"
        "unless ignoring (target) (max without (instance, pod) (efapulse_paused) == 1)",
        "No canary has ended for {{ $labels.target }} within an hour",
        "{{ $labels.target }} is configured, but no request was sent, or none came back: the scheduler is held up, or its canary hangs.",
        "Counters start at 0 for every configured target, so a canary that never ran is seen as well; `offset` asks that the target was "
        "there for the whole window, so a new one has its time. A pause is not silence.",
        {"window": duration("1h", "time without any canary")}),
    Alert(
        "EfaPulseCanaryIntegrity", Severity.CRITICAL, CANARY, "0s",
        increase('efapulse_canary_integrity_total{verdict=~"@verdicts@"}', "@window@", "verdict") + " > 0",
        "{{ $labels.target }} gives wrong answers",
        "An answer did not hold the anchors of its own prompt: KV blocks were lost, mixed up or damaged on their way, or the model itself "
        "is broken. Users get wrong text without an error.",
        "A wrong answer is proven by one request, so it pages at once; nothing mutes it, also not a broken fabric. It stays for the "
        "window, "
        "so that one event is one page.",
        {"window": duration("1h", "how long one event keeps the alert firing"),
         "verdicts": pattern("mismatch|degenerate", "verdicts that are wrong; `drift` is not: equal engines differ a little")}),
    Alert(
        "EfaPulseCanaryCrosstalk", Severity.CRITICAL, CANARY, "0s",
        increase("efapulse_canary_crosstalk_total", "@window@") + " > 0",
        "{{ $labels.target }} answered with text of another request",
        "The nonce of another canary came back: KV blocks of one request were read by another. Users may see each other's data. Stop "
        "disaggregated serving on {{ $labels.target }} until it is understood.",
        "The nonce cannot occur by chance, so a single one is proof and pages at once; nothing mutes it.",
        {"window": duration("1h", "how long one event keeps the alert firing")}),
))
