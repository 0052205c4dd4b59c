"""The probe around its lanes, and the nccl-tests engine around its program. Lanes and program are stand-ins that speak as the real ones."""

from __future__ import annotations

import json
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probes import rendezvous
from probes.gpu.driver import CudaError
from probes.nccl import probe as probe_module
from probes.nccl import tests_engine
from probes.nccl.params import NcclParams
from probes.nccl.probe import NcclProbe
from probes.reasons import Reason
from probes.rendezvous import Rendezvous
from probes.result import Phase
from probes.worker import ProbeFailure, Report

FIXTURES = Path(__file__).parents[3] / "fixtures" / "nccl"
MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("no_process_left")

LANE = '''
import json, os, sys, time
from probes.lanes.fleet import lane_job, lane_link
from probes.nccl.job import Job
link, job = lane_link(), Job.model_validate_json(lane_job())
bus = "0000:0%d:00.0" % (0 if os.environ.get("SAME") else job.device)
def log(text):
    open(os.environ["NCCL_DEBUG_FILE"].replace("%h", "h").replace("%p", str(os.getpid())), "a").write("h:1:2 [0] NCCL INFO " + text + "\\n")
log("NET/Plugin: Could not find: libnccl-net.so")
link.send(card={"name": "stand-in", "bus_id": bus, "versions": {"nccl": "2.28.9"}, "unique_id": "00" if job.makes_id else None})
while True:
    message = link.receive(30)
    if not message: continue
    if message["do"] == "join":
        if os.environ.get("NCCL_NET"):
            log("Failed to initialize any NET plugin")
            link.send(failed={"reason": "engine_error", "message": "NCCL: invalid usage"})
            link.receive(5); sys.exit()
        link.send(ready=True)
    elif message["do"] == "measure":
        if os.environ.get("HANG"): link.send(state="all_reduce 1MiB: measuring"); time.sleep(60)
        for size in job.sizes:
            wrong = int(os.environ.get("WRONG", "0")) * job.device
            link.send(record={"operation": "all_reduce", "bytes": size, "variant": None, "mean": 1e-3 * (1 + job.device),
                              "times": [1e-3, 2e-3], "wrong": wrong, "launches": 10, "cold": 0.1})
        link.send(done=True)
    else: sys.exit()
'''


class Stage:
    """A worker's context for one worker that is alone."""

    def __init__(self, spec: dict[str, Any], *, transport: str = "any", seconds: float = 30.0) -> None:
        self.spec, self.ends = spec, time.monotonic() + seconds
        self.phases: list[Phase] = []
        self.env = type("Env", (), {"rank": 0, "world_size": 1, "transport": transport, "spec": spec})()

    def parse(self, model: Any) -> Any:
        return model.model_validate(self.spec)

    def phase(self, phase: Phase) -> None:
        self.phases.append(phase)

    def note(self, text: str) -> None:
        pass

    def meet(self) -> Rendezvous:
        return rendezvous.join(endpoint="x:1", rank=0, world_size=1, run_id="r", token=b"", address=None, deadline=self.ends)

    def remaining(self) -> float:
        return max(0.0, self.ends - time.monotonic())


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Report, Stage]]:
    monkeypatch.setattr(probe_module, "LANE_COMMAND", (sys.executable, "-c", LANE))
    monkeypatch.setattr(probe_module, "_visible", lambda: 2)

    def go(spec: dict[str, Any] | None = None, *, transport: str = "any", seconds: float = 30.0, **environ: str) -> tuple[Report, Stage]:
        for name, text in environ.items():
            monkeypatch.setenv(name, text)
        full = {"gpus": "all", "operations": ["all_reduce"], "sizes": [MIB, 4 * MIB], **(spec or {})}
        stage = Stage(full, transport=transport, seconds=seconds)
        return NcclProbe().run(stage), stage  # type: ignore[arg-type]

    return go


