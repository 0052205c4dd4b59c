"""The result document `efa-pulse/result/v1`: what one rank of one run leaves behind.

A worker writes it to its termination file and to its last line of standard output, in at most `LIMIT` bytes. Units are base units:
bytes, seconds, bytes per second; times are Unix seconds of the node's clock. Arrays inside a measurement are columns over `bytes`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from probes.reasons import DIED_IN, Outcome, Reason, outcome_of

SCHEMA = "efa-pulse/result/v1"
COMPRESSED = "efa-pulse/result/v1+deflate"
LIMIT = 4096
INFLATED_LIMIT = 1 << 20
CUT_MARK = "…[cut]"

DIGITS = 6
"""Significant digits of measured figures: a millionth of the value, and half the bytes of a full float."""


class ResultError(ValueError):
    """A result document that cannot be read or written. The text says what is wrong."""


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


Figure = Annotated[float, AfterValidator(_rounded)]
"""A measured figure, kept to `DIGITS` significant digits."""
Column = list[Figure | None]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""What 64 bits hold: JSON has numbers that no float can take, and arithmetic on them raises."""
Count = Annotated[int, Field(ge=0, lt=2**63)]
Time = Annotated[float, Field(ge=0, lt=253402300800)]
"""Unix seconds, before the year 10000."""


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def cleaned(text: str) -> str:
    """Text that a program or a server said, without the control characters that would let it write on a terminal."""
    return _CONTROL.sub(" ", text)


Said = Annotated[str, AfterValidator(cleaned)]
"""A text that an engine or an endpoint may have written: shown on terminals, so without control characters but tab and newline."""


class Model(BaseModel):
    """Base of every part of the document: unknown fields are errors, values do not change after creation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Phase(str, Enum):
    """Where a worker stands. `pull` is filled in by the launcher."""

    PULL = "pull"
    LAUNCH = "launch"
    RENDEZVOUS = "rendezvous"
    SETUP = "setup"
    MEASURE = "measure"
    FINISH = "finish"


class Window(Model):
    """The time in which the payload moved, Unix seconds of the node's clock."""

    start: Time
    end: Time


class Measurement(Model):
    """One operation over several sizes. Every list is a column and as long as `bytes`.

    `bandwidth` is bytes per second of kind `kind`; `latency` holds seconds per statistic (`min`, `p50`, `p99`, `max`, `mean`);
    `cold` is the first operation of the run in seconds, never part of the columns; `wrong` counts wrong elements or bytes.
    """

    operation: str
    memory: Literal["dram", "gpu"]
    kind: Literal["busbw", "algbw", "goodput"]
    bytes: list[Count]
    bandwidth: Column
    algbw: Column | None = None
    latency: dict[str, Column] = Field(default_factory=dict)
    iterations: list[Count] = Field(default_factory=list)
    wrong: list[Count | None] | None = None
    batch: Count = 1
    cold: Figure | None = None
    variant: str | None = None

    @model_validator(mode="after")
    def _same_length(self) -> Measurement:
        columns: dict[str, list[Any] | None] = {"bandwidth": self.bandwidth, "algbw": self.algbw, "iterations": self.iterations or None,
                                                "wrong": self.wrong, **{f"latency.{k}": v for k, v in self.latency.items()}}
        for name, column in columns.items():
            if column is not None and len(column) != len(self.bytes):
                raise ValueError(f"{self.operation}: column {name} has {len(column)} values for {len(self.bytes)} sizes")
        return self


class Marker(Model):
    """One known log line or API answer: `says` is a transport (`efa`, `tcp`, `intra_node`, ...) or a defect, `text` the line seen."""

    id: str
    says: str
    text: Said


class Evidence(Model):
    """What is known about how the bytes travelled. Per-device lists are in sorted device order.

    `tcp_bytes` is what the kernel counted on the worker's own TCP sockets inside the window: `[sent, received]`; None means not sampled.
    `payload_bytes` is what the probe moved inside the window: `[sent, received]`.
    """

    stack: str
    provider: Said | None = None
    fabric: Said | None = None
    nics_allocated: Count | None = None
    nics_seen: Count | None = None
    rdma: bool | None = None
    payload_bytes: tuple[Count, Count] | None = None
    tcp_bytes: tuple[Count, Count] | None = None
    devices: list[str] = Field(default_factory=list)
    device_bytes: list[Count] = Field(default_factory=list)
    gpus: list[str] = Field(default_factory=list)
    markers: list[Marker] = Field(default_factory=list)


class Throttling(Model):
    """Pressure on the worker's cgroup during the window. None means the kernel does not tell."""

    periods: Count | None = None
    throttled_periods: Count | None = None
    throttled_seconds: float | None = None
    cpu_pressure_seconds: float | None = None
    wait_seconds: float | None = None


class PrefillLeg(Model):
    """The prefill request of a canary that played the router. `start` is seconds from the first write of the canary, the others are seconds
    from the write of this leg: first byte and end of the reply."""

    status: str
    http_status: Count | None = None
    start: float | None = None
    ttfb: float | None = None
    seconds: float | None = None
    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None
    message: Said = ""


