"""The UCCL-EP probe around its lanes and its bench. Both are stand-ins here that speak as the real ones do: uccl needs a GPU."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from probes import rendezvous
from probes.efa.devices import EfaDevice, Inventory
from probes.processes import descendants
from probes.reasons import Reason
from probes.rendezvous import Rendezvous
from probes.result import Phase
from probes.uccl_ep import engine, routing
from probes.uccl_ep import probe as probe_module
from probes.uccl_ep.engine import EngineError
from probes.uccl_ep.interface import interface_of
from probes.uccl_ep.params import UcclEpParams
from probes.uccl_ep.probe import UcclEpProbe
from probes.uccl_ep.program import Program, command
from probes.worker import ProbeFailure, Report

FIXTURES = Path(__file__).parents[3] / "fixtures" / "uccl_ep"
ROOT = Path(__file__).parents[4]
pytestmark = pytest.mark.usefixtures("no_process_left")

LANE = '''
import os, sys, time
from probes.lanes.fleet import lane_job, lane_link
from probes.uccl_ep.job import Job
link, job = lane_link(), Job.model_validate_json(lane_job())
link.send(card={"name": "stand-in", "versions": {"torch": "2.11.0"}})
if os.environ.get("HANG"):
    link.send(state="making the buffer and connecting"); time.sleep(60)
link.send(ready=True)
while True:
    message = link.receive(30)
    if message and message["do"] == "measure":
        for name in ("dispatch", "combine"):
            link.send(record={"operation": name, "bytes": 1000 * (1 + job.rank), "times": [1e-3, 2e-3], "sent": 7, "received": 5,
                              "wrong": int(os.environ.get("WRONG", "0")) * job.rank})
        link.send(done=True)
    elif message: sys.exit()
'''


class Stage:
    """A worker's context for one worker that is alone."""

    def __init__(self, spec: dict[str, Any], transport: str, seconds: float) -> None:
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


Run = Callable[..., Report]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(probe_module, "LANE_COMMAND", (sys.executable, "-c", LANE))
    monkeypatch.setattr(probe_module, "version", lambda: "0.1.1")
    monkeypatch.setattr(probe_module._Run, "_gate", lambda self: ("gpu 0", "gpu 1"))

    def go(spec: dict[str, Any] | None = None, *, transport: str = "any", seconds: float = 30.0, nics: int = 0, **environ: str) -> Report:
        devices = tuple(EfaDevice(f"rdmap{n}s0", f"0000:{n:02x}:00.0") for n in range(nics))
        monkeypatch.setattr(probe_module, "discover", lambda: Inventory(devices, (), readable=True))
        for name, text in environ.items():
            monkeypatch.setenv(name, text)
        return UcclEpProbe().run(Stage(spec or {}, transport, seconds))  # type: ignore[arg-type]

    return go


class TestDriver:
    def test_slowest_and_fastest_rank(self, run: Run) -> None:
        report = run()
        found = {(m.operation, m.variant): m for m in report.measurements}
        slowest, fastest = found["dispatch", None], found["dispatch", "fastest_rank"]
        assert slowest.bandwidth == pytest.approx([1000 / 1.5e-3], rel=1e-5)
        assert fastest.bandwidth == pytest.approx([2000 / 1.5e-3], rel=1e-5)
        assert slowest.bytes == fastest.bytes == [4096 * 7168 * 2]
        assert (slowest.wrong, fastest.wrong) == ([0], None)
        assert report.evidence is not None
        assert report.evidence.payload_bytes == (28, 20)
        assert (report.shape["kernel"], report.shape["experts"]) == ("normal", 256)
        assert report.versions == {"uccl": "0.1.1", "torch": "2.11.0"}

    def test_wrong_values_name_the_rank(self, run: Run) -> None:
        report = run(WRONG="3")
        assert (report.reason, report.message) == (Reason.WRONG_CONTENT, "wrong elements on rank 1")

    def test_a_hang_without_rdma_ends_by_deadline_with_every_ranks_last_state(self, run: Run) -> None:
        with pytest.raises(ProbeFailure) as caught:
            run({"kernel": "low-latency"}, seconds=12.0, HANG="1")
        assert caught.value.reason is Reason.DEADLINE
        assert "rank 1 making the buffer and connecting" in str(caught.value)

    @pytest.mark.parametrize(("spec", "word"), [
        ({"experts": 255}, "spread evenly"), ({"experts": 258}, "128 a rank"), ({"fp8": True}, "FP8"),
        ({"mode": "intranode", "bench_folder": "/nowhere"}, "set bench_folder")])
    def test_what_the_kernels_cannot_do_is_said_before_they_crash(self, run: Run, spec: dict[str, Any], word: str) -> None:
        with pytest.raises(ProbeFailure, match=word):
            run(spec)

    def test_experts_fit_any_number_of_ranks(self) -> None:
        amounts = probe_module._Run._amounts
        for ranks in (2, 3, 6, 8, 16, 24, 32, 64, 128):
            stage = type("R", (), {"_params": UcclEpParams()})()
            for throughput in (True, False):
                _, experts = amounts(stage, throughput, ranks)
                assert experts % ranks == 0
                assert experts // ranks <= 128


