"""The result document: what is written can be read, it always fits, and nothing else is taken for one."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.reasons import DIED_IN, REASONS, Outcome, Reason, outcome_of, worst
from probes.result import (
    COMPRESSED,
    CUT_MARK,
    LIMIT,
    SCHEMA,
    Evidence,
    Marker,
    Measurement,
    Phase,
    Result,
    ResultError,
    Window,
    decode,
    died_in,
    encode,
    json_schema,
)

BASE = {"run_id": "r1", "probe": "nixl", "target": "a--b", "node": "a", "started": 1.5, "finished": 2.5}
DEVICES = 32
SIZES = [1 << power for power in range(16, 31)]


def result(**more: object) -> Result:
    return Result.model_validate({**BASE, "reason": "ok", **more})


def full_result(seed: int, text: int = 300) -> Result:
    """Every field filled, 32 NICs, 15 sizes, numbers that do not compress."""
    rng = random.Random(seed)

    def column() -> list[float]:
        return [float(f"{rng.uniform(1e6, 4e11):.6g}") for _ in SIZES]

    counts = [100] * len(SIZES)
    rows = [Measurement(operation=name, memory="gpu", kind="goodput", bytes=SIZES, bandwidth=column(), iterations=counts,
                        latency={"p50": column(), "p99": column(), "max": column()}, wrong=[0] * len(SIZES)) for name in ("write", "read")]
    evidence = Evidence(stack="nixl", provider="efa", nics_allocated=DEVICES, nics_seen=DEVICES, rdma=True,
                        payload_bytes=(1 << 40, 1 << 40), tcp_bytes=(1000, 1000), devices=[f"rdmap{n}s0" for n in range(DEVICES)],
                        device_bytes=[rng.randrange(1 << 40) for _ in range(DEVICES)],
                        markers=[Marker(id=f"m{n}", says="efa", text=rng.randbytes(text // 2).hex()) for n in range(8)])
    return result(measurements=rows, evidence=evidence, measure=Window(start=1.7, end=2.4), message=rng.randbytes(text).hex(),
                  versions={f"lib{n}": f"1.{n}.0" for n in range(10)}, phases={"setup": 0.2, "measure": 0.7})


@pytest.mark.parametrize("seed", range(5))
def test_a_full_result_fits_and_comes_back_with_every_number(seed: int) -> None:
    original = full_result(seed)
    encoded = encode(original)
    assert len(encoded) <= LIMIT
    assert b"\n" not in encoded
    back = decode(encoded)
    assert back.measurements == original.measurements
    assert back.evidence is not None
    assert original.evidence is not None
    assert back.evidence.device_bytes == original.evidence.device_bytes
    assert json.loads(encoded)["schema"] == COMPRESSED


def test_a_small_result_stays_plain_json() -> None:
    encoded = encode(result(message="fine"))
    assert json.loads(encoded)["schema"] == SCHEMA
    assert decode(encoded) == result(message="fine")


def test_texts_are_cut_with_a_mark_and_numbers_never() -> None:
    original = full_result(1, text=6000)
    back = decode(encode(original))
    assert back.message.endswith(CUT_MARK)
    assert back.measurements == original.measurements


def test_what_cannot_fit_is_an_error_that_says_what_to_do() -> None:
    rng = random.Random(3)
    sizes = list(range(1, 1200))
    row = Measurement(operation="write", memory="dram", kind="goodput", bytes=sizes, bandwidth=[rng.random() for _ in sizes])
    with pytest.raises(ResultError, match="measure fewer sizes"):
        encode(result(measurements=[row, row.model_copy(update={"operation": "read"})]))


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="column bandwidth has 1 values for 2 sizes"):
        Measurement(operation="write", memory="dram", kind="goodput", bytes=[1, 2], bandwidth=[1.0])


def test_infinite_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        Measurement(operation="write", memory="dram", kind="goodput", bytes=[1], bandwidth=[float("inf")])


def test_the_reason_decides_the_outcome() -> None:
    assert result(reason="tcp_fallback").outcome is Outcome.FAILED
    with pytest.raises(ValueError, match="belongs to outcome failed, not ok"):
        result(reason="tcp_fallback", outcome="ok")


def test_every_reason_has_its_row() -> None:
    assert set(REASONS) == set(Reason)
    assert all(row.meaning and row.action for row in REASONS.values())


def test_only_ok_is_ok() -> None:
    assert [reason for reason in Reason if outcome_of(reason) is Outcome.OK] == [Reason.OK]


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase.value in DIED_IN])
def test_a_mark_is_a_document_that_says_where_the_worker_died(phase: Phase) -> None:
    mark = decode(encode(died_in(result(), phase)))
    assert mark.reason.value == f"died_in_{phase.value}"
    assert mark.outcome is Outcome.UNKNOWN


def test_the_end_of_an_older_longer_mark_does_not_matter() -> None:
    assert decode(encode(result()) + b'\nleft over", "x": 1}') == result()


@pytest.mark.parametrize(("raw", "problem"), [
    (b"", "not a result document"),
    (b"null", "a JSON NoneType"),
    (b"[]", "a JSON list"),
    (b"{}", "unknown schema"),
    (b'{"schema":"efa-pulse/result/v2"}', "unknown schema 'efa-pulse/result/v2'"),
    (b'{"schema":"efa-pulse/result/v1"}', "run_id: Field required"),
    (b'{"schema":"efa-pulse/result/v1+deflate","data":"!!"}', "cannot be read"),
    (b'{"schema":"efa-pulse/result/v1+deflate","data":7}', "cannot be read"),
    (b'{"schema":"efa-pulse/result/v1+deflate","data":"aGVsbG8="}', "cannot be read"),
    (b"\xff\xfe", "not a result document"),
    (b"[" * 100_000, "not a result document"),
])
def test_anything_else_is_refused_with_a_reason(raw: bytes, problem: str) -> None:
    with pytest.raises(ResultError, match=problem.replace("+", r"\+")):
        decode(raw)


def test_a_compressed_bomb_is_refused_before_it_unfolds() -> None:
    bomb = base64.b64encode(zlib.compress(b" " * (64 << 20), 9)).decode()
    with pytest.raises(ResultError, match="larger than"):
        decode(json.dumps({"schema": COMPRESSED, "data": bomb}))


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_no_bytes_make_it_crash(raw: bytes) -> None:
    with contextlib.suppress(ResultError):
        decode(raw)


@given(st.data())
@settings(max_examples=200)
def test_a_damaged_document_is_refused_or_read_never_a_crash(data: st.DataObject) -> None:
    encoded = bytearray(encode(full_result(0)))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ResultError):
        assert isinstance(decode(bytes(encoded)), Result)


def test_the_schema_accepts_what_is_written() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = full_result(2, text=10).model_dump(mode="json", by_alias=True)
    jsonschema.Draft202012Validator(json_schema()).validate(document)


@pytest.mark.parametrize(("reasons", "expected"), [
    ([], "no_result"),
    (["ok", "ok"], "ok"),
    (["ok", "below_floor"], "below_floor"),
    (["ok", "rank_missing"], "rank_missing"),
    (["peer_lost", "engine_crashed"], "engine_crashed"),
    (["peer_lost", "gpu_busy"], "gpu_busy"),
    (["below_floor", "peer_lost"], "peer_lost"),
    (["transfer_failed", "killed"], "killed"),
    (["transfer_failed", "died_in_measure"], "died_in_measure"),
    (["wrong_content", "ok"], "wrong_content"),
    (["wrong_content", "died_in_finish"], "wrong_content"),
    (["cancelled", "died_in_launch"], "died_in_launch"),
])
def test_the_rank_that_speaks_for_a_run(reasons: list[str], expected: str) -> None:
    values = [Reason(reason) for reason in reasons]
    assert worst(values) is Reason(expected)
    assert worst(values[::-1]) is Reason(expected)


@pytest.mark.parametrize("part", [
    {"evidence": {"stack": "nccl", "payload_bytes": [10**400, 0]}}, {"evidence": {"stack": "nccl", "tcp_bytes": [-1, 0]}},
    {"shape": {"ranks": 10**400}}, {"started": 1e300}, {"measure": {"start": -1.0, "end": 1.0}},
    {"measurements": [{"operation": "write", "memory": "dram", "kind": "goodput", "bytes": [2**63], "bandwidth": [1.0]}]},
])
def test_numbers_that_arithmetic_could_not_take_are_refused(part: dict[str, object]) -> None:
    base = {"schema": "efa-pulse/result/v1", "run_id": "r", "probe": "nccl", "target": "a--b", "node": "a", "started": 1, "finished": 2,
            "reason": "ok"}
    assert decode(json.dumps(base)).reason is Reason.OK
    with pytest.raises(ResultError):
        decode(json.dumps({**base, **part}))


def test_what_an_endpoint_wrote_cannot_steer_a_terminal() -> None:
    result = Result.model_validate({"run_id": "r", "probe": "canary", "target": "t", "node": "n", "started": 1, "finished": 2,
                                    "reason": "http_server_error", "message": "no\x1b[2J\x9b31m \ttab\nline\r"})
    assert result.message == "no [2J 31m \ttab\nline "
