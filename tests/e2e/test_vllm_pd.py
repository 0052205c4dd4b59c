"""The canary before real prefill and decode: two vLLM servers (CPU build) over real NIXL, directly and behind the real smg.

One rig for the whole file (`e2e.serving.rig`). The model is random, so what it says means nothing, but it depends on every token of the
prompt and repeats exactly: the answer with KV from prefill must be that of a server which computed the prompt itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import realtools
from e2e import cell
from e2e.serving.asking import TOKENS, ask, eventually, good, idle, meter, moved_by, of_two, params, proof_of, stream_of
from e2e.serving.faulty_router import FaultyRouter, Wrong
from e2e.serving.nodes import Counters, Nodes
from e2e.serving.packets import Capture
from e2e.serving.rig import BLOCK, KV_BYTES_PER_TOKEN, Rig, RigError, install

from exporter.judge.transport import Transport
from probes.canary.client import measure, prefill_only
from probes.canary.pd.learn import learn, predict
from probes.canary.pd.provenance import prove
from probes.canary.prompt import compose
from probes.contract import WorkerEnv
from probes.processes import descendants
from probes.reasons import Outcome, Reason
from probes.result import decode

# The first test, and one that is run again by itself, also installs the engines and starts them.
pytestmark = pytest.mark.timeout(1800)

LEASE_SECONDS = 30.0
CALM_SECONDS = 60.0
"""For what an engine does within a second or two on a free machine."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    if why := cell.why_not():
        realtools.absent(why)
    try:
        install()
    except RigError as error:
        realtools.absent(str(error))
    with Rig(tmp_path_factory.mktemp("serving")) as made, made.inside():
        for _ in range(2):  # the first pair of requests pays for the handshake and for lazy imports
            ask(made, prompt_tokens=64)
        yield made


@pytest.fixture(scope="module")
def faulty(rig: Rig) -> Iterator[FaultyRouter]:
    with FaultyRouter(cell.ADDRESS, rig.prefill.url, rig.decode.url) as router:
        yield router


# ---------------------------------------------------------------------------------------------------------------------- what is well


def test_a_direct_pair_is_disaggregated_and_its_answer_is_the_right_one(rig: Rig) -> None:
    before = meter(rig.decode, "vllm:nixl_bytes_transferred_sum")
    report = ask(rig, reference=rig.decode.url)
    proof, stream = proof_of(report), stream_of(report)
    assert good(report), report.message
    assert (proof.disaggregation, proof.evidence) == ("yes", "counters"), proof.why
    assert stream.prompt_tokens is not None
    assert proof.kv_bytes == moved_by(stream.prompt_tokens)
    assert proof.integrity is not None
    assert (proof.integrity.verdict, proof.integrity.common_prefix) == ("ok", 1.0), proof.integrity
    assert proof.prefill is not None
    assert proof.decode is not None
    assert (proof.prefill.pod, proof.decode.pod, proof.decode.engine) == ("prefill-0", "decode-0", "vllm")
    assert proof.block_tokens == BLOCK
    assert proof.impure_tokens == (0, 0)
    assert meter(rig.decode, "vllm:nixl_bytes_transferred_sum") - before == proof.kv_bytes


def test_through_the_real_router_it_is_disaggregated_too(rig: Rig) -> None:
    with rig.router(labelled=True) as router:
        report = of_two(lambda: ask(rig, url=router.url, route="router", pages=(router.metrics,), reference=rig.decode.url),
                        lambda report: proof_of(report).disaggregation == "yes")
    proof = proof_of(report)
    assert good(report), report.message
    assert (proof.disaggregation, proof.evidence) == ("yes", "counters"), proof.why
    assert proof.integrity is not None
    assert proof.integrity.verdict == "ok", proof.integrity
    assert proof.kv_bytes == moved_by(stream_of(report).prompt_tokens or 0)


