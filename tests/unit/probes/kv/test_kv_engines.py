"""Answers of the engines that no machine here can bring about: failed starts, failed transfers, the wrong backend.

What can be brought about runs for real in the integration tests.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from probes.kv.engine import Step, TransferFailedError
from probes.kv.memory import HostRegion
from probes.kv.mooncake import MooncakeEngine
from probes.kv.nixl import NixlEngine, choose
from probes.kv.params import MIB, NixlParams
from probes.kv.timing import Budget
from probes.reasons import Reason
from probes.worker import ProbeFailure

STEP = Step("write", 65536, 1, 1)


def budget(iterations: int = 5) -> Budget:
    return Budget(iterations=iterations, seconds=5.0, ends_at=time.monotonic() + 5)


class Codes:
    """A TransferEngine that returns the given codes; the last one for ever."""

    def __init__(self, initialize: int = 0, register: int = 0, transfers: tuple[int, ...] = (0,), probe: int = 0) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._initialize, self._register, self._transfers, self._probe = initialize, register, list(transfers), probe

    def initialize(self, *arguments: Any) -> int:
        self.calls.append(arguments)
        return self._initialize

    def get_rpc_port(self) -> int:
        return 15_000

    def register_memory(self, address: int, size: int) -> int:
        return self._register

    def send_probe(self, peer: str) -> int:
        return self._probe

    def warmup_efa_segment(self, peer: str) -> int:
        return self._probe

    def transfer_sync_write(self, *arguments: Any) -> int:
        self.calls.append(arguments)
        return self._transfers.pop(0) if len(self._transfers) > 1 else self._transfers[0]


def mooncake(codes: Codes, protocol: str = "tcp", log: Path = Path("/dev/null"), *, gpu: bool = False, **flags: Any) -> MooncakeEngine:
    module = ModuleType("engine")
    vars(module).update({"TransferEngine": lambda: codes, **flags})
    return MooncakeEngine(module, protocol, "", log, gpu=gpu)


def opened(codes: Codes, protocol: str = "tcp") -> MooncakeEngine:
    engine = mooncake(codes, protocol, SUPPORT_EFA=True)
    engine.open(HostRegion(65536), "10.0.0.1")
    engine.connect({"segment": "10.0.0.2:15001", "address": 4096})
    return engine


class TestMooncake:
    """Mooncake speaks in return codes."""

    @pytest.mark.parametrize(("protocol", "reason"), [("efa", Reason.TRANSPORT_UNAVAILABLE), ("tcp", Reason.ENGINE_ERROR)])
    def test_a_failed_start(self, protocol: str, reason: Reason) -> None:
        with pytest.raises(ProbeFailure, match="initialize returned -1") as failed:
            mooncake(Codes(initialize=-1), protocol, SUPPORT_EFA=True).open(HostRegion(65536), "10.0.0.1")
        assert failed.value.reason is reason

    def test_a_good_code_of_an_engine_whose_log_says_tcp_is_no_efa(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text("I1129 20:46:57.9  1849 engine_py.cpp:250] Installing TCP transport (auto_discover disabled in EFA build)\n")
        with pytest.raises(ProbeFailure, match="runs on TCP though protocol efa was given") as failed:
            mooncake(Codes(), "efa", log, SUPPORT_EFA=True).open(HostRegion(65536), "10.0.0.1")
        assert failed.value.reason is Reason.TRANSPORT_UNAVAILABLE

    def test_memory_that_cannot_be_registered_names_the_memlock_limit(self) -> None:
        with pytest.raises(ProbeFailure, match="register_memory of 65536 bytes returned -202, the limit of locked memory") as failed:
            mooncake(Codes(register=-202)).open(HostRegion(65536), "10.0.0.1")
        assert failed.value.reason is Reason.ENGINE_ERROR

    def test_a_failed_transfer_is_no_sample(self) -> None:
        engine = opened(Codes(transfers=(0, 0, -1)))
        with pytest.raises(TransferFailedError, match="after 2 good ones: Mooncake returned -1"):
            engine.measure(engine.lanes(STEP), budget())

    def test_a_failed_transfer_in_one_of_several_threads_ends_them_all(self) -> None:
        engine = opened(Codes(transfers=(0, 0, 0, 0, -1)))
        with pytest.raises(TransferFailedError, match="Mooncake returned -1"):
            engine.measure([*engine.lanes(STEP)] * 3, budget(1_000_000))

    def test_a_transfer_to_oneself_is_refused_because_it_is_a_copy(self) -> None:
        engine = mooncake(Codes())
        engine.open(HostRegion(65536), "10.0.0.1")
        with pytest.raises(ProbeFailure, match="a transfer to oneself") as failed:
            engine.connect({"segment": "10.0.0.1:15000", "address": 0})
        assert failed.value.reason is Reason.BAD_SPEC

    @pytest.mark.parametrize(("protocol", "text"), [("tcp", "does not answer"), ("efa", "does not answer")])
    def test_a_peer_that_does_not_answer(self, protocol: str, text: str) -> None:
        with pytest.raises(TransferFailedError, match=text):
            opened(Codes(probe=-1), protocol)

    def test_the_protocol_reaches_the_engine_unchanged(self) -> None:
        codes = Codes()
        mooncake(codes, "efa", SUPPORT_EFA=True).open(HostRegion(65536), "fd00::1")
        assert codes.calls == [("[fd00::1]", "P2PHANDSHAKE", "efa", "")]

    @pytest.mark.parametrize(("flags", "binary"), [({"SUPPORT_EFA": False}, b""), ({}, b"no such transport in here")])
    def test_a_build_without_efa_is_told_by_its_flag_or_its_binary(self, tmp_path: Path, flags: dict[str, Any], binary: bytes) -> None:
        (tmp_path / "engine.so").write_bytes(binary)
        with pytest.raises(ProbeFailure, match="built without EFA") as failed:
            mooncake(Codes(), "efa", __file__=str(tmp_path / "engine.so"), **flags)
        assert failed.value.reason is Reason.TRANSPORT_UNAVAILABLE

    def test_an_older_build_with_efa_is_told_by_its_binary(self, tmp_path: Path) -> None:
        (tmp_path / "engine.so").write_bytes(b"\0EfaTransport: No available EFA devices\0")
        mooncake(Codes(), "efa", __file__=str(tmp_path / "engine.so"))

    def test_a_build_without_cuda_moves_no_gpu_memory(self) -> None:
        with pytest.raises(ProbeFailure, match="built without CUDA") as failed:
            mooncake(Codes(), gpu=True, SUPPORT_CUDA=False)
        assert failed.value.reason is Reason.ENGINE_INCOMPATIBLE


class BackendError(Exception):
    """Stands for the classes that NIXL's bindings define."""


