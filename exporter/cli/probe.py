"""`efa-pulse probe NAME`: one probe now, on this machine or (`--nodes`) on nodes of a cluster."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ValidationError

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
from exporter.cli.exits import NotMeasuredError, UsageError, of_outcomes
from exporter.cli.runner import Runner, drop_unset, settings
from exporter.judge.verdict import Verdict
from exporter.runs import RunSpec, new_run_id
from probes.contract import Transport
from probes.gpu.driver import CudaError, Driver
from probes.kv.params import MooncakeParams, NixlParams
from probes.nccl.params import NcclParams
from probes.node_params import NodeParams
from probes.uccl_ep.params import UcclEpParams

app = typer.Typer(no_args_is_help=True, help="Run one probe and print what it found: on this machine, or with --nodes in a cluster.")

JsonOption = Annotated[bool, typer.Option("--json", help="Print the verdict and the result documents as JSON.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter of the probe; the value is YAML.")]
TransportOption = Annotated[str | None, typer.Option(help="`efa`: a fall-back to another transport is an error. `any`: measure what there "
                                                          "is. Default: what the configuration says, else `any`.")]
DeadlineOption = Annotated[float | None, typer.Option(min=1, max=86400, help="Seconds until the engine is ended by force.")]
NamespacesOption = Annotated[bool, typer.Option("--namespaces", help="Give each local rank a network namespace of its own (needs root).")]
LogOption = Annotated[bool, typer.Option("--log", help="Print the engines' own output to standard error.")]
LocalOption = Annotated[bool, typer.Option("--local", help="On this machine: one rank for every GPU. The default without --nodes.")]

LOCAL_DEADLINES = {"node": 60.0, "mooncake": 60.0, "nixl": 60.0, "nccl": 180.0, "uccl-ep": 300.0}
"""Seconds that a local run may take where the command does not say."""
MODELS: dict[str, type[BaseModel]] = {"node": NodeParams, "mooncake": MooncakeParams, "nixl": NixlParams, "nccl": NcclParams,
                                      "uccl-ep": UcclEpParams}


@dataclass(frozen=True)
class Where:
    """Where the command line wants a run: these nodes of a cluster, or this machine. `local_only` are options that need the latter."""

    nodes: str | None
    place: Place
    force: bool
    local_only: tuple[str, ...] = ()

    @property
    def remote(self) -> bool:
        """Whether the run goes to a cluster. Raises UsageError for options that do not go together."""
        if self.nodes is not None:
            if self.local_only:
                raise UsageError(f"{self.local_only[0]} is for runs on this machine; with --nodes the ranks run in pods")
            return True
        asked = {"--kubeconfig": self.place.kubeconfig, "--context": self.place.context, "--config": self.place.config,
                 "--force": self.force or None}
        given = [name for name, value in asked.items() if value is not None]
        if given:
            raise UsageError(f"{given[0]} is for runs in a cluster: name the nodes with --nodes")
        return False


def _sizes(value: str | None) -> list[str] | None:
    return None if value is None else [part.strip() for part in value.split(",") if part.strip()]


def _run(name: str, where: Where, given: dict[str, Any], *, ranks: Callable[[], int], transport: str | None, deadline: float | None,
         as_json: bool, namespaces: bool = False, log: bool = False) -> int:
    check_params(name, MODELS[name], given)
    mode = transport_mode(transport)
    if where.remote:
        return _run_in_cluster(name, where, Asked(given, mode, deadline), as_json=as_json)
    here, count = socket.gethostname(), ranks()
    target = here if count == 1 else f"{here}--{here}"
    spec = RunSpec(new_run_id(name), name, target, (here,) * count, mode or "any", deadline or LOCAL_DEADLINES[name], given)
    with Runner(render.console(stderr=True), namespaces=namespaces) as runner:
        verdict = runner.run(spec)
    if log:
        for rank, text in sorted(verdict.run.logs.items()):
            sys.stderr.write(f"--- output of rank {rank}\n{text}\n")
    return _show([verdict], verdict.to_json(), as_json=as_json)


def _run_in_cluster(name: str, where: Where, asked: Asked, *, as_json: bool) -> int:
    """One run over all named nodes; the preflight, which has one rank, once on each of them."""
    names = node_names(where.nodes or "")
    config = where.place.load()
    fewest, most = dict(config.probes.items())[name].RANKS  # type: ignore[index]
    if most > 1 and not fewest <= len(names) <= most:
        need = f"{fewest} nodes" if fewest == most else f"{fewest} nodes or more"
        raise UsageError(f"--nodes: {name} needs {need}, got {len(names)}")
    with ClusterRunner(where.place, render.console(stderr=True), force=where.force, config=config) as runner:
        nodes = runner.nodes(names)
        targets = [(node,) for node in nodes] if most == 1 else [nodes]
        specs = [runner.spec(name, tuple(target), asked) for target in targets]
        for spec in specs:
            check_params(name, MODELS[name], spec.spec)
        shut = runner.closed(name, nodes)
        if shut:
            raise NotMeasuredError(f"nothing was started: {stopped(shut)}")
        verdicts = runner.run(specs)
    documents = [verdict.to_json() for verdict in verdicts]
    return _show(verdicts, documents if most == 1 else documents[0], as_json=as_json)


def _show(verdicts: list[Verdict], document: Any, *, as_json: bool) -> int:
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        out = render.console()
        for verdict in verdicts:
            out.print(render.verdict(verdict))
    return of_outcomes([verdict.outcome for verdict in verdicts])


def transport_mode(text: str | None) -> Transport | None:
    """The transport that an option names, None when it is not given. Raises UsageError."""
    if text is None:
        return None
    if text not in ("efa", "any"):
        raise UsageError(f"--transport {text}: `efa` or `any` is needed")
    return "efa" if text == "efa" else "any"


def check_params(name: str, params: type[BaseModel], given: dict[str, Any]) -> dict[str, Any]:
    """The parameters that were given, checked by the probe's own model. Raises UsageError naming the parameter."""
    try:
        params.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        known = f"; there are {', '.join(params.model_fields)}" if first["type"] == "extra_forbidden" else ""
        raise UsageError(f"{name}{': ' + where if where else ''}: {first['msg'].removeprefix('Value error, ')}{known}") from None
    return given