def test_decode_alone_is_a_baseline_and_nothing_to_disaggregate(rig: Rig) -> None:
    report = ask(rig, route="baseline")
    assert good(report), report.message
    assert proof_of(report).disaggregation is None
    assert not proof_of(report).kv_bytes


def test_provenance_is_proven_twenty_times_of_twenty(rig: Rig) -> None:
    said = [prove(params(rig, prompt_tokens=200), [], seconds=120.0) for _ in range(20)]
    assert [one.says for one in said] == ["moved"] * 20, said


def test_a_canary_can_carry_the_provenance_test(rig: Rig) -> None:
    proof = proof_of(ask(rig, provenance=True))
    assert (proof.disaggregation, proof.evidence) == ("yes", "provenance"), proof.why


def test_the_bytes_of_a_request_are_learned_within_two_percent_of_the_engines_own_count(rig: Rig) -> None:
    samples = []
    for tokens in (64, 200, 400, 900):
        report = ask(rig, prompt_tokens=tokens)
        proof, stream = proof_of(report), stream_of(report)
        assert good(report), report.message
        assert proof.kv_bytes, proof.why
        assert stream.prompt_tokens is not None
        samples.append((stream.prompt_tokens, proof.kv_bytes))
    learned = learn(samples, BLOCK)
    assert learned is not None
    assert learned.slope == pytest.approx(KV_BYTES_PER_TOKEN, rel=0.02)
    before = meter(rig.decode, "vllm:nixl_bytes_transferred_sum")
    report = ask(rig, prompt_tokens=640)
    counted = meter(rig.decode, "vllm:nixl_bytes_transferred_sum") - before
    assert predict(learned, stream_of(report).prompt_tokens or 0) == pytest.approx(counted, rel=0.02)


def test_ttft_and_tpot_are_those_of_the_packets(rig: Rig) -> None:
    """The capture is another program's view: the kernel's stamps of the bridge, and bytes taken apart by hand. A busy machine may hold the
    client between its mark and its write, which adds to a difference and never takes from it: the best of five counts."""
    prefill, decode_at = (f"{engine.address}:8000" for engine in (rig.prefill, rig.decode))
    differences = []
    for _ in range(5):
        with Capture("br0") as capture:
            run = measure(params(rig, max_tokens=24))
            time.sleep(0.3)
        asked = next(packet for packet in capture.sent(prefill) if packet.payload.startswith(b"POST"))
        events = [(packet.at, len(words.split())) for packet in capture.received(decode_at)
                  for words in re.findall(rb'"text":"([a-z ]+)"', packet.payload)]
        assert run.stream.status in ("ok", "disturbed"), run.message
        assert sum(words for _, words in events) == 24  # a word is a token; late ones share an event
        (first, alone), (last, _) = events[0], events[-1]
        if alone == 1 and run.stream.ttft is not None and run.stream.tpot is not None:
            differences.append((abs(run.stream.ttft - (first - asked.at) / 1e9), abs(run.stream.tpot - (last - first) / 1e9 / 23)))
    assert min(ttft for ttft, _ in differences) < 0.002, differences
    assert min(tpot for _, tpot in differences) < 0.0002, differences


def test_the_whole_worker_writes_a_document_that_says_it(rig: Rig, tmp_path: Path) -> None:
    spec = json.loads(params(rig).model_dump_json(exclude_defaults=True)) | {"pd": {"pages": [
        {"url": f"{engine.url}/metrics", "role": engine.name, "pod": engine.name} for engine in (rig.prefill, rig.decode)]}}
    env = WorkerEnv(run_id="pd-2", probe="canary", target="rig", node="here", deadline=240.0, spec=spec, result_path=tmp_path / "result")
    done = subprocess.run([sys.executable, "-m", "probes", "run"], env={**os.environ, **env.to_environ()}, capture_output=True, timeout=300,
                          check=False)
    assert done.returncode == 0, done.stderr.decode()
    result = decode((tmp_path / "result").read_bytes())
    assert result.outcome is not Outcome.FAILED, result.message
    assert result.pd is not None
    assert (result.pd.disaggregation, result.pd.evidence) == ("yes", "counters"), result.pd.why
    assert (tmp_path / "result").stat().st_size <= 4096


