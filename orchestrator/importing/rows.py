"""Read tables: rows of values by column, each with its place in the file; also charts with a column for each run.

Weights & Biases and others export a chart so: the first column holds the steps, and `NAME - train/loss` the losses of
the run NAME; columns of minima and maxima (`NAME - train/loss__MIN`) are left out. The settings of a run are in its
name, as `lr: 0.01, warmup: 100` in a grouped chart, or as a pattern says.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError, Problem, one_line
from orchestrator.logs.line_formats import header_of

BLANK = "empty"  # stands for a cell without a text
RUN = "run"  # the column with the runs of a chart
MAX_BYTES = 1024**3
_PARQUET = (".parquet", ".pq")
_JSON_LINES = (".jsonl", ".ndjson")
_MAX_CELL = 2**24  # characters
_BETWEEN = " - "  # the name of a run and its metric
_SETTING = re.compile(r"([A-Za-z_][\w./]*)\s*[:=]\s*([^\s,;]+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its place as file:line, and its values by column, as texts if the file has only texts."""

    where: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row or a run that cannot be used, and why."""

    where: str
    reason: str

    def __str__(self) -> str:
        return one_line(f"{self.where}: {self.reason}")


@dataclass(slots=True)
class Rows:
    """The rows of tables, the names of their columns in order, and rows that could not be read."""

    columns: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def add(self, other: Rows) -> None:
        """Append the rows of another table."""
        self.add_columns(other.columns)
        self.rows += other.rows
        self.left_out += other.left_out

    def add_columns(self, names: Iterable[str]) -> None:
        """Append the columns that are new."""
        self.columns += [name for name in dict.fromkeys(names) if name not in self.columns]


def cell_text(raw: Any) -> str:
    """Return a cell in lower case, or BLANK."""
    return BLANK if raw is None else one_line(str(raw).strip().lower()) or BLANK


def flat(values: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings; dots join the names."""
    flattened: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flattened |= flat(value, f"{prefix}{key}.")
        else:
            flattened[one_line(f"{prefix}{key}")] = value
    return flattened


# --- files -----------------------------------------------------------------------------------------


def read_tables(paths: Sequence[Path]) -> Rows:
    """Return the rows of all tables at ``paths``, in order. Raises InputError for a file that is not a table."""
    rows = Rows()
    for path in paths:
        try:
            rows.add(_read(path))
        except OSError as error:
            problem = Problem(str(path), "", f"cannot be read: {error.strerror or error}", "check its name and rights")
            raise InputError(problem) from None
    return rows


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
        return _of_objects(str(path), _json_rows(text))
    return _separated(str(path), text)


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    import pandas as pd

    try:
        table = pd.read_parquet(path, dtype_backend="pyarrow")  # which distinguishes a missing value from a NaN
    except ImportError:
        message = "is a Parquet file, which pandas reads with pyarrow"
        raise InputError(Problem(str(path), "", message, "pip install pyarrow, or write it as CSV")) from None
    except Exception as error:  # pyarrow has its own errors
        raise InputError(Problem(str(path), "", f"is not a Parquet file: {str(error)[:200]}")) from None
    for number, row in enumerate(table.to_dict("records"), 1):
        yield number, {str(name): None if value is pd.NA else value for name, value in row.items()}


def _json_rows(text: str) -> Iterator[tuple[int, Any]]:
    """Yield objects with their lines, or of one JSON document with their positions in its list."""
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
    rows = Rows()
    for number, value in objects:
        where = f"{name}:{number}"
        if isinstance(value, Mapping):
            rows.rows.append(Row(where, flat(value)))
        else:
            rows.left_out.append(LeftOut(where, value if isinstance(value, str) else "is not an object with names"))
    rows.add_columns(column for row in rows.rows for column in row.values)
    if not rows.columns:
        raise InputError(Problem(name, "", "holds no row with named values", 'write lines such as {"lr": 0.1}'))
    return rows


def _separated(name: str, text: str) -> Rows:
    """Read comma, tab or semicolon separated values, without comments (lines that begin with #)."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]
    if not lines:
        raise InputError(Problem(name, "", "is empty", "the first line names the columns"))
    delimiter, header = header_of(lines[0][1]) or (",", [lines[0][1]])
    header = [one_line(cell.strip()) for cell in header]
    if twice := [column for column, count in Counter(header).items() if count > 1 and column]:
        raise InputError(Problem(name, twice[0], "names two columns", "rename one"))
    csv.field_size_limit(_MAX_CELL)
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


# --- charts ----------------------------------------------------------------------------------------


def is_chart(table: Rows, loss: str) -> bool:
    """Whether ``table`` has columns of runs instead of a column ``loss``."""
    return loss not in table.columns and bool(_run_columns(table, loss))


def rows_of_chart(table: Rows, step: str, loss: str, pattern: re.Pattern[str] | None) -> Rows:
    """Turn a chart into a table with a loss in each row, with the run, its settings and the step.

    Settings are the named groups of ``pattern``, or else `NAME: VALUE` and `NAME=VALUE` in the name of the run. Raises
    InputError if the table has no column ``step``.
    """
    if step not in table.columns:
        remedy = f"the first column is {table.columns[0]!r}"
        raise InputError(Problem("--step", "", f"{step!r} is not a column", remedy))
    rows = Rows(left_out=list(table.left_out))
    for column, run in _run_columns(table, loss).items():
        settings = _settings_in_name(run, pattern)
        if not settings:
            reason = "does not match --from-path" if pattern is not None else "names no setting (see --from-path)"
            rows.left_out.append(LeftOut(column, f"the name of its run {reason}"))
            continue
        rows.add_columns([RUN, *settings])
        rows.rows += [
            Row(row.where, {RUN: run, **settings, step: row.values.get(step), loss: row.values[column]})
            for row in table.rows
            if cell_text(row.values.get(column)) != BLANK
        ]
    rows.columns += [step, loss]
    return rows


def _run_columns(table: Rows, loss: str) -> Mapping[str, str]:
    """Return the name of the run for each column of losses."""
    end = f"{_BETWEEN}{loss}"
    return {name: name.removesuffix(end) for name in table.columns if name.endswith(end) and name != end}


def _settings_in_name(run: str, pattern: re.Pattern[str] | None) -> Mapping[str, str]:
    if pattern is None:
        return dict(_SETTING.findall(run))
    match = pattern.search(run)
    return {} if match is None else {name: text for name, text in match.groupdict().items() if text is not None}