class Stream(Model):
    """One canary request. Seconds from the write of the request; see `probes.canary` for each definition.

    Where the canary played the router, the zero is the write of whichever leg went first, and `decode_ttft` counts from the write of the
    decode leg. `handover` says whether the prefill worker gave what the decode worker needs. `cold_ttft` is the TTFT of an earlier request
    that shared this one's prefix.
    """

    status: str
    http_status: Count | None = None
    clock: Literal["kernel", "user"] = "kernel"
    resolve: float | None = None
    connect: float | None = None
    tls: float | None = None
    ttfb: float | None = None
    ttft: float | None = None
    ttfo: float | None = None
    tpot: float | None = None
    max_gap: float | None = None
    e2e: float | None = None
    stream_close: float | None = None
    output_tokens_per_second: float | None = None
    itl: list[Figure] = Field(default_factory=list)
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    cached_tokens: Count | None = None
    token_count_source: Literal["usage", "client"] | None = None
    token_events: Count = 0
    unresolved_events: Count = 0
    disturbed: bool = False
    clock_lag: float | None = None
    finish_reason: Said | None = None
    retry_after: float | None = None
    request_id: Said | None = None
    answer_sha256: str | None = None
    prefill: PrefillLeg | None = None
    decode_ttft: float | None = None
    cold_ttft: float | None = None
    handover: Literal["given", "missing"] | None = None


class Finding(Model):
    """One check of a node preflight. `ok` None means the check could not be made here."""

    check: str
    ok: bool | None
    expected: Said | None = None
    seen: Said | None = None
    remedy: Said | None = None


class Integrity(Model):
    """Whether the answer is right, by the means the canary has: anchors copied from the prompt, a reference answer, signs of garbage.

    `anchors` is `[found, asked]`; `common_prefix` the share of the reference's tokens that the answer begins with; `logprob_drift` the
    largest difference on that prefix; `repetition` the share of the answer that repeats itself; None: not looked at.
    """

    verdict: Literal["ok", "drift", "mismatch", "crosstalk", "degenerate", "empty", "unknown"]
    why: Said = ""
    anchors: tuple[Count, Count] | None = None
    first_token: bool | None = None
    common_prefix: Figure | None = None
    logprob_drift: Figure | None = None
    repetition: Figure | None = None
    replacement_characters: Count | None = None


class PdPod(Model):
    """One engine pod that a canary met or may have met, with its state beside the sample. `pod` is a name of the discovery."""

    role: Literal["prefill", "decode", "mixed", "router"]
    pod: Said
    node: Said | None = None
    zone: Said | None = None
    instance_type: Said | None = None
    placement_group: Said | None = None
    engine: Said | None = None
    engine_role: Said | None = None
    running: Figure | None = None
    waiting: Figure | None = None
    kv_usage: Figure | None = None
    missing: list[str] = Field(default_factory=list)
    """The metrics expected of such an engine, where its page has not one of them: that makes the verdict `unknown`."""


class PdSays(Model):
    """What one piece of evidence says of disaggregation, with its figures in words."""

    kind: Literal["provenance", "counters", "router_mode", "purity", "configuration"]
    says: Literal["yes", "no", "unknown"]
    text: Said


class Pd(Model):
    """What a canary showed of prefill/decode disaggregation: three verdicts kept apart (delivery is the document's own reason).

    `disaggregation` None: this request was not to be disaggregated (route `baseline`, or a prompt that decode may serve alone).
    `evidence` names the piece that decided. `kv_bytes` is what the engine counted for this request alone, `expected_kv_bytes` what was
    learned from earlier ones. Seconds: `queue + prefill + transfer + handover` make up the time to the first token; a part that the
    engine does not tell is None. `impure_tokens` counts `[generated on prefill beyond one a request, prompt tokens computed on decode]`.
    """

    route: Literal["router", "pair", "baseline"]
    connector: Said | None = None
    disaggregation: Literal["yes", "no", "unknown"] | None = None
    evidence: Literal["provenance", "counters", "router_mode", "none"] = "none"
    why: Said = ""
    says: list[PdSays] = Field(default_factory=list)
    first_contact: bool = False
    prefill: PdPod | None = None
    decode: PdPod | None = None
    others: Count | None = None
    kv_bytes: Count | None = None
    expected_kv_bytes: Count | None = None
    formula_kv_bytes: Count | None = None
    block_tokens: Count | None = None
    kv_transfer: Figure | None = None
    kv_bytes_per_second: Figure | None = None
    failed_transfers: Count | None = None
    expired: Count | None = None
    queue: Figure | None = None
    prefill_seconds: Figure | None = None
    transfer: Figure | None = None
    handover: Figure | None = None
    impure_tokens: tuple[Count, Count] | None = None
    integrity: Integrity | None = None