# ------------------------------------------------------------------------------------------------------- how the KV of the pair travels


@pytest.fixture(scope="module")
def nodes(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(rig, tmp_path_factory.mktemp("sysfs")) as made:
        yield made


@pytest.mark.parametrize(("counters", "slow", "transport"), [
    (Counters.FOLLOW, False, Transport.EFA_RDMA),
    (Counters.FOLLOW, True, Transport.EFA_RDMA),
    (Counters.FLAT, False, Transport.TCP),
    (Counters.BUSY, False, Transport.INDETERMINATE),
    (Counters.RESET, False, Transport.INDETERMINATE),
], ids=["efa", "slow efa", "tcp at full speed", "background", "reset"])
def test_the_transport_of_the_pair_is_that_of_its_counters_whatever_the_speed(rig: Rig, nodes: Nodes, counters: Counters, slow: bool,
                                                                               transport: Transport) -> None:
    nodes.counters = counters
    if slow:
        rig.slow_link("16mbit")
    try:
        began = time.monotonic()
        ask(rig, prompt_tokens=1500)
        # The witness compares with as long a time before: let it see one in which nothing moves.
        time.sleep(2.0 + 2.0 * (time.monotonic() - began))
        start = time.time()
        proof = proof_of(ask(rig, prompt_tokens=1500))
        end = time.time()
    finally:
        if slow:
            rig.free_link()
    assert proof.kv_bytes is not None, proof.why
    assert proof.kv_bytes > 2 << 20
    verdict = nodes.judge(proof, start, end)
    assert verdict.transport is transport, verdict.why


# --------------------------------------------------------------------------------------------------------- what is wrong, and is named


def test_a_router_in_passthrough_mode_is_named_though_every_answer_is_right(rig: Rig) -> None:
    with rig.router(labelled=False) as router:
        report = of_two(lambda: ask(rig, url=router.url, route="router", pages=(router.metrics,), reference=rig.decode.url),
                        lambda report: proof_of(report).disaggregation == "no")
    proof = proof_of(report)
    assert good(report), report.message
    assert proof.integrity is not None
    assert proof.integrity.verdict == "ok"
    assert (proof.disaggregation, proof.evidence) == ("no", "counters"), proof.why
    assert any(one.kind == "router_mode" and one.says == "no" and "passthrough" in one.text for one in proof.says), proof.says
    assert not proof.kv_bytes
    assert proof.impure_tokens is not None
    assert proof.impure_tokens[1] >= (stream_of(report).prompt_tokens or 0) - BLOCK


def test_dropped_kv_parameters_are_seen_as_recomputed_on_decode(rig: Rig, faulty: FaultyRouter) -> None:
    with faulty.doing(Wrong.DROPS_PARAMS):
        report = of_two(lambda: ask(rig, url=faulty.url, route="router", reference=rig.decode.url),
                        lambda report: proof_of(report).disaggregation == "no")
    proof = proof_of(report)
    assert good(report), report.message
    assert (proof.disaggregation, proof.evidence) == ("no", "counters"), proof.why
    assert proof.integrity is not None
    assert proof.integrity.verdict == "ok"


def test_a_stale_handle_gives_wrong_text_and_is_named_though_kv_moved(rig: Rig, faulty: FaultyRouter) -> None:
    report = ask(rig, url=faulty.url, route="router", reference=rig.decode.url)
    assert good(report), report.message
    with faulty.doing(Wrong.STALE_HANDLE):
        report = of_two(lambda: ask(rig, url=faulty.url, route="router", reference=rig.decode.url),
                        lambda report: report.reason is Reason.WRONG_CONTENT)
    assert report.reason is Reason.WRONG_CONTENT, report.message
    proof = proof_of(report)
    assert proof.integrity is not None
    assert proof.integrity.verdict == "mismatch"
    assert stream_of(report).status in ("ok", "disturbed")
    assert proof.failed_transfers == 0


def test_a_slow_link_shows_in_the_transfer_and_is_no_verdict_on_the_transport(rig: Rig) -> None:
    tokens = 1000
    healthy = [proof_of(ask(rig, prompt_tokens=tokens)).kv_bytes_per_second or 0.0 for _ in range(3)]
    rig.slow_link("4mbit")
    try:
        report = of_two(lambda: ask(rig, prompt_tokens=tokens), lambda report: (proof_of(report).kv_bytes_per_second or 1e12) < 0.6e6)
    finally:
        rig.free_link()
    slow = proof_of(report)
    assert good(report), report.message
    assert slow.disaggregation == "yes", slow.why
    assert slow.kv_bytes_per_second is not None
    assert slow.kv_bytes_per_second < 0.6e6  # 4 Mbit/s are half a megabyte a second
    assert slow.kv_bytes_per_second < max(healthy) / 3, healthy
    assert slow.kv_transfer is not None
    assert slow.kv_transfer > moved_by(tokens) / 0.6e6
    if not stream_of(report).disturbed:  # a client that was held up cannot say where its time went
        assert slow.transfer == pytest.approx(slow.kv_transfer, rel=0.01)


def test_a_stream_that_stalls_is_given_up_and_named(rig: Rig, faulty: FaultyRouter) -> None:
    with faulty.doing(Wrong.STALLS):
        report = ask(rig, url=faulty.url, route="router", max_tokens=64, stall_timeout=2.0)
    assert report.reason is Reason.TIMEOUT_STALL, report.message
    assert stream_of(report).token_events >= 4
    eventually(lambda: idle(rig.decode), CALM_SECONDS, "decode still works for a client that left")


def test_a_request_given_up_at_its_deadline_frees_its_blocks(rig: Rig) -> None:
    began = meter(rig.decode, "vllm:request_success_total", finished_reason="abort")
    report = ask(rig, prompt_tokens=1000, max_tokens=256, total_timeout=1.0, first_token_timeout=1.0, settle=0.0)
    assert report.reason in (Reason.TIMEOUT_TOTAL, Reason.TIMEOUT_FIRST_TOKEN), report.message
    eventually(lambda: idle(rig.decode), CALM_SECONDS, "decode keeps what an aborted canary used")
    # Where the deadline fell before the decode leg, the prefill server keeps the blocks until its lease ends.
    eventually(lambda: idle(rig.prefill), LEASE_SECONDS + CALM_SECONDS, "prefill keeps what an aborted canary used")
    assert meter(rig.decode, "vllm:request_success_total", finished_reason="abort") >= began
    assert good(ask(rig))


def test_a_day_of_canaries_leaks_no_blocks_no_sockets_and_no_memory(rig: Rig) -> None:
    """One request a minute and a long one every ten: 40 in a row stand for them, from a process that does not end in between."""
    running = [engine.process.pid for engine in (rig.prefill, rig.decode) if engine.process is not None]
    servers = [pid for one in running for pid in (one, *descendants(one))]

    def held() -> tuple[int, float]:
        sockets = sum(_sockets(pid) for pid in servers)
        resident = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in servers) * os.sysconf("SC_PAGE_SIZE") / 1e6
        return sockets, resident

    for number in range(4):
        assert good(ask(rig, prompt_tokens=1000 if number == 0 else 40))
    eventually(lambda: idle(rig.prefill, rig.decode), CALM_SECONDS, "not idle before the day began")
    sockets, resident = held()
    ours = _sockets(os.getpid())
    for number in range(40):
        run = measure(params(rig, prompt_tokens=1000 if number % 10 == 0 else 40, max_tokens=8))
        assert run.stream.status in ("ok", "disturbed"), run.message
    eventually(lambda: idle(rig.prefill, rig.decode), CALM_SECONDS, "blocks or requests are left")
    after, grown = held()
    assert _sockets(os.getpid()) == ours
    assert after <= sockets + 2
    assert grown < resident + 60, f"{resident:.0f} MB became {grown:.0f} MB"


