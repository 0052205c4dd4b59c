"""What one event says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.canary.events import EventError, StreamEvent, Usage, parse_event, printable
from probes.canary.sse import SseEvent


def parse(value: Any, name: str = "") -> StreamEvent:
    return parse_event(SseEvent(value if isinstance(value, str) else json.dumps(value), name))


def chat(finish: Any = None, **delta: Any) -> StreamEvent:
    return parse({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


@pytest.mark.parametrize("event", [
    chat(content="a"),
    chat(reasoning="a"),
    chat(reasoning_content="a"),
    chat(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]),
    chat(function_call={"name": "f"}),
    chat(refusal="no"),
    chat(content=[{"type": "text", "text": "a"}]),
    parse({"choices": [{"index": 0, "text": "a"}]}),
    parse({"choices": [{"index": 0, "text": "", "token_ids": [5]}]}),
    parse({"choices": [{"index": 0, "delta": {"content": ""}, "token_ids": [5, 6]}]}),
    parse({"object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}}]}),
    parse({"choices": [{"index": 0, "delta": {"content": " "}}]}),
])
def test_anything_the_model_made_is_a_token(event: StreamEvent) -> None:
    assert event.is_token


@pytest.mark.parametrize("event", [
    chat(role="assistant", content=""),
    chat(role="assistant"),
    chat(content=None),
    chat(content=""),
    chat(tool_calls=[]),
    chat(finish="stop"),
    parse({"choices": [], "usage": {"completion_tokens": 3}}),
    parse({"choices": None}),
    parse({"usage": None}),
    parse({"choices": [{"index": 0, "text": "", "token_ids": None}]}),
    parse({"choices": [{"index": 0, "delta": None}]}),
    parse(""),
    parse("[DONE]"),
    parse("not JSON", name="sglext_ids"),
    parse([1, 2], name="ping"),
])
def test_role_usage_and_empty_events_are_no_token(event: StreamEvent) -> None:
    assert not event.is_token


def test_reasoning_is_a_token_but_no_output() -> None:
    assert not chat(reasoning_content="hm").is_output
    assert chat(reasoning_content="hm", content="a").is_output
    assert not parse({"choices": [{"delta": {"reasoning": "hm"}, "token_ids": [1]}]}).is_output


def test_the_end_mark_may_have_blanks_around_it() -> None:
    assert parse(" [DONE] ").done


@pytest.mark.parametrize(("event", "says", "code"), [
    (parse({"error": {"message": "boom", "type": "InternalServerError", "code": 500}}), "InternalServerError: boom", 500),
    (parse({"error": "boom"}), "boom", None),
    (parse({"object": "error", "message": "boom", "code": 400}), "boom", 400),
    (parse({"error": {"object": "error", "message": "boom", "type": "T", "code": "x"}}), "T: boom", None),
    (parse({"message": "boom"}, name="error"), "boom", None),
    (parse("plain words", name="error"), "plain words", None),
    (parse({"error": {"code": 503}}), "an error object without a message", 503),
    (parse({"error": {"message": "a\n\x1b[31mb" + "x" * 1000}}), "a [31mb" + "x" * 292 + "…", None),
    (parse({"choices": [{"delta": {"content": "a"}}], "error": {"message": "both"}}), "both", None),
])
def test_an_error_object_is_an_error_in_any_form(event: StreamEvent, says: str, code: int | None) -> None:
    assert (event.error, event.error_code) == (says, code)
    assert not event.is_token


@pytest.mark.parametrize("absent", [None, False, ""])
def test_an_empty_error_field_is_no_error(absent: Any) -> None:
    assert parse({"error": absent, "choices": [{"delta": {"content": "a"}}]}).is_token


@pytest.mark.parametrize(("choice", "finish", "text"), [
    ({"finish_reason": "stop"}, "stop", ""),
    ({"finish_reason": {"type": "abort", "message": "Decode transfer failed"}}, "abort", "Decode transfer failed"),
    ({"finish_reason": "stop", "matched_stop": "NaN happened"}, "error", "NaN happened"),
    ({"finish_reason": None}, None, ""),
    ({"finish_reason": ["odd"]}, "['odd']", ""),
])
def test_finish_reasons_in_every_form(choice: dict[str, Any], finish: str | None, text: str) -> None:
    event = parse({"choices": [{"index": 0, "delta": {}, **choice}]})
    assert (event.finish, event.finish_text) == (finish, text)


@pytest.mark.parametrize(("value", "usage"), [
    ({"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}, Usage(5, 3, 2)),
    ({"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": None}, Usage(5, 3, None)),
    ({"prompt_tokens": -1, "completion_tokens": True}, Usage(None, None, None)),
    ({"completion_tokens": 1e9}, Usage(None, None, None)),
    ({"completion_tokens": 10**30}, Usage(None, None, None)),
    ("many", None),
    (None, None),
])
def test_only_whole_numbers_are_counts(value: Any, usage: Usage | None) -> None:
    assert parse({"choices": [], "usage": value}).usage == usage


@pytest.mark.parametrize("data", ["{", "nonsense", "[]", "3", "null", '"text"', '{"choices": 3}', '{"choices": [3]}', "[" * 100_000,
                                  '{"choices": [{"delta": "text"}]}', '{"a": ' + "9" * 5000 + "}"])
def test_an_event_of_another_protocol_is_refused_without_quoting_it(data: str) -> None:
    with pytest.raises(EventError) as caught:
        parse(data)
    assert len(str(caught.value)) < 100
    assert "nonsense" not in str(caught.value)


KEYS = st.sampled_from(["choices", "delta", "content", "error", "usage", "finish_reason", "text", "token_ids", "tool_calls", "message",
                        "type", "completion_tokens", "prompt_tokens_details", "cached_tokens", "id", "object", "code"])
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20)


@given(value=JSON, name=st.sampled_from(["", "error", "other"]))
def test_no_json_breaks_the_parser(value: Any, name: str) -> None:
    try:
        event = parse_event(SseEvent(json.dumps(value), name))
    except EventError:
        return
    assert isinstance(event.is_token, bool)


@given(text=st.text(max_size=2000))
def test_a_shown_text_is_one_short_printable_line(text: str) -> None:
    shown = printable(text)
    assert len(shown) <= 300
    assert shown.isprintable()