class Result(Model):
    """The document. `reason` decides `outcome`; the two can never disagree."""

    schema_: Literal["efa-pulse/result/v1"] = Field(default="efa-pulse/result/v1", alias="schema")
    run_id: str
    probe: str
    target: str
    role: str | None = None
    rank: Count = 0
    world_size: Count = 1
    node: str
    started: Time
    finished: Time
    measure: Window | None = None
    phases: dict[Phase, float] = Field(default_factory=dict)
    outcome: Outcome
    reason: Reason
    message: Said = ""
    measurements: list[Measurement] = Field(default_factory=list)
    stream: Stream | None = None
    pd: Pd | None = None
    findings: list[Finding] = Field(default_factory=list)
    evidence: Evidence | None = None
    throttling: Throttling | None = None
    versions: dict[str, Said] = Field(default_factory=dict)
    shape: dict[str, Whole | float | str] = Field(default_factory=dict)

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _outcome_from_reason(cls, data: Any) -> Any:
        if isinstance(data, dict) and "outcome" not in data and "reason" in data:
            try:
                return {**data, "outcome": outcome_of(Reason(data["reason"]))}
            except ValueError:
                return data
        return data

    @model_validator(mode="after")
    def _one_outcome_per_reason(self) -> Result:
        if outcome_of(self.reason) is not self.outcome:
            raise ValueError(f"reason {self.reason.value} belongs to outcome {outcome_of(self.reason).value}, not {self.outcome.value}")
        return self


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document, as `python -m probes schema` prints it."""
    schema = Result.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA, **schema}


def encode(result: Result, limit: int = LIMIT) -> bytes:
    """The document as one line of JSON of at most `limit` bytes.

    Above the limit it is deflated into a small envelope; when that is still too large, texts are cut with a mark, longest first, and
    numbers never. Raises ResultError when even then it does not fit.
    """
    data = result.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    data = {"schema": SCHEMA, "outcome": result.outcome.value, **data}
    budget = 0
    while True:
        plain = _dump(data)
        if len(plain) <= limit:
            return plain
        packed = _pack(plain)
        if len(packed) <= limit:
            return packed
        budget = 400 if budget == 0 else budget // 2
        if budget < 40:
            raise ResultError(f"the result needs {len(packed)} bytes compressed and {limit} fit: measure fewer sizes in one run")
        data = _cut_texts(data, budget)


def decode(raw: bytes | str) -> Result:
    """Read a document written by `encode`: the first line of `raw`. Raises ResultError on anything else.

    Only the first line counts, since a file overwritten in place may still hold the end of a longer mark.
    """
    try:
        data = json.loads(raw.split(b"\n" if isinstance(raw, bytes) else "\n", 1)[0])  # type: ignore[arg-type]
    except (ValueError, RecursionError) as error:
        raise ResultError(f"not a result document: {error}") from None
    if not isinstance(data, dict):
        raise ResultError(f"not a result document: a JSON {type(data).__name__}, not an object")
    if data.get("schema") == COMPRESSED:
        data = _unpack(data)
    if data.get("schema") != SCHEMA:
        raise ResultError(f"unknown schema {str(data.get('schema'))[:80]!r}, this version reads {SCHEMA}")
    try:
        return Result.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        raise ResultError(f"{where}: {first['msg']} ({error.error_count()} problems)") from None
    except RecursionError:
        raise ResultError("not a result document: nested too deep") from None


def died_in(result: Result, phase: Phase) -> Result:
    """The mark a worker leaves before a risky phase: its own document, should it never write another."""
    reason = DIED_IN.get(phase.value, Reason.NO_RESULT)
    return result.model_copy(update={"reason": reason, "outcome": outcome_of(reason), "message": f"the worker died in phase {phase.value}"})


def _dump(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False, default=str).encode()


def _pack(plain: bytes) -> bytes:
    deflated = base64.b64encode(zlib.compress(plain, 9)).decode()
    return json.dumps({"schema": COMPRESSED, "data": deflated}, separators=(",", ":")).encode()


def _unpack(envelope: dict[str, Any]) -> dict[str, Any]:
    try:
        inflater = zlib.decompressobj()
        plain = inflater.decompress(base64.b64decode(envelope.get("data", ""), validate=True), INFLATED_LIMIT)
        if inflater.unconsumed_tail or not inflater.eof:
            raise ResultError(f"the compressed result is broken or larger than {INFLATED_LIMIT} bytes")
        data = json.loads(plain)
    except (zlib.error, binascii.Error, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, ResultError):
            raise
        raise ResultError(f"the compressed result cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise ResultError("the compressed result is not an object")
    return data


def _cut_texts(value: Any, budget: int) -> Any:
    """A copy in which every text longer than `budget` characters is cut and marked."""
    if isinstance(value, str) and len(value) > budget:
        return value[: budget - len(CUT_MARK)] + CUT_MARK
    if isinstance(value, list):
        return [_cut_texts(item, budget) for item in value]
    if isinstance(value, dict):
        return {key: _cut_texts(item, budget) for key, item in value.items()}
    return value