class TestDevices:
    def test_without_an_efa_device_there_is_no_path(self, run: Run) -> None:
        with pytest.raises(ProbeFailure, match="no EFA device is visible") as caught:
            run(transport="efa")
        assert caught.value.reason is Reason.TRANSPORT_UNAVAILABLE

    @pytest.mark.parametrize(("nics", "spec"), [(1, {}), (15, {}), (16, {"nics": 32})])
    def test_a_part_of_a_node_is_not_enough(self, run: Run, nics: int, spec: dict[str, Any]) -> None:
        with pytest.raises(ProbeFailure, match=f"{nics} EFA devices are visible, UCCL-EP needs all") as caught:
            run(spec, transport="efa", nics=nics)
        assert caught.value.reason is Reason.DEVICES_MISSING

    def test_a_whole_node_alone_is_not_efa(self, run: Run) -> None:
        with pytest.raises(ProbeFailure, match="NVLink would carry everything") as caught:
            run(transport="efa", nics=16)
        assert caught.value.reason is Reason.NOT_EFA

    def test_the_devices_are_named(self, run: Run) -> None:
        report = run(nics=2)
        assert report.evidence is not None
        assert (report.evidence.nics_seen, report.evidence.devices) == (2, ["rdmap0s0", "rdmap1s0"])


