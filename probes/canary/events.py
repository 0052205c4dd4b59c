"""What one event of an OpenAI-compatible stream says: tokens, an end, counts or an error."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from probes.canary.sse import SseEvent

DONE = "[DONE]"
_TEXT_LIMIT = 300
_COUNT_LIMIT = 1 << 31


class EventError(ValueError):
    """An event that no server of this protocol sends. The text describes it without quoting it: it may hold the answer."""


@dataclass(frozen=True)
class Usage:
    """Token counts as the server gives them."""

    prompt: int | None
    completion: int | None
    cached: int | None


@dataclass(frozen=True)
class StreamEvent:
    """One event, classified. `tokens` counts the token ids it carries, None when it carries none; `logprobs` are pairs of a token's text
    and its log probability."""

    done: bool = False
    error: str | None = None
    error_code: int | None = None
    content: str = ""
    reasoning: str = ""
    tool_call: bool = False
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[tuple[str, float], ...] = ()
    finish: str | None = None
    finish_text: str = ""
    usage: Usage | None = None
    id: str | None = None

    @property
    def is_token(self) -> bool:
        """Whether it brings anything the model made. Role, usage, empty and finish-only events do not."""
        return self.is_output or bool(self.reasoning)

    @property
    def is_output(self) -> bool:
        """Whether it brings something other than reasoning. Token ids without any text count as output."""
        return bool(self.content) or self.tool_call or (bool(self.token_ids) and not self.reasoning)

    @property
    def tokens(self) -> int | None:
        """Number of tokens it brings, where it says so."""
        return len(self.token_ids) or None


def parse_event(event: SseEvent) -> StreamEvent:
    """Classify one event. Raises EventError for what is neither JSON of this protocol nor the end mark."""
    text = event.data.strip()
    if text == DONE:
        return StreamEvent(done=True)
    named = event.name not in ("", "message")
    if not text and event.name != "error":
        return StreamEvent()
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        if event.name == "error":
            return StreamEvent(error=printable(text))
        if named:
            return StreamEvent()
        raise EventError(f"an event of {len(text)} characters that is not JSON") from None
    if not isinstance(data, dict):
        if named and event.name != "error":
            return StreamEvent()
        raise EventError(f"an event that is a JSON {type(data).__name__}, not an object")
    error = _error(data, event.name)
    if error is not None:
        return error
    return _chunk(data)


def error_in(text: str) -> StreamEvent | None:
    """The error object in a JSON body, None when it holds none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _error(data, "") if isinstance(data, dict) else None


def printable(text: str, limit: int = _TEXT_LIMIT) -> str:
    """`text` in one line of at most `limit` characters that any terminal and log can show."""
    cut = text[: limit * 2]
    shown = "".join(char if char.isprintable() else " " for char in cut)
    shown = " ".join(shown.split())
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _error(data: dict[str, Any], name: str) -> StreamEvent | None:
    error = data.get("error")
    if not error and data.get("object") != "error" and name != "error":
        return None
    detail = error if isinstance(error, dict) else data
    message = detail.get("message") if not isinstance(error, str) else error
    kind = detail.get("type")
    parts = [str(part) for part in (kind, message) if isinstance(part, str) and part]
    code = detail.get("code")
    return StreamEvent(error=printable(": ".join(parts) or "an error object without a message"),
                       error_code=code if _is_count(code) else None, id=_text(data.get("id")))


def _chunk(data: dict[str, Any]) -> StreamEvent:
    choices = data.get("choices")
    if choices is None:
        choices = []
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise EventError("an event whose choices are not a list of objects")
    content, reasoning, ids = [], [], []
    logprobs: list[tuple[str, float]] = []
    tool_call = False
    finish, finish_text = None, ""
    for choice in choices:
        delta = choice.get("delta") or choice.get("message") or {}
        if not isinstance(delta, dict):
            raise EventError("an event whose delta is not an object")
        content += [_words(choice.get("text")), _words(delta.get("content")), _words(delta.get("refusal"))]
        reasoning.append(_words(delta.get("reasoning_content")) or _words(delta.get("reasoning")))
        tool_call = tool_call or _calls(delta)
        logprobs += _logprobs(choice.get("logprobs"))
        ids += _ids(choice.get("token_ids")) or _ids(delta.get("token_ids"))
        if choice.get("finish_reason"):
            finish, finish_text = _finish(choice)
    return StreamEvent(content="".join(content), reasoning="".join(reasoning), tool_call=tool_call, token_ids=tuple(ids),
                       logprobs=tuple(logprobs), finish=finish, finish_text=finish_text, usage=_usage(data.get("usage")),
                       id=_text(data.get("id")))


def _words(value: Any) -> str:
    """Text of a delta, given plainly or as a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""


def _calls(delta: dict[str, Any]) -> bool:
    calls = delta.get("tool_calls")
    return bool(isinstance(calls, list) and calls) or bool(isinstance(delta.get("function_call"), dict) and delta["function_call"])


def _ids(value: Any) -> list[int]:
    return [item for item in value if _is_count(item)] if isinstance(value, list) else []


def _logprobs(value: Any) -> list[tuple[str, float]]:
    """Tokens with their log probabilities, in the form of chat completions or in that of text completions."""
    if not isinstance(value, dict):
        return []
    if isinstance(value.get("content"), list):
        pairs = [(entry.get("token"), entry.get("logprob")) for entry in value["content"] if isinstance(entry, dict)]
    elif isinstance(value.get("tokens"), list) and isinstance(value.get("token_logprobs"), list):
        pairs = list(zip(value["tokens"], value["token_logprobs"], strict=False))
    else:
        return []
    return [(token, float(logprob)) for token, logprob in pairs
            if isinstance(token, str) and isinstance(logprob, (int, float)) and not isinstance(logprob, bool) and logprob == logprob]


def _finish(choice: dict[str, Any]) -> tuple[str, str]:
    """The finish reason as a word, and what the engine adds to it. SGLang's own form is an object with a type and a message."""
    value = choice["finish_reason"]
    if isinstance(value, dict):
        return printable(str(value.get("type", "unknown")), 40), printable(str(value.get("message") or ""))
    if choice.get("matched_stop") == "NaN happened" or choice.get("stop_reason") == "NaN happened":
        return "error", "NaN happened"
    return printable(str(value), 40), ""


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(_count(value.get("prompt_tokens")), _count(value.get("completion_tokens")), _count(cached))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _COUNT_LIMIT


def _count(value: Any) -> int | None:
    return value if _is_count(value) else None


def _text(value: Any) -> str | None:
    return printable(value, 128) or None if isinstance(value, str) else None
