"""Runs in a cluster from wherever a kubeconfig works: the same gates, fence and Jobs as the service's, with live progress.

What was started is deleted at the end, also after Ctrl-C, SIGTERM and a closed terminal. The Jobs are labelled `launched-by=cli`: the
service never adopts or deletes them, its gates see them, and the scheduler's anti-affinity keeps them apart from its own.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer
from rich.console import Console

from exporter import config as configurations
from exporter.cli.exits import NotMeasuredError, UsageError
from exporter.cli.progress import Progress, status
from exporter.config import Config
from exporter.config.quiet import holding as quiet_now
from exporter.inventory.kubernetes import KubernetesInventory
from exporter.inventory.model import Node
from exporter.judge.judge import judge
from exporter.judge.verdict import Verdict
from exporter.kube import pause
from exporter.kube.api import Api, ApiError, ClusterError, configuration
from exporter.launch.claims import claim_of
from exporter.launch.kubernetes import CLI, KubernetesLauncher
from exporter.launch.manifest import Claim, job_deadline
from exporter.plan.gates import Closed, Moment, closed
from exporter.plan.needs import needs_of
from exporter.plan.probes import spec_of
from exporter.runs import Run, RunSpec, new_run_id
from exporter.validation import forced, holding
from exporter.witness import Witnesses
from probes.contract import Transport
from probes.efa import instances

NodesOption = Annotated[str | None, typer.Option("--nodes", metavar="NODE,...", help="Run on these nodes of the cluster.")]
KubeconfigOption = Annotated[Path | None, typer.Option(help="Kubeconfig file; default: $KUBECONFIG, else the user's own.")]
ContextOption = Annotated[str | None, typer.Option(help="Context of the kubeconfig; default: its current one.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="The service's configuration file: pods, gates, parameters.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Run in spite of a pause, a quiet window and other gates that only protect "
                                                           "schedules. An excluded or cordoned node is never probed.")]

SYNC_SECONDS = 60.0
LOOK_SECONDS = 0.2
SETTLE_SECONDS = 15.0
SLACK_SECONDS = 240.0
ASKERS = 8


@dataclass(frozen=True)
class Place:
    """The cluster that the options of a command name."""

    kubeconfig: Path | None = None
    context: str | None = None
    config: Path | None = None

    def load(self) -> Config:
        """The configuration file, or the defaults. Files and secrets that it names are the service's own: they need not be here."""
        return configurations.load(self.config, references=False) if self.config is not None else Config()

    def connect(self, config: Config) -> Api:
        """The API server, spoken to once. Raises UsageError without a usable kubeconfig, NotMeasuredError when it does not answer."""
        kube = config.kubernetes
        try:
            api = Api(configuration(self.kubeconfig or kube.kubeconfig, self.context or kube.context))
        except ClusterError as error:
            raise UsageError(str(error)) from None
        try:
            api.get("/version")
        except ApiError as error:
            api.close()
            raise NotMeasuredError(f"{error}; check the kubeconfig and its context") from None
        return api


@dataclass(frozen=True)
class Asked:
    """What a command asks of each run: parameters beside those of the configuration; None takes the configuration's."""

    given: dict[str, Any]
    transport: Transport | None = None
    deadline: float | None = None


