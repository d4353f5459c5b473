"""A strict reader for sweep files: plain data only, and the line of every value.

YAML 1.1, as implemented by PyYAML, reads 1e-8 as text, 010 as eight and 12:30 as a number, and lets a later duplicate
key win. Here numbers have their usual meaning, and aliases, tags, duplicate keys and oversized documents are rejected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from orchestrator.base.errors import InputError, Problem

Path = tuple[str | int, ...]

_MAX_BYTES = 256 * 1024
_MAX_DEPTH = 20
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_NON_FINITE = re.compile(r"([-+]?\.(inf|Inf|INF))|\.(nan|NaN|NAN)")
_NULLS = frozenset({"", "~", "null", "Null", "NULL", "none", "None"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Document:
    """Plain data, and where each of its values was written; the question that its first comment asks, or nothing."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, str] = field(default_factory=dict)
    question: str = ""

    def place(self, path: Path) -> str:
        """Where ``path``, or its nearest enclosing element, was written."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return self.name


def parse_scalar(text: str) -> Any:
    """The value of an unquoted ``text``: null, a boolean, a number or text."""
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


def parse_document(text: str, name: str) -> Document:
    """Read one mapping from ``text``; ``name`` stands for the file in messages.

    Raises InputError for anything that is not one plain YAML mapping.
    """
    if len(text.encode("utf-8", "surrogatepass")) > _MAX_BYTES:
        raise InputError(Problem(name, "", f"larger than {_MAX_BYTES // 1024} KiB", "a sweep file is a page of text"))
    try:
        _refuse_exotic(text, name)
        node = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(_syntax_problem(error, name)) from None
    if not isinstance(node, yaml.MappingNode):
        raise InputError(Problem(name, "", "is not a mapping of keys to values", "start with `name: my_sweep`"))
    document = Document(name, question=question_of(text))
    document.data = _value(node, (), document)
    return document


def question_of(text: str) -> str:
    """The question that the first comment of a sweep file asks, on one line; empty where it asks none."""
    words = []
    for line in text.splitlines():
        if not line.startswith("#") or not line.strip("# "):
            break
        words.append(line.strip("# "))
    asked, mark, _ = " ".join(words).partition("?")
    return asked + mark if mark else ""


def _refuse_exotic(text: str, name: str) -> None:
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


def _value(node: yaml.Node, path: Path, document: Document) -> Any:
    document.places[path] = f"{document.name}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.ScalarNode):
        return parse_scalar(node.value) if not node.style else node.value  # the C parser gives plain style as ""
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, i), document) for i, item in enumerate(node.value)]
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        where = f"{document.name}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise InputError(Problem(where, _dotted(path), "a key must be a word", "write `key: value`"))
        key = key_node.value
        if key in mapping:
            first = document.place((*path, key))
            raise InputError(
                Problem(where, _dotted((*path, key)), f"given twice; first at {first}", "keep one of them")
            )
        mapping[key] = _value(value_node, (*path, key), document)
        document.places[(*path, key)] = where
    return mapping


def _dotted(path: Path) -> str:
    return ".".join(str(part) for part in path)
