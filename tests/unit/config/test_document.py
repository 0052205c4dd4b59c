"""YAML is read as YAML 1.2, with the place of every value, and nothing in a file can hurt the reader."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.config.document import DEPTH_LIMIT, SIZE_LIMIT, VALUES_LIMIT, Document, parse


def tree(text: str) -> object:
    document = parse(text.encode(), "f")
    assert document.problems == []
    return document.tree


@pytest.mark.parametrize(("text", "value"), [
    ("22:00", "22:00"), ("no", "no"), ("yes", "yes"), ("on", "on"), ("2026-01-01", "2026-01-01"), ("1e6", 1e6), ("0x10", 16), ("010", 10),
    ("0o17", 15), ("true", True), ("False", False), ("~", None), ("", None), ("null", None), ("-3", -3), (".5", 0.5), ("1_000", "1_000"),
    ("=", "="), (".inf", math.inf), ("-.inf", -math.inf), ("'5'", "5"), ("!!str 5", "5"), ("!!float 5", 5.0), ("é", "é"),
])
def test_scalars_are_what_they_look_like(text: str, value: object) -> None:
    assert tree(f"a: {text}\n") == {"a": value}


def test_not_a_number_is_one_float() -> None:
    found = tree("a: .nan")
    assert isinstance(found, dict)
    assert math.isnan(found["a"])


def test_every_key_and_value_has_its_place() -> None:
    document = parse(b"a:\n  - b: 1\n    c: {d: 2}\n", "f")
    assert document.keys["a", 0, "c"] == (3, 5)
    assert document.values["a", 0, "c", "d"] == (3, 12)
    assert document.mark(("a", 0, "nowhere", "deep")) == (2, 5)


def test_a_place_below_an_alias_is_that_of_the_anchor() -> None:
    document = parse(b"a: &x {k: 1}\nb: *x\n", "f")
    assert document.tree == {"a": {"k": 1}, "b": {"k": 1}}
    assert document.values["b", "k"] == (1, 11)


def test_merged_keys_yield_to_own_ones_and_earlier_sources_win() -> None:
    assert tree("a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 3}\n") == {
        "a": {"x": 1, "y": 1}, "b": {"y": 2, "z": 2}, "c": {"x": 3, "y": 1, "z": 2}}


def test_a_merge_that_contains_itself_is_refused() -> None:
    assert [problem.what for problem in parse(b"a: &a {<<: *a, x: 1}\n", "f").problems] == ["an anchor that contains itself"]


def test_a_byte_order_mark_is_no_problem() -> None:
    assert parse(b"\xef\xbb\xbfa: 1\n", "f").tree == {"a": 1}


def test_an_empty_file_and_one_of_comments_hold_nothing() -> None:
    assert parse(b"", "f").tree is None
    assert parse(b"# nothing\n---\n", "f").tree is None


@pytest.mark.parametrize("opening", [b"[", b"{", b"- ", b"? ", b"a: [", b"[{"])
def test_endless_nesting_ends_soon_with_a_message(opening: bytes) -> None:
    started = time.monotonic()
    document = parse((opening * SIZE_LIMIT)[: SIZE_LIMIT // 4], "f")
    assert f"more than {DEPTH_LIMIT} deep" in document.problems[0].what
    assert time.monotonic() - started < 20


def test_aliases_that_explode_are_stopped_soon() -> None:
    text = "x0: &x0 [1, 1]\n" + "".join(f"x{n}: &x{n} [*x{n - 1}, *x{n - 1}]\n" for n in range(1, 60))
    started = time.monotonic()
    document = parse(text.encode(), "f")
    assert [str(VALUES_LIMIT) in problem.what for problem in document.problems] == [True]
    assert document.tree is None
    assert time.monotonic() - started < 5


def test_too_large_a_file_is_not_even_parsed() -> None:
    assert "bytes" in parse(b"#" * (SIZE_LIMIT + 1), "f").problems[0].what


def test_the_place_of_a_bad_byte_is_told() -> None:
    problem = parse(b"a: 1\nb: x\xff\n", "f").problems[0]
    assert (problem.line, problem.column) == (2, 5)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_give_a_document_and_never_an_exception(raw: bytes) -> None:
    assert isinstance(parse(raw, "f"), Document)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab:- \n\t[]{},&*!<>|?'\"#%@0.~", max_size=80))
def test_any_text_that_looks_like_yaml_gives_a_tree_or_a_problem(text: str) -> None:
    document = parse(text.encode(), "f")
    assert all(problem.what and problem.line >= 1 for problem in document.problems)