class Agent:
    """A nixl_agent with one backend whose transfers go through the given states."""

    def __init__(self, states: tuple[str, ...] = ("DONE",), used: str = "UCX", answers: bool = True) -> None:
        self.backends: dict[str, int] = {}
        self._states, self._used, self._answers = list(states), used, answers
        self._notifications: list[bytes] = []

    def get_plugin_list(self) -> list[str]:
        return ["UCX", "POSIX"]

    def create_backend(self, name: str, options: dict[str, str]) -> None:
        self.backends[name] = 1

    def register_memory(self, regions: Any, memory: str, backends: list[str]) -> None:
        if memory == "VRAM":
            raise BackendError("NIXL_ERR_BACKEND")

    def get_agent_metadata(self) -> bytes:
        return b"metadata"

    def add_remote_agent(self, metadata: bytes) -> str:
        return "peer"

    def get_xfer_descs(self, blocks: Any, memory: str) -> Any:
        return blocks

    def initialize_xfer(self, *arguments: Any, backends: list[str]) -> object:
        return object()

    def query_xfer_backend(self, handle: object) -> str:
        return self._used

    def transfer(self, handle: object, message: bytes) -> str:
        return self._state()

    def check_xfer_state(self, handle: object) -> str:
        return self._state()

    def send_notif(self, peer: str, message: bytes) -> None:
        if self._answers:
            self._notifications.append(message.replace(b"have:", b"has:").partition(b":")[0])

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        return {"peer": self._notifications}

    def release_xfer_handle(self, handle: object) -> None:
        pass

    def _state(self) -> str:
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if state == "gone":
            raise BackendError("NIXL_ERR_REMOTE_DISCONNECT")
        return state


def nixl(agent: Agent, memory: str = "DRAM", *, timeout: float = 0.2, backend: str = "UCX") -> NixlEngine:
    api = ModuleType("nixl._api")
    vars(api).update({"nixlBind": SimpleNamespace(nixlBackendError=BackendError, __file__=__file__),
                      "nixl_agent": lambda name, config: agent, "nixl_agent_config": lambda backends: backends})
    return NixlEngine(api, "agent", backend, memory, Path("/dev/null"), timeout=timeout, pinned=False)


def ready(agent: Agent, **options: Any) -> NixlEngine:
    engine = nixl(agent, **options)
    engine.open(HostRegion(65536), "10.0.0.1")
    engine.connect({"metadata": "bWV0YQ==", "address": 4096, "device": 0})
    return engine


