"""The Kubernetes launcher: each run is one Indexed Job; results come from pod status.

One thread owns every run and decides; two watches (Jobs, pods) and a few threads that send requests only hand it events. What it knows can
be lost at any moment: everything needed to go on lies on the Jobs themselves, and `start` twice under one name is one Job.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from exporter.config.kubernetes import Kubernetes
from exporter.config.planning import Toleration
from exporter.kube.api import Api, ApiError
from exporter.kube.watch import Change, Watch
from exporter.launch import OnFinished, names
from exporter.launch.book import GOING, Book, Progress
from exporter.launch.flight import Flight, JobView, Stage, job_view
from exporter.launch.manifest import ManifestError
from exporter.launch.outbox import Event, Outbox
from exporter.launch.podstate import Ending, PodView, refusal, view
from exporter.launch.requests import ClaimOf, JobRequests
from exporter.runs import Run, RunSpec
from probes.reasons import Reason

SERVICE, CLI = "service", "cli"
TICK_SECONDS = 0.5
FIRST_RETRY, LONGEST_RETRY = 0.5, 10.0
SYNC_SECONDS = 60.0
CLOSE_SECONDS = 20.0

log = logging.getLogger(__name__)


class KubernetesLauncher:
    """See `Launcher`. Beyond it:

    `adopt` takes over the Jobs that are there; `release` says that a run's result is durable, whereupon its Job is deleted; `close` leaves
    the Jobs of the service to whoever comes next (`launched_by` cli: cancels them). `claims` tells the devices of a run's workers,
    `on_progress` gets each rank's state in words whenever it changes.
    """

    def __init__(self, api: Api, config: Kubernetes, on_finished: OnFinished, *, claims: ClaimOf, tolerations: Sequence[Toleration] = (),
                 launched_by: str = SERVICE, on_progress: Progress | None = None, clock: Callable[[], float] = time.monotonic,
                 requests: type[JobRequests] = JobRequests) -> None:
        self._api, self._config, self._on_finished = api, config, on_finished
        self._launched_by, self._clock = launched_by, clock
        self._requests = requests(api, config, claims, tolerations, launched_by)
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._book = Book(on_progress)
        self._known: Callable[[str], bool] | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._outbox = Outbox(self._inbox, ManifestError)
        mine = f"{names.INSTALL}={config.install}"
        self._jobs: Watch[JobView] = Watch(api, self._requests.path, job_view, query={"labelSelector": mine},
                                           on_change=lambda changes: self._inbox.put(Event("jobs", changes)))
        self._pods: Watch[PodView] = Watch(api, f"/api/v1/namespaces/{config.probe_namespace}/pods", view,
                                           query={"labelSelector": f"{mine},{requests.PODS}"},
                                           on_change=lambda changes: self._inbox.put(Event("pods", changes)))
        self._handlers = {"start": lambda _: None, "cancel": self._on_cancel, "release": self._on_release, "adopt": self._on_adopt,
                          "stand_down": self._on_stand_down, "jobs": self._on_jobs, "pods": self._on_pods, "created": self._on_created,
                          "deleted": self._on_deleted, "checked": self._on_checked}
        self._thread = threading.Thread(target=self._run, name="kube-launcher", daemon=True)
        self._jobs.start()
        self._pods.start()
        self._thread.start()

    def start(self, spec: RunSpec) -> None:
        """See `Launcher.start`. Raises RuntimeError when the launcher is closed."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the launcher is closed")
        self._book.wait(spec)
        self._inbox.put(Event("start"))

    def cancel(self, run_id: str) -> None:
        """See `Launcher.cancel`."""
        self._inbox.put(Event("cancel", run_id))

    def release(self, run_id: str) -> None:
        """The run's result is durable: its Job may go. Unknown ids are ignored."""
        self._inbox.put(Event("release", run_id))

    def adopt(self, known: Callable[[str], bool]) -> None:
        """Go on with every Job of this installation that the service launched, now and whenever one is found that is not ours.

        Those whose run id is `known` have a durable result and are deleted, as is what cannot be read; what was reported and is not known
        is reported again. Until this is called, Jobs that this launcher did not start are left alone.
        """
        self._inbox.put(Event("adopt", known))

    def stand_down(self) -> None:
        """Somebody else leads: report, adopt and delete nothing any more, until `adopt` is called again. The Jobs stay."""
        self._inbox.put(Event("stand_down"))

    def running(self) -> list[str]:
        """See `Launcher.running`."""
        return self._book.running()

    @property
    def jobs(self) -> int:
        """Jobs of this installation and launcher that exist or may exist: what `max_jobs` bounds."""
        return self._book.count(job.name for job in self._jobs.items().values() if job.launched_by == self._launched_by)

    @property
    def trouble(self) -> str:
        """Why the cluster cannot be followed now; empty when it can."""
        return self._jobs.error or self._pods.error

    def wait(self, seconds: float = SYNC_SECONDS) -> bool:
        """Wait until Jobs and pods were read once. Returns whether they were."""
        until = time.monotonic() + seconds
        return self._jobs.wait(seconds) and self._pods.wait(max(0.0, until - time.monotonic()))

    def close(self, grace: float) -> None:
        """See `Launcher.close`: the service's Jobs stay, their results wait in pod status; the CLI's are cancelled after the grace."""
        with self._lock:
            self._closed = True
        if self._launched_by != SERVICE:
            self._drain(grace)
        self._inbox.put(Event("close"))
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)
        self._jobs.close()
        self._pods.close()
        self._outbox.close()

    def _drain(self, grace: float) -> None:
        until = time.monotonic() + grace
        while self.running() and time.monotonic() < until:
            time.sleep(0.05)
        for run_id in self.running():
            self.cancel(run_id)
        until = time.monotonic() + CLOSE_SECONDS
        # Only those of this very launcher: others of its kind may launch at the same time.
        while (left := self._book.left()) and time.monotonic() < until:
            for run_id in left:
                self.release(run_id)
            time.sleep(0.1)

    # The owner's thread.

    def _run(self) -> None:
        while True:
            try:
                event: Event | None = self._inbox.get(timeout=TICK_SECONDS)
            except queue.Empty:
                event = None
            if event is not None and event.kind == "close":
                return
            try:
                if event is not None:
                    self._handlers[event.kind](event)
                if event is None or self._inbox.empty():
                    self._turn()
            except Exception:
                log.exception("the launcher could not handle %s", event)

    def _turn(self) -> None:
        """Look at everything once: what ended, what is overdue, what must be sent again, what has a place now."""
        now = self._clock()
        for flight in self._book.all():
            self._look(flight, now)
        while self._jobs.synced and self.jobs < self._config.max_jobs and (spec := self._book.next()) is not None:
            self._begin(spec, now)

    def _look(self, flight: Flight, now: float) -> None:
        self._book.tell(flight)
        if flight.busy:
            return
        if flight.stage is Stage.CREATING:
            if flight.cancelled is not None or now - flight.created > self._config.bind_limit:
                self._give_up_creating(flight)
            elif now >= flight.retry_at:
                self._send_create(flight)
        elif flight.stage in {Stage.FLYING, Stage.CANCELLING}:
            self._look_at_running(flight, now)
        elif flight.stage is Stage.LEAVING and now >= flight.retry_at:
            self._send_delete(flight)

    def _look_at_running(self, flight: Flight, now: float) -> None:
        if flight.complete:
            self._report(flight, {}, leave=flight.stage is Stage.CANCELLING or flight.job_gone)
            return
        more = flight.overdue(self._config, now)
        if more is not None and (flight.cancelled is not None or flight.job_gone):
            self._report(flight, more, leave=True)
        elif now < flight.retry_at:
            return
        elif flight.stage is Stage.CANCELLING and not flight.job_gone:
            self._send_delete(flight)
        elif more is not None:
            # What was not seen proves nothing: a watch can be dead and not know it. The server is asked before anything is concluded.
            unmade = any(not end.message for end in more.values())
            self._send(flight, "checked", lambda: self._requests.check(flight.name, explain=unmade))

    def _begin(self, spec: RunSpec, now: float) -> None:
        name = names.job_name(spec)
        other = self._book.of(name)
        if other is not None and other.spec.run_id == spec.run_id and other.stage is not Stage.LEAVING:
            return  # it goes on already, adopted perhaps; its end is reported once
        if other is not None:
            self._finish_unstarted(spec, Ending(Reason.CANCELLED, f"already launched as {other.spec.run_id}"))
            return
        self._send_create(self._book.add(self._requests.FLIGHT(spec, name, time.time(), now)))

    def _finish_unstarted(self, spec: RunSpec, end: Ending) -> None:
        now = time.time()
        self._on_finished(Flight(spec, names.job_name(spec), now, 0.0).finish(dict.fromkeys(range(spec.world_size), end), now))

    def _give_up_creating(self, flight: Flight) -> None:
        end = Ending(Reason.CANCELLED, "stopped on request") if flight.cancelled is not None else \
            Ending(Reason.LAUNCH_FAILED, f"the API server did not take the Job: {self.trouble or 'no answer'}")
        self._report(flight, dict.fromkeys(range(flight.spec.world_size), end), leave=True)
        if not flight.maybe_there:
            self._book.drop(flight)

    def _report(self, flight: Flight, more: dict[int, Ending], *, leave: bool) -> None:
        """The run has ended. `leave`: its Job holds nothing of worth any more and goes now; else when the result is durable."""
        run: Run = flight.finish(more, time.time())
        flight.stage = Stage.LEAVING if leave else Stage.REPORTED
        flight.attempts, flight.retry_at = 0, 0.0
        self._book.tell(flight)
        if flight.job_gone:
            self._book.drop(flight)
        self._on_finished(run)

    def _take_over(self, found: JobView, spec: RunSpec) -> Flight:
        age = max(0.0, self._api.now() - found.created) if found.created else 0.0
        flight = self._requests.FLIGHT(spec, found.name, time.time() - age, self._clock() - age, stage=Stage.FLYING, job_uid=found.uid)
        for pod in self._pods.items().values():
            if pod.job == found.name:
                flight.see(pod, self._clock())
        return self._book.add(flight)

    # Events.

    def _on_cancel(self, event: Event) -> None:
        for spec in self._book.withdraw(event.value)[:1]:
            if not self._book.under(event.value):
                self._finish_unstarted(spec, Ending(Reason.CANCELLED, "stopped on request"))
        for flight in self._book.under(event.value):
            if flight.stage in GOING and flight.cancelled is None:
                flight.cancelled = self._clock()
                if flight.stage is Stage.FLYING:
                    flight.stage, flight.attempts, flight.retry_at = Stage.CANCELLING, 0, 0.0

    def _on_release(self, event: Event) -> None:
        for flight in self._book.under(event.value):
            if flight.stage is Stage.REPORTED:
                flight.stage, flight.attempts, flight.retry_at = Stage.LEAVING, 0, 0.0

    def _on_stand_down(self, event: Event) -> None:  # noqa: ARG002 - the signature of a handler
        self._known = None
        self._book.clear()

    def _on_adopt(self, event: Event) -> None:
        self._known = event.value
        for flight in [flight for flight in self._book.all() if flight.stage is Stage.REPORTED]:
            self._book.drop(flight)
        for found in self._jobs.items().values():
            self._meet(found)

    def _on_jobs(self, event: Event) -> None:
        changes: list[Change[JobView]] = event.value
        for change in changes:
            flight = self._book.of(change.value.name)
            if change.gone:
                if flight is not None and flight.job_uid == change.value.uid:
                    self._job_gone(flight)
            elif flight is None:
                self._meet(change.value)
            elif flight.job_uid is None and flight.spec.run_id == getattr(change.value.spec, "run_id", None):
                flight.job_uid = change.value.uid

    def _on_pods(self, event: Event) -> None:
        now = self._clock()
        changes: list[Change[PodView]] = event.value
        for change in changes:
            flight = self._book.of(change.value.job)
            if flight is not None:
                flight.see(replace(change.value, gone=True) if change.gone else change.value, now)

    def _job_gone(self, flight: Flight) -> None:
        flight.job_gone = True
        if flight.stage is Stage.FLYING:
            self._requests.anchor.forget()  # a Job that vanishes by itself may have had an owner that is no longer there
        if flight.stage in {Stage.LEAVING, Stage.REPORTED}:
            self._book.drop(flight)

    def _meet(self, found: JobView) -> None:
        """A Job that this launcher does not know: after `adopt`, go on with it or delete it."""
        if self._known is None or found.launched_by != SERVICE or self._book.of(found.name) is not None or found.deleting:
            return
        if found.spec is not None and names.job_name(found.spec) == found.name and not self._known(found.spec.run_id):
            log.info("adopting run %s", found.spec.run_id)
            self._take_over(found, found.spec)
            return
        log.info("deleting left-over Job %s: %s", found.name, found.problem or "its result is known")
        spec = found.spec or RunSpec(found.name, "node", "unknown", ("unknown",), "any", 60.0)
        self._take_over(found, spec).stage = Stage.LEAVING

    def _on_created(self, event: Event) -> None:
        flight, answer = event.value, event.more
        flight.busy = False
        if isinstance(answer, JobView):
            self._created(flight, answer)
        elif isinstance(answer, ApiError):
            self._not_created(flight, answer)
        else:
            end = Ending(Reason.LAUNCH_FAILED, str(answer))
            self._report(flight, dict.fromkeys(range(flight.spec.world_size), end), leave=True)
            if not flight.maybe_there:
                self._book.drop(flight)

    def _created(self, flight: Flight, found: JobView) -> None:
        if found.spec is None or found.spec.run_id != flight.spec.run_id:
            self._book.drop(flight)
            as_what = found.spec.run_id if found.spec is not None else found.name
            self._finish_unstarted(flight.spec, Ending(Reason.CANCELLED, f"already launched as {as_what}"))
            self._meet(found)
            return
        flight.job_uid, flight.stage, flight.attempts, flight.retry_at = found.uid, Stage.FLYING, 0, 0.0
        flight.maybe_there = True
        if flight.cancelled is not None:
            flight.stage = Stage.CANCELLING
        for pod in self._pods.items().values():  # they may have been seen before the answer to the create
            if pod.job == flight.name:
                flight.see(pod, self._clock())

    def _not_created(self, flight: Flight, error: ApiError) -> None:
        flight.maybe_there = flight.maybe_there or error.unknown_effect
        if error.passing:
            self._again(flight, error.retry_after)
            return
        end = refusal(error.message, error.status)
        self._report(flight, dict.fromkeys(range(flight.spec.world_size), end), leave=True)
        if not flight.maybe_there:
            self._book.drop(flight)

    def _on_deleted(self, event: Event) -> None:
        flight, answer = event.value, event.more
        flight.busy = False
        if isinstance(answer, ApiError):
            self._again(flight, answer.retry_after)
        elif answer is False or flight.job_gone:
            flight.job_gone = True
            if flight.stage is Stage.LEAVING:
                self._book.drop(flight)
        else:
            # Accepted: the watch tells when it is gone. Asked again only if it does not.
            flight.retry_at = self._clock() + LONGEST_RETRY

    def _on_checked(self, event: Event) -> None:
        flight, answer = event.value, event.more
        flight.busy = False
        if isinstance(answer, Exception):
            self._again(flight, getattr(answer, "retry_after", None))
            return
        now = self._clock()
        flight.retry_at = 0.0
        for pod in answer.pods:
            flight.see(pod, now)
        more = {} if flight.complete else flight.overdue(self._config, now)
        if more and flight.stage is Stage.FLYING:
            end = refusal(answer.said) if answer.said else Ending(Reason.UNSCHEDULED, "no pod was made for this rank")
            self._report(flight, {rank: one if one.message else end for rank, one in more.items()}, leave=True)

    def _again(self, flight: Flight, wished: float | None) -> None:
        flight.attempts += 1
        wait = min(LONGEST_RETRY, FIRST_RETRY * 2 ** min(flight.attempts, 8))
        flight.retry_at = self._clock() + max(wait, min(wished or 0.0, 30.0))

    def _send(self, flight: Flight, kind: str, request: Callable[[], Any]) -> None:
        flight.busy = True
        self._outbox.send(kind, flight, request)

    def _send_create(self, flight: Flight) -> None:
        self._send(flight, "created", lambda: self._requests.create(flight.spec))

    def _send_delete(self, flight: Flight) -> None:
        self._send(flight, "deleted", lambda: self._requests.delete(flight.name, flight.job_uid))

