"""Witness 3: every line known from facts and records says what it should, and no log can make the scan slow or large."""

from __future__ import annotations

import re
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.efa.markers import SAYS, SCAN_BYTES, PatternError, bounded, load, read, scan

LOGS = Path(__file__).parents[3] / "fixtures" / "logs"
PREFIX = "ip-10-0-0-1:4242:4299 [0] NCCL INFO "

LINES: list[tuple[str, str, str, str]] = [
    # aws-ofi-nccl and NCCL: EFA
    ("nccl", "NET/OFI Initializing aws-ofi-nccl 1.21.1", "ofi_init", "info"),
    ("nccl", "NET/OFI Using aws-ofi-nccl 1.4.0aws", "ofi_init", "info"),
    ("nccl", "NET/OFI Using Libfabric version 2.6", "ofi_libfabric", "info"),
    ("nccl", "NET/OFI Plugin selected platform: AWS", "ofi_platform", "info"),
    ("nccl", "NET/OFI Using transport protocol RDMA (platform set)", "ofi_protocol", "info"),
    ("nccl", "NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)", "ofi_provider_efa", "efa"),
    ("nccl", "NET/OFI Selected provider is efa, fabric is efa (found 16 nics)", "ofi_provider_efa", "efa"),
    ("nccl", "NET/OFI Selected Provider is efa (found 16 nics)", "ofi_provider_efa", "efa"),
    ("nccl", "NET/OFI Selected Provider is efa", "ofi_provider_efa", "efa"),
    ("nccl", "NET/OFI Selected provider is efa, fabric is EFA-fe80::4d6:dff:fe1c:4c57 (found 4 nics)", "ofi_provider_efa", "efa"),
    ("nccl", "NET/OFI Created device with 4 rails", "ofi_rails", "info"),
    ("nccl", "NET/OFI Created device with 4 rails (originally found 3 rails)", "ofi_rails", "info"),
    ("nccl", "NET/OFI Support for DMA-BUF registrations: true", "ofi_dmabuf", "info"),
    ("nccl", "Initialized NET plugin Libfabric", "ofi_plugin_used", "info"),
    ("nccl", "Assigned NET plugin Libfabric to comm", "ofi_plugin_used", "info"),
    ("nccl", "Using network Libfabric", "ofi_plugin_used", "info"),
    ("nccl", "Using network AWS Libfabric", "ofi_plugin_used", "info"),
    ("nccl", "Channel 07/0 : 1[1] -> 0[0] [send] via NET/Libfabric/1/GDRDMA", "ofi_channel_gdr", "info"),
    ("nccl", "Channel 07/0 : 1[1] -> 0[0] [send] via NET/AWS Libfabric/3(12)/GDRDMA/Shared", "ofi_channel_gdr", "info"),
    ("nccl", "Channel 07/0 : 1[1] -> 0[0] [send] via NET/Libfabric/1", "ofi_channel_staged", "degraded"),
    ("nccl", "Channel 07/0 : 1[1] -> 0[0] [send] via NET/AWS Libfabric/12(3)/Shared", "ofi_channel_staged", "degraded"),
    # fallback and degradation
    ("nccl", "NET/Plugin: Could not find: libnccl-net.so", "nccl_plugin_missing", "fallback"),
    ("nccl", "NET/Plugin: Could not find: /opt/aws/lib/libnccl-net.so. Using internal network plugin.", "nccl_plugin_missing", "fallback"),
    ("nccl", "NET/Plugin: Could not find: ofi libnccl-net-ofi.so", "nccl_plugin_missing", "fallback"),
    ("nccl", "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation", "nccl_plugin_missing", "fallback"),
    ("nccl", "NET/Plugin : No plugin found (libnccl-net.so)", "nccl_plugin_missing", "fallback"),
    ("nccl", "NET/Plugin : Plugin load returned 2 : libfabric.so.1: cannot open.", "nccl_plugin_load_failed", "fallback"),
    ("nccl", "External network plugin libnccl-net-ofi.so is unsupported", "nccl_plugin_unsupported", "fallback"),
    ("nccl", "NET/OFI No eligible providers were found", "ofi_no_providers", "fallback"),
    ("nccl", "NET/OFI Selected provider is tcp, fabric is 172.31.32.0/20 (found 1 nics)", "ofi_provider_tcp", "tcp"),
    ("nccl", "NET/OFI Selected Provider is tcp;ofi_rxm (found 3 nics)", "ofi_provider_tcp", "tcp"),
    ("nccl", "NET/OFI Selected Provider is sockets", "ofi_provider_tcp", "tcp"),
    ("nccl", "NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)", "ofi_provider_other", "other"),
    ("nccl", "NET/OFI Need to force simple protocol: GDR not supported", "ofi_no_gdr", "degraded"),
    ("nccl", "NCCL WARN NET/OFI GDR disabled on GDR-supported instance type p4d.24xlarge", "ofi_gdr_refused", "fallback"),
    ("nccl", "NET/OFI aws-ofi-nccl initialization failed", "ofi_init_failed", "fallback"),
    ("nccl", "NET/OFI Failed to initialize rdma protocol", "ofi_protocol_failed", "fallback"),
    ("nccl", "NET/OFI Unable to find a protocol that worked.  Failing initialization.", "ofi_protocol_failed", "fallback"),
    ("nccl", "NET/OFI EFA provider requires at least libfabric version 1.22.0.", "ofi_old_libfabric", "fallback"),
    ("nccl", "NET/OFI OFI fi_getinfo() call failed: No data available", "ofi_getinfo_failed", "fallback"),
    ("nccl", "Failed to initialize NET plugin Libfabric", "nccl_plugin_failed", "fallback"),
    ("nccl", "Failed to initialize NET plugin AWS Libfabric", "nccl_plugin_failed", "fallback"),
    ("nccl", "NET/IB : No device found.", "nccl_ib_none", "info"),
    ("nccl", "Failed to open libibverbs.so[.1]", "nccl_no_ibverbs", "info"),
    ("nccl", "NET/Socket : Using [0]eth0:192.0.2.2<0>", "nccl_socket_probed", "info"),
    ("nccl", "Initialized NET plugin Socket", "nccl_socket_used", "tcp"),
    ("nccl", "Assigned NET plugin Socket to comm", "nccl_socket_used", "tcp"),
    ("nccl", "Using network Socket", "nccl_socket_used", "tcp"),
    ("nccl", "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0", "nccl_socket_channel", "tcp"),
    ("nccl", "Channel 00 : 0[0] -> 1[1] [receive] via NET/Socket/1/Shared", "nccl_socket_channel", "tcp"),
    ("nccl", "libfabric:88:176::core:core:fi_getinfo_():1<warn> fi_getinfo: provider efa output empty list", "fi_efa_empty", "unavailable"),
    ("nccl", "Failed to initialize any NET plugin", "nccl_no_net", "unavailable"),
    ("nccl", "Using network IB", "nccl_ib_used", "other"),
    ("nccl", "Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0/GDRDMA", "nccl_ib_used", "other"),
    ("nccl", "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "nccl_p2p_channel", "intra_node"),
    ("nccl", "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "nccl_shm_channel", "intra_node"),
    ("nccl", "Channel 00 : 0[0] -> 1[1] via direct shared memory", "nccl_shm_channel", "intra_node"),
    # Mooncake
    ("mooncake", "EFA device (libfabric): rdmap79s0, domain: rdmap79s0-rdm, fabric: efa, provider: efa (shared endpoint, max_wr=256)",
     "mc_efa_device", "efa"),
    ("mooncake", "EFA transport installed successfully", "mc_efa_installed", "efa"),
    ("mooncake", "EfaTransport: Initialized EFA device rdmap160s0", "mc_efa_initialized", "efa"),
    ("mooncake", "EfaTransport: No EFA devices found, falling back to all devices", "mc_efa_none", "unavailable"),
    ("mooncake", "EfaTransport: No available EFA devices", "mc_efa_none", "unavailable"),
    ("mooncake", "EfaTransport: Disable device rdmap80s0", "mc_efa_disabled", "efa_partial"),
    ("mooncake", "Installing TCP transport (auto_discover disabled in EFA build)", "mc_tcp_efa_build", "tcp"),
    ("mooncake", "Using TCP transport (no HCA detected)", "mc_tcp_no_hca", "tcp"),
    ("mooncake", "TcpTransport: listen on port 16729", "mc_tcp_listen", "tcp"),
    ("mooncake", "installTransport, type=rdma", "mc_rdma", "other"),
    ("mooncake", "MC_FORCE_TCP is set, using TCP transport only", "mc_tcp_forced", "tcp"),
    ("mooncake", "Failed to create QP: Operation not supported [95]", "mc_qp_unsupported", "unavailable"),
    ("mooncake", "Unsupported transport efa, please rebuild Mooncake", "mc_rebuild", "unavailable"),
    ("mooncake", "Transport efa not installed", "mc_not_installed", "error"),
    ("mooncake", "Unable to get target segment ID, please recheck", "mc_no_segment", "error"),
    ("mooncake", "timed out waiting for CQ drain (wr_depth=256, max=256)", "mc_cq_drain", "error"),
    ("mooncake", "1024 consecutive FI_EAGAIN waves posted nothing", "mc_eagain", "error"),
    ("mooncake", "Using Intra-Node NVLink transport (MC_INTRANODE_NVLINK set)", "mc_intra_node", "intra_node"),
    ("mooncake", "fi_getinfo: -61 (No data available)", "fi_no_data", "unavailable"),
    ("mooncake", "Failed to install EFA transport", "mc_efa_failed", "unavailable"),
    # NIXL
    ("nixl", "Discovered 16 EFA devices", "nixl_efa_found", "efa"),
    ("nixl", "Discovered 16 EFA-Direct devices", "nixl_efa_found", "efa"),
    ("nixl", "Discovered 1 tcp devices (TCP fallback)", "nixl_tcp_found", "tcp"),
    ("nixl", "Discovered 2 socket devices (TCP fallback)", "nixl_tcp_found", "tcp"),
    ("nixl", "Created 16 rails using provider=efa", "nixl_efa_rails", "efa"),
    ("nixl", "Successfully created 16 data rails and 1 control rails using provider: efa", "nixl_efa_rails", "efa"),
    ("nixl", "Created 1 rails using provider=tcp", "nixl_tcp_rails", "tcp"),
    ("nixl", "Created 4 rails using provider=cxi", "nixl_other_rails", "other"),
    ("nixl", "Using simplified topology for tcp", "nixl_simple_topology", "tcp"),
    ("nixl", "Using provider with FI_HMEM support for rail 0", "nixl_hmem", "info"),
    ("nixl", "VRAM memory requested but provider does not support FI_HMEM - falling back to system memory registration", "nixl_no_hmem",
     "degraded"),
    ("nixl", "Selected backend: LIBFABRIC", "nixl_backend", "info"),
    ("nixl", "16 Amazon EFA(s) were detected, but the UCX backend was configured. For best performance", "nixl_ucx_on_efa", "degraded"),
    ("nixl", "Topology discovery failed - no suitable network providers found", "nixl_no_provider", "unavailable"),
    ("nixl", "No network devices found", "nixl_no_provider", "unavailable"),
    ("nixl", "Skipping backend registration LIBFABRIC due to the missing plugin.", "nixl_plugin_missing", "unavailable"),
    ("nixl", "ucp_worker.c:1997 UCX  INFO    a inter-node cfg#1 rma_am(tcp/eth0)  am(tcp/eth0)  ka(tcp/eth0)", "ucx_tcp", "tcp"),
    # UCCL-EP
    ("uccl-ep", "[RDMA] Selected NIC rdmap79s0 (index 3) for affinity rank 0, CUDA device 0, NUMA node 0", "uccl_nic_efa", "efa"),
    ("uccl-ep", "[RDMA] Selected NIC mlx5_0 (index 0) for affinity rank 0, CUDA device 0, NUMA node 0", "uccl_nic_other", "other"),
    ("uccl-ep", "[WARN] no candidate NIC found, defaulting to first", "uccl_nic_guessed", "degraded"),
    ("uccl-ep", "[FATAL] Selected RDMA NIC 'rdmap1s0' not found in verbs device list", "uccl_nic_lost", "unavailable"),
    ("uccl-ep", "[RDMA] GPU Driver API not available, falling back to ibv_reg_mr_iova2 (needs peermem)", "uccl_gpu_memory", "degraded"),
    ("uccl-ep", "DeepEP timeout check failed: rank = 0, thread = 1, value = 0)", "uccl_timeout", "error"),
    ("uccl-ep", "DeepEP error: CPU recv timeout", "uccl_timeout", "error"),
    ("uccl-ep", "DeepEP error: timeout (dispatch CPU)", "uccl_timeout", "error"),
    ("uccl-ep", "RDMA error: transport retry counter exceeded", "uccl_rdma_error", "error"),
]


@pytest.mark.parametrize(("stack", "line", "wanted", "says"), LINES, ids=[f"{row[2]}-{index}" for index, row in enumerate(LINES)])
def test_each_known_line_says_what_it_means(stack: str, line: str, wanted: str, says: str) -> None:
    found = {marker.id: marker.says for marker in scan(stack, PREFIX + line + "\n")}
    assert found.get(wanted) == says
    deciding = {"tcp", "efa", "other", "intra_node", "efa_no_rdma", "efa_partial"}
    assert {value for value in found.values() if value in deciding} <= {says}, "no line speaks for two transports"


def test_every_pattern_has_a_line_here_or_a_recorded_log() -> None:
    known = {pattern.id for patterns in load().values() for pattern in patterns}
    named = {row[2] for row in LINES}
    recorded = {marker.id for stack in load() for path in LOGS.iterdir() for marker in scan(stack, path)}
    assert known - named - recorded == {"ucx_srd", "ucx_no_transport"}, "these two were never seen here"


@pytest.mark.parametrize("line", [
    "Bootstrap : Using eth0:192.0.2.2<0>", "NET/Socket : Using [0]eth0:192.0.2.2<0>", "NET/Plugin: Loaded net plugin Libfabric (v10)",
    "PROFILER/Plugin: Could not find: libnccl-profiler.so", "TUNER/Plugin: Could not find: libnccl-tuner.so", "Using network Sockeye",
    "[MultiTransport] Auto-installing TCP transport as RDMA failover fallback", "EfaTransport: Disabled non-EFA device ibp12s0",
    "Discovered backend plugin: LIBFABRIC", "Selected provider is efax", "worker a self cfg#0 am(tcp/lo)"])
def test_lines_that_prove_nothing_decide_nothing(line: str) -> None:
    for stack in load():
        assert not {m.says for m in scan(stack, PREFIX + line)} & {"tcp", "efa", "efa_partial", "intra_node", "fallback"}, (stack, line)


def test_facts_of_the_lines_are_kept() -> None:
    log = "\n".join([PREFIX + row[1] for row in LINES[:7] if row[0] == "nccl"][:6])
    result = read("nccl", log)
    assert result.facts == {"plugin_version": "1.4.0aws", "libfabric_version": "2.6", "platform": "AWS", "protocol": "RDMA",
                            "provider": "efa", "fabric": "efa-direct", "nics": "32"}


def test_devices_are_collected_over_all_lines() -> None:
    line = "EFA device (libfabric): rdmap{0}s0, domain: rdmap{0}s0-rdm, fabric: efa, provider: efa (shared endpoint, max_wr=1)\n"
    result = read("mooncake", "".join(line.format(number) for number in (79, 80, 81, 79)))
    assert result.devices == ["rdmap79s0", "rdmap80s0", "rdmap81s0"]
    assert [marker.id for marker in result.markers] == ["mc_efa_device"]


@pytest.mark.parametrize(("stack", "log", "says"), [
    ("nccl", "nccl_2.28_socket.txt", {"tcp"}),
    ("nccl", "nccl_2.28_nvlink.txt", {"tcp", "intra_node"}),
    ("mooncake", "mooncake_0.3.14_tcp.log", {"tcp"}),
    ("mooncake", "mooncake_0.3.13_plain_asked_efa.log", {"tcp"}),
    ("nixl", "nixl_1.5.1_ucx_tcp.log", {"tcp"}),
    ("nixl", "nixl_1.5.1_ucx_cma.log", {"intra_node"}),
    ("uccl-ep", "uccl_0.1.1_no_rdma.txt", set()),
    ("canary", "nccl_2.28_socket.txt", set()),
])
def test_recorded_logs(stack: str, log: str, says: set[str]) -> None:
    deciding = {"tcp", "efa", "other", "intra_node", "efa_no_rdma", "efa_partial"}
    assert {marker.says for marker in scan(stack, LOGS / log)} & deciding == says


def test_underscores_and_dashes_name_the_same_stack() -> None:
    line = "DeepEP error: CPU recv timeout"
    assert scan("uccl_ep", line) == scan("uccl-ep", line) != []


def test_lines_cut_by_other_output_are_still_found() -> None:
    row = "    1048576  262144  float  sum  -1" + PREFIX + "Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0\r\n  81.2  12.9\n"
    assert [marker.id for marker in scan("nccl", row)] == ["nccl_socket_channel"]


def test_what_decides_a_transport_is_kept_when_there_are_too_many() -> None:
    log = "\n".join(row[1] for row in LINES if row[0] == "nccl")
    kept = scan("nccl", log, limit=6)
    assert len(kept) == 6
    assert {marker.says for marker in kept} == {"tcp", "efa", "intra_node"}


def test_text_is_clean_and_only_what_the_pattern_covers() -> None:
    log = "token=secret \x1b[31mUsing network Socket\x1b[0m password=secret\n"
    assert [marker.text for marker in scan("nccl", log)] == ["Using network Socket"]


def test_an_older_run_before_the_start_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("Using network Socket\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.write("Using network Libfabric\n")
    assert [marker.id for marker in scan("nccl", log, start=start)] == ["ofi_plugin_used"]


def test_a_missing_log_yields_nothing_and_says_so(tmp_path: Path) -> None:
    result = read("nccl", tmp_path / "none.log")
    assert result.markers == []
    assert result.complete is False


def test_a_line_across_two_pieces_is_found_whole() -> None:
    for offset in range(3500, 4200, 7):
        assert [m.id for m in scan("nccl", "x" * offset + " Using network Socket " + "y" * 9000)] == ["nccl_socket_used"], offset


def test_head_and_tail_of_a_huge_log_are_read_in_bounded_memory(tmp_path: Path) -> None:
    log = tmp_path / "huge.log"
    with log.open("wb") as file:
        file.write(b"NET/OFI Selected provider is tcp, fabric is x (found 1 nics)\n")
        file.truncate(1 << 32)
        file.seek(0, 2)
        file.write(b"\nUsing network Socket\n")
    tracemalloc.start()
    result = read("nccl", log)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.complete is False
    assert {marker.id for marker in result.markers} == {"ofi_provider_tcp", "nccl_socket_used"}
    assert peak < 3 * SCAN_BYTES


HOSTILE = ["via NET/Libfabric/", "intra-node cfg#1 am(tcp/", "Created 1 rails using provider=", "Selected provider is ",
           "NET/Plugin: Could not find: ", "Failed to initialize NET plugin ", "External network plugin ", "inter-node cfg#",
           "Discovered 1", "EFA device (libfabric): "]


@pytest.mark.parametrize("seed", HOSTILE)
def test_a_hostile_log_ends_in_time(seed: str) -> None:
    log = (seed + seed[-1] * 40) * ((2 << 20) // (len(seed) + 40))
    began = time.monotonic()
    for stack in load():
        read(stack, log)
    assert time.monotonic() - began < 30.0, "a pattern that backtracks takes minutes"


def test_the_scan_stops_at_its_deadline() -> None:
    log = "via NET/Libfabric/1\n" * 600_000
    began = time.monotonic()
    result = read("nccl", log, seconds=0.2)
    assert time.monotonic() - began < 2.0
    assert result.complete is False
    assert [marker.id for marker in result.markers] == ["ofi_channel_staged"]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=3000))
def test_any_bytes_can_be_scanned(data: bytes) -> None:
    for stack in load():
        for marker in scan(stack, data):
            assert marker.says in SAYS


@pytest.mark.parametrize(("expression", "problem"), [
    ("a.*b", "without bound"), ("a+", "without bound"), ("[ab]+c", "without bound"), (r"[^\]]*", "without bound"),
    ("a{3,}", "more than"), ("a{1,1000}", "more than"), ("(ab){2,3}", "a group"),
    (r"(a)\1", "refers back"), ("a{b", "brace")])
def test_expressions_that_may_take_long_are_refused(expression: str, problem: str) -> None:
    said = bounded(expression)
    assert said is not None
    assert problem in said


@pytest.mark.parametrize("expression", [r"a\*b", "[*+{]", r"\d{1,4}", "(?:a)?b", r"x\{y", r"[^\]+]{0,3}"])
def test_harmless_expressions_are_accepted(expression: str) -> None:
    re.compile(expression)
    assert bounded(expression) is None


@pytest.mark.parametrize(("text", "problem"), [
    ("nccl: 3", "a list of patterns"), ("[]", "a mapping of stacks"), ("nccl: [{id: a}]", "id, says, has, line, seen and source"),
    ("nccl: [{id: a, says: maybe, has: a, line: a, seen: x, source: y}]", "none of"),
    ("nccl: [{id: a, says: tcp, has: A, line: a, seen: x, source: y}]", "lower case"),
    ("nccl: [{id: a, says: tcp, has: a, line: 'a*', seen: x, source: y}]", "without bound"),
    ("nccl: [{id: a, says: tcp, has: a, line: '(a', seen: x, source: y}]", "broken"), ("nccl: [", "markers")])
def test_a_broken_pattern_file_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "markers.yaml"
    path.write_text(text)
    with pytest.raises(PatternError, match=re.escape(problem)):
        load(path)
