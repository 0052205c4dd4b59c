"""The parameters of a canary: what is accepted, and what an error says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from probes.canary.endpoint import parse_endpoint
from probes.canary.params import CanaryParams

URL = "http://127.0.0.1:8000"


@pytest.mark.parametrize(("url", "target", "authority"), [
    ("http://host:8000", "/v1/chat/completions", "host:8000"),
    ("http://host:8000/", "/v1/chat/completions", "host:8000"),
    ("http://host:8000/v1", "/v1/chat/completions", "host:8000"),
    ("https://host/serve/v1/", "/serve/v1/chat/completions", "host"),
    ("https://host:443/v1/chat/completions", "/v1/chat/completions", "host"),
    ("https://host:80", "/v1/chat/completions", "host:80"),
    ("http://[2001:db8::1]:9000/api", "/api/v1/chat/completions", "[2001:db8::1]:9000"),
    ("http://[fe80::1%25eth0]:9000", "/v1/chat/completions", "[fe80::1]:9000"),
    ("https://host/v1?api-version=2", "/v1/chat/completions?api-version=2", "host"),
    ("http://bücher.example/v1", "/v1/chat/completions", "xn--bcher-kva.example"),
])
def test_the_path_of_the_api_is_put_on(url: str, target: str, authority: str) -> None:
    endpoint = parse_endpoint(url)
    assert (endpoint.target("chat"), endpoint.authority) == (target, authority)
    assert endpoint.target("completions") == target.replace("/chat/", "/")


def test_the_zone_of_an_address_is_for_connecting_only() -> None:
    endpoint = parse_endpoint("http://[fe80::1%25eth0]:9000")
    assert (endpoint.host, endpoint.authority) == ("fe80::1%eth0", "[fe80::1]:9000")


@pytest.mark.parametrize(("url", "says"), [
    ("host:8000", "must begin with http://"),
    ("ftp://host", "must begin with http://"),
    ("http://", "names no host"),
    ("http://user:secret@host", "key_file"),
    ("http://host:99999", "not a URL"),
    ("http://host:0", "port 0"),
    ("http://host/v1#top", "fragment"),
    ("http://ho st/", "blank or a control character"),
    ("http://host/\r\nx: y", "blank or a control character"),
    ("http://host/é", "percent-encode"),
    ("http://[::1", "not a URL"),
    (f"http://{'a' * 70}.example", "not a host name"),
])
def test_a_url_that_cannot_be_used_says_why(url: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says) as caught:
        CanaryParams(url=url, model="m")
    assert "secret" not in str(caught.value.errors(include_input=False))


@pytest.mark.parametrize(("changes", "says"), [
    ({"unknown": 1}, "Extra inputs"),
    ({"headers": {"Authorization": "Bearer x"}}, "carries a secret"),
    ({"headers": {"x-api-key": "x"}}, "carries a secret"),
    ({"headers": {"Content-Length": "3"}}, "set by the canary itself"),
    ({"headers": {"x": "a\r\nb: c"}}, "printable ASCII"),
    ({"headers": {"b ad": "x"}}, "not a header name"),
    ({"headers": {"api_key": "a"}, "key_file": "/k", "key_header": "api_key"}, "given in headers and as key_header"),
    ({"key_header": "host"}, "cannot carry the key"),
    ({"extra_body": {"stream": False}}, "stream is set by the canary itself"),
    ({"extra_body": {"n": 2}}, "n must be 1"),
    ({"extra_body": {"min_tokens": 4}}, "min_tokens breaks"),
    ({"ca_file": "/ca.pem"}, "https:// only"),
    ({"insecure": True}, "https:// only"),
    ({"url": "https://h", "insecure": True, "ca_file": "/ca.pem"}, "one of the two"),
    ({"continuous_usage": True, "include_usage": False}, "needs include_usage"),
    ({"max_tokens": 100, "context_length": 100}, "do not fit"),
    ({"max_tokens": 0}, "greater than or equal to 1"),
    ({"seed": 2**53}, "less than"),
    ({"total_timeout": 0}, "greater than 0"),
    ({"total_timeout": float("nan")}, "finite number"),
    ({"model": ""}, "at least 1 character"),
])
def test_parameters_that_make_no_sense_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        CanaryParams.model_validate({"url": URL, "model": "m", **changes})


def test_the_defaults_are_a_light_request() -> None:
    params = CanaryParams(url=URL, model="m")
    assert (params.wanted_prompt_tokens, params.max_tokens, params.temperature) == (40, 32, 0.0)
    assert not params.trust_env
    assert not params.needs_lookup
    assert CanaryParams(url=URL, model="m", prompt="long").wanted_prompt_tokens == 4096
    assert CanaryParams(url=URL, model="m", prompt="long").needs_lookup


def test_the_longest_time_is_the_sum_of_what_can_be_waited_for() -> None:
    params = CanaryParams(url=URL, model="m", connect_timeout=1, tls_timeout=2, total_timeout=3)
    assert params.longest == 1 + 2 + 3 + 1
    assert params.model_copy(update={"prompt": "long"}).longest == params.longest + 5


def test_parameters_go_through_json_unchanged() -> None:
    extra = {"cache_salt": "x", "nested": {"a": [1, None]}}
    params = CanaryParams.model_validate({"url": "https://h/v1", "model": "m", "ca_file": Path("/ca.pem"), "extra_body": extra})
    assert CanaryParams.model_validate(params.model_dump(mode="json")) == params
