"""Reads the engines' pages before and after one request and makes the section of the result of what they show."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from probes.canary.pd import fetch
from probes.canary.pd.evidence import Evidence, Provenance, Route, Side
from probes.canary.pd.judge import Disaggregation, judge
from probes.canary.pd.learn import formula, predict
from probes.canary.pd.params import Page, PdParams
from probes.canary.pd.reading import Reading, change, read_page
from probes.canary.pd.split import Split, Transfer, split, transfer
from probes.result import Pd, PdPod, PdSays, Stream

READERS = 8
FIRST_WAIT, LONGEST_WAIT = 0.2, 2.0
AGAIN_SECONDS = 1.0
"""A `no` must stand this long: counters may be late, and a late one says no."""


@dataclass(frozen=True)
class Sent:
    """How the request was sent. `path_signs` are what its answer shows of the path; `ttft_has_prefill` whether the first token can only
    come after the prefill."""

    route: Route
    connector: str | None = None
    ttft_has_prefill: bool = True
    path_signs: Sequence[str] = ()
    provenance: Provenance | None = None


class PdWatch:
    """`before` the request, `after` it. Both are bounded in time and never raise for what a page holds or an engine does."""

    def __init__(self, params: PdParams, *, get: fetch.Get = fetch.get, monotonic: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], None] = time.sleep) -> None:
        self._params = params
        self._get, self._monotonic, self._sleep = get, monotonic, sleep
        self._before: dict[str, Reading] = {}
        self._after: dict[str, Reading] = {}

    def before(self) -> None:
        """Read every page."""
        self._before = self._read()

    def after(self, stream: Stream, sent: Sent, *, seconds: float | None = None) -> Pd:
        """Read every page again until the counters show the request, and judge: `look`, then `section`."""
        self.look(stream, sent, seconds=seconds)
        return self.section(stream, sent)

    def look(self, stream: Stream, sent: Sent, *, seconds: float | None = None) -> None:
        """Read every page again until the counters show the request, at most `settle` or `seconds`."""
        settle = self._params.settle if seconds is None else max(0.0, min(self._params.settle, seconds - self._params.page_timeout))
        began = self._monotonic()
        pause, said_no_at = FIRST_WAIT, None
        while True:
            self._after = self._read()
            evidence = self._evidence(stream, sent)
            found = judge(evidence)
            now = self._monotonic()
            said_no_at = (now if said_no_at is None else said_no_at) if found.verdict == "no" else None
            pending = self._pending(evidence, found) or (said_no_at is not None and now - said_no_at < AGAIN_SECONDS)
            if not pending or now + pause - began > settle:
                return
            self._sleep(pause)
            pause = min(LONGEST_WAIT, pause * 2)

    def section(self, stream: Stream, sent: Sent) -> Pd:
        """What the last look showed, as the section of a result."""
        evidence = self._evidence(stream, sent)
        return self._section(stream, sent, evidence, judge(evidence))

    def _pending(self, evidence: Evidence, found: Disaggregation) -> bool:
        """Whether a later reading may show more."""
        if not self._params.pages or not evidence.delivered or evidence.route == "baseline":
            return False
        if found.verdict == "yes":
            # Transfer statistics ride on engine steps and may come after the tokens.
            there = any("kv_bytes" in one.total for one in evidence.decode.changes)
            return there and evidence.others() == 0 and not transfer(evidence).moved
        return found.verdict == "unknown" and not any(one.silent for one in evidence.decode.changes)

    def _evidence(self, stream: Stream, sent: Sent) -> Evidence:
        changes = [(page, change(self._before.get(page.url) or _unread(page, "it was not read before"),
                                 self._after.get(page.url) or _unread(page, "it was not read afterwards"))) for page in self._params.pages]

        def side(*roles: str) -> Side:
            return Side(tuple(one for page, one in changes if page.role in roles), self._params.complete)

        prompt = stream.prompt_tokens
        required = prompt is None or prompt >= self._params.min_prompt_tokens
        return Evidence(sent.route, stream.token_events > 0, prompt, sent.connector, required, sent.provenance, stream.handover,
                        sent.path_signs, side("prefill", "mixed"), side("decode", "mixed"), side("router"), side("epp"))

    def _section(self, stream: Stream, sent: Sent, evidence: Evidence, found: Disaggregation) -> Pd:
        params, prompt, block = self._params, evidence.prompt_tokens, evidence.decode.block_tokens or evidence.prefill.block_tokens
        moved = transfer(evidence) if evidence.delivered and sent.route != "baseline" else Transfer()
        parts = Split()
        if evidence.delivered and not stream.disturbed and sent.route != "baseline":
            leg = stream.prefill.seconds if stream.prefill is not None else None
            parts = split(evidence, moved, ttft=stream.ttft, prefill_leg=leg, ttft_has_prefill=sent.ttft_has_prefill)
        learned = predict(params.learned, prompt) if params.learned is not None and prompt else None
        return Pd(
            route=sent.route, connector=sent.connector, disaggregation=found.verdict, evidence=found.evidence, why=found.why,
            says=[PdSays(kind=one.kind, says=one.says, text=one.text) for one in found.said], first_contact=params.first_contact,
            prefill=self._pod(evidence.prefill), decode=self._pod(evidence.decode), others=evidence.others(), kv_bytes=moved.moved,
            expected_kv_bytes=learned, formula_kv_bytes=formula(params.shape, prompt, block) if params.shape and prompt else None,
            block_tokens=block, kv_transfer=moved.seconds, kv_bytes_per_second=moved.rate,
            failed_transfers=_count("failed_transfers", evidence.decode, evidence.prefill),
            expired=_count("expired", evidence.prefill, evidence.decode), queue=parts.queue, prefill_seconds=parts.prefill,
            transfer=parts.transfer, handover=parts.handover, impure_tokens=impurity(evidence))

    def _pod(self, side: Side) -> PdPod | None:
        """The pod that served, where one alone worked on prompts in this time; with one page it is that one."""
        worked = [one for one in side.changes if one.usable and one.grew.get("prompt_tokens")]
        chosen = worked[0] if len(worked) == 1 else side.changes[0] if len(side.changes) == 1 else None
        page = next((page for page in self._params.pages if chosen is not None and page.pod == chosen.pod), None)
        if chosen is None or page is None or page.role == "epp":
            return None
        return PdPod(role=page.role, pod=page.pod, node=page.node, zone=page.zone, instance_type=page.instance_type,
                     placement_group=page.placement_group, engine=chosen.engine, engine_role=chosen.engine_role,
                     running=chosen.now.get("running"), waiting=chosen.now.get("waiting"), kv_usage=chosen.now.get("kv_usage"),
                     missing=list(chosen.missing[:8]))

    def _read(self) -> dict[str, Reading]:
        pages = {page.url: page for page in self._params.pages}
        if not pages:
            return {}
        pool = ThreadPoolExecutor(min(READERS, len(pages)), thread_name_prefix="page")
        asked = {url: pool.submit(self._one, page) for url, page in pages.items()}
        wait(asked.values(), timeout=self._params.page_timeout)
        pool.shutdown(wait=False, cancel_futures=True)
        return {url: future.result() if future.done() and not future.cancelled() else _unread(pages[url], "no whole answer in time")
                for url, future in asked.items()}

    def _one(self, page: Page) -> Reading:
        try:
            return read_page(self._get(page.url, self._params.page_timeout, page.insecure), page.role, page.pod)
        except fetch.FetchError as error:
            return _unread(page, str(error))
        except Exception as error:  # noqa: BLE001 - whatever a page holds, it costs this page only
            return _unread(page, f"the page cannot be read: {type(error).__name__}")


def impurity(evidence: Evidence) -> tuple[int, int] | None:
    """Work of the wrong role in the window, anybody's: tokens generated on prefill beyond one a request, prompt tokens computed on decode
    beyond the last one of each request, which is always computed there. None where the engines do not tell; nothing on a baseline."""
    if evidence.route == "baseline":
        return None
    made, asked = evidence.prefill.any_grew("generation_tokens"), evidence.prefill.any_grew("requests")
    local, done = evidence.decode.any_grew("prompt_local"), evidence.decode.any_grew("requests")
    if made is None and local is None:
        return None
    extra = max(0, round((made or 0.0) - (asked if asked is not None else made or 0.0)))
    return extra, max(0, round((local or 0.0) - max(done or 0.0, 1.0)))


def _count(meter: str, *sides: Side) -> int | None:
    """A meter over all pods of these sides; an engine that does both is on both and counts once."""
    told = {one.pod: one.grew[meter] for side in sides for one in side.changes if one.usable and meter in one.grew}
    return round(sum(told.values())) if told else None


def _unread(page: Page, why: str) -> Reading:
    return replace(Reading(page.role, page.pod), problem=why)