class TestBench:
    @pytest.fixture(autouse=True)
    def _bench(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in ("test_intranode.py", "test_low_latency.py"):
            (tmp_path / name).touch()
        self.folder = str(tmp_path)
        self.patch = monkeypatch

    def prints(self, text: str, *, status: int = 0, sleep: float = 0.0) -> None:
        body = f"import sys,time; sys.stdout.write({text!r}); sys.stdout.flush(); time.sleep({sleep}); sys.exit({status})"
        self.patch.setattr(probe_module, "command", lambda *_args, **_more: [sys.executable, "-c", body])

    def test_the_intranode_bench(self, run: Run) -> None:
        self.prints((FIXTURES / "intranode_2xh200.txt").read_text())
        report = run({"mode": "intranode", "bench_folder": self.folder})
        assert report.reason is Reason.OK
        assert {(m.operation, m.variant) for m in report.measurements} == {
            ("dispatch", None), ("dispatch", "best_config"), ("combine", None), ("combine", "best_config")}

    def test_every_rank_of_the_low_latency_bench_must_report(self, run: Run) -> None:
        text = "\n".join(line for line in (FIXTURES / "derived" / "low_latency_4_ranks.txt").read_text().split("\n")
                         if not line.startswith(("[rank 1]", "[rank 2]", "[rank 3]")))
        self.prints(text)
        report = run({"mode": "low-latency", "bench_folder": self.folder})
        assert (report.reason, report.message) == (Reason.ENGINE_ERROR, "rank 1 reported no usable bandwidth")

    def test_a_pass_with_a_bad_exit_status_is_no_pass(self, run: Run) -> None:
        self.prints((FIXTURES / "intranode_2xh200.txt").read_text(), status=1)
        report = run({"mode": "intranode", "bench_folder": self.folder})
        assert (report.reason, report.message) == (Reason.ENGINE_ERROR, "test_intranode.py ended with status 1")

    def test_the_hang_of_the_low_latency_bench_ends_and_its_output_is_kept(self, run: Run, capfd: pytest.CaptureFixture[str]) -> None:
        self.prints((FIXTURES / "low_latency_hang_no_rdma.txt").read_text().replace("Traceback (most recent call last):\n", ""), sleep=60)
        begin = time.monotonic()
        with pytest.raises(ProbeFailure, match="bench: Start experiment with settings") as caught:
            run({"mode": "low-latency", "bench_folder": self.folder}, seconds=6.0)
        assert caught.value.reason is Reason.DEADLINE
        assert time.monotonic() - begin < 7
        assert "Registered proxies for device 1 (low-latency mode)" in capfd.readouterr().err


class TestProgram:
    def test_children_in_sessions_of_their_own_end_too(self, tmp_path: Path) -> None:
        sleep = "import time; time.sleep(60)"
        body = f"import subprocess,sys; subprocess.Popen([sys.executable,'-c',{sleep!r}],start_new_session=True); {sleep}"
        program = Program([sys.executable, "-c", body], os.environ, tmp_path / "out")
        until = time.monotonic() + 10
        while len(descendants(os.getpid())) < 2:
            assert time.monotonic() < until
            time.sleep(0.02)
        program.end()
        assert program.status == -9

    def test_torchrun_over_all_nodes(self) -> None:
        line = command(Path("/b/test_low_latency.py"), ["--num-tokens=128"], nodes=2, node=1, gpus=8, address="10.0.0.1", port=29500)
        assert line[1:] == ["-m", "torch.distributed.run", "--nnodes=2", "--node_rank=1", "--nproc_per_node=8", "--master_addr=10.0.0.1",
                            "--master_port=29500", "/b/test_low_latency.py", "--num-tokens=128"]


class TestEngine:
    def installed(self, monkeypatch: pytest.MonkeyPatch, folder: Path, number: str) -> None:
        info = folder / f"uccl-{number}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: uccl\nVersion: {number}\n")
        monkeypatch.syspath_prepend(str(folder))

    def test_not_installed(self) -> None:
        with pytest.raises(EngineError, match="pip install") as caught:
            engine.version()
        assert caught.value.reason is Reason.ENGINE_MISSING

    def test_what_pip_takes_on_python_3_11_does_not_work(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.installed(monkeypatch, tmp_path, "0.0.1.post4")
        with pytest.raises(EngineError, match=r"0\.0\.1\.post4 does not work: 0\.1\.1 or newer") as caught:
            engine.version()
        assert caught.value.reason is Reason.ENGINE_INCOMPATIBLE

    def test_an_old_python_is_refused(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.installed(monkeypatch, tmp_path, "0.1.1")
        monkeypatch.setattr(engine, "OLDEST_PYTHON", (9, 0))
        with pytest.raises(EngineError, match=r"needs Python 3\.12"):
            engine.version()

    @pytest.mark.parametrize("number", ["0.1.1", "0.1.1.post2", "0.2.0", "1.0"])
    def test_a_working_version(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: str) -> None:
        self.installed(monkeypatch, tmp_path, number)
        monkeypatch.setattr(engine, "OLDEST_PYTHON", (3, 10))
        assert engine.version() == number


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.9") is None
    assert interface_of("::1") is None


def test_values_stay_exact_when_copies_are_added() -> None:
    assert routing.modulus(8) == 32
    assert (routing.modulus(8) - 1) * 8 <= 256
    with pytest.raises(ValueError, match="not exact"):
        routing.modulus(256)


@pytest.mark.parametrize(("spec", "word"), [
    ({"topk": 9, "experts": 8}, "topk 9"), ({"hidden": 7000}, "multiple of 128"), ({"mode": "x"}, "mode")])
def test_parameters_that_cannot_be_meant(spec: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        UcclEpParams.model_validate(spec)
