"""YAML text as plain values, with the place of each: YAML 1.2 scalars, no tags, no repeated keys, bounded aliases.

PyYAML reads YAML 1.1, where `22:00` is the number 1320, `no` is false, `1e6` is a text and `2026-01-01` is a date; here they are what they
look like.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from exporter.config.problems import Loc, Problem, dotted

SIZE_LIMIT = 1 << 20
VALUES_LIMIT = 100_000
DEPTH_LIMIT = 64
DIGITS_LIMIT = 40
_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULL = ("", "~", "null", "Null", "NULL")


def _core_resolvers(loader: Any) -> None:
    """Give `loader` the implicit types of YAML 1.2's core schema and the merge key, and no others."""
    loader.yaml_implicit_resolvers = {}
    for tag, pattern, first in (("bool", "true|True|TRUE|false|False|FALSE", "tTfF"), ("null", "~|null|Null|NULL|", "~nN\0"),
                                ("int", _INT.pattern, "-+0123456789"), ("float", _FLOAT.pattern, "-+.0123456789"), ("merge", "<<", "<")):
        keys: list[str] = ["" if char == "\0" else char for char in first]
        loader.add_implicit_resolver(_TAG + tag, re.compile(f"^(?:{pattern})$"), keys)


class _Loader(yaml.SafeLoader):
    """Pure Python: slow, with the better messages."""


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """libyaml where it is built in."""


_core_resolvers(_Loader)
_core_resolvers(_FastLoader)


@dataclass
class Document:
    """A parsed document. `keys` and `values` hold line and column (from 1) of every key and value by its place."""

    file: str
    tree: Any = None
    keys: dict[Loc, tuple[int, int]] = field(default_factory=dict)
    values: dict[Loc, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, loc: Loc, what: str, todo: str = "", *, at_key: bool = False) -> Problem:
        """A problem at `loc`, placed at the nearest part of it that is in the file."""
        line, column = self.mark(loc, at_key=at_key)
        return Problem(self.file, line, column, dotted(loc), what, todo)

    def mark(self, loc: Loc, *, at_key: bool = False) -> tuple[int, int]:
        """Line and column of `loc`, else of the nearest part above it."""
        if at_key and loc in self.keys:
            return self.keys[loc]
        while loc and loc not in self.values:
            loc = loc[:-1]
        return self.values.get(loc, (1, 1))


def parse(raw: bytes, file: str) -> Document:
    """The document in `raw`. What is wrong stands in `problems`; the tree then holds what could be read."""
    document = Document(file)
    if len(raw) > SIZE_LIMIT:
        document.problems.append(Problem(file, 0, 0, "", f"the file has {len(raw)} bytes, at most {SIZE_LIMIT} are read",
                                         "split the work over several instances"))
        return document
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        document.problems.append(Problem(file, line, column, "", f"byte 0x{raw[error.start]:02x} is not UTF-8", "save the file as UTF-8"))
        return document
    try:
        node = _compose(text)
    except yaml.YAMLError as error:
        document.problems.append(_syntax(text, file, error))
        return document
    except RecursionError:
        document.problems.append(Problem(file, 1, 1, "", f"lists or mappings are nested more than {DEPTH_LIMIT} deep", "flatten them"))
        return document
    if node is not None:
        builder = _Builder(document)
        tree = builder.build(node, ())
        # Half a tree would only add complaints about what is missing in it.
        document.tree = None if builder.overrun else tree
    return document


def _compose(text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_FastLoader)
    except yaml.YAMLError:
        return yaml.compose(text, Loader=_Loader)


def _syntax(text: str, file: str, error: yaml.YAMLError) -> Problem:
    if isinstance(error, yaml.reader.ReaderError):
        line, column = text.count("\n", 0, error.position) + 1, error.position - (text.rfind("\n", 0, error.position) + 1) + 1
        character = ord(error.character) if isinstance(error.character, str) else error.character
        return Problem(file, line, column, "", f"character U+{character:04X} is not allowed in YAML", "remove it")
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    said = str(getattr(error, "problem", None) or error)
    if "'\\t'" in said:
        return Problem(file, line, column, "", "a tab where YAML needs spaces", "indent with spaces")
    if "found undefined alias" in said:
        return Problem(file, line, column, "", said, "define the anchor with & before it is used")
    if "but found another document" in said:
        return Problem(file, line, column, "", "a second document in one file", "remove the line with ---")
    context = getattr(error, "context", None)
    return Problem(file, line, column, "", f"not YAML: {f'{context}, ' if context else ''}{said}", "check indentation, colons and quotes")


