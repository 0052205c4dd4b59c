"""The closed list of reasons a run can end for, and the one outcome each belongs to.

`unknown` means "could not measure": it never feeds blame, baselines or SLOs. `failed` means the thing measured is bad.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Outcome(str, Enum):
    """How a run ended. The order of `SEVERITY` decides which rank speaks for a run."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"
    UNKNOWN = "unknown"

    @property
    def conclusive(self) -> bool:
        """Whether the run says anything about the thing it measured."""
        return self is not Outcome.UNKNOWN


SEVERITY = (Outcome.FAILED, Outcome.UNKNOWN, Outcome.DEGRADED, Outcome.OK)


class Reason(str, Enum):
    """Why a run ended as it did. Each reason belongs to exactly one outcome (`REASONS`)."""

    OK = "ok"

    # degraded: it works, worse than it should
    BELOW_FLOOR = "below_floor"
    BELOW_BASELINE = "below_baseline"
    TAIL_LATENCY = "tail_latency"
    FALLS_WITH_SIZE = "falls_with_size"
    EFA_NO_RDMA = "efa_no_rdma"
    EFA_PARTIAL = "efa_partial"
    NIC_IMBALANCE = "nic_imbalance"
    WRONG_LENGTH = "wrong_length"

    # failed: the thing measured is bad
    TCP_FALLBACK = "tcp_fallback"
    NOT_EFA = "not_efa"
    WRONG_CONTENT = "wrong_content"
    TRANSFER_FAILED = "transfer_failed"
    TRANSPORT_UNAVAILABLE = "transport_unavailable"
    ENGINE_ERROR = "engine_error"
    ENGINE_CRASHED = "engine_crashed"
    DEADLINE = "deadline"
    NO_ROWS = "no_rows"
    DEVICES_MISSING = "devices_missing"
    NODE_MISCONFIGURED = "node_misconfigured"
    CONNECT_FAILED = "connect_failed"
    TLS_FAILED = "tls_failed"
    HTTP_CLIENT_ERROR = "http_client_error"
    HTTP_SERVER_ERROR = "http_server_error"
    PROTOCOL_ERROR = "protocol_error"
    ERROR_IN_STREAM = "error_in_stream"
    TRUNCATED = "truncated"
    TIMEOUT_HEADER = "timeout_header"
    TIMEOUT_FIRST_TOKEN = "timeout_first_token"  # noqa: S105 - a reason, not a secret
    TIMEOUT_STALL = "timeout_stall"
    TIMEOUT_TOTAL = "timeout_total"
    FINISH_ERROR = "finish_error"
    FINISH_ABORT = "finish_abort"
    EMPTY_ANSWER = "empty_answer"

    # unknown: could not measure
    RANK_MISSING = "rank_missing"
    PEER_LOST = "peer_lost"
    RENDEZVOUS_FAILED = "rendezvous_failed"
    RENDEZVOUS_REFUSED = "rendezvous_refused"
    PORT_IN_USE = "port_in_use"
    ENGINE_MISSING = "engine_missing"
    ENGINE_INCOMPATIBLE = "engine_incompatible"
    GPU_MISSING = "gpu_missing"
    GPU_BUSY = "gpu_busy"
    CPU_STARVED = "cpu_starved"
    CANCELLED = "cancelled"
    KILLED = "killed"
    DIED_IN_LAUNCH = "died_in_launch"
    DIED_IN_RENDEZVOUS = "died_in_rendezvous"
    DIED_IN_SETUP = "died_in_setup"
    DIED_IN_MEASURE = "died_in_measure"
    DIED_IN_FINISH = "died_in_finish"
    NO_RESULT = "no_result"
    RESULT_UNREADABLE = "result_unreadable"
    RESULT_TOO_LARGE = "result_too_large"
    LAUNCH_FAILED = "launch_failed"
    BAD_SPEC = "bad_spec"
    IMPLAUSIBLE = "implausible"
    TRANSPORT_INDETERMINATE = "transport_indeterminate"
    SHED = "shed"
    DISTURBED = "disturbed"
    INTERNAL_ERROR = "internal_error"

    # unknown: the cluster did not give the run a place
    UNSCHEDULED = "unscheduled"
    NO_CAPACITY = "no_capacity"
    IMAGE_PULL = "image_pull"
    PREEMPTED = "preempted"
    EVICTED = "evicted"
    OOM_KILLED = "oom_killed"
    POD_LOST = "pod_lost"
    QUOTA = "quota"
    ADMISSION_DENIED = "admission_denied"