class TestProbe:
    def test_two_gpus_of_one_worker(self, run: Callable[..., tuple[Report, Stage]]) -> None:
        report, stage = run()
        (measured,) = report.measurements
        assert (report.reason, measured.bytes, measured.wrong) == (Reason.OK, [MIB, 4 * MIB], [0, 0])
        assert measured.bandwidth == pytest.approx([MIB / 2e-3, 4 * MIB / 2e-3], rel=1e-5)
        assert stage.phases == [Phase.SETUP, Phase.MEASURE, Phase.FINISH]
        assert report.evidence is not None
        assert report.evidence.payload_bytes == (2 * 10 * 5 * MIB, 2 * 10 * 5 * MIB)
        assert report.evidence.gpus == ["stand-in 0000:00:00.0", "stand-in 0000:01:00.0"]
        assert report.shape["ranks"] == 2

    def test_eight_gpus_of_one_worker(self, run: Callable[..., tuple[Report, Stage]], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(probe_module, "_visible", lambda: 8)
        report, _ = run({"sizes": [MIB], "pairs": "together"}, seconds=90.0)
        (measured,) = report.measurements
        assert measured.bandwidth == pytest.approx([2 * 7 / 8 * MIB / 8e-3], rel=1e-5), "the slowest of eight ranks sets the time"
        assert report.shape["ranks"] == 8
        assert report.evidence is not None
        assert len(set(report.evidence.gpus)) == 8

    def test_wrong_values_name_the_rank(self, run: Callable[..., tuple[Report, Stage]]) -> None:
        report, _ = run(WRONG="7")
        assert (report.reason, report.message) == (Reason.WRONG_CONTENT, "all_reduce: 7 wrong elements at 1MiB on rank 1")

    def test_a_hang_ends_before_the_deadline(self, run: Callable[..., tuple[Report, Stage]]) -> None:
        begin = time.monotonic()
        with pytest.raises(ProbeFailure, match=r"hung while measuring: rank 0 all_reduce 1MiB: measuring.*RAS does not answer") as caught:
            run(seconds=12.0, HANG="1")
        assert caught.value.reason is Reason.DEADLINE
        assert time.monotonic() - begin < 13

    def test_the_pin_at_work_is_a_transport_that_is_not_there(self, run: Callable[..., tuple[Report, Stage]]) -> None:
        with pytest.raises(ProbeFailure, match="NCCL_NET=AWS Libfabric does not start here: NCCL: invalid usage") as caught:
            run({"force_network": True}, transport="efa")
        assert caught.value.reason is Reason.TRANSPORT_UNAVAILABLE

    def test_one_node_is_not_efa(self, run: Callable[..., tuple[Report, Stage]]) -> None:
        with pytest.raises(ProbeFailure, match="NVLink would carry everything") as caught:
            run(transport="efa")
        assert caught.value.reason is Reason.NOT_EFA

    def test_one_gpu_alone_has_nobody_to_talk_to(self, run: Callable[..., tuple[Report, Stage]]) -> None:
        with pytest.raises(ProbeFailure, match="nobody to talk to") as caught:
            run({"gpus": 1})
        assert caught.value.reason is Reason.BAD_SPEC

    def test_two_ranks_on_one_gpu_are_refused(self, run: Callable[..., tuple[Report, Stage]]) -> None:
        with pytest.raises(ProbeFailure, match=r"would share GPU 0000:00:00\.0") as caught:
            run(SAME="1")
        assert caught.value.reason is Reason.BAD_SPEC

    def test_a_size_that_cannot_be_split_is_a_wrong_spec(self, run: Callable[..., tuple[Report, Stage]]) -> None:
        with pytest.raises(ProbeFailure, match="cannot be split over 2 ranks") as caught:
            run({"operations": ["alltoall"], "sizes": [16]})
        assert caught.value.reason is Reason.BAD_SPEC


PROGRAM = '''#!{python}
import sys, time, os
if "-h" in sys.argv:
    print(open({usage!r}).read()); sys.exit(0)
if "{mode}" == "hang": time.sleep(60)
print(open({output!r}).read())
if "-J" in sys.argv and {report!r}:
    path = sys.argv[sys.argv.index("-J") + 1]
    open(path, "w").write(open({report!r}).read())
    print("# Writing JSON output to " + path)
sys.exit({status})
'''


class TestEngine:
    @pytest.fixture(autouse=True)
    def _gate(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tests_engine, "_gate", lambda params: (2, ["stand-in"]))

    def program(self, folder: Path, operation: str, output: str, *, report: str = "", mode: str = "run", status: int = 0) -> None:
        path = folder / f"{operation}_perf"
        path.write_text(PROGRAM.format(python=sys.executable, usage=str(FIXTURES / "usage_exit_0.txt"), output=str(FIXTURES / output),
                                       report=str(FIXTURES / report) if report else "", mode=mode, status=status))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def go(self, folder: Path, operation: str = "alltoall", seconds: float = 30.0, **spec: Any) -> Report:
        full = {"engine": "nccl-tests", "gpus": "all", "operations": [operation], "sizes": [MIB], "tests_folder": str(folder), **spec}
        stage = Stage(full, seconds=seconds)
        return tests_engine.run(stage, NcclParams.model_validate(full))  # type: ignore[arg-type]

    def test_the_report_is_preferred_for_its_digits(self, tmp_path: Path) -> None:
        self.program(tmp_path, "alltoall", "alltoall_nvlink.txt", report="alltoall_nvlink.json")
        report = self.go(tmp_path)
        (measured,) = report.measurements
        assert (report.reason, len(measured.bytes)) == (Reason.OK, 6)
        exact = json.loads((FIXTURES / "alltoall_nvlink.json").read_text())["results"][0]["out_of_place"]["bus_bw"]
        assert measured.bandwidth[0] == pytest.approx(exact * 1e9, rel=1e-5)
        assert report.versions["nccl"] == "2.28.9"
        assert report.shape["engine"] == "nccl-tests"

    def test_text_is_enough(self, tmp_path: Path) -> None:
        self.program(tmp_path, "alltoall", "alltoall_nvlink.txt")
        assert self.go(tmp_path).measurements[0].wrong == [0] * 6

    def test_in_place_figures_come_on_request(self, tmp_path: Path) -> None:
        self.program(tmp_path, "sendrecv", "sendrecv_nvlink.txt")
        assert [one.variant for one in self.go(tmp_path, "sendrecv", in_place=True).measurements] == [None, "in_place"]

    @pytest.mark.parametrize(("output", "reason"), [
        ("usage_exit_0.txt", Reason.NO_ROWS), ("no_driver_exit_2.txt", Reason.NO_ROWS), ("derived/wrong_1e6.txt", Reason.WRONG_CONTENT),
        ("derived/timeout.txt", Reason.DEADLINE)])
    def test_what_the_output_proves_is_the_reason_whatever_the_exit_status(self, tmp_path: Path, output: str, reason: Reason) -> None:
        self.program(tmp_path, "alltoall", output)
        assert self.go(tmp_path).reason is reason

    def test_a_good_table_with_a_bad_exit_status_is_no_pass(self, tmp_path: Path) -> None:
        self.program(tmp_path, "alltoall", "alltoall_nvlink.txt", status=3)
        report = self.go(tmp_path)
        assert report.reason is Reason.ENGINE_ERROR
        assert "exit status 3" in report.message

    def test_the_worse_of_text_and_report_speaks(self, tmp_path: Path) -> None:
        self.program(tmp_path, "alltoall", "derived/timeout.txt", report="alltoall_nvlink.json")
        assert self.go(tmp_path).reason is Reason.DEADLINE

    def test_a_program_that_hangs_is_ended(self, tmp_path: Path) -> None:
        self.program(tmp_path, "alltoall", "alltoall_nvlink.txt", mode="hang")
        begin = time.monotonic()
        with pytest.raises(ProbeFailure, match="did not end within") as caught:
            self.go(tmp_path, seconds=4.0)
        assert caught.value.reason is Reason.DEADLINE
        assert time.monotonic() - begin < 6

    def test_a_program_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ProbeFailure, match="alltoall_perf of nccl-tests is not in") as caught:
            self.go(tmp_path)
        assert caught.value.reason is Reason.ENGINE_MISSING

    def test_several_workers_need_mpi(self, tmp_path: Path) -> None:
        stage = Stage({})
        stage.env.world_size = 2
        with pytest.raises(ProbeFailure, match="only under MPI"):
            tests_engine.run(stage, NcclParams(engine="nccl-tests"))  # type: ignore[arg-type]


def test_without_a_gpu_the_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise CudaError(Reason.GPU_MISSING, "no CUDA driver here")

    monkeypatch.setattr(tests_engine, "Driver", missing)
    with pytest.raises(ProbeFailure, match="no CUDA driver here"):
        tests_engine._gate(NcclParams(engine="nccl-tests"))
