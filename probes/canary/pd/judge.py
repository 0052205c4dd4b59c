"""Evidence -> was this request disaggregated: yes, no or unknown, and by what. Pure.

Rules. Only the provenance test and the engines' counters can say yes: what a router or a picker decided, and everything a client sees, is a
path and no outcome. No is said when the counters leave no room for a transfer (the prompt was computed on decode, or nothing came in),
when the prefill side never worked, or when the path itself rules it out (a passthrough router, a decode-only decision, no hand-over).
Counters that cannot be read, that started again, that an engine does not have, or that other traffic hides say unknown, and why. A
constant zero is no data. Integrity is another verdict: a stale handle moves KV, and the wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from probes.canary.pd.evidence import Evidence, Says, Side

WHOLE = 0.9
"""Share of the prompt that counters must show to have carried it: blocks and the last token make it less than all."""
NONE = 0.1
"""Share of the prompt below which counters say that it did not go here."""
HALF = 0.5
"""Beside other traffic: a prompt counted at less than half did not happen."""
LEAST_TOKENS = 16
"""A prompt shorter than this is lost in the tokens of templates and blocks."""

Kind = Literal["provenance", "counters", "router_mode"]


@dataclass(frozen=True)
class Said:
    """One rule's word."""

    kind: Kind
    says: Says
    text: str


@dataclass(frozen=True)
class Disaggregation:
    """The verdict. `verdict` None: nothing was to be disaggregated. `evidence` is the kind that decided."""

    verdict: Says | None
    evidence: Literal["provenance", "counters", "router_mode", "none"]
    why: str
    said: tuple[Said, ...] = field(default=())


def judge(evidence: Evidence) -> Disaggregation:
    """See the module."""
    if evidence.route == "baseline":
        return _baseline(evidence)
    if not evidence.delivered:
        return Disaggregation("unknown", "none", "no answer was delivered: there is nothing to judge")
    rules = (_provenance, _counters, _prefill_worked, _handover, _router, _picker, _signs)
    said = tuple(one for rule in rules if (one := rule(evidence)) is not None)
    for kind in ("provenance", "counters"):
        deciding = [one for one in said if one.kind == kind and one.says != "unknown"]
        answers = {one.says for one in deciding}
        if len(answers) > 1:
            return Disaggregation("unknown", "none", "; but ".join(one.text for one in deciding), said)
        if deciding:
            return _required(evidence, Disaggregation(deciding[0].says, deciding[0].kind, deciding[0].text, said))
    against = next((one for one in said if one.kind == "router_mode" and one.says == "no"), None)
    if against is not None:
        return _required(evidence, Disaggregation("no", "router_mode", against.text, said))
    mute = next((one.text for one in said if one.kind == "counters"), "")
    path = next((one.text for one in said if one.kind == "router_mode"), "")
    if path:
        return Disaggregation("unknown", "router_mode", f"{path}, which is a path and no proof; {mute}".rstrip("; "), said)
    return Disaggregation("unknown", "none", mute or "nothing here tells whether KV moved", said)


def _required(evidence: Evidence, found: Disaggregation) -> Disaggregation:
    """A request that decode may serve alone is not blamed for it."""
    if evidence.required or found.verdict == "yes":
        return found
    return Disaggregation(None, found.evidence, f"not required of a prompt this short: {found.why}", found.said)


def _baseline(evidence: Evidence) -> Disaggregation:
    external = evidence.decode.any_grew("prompt_external")
    prompt = evidence.prompt_tokens or 0
    if external and prompt >= LEAST_TOKENS and external >= WHOLE * prompt and evidence.others() == 0:
        said = Said("counters", "yes", f"{external:.0f} prompt tokens came from another engine")
        return Disaggregation(None, "counters", f"the baseline is disaggregated itself: {said.text}", (said,))
    return Disaggregation(None, "none", "the baseline is not to be disaggregated")


def _provenance(evidence: Evidence) -> Said | None:
    if evidence.provenance is None:
        return None
    says: dict[str, tuple[Says, str]] = {
        "moved": ("yes", "with the hand-over of prompt A the answer to prompt B was A's: the KV came from prefill"),
        "recomputed": ("no", "with the hand-over of prompt A the answer to prompt B was B's: decode computed the prompt itself"),
        "neither": ("unknown", "with the hand-over of prompt A the answer to prompt B was neither A's nor B's"),
        "inconclusive": ("unknown", "the provenance test could not be made"),
    }
    return Said("provenance", *says[evidence.provenance])