class ReasonInfo(NamedTuple):
    """One row of the table: the outcome, what it means, and the first thing to do about it."""

    outcome: Outcome
    meaning: str
    action: str


_D, _F, _U = Outcome.DEGRADED, Outcome.FAILED, Outcome.UNKNOWN

REASONS: dict[Reason, ReasonInfo] = {
    Reason.OK: ReasonInfo(Outcome.OK, "measured, on the right transport, fast enough, content right", "nothing"),
    Reason.BELOW_FLOOR: ReasonInfo(_D, "slower than the floor for this shape", "compare both partners with other peers; look at retransmits and NIC shares"),
    Reason.BELOW_BASELINE: ReasonInfo(_D, "far slower than such runs usually are", "compare both partners with other peers, and with what changed on them: `efa-pulse baseline show --node NAME`"),
    Reason.TAIL_LATENCY: ReasonInfo(_D, "the slowest operations take far longer than the fastest", "look for background traffic and CPU throttling in the window"),
    Reason.FALLS_WITH_SIZE: ReasonInfo(_D, "bandwidth falls where it should grow with size", "look for loss on the path and a wrong protocol choice"),
    Reason.EFA_NO_RDMA: ReasonInfo(_D, "EFA carried the bytes by send/receive emulation", "check libfabric and driver versions and FI_EFA_USE_DEVICE_RDMA"),
    Reason.EFA_PARTIAL: ReasonInfo(_D, "fewer NICs worked than were allocated", "compare devices seen with devices allocated; look at dmesg for the missing one"),
    Reason.NIC_IMBALANCE: ReasonInfo(_D, "one rail carried far less than the others", "look at the named device's counters and cable"),
    Reason.WRONG_LENGTH: ReasonInfo(_D, "the answer is shorter or longer than asked for", "compare max_tokens, usage and finish_reason"),
    Reason.TCP_FALLBACK: ReasonInfo(_F, "the payload went over TCP where EFA was required", "check the device plugin, the image's libfabric and the plugin pins"),
    Reason.NOT_EFA: ReasonInfo(_F, "the payload stayed inside one node where EFA was required", "the ranks ran on one node, or the tool chose shared memory"),
    Reason.WRONG_CONTENT: ReasonInfo(_F, "bytes or values arrived wrong", "stop trusting this path: drain the pair and compare each side with another partner"),
    Reason.TRANSFER_FAILED: ReasonInfo(_F, "the engine reported a failed transfer", "read the engine's message; check security group and memory registration"),
    Reason.TRANSPORT_UNAVAILABLE: ReasonInfo(_F, "the pinned transport does not start here", "check EFA devices in the pod, libfabric and the engine's build"),
    Reason.ENGINE_ERROR: ReasonInfo(_F, "the engine returned an error", "read the message and the log kept with the run"),
    Reason.ENGINE_CRASHED: ReasonInfo(_F, "the engine ended its process (abort, signal or exit)", "read the log kept with the run; check library versions"),
    Reason.DEADLINE: ReasonInfo(_F, "the engine did not finish before its deadline", "read in which phase it hung; check security group and peers"),
    Reason.NO_ROWS: ReasonInfo(_F, "the tool ended without a single usable measurement", "read its output: an unknown option or a missing library looks like this"),
    Reason.DEVICES_MISSING: ReasonInfo(_F, "fewer EFA devices than the instance type has", "look at the device plugin and dmesg; replace the instance"),
    Reason.NODE_MISCONFIGURED: ReasonInfo(_F, "the node lacks a limit, library or setting that EFA needs", "the message names each finding and its remedy"),
    Reason.CONNECT_FAILED: ReasonInfo(_F, "no connection to the endpoint", "check the address, the Service and the network policy"),
    Reason.TLS_FAILED: ReasonInfo(_F, "the TLS handshake failed", "check the certificate, its names and the configured CA"),
    Reason.HTTP_CLIENT_ERROR: ReasonInfo(_F, "the endpoint refused the request (4xx)", "check model name, key and path"),
    Reason.HTTP_SERVER_ERROR: ReasonInfo(_F, "the endpoint failed (5xx)", "look at the router and the engines behind it"),
    Reason.PROTOCOL_ERROR: ReasonInfo(_F, "the answer is not what the protocol allows", "look at what sits between canary and engine"),
    Reason.ERROR_IN_STREAM: ReasonInfo(_F, "an error object came inside a 200 answer", "look at the prefill side and at the engines' logs"),
    Reason.TRUNCATED: ReasonInfo(_F, "the stream ended without its end mark", "look for worker restarts and gateway timeouts"),
    Reason.TIMEOUT_HEADER: ReasonInfo(_F, "no response head in time", "look at queues and at the router"),
    Reason.TIMEOUT_FIRST_TOKEN: ReasonInfo(_F, "no first token in time", "look at prefill queues and KV transfer"),
    Reason.TIMEOUT_STALL: ReasonInfo(_F, "the stream stalled between tokens", "look at decode load and preemption"),
    Reason.TIMEOUT_TOTAL: ReasonInfo(_F, "the answer took longer than its total budget", "compare TPOT with its usual value"),
    Reason.FINISH_ERROR: ReasonInfo(_F, "the engine ended the answer with finish_reason error", "look at the engine's log"),
    Reason.FINISH_ABORT: ReasonInfo(_F, "the engine aborted the answer", "look at KV transfer failures"),
    Reason.EMPTY_ANSWER: ReasonInfo(_F, "a 200 answer without a single token", "look at the prefill to decode hand-over"),
    Reason.RANK_MISSING: ReasonInfo(_U, "a rank of the run never arrived", "look at why that pod or process did not start"),
    Reason.PEER_LOST: ReasonInfo(_U, "the partner went away during the run", "read the partner's own result"),
    Reason.RENDEZVOUS_FAILED: ReasonInfo(_U, "the ranks could not reach each other", "check name resolution and the network policy for probe pods"),
    Reason.RENDEZVOUS_REFUSED: ReasonInfo(_U, "a rank was refused: wrong token, run id or size", "check that every rank mounts the same secret"),
    Reason.PORT_IN_USE: ReasonInfo(_U, "the rendezvous port is taken", "choose another port, or find what holds it"),
    Reason.ENGINE_MISSING: ReasonInfo(_U, "the engine is not installed", "install it, or run the probe in an image that has it"),
    Reason.ENGINE_INCOMPATIBLE: ReasonInfo(_U, "the engine does not load here", "the message names the library or version that is missing"),
    Reason.GPU_MISSING: ReasonInfo(_U, "no GPU is visible", "check the device request and the driver"),
    Reason.GPU_BUSY: ReasonInfo(_U, "another process holds the GPU or its memory", "nothing: production wins; the probe comes again"),
    Reason.CPU_STARVED: ReasonInfo(_U, "the worker got too little CPU to measure", "raise the probe's CPU limit or move it"),
    Reason.CANCELLED: ReasonInfo(_U, "stopped on request before it ended", "nothing"),
    Reason.KILLED: ReasonInfo(_U, "the engine process was killed from outside", "look for the OOM killer and for whoever sent the signal"),
    Reason.DIED_IN_LAUNCH: ReasonInfo(_U, "the worker died before it did anything", "look at the pod's state"),
    Reason.DIED_IN_RENDEZVOUS: ReasonInfo(_U, "the worker died while meeting its peers", "look at the pod's state"),
    Reason.DIED_IN_SETUP: ReasonInfo(_U, "the worker died while the engine started", "look at the pod's state and memory limit"),
    Reason.DIED_IN_MEASURE: ReasonInfo(_U, "the worker died while measuring", "look at the pod's state and memory limit"),
    Reason.DIED_IN_FINISH: ReasonInfo(_U, "the worker died after measuring", "look at the pod's state"),
    Reason.NO_RESULT: ReasonInfo(_U, "the worker ended without a result", "look at the worker's log"),
    Reason.RESULT_UNREADABLE: ReasonInfo(_U, "the result document cannot be read", "compare the versions of exporter and probe image"),
    Reason.RESULT_TOO_LARGE: ReasonInfo(_U, "the result does not fit the termination message", "measure fewer sizes in one run"),
    Reason.LAUNCH_FAILED: ReasonInfo(_U, "the run could not be started", "read the message"),
    Reason.BAD_SPEC: ReasonInfo(_U, "the probe does not accept its parameters", "run check-config"),
    Reason.IMPLAUSIBLE: ReasonInfo(_U, "a figure no hardware of this kind can reach", "the layout of the ranks or the tool's output is not what it seems"),
    Reason.TRANSPORT_INDETERMINATE: ReasonInfo(_U, "the transport could not be proven", "check that the witness runs on both nodes"),
    Reason.SHED: ReasonInfo(_U, "the endpoint shed the canary (429 or 503)", "nothing, unless it lasts: the endpoint is full"),
    Reason.DISTURBED: ReasonInfo(_U, "the client's own timing was disturbed", "give the canary more CPU"),
    Reason.INTERNAL_ERROR: ReasonInfo(_U, "efa-pulse itself failed", "report it with the message"),
    Reason.UNSCHEDULED: ReasonInfo(_U, "not all ranks got a node in time", "look at the scheduler's message"),
    Reason.NO_CAPACITY: ReasonInfo(_U, "no room for the probe on the node", "nothing: production wins; the probe comes again"),
    Reason.IMAGE_PULL: ReasonInfo(_U, "the probe image could not be pulled", "check the image name, its registry and pull secrets"),
    Reason.PREEMPTED: ReasonInfo(_U, "production took the probe's place", "nothing"),
    Reason.EVICTED: ReasonInfo(_U, "the kubelet evicted the probe", "look at the node's pressure"),
    Reason.OOM_KILLED: ReasonInfo(_U, "the probe ran out of its memory limit", "raise the limit or measure smaller blocks"),
    Reason.POD_LOST: ReasonInfo(_U, "the probe pod vanished", "look at the node"),
    Reason.QUOTA: ReasonInfo(_U, "a quota refused the probe pod", "raise the quota of the probe namespace"),
    Reason.ADMISSION_DENIED: ReasonInfo(_U, "an admission rule refused the probe pod", "read the message; check pod security labels"),
}