class TestNixl:
    """NIXL speaks in states and exceptions, and picks a backend of its own where it may."""

    def test_a_plugin_that_is_not_there(self) -> None:
        with pytest.raises(ProbeFailure, match="no backend LIBFABRIC: it is not among POSIX, UCX") as failed:
            nixl(Agent(), backend="LIBFABRIC")
        assert failed.value.reason is Reason.ENGINE_INCOMPATIBLE

    def test_an_agent_that_skipped_its_backend(self) -> None:
        agent = Agent()
        agent.create_backend = lambda name, options: None  # type: ignore[method-assign]
        with pytest.raises(ProbeFailure, match="asked for UCX and runs none") as failed:
            nixl(agent)
        assert failed.value.reason is Reason.ENGINE_INCOMPATIBLE

    def test_a_transfer_that_takes_another_backend(self) -> None:
        engine = ready(Agent(used="POSIX"))
        with pytest.raises(ProbeFailure, match="over POSIX though UCX was asked for"):
            engine.lanes(STEP)

    def test_gpu_memory_that_the_backend_does_not_take(self) -> None:
        with pytest.raises(ProbeFailure, match="UCX does not register 65536 bytes of VRAM") as failed:
            ready(Agent(), memory="VRAM")
        assert failed.value.reason is Reason.ENGINE_INCOMPATIBLE

    @pytest.mark.parametrize(("states", "text"), [
        (("DONE", "PROC", "ERR"), "NIXL reports ERR"),
        (("PROC", "gone"), "NIXL_ERR_REMOTE_DISCONNECT"),
        (("PROC",), "a transfer did not complete within"),
    ])
    def test_a_transfer_that_fails_is_lost_or_never_ends(self, states: tuple[str, ...], text: str) -> None:
        engine = ready(Agent(states))
        with pytest.raises(TransferFailedError, match=text):
            engine.measure(engine.lanes(STEP), budget())

    def test_a_transfer_done_within_its_post_is_timed_by_its_post(self) -> None:
        engine = ready(Agent())
        samples = engine.measure(engine.lanes(STEP), budget())
        assert samples.operations == 5
        assert samples.latencies == samples.posts

    def test_post_and_completion_are_timed_apart(self) -> None:
        engine = ready(Agent(("PROC", "PROC", "DONE", "PROC", "DONE", "PROC", "DONE", "DONE")))
        samples = engine.measure(engine.lanes(STEP), budget(4))
        assert all(post < latency for post, latency in zip(samples.posts[:3], samples.latencies[:3], strict=True))

    def test_writes_that_the_target_never_confirms(self) -> None:
        engine = ready(Agent(answers=False))
        engine.once(engine.lanes(STEP))
        with pytest.raises(TransferFailedError, match="the target did not confirm 1 writes within"):
            engine.confirm()


@pytest.mark.parametrize(("spec", "efa", "device", "backend", "variables"), [
    ({}, True, True, "LIBFABRIC", {"FI_PROVIDER": "efa"}),
    ({}, True, False, "LIBFABRIC", {"FI_PROVIDER": "efa"}),
    ({}, False, True, "LIBFABRIC", {}),
    ({}, False, False, "UCX", {"UCX_TLS": "tcp,self,cuda_copy"}),
    ({"backend": "UCX"}, True, True, "UCX", {"UCX_TLS": "srd,self,cuda_copy"}),
    ({"backend": "UCX", "tls": "posix,self"}, False, True, "UCX", {"UCX_TLS": "posix,self"}),
    ({"backend": "UCX", "env": {"UCX_TLS": "cma"}}, False, True, "UCX", {"UCX_TLS": "cma"}),
    ({"backend": "LIBFABRIC", "provider": "tcp"}, False, False, "LIBFABRIC", {"FI_PROVIDER": "tcp"}),
])
def test_backend_and_pins_follow_from_mode_device_and_spec(spec: dict[str, Any], efa: bool, device: bool, backend: str,
                                                           variables: dict[str, str]) -> None:
    pins = choose(NixlParams.model_validate({"sizes": [MIB], **spec}), efa=efa, device=device)
    assert (pins.backend, pins.variables) == (backend, variables)


@pytest.mark.parametrize("spec", [{"backend": "UCX", "tls": "srd,tcp"}, {"backend": "UCX", "tls": "all"}, {"backend": "UCX", "tls": "^srd"},
                                  {"backend": "UCX", "tls": "srd,tcp:aux"}, {"provider": "tcp"}, {"provider": "^efa"}])
def test_efa_mode_refuses_what_could_leave_efa(spec: dict[str, Any]) -> None:
    with pytest.raises(ProbeFailure) as refused:
        choose(NixlParams.model_validate(spec), efa=True, device=True)
    assert refused.value.reason is Reason.BAD_SPEC