def _counters(evidence: Evidence) -> Said | None:
    """What the decode side counted, by the best meters it has."""
    side, prompt = evidence.decode, evidence.prompt_tokens
    if side.trouble:
        return Said("counters", "unknown", side.trouble)
    if prompt is None or prompt < LEAST_TOKENS:
        return Said("counters", "unknown", f"a prompt of {prompt if prompt is not None else 'unknown'} tokens cannot be found in counters")
    if "sglang" in side.engines:
        return _sglang(evidence)
    external, local = side.grew("prompt_external"), side.grew("prompt_local")
    if external is not None and local is not None:
        return _by_source(evidence, prompt, external, local)
    hits, queries = side.grew("external_hits"), side.grew("external_queries")
    if hits is not None and queries is not None:
        return _by_hits(evidence, prompt, hits, queries)
    return Said("counters", "unknown", f"the metrics of {'/'.join(sorted(side.engines))} on decode do not tell where KV came from")


def _by_source(evidence: Evidence, prompt: int, external: float, local: float) -> Said:
    """vLLM since 0.16: prompt tokens by the source of their KV, taken at the first output."""
    side = evidence.decode
    figures = f"of a prompt of {prompt} tokens decode counted {external:.0f} from prefill and {local:.0f} computed itself"
    cached = side.any_grew("prompt_cached") or 0.0
    alone = evidence.others() == 0
    if external + local + cached < HALF * prompt:
        return Said("counters", "unknown", f"{figures}: it is not in these counters, so another pod served it, or they come later")
    if external < (NONE if alone else HALF) * prompt:
        if cached >= HALF * prompt and local < HALF * prompt:
            return Said("counters", "unknown", f"{figures}, and {cached:.0f} from its own cache: the prompt was not new")
        if not side.complete:
            return Said("counters", "unknown", f"{figures}, and not every decode pod is known")
        block = side.block_tokens
        if block is not None and prompt < block and evidence.connector not in ("nixl", None):
            return Said("counters", "unknown", f"{figures}: less than one block of {block}, which not every connector moves")
        return Said("counters", "no", figures)
    if alone:
        return _alone(evidence, external, prompt, figures)
    if external >= WHOLE * prompt and local < HALF * prompt:
        return Said("counters", "yes", f"{figures}, beside other traffic")
    return Said("counters", "unknown", f"{figures}: other traffic hides which of it was this request's")


def _alone(evidence: Evidence, external: float, prompt: int, figures: str) -> Said:
    """Nobody else was there: the counters are this request's own."""
    side = evidence.decode
    failed = side.any_grew("failed_transfers")
    if external < WHOLE * prompt:
        return Said("counters", "unknown", f"{figures}: a part only")
    if failed:
        return Said("counters", "unknown", f"{figures}, and {failed:.0f} failed transfers")
    if side.any_grew("kv_bytes") == 0:
        return Said("counters", "unknown", f"{figures}, and the transfer engine, which counted bytes before, counted none")
    return Said("counters", "yes", figures)


def _by_hits(evidence: Evidence, prompt: int, hits: float, queries: float) -> Said:
    """vLLM 0.11 to 0.15: hits are matched when a request is scheduled, so bytes must have moved as well."""
    side = evidence.decode
    moved = side.grew("kv_bytes")
    figures = f"of {queries:.0f} tokens asked of prefill {hits:.0f} were matched"
    if queries < HALF * prompt:
        return Said("counters", "unknown", f"{figures}, for a prompt of {prompt}: it is not in these counters")
    if hits < (NONE if evidence.others() == 0 else HALF) * prompt:
        return Said("counters", "no" if side.complete else "unknown", figures if side.complete else f"{figures}; a decode pod is unknown")
    if not moved:
        return Said("counters", "unknown", f"{figures}, and no bytes are known to have moved")
    if evidence.others() != 0 or side.any_grew("failed_transfers"):
        return Said("counters", "unknown", f"{figures}, beside other traffic or failed transfers")
    return Said("counters", "yes", f"{figures}, and {moved:.0f} bytes moved")


