"""`efa-pulse canary`: streaming requests to an OpenAI-compatible endpoint, timed by the kernel's arrival times."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from exporter.cli import render
from exporter.cli.exits import UsageError, of_outcomes
from exporter.cli.probe import JsonOption, SetOption, check_params
from exporter.cli.runner import Runner, drop_unset, settings
from exporter.judge.verdict import Verdict
from exporter.runs import RunSpec, new_run_id
from probes.canary.params import CanaryParams
from probes.reasons import Outcome
from probes.result import Result

OVERHEAD_SECONDS = 10.0


def canary(
    url: Annotated[str, typer.Option(help="Base address of the API, with or without /v1.")],
    model: Annotated[str, typer.Option(help="Model name as the endpoint serves it.")],
    api: Annotated[str | None, typer.Option(help="`chat` or `completions`.")] = None,
    prompt: Annotated[str | None, typer.Option(help="`short`, `long` or `shared_prefix`.")] = None,
    stack: Annotated[str | None, typer.Option(help="What serves: `openai` (anything), `vllm`, `sglang`, `llm-d` or `ray-serve`.")] = None,
    route: Annotated[str | None, typer.Option(help="`router`, `pair` (prefill and decode directly) or `baseline`. Default: `pair` with "
                                                   "--prefill, else `router`.")] = None,
    prefill: Annotated[str | None, typer.Option(help="Base address of the prefill worker; --url is then the decode worker's.")] = None,
    connector: Annotated[str | None, typer.Option(help="KV connector, where the stack has several.")] = None,
    prefill_metrics: Annotated[list[str] | None, typer.Option(help="Metrics page of a prefill engine: shows whether KV moved.")] = None,
    decode_metrics: Annotated[list[str] | None, typer.Option(help="Metrics page of a decode engine: shows whether KV moved.")] = None,
    provenance: Annotated[bool, typer.Option("--provenance", help="Send one prompt's hand-over with another prompt, too.")] = False,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Length of the answer.")] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=10_000, help="Number of requests, one after the other.")] = 1,
    interval: Annotated[float, typer.Option(min=0, max=86400, help="Seconds from one request's start to the next.")] = 1.0,
    key_file: Annotated[Path | None, typer.Option(help="File with the API key.")] = None,
    ca_file: Annotated[Path | None, typer.Option(help="Certificate authorities to trust instead of the system's (PEM).")] = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Send canary requests and print TTFT, TPOT, gaps and the result of each."""
    told = {"prefill": prefill_metrics or [], "decode": decode_metrics or []}
    pages = [{"url": page, "role": role, "pod": f"{role}-{number}"} for role, urls in told.items() for number, page in enumerate(urls)]
    pd = {"pages": pages, "provenance": provenance} if pages or provenance else None
    given: dict[str, Any] = {
        **drop_unset({"url": url, "model": model, "api": api, "prompt": prompt, "max_tokens": max_tokens, "stack": stack,
                      "route": route or ("pair" if prefill else None), "prefill": prefill, "connector": connector, "pd": pd,
                      "cache_salt": True if provenance else None, "key_file": str(key_file) if key_file else None,
                      "ca_file": str(ca_file) if ca_file else None}),
        **settings(set_ or [])}
    spec = check_params("canary", CanaryParams, given)
    for name, path in (("--key-file", key_file), ("--ca-file", ca_file)):
        if path is not None and not path.is_file():
            raise UsageError(f"{name} {path}: there is no such file")
    params = CanaryParams.model_validate(spec)
    deadline = params.longest + (params.pd.longest if params.pd is not None else 0.0) + OVERHEAD_SECONDS
    here = socket.gethostname()
    verdicts: list[Verdict] = []
    with Runner(render.console(stderr=True)) as runner:
        for number in range(count):
            started = time.monotonic()
            verdicts.append(runner.run(RunSpec(new_run_id("canary"), "canary", url, (here,), "any", deadline, spec)))
            if number + 1 < count:
                time.sleep(max(0.0, interval - (time.monotonic() - started)))
    if as_json:
        sys.stdout.write(json.dumps([verdict.to_json() for verdict in verdicts], indent=2) + "\n")
    else:
        _print(verdicts, url)
    return of_outcomes([verdict.outcome for verdict in verdicts])


def _print(verdicts: list[Verdict], url: str) -> None:
    out = render.console()
    rows = [(str(number), verdict.run.results[0].stream) for number, verdict in enumerate(verdicts, 1)]
    out.print(render.streams((name, stream) for name, stream in rows if stream is not None))
    for number, verdict in enumerate(verdicts, 1):
        for line in _said(verdict.run.results[0]):
            out.print(f"{number}: {line}", markup=False)
        if verdict.outcome is not Outcome.OK:
            out.print(f"{number}: {verdict.outcome.value}: {verdict.reason.value}: {verdict.message}", markup=False)
    good = sum(verdict.outcome is Outcome.OK for verdict in verdicts)
    out.print(f"{good} of {len(verdicts)} ok from {url}", markup=False)


def _said(result: Result) -> Iterator[str]:
    """What a request showed beside its times."""
    stream, pd = result.stream, result.pd
    if stream is not None and stream.prefill is not None:
        leg, duration = stream.prefill, render.duration
        yield f"prefill leg {leg.status} in {duration(leg.seconds)}, first token {duration(stream.decode_ttft)} after the decode leg"
    if stream is not None and stream.cold_ttft is not None:
        yield f"TTFT {render.duration(stream.cold_ttft)} for the request before it, which shared its prefix"
    if pd is not None and pd.disaggregation is not None:
        yield f"KV moved from prefill to decode: {pd.disaggregation} by {pd.evidence}" + (f": {pd.why}" if pd.why else "")
    if pd is not None and pd.integrity is not None:
        codes = f", {pd.integrity.anchors[0]} of {pd.integrity.anchors[1]} codes copied" if pd.integrity.anchors else ""
        yield f"answer {pd.integrity.verdict}{codes}" + (f": {pd.integrity.why}" if pd.integrity.why else "")
    for finding in result.findings:
        remedy = f": {finding.remedy}" if finding.remedy and finding.ok is not True else ""
        yield f"{finding.check}: {finding.seen or 'not told'}{remedy}"