def _sockets(pid: int) -> int:
    """Open sockets of a process."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += str(link.readlink()).startswith("socket:")
    return count


def test_an_orphaned_prefill_is_an_error_and_its_blocks_come_back_with_the_lease(rig: Rig, faulty: FaultyRouter) -> None:
    expired = meter(rig.prefill, "vllm:nixl_num_kv_expired_reqs_total")
    with faulty.doing(Wrong.ORPHANS):
        report = ask(rig, url=faulty.url, route="router", prompt_tokens=1000)
    assert report.reason is Reason.HTTP_SERVER_ERROR, report.message
    assert meter(rig.prefill, "vllm:kv_cache_usage_perc") > 0
    # The next canary tells of it: the pod whose counter grows while nobody else is there.
    found: list[int] = []
    until = time.monotonic() + LEASE_SECONDS + CALM_SECONDS
    while not sum(found) and time.monotonic() < until:
        found.append(proof_of(ask(rig, prompt_tokens=64)).expired or 0)
        found.append(round(meter(rig.prefill, "vllm:nixl_num_kv_expired_reqs_total") - expired))
    assert sum(found) >= 1
    eventually(lambda: idle(rig.prefill), CALM_SECONDS, "the orphan's blocks are still held")


# ------------------------------------------------------------------------------------------------- what ends a server; the order matters


def test_a_dead_prefill_server_is_an_error_object_in_a_200_and_a_refused_leg(rig: Rig) -> None:
    made = prefill_only(params(rig), compose(TOKENS, os.urandom(8), 0))
    assert made.fields is not None, made.message
    rig.kill(rig.prefill)
    run = measure(params(rig), prompt=compose(TOKENS, os.urandom(8), 0), given=made.fields)
    assert run.reason is Reason.ERROR_IN_STREAM, run.message
    assert run.stream.http_status == 200
    assert run.stream.token_events == 0
    report = ask(rig, settle=1.0)
    assert report.reason is Reason.CONNECT_FAILED, report.message
    assert "prefill" in report.message
    assert proof_of(report).disaggregation == "unknown"
    assert good(ask(rig, route="baseline"))  # decode itself is well
    assert meter(rig.decode, "vllm:nixl_num_failed_transfers_total") >= 1


def test_a_prefill_server_that_came_back_serves_again_within_two_canaries(rig: Rig) -> None:
    rig.start(rig.prefill)
    rig.wait_ready(rig.prefill)
    report = of_two(lambda: ask(rig, reference=rig.decode.url), good)
    assert good(report), report.message
    assert proof_of(report).disaggregation == "yes", proof_of(report).why
    assert proof_of(report).kv_bytes == moved_by(stream_of(report).prompt_tokens or 0)


def test_a_decode_server_killed_in_mid_stream_is_a_cut_answer_then_a_refused_one(rig: Rig) -> None:
    killer = threading.Thread(target=_kill_when_streaming, args=(rig,))
    killer.start()
    report = ask(rig, max_tokens=256, settle=1.0)
    killer.join(CALM_SECONDS)
    assert report.reason is Reason.TRUNCATED, report.message
    assert 0 < stream_of(report).token_events < 256
    assert proof_of(report).disaggregation == "unknown"
    assert ask(rig, settle=1.0).reason is Reason.CONNECT_FAILED


def _kill_when_streaming(rig: Rig) -> None:
    eventually(lambda: meter(rig.decode, "vllm:num_requests_running") > 0, CALM_SECONDS, "the request never ran")
    rig.kill(rig.decode)
