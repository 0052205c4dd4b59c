"""The KV probes with the real engines: two worker processes over loopback, as the local launcher starts them."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.launch.local import LocalLauncher
from exporter.runs import Run, RunSpec, new_run_id
from probes.processes import descendants
from probes.reasons import Reason, worst
from probes.result import LIMIT, Measurement, Phase, Result, decode, encode

pytestmark = pytest.mark.usefixtures("no_process_left")

KIB, MIB = 1 << 10, 1 << 20
ENGINES = ("mooncake", "nixl")
SMALL: dict[str, Any] = {"sizes": ["64KiB", "1MiB"], "iterations": 20, "batch": 4, "seconds": 20}
LONG: dict[str, Any] = {"sizes": ["64KiB"], "operations": ["write"], "iterations": 1_000_000, "volume": "1TiB", "seconds": 60}


class Pairs:
    """Starts pairs and waits for them."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.finished: queue.Queue[Run] = queue.Queue()
        self.launcher = LocalLauncher(self.finished.put, work_dir=directory, **options)
        self.directory = next(directory.glob("efa-pulse-*"))

    def start(self, probe: str, spec: dict[str, Any], transport: Any = "any", deadline: float = 60.0) -> RunSpec:
        run = RunSpec(new_run_id("kv"), probe, "a--b", ("a", "b"), transport, deadline, spec)
        self.launcher.start(run)
        return run

    def end(self, deadline: float = 60.0) -> tuple[Result, Result]:
        initiator, target = self.finished.get(timeout=deadline + 20).results
        return initiator, target

    def run(self, probe: str, spec: dict[str, Any], transport: Any = "any", deadline: float = 60.0) -> tuple[Result, Result]:
        self.start(probe, spec, transport, deadline)
        return self.end(deadline)

    def wait_for_measure(self, run: RunSpec) -> None:
        until = time.monotonic() + 30
        marks = [self.directory / run.run_id / f"rank-{rank}.result" for rank in range(2)]
        while time.monotonic() < until:
            if all(mark.exists() and mark.read_bytes() and decode(mark.read_bytes()).reason is Reason.DIED_IN_MEASURE for mark in marks):
                return
            time.sleep(0.02)
        raise AssertionError("the run never came to measure")

    def wait_for_result(self, run: RunSpec, rank: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        mark = self.directory / run.run_id / f"rank-{rank}.result"
        while time.monotonic() < until:
            if not decode(mark.read_bytes()).reason.value.startswith("died_in_"):
                return
            time.sleep(0.05)
        raise AssertionError(f"rank {rank} left no result")


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[Pairs]:
    found = Pairs(tmp_path)
    yield found
    found.launcher.close(0)


def engine_process(rank: int) -> int:
    """The process that runs the engine of one rank."""
    for pid in descendants(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if command.endswith(b"\0child\0") and b"EFA_PULSE_RANK=%d" % rank in environ:
            return pid
    raise AssertionError(f"rank {rank} has no engine process")


def by_operation(result: Result) -> dict[str, Measurement]:
    return {measurement.operation: measurement for measurement in result.measurements}


@pytest.mark.parametrize("probe", ENGINES)
def test_a_pair_measures_and_verifies_all_four_operations(pairs: Pairs, probe: str) -> None:
    initiator, target = pairs.run(probe, SMALL)
    assert (initiator.reason, initiator.message, target.reason, target.message) == (Reason.OK, "", Reason.OK, "")
    assert (initiator.role, target.role) == ("initiator", "target")
    rows = by_operation(initiator)
    assert list(rows) == ["write", "read", "batch_write", "batch_read"]
    for name, row in rows.items():
        assert row.bytes == [64 * KIB, MIB]
        assert row.wrong == [0, 0]
        assert row.iterations == [20, 20]
        assert row.batch == (4 if name.startswith("batch") else 1)
        assert all(rate is not None and 1e5 < rate < 1e11 for rate in row.bandwidth)
        for size in range(2):
            low, middle, high, most = (row.latency[key][size] for key in ("min", "p50", "p99", "max"))
            assert low is not None
            assert middle is not None
            assert high is not None
            assert most is not None
            assert 0 < low <= middle <= high <= most
    assert rows["write"].cold is not None
    assert list(by_operation(target)) == ["write", "batch_write"]
    assert initiator.shape["ranks_per_node"] == 2


def test_nixl_reports_the_time_to_post_apart(pairs: Pairs) -> None:
    initiator, _ = pairs.run("nixl", SMALL)
    for row in initiator.measurements:
        for post, whole in zip(row.latency["post_p50"], row.latency["p50"], strict=True):
            assert post is not None
            assert whole is not None
            assert 0 < post <= whole


@pytest.mark.parametrize("probe", ENGINES)
def test_the_payload_is_what_the_kernel_counted_on_the_sockets(pairs: Pairs, probe: str) -> None:
    initiator, target = pairs.run(probe, {**SMALL, "sizes": ["1MiB"]})
    blocks = 1 + 4
    operations = 20 + 2 + 1
    for result, extra in ((initiator, (1, 0)), (target, (0, 1))):
        assert result.evidence is not None
        payload, counted = result.evidence.payload_bytes, result.evidence.tcp_bytes
        assert payload == tuple((operations * blocks + cold) * MIB for cold in extra)
        assert counted is not None
        assert counted == pytest.approx(payload, rel=0.01)
        assert all(seen >= moved for seen, moved in zip(counted, payload, strict=True))


@pytest.mark.parametrize("probe", ENGINES)
def test_the_evidence_and_the_versions_are_those_of_the_engine(pairs: Pairs, probe: str) -> None:
    for result in pairs.run(probe, {**SMALL, "sizes": ["64KiB"], "operations": ["write"]}):
        assert result.evidence is not None
        assert (result.evidence.stack, result.evidence.provider, result.evidence.rdma) == (probe, "tcp", False)
        assert result.versions[probe][0].isdigit()
        assert probe == "mooncake" or result.versions["ucx"][0].isdigit()


@pytest.mark.parametrize("probe", ENGINES)
def test_several_operations_are_in_flight_at_once(pairs: Pairs, probe: str) -> None:
    initiator, target = pairs.run(probe, {**SMALL, "threads": 3, "sizes": ["64KiB"]})
    assert (initiator.reason, target.reason) == (Reason.OK, Reason.OK)
    assert {count for row in initiator.measurements for count in row.iterations} == {18}
    assert initiator.shape["threads"] == 3


@pytest.mark.parametrize("probe", ENGINES)
def test_the_largest_blocks_of_the_issue(pairs: Pairs, probe: str) -> None:
    initiator, target = pairs.run(probe, {"sizes": ["64KiB", "64MiB"], "operations": ["write", "read"], "iterations": 3, "warmup": 0})
    assert (initiator.reason, target.reason) == (Reason.OK, Reason.OK)
    assert [row.wrong for row in initiator.measurements] == [[0, 0], [0, 0]]


def test_a_result_of_all_sizes_fits_the_termination_message(pairs: Pairs) -> None:
    sizes = [64 * KIB << step for step in range(11)]
    initiator, _ = pairs.run("nixl", {"sizes": sizes, "batch": 2, "iterations": 3, "warmup": 0, "volume": "1MiB"})
    assert initiator.reason is Reason.OK
    assert initiator.measurements[0].bytes[-1] == 64 * MIB
    assert len(encode(initiator)) <= LIMIT


class TestWrongContent:
    """Real transfers whose bytes land in the wrong place are found on the side where they land, and both ranks say so."""

    @pytest.mark.parametrize("probe", ["kv_faults:MisplacingMooncake", "kv_faults:MisplacingNixl"])
    @pytest.mark.parametrize("operation", ["write", "read"])
    def test_misplaced_bytes_are_counted(self, pairs: Pairs, probe: str, operation: str) -> None:
        spec = {"sizes": ["64KiB", "128KiB"], "operations": [operation], "iterations": 3, "buffer": "1MiB"}
        for result in pairs.run(probe, spec):
            assert result.reason is Reason.WRONG_CONTENT
            assert f"{operation} of 64KiB: " in result.message
            if result.measurements:
                wrong = by_operation(result)[operation].wrong
                assert wrong is not None
                assert (wrong[0] or 0) > 64_000
                assert wrong[1] == 0


class TestFailures:
    """What goes wrong ends with the reason that is right for it, on both ranks, before the deadline."""

    @pytest.mark.parametrize(("probe", "spec", "reason", "says"), [
        ("mooncake", {}, Reason.TRANSPORT_UNAVAILABLE, "built without EFA"),
        ("nixl", {}, Reason.ENGINE_INCOMPATIBLE, "LIBFABRIC does not load: lib"),
        ("nixl", {"backend": "UCX"}, Reason.TRANSPORT_UNAVAILABLE, "'srd'"),
        ("mooncake", {"protocol": "tcp"}, Reason.BAD_SPEC, "EFA mode accepts only efa"),
        ("nixl", {"provider": "tcp"}, Reason.BAD_SPEC, "EFA mode accepts only efa"),
        ("mooncake", {"env": {"MC_FORCE_TCP": "1"}}, Reason.BAD_SPEC, "MC_FORCE_TCP chooses the transport"),
    ])
    def test_efa_mode_without_efa_is_an_error_and_never_tcp(self, pairs: Pairs, probe: str, spec: dict[str, Any], reason: Reason,
                                                            says: str) -> None:
        for result in pairs.run(probe, {**SMALL, **spec}, "efa", 20.0):
            assert (result.reason, says in result.message) == (reason, True), result.message
            assert result.measurements == []

    @pytest.mark.parametrize("probe", ENGINES)
    def test_gpu_memory_without_a_gpu(self, pairs: Pairs, probe: str) -> None:
        for result in pairs.run(probe, {**SMALL, "memory": "gpu"}, deadline=20.0):
            assert (result.reason, "CUDA driver" in result.message) == (Reason.GPU_MISSING, True)

    @pytest.mark.parametrize(("probe", "says"), [("kv_faults:BadAddressMooncake", "Mooncake returned -1"),
                                                 ("kv_faults:BadAddressNixl", "nixlNotFoundError")])
    @pytest.mark.parametrize("operation", ["write", "read", "batch_write", "batch_read"])
    def test_a_bad_remote_address(self, pairs: Pairs, probe: str, says: str, operation: str) -> None:
        initiator, target = pairs.run(probe, {**SMALL, "operations": [operation]}, deadline=30.0)
        assert (initiator.reason, says in initiator.message) == (Reason.TRANSFER_FAILED, True), initiator.message
        assert target.reason is Reason.PEER_LOST
        assert "rank 0 ended: transfer_failed" in target.message

    def test_a_peer_that_does_not_answer(self, pairs: Pairs) -> None:
        results = pairs.run("kv_faults:NobodyThere", SMALL, deadline=30.0)
        assert Reason.TRANSFER_FAILED in {result.reason for result in results}
        assert all("127.0.0.1:1" in result.message for result in results)

    def test_a_figure_above_the_ceiling(self, pairs: Pairs) -> None:
        initiator, target = pairs.run("mooncake", {**SMALL, "ceiling": 1000})
        assert (initiator.reason, "more than the ceiling" in initiator.message) == (Reason.IMPLAUSIBLE, True)
        assert initiator.measurements == []
        assert target.reason is Reason.PEER_LOST

    @pytest.mark.parametrize("probe", ENGINES)
    @pytest.mark.parametrize("rank", [0, 1])
    def test_a_rank_killed_while_it_measures(self, pairs: Pairs, probe: str, rank: int) -> None:
        run = pairs.start(probe, LONG)
        pairs.wait_for_measure(run)
        time.sleep(0.3)
        started = time.monotonic()
        os.kill(engine_process(rank), signal.SIGKILL)
        results = pairs.end()
        assert results[rank].reason is Reason.KILLED
        assert results[1 - rank].reason is Reason.PEER_LOST, results[1 - rank].message
        assert worst([result.reason for result in results]) is Reason.KILLED
        assert time.monotonic() - started < 15

    @pytest.mark.parametrize("probe", ENGINES)
    def test_a_target_that_stops_answering_is_not_a_failed_network(self, pairs: Pairs, probe: str) -> None:
        deadline = 24.0
        run = pairs.start(probe, {**LONG, "seconds": 10}, deadline=deadline)
        pairs.wait_for_measure(run)
        time.sleep(0.3)
        frozen = engine_process(1)
        os.kill(frozen, signal.SIGSTOP)
        pairs.wait_for_result(run, 0, deadline + 5)
        os.kill(frozen, signal.SIGKILL)
        initiator, target = pairs.end(deadline)
        assert initiator.reason is Reason.PEER_LOST, initiator.message
        assert "rank 1" in initiator.message
        assert initiator.finished - initiator.started < deadline
        assert target.reason is Reason.KILLED

    def test_a_rank_killed_before_it_heard_an_answer_still_leaves_its_reason(self, pairs: Pairs) -> None:
        for result in pairs.run("kv_faults:DiesUnanswered", {}, deadline=20.0):
            assert (result.reason, "about to die" in result.message) == (Reason.KILLED, True), result.message

    def test_a_forced_transport_in_the_environment_is_ignored_and_reported(self, pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MC_FORCE_TCP", "1")
        for result in pairs.run("mooncake", {**SMALL, "sizes": ["64KiB"], "operations": ["write"]}):
            assert [(finding.check, finding.ok) for finding in result.findings] == [("environment.MC_FORCE_TCP", False)]

    def test_a_variable_in_the_environment_does_not_change_the_transport(self, pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("UCX_TLS", "posix,self")
        initiator, _ = pairs.run("nixl", {**SMALL, "sizes": ["64KiB"], "operations": ["write"]})
        assert initiator.evidence is not None
        assert initiator.evidence.provider == "tcp"
        assert [finding.check for finding in initiator.findings] == ["environment.UCX_TLS"]


def test_shared_memory_is_seen_as_what_it_is(pairs: Pairs) -> None:
    initiator, _ = pairs.run("nixl", {**SMALL, "backend": "UCX", "tls": "posix,cma,tcp,self"})
    assert initiator.reason is Reason.OK
    assert initiator.evidence is not None
    assert initiator.evidence.tcp_bytes is not None
    assert initiator.evidence.payload_bytes is not None
    assert max(initiator.evidence.tcp_bytes) < 0.01 * max(initiator.evidence.payload_bytes)
    assert "cma" in (initiator.evidence.provider or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize("probe", ENGINES)
def test_the_engines_find_each_other_across_a_real_link(tmp_path: Path, probe: str) -> None:
    pairs = Pairs(tmp_path, namespaces=True)
    try:
        initiator, target = pairs.run(probe, {**SMALL, "sizes": ["64KiB"]})
    finally:
        pairs.launcher.close(0)
    assert (initiator.reason, target.reason) == (Reason.OK, Reason.OK), initiator.message + target.message
    assert initiator.evidence is not None
    assert initiator.evidence.tcp_bytes == pytest.approx(initiator.evidence.payload_bytes, rel=0.01)
    assert Phase.MEASURE in initiator.phases
