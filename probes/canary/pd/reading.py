"""A page as meters, and what changed between two readings of it. What is not on the page is None, never zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from probes.canary.pd.engines import Catalog, Source, catalog, plain
from probes.canary.pd.exposition import Exposition, Sample, read

ABSENT_IS_ZERO = ("prompt_external", "prompt_local", "failed_transfers")
"""Counters that a page written by Ray leaves out while they are 0."""


@dataclass(frozen=True)
class Reading:
    """One page at one moment. `problem` says why there is none.

    `values` are the meters that the page has, in base units. `silent`: it has not one of the series expected of such an engine (versions
    differ in which they have), and `missing` names them.
    """

    role: str
    pod: str
    engine: str | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    silent: bool = False
    engine_role: str | None = None
    block_tokens: int | None = None
    ray: bool = False
    problem: str | None = None


@dataclass(frozen=True)
class Change:
    """What one pod's page says of the time between two readings.

    `grew` has every meter that can be told: the growth of counters, the new value of a `last` gauge that changed. `now` are gauges at the
    second reading. `reset` says that a counter fell or the process started again: nothing of it may be used. `problem`: it was not read.
    """

    role: str
    pod: str
    engine: str | None = None
    grew: Mapping[str, float] = field(default_factory=dict)
    total: Mapping[str, float] = field(default_factory=dict)
    now: Mapping[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    silent: bool = False
    engine_role: str | None = None
    block_tokens: int | None = None
    reset: bool = False
    problem: str | None = None

    @property
    def usable(self) -> bool:
        """Whether its figures mean anything."""
        return self.problem is None and not self.reset and not self.silent


def read_page(text: str, role: str, pod: str, names: Catalog | None = None) -> Reading:
    """The meters on a page."""
    names = names or catalog()
    wanted = _with_bare(names.names)
    page = read(text, lambda name: plain(name) in wanted)
    if page.cut:
        # Sums over a part of the series would look like figures.
        return Reading(role, pod, problem="the page has more lines or series than are read")
    engine = names.engine_of(page.prefixes) or ("nixl" if "agent" in page.prefixes else None)
    if engine is None:
        return Reading(role, pod, problem="none of the engines known here: the page has none of their names")
    samples = _by_name(page)
    values: dict[str, float] = {}
    kinds: dict[str, str] = {}
    engine_role: str | None = None
    block: int | None = None
    for meter, sources in names.meters.items():
        for source in sources:
            found = samples.get(source.series)
            if found is None or not source.on(role):
                continue
            if source.kind == "role":
                engine_role = engine_role or _label(found, source)
            elif source.kind == "block":
                block = block or _whole(_label(found, source))
            else:
                value = _value(found, source)
                if value is not None:
                    values[meter], kinds[meter] = value, source.kind
            break
    expected = names.expected_of(engine, role)
    lacking = tuple(names.meters[meter][0].series for meter in expected if meter not in values and not _there(samples, names, meter, role))
    silent = bool(expected) and len(lacking) == len(expected)
    return Reading(role, pod, engine, values, kinds, lacking if silent else (), silent, engine_role, block,
                   ray=any(prefix.startswith("ray_") for prefix in page.prefixes))


def change(before: Reading, after: Reading) -> Change:
    """What happened between two readings of the same page."""
    state = {name: value for name, value in after.values.items() if after.kinds[name] == "gauge"}
    said = Change(after.role, after.pod, after.engine, now=state, missing=after.missing, silent=after.silent, engine_role=after.engine_role,
                  block_tokens=after.block_tokens, problem=after.problem or before.problem)
    if said.problem is not None:
        return said
    grew: dict[str, float] = {}
    reset = after.values.get("started", 0.0) > before.values.get("started", after.values.get("started", 0.0)) + 1.0
    for name, value in after.values.items():
        kind = after.kinds[name]
        old = before.values.get(name)
        if kind == "last":
            if old is not None and value != old:
                grew[name] = value
        elif kind == "counter":
            # A labelled counter may be absent before its first event; a page that had nothing at all is another matter.
            old = 0.0 if old is None else old
            if name.endswith("_seconds") and value < old:
                continue  # vLLM adds negative queue times for requests that never ran: no restart, and no figure either
            reset = reset or value < old
            grew[name] = value - old
    if after.ray and not after.silent:
        # Ray never sends a counter that is still 0.
        grew = {**dict.fromkeys(ABSENT_IS_ZERO, 0.0), **grew}
    vanished = [name for name, kind in before.kinds.items() if kind == "counter" and name not in after.values]
    reset = reset or bool(vanished)
    return Change(after.role, after.pod, after.engine, {} if reset else grew, dict(after.values), state, after.missing, after.silent,
                  after.engine_role, after.block_tokens, reset)


def summed(changes: Sequence[Change], meter: str) -> float | None:
    """A meter over several pods; None when any of them cannot tell it."""
    values = [one.grew.get(meter) if one.usable else None for one in changes]
    return None if not values or None in values else sum(value for value in values if value is not None)


def _with_bare(names: Iterable[str]) -> frozenset[str]:
    """The names, and counters as some exporters write them: without `_total`."""
    return frozenset(form for name in names for form in (name, name.removesuffix("_total")))


def _by_name(page: Exposition) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for sample in page.samples:
        name = plain(sample.name)
        found.setdefault(name, []).append(sample)
        if not name.endswith("_total"):
            found.setdefault(f"{name}_total", []).append(sample)
    return found


def _value(samples: list[Sample], source: Source) -> float | None:
    """The sum over the series that count; with a filter, a name that is there without the wanted label values is 0."""
    chosen = [sample for sample in samples if all(sample.labels.get(label) in values for label, values in source.where.items())]
    if source.where and not chosen and not any(label in sample.labels for label in source.where for sample in samples):
        return None
    value = sum(sample.value for sample in chosen)
    if source.kind == "gauge" and source.scale == 1.0 and len(chosen) > 1 and source.series.endswith(("_perc", "_usage", "_seconds")):
        value = max(sample.value for sample in chosen)
    if source.zero_is_no_data and value == 0:
        return None
    return value * source.scale


def _there(samples: Mapping[str, list[Sample]], names: Catalog, meter: str, role: str) -> bool:
    """Whether the page has a series of this meter at all, also one that says nothing yet."""
    return any(source.series in samples and source.on(role) for source in names.meters[meter])


def _label(samples: list[Sample], source: Source) -> str | None:
    return next((value[:40] for sample in samples if (value := sample.labels.get(source.label or ""))), None)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and 0 < int(text) <= 1 << 20 else None
