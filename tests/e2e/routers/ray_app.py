"""A small OpenAI app on a real Ray Serve, with a prefill and a decode deployment and no model. Runs in Ray's own environment.

Usage: ray_app.py PORT FOLDER. Tokens go out as Ray Serve LLM sends them: what a batch interval gathered, in one piece of the body.
`/v1/applications` gives what Serve's controller tells the dashboard's REST API (`/api/serve/applications/`); the dashboard itself, ten more
processes, is not started.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any

import ray
from ray import serve
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

MODEL = "canary-model"
ITL = 0.02


class Prefill:
    async def run(self, prompt: str) -> dict[str, Any]:
        await asyncio.sleep(0.05)
        return {"tokens": len(prompt.split()), "replica": serve.get_replica_context().replica_id.unique_id}


class Decode:
    async def run(self, count: int) -> AsyncIterator[str]:
        for number in range(count):
            yield f"word{number} "
            await asyncio.sleep(ITL)


class Ingress:
    def __init__(self, prefill: Any, decode: Any) -> None:
        self.prefill, self.decode = prefill, decode.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        if request.url.path.endswith("/applications"):
            return Response(json.dumps(await details(), default=str), media_type="application/json")
        if request.url.path.endswith("/models"):
            return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        fields = await request.json()
        if "kv_transfer_params" in fields:
            return JSONResponse({"error": {"message": "AssertionError", "type": "InternalServerError", "code": 500}}, status_code=500)
        if fields.get("model") != MODEL:
            return JSONResponse({"error": {"message": "model not found", "type": "NotFound", "code": 404}}, status_code=404)
        prefilled = await self.prefill.run.remote(fields["messages"][0]["content"])
        fault, batch = request.headers.get("x-fault", ""), float(request.headers.get("x-batch", "0"))
        return StreamingResponse(self._events(fields, prefilled["tokens"], fault, batch), media_type="text/event-stream")

    async def _events(self, fields: dict[str, Any], prompt: int, fault: str, batch: float) -> AsyncIterator[str]:
        common = {"id": f"chatcmpl-{uuid.uuid4()}", "object": "chat.completion.chunk", "model": MODEL}
        count, made, held = int(fields["max_tokens"]), 0, ""
        loop = asyncio.get_running_loop()
        sent = loop.time()
        async for word in self.decode.run.remote(count):
            if fault and made == 3:
                if fault == "raise":
                    raise RuntimeError("decode died")
                yield self._event({"error": {"message": "decode failed", "type": "InternalServerError", "code": 500}})
                return
            made += 1
            delta = {"role": "assistant", "content": word} if made == 1 else {"content": word}
            held += self._event({**common, "choices": [{"index": 0, "delta": delta, "finish_reason": "length" if made == count else None}]})
            if loop.time() - sent >= batch:
                yield held
                held, sent = "", loop.time()
        usage = {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}
        yield held + self._event({**common, "choices": [], "usage": usage}) + "data: [DONE]\n\n"

    @staticmethod
    def _event(value: dict[str, Any]) -> str:
        return f"data: {json.dumps(value)}\n\n"


async def details() -> Any:
    """The details of this Serve instance, from its controller."""
    controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    return await controller.get_serve_instance_details.remote()


def main() -> None:
    port, folder = int(sys.argv[1]), sys.argv[2]
    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=folder, object_store_memory=80 << 20,
             log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    small = {"num_cpus": 0.1}
    prefill = serve.deployment(Prefill, name=f"Prefill:{MODEL}", ray_actor_options=small).bind()
    decode = serve.deployment(Decode, name=f"Decode:{MODEL}", ray_actor_options=small).bind()
    serve.run(serve.deployment(Ingress, name="Ingress", ray_actor_options=small).bind(prefill, decode), name="llm", route_prefix="/v1")
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
