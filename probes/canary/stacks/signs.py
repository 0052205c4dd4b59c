"""What an answer shows of the way it took. None of it proves that KV moved: a decode worker that recomputed the prompt shows the same."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def path_signs(headers: Sequence[tuple[str, str]], response_id: str | None) -> tuple[str, ...]:
    """Signs in the response's headers (lower-case names) and in the id of the answer, in words."""
    names = {name for name, _ in headers}
    found = []
    if "x-went-into-resp-headers" in names:
        found.append("an llm-d endpoint picker in the path")
    if "x-smg-routed-worker-id" in names:
        found.append("the decode worker that smg chose")
    if response_id is not None and _version(response_id) == 1:
        found.append("an id made by an llm-d sidecar: its prefill leg was answered")
    return tuple(found)


def _version(response_id: str) -> int | None:
    """The version of the UUID in a response id, None without one. A sidecar makes version 1, engines and gateways make version 4."""
    match = _UUID.search(response_id)
    return uuid.UUID(match[0]).version if match else None