DIED_IN: dict[str, Reason] = {
    "launch": Reason.DIED_IN_LAUNCH,
    "rendezvous": Reason.DIED_IN_RENDEZVOUS,
    "setup": Reason.DIED_IN_SETUP,
    "measure": Reason.DIED_IN_MEASURE,
    "finish": Reason.DIED_IN_FINISH,
}


def outcome_of(reason: Reason) -> Outcome:
    """The one outcome `reason` belongs to."""
    return REASONS[reason].outcome


LOSSES = frozenset({Reason.CANCELLED, Reason.KILLED, Reason.OOM_KILLED, Reason.PREEMPTED, Reason.EVICTED, Reason.POD_LOST, Reason.NO_RESULT,
                    *DIED_IN.values()})
"""A rank was taken away from outside: whatever its partners saw after that is an echo, even a failed transfer."""

ECHOES = frozenset({Reason.PEER_LOST, Reason.RANK_MISSING})
"""What a rank says when another one is the cause."""


def worst(reasons: list[Reason]) -> Reason:
    """The reason that speaks for a run of several ranks.

    Wrong content speaks first: it is proven. Then a lost rank (its partners' failures follow from it), then failed, unknown, degraded, ok; an echo only when nothing else
    explains it. An empty list means nobody reported: `no_result`.
    """

    def rank(reason: Reason) -> tuple[int, int]:
        if reason is Reason.WRONG_CONTENT:
            return (-1, 0)  # proven, whatever happened afterwards
        if reason in LOSSES:
            return (0, int(reason is Reason.CANCELLED))  # the launcher cancels the partners of a rank that was killed
        return (1 + SEVERITY.index(outcome_of(reason)), int(reason in ECHOES))

    return min(reasons, key=rank, default=Reason.NO_RESULT)