def _kv(name: str) -> Callable[..., int]:
    def command(
        sizes: Annotated[str | None, typer.Option(metavar="SIZE,...", help="Block sizes, for example 64KiB,1MiB.")] = None,
        operations: Annotated[str | None, typer.Option(metavar="NAME,...", help="write, read, batch_write, batch_read.")] = None,
        memory: Annotated[str | None, typer.Option(help="`dram` or `gpu`.")] = None,
        transport: TransportOption = None,
        deadline: DeadlineOption = None,
        nodes: NodesOption = None,
        kubeconfig: KubeconfigOption = None,
        context: ContextOption = None,
        config: ConfigOption = None,
        force: ForceOption = False,
        namespaces: NamespacesOption = False,
        set_: SetOption = None,
        log: LogOption = False,
        as_json: JsonOption = False,
    ) -> int:
        given = {**drop_unset({"sizes": _sizes(sizes), "operations": _sizes(operations), "memory": memory}), **settings(set_ or [])}
        where = Where(nodes, Place(kubeconfig, context, config), force, _given({"--namespaces": namespaces, "--log": log}))
        return _run(name, where, given, ranks=lambda: 2, transport=transport, deadline=deadline, as_json=as_json, namespaces=namespaces,
                    log=log)

    return command


app.command("mooncake", help="KV-sized blocks between two ranks with the Mooncake transfer engine.")(_kv("mooncake"))
app.command("nixl", help="KV-sized blocks between two ranks with NIXL.")(_kv("nixl"))


@app.command("node")
def node(
    instance_type: Annotated[str | None, typer.Option(help="EC2 instance type, for what the node should have.")] = None,
    transport: TransportOption = None,
    deadline: DeadlineOption = None,
    nodes: NodesOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    config: ConfigOption = None,
    force: ForceOption = False,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Preflight of this machine or of each named node: EFA devices, libraries, limits. No GPU, no peer, seconds."""
    given = {**drop_unset({"instance_type": instance_type}), **settings(set_ or [])}
    where = Where(nodes, Place(kubeconfig, context, config), force)
    return _run("node", where, given, ranks=lambda: 1, transport=transport, deadline=deadline, as_json=as_json)


@app.command("nccl")
def nccl(
    sizes: Annotated[str | None, typer.Option(metavar="SIZE,...", help="Buffer sizes as nccl-tests counts them, e.g. 1MiB,256MiB.")] = None,
    operations: Annotated[str | None, typer.Option(metavar="NAME,...", help="all_reduce, alltoall, all_gather, ...")] = None,
    engine: Annotated[str | None, typer.Option(help="`nccl4py` or `nccl-tests`.")] = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="Number of local GPUs; default: all that are visible.")] = None,
    local: LocalOption = False,
    transport: TransportOption = None,
    deadline: DeadlineOption = None,
    nodes: NodesOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    config: ConfigOption = None,
    force: ForceOption = False,
    set_: SetOption = None,
    log: LogOption = False,
    as_json: JsonOption = False,
) -> int:
    """NCCL collectives over the GPUs of this machine, one rank a GPU, or over nodes of a cluster, one rank a node."""
    given = {**drop_unset({"sizes": _sizes(sizes), "operations": _sizes(operations), "engine": engine}), **settings(set_ or [])}
    where = Where(nodes, Place(kubeconfig, context, config), force,
                  _given({"--local": local, "--log": log, "--ranks": ranks is not None, "--engine nccl-tests": engine == "nccl-tests"}))
    return _run("nccl", where, given, ranks=lambda: 1 if given.get("engine") == "nccl-tests" else _gpu_ranks(ranks), transport=transport,
                deadline=deadline, as_json=as_json, log=log)


@app.command("uccl-ep")
def uccl_ep(
    mode: Annotated[str | None, typer.Option(help="Which upstream bench or driver; see the parameter `mode`.")] = None,
    local: LocalOption = False,
    transport: TransportOption = None,
    deadline: DeadlineOption = None,
    nodes: NodesOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    config: ConfigOption = None,
    force: ForceOption = False,
    set_: SetOption = None,
    log: LogOption = False,
    as_json: JsonOption = False,
) -> int:
    """UCCL-EP dispatch and combine over the GPUs of this machine, or over whole nodes of a cluster."""
    given = {**drop_unset({"mode": mode}), **settings(set_ or [])}
    where = Where(nodes, Place(kubeconfig, context, config), force, _given({"--local": local, "--log": log}))
    return _run("uccl-ep", where, given, ranks=lambda: 1, transport=transport, deadline=deadline, as_json=as_json, log=log)


def _given(options: dict[str, bool]) -> tuple[str, ...]:
    return tuple(name for name, value in options.items() if value)


def _gpu_ranks(asked: int | None) -> int:
    """One rank a GPU. Without any GPU two ranks start, and each says so in its own result."""
    if asked is not None:
        return asked
    try:
        return max(2, Driver().count())
    except CudaError:
        return 2
