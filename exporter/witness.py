"""The witnesses of the cluster: where they are, what they counted in the window of a run, how busy a node's EFA devices are.

A witness is a pod of a DaemonSet in the probe namespace (`python -m probes.witness`). Questions go to the pod of the node, in parallel,
each with a deadline; a node without a witness, or with one that does not answer, is told apart from one that counted nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from urllib.parse import parse_qsl

from exporter.config.kubernetes import Kubernetes
from exporter.kube.api import Api, ApiError, Json
from exporter.kube.watch import Watch
from exporter.runs import Run
from probes.efa.window import CounterWindow, Get, NoAnswer, WitnessAnswer, ask
from probes.result import Result

WAIT_FOR_BACKGROUND = 30.0
"""Seconds after a run in which its witnesses are asked for the background after it."""
LOOK_BACK_SECONDS = 30.0
SETTLE_SECONDS = 2.0
ASKERS = 16
CANARY = "canary"
WIRE = ("tx_bytes", "rx_bytes")


@dataclass(frozen=True, slots=True)
class WitnessPod:
    """One witness. Its address is empty while it is not ready."""

    node: str
    address: str
    name: str = ""


class Witnesses:
    """Follows the witness pods and asks them: at their addresses, or `through_api` from where pods cannot be reached.

    The second way needs the right to get `pods/proxy` in the probe namespace.
    """

    def __init__(self, api: Api, config: Kubernetes, *, through_api: bool = False) -> None:
        self._api, self._config, self._through_api = api, config, through_api
        selector = ",".join(f"{key}={value}" for key, value in config.witness.selector.items())
        self._pods: Watch[WitnessPod] = Watch(api, f"/api/v1/namespaces/{config.probe_namespace}/pods", _witness_pod,
                                              query={"labelSelector": selector})
        self._askers = ThreadPoolExecutor(ASKERS, thread_name_prefix="witness")

    def start(self) -> None:
        """Begin to follow the pods."""
        self._pods.start()

    def wait(self, seconds: float) -> bool:
        """Wait until the pods were read once. Returns whether they were."""
        return self._pods.wait(seconds)

    def close(self) -> None:
        """Ask nobody any more."""
        self._pods.close()
        self._askers.shutdown(wait=False, cancel_futures=True)

    def nodes(self) -> dict[str, bool]:
        """The nodes that have a witness, and whether it is ready."""
        return {pod.node: bool(pod.address) for pod in self._pods.items().values()}

    def answers(self, run: Run) -> Mapping[str, WitnessAnswer | NoAnswer | None]:
        """By node of the run's results: what its witness counted in the measure window, why that is not known, or None without a witness.

        Blocks for at most about `WAIT_FOR_BACKGROUND` seconds: call it from a thread of its own.
        """
        spans = _spans(run)
        pods = {pod.node: pod for pod in self._pods.items().values()}
        longest = max((span.end - span.start for span in spans.values()), default=0.0)
        limit = min(WAIT_FOR_BACKGROUND, longest) + self._config.witness.timeout
        found: dict[str, WitnessAnswer | NoAnswer | None] = {}
        asked: dict[str, Future[WitnessAnswer | NoAnswer]] = {}
        for node, span in spans.items():
            pod = pods.get(node)
            if pod is None or not pod.address:
                found[node] = None if pod is None else NoAnswer(f"the witness on node {node} is not ready")
            else:
                asked[node] = self._askers.submit(ask, self._endpoint(pod), span.start, span.end, started=span.started, ended=span.ended,
                                                  deadline=limit, get=self._way(pod))
        wait(asked.values(), timeout=limit + self._config.witness.timeout)
        for node, future in asked.items():
            found[node] = future.result() if future.done() else NoAnswer("the witness was not asked in time")
        return found

    def background(self, nodes: Iterable[str]) -> dict[str, float]:
        """Bytes per second that each node's EFA devices sent or received of late, whichever is more; nodes that cannot tell are left out.

        Blocks for at most about the witness's timeout.
        """
        wanted, until, timeout = set(nodes), time.time() - SETTLE_SECONDS, self._config.witness.timeout
        asked = {pod.node: self._askers.submit(ask, self._endpoint(pod), until - LOOK_BACK_SECONDS, until, deadline=timeout,
                                               get=self._way(pod))
                 for pod in self._pods.items().values() if pod.node in wanted and pod.address}
        wait(asked.values(), timeout=2 * timeout)
        answers = {node: future.result() for node, future in asked.items() if future.done()}
        rates = {node: _rate(answer.window) for node, answer in answers.items() if isinstance(answer, WitnessAnswer)}
        return {node: rate for node, rate in rates.items() if rate is not None}

    def _way(self, pod: WitnessPod) -> Get | None:
        """How to ask a witness through the API server; None where its address can be reached."""
        if not self._through_api:
            return None
        base = f"/api/v1/namespaces/{self._config.probe_namespace}/pods/{pod.name}:{self._config.witness.port}/proxy"

        def get(target: str, seconds: float) -> tuple[int, bytes]:
            path, _, query = target.partition("?")
            try:
                return 200, json.dumps(self._api.get(base + path, dict(parse_qsl(query)), timeout=seconds)).encode()
            except ApiError as error:
                if not error.status:
                    raise OSError(str(error)) from None
                said = error.message.partition(": ")[2]
                # What the witness itself refuses is passed on as it is; the rest is the API server's own word.
                return error.status, said.encode() if said.startswith("{") else json.dumps({"error": said}).encode()

        return get

    def _endpoint(self, pod: WitnessPod) -> str:
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        return f"{host}:{self._config.witness.port}"


@dataclass(frozen=True)
class _Span:
    """The measure window of a node's ranks, and their whole time, Unix seconds of that node."""

    start: float
    end: float
    started: float
    ended: float


def _spans(run: Run) -> dict[str, _Span]:
    found: dict[str, _Span] = {}
    for result in run.results:
        if result.measure is not None:
            own = _Span(result.measure.start, result.measure.end, result.started, result.finished)
            for node in witnessed(result):
                other = found.get(node, own)
                found[node] = _Span(min(own.start, other.start), max(own.end, other.end), min(own.started, other.started),
                                    max(own.ended, other.ended))
    return found


def witnessed(result: Result) -> tuple[str, ...]:
    """The nodes whose counters speak of a result: its own; of a canary those of the prefill and the decode pod whose KV is known."""
    if result.probe != CANARY:
        return (result.node,)
    pd = result.pd
    if pd is None or pd.disaggregation != "yes" or pd.prefill is None or pd.decode is None:
        return ()
    if pd.prefill.node is None or pd.decode.node is None or not (pd.kv_bytes or pd.expected_kv_bytes):
        return ()
    return tuple(dict.fromkeys((pd.prefill.node, pd.decode.node)))


def _rate(window: CounterWindow) -> float | None:
    """The busier direction of all devices together, bytes per second; None when a device does not tell."""
    sums: list[int] = []
    for name in WIRE:
        values = [device.counters.get(name) for device in window.devices.values()]
        if not values or any(value is None for value in values):
            return None
        sums.append(sum(value for value in values if value is not None))
    return max(sums) / (window.end - window.start)


def _witness_pod(pod: Json) -> WitnessPod | None:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in {"Succeeded", "Failed"}:
        return None
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or [])
    return WitnessPod(str(spec["nodeName"]), str(status.get("podIP") or "") if ready else "", str((pod.get("metadata") or {}).get("name")))
