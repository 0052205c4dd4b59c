"""Who refused: what an error answer of an llm-d gateway or sidecar means, by its words. The codes alone blame the wrong side.

Recorded with llm-d-router of August 2026; an answer that is not known here is taken at its code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from probes.canary.stacks.base import Refusal
from probes.canary.status import DROPPED_REASON, Status

PICKER = "x-went-into-resp-headers"
_UNREADABLE = ("unexpected end of json input", "invalid character", "cannot unmarshal")
"""What Go says of a reply that is not JSON; the canary's own request always is."""


def llm_d_refusal(code: int, headers: Mapping[str, str], body: str) -> Refusal | None:
    """The meaning of an error answer, None where it speaks for itself. Header names are lower case."""
    text = body.strip()
    said = _sidecar_says(text)
    if said is not None:
        return _of_the_sidecar(code, said)
    if code == 502 and not text:
        return Refusal(None, "the sidecar could not reach the prefill worker")
    if code == 403 and "prefill target not allowed" in text:
        return Refusal(None, "the sidecar knows no such prefill worker: it is not in the InferencePool")
    if code == 400 and text == "Client sent an HTTP request to an HTTPS server.":
        return Refusal(Status.TLS_FAILED, "the sidecar speaks TLS: use https://")
    if code == 503 and PICKER in headers and text.startswith("upstream connect error"):
        return Refusal(None, "the gateway could not reach the decode pod's sidecar")
    if code == 500 and not text and PICKER not in headers:
        return Refusal(None, "the gateway could not ask its endpoint picker")
    if headers.get(DROPPED_REASON) == "rejected-saturated" and "no endpoints available" in text:
        return Refusal(None, "the gateway is full, or it has no decode pod: look at its ready endpoints")
    if text.startswith("inference error:"):
        return Refusal(None, "the endpoint picker refused")
    return None


def _of_the_sidecar(code: int, said: str) -> Refusal | None:
    """What the sidecar itself says, in its own form of an error object."""
    lowered = said.lower()
    if code == 400 and any(known in lowered for known in _UNREADABLE) and not lowered.startswith("invalid json"):
        # It looks like the client's fault and is the prefill worker's: its 200 did not hold JSON.
        return Refusal(Status.HTTP_5XX, "the sidecar could not read the prefill worker's reply")
    if "decode node is not ready" in lowered:
        return Refusal(None, "the sidecar could not reach its decode engine")
    if "bootstrap" in lowered or "engine_id" in lowered:
        return Refusal(None, "the sidecar got no engine id from the prefill worker's bootstrap server")
    if code == 502 and said == "EOF":
        return Refusal(None, "the decode engine closed the connection before its answer")
    return None


def _sidecar_says(text: str) -> str | None:
    """The message of the sidecar's error object, None for any other body."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(data, dict) and data.get("object") == "error" and isinstance(data.get("message"), str):
        return str(data["message"])
    return None
