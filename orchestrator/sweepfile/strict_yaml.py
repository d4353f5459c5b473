"""YAML as sweep files use it: read strictly, with the line of every value, and written so that any reader agrees.

YAML 1.1, as implemented by PyYAML, reads 1e-8 as text, 010 as eight and 12:30 as a number, and lets a later duplicate
key win. Here numbers have their usual meaning, and aliases, tags, duplicate keys and oversized documents are rejected.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from orchestrator.base.errors import InputError, Problem

KeyPath = tuple[str | int, ...]

MAX_PROBLEMS = 20  # listed in one message
_MAX_BYTES = 256 * 1024
_MAX_DEPTH = 20
_MAX_VALUES, _MAX_NESTED = 1_000_000, 100  # of a file of another program
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_NON_FINITE = re.compile(r"([-+]?\.(inf|Inf|INF))|\.(nan|NaN|NAN)")
_NULLS = frozenset({"", "~", "null", "Null", "NULL", "none", "None"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Document:
    """Plain data with the place of each value, and the file's first comment, as lines with their marks."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, str] = field(default_factory=dict)
    comment: str = ""

    def place(self, path: KeyPath) -> str:
        """Return where ``path``, or its nearest enclosing element, was written: FILE:LINE or an option."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return self.name

    def problem(self, path: KeyPath, message: str, remedy: str = "") -> Problem:
        """Return a problem of the value at ``path``."""
        return Problem(self.place(path), dotted(path), message, remedy)

    def set_place(self, path: KeyPath, option: str) -> None:
        """Record ``option`` as the place of ``path`` and everything below, instead of lines of the file."""
        for place in [place for place in self.places if place[: len(path)] == path]:
            del self.places[place]
        self.places[path] = option


def parse_scalar(text: str) -> Any:
    """Return the value of an unquoted ``text``: null, a boolean, a number or text."""
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    # int() rejects more than 4300 digits, and no field needs more than 18.
    if _INTEGER.fullmatch(text):
        return int(text) if len(text) <= 18 else float(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NON_FINITE.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text


def read_document(path: str | os.PathLike[str], remedy: str = "`sweep init NAME` writes a sweep file") -> Document:
    """Read the YAML mapping in the file at ``path``. Raises InputError; for a missing file it has the ``remedy``."""
    try:
        with open(path, "rb") as file:
            content = file.read(10 * 1024 * 1024)
    except FileNotFoundError:
        raise InputError(Problem(str(path), "", "no such file", remedy)) from None
    except OSError as error:
        raise InputError(Problem(str(path), "", f"cannot be read: {error.strerror}")) from None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(Problem(str(path), "", f"is not UTF-8 text (byte {error.start})")) from None
    return parse_document(text, str(path))


def parse_document(text: str, name: str) -> Document:
    """Parse the YAML mapping in ``text``; messages call the file ``name``.

    Raises InputError for anything that is not one plain YAML mapping.
    """
    if len(text.encode("utf-8", "surrogatepass")) > _MAX_BYTES:
        raise InputError(Problem(name, "", f"larger than {_MAX_BYTES // 1024} KiB", "a sweep file is a page of text"))
    try:
        _reject_exotic(text, name)
        node = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(_syntax_problem(error, name)) from None
    if not isinstance(node, yaml.MappingNode):
        raise InputError(Problem(name, "", "is not a mapping of keys to values", "start with `name: my_sweep`"))
    document = Document(name, comment=first_comment(text))
    document.data = _value(node, (), document)
    return document


def question_of(text: str) -> str:
    """Return the question in the first comment of a sweep file, on one line; empty if it asks nothing."""
    words = (line.strip("# ") for line in first_comment(text).splitlines())
    question, mark, _ = " ".join(words).partition("?")
    return question + mark if mark else ""


def first_comment(text: str) -> str:
    """Return the lines of the comment that a sweep file begins with, up to one without words."""
    lines = itertools.takewhile(lambda line: line.startswith("#") and line.strip("# "), text.splitlines())
    return "".join(f"{line}\n" for line in lines)


def load_foreign(text: str) -> Any:
    """Return what the YAML of another program says. Raises ValueError for too much, as aliases can stand for."""
    anchors: dict[str | None, float] = {}  # the values below each
    open_anchors: list[str | None] = []
    sizes: list[float] = [0]  # the values so far of each open collection
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append(event.anchor)
            sizes.append(0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchors[open_anchors.pop()] = size = sizes.pop()
            sizes[-1] += size
        elif isinstance(event, yaml.AliasEvent):
            sizes[-1] += anchors.get(event.anchor, math.inf)  # an unknown one stands for what it is in
        elif isinstance(event, yaml.ScalarEvent):
            anchors[event.anchor] = 1
            sizes[-1] += 1
        if sizes[-1] > _MAX_VALUES or len(sizes) > _MAX_NESTED:
            raise ValueError(f"holds more than {_MAX_VALUES:,} values, aliases written out, or {_MAX_NESTED} levels")
    return yaml.load(text, Loader=_Loader)


def _reject_exotic(text: str, name: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        where = f"{name}:{event.start_mark.line + 1}"  # type: ignore[union-attr] # a parsed event has a mark
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise InputError(Problem(where, "", "anchors and aliases are not allowed", "write the value out"))
        if (tag := getattr(event, "tag", None)) not in (None, "!"):
            raise InputError(Problem(where, "", f"the tag {tag} is not allowed", "remove the tag"))
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise InputError(Problem(where, "", f"nested deeper than {_MAX_DEPTH}", "flatten the file"))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _syntax_problem(error: Exception, name: str) -> Problem:
    mark = getattr(error, "problem_mark", None)
    where = f"{name}:{mark.line + 1}" if mark else name
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    return Problem(where, "", f"not valid YAML: {what}", "check indentation, colons and brackets")


def _value(node: yaml.Node, path: KeyPath, document: Document) -> Any:
    document.places[path] = f"{document.name}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.ScalarNode):
        return parse_scalar(node.value) if not node.style else node.value  # the C parser gives plain style as ""
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, i), document) for i, item in enumerate(node.value)]
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        where = f"{document.name}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise InputError(Problem(where, dotted(path), "a key must be a word", "write `key: value`"))
        key = key_node.value
        if key in mapping:
            first = document.place((*path, key))
            raise InputError(Problem(where, dotted((*path, key)), f"given twice; first at {first}", "keep one"))
        mapping[key] = _value(value_node, (*path, key), document)
        document.places[(*path, key)] = where
    return mapping


def dotted(path: KeyPath) -> str:
    """Return the key of a value as users write it: ``axes.lr``."""
    return ".".join(str(part) for part in path)


class _Dumper(yaml.SafeDumper):
    """Writes floats readably, lists on one line, null explicitly, and what is used twice out twice."""

    def ignore_aliases(self, data: Any) -> bool:
        """Without an alias: a sweep file has none."""
        return True


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
    # Other YAML readers take 1e-12 as text; all of them read 1.0e-12 as a number.
    digits = repr(value)
    text = digits.replace("e", ".0e") if "e" in digits and "." not in digits else digits
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(float, _represent_float)
_Dumper.add_representer(
    list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)
)


def text_of(data: Mapping[str, Any]) -> str:
    """Write the keys and values of a sweep file as YAML."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
