"""Damaged output never crashes the parser and never looks better than the undamaged."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probes.nccl import parse_text
from probes.nccl.run import ParsedRun
from probes.reasons import SEVERITY

FIXTURES = Path(__file__).parents[3] / "fixtures" / "nccl"
TEXTS = {name: (FIXTURES / name).read_text() for name in (
    "alltoall_nvlink.txt", "alltoall_nvlink.json", "derived/good.txt", "derived/per_iteration_I_S.txt", "derived/info_inside_rows.txt",
    "derived/tagged_open_mpi_4.txt", "derived/v3_per_iteration.json", "derived/before_2_13_sendrecv.txt")}
BAD = {name: (FIXTURES / "derived" / name).read_text() for name in (
    "wrong_1e6.txt", "missing_footer.txt", "timeout.txt", "nccl_failure_mpirun.txt", "falling_alltoall.txt", "long_tail_I.txt",
    "no_mpi_interleaved.txt", "wrong.json", "unterminated.json", "nan_cells.txt")}
NOISE = ("vm:1372:1390 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/direct pointer\n",
         "\n[2026-11-29 20:03:25] vm:1372:1390 [1] transport/net.cc:8 NCCL WARN slow\n",
         "libfabric:1:2::core:core:fi_getinfo_():1<warn> x\n", "\n", "8\n")
KEYS = ["version", "args", "env", "config", "results", "size", "count", "out_of_place", "in_place", "time", "alg_bw", "bus_bw", "nwrong",
        "devices", "out_of_bounds", "okay", "end_time", "errors", "average_bus_bandwidth", "nthreads", "ngpus", "out_of_place_per_iter"]
RELAXED = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


def rank(run: ParsedRun) -> int:
    return SEVERITY.index(run.outcome)


def fastest(run: ParsedRun) -> dict[tuple[int, str], float]:
    found: dict[tuple[int, str], float] = {}
    for row in run.rows():
        key = (row["bytes"], row["placement"])
        found[key] = max(found.get(key, 0.0), row["busbw"])
    return found


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """One to three small damages: bytes lost, changed, doubled or moved, the end cut off."""
    for _ in range(draw(st.integers(1, 3))):
        if not text:
            break
        start = draw(st.integers(0, len(text) - 1))
        end = min(len(text), start + draw(st.integers(0, 40)))
        kind = draw(st.sampled_from(["cut", "lose", "change", "double", "insert"]))
        if kind == "cut":
            text = text[:start]
        elif kind == "lose":
            text = text[:start] + text[end:]
        elif kind == "change":
            text = text[:start] + draw(st.text(st.characters(min_codepoint=9, max_codepoint=126), max_size=3)) + text[start + 1 :]
        elif kind == "double":
            text = text[:end] + text[start:end] + text[end:]
        else:
            text = text[:start] + draw(st.text(max_size=5)) + text[start:]
    return text


@RELAXED
@given(data=st.data(), name=st.sampled_from(sorted(TEXTS)))
def test_a_damaged_good_file_is_not_faster_than_the_good_one(data: st.DataObject, name: str) -> None:
    """When it still passes, no figure of it is better than the original's beyond what the other cells of its row allow."""
    original, run = parse_text(TEXTS[name]), parse_text(data.draw(damaged(TEXTS[name])))
    assert rank(run) <= rank(original)
    if run.reason.value == "ok":
        best = fastest(original)
        for key, rate in fastest(run).items():
            assert rate <= best.get(key, max(best.values())) * 1.02, key


@RELAXED
@given(data=st.data(), name=st.sampled_from(sorted(BAD)))
def test_noise_and_loss_at_the_end_never_make_a_bad_file_better(data: st.DataObject, name: str) -> None:
    text = BAD[name]
    original = parse_text(text)
    places = [index + 1 for index, char in enumerate(text) if char == "\n"] if not text.startswith("{") else []
    for _ in range(data.draw(st.integers(0, 3))):
        if places:
            place = data.draw(st.sampled_from(places))
            text = text[:place] + data.draw(st.sampled_from(NOISE)) + text[place:]
            places = [index + 1 for index, char in enumerate(text) if char == "\n"]
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(0, len(text)))]
    assert rank(parse_text(text)) <= rank(original)


@RELAXED
@given(st.one_of(st.text(), st.binary().map(lambda data: data.decode("utf-8", errors="replace"))))
def test_any_text_is_read_without_a_crash_and_proves_nothing(text: str) -> None:
    assert parse_text(text).reason.value == "no_rows"


@RELAXED
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6), max_leaves=30))
def test_any_report_is_read_without_a_crash(value: object) -> None:
    parse_text(json.dumps({"results": value, **(value if isinstance(value, dict) else {})}))