class _Builder:
    """Turns nodes into values, once per alias, and counts them: ten lines of aliases can stand for a billion values."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._left = VALUES_LIMIT
        self._open: set[int] = set()
        self.overrun = False

    def build(self, node: yaml.Node, loc: Loc) -> Any:
        self._document.values[loc] = _place(node)
        self._left -= 1
        if self._left < 0:
            if not self.overrun:
                self.overrun = True
                self._say(node, (), f"aliases make more than {VALUES_LIMIT} values of this file", "write less of it with anchors")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, loc)
        if id(node) in self._open:
            self._say(node, loc, "an anchor that contains itself", "remove the alias")
            return None
        if len(loc) >= DEPTH_LIMIT:
            self.overrun = True
            self._say(node, loc[:8], f"lists or mappings are nested more than {DEPTH_LIMIT} deep", "flatten them")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
                return [self.build(child, (*loc, index)) for index, child in enumerate(node.value)]
            if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
                return self._mapping(node, loc)
        finally:
            self._open.discard(id(node))
        self._say(node, loc, f"tag {_short_tag(node.tag)} is not known here", "remove it")
        return None

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                for key, value in self._merge(value_node, loc).items():
                    merged.setdefault(key, value)
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._say(key_node, loc, "a key must be a text", "write it as a word")
                continue
            key = key_node.value
            if _unusable(key):
                self._say(key_node, loc, "a key with characters that are no text", "write it as a word")
                continue
            if key in own:
                first = self._document.keys[(*loc, key)]
                self._say(key_node, (*loc, key), f"key {key!r} is given twice, first in line {first[0]}", "remove one of them")
                continue
            value = self.build(value_node, (*loc, key))
            self._document.keys[(*loc, key)] = _place(key_node)
            own[key] = value
        return {**{key: value for key, value in merged.items() if key not in own}, **own}

    def _merge(self, node: yaml.Node, loc: Loc) -> dict[str, Any]:
        if isinstance(node, yaml.SequenceNode):
            result: dict[str, Any] = {}
            for child in node.value:
                for key, value in self._merge(child, loc).items():
                    result.setdefault(key, value)
            return result
        if not isinstance(node, yaml.MappingNode):
            self._say(node, loc, "<< needs a mapping or a list of mappings", "name an anchor of a mapping, as in <<: *name")
            return {}
        place = self._document.values.get(loc)
        value = self.build(node, loc)
        if place is not None:
            self._document.values[loc] = place
        return value if isinstance(value, dict) else {}

    def _scalar(self, node: yaml.ScalarNode, loc: Loc) -> Any:
        text, tag = node.value, node.tag
        if tag == _TAG + "str" or tag == _TAG + "merge":
            if _unusable(text):
                self._say(node, loc, "a text with half of a surrogate pair", "remove the escape")
                return None
            return text
        if tag == _TAG + "null" and text in _NULL:
            return None
        if tag == _TAG + "bool" and text in _BOOL:
            return _BOOL[text]
        if tag == _TAG + "int" and _INT.fullmatch(text):
            if len(text) > DIGITS_LIMIT:
                self._say(node, loc, f"a number of {len(text)} digits", "write a smaller one")
                return None
            return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
        if tag == _TAG + "float" and (_FLOAT.fullmatch(text) or _INT.fullmatch(text)):
            return _float(text)
        if tag in {_TAG + kind for kind in ("null", "bool", "int", "float")}:
            self._say(node, loc, f"{text[:40]!r} does not fit its tag {_short_tag(tag)}", "remove the tag")
        else:
            self._say(node, loc, f"tag {_short_tag(tag)} is not known here", "remove it")
        return None

    def _say(self, node: yaml.Node, loc: Loc, what: str, todo: str) -> None:
        line, column = _place(node)
        self._document.problems.append(Problem(self._document.file, line, column, dotted(loc), what, todo))


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _unusable(text: str) -> bool:
    return any(0xD800 <= ord(char) <= 0xDFFF for char in text)


def _short_tag(tag: str) -> str:
    return ("!!" + tag.removeprefix(_TAG) if tag.startswith(_TAG) else tag)[:80]


def _float(text: str) -> float:
    lowered = text.lower()
    if lowered.endswith(".inf"):
        return -math.inf if lowered.startswith("-") else math.inf
    return math.nan if lowered == ".nan" else float(text)