def _sglang(evidence: Evidence) -> Said:
    """SGLang: decode has no way to prefill, so what counts is that a transfer of this time is there at all."""
    unified = next((one.pod for one in evidence.decode.changes if one.engine_role == "unified"), None)
    if unified is not None:
        return Said("counters", "no", f"{unified} says of itself that it does prefill and decode alike")
    fake = evidence.decode.any_grew("fake_outputs")
    if fake:
        return Said("counters", "no", f"decode counted {fake:.0f} faked transfers")
    sent, came = evidence.prefill.any_grew("kv_bytes"), evidence.decode.any_grew("decode_transfers")
    requests = evidence.decode.any_grew("requests")
    if sent or came:
        what = f"prefill sent {sent:.0f} bytes of KV" if sent else f"decode counted {came:.0f} requests whose KV arrived"
        if evidence.others() == 0:
            return Said("counters", "yes", what)
        if came and requests and came >= requests:
            return Said("counters", "yes", f"decode counted {came:.0f} requests whose KV arrived for {requests:.0f} that it finished")
        return Said("counters", "unknown", f"{what}, beside other traffic")
    if evidence.prefill.trouble and came is None:
        return Said("counters", "unknown", evidence.prefill.trouble)
    if sent == 0 and came in (0, None) and evidence.prefill.complete:
        return Said("counters", "no", "prefill, which counted KV transfers before, counted none")
    return Said("counters", "unknown", "no transfer is counted, and these counters have always been 0 here: no data")


def _prefill_worked(evidence: Evidence) -> Said | None:
    """Without a prompt on the prefill side no KV can have come from there, whatever decode says."""
    side, prompt = evidence.prefill, evidence.prompt_tokens
    if not side.changes or side.trouble or not side.complete or prompt is None or prompt < LEAST_TOKENS or side.engines != {"vllm"}:
        return None
    done = side.grew("prompt_tokens")
    if done is None or done >= HALF * prompt:
        return None  # that prefill worked says nothing of what became of its KV
    seen = evidence.decode.grew("prompt_tokens")
    if seen is not None and not evidence.decode.trouble and seen < HALF * prompt:
        return None  # decode has not counted it either: these are not the pages of the pods that served it
    return Said("counters", "no", f"prefill worked on {done:.0f} prompt tokens, the prompt has {prompt}: prefill never had it")


def _handover(evidence: Evidence) -> Said | None:
    if evidence.handover == "missing":
        return Said("router_mode", "no", "the prefill worker's reply offered no KV, so decode had to compute the prompt")
    return Said("router_mode", "unknown", "the prefill worker offered its KV") if evidence.handover == "given" else None


def _router(evidence: Evidence) -> Said | None:
    """smg counts the way it dealt with each request."""
    side: Side = evidence.router
    if not side.changes or side.trouble:
        return None
    passed, moved = side.any_grew("router_passthrough") or 0.0, side.any_grew("router_nixl") or 0.0
    if passed and not moved:
        return Said("router_mode", "no", "the router passed the request through without KV parameters (passthrough): decode recomputes")
    if moved and not passed:
        return Said("router_mode", "unknown", "the router handed the KV parameters on")
    return Said("router_mode", "unknown", "the router did both ways in this time") if moved else None


def _picker(evidence: Evidence) -> Said | None:
    """The endpoint picker counts decisions, also those of requests that failed, and counts nothing of requests that name a pod."""
    side: Side = evidence.epp
    if not side.changes or side.trouble or evidence.route != "router":
        return None
    alone, both = side.any_grew("decided_decode_only") or 0.0, side.any_grew("decided_pd") or 0.0
    if alone and not both:
        return Said("router_mode", "no", "the endpoint picker decided for decode only")
    if both and not alone:
        return Said("router_mode", "unknown", "the endpoint picker decided for prefill and decode")
    return Said("router_mode", "unknown", "the endpoint picker decided both ways in this time") if both else None


def _signs(evidence: Evidence) -> Said | None:
    return Said("router_mode", "unknown", f"the answer shows {', '.join(evidence.path_signs)}") if evidence.path_signs else None
