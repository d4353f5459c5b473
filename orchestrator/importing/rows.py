"""A table file -> rows of named values, each with its place in the file."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.logs.separated import header_of

BLANK = "empty"  # the word for a cell without a text
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


def cell_text(raw: Any) -> str:
    """A cell in small letters; the word for an empty one."""
    return str(raw).strip().lower() if raw is not None and str(raw).strip() else BLANK


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


RUN = "run"
_BETWEEN = " - "
_SETTING = re.compile(r"([A-Za-z_][\w./]*)\s*[:=]\s*([^\s,;]+)")


def is_wide(table: Rows, loss: str) -> bool:
    """Whether ``table`` has columns of runs in place of a column ``loss``."""
    return loss not in table.columns and bool(_runs(table, loss))


def long_of_wide(table: Rows, step: str, loss: str, pattern: re.Pattern[str] | None) -> Rows:
    """``table`` with a loss in each row: its run, the settings in the run's name, step and loss.

    Settings are the named groups of ``pattern``, or else what stands as `NAME: VALUE` or `NAME=VALUE`. Raises
    InputError where the table has no column ``step``.
    """
    if step not in table.columns:
        raise InputError(Problem("--step", step, "is no column", f"the first column is {table.columns[0]!r}"))
    found = Rows(left_out=list(table.left_out))
    for column, run in _runs(table, loss).items():
        settings = _settings(run, pattern)
        if not settings:
            reason = "does not match --from-path" if pattern is not None else "names no setting (see --from-path)"
            found.left_out.append(LeftOut(column, f"the name of its run {reason}"))
            continue
        found.columns += [name for name in (RUN, *settings) if name not in found.columns]
        found.rows += [
            Row(row.where, {RUN: run, **settings, step: row.values.get(step), loss: row.values[column]})
            for row in table.rows
            if cell_text(row.values.get(column)) != BLANK
        ]
    found.columns += [step, loss]
    return found


def _runs(table: Rows, loss: str) -> Mapping[str, str]:
    """Each column of losses, and the name of its run."""
    end = f"{_BETWEEN}{loss}"
    return {name: name.removesuffix(end) for name in table.columns if name.endswith(end) and name != end}


def _settings(run: str, pattern: re.Pattern[str] | None) -> Mapping[str, str]:
    if pattern is None:
        return dict(_SETTING.findall(run))
    match = pattern.search(run)
    return {} if match is None else {name: text for name, text in match.groupdict().items() if text is not None}