def node_names(text: str) -> tuple[str, ...]:
    """The names in `a,b`. Raises UsageError."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise UsageError("--nodes needs the name of a node, such as --nodes ip-10-0-1-2.ec2.internal")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"--nodes names {twice[0]} twice: a node has one probe at a time")
    return names


class ClusterRunner(AbstractContextManager["ClusterRunner"]):
    """Runs probes in a cluster. Leaves no Job behind when it is closed or interrupted."""

    def __init__(self, place: Place, console: Console, *, force: bool = False, config: Config | None = None) -> None:
        self.config = config or place.load()
        self._console, self._force = console, force
        self._kube = self.config.kubernetes
        self._needs = needs_of(self._kube.pods)
        self._api = place.connect(self.config)
        self._finished: queue.SimpleQueue[Run] = queue.SimpleQueue()
        self._progress = Progress(console)
        self._used: set[str] = set()
        self._parts = contextlib.ExitStack()
        self._parts.callback(self._api.close)

    def __enter__(self) -> ClusterRunner:
        with contextlib.ExitStack() as stack:
            stack.callback(self._parts.close)
            self._parts.enter_context(_interrupts())
            images = sorted({need.image for need in self._needs.values() if need.image is not None})
            self._inventory = KubernetesInventory(self._api, self._kube, images=images)
            self._parts.callback(self._inventory.close)
            self._inventory.start()
            self._witnesses = Witnesses(self._api, self._kube, through_api=True) if self._kube.witness.enabled else None
            if self._witnesses is not None:
                self._parts.callback(self._witnesses.close)
                self._witnesses.start()
            self._askers = ThreadPoolExecutor(ASKERS, thread_name_prefix="judge")
            self._parts.callback(self._askers.shutdown, wait=False, cancel_futures=True)
            self._launcher = KubernetesLauncher(self._api, self._kube, self._finished.put, claims=self._claim, launched_by=CLI,
                                                tolerations=self.config.planning.gates.tolerations, on_progress=self._progress.said)
            self._parts.callback(self._end_jobs)
            self._sync()
            stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._parts.close()

    def nodes(self, names: Sequence[str]) -> tuple[Node, ...]:
        """These nodes, by name or instance id. Raises UsageError for one that is not there or no EFA node."""
        snapshot = self._inventory.snapshot()
        found: list[Node] = []
        for name in names:
            node = snapshot.named(name) or snapshot.get(name)
            if node is None:
                raise UsageError(self._stranger(name))
            found.append(node)
        if len({node.name for node in found}) < len(found):
            raise UsageError(f"--nodes {','.join(names)} names one node twice: a node has one probe at a time")
        return tuple(found)

    def closed(self, probe: str, nodes: Iterable[Node]) -> list[tuple[Node, Closed]]:
        """The gates that keep `probe` off these nodes now, those left out that `--force` opens; the others are told on the console."""
        nodes = tuple(nodes)
        now = self._settled([node.name for node in nodes])
        moment = self._moment(probe, list(now.values()))
        found = [(node, Closed("draining", "the node has left the cluster")) for node in nodes if node.name not in now]
        for node in now.values():
            shut = closed(node, self._needs[probe], moment)
            stopping = holding(shut, force=self._force)
            found += [(node, one) for one in stopping]
            for one in shut:
                if one not in stopping:
                    self._console.print(f"{node.name}: {one} (passed over by --force)", markup=False, style="yellow")
        return found

    def spec(self, probe: str, nodes: tuple[Node, ...], asked: Asked) -> RunSpec:
        """The run of `probe` on these nodes, rank by rank, by the configuration and what the command asks for."""
        section = dict(self.config.probes.items())[probe]  # type: ignore[index]
        params = section.params.model_dump(mode="json", exclude_unset=True)
        known = spec_of(section_name(probe), params)(nodes)
        names = tuple(node.name for node in nodes)
        return RunSpec(new_run_id(probe), probe, "--".join(names), names, asked.transport or section.transport,
                       asked.deadline or section.deadline, {**known, **asked.given},
                       {"why": "cli", "instance-ids": ",".join(node.instance_id for node in nodes)})

    def run(self, specs: Sequence[RunSpec]) -> list[Verdict]:
        """These runs at the same time, from start to verdict, in the order given. Progress goes to the console."""
        self._used.update(name for spec in specs for name in spec.nodes)
        limit = time.monotonic() + max((job_deadline(spec, self._kube) for spec in specs), default=0) + SLACK_SECONDS
        judged: dict[str, Future[Verdict]] = {}
        with self._progress.shown(specs):
            for spec in specs:
                self._launcher.start(spec)
            while not (len(judged) == len(specs) and all(future.done() for future in judged.values())):
                try:
                    ended = self._finished.get(timeout=LOOK_SECONDS)
                except queue.Empty:
                    self._progress.refresh()
                else:
                    self._launcher.release(ended.spec.run_id)
                    judged[ended.spec.run_id] = self._askers.submit(self._judge, ended)
                if time.monotonic() > limit:
                    raise RuntimeError(f"runs did not come back: {', '.join(self._launcher.running()) or 'none runs'}")
        return [judged[spec.run_id].result() for spec in specs]

    def _judge(self, run: Run) -> Verdict:
        snapshot = self._inventory.snapshot()
        found = [snapshot.named(name) for name in run.spec.nodes]
        types = {node.name: node.instance_type for node in found if node is not None}
        answers = {}
        if self._witnesses is not None and any(result.measure is not None for result in run.results):
            self._progress.note(run.spec.run_id, "asking the witnesses")
            answers = dict(self._witnesses.answers(run))
        return judge(run, floors=self.config.thresholds.floors, instance_types=types, answers=answers,
                     rdma_hardware=instances.all_rdma(types.values()))

    def _settled(self, names: Sequence[str]) -> dict[str, Node]:
        """These nodes as they are now, those that are there. A pod of ours that just ended is given time to be gone from its node."""
        until = time.monotonic() + SETTLE_SECONDS
        while True:
            snapshot = self._inventory.snapshot()
            now = {name: node for name in names if (node := snapshot.named(name)) is not None}
            if time.monotonic() > until or not any(node.probe_pods for name, node in now.items() if name in self._used):
                return now
            time.sleep(LOOK_SECONDS)

    def _moment(self, probe: str, nodes: Sequence[Node]) -> Moment:
        try:
            paused = pause.read(self._api, self._kube.namespace)
        except ApiError as error:
            raise NotMeasuredError(f"whether probing is paused cannot be read: {error}") from None
        section = dict(self.config.probes.items())[probe]  # type: ignore[index]
        window = quiet_now(section.schedule.when(self.config.schedule).quiet, datetime.now(timezone.utc))
        rates = self._witnesses.background([node.name for node in nodes]) if self._witnesses is not None else {}
        return Moment(self._api.now(), self.config.planning.gates, str(paused) if paused is not None else None,
                      (window.reason or "quiet window") if window is not None else None,
                      {node.instance_id: rates[node.name] for node in nodes if node.name in rates})

    def _claim(self, spec: RunSpec) -> Claim:
        return claim_of(spec, self.nodes(spec.nodes), self._kube)

    def _sync(self) -> None:
        """Read the cluster. Raises NotMeasuredError with what is missing, at once where the API server refuses."""
        kube = self._kube
        rights = f"it takes the rights to list nodes and pods, and to create, watch and delete Jobs in namespace {kube.probe_namespace}"
        try:
            for path in ("/api/v1/nodes", "/api/v1/pods", f"/apis/batch/v1/namespaces/{kube.probe_namespace}/jobs"):
                self._api.get(path, {"limit": 1})
            self._api.get(f"/api/v1/namespaces/{kube.probe_namespace}/configmaps/{kube.anchor}")
        except ApiError as error:
            if error.not_found:
                raise NotMeasuredError(f"{error}; is efa-pulse installed there? --config names its namespaces "
                                       "(kubernetes.probe_namespace)") from None
            raise NotMeasuredError(f"{error}; {rights}") from None
        until = time.monotonic() + SYNC_SECONDS
        waits = [self._inventory.wait, self._launcher.wait, *([self._witnesses.wait] if self._witnesses is not None else [])]
        with status(self._console, "reading the cluster"):
            if not all(wait(max(0.0, until - time.monotonic())) for wait in waits):
                trouble = self._inventory.trouble or self._launcher.trouble or "no answer"
                raise NotMeasuredError(f"the cluster could not be read within {SYNC_SECONDS:g} s: {trouble}; {rights}")

    def _end_jobs(self) -> None:
        if self._launcher.running():
            self._console.print("deleting what was started", style="dim")
        with _deaf():
            self._launcher.close(0)

    def _stranger(self, name: str) -> str:
        try:
            self._api.get(f"/api/v1/nodes/{name}")
        except ApiError as error:
            if not error.not_found:
                return f"node {name}: {error}"
            known = sorted(node.name for node in self._inventory.snapshot())
            shown = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
            return f"there is no node {name}; EFA nodes are {shown or 'none'}"
        selector = ", ".join(f"{key}={value}" for key, value in self._kube.node_selector.items())
        return (f"node {name} lists no EFA devices ({self._kube.efa_resource}, or ResourceSlices)"
                + (f" and does not have the labels {selector}" if selector else "")
                + ": is the device plugin there? kubernetes.node_selector names nodes that have none yet")


def section_name(probe: str) -> Any:
    """The probe's name as the configuration spells it. Raises UsageError for one that does not run in pods."""
    if probe not in ("node", "mooncake", "nixl", "nccl", "uccl-ep"):
        raise UsageError(f"probe {probe} does not run on nodes")
    return probe


def stopped(found: Iterable[tuple[Node, Closed]]) -> str:
    """Closed gates in words, and whether `--force` would help."""
    pairs = list(found)
    text = "; ".join(f"{node.name}: {one}" for node, one in pairs)
    return text + (" (--force runs all the same)" if pairs and forced(one for _, one in pairs) else "")


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """SIGTERM and SIGHUP end the command the way Ctrl-C does: with everything that it started deleted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Nothing interrupts the deletion of what was started; it has a deadline of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
