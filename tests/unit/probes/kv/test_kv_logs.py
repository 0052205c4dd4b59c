"""Lines that the engines really printed. Those of EFA hardware are written after the engines' sources, which no machine here can run."""

from __future__ import annotations

from pathlib import Path

from probes.kv import logs
from probes.kv.logs import Route

MOONCAKE_TCP = """\
W1129 20:46:57.534942  1849 transfer_engine_py.cpp:301] Using 64KB-aligned malloc/free for protocol: tcp
I1129 20:46:57.535145  1849 transfer_engine_impl.cpp:214] Transfer Engine RPC using P2P handshake, listening on 127.0.0.1:15038
W1129 20:46:57.535252  1849 topology.cpp:223] No RDMA devices found, check your device installation
E1129 20:46:57.955328  1849 transfer_metadata.cpp:1367] Local segment descriptor not found
I1129 20:46:57.955358  1849 tcp_transport.cpp:432] TcpTransport: listen on port 16729
"""
MOONCAKE_EFA = """\
I1129 20:46:57.535145  1849 efa_context.cpp:228] EFA device (libfabric): rdmap80s0, domain: rdmap80s0-rdm, fabric: efa, provider: efa (shared endpoint, max_wr=256, provider tx queue=4096, max_cqe=8192)
I1129 20:46:57.535145  1849 efa_context.cpp:228] EFA device (libfabric): rdmap79s0, domain: rdmap79s0-rdm, fabric: efa, provider: efa (shared endpoint, max_wr=256, provider tx queue=4096, max_cqe=8192)
I1129 20:46:57.535145  1849 transfer_engine_py.cpp:231] EFA transport installed successfully
"""  # noqa: E501 - as printed
UCX_TCP = """\
[1795993766.729647] [vm:10980:0]          parser.c:2587 UCX  INFO  UCX_* env variables: UCX_LOG_LEVEL=info UCX_TLS=tcp,self
[1795993766.730327] [vm:10980:0]      ucp_worker.c:1997 UCX  INFO    r0 self cfg#0 rma_am(tcp/lo)  amo_am(tcp/lo)  am(tcp/lo tcp/eth0)  ka(tcp/lo)
[1795993766.914583] [vm:10980:0]      ucp_worker.c:1997 UCX  INFO    r0 intra-node cfg#1 rma_am(tcp/lo)  amo_am(tcp/lo)  am(tcp/lo tcp/eth0)  ka(tcp/lo)
I1129 23:09:26.934460   10980 nixl_agent.cpp:1000] Selected backend: UCX
"""  # noqa: E501 - as printed
UCX_REFUSED = """\
[1795994734.569448] [vm:25303:0]     ucp_context.c:1508 UCX  WARN  transport 'srd' is not available, please use one or more of: cma, mm, posix, self, shm, sm, sysv, tcp
[1795994734.570155] [vm:25303:0]          select.c:722  UCX  ERROR   no active messages transport to <no debug data>: self/memory - no peer failure handler
W1129 23:25:34.570163   25303 ucx_enums.cpp:58] Unexpected UCX error: Destination is unreachable
E1129 23:25:34.570211   25303 nixl_agent.cpp:371] createBackend: backend 'UCX' encountered error with status NIXL_ERR_BACKEND
"""  # noqa: E501 - as printed


def ucx(lanes: str) -> str:
    return f"[1795993766.914583] [vm:10980:0]      ucp_worker.c:1997 UCX  INFO    r0 inter-node cfg#1 {lanes}\n"


def test_mooncake_says_that_it_runs_on_tcp() -> None:
    assert logs.mooncake_path(MOONCAKE_TCP) == Route(provider="tcp", rdma=False)
    assert "TcpTransport: listen" in (logs.mooncake_tcp(MOONCAKE_TCP) or "")


def test_mooncake_names_its_efa_devices_in_any_order() -> None:
    assert logs.mooncake_path(MOONCAKE_EFA) == Route(provider="efa", fabric="efa", devices=("rdmap79s0", "rdmap80s0"), nics=2)
    assert logs.mooncake_tcp(MOONCAKE_EFA) is None


def test_an_empty_log_proves_nothing() -> None:
    assert logs.mooncake_path("") == Route()
    assert logs.nixl_path("", "UCX") == logs.nixl_path("", "LIBFABRIC") == Route()


def test_ucx_lanes_name_the_transport_and_whether_remote_access_is_emulated() -> None:
    assert logs.nixl_path(UCX_TCP, "UCX") == Route(provider="tcp", rdma=False, devices=("eth0", "lo"))
    assert logs.nixl_path(ucx("rma(rc_mlx5/mlx5_0:1)  am(rc_mlx5/mlx5_0:1)"), "UCX") == Route("rc_mlx5", None, True, ("mlx5_0:1",))
    assert logs.nixl_path(ucx("rma_am(srd/rdmap79s0:1)"), "UCX").rdma is False
    assert logs.nixl_path(ucx("rma(sysv/memory cma/memory)"), "UCX") == Route("cma+sysv", None, False, ("memory",))


def test_emulated_access_may_take_any_of_the_lanes() -> None:
    seen = "rma_am(tcp/lo)  amo_am(tcp/lo)  am(tcp/lo cma/memory)  ka(tcp/lo)"  # measured: 64 KiB blocks went by cma, not by tcp
    assert logs.nixl_path(ucx(seen), "UCX") == Route(provider="cma+tcp", rdma=False, devices=("lo", "memory"))


def test_the_lanes_to_oneself_are_not_those_to_the_peer() -> None:
    assert logs.nixl_path(UCX_TCP.splitlines()[1], "UCX") == Route()


def test_libfabric_rails_are_efa_only_when_the_provider_is() -> None:
    efa = "I1207 19:34:40.137259 1302 rails.cpp:41] Created 16 rails using provider=efa\n"
    tcp = "I1207 19:34:40.137259 1302 rails.cpp:41] Created 1 rails using provider=tcp\n"
    assert logs.nixl_path(efa, "LIBFABRIC") == Route(provider="efa", nics=16)
    assert logs.nixl_path(tcp, "LIBFABRIC") == Route(provider="tcp", nics=1, rdma=False)


def test_a_complaint_tells_the_cause_and_what_the_engine_made_of_it() -> None:
    assert logs.complaints(UCX_REFUSED) == [
        "transport 'srd' is not available, please use one or more of: cma, mm, posix, self, shm, sm, sysv, tcp",
        "no active messages transport to <no debug data>: self/memory - no peer failure handler",
        "nixl_agent.cpp:371] createBackend: backend 'UCX' encountered error with status NIXL_ERR_BACKEND",
    ]


def test_what_mooncake_complains_of_at_every_start_is_no_complaint() -> None:
    assert logs.complaints(MOONCAKE_TCP) == []


def test_a_log_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert logs.read_tail(tmp_path / "none") == ""
    assert logs.words_of(tmp_path / "none") == ""
    (tmp_path / "log").write_bytes(b"\xff\xfe not text\nE1129 20:46:57.955328  1849 a.cpp:1] broken\n")
    assert logs.words_of(tmp_path / "log") == "; the engine says: a.cpp:1] broken"


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * (2 * logs.TAIL) + b"end")
    assert len(logs.read_tail(log)) == logs.TAIL
    assert logs.read_tail(log).endswith("end")
