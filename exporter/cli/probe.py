"""`efa-pulse probe NAME`: one probe on this machine, now."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ValidationError

from exporter.cli import render
from exporter.cli.exits import UsageError, of_outcomes
from exporter.cli.runner import Runner, drop_unset, settings
from exporter.runs import RunSpec, new_run_id
from probes.contract import Transport
from probes.gpu.driver import CudaError, Driver
from probes.kv.params import MooncakeParams, NixlParams
from probes.nccl.params import NcclParams
from probes.node_params import NodeParams
from probes.uccl_ep.params import UcclEpParams

app = typer.Typer(no_args_is_help=True, help="Run one probe on this machine and print what it found.")

JsonOption = Annotated[bool, typer.Option("--json", help="Print the verdict and the result documents as JSON.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter of the probe; the value is YAML.")]
TransportOption = Annotated[str, typer.Option(help="`efa`: a fall-back to another transport is an error. `any`: measure what there is.")]
DeadlineOption = Annotated[float, typer.Option(min=1, max=86400, help="Seconds until the engine is ended by force.")]
NamespacesOption = Annotated[bool, typer.Option("--namespaces", help="Give each rank a network namespace of its own (needs root).")]
LogOption = Annotated[bool, typer.Option("--log", help="Print the engines' own output to standard error.")]
LocalOption = Annotated[bool, typer.Option("--local", help="On this machine: one rank for every GPU. The only place so far.")]


def _sizes(value: str | None) -> list[str] | None:
    return None if value is None else [part.strip() for part in value.split(",") if part.strip()]


def _run(name: str, params: type[BaseModel], given: dict[str, Any], *, ranks: int, transport: str, deadline: float, as_json: bool,
         namespaces: bool = False, log: bool = False) -> int:
    spec = check_params(name, params, given)
    if transport not in ("efa", "any"):
        raise UsageError(f"--transport {transport}: `efa` or `any` is needed")
    mode: Transport = "efa" if transport == "efa" else "any"
    here = socket.gethostname()
    out = render.console()
    progress = render.console(stderr=True)
    target = here if ranks == 1 else f"{here}--{here}"
    with Runner(progress, namespaces=namespaces) as runner:
        verdict = runner.run(RunSpec(new_run_id(name), name, target, (here,) * ranks, mode, deadline, spec))
    if log:
        for rank, text in sorted(verdict.run.logs.items()):
            sys.stderr.write(f"--- output of rank {rank}\n{text}\n")
    if as_json:
        sys.stdout.write(json.dumps(verdict.to_json(), indent=2) + "\n")
    else:
        out.print(render.verdict(verdict))
    return of_outcomes([verdict.outcome])


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


def _kv(name: str, params: type[BaseModel]) -> Callable[..., int]:
    def command(
        sizes: Annotated[str | None, typer.Option(metavar="SIZE,...", help="Block sizes, for example 64KiB,1MiB.")] = None,
        operations: Annotated[str | None, typer.Option(metavar="NAME,...", help="write, read, batch_write, batch_read.")] = None,
        memory: Annotated[str | None, typer.Option(help="`dram` or `gpu`.")] = None,
        transport: TransportOption = "any",
        deadline: DeadlineOption = 60.0,
        namespaces: NamespacesOption = False,
        set_: SetOption = None,
        log: LogOption = False,
        as_json: JsonOption = False,
    ) -> int:
        given = {**drop_unset({"sizes": _sizes(sizes), "operations": _sizes(operations), "memory": memory}), **settings(set_ or [])}
        return _run(name, params, given, ranks=2, transport=transport, deadline=deadline, as_json=as_json, namespaces=namespaces, log=log)

    return command


app.command("mooncake", help="KV-sized blocks between two ranks with the Mooncake transfer engine.")(_kv("mooncake", MooncakeParams))
app.command("nixl", help="KV-sized blocks between two ranks with NIXL.")(_kv("nixl", NixlParams))


@app.command("node")
def node(
    instance_type: Annotated[str | None, typer.Option(help="EC2 instance type, for what the node should have.")] = None,
    transport: TransportOption = "any",
    deadline: DeadlineOption = 60.0,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Preflight of this machine: EFA devices, libraries, limits. No GPU, no peer, seconds."""
    given = {**drop_unset({"instance_type": instance_type}), **settings(set_ or [])}
    return _run("node", NodeParams, given, ranks=1, transport=transport, deadline=deadline, as_json=as_json)


@app.command("nccl")
def nccl(
    sizes: Annotated[str | None, typer.Option(metavar="SIZE,...", help="Buffer sizes as nccl-tests counts them, e.g. 1MiB,256MiB.")] = None,
    operations: Annotated[str | None, typer.Option(metavar="NAME,...", help="all_reduce, alltoall, all_gather, ...")] = None,
    engine: Annotated[str | None, typer.Option(help="`nccl4py` or `nccl-tests`.")] = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="Number of GPUs; default: all that are visible.")] = None,
    local: LocalOption = True,  # noqa: ARG001 - the only place so far; the option says so
    transport: TransportOption = "any",
    deadline: DeadlineOption = 180.0,
    set_: SetOption = None,
    log: LogOption = False,
    as_json: JsonOption = False,
) -> int:
    """NCCL collectives over the GPUs of this machine, one rank a GPU."""
    given = {**drop_unset({"sizes": _sizes(sizes), "operations": _sizes(operations), "engine": engine}), **settings(set_ or [])}
    world = 1 if given.get("engine") == "nccl-tests" else _gpu_ranks(ranks)
    return _run("nccl", NcclParams, given, ranks=world, transport=transport, deadline=deadline, as_json=as_json, log=log)


@app.command("uccl-ep")
def uccl_ep(
    mode: Annotated[str | None, typer.Option(help="Which upstream bench or driver; see the parameter `mode`.")] = None,
    local: LocalOption = True,  # noqa: ARG001 - the only place so far; the option says so
    transport: TransportOption = "any",
    deadline: DeadlineOption = 300.0,
    set_: SetOption = None,
    log: LogOption = False,
    as_json: JsonOption = False,
) -> int:
    """UCCL-EP dispatch and combine over the GPUs of this machine."""
    given = {**drop_unset({"mode": mode}), **settings(set_ or [])}
    return _run("uccl-ep", UcclEpParams, given, ranks=1, transport=transport, deadline=deadline, as_json=as_json, log=log)


def _gpu_ranks(asked: int | None) -> int:
    """One rank a GPU. Without any GPU two ranks start, and each says so in its own result."""
    if asked is not None:
        return asked
    try:
        return max(2, Driver().count())
    except CudaError:
        return 2
