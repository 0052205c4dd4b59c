"""`efa-pulse validate`: nodes layer by layer, a gate after each: for CI, and for the engineer who gets a new node."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from exporter.cli import render
from exporter.cli.cluster import (
    Asked,
    ClusterRunner,
    ConfigOption,
    ContextOption,
    ForceOption,
    KubeconfigOption,
    NodesOption,
    Place,
    node_names,
    stopped,
)
from exporter.cli.exits import UsageError, of_outcomes
from exporter.cli.junit import junit
from exporter.cli.probe import TransportOption, transport_mode
from exporter.cli.runner import Runner
from exporter.config import Config, Job, SecretError
from exporter.inventory.model import Node
from exporter.runs import RunSpec, new_run_id
from exporter.validation import Stage, StageError, State, Step, Validation, choose, waves
from exporter.validation import validate as take_stages
from probes.contract import Transport
from probes.gpu.driver import CudaError, Driver

STYLES = {State.OK: "bold green", State.DEGRADED: "bold yellow", State.FAILED: "bold red", State.UNKNOWN: "bold magenta",
          State.SKIPPED: "dim", State.BLOCKED: "dim"}
GPU_PROBES = ("nccl", "uccl-ep")
StagesOption = Annotated[str | None, typer.Option(metavar="STAGE,...", help="Take only these stages: node, kv, nccl, uccl-ep, canary; "
                                                                            "mooncake or nixl for a part of kv.")]

MeasureProbe = Callable[[str], Sequence[Step]]


def validate(
    nodes: NodesOption = None,
    local: Annotated[bool, typer.Option("--local", help="Validate this machine instead of nodes of a cluster.")] = False,
    only: StagesOption = None,
    skip: Annotated[str | None, typer.Option(metavar="STAGE,...", help="Leave these stages out.")] = None,
    go_on: Annotated[bool, typer.Option("--continue", help="Go on after a bad stage.")] = False,
    canary: Annotated[str | None, typer.Option(metavar="NAME", help="Last stage: requests to this canary target of --config, sent from "
                                                                    "here.")] = None,
    transport: TransportOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    config: ConfigOption = None,
    force: ForceOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the stages with every verdict and result document as JSON.")] = False,
    junit_file: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML to this file.")] = None,
) -> int:
    """Validate nodes layer by layer: preflight, KV transfer, NCCL, UCCL-EP, serving path. It stops at the first bad layer.

    Exit status: 0 all that was measured is good, 1 a stage is bad, 2 something could not be measured, 64 wrong usage.
    """
    place = Place(kubeconfig, context, config)
    _check_usage(nodes, local=local, place=place, force=force, junit_file=junit_file)
    chosen = _chosen(only, skip)
    loaded = place.load()
    mode = transport_mode(transport)
    jobs = _canary_jobs(loaded, canary)
    with contextlib.ExitStack() as stack:
        progress = render.console(stderr=True)
        names = (socket.gethostname(),) if local else node_names(nodes or "")
        if local:
            here = stack.enter_context(Runner(progress, floors=loaded.thresholds.floors))
            measure = _local(here, loaded, mode)
        else:
            runner = stack.enter_context(ClusterRunner(place, progress, force=force, config=loaded))
            found = runner.nodes(names)
            names = tuple(node.name for node in found)
            measure = _in_cluster(runner, found, mode)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="efa-pulse-secrets-")))

        def stage(one: Stage) -> list[Step]:
            if one.name == "canary":
                return _canaries(jobs, folder, progress)
            return [step for probe in chosen[one] for step in measure(probe)]

        result = take_stages(names, list(chosen), stage, go_on=go_on, on_stage=lambda one: progress.print(f"{one.title} ...", style="dim"))
    if as_json:
        sys.stdout.write(json.dumps(result.to_json(), indent=2) + "\n")
    else:
        show(result)
    if junit_file is not None:
        _write(junit_file, junit(result))
    return of_outcomes(result.outcomes)


def show(result: Validation) -> None:
    """The table for people: a row for each step, then everything about the steps that are not ok."""
    out = render.console()
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("stage", "step", "state", "found", "took"):
        table.add_column(name, overflow="fold", justify="right" if name == "took" else "left", no_wrap=name in {"stage", "state", "took"})
    for reached in result.stages:
        for index, step in enumerate(reached.steps):
            what = f"{step.probe} {step.target}" if step.target else "-"
            text = render.figure(step.verdict) if step.verdict is not None and step.state is State.OK else step.why
            table.add_row(reached.stage.name if index == 0 else "", Text(what), Text(step.state.value, STYLES[step.state]), Text(text),
                          f"{step.seconds:.1f} s" if step.verdict is not None else "")
    out.print(table)
    for step in result.steps:
        if step.verdict is not None and step.state is not State.OK:
            out.print()
            out.print(render.verdict(step.verdict))
    out.print()
    line = Text()
    line.append(f"{', '.join(result.nodes)}: ")
    line.append(result.state.value if result.state is not State.SKIPPED else "nothing was measured", STYLES[result.state])
    blocked = [reached.stage.name for reached in result.stages if reached.state is State.BLOCKED]
    if blocked:
        line.append(f"; not reached: {', '.join(blocked)} (--continue goes on after a bad stage)")
    out.print(line)


def _in_cluster(runner: ClusterRunner, nodes: tuple[Node, ...], mode: Transport | None) -> MeasureProbe:
    """Measures one probe on nodes of the cluster: each node, or pairs that do not overlap."""
    known = {node.name: node for node in nodes}

    def measure(probe: str) -> list[Step]:
        single = dict(runner.config.probes.items())[probe].RANKS[1] == 1  # type: ignore[index]
        all_names = "--".join(known)
        if not single and len(nodes) < 2:
            return [Step(probe, all_names, State.SKIPPED, "it takes two nodes")]
        bare = [node.name for node in nodes if probe in GPU_PROBES and (node.gpu is None or node.gpu.allocatable == 0)]
        if bare:
            return [Step(probe, all_names, State.SKIPPED, f"no GPU on {', '.join(bare)}")]
        return [step for wave in waves(tuple(known), single=single) for step in _wave(probe, wave)]

    def _wave(probe: str, targets: list[tuple[str, ...]]) -> list[Step]:
        shut = runner.closed(probe, [known[name] for target in targets for name in target])
        steps: dict[tuple[str, ...], Step] = {}
        going: dict[tuple[str, ...], RunSpec] = {}
        for target in targets:
            mine = [(node, gate) for node, gate in shut if node.name in target]
            if mine:
                steps[target] = Step(probe, "--".join(target), State.UNKNOWN, f"gate {stopped(mine)}")
            else:
                going[target] = runner.spec(probe, tuple(known[name] for name in target), Asked({}, mode))
        verdicts = runner.run(list(going.values()))
        steps |= {target: Step.judged(verdict) for target, verdict in zip(going, verdicts, strict=True)}
        return [steps[target] for target in targets]

    return measure


def _local(runner: Runner, config: Config, mode: Transport | None) -> MeasureProbe:
    """Measures one probe between processes of this machine."""
    here = socket.gethostname()

    def measure(probe: str) -> list[Step]:
        gpus = _gpus() if probe in GPU_PROBES else 0
        if probe in GPU_PROBES and gpus < 2:
            return [Step(probe, here, State.SKIPPED, "one GPU is here, and it takes two" if gpus else "no GPU here")]
        section = dict(config.probes.items())[probe]  # type: ignore[index]
        ranks = gpus if probe == "nccl" else 2 if section.RANKS[1] == 2 else 1
        target = here if ranks == 1 else f"{here}--{here}"
        spec = RunSpec(new_run_id(probe), probe, target, (here,) * ranks, mode or section.transport, section.deadline,
                       section.params.model_dump(mode="json", exclude_unset=True))
        return [Step.judged(runner.run(spec))]

    return measure


def _canaries(jobs: Sequence[Job] | None, folder: Path, progress: Console) -> list[Step]:
    """Requests of every prompt of the target, one after the other, sent by processes of this machine."""
    if jobs is None:
        return [Step("canary", "", State.SKIPPED, "no target is named (--canary NAME with --config)")]
    steps: list[Step] = []
    with Runner(progress) as runner:
        for job in jobs:
            prompt = job.id.rpartition("/")[2]
            try:
                params = job.spec_with(folder)
            except SecretError as error:
                steps.append(Step("canary", f"{job.target} ({prompt})", State.UNKNOWN, str(error)))
                continue
            spec = RunSpec(new_run_id("canary"), "canary", job.target, job.nodes, job.transport, job.deadline, params, {"prompt": prompt})
            steps.append(replace(Step.judged(runner.run(spec)), target=f"{job.target} ({prompt})"))
    return steps


def _canary_jobs(config: Config, name: str | None) -> list[Job] | None:
    if name is None:
        return None
    jobs = [job for job in config.jobs() if job.probe == "canary" and job.target == name]
    if not jobs:
        known = ", ".join(target.name for target in config.canary.targets) or "none; name a file with --config"
        raise UsageError(f"--canary {name}: there is no enabled target of this name; targets are {known}")
    return jobs


def _check_usage(nodes: str | None, *, local: bool, place: Place, force: bool, junit_file: Path | None) -> None:
    if local == (nodes is not None):
        raise UsageError("name the nodes with --nodes a,b, or validate this machine with --local; not both")
    if local:
        given = [name for name, value in (("--kubeconfig", place.kubeconfig), ("--context", place.context), ("--force", force or None))
                 if value is not None]
        if given:
            raise UsageError(f"{given[0]} is for nodes of a cluster; with --local nothing leaves this machine")
    if junit_file is not None and (junit_file.is_dir() or not junit_file.absolute().parent.is_dir()):
        raise UsageError(f"--junit {junit_file}: a file in a folder that exists is needed")


def _chosen(only: str | None, skip: str | None) -> dict[Stage, tuple[str, ...]]:
    try:
        return dict(choose(_names(only), _names(skip)))
    except StageError as error:
        raise UsageError(f"--only, --skip: {error}") from None


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _gpus() -> int:
    """How many GPUs are here."""
    try:
        return Driver().count()
    except CudaError:
        return 0


def _write(path: Path, body: bytes) -> None:
    """Whole or not at all. Raises UsageError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(body)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise UsageError(f"--junit {path}: {error.strerror}") from None
