"""What goes over the wire."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from canary_peers import QUICK, MakeParams, OnePeer, delivered, quick

from probes.canary.client import measure, run_canary
from probes.canary.dial import Dialer, SetupError
from probes.canary.params import CanaryParams
from probes.canary.served import served_context
from probes.canary.simulated import SimulatedEndpoint

ANSWER = (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
          b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')


def sent(**fields: Any) -> tuple[str, dict[str, str], dict[str, Any]]:
    """The request line, headers (names in lower case) and body of a request with `fields`."""
    with OnePeer(lambda sock: sock.sendall(ANSWER)) as peer:
        params = CanaryParams.model_validate({"url": peer.url, "model": "m", "check_length": False, **QUICK, **fields})
        run = measure(params)
        assert run.stream.status == "ok", run.message
    head, _, body = peer.request.partition(b"\r\n\r\n")
    line, *lines = head.decode().split("\r\n")
    names = [one.partition(":")[0].lower() for one in lines]
    assert len(names) == len(set(names)), names
    return line, {one.partition(":")[0].lower(): one.partition(":")[2].strip() for one in lines}, json.loads(body)


def test_the_default_request() -> None:
    line, headers, body = sent()
    assert line == "POST /v1/chat/completions HTTP/1.1"
    assert (headers["accept"], headers["accept-encoding"], headers["content-type"]) == ("text/event-stream", "identity", "application/json")
    assert headers["user-agent"].startswith("efa-pulse-canary/")
    assert re.fullmatch(r"127\.0\.0\.1:\d+", headers["host"])
    assert "authorization" not in headers
    assert "x-request-id" not in headers
    prompt = body.pop("messages")[0]["content"]
    assert len(prompt.split()) in range(28, 36)
    assert body == {"model": "m", "stream": True, "max_tokens": 32, "stream_options": {"include_usage": True}, "ignore_eos": True,
                    "temperature": 0.0}


def test_a_text_completion_with_everything_changed() -> None:
    line, headers, body = sent(api="completions", max_tokens=5, token_limit_field="max_completion_tokens", include_usage=False,
                               ignore_eos=False, temperature=None, seed=7, extra_body={"cache_salt": "s", "priority": 5},
                               headers={"Host": "model.example", "X-Tenant": "probe", "User-Agent": "other"})
    assert line == "POST /v1/completions HTTP/1.1"
    assert (headers["host"], headers["x-tenant"], headers["user-agent"]) == ("model.example", "probe", "other")
    assert isinstance(body.pop("prompt"), str)
    assert body == {"model": "m", "stream": True, "max_completion_tokens": 5, "seed": 7, "cache_salt": "s", "priority": 5}


def test_every_try_has_a_new_first_block() -> None:
    prompts = [sent()[2]["messages"][0]["content"] for _ in range(3)]
    assert len({" ".join(prompt.split()[:8]) for prompt in prompts}) == 3


def test_the_key_comes_from_its_file_at_every_run(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("first-key\n")
    assert sent(key_file=key)[1]["authorization"] == "Bearer first-key"
    key.write_text("second-key")
    assert sent(key_file=key)[1]["authorization"] == "Bearer second-key"
    assert sent(key_file=key, key_header="x-api-key")[1]["x-api-key"] == "second-key"


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_a_key_that_the_endpoint_repeats_is_in_no_text_of_the_result(tmp_path: Path, header: str) -> None:
    key = tmp_path / "key"
    key.write_text("sk-of-this-test")
    body = b'{"error":{"message":"Incorrect API key provided: Bearer sk-of-this-test","type":"auth"}}'
    answer = (b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\nserver: sk-of-this-test\r\n"
              b"x-request-id: 7-sk-of-this-test\r\ncontent-length: %d\r\n\r\n" % len(body)) + body
    with OnePeer(lambda sock: sock.sendall(answer)) as peer:
        run = measure(CanaryParams.model_validate({"url": peer.url, "model": "m", "check_length": False, **QUICK,
                                                   "key_file": key, "key_header": header}))
    assert b"sk-of-this-test" in peer.request
    assert run.message == "HTTP 401: auth: Incorrect API key provided: Bearer (key)"
    assert (run.stream.request_id, run.versions["server"]) == ("7-(key)", "(key)")
    assert "sk-of-this-test" not in run.stream.model_dump_json()


@pytest.mark.parametrize("content", [None, b"", b"two words", b"line\nbreak", b"\xff\xfe", "schlüssel".encode()])
def test_a_key_file_that_cannot_be_used_is_told_without_its_content(tmp_path: Path, content: bytes | None) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_bytes(content)
    with pytest.raises(SetupError, match="key_file") as caught:
        run_canary(CanaryParams(url="http://127.0.0.1:1", model="m", key_file=key))
    assert "words" not in str(caught.value)


def test_a_long_prompt_is_fitted_to_what_the_endpoint_serves() -> None:
    with SimulatedEndpoint(context_length=1024) as endpoint:
        run = measure(quick(endpoint.url, prompt="long", max_tokens=8))
        assert delivered(run), run.message
        assert 700 < run.prompt_tokens < 1000
        assert run.stream.prompt_tokens is not None
        assert abs(run.stream.prompt_tokens - run.prompt_tokens) < 16


def test_a_context_that_fits_nothing_is_told() -> None:
    with SimulatedEndpoint(context_length=64) as endpoint, pytest.raises(SetupError, match="serves 64 tokens"):
        run_canary(quick(endpoint.url, prompt="long", max_tokens=64))


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nnothing",
    b'HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{"data":[[3]]}',
    b'HTTP/1.1 200 OK\r\ncontent-length: 34\r\n\r\n{"data":[{"id":"m","context":"x"}]}',
    b"",
    b"nonsense\r\n\r\n",
])
def test_an_endpoint_that_does_not_tell_its_context_gets_the_wanted_length(answer: bytes) -> None:
    with OnePeer(lambda sock: sock.sendall(answer)) as peer:
        params = quick(peer.url, model="m")
        assert served_context(params, Dialer(params), []) is None
    assert peer.request.startswith(b"GET /v1/models HTTP/1.1\r\n")


def test_what_the_simulated_endpoint_refuses(params: MakeParams) -> None:
    assert "does not exist" in measure(params(model="other")).message
    assert "context length" in measure(params(prompt_tokens=100_000, context_length=200_000)).message
    assert "ttft" in measure(params({"ttft": -1})).message
