"""Small pieces of PromQL that every board needs. Nothing here knows a metric; names stand in the boards, where one can search for them."""

from __future__ import annotations

from probes.reasons import REASONS, Outcome, Reason

CLUSTER = 'cluster=~"$cluster"'
UNKNOWN = "|".join(sorted(reason.value for reason in Reason if REASONS[reason].outcome is Outcome.UNKNOWN))
"""Results that say nothing about what was measured, as a regular expression: they count neither for nor against it."""


def pick(metric: str, *matchers: str) -> str:
    """A selector for the chosen clusters. A matcher is written out (`outcome="ok"`), or names a variable that filters its label."""
    own = [one if any(sign in one for sign in "=~!") else f'{one}=~"${one}"' for one in matchers]
    return f"{metric}{{{','.join([CLUSTER, *own])}}}"


def latest(expression: str) -> str:
    """The value whichever replica tells it, and whichever pod it came from."""
    return f"max without (instance, pod) ({expression})"


def worst(expression: str) -> str:
    """The lowest value where several replicas tell one."""
    return f"min without (instance, pod) ({expression})"


def or_zero(expression: str, of: str) -> str:
    """`expression`, or zero while `of` is there: where nobody tells anything, the panel must not say that all is well."""
    return f"{expression} or 0 * count({of})"


def quantile(share: float, metric: str, labels: str, *matchers: str, over: str = "$window") -> str:
    """A quantile of a histogram over the last `over`, by `labels`; without labels one figure for all."""
    by = f"le, {labels}" if labels else "le"
    return f"histogram_quantile({share:g}, sum by ({by}) (increase({pick(metric + '_bucket', *matchers)}[{over}])))"


def mean(metric: str, labels: str, *matchers: str, over: str = "$window") -> str:
    """The mean of a histogram's observations over the last `over`, by `labels`."""
    total, number = (f"sum by ({labels}) (increase({pick(metric + end, *matchers)}[{over}]))" for end in ("_sum", "_count"))
    return f"{total} / ({number} > 0)"


def share_above(metric: str, bound: str, labels: str, *matchers: str, over: str = "$window") -> str:
    """The share of a histogram's observations above one of its bucket bounds. Bounds are matched as 1 and as 1.0: versions write both."""
    either = f'le=~"{bound}|{bound}.0"' if "." not in bound else f'le="{bound}"'
    low = f"sum by ({labels}) (increase({pick(metric + '_bucket', either, *matchers)}[{over}]))"
    number = f"sum by ({labels}) (increase({pick(metric + '_count', *matchers)}[{over}]))"
    return f"1 - {low} / ({number} > 0)"


def age(expression: str) -> str:
    """Seconds since a timestamp."""
    return f"time() - {expression}"
