"""A table file -> rows of named values, each with its place in the file."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.logs.separated import header_of

MAX_BYTES = 1024**3
_PARQUET = (".parquet", ".pq")
_JSON_LINES = (".jsonl", ".ndjson")
_LONGEST_CELL = 2**24  # characters


@dataclass(frozen=True, slots=True)
class Row:
    """One row: where it stands, as file:line, and its values by column; texts where the file has only texts."""

    where: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row or a run that cannot be used, and why."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(slots=True)
class Rows:
    """The rows of some tables, the names of their columns in order, and rows that could not be read."""

    columns: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


def read_tables(paths: Sequence[Path]) -> Rows:
    """The rows of all tables at ``paths``, one after the other. Raises InputError for a file that is no table."""
    found = Rows()
    for path in paths:
        try:
            one = _read(path)
        except OSError as error:
            problem = Problem(str(path), "", f"cannot be read: {error.strerror or error}", "check its name and rights")
            raise InputError(problem) from None
        found.columns += [name for name in one.columns if name not in found.columns]
        found.rows += one.rows
        found.left_out += one.left_out
    return found


def _read(path: Path) -> Rows:
    if path.stat().st_size > MAX_BYTES:
        raise InputError(Problem(str(path), "", "is larger than the 1 GiB that is read", "split or thin it first"))
    ending = path.suffix.lower()
    if ending in _PARQUET:
        return _of_objects(str(path), _parquet_rows(path))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text (byte {error.start})"
        raise InputError(Problem(str(path), "", message, "CSV, TSV, JSON lines and Parquet are read")) from None
    if ending in _JSON_LINES or text.lstrip().startswith(("{", "[")):
        return _of_objects(str(path), _json_rows(str(path), text))
    return _separated(str(path), text)


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    import pandas as pd

    try:
        table = pd.read_parquet(path, dtype_backend="pyarrow")  # which tells a missing value from a NaN
    except ImportError:
        message = "is a Parquet file, which pandas reads with pyarrow"
        raise InputError(Problem(str(path), "", message, "pip install pyarrow, or write it as CSV")) from None
    except Exception as error:  # pyarrow has errors of its own
        raise InputError(Problem(str(path), "", f"is no Parquet file: {str(error)[:200]}")) from None
    for number, row in enumerate(table.to_dict("records"), 1):
        yield number, {str(name): None if value is pd.NA else value for name, value in row.items()}


def _json_rows(name: str, text: str) -> Iterator[tuple[int, Any]]:
    """Objects with their lines; of one JSON document with their places in its list."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, list):
        yield from enumerate(whole, 1)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, f"is not JSON: {error}"


def _of_objects(name: str, objects: Iterable[tuple[int, Any]]) -> Rows:
    found = Rows()
    for number, one in objects:
        where = f"{name}:{number}"
        if isinstance(one, Mapping):
            found.rows.append(Row(where, flat(one)))
        else:
            found.left_out.append(LeftOut(where, one if isinstance(one, str) else "is no object with names"))
    found.columns = list(dict.fromkeys(column for row in found.rows for column in row.values))
    if not found.columns:
        raise InputError(Problem(name, "", "holds no row with named values", 'a line such as {"lr": 0.1} is one'))
    return found


def flat(values: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with names joined by dots."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _separated(name: str, text: str) -> Rows:
    """Comma, tab or semicolon separated values. A line that begins with # is a comment."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]
    if not lines:
        raise InputError(Problem(name, "", "is empty", "the first line names the columns"))
    found = header_of(lines[0][1])
    delimiter, header = found if found is not None else (",", [lines[0][1]])
    header = [cell.strip() for cell in header]
    _check_header(name, header)
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader((f"{line}\n" for _, line in lines[1:]), delimiter=delimiter)
    rows = Rows([column for column in header if column])
    last = 0
    try:
        for cells in reader:
            where, last = f"{name}:{lines[last + 1][0]}", reader.line_num
            if len(cells) != len(header):
                rows.left_out.append(LeftOut(where, f"has {len(cells)} cells, and the header has {len(header)}"))
                continue
            pairs = zip(header, cells, strict=True)
            rows.rows.append(Row(where, {column: cell.strip() for column, cell in pairs if column}))
    except csv.Error as error:
        raise InputError(Problem(f"{name}:{lines[last + 1][0]}", "", str(error), "is a quote left open?")) from None
    return rows


def _check_header(name: str, header: Sequence[str]) -> None:
    twice = [column for column, count in Counter(header).items() if count > 1 and column]
    if twice:
        raise InputError(Problem(name, twice[0], "names two columns", "rename one of them"))
