"""Read tables: rows of values by column, each with its place in the file; also charts with a column for each run.

Weights & Biases and others export a chart so: the first column holds the steps, and `NAME - train/loss` the losses of
the run NAME; columns of minima and maxima (`NAME - train/loss__MIN`) are left out. The settings of a run are in its
name, as `lr: 0.01, warmup: 100` in a grouped chart, or as a pattern says.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError, Problem, one_line
from orchestrator.base.words import count
from orchestrator.importing.spool import Row, StoredRows
from orchestrator.logs.line_formats import header_of

BLANK = "empty"  # stands for a cell without a text
RUN = "run"  # the column with the runs of a chart
MAX_BYTES = 1024**3
_PARQUET = (".parquet", ".pq")
_JSON_LINES = (".jsonl", ".ndjson")
_BATCH = 4096  # rows of a Parquet file that are in memory
_MAX_CELL = 2**24  # characters
_BETWEEN = " - "  # the name of a run and its metric
_SETTING = re.compile(r"([A-Za-z_][\w./]*)\s*[:=]\s*([^\s,;]+)")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row or a run that cannot be used, and why."""

    where: str
    reason: str

    def __str__(self) -> str:
        return one_line(f"{self.where}: {self.reason}")


@dataclass(slots=True)
class Rows:
    """The rows of tables, the names of their columns in order, and rows that could not be read.

    ``directions`` has, by column, the name of what a store optimises, and whether it maximizes it, None if unknown.
    """

    columns: list[str] = field(default_factory=list)
    rows: StoredRows = field(default_factory=StoredRows)
    left_out: list[LeftOut] = field(default_factory=list)
    directions: dict[str, tuple[str, bool | None]] = field(default_factory=dict)

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
    """Return the rows of all tables at ``paths``, in order.

    Raises InputError for a file that is not a table, and StorageError without room for temporary files.
    """
    rows = Rows()
    for path in paths:
        try:
            _read(path, rows)
        except OSError as error:
            problem = Problem(str(path), "", f"cannot be read: {error.strerror or error}", "check its name and rights")
            raise InputError(problem) from None
    return rows


def _read(path: Path, rows: Rows) -> None:
    if path.stat().st_size > MAX_BYTES:
        raise InputError(Problem(str(path), "", "is larger than the 1 GiB that is read", "split or thin it first"))
    ending = path.suffix.lower()
    if ending in _PARQUET:
        _add_objects(str(path), _parquet_rows(path), rows)
        return
    lines = _lines(path)
    # Only the first line with a text says of what format the table is.
    first = next((numbered for numbered in lines if numbered[1].strip()), (0, ""))
    lines = itertools.chain([first], lines)
    if ending in _JSON_LINES or first[1].lstrip().startswith(("{", "[")):
        _add_objects(str(path), _json_rows(lines, is_list=first[1].lstrip().startswith("[")), rows)
    else:
        _add_separated(str(path), lines, rows)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers and ends, one part of the file at a time."""
    at, number, encoding = 0, 0, "utf-8-sig"
    with path.open("rb") as file:
        for part in file:
            try:
                text = part.decode(encoding)
            except UnicodeDecodeError as error:
                message = f"is not UTF-8 text (byte {at + error.start})"
                raise InputError(Problem(str(path), "", message, "CSV, TSV, JSON lines and Parquet are read")) from None
            at, encoding = at + len(part), "utf-8"
            for line in text.splitlines(keepends=True):
                number += 1
                yield number, line


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    import pandas as pd

    number = 0
    try:
        import pyarrow
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH):
                # Which distinguishes a missing value from a NaN.
                table = pyarrow.Table.from_batches([batch]).to_pandas(types_mapper=pd.ArrowDtype)
                for row in table.to_dict("records"):
                    number += 1
                    yield number, {str(name): None if value is pd.NA else value for name, value in row.items()}
    except ImportError:
        message = "is a Parquet file, which pandas reads with pyarrow"
        raise InputError(Problem(str(path), "", message, "pip install pyarrow, or write it as CSV")) from None
    except Exception as error:  # pyarrow has its own errors
        raise InputError(Problem(str(path), "", f"is not a Parquet file: {str(error)[:200]}")) from None


def _json_rows(lines: Iterable[tuple[int, str]], is_list: bool) -> Iterator[tuple[int, Any]]:
    """Yield objects with their lines, or of one JSON document that ``is_list`` with their positions in it."""
    if is_list:
        lines = list(lines)
        try:
            whole = json.loads("".join(line for _, line in lines))
        except (ValueError, RecursionError):
            whole = None
        if isinstance(whole, list):
            yield from enumerate(whole, 1)
            return
    for number, line in lines:
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, f"is not JSON: {error}"


def _add_objects(name: str, objects: Iterable[tuple[int, Any]], rows: Rows) -> None:
    columns: dict[str, None] = {}
    for number, value in objects:
        where = f"{name}:{number}"
        if isinstance(value, Mapping):
            values = flat(value)
            columns |= dict.fromkeys(values)
            rows.rows.append(Row(where, values))
        else:
            rows.left_out.append(LeftOut(where, value if isinstance(value, str) else "is not an object with names"))
    rows.add_columns(columns)
    if not columns:
        raise InputError(Problem(name, "", "holds no row with named values", 'write lines such as {"lr": 0.1}'))


def _add_separated(name: str, numbered: Iterable[tuple[int, str]], rows: Rows) -> None:
    """Read comma, tab or semicolon separated values, without comments (lines that begin with #)."""
    lines = ((number, line) for number, line in numbered if line.strip() and line[0] != "#")
    _, head = next(lines, (0, ""))
    if not head:
        raise InputError(Problem(name, "", "is empty", "the first line names the columns"))
    (head,) = head.splitlines()
    delimiter, header = header_of(head) or (",", [head])
    header = [one_line(cell.strip()) for cell in header]
    if twice := [column for column, count in Counter(header).items() if count > 1 and column]:
        raise InputError(Problem(name, twice[0], "names two columns", "rename one"))
    rows.add_columns(column for column in header if column)
    csv.field_size_limit(_MAX_CELL)
    numbers: list[int] = []  # of the lines of the record that is read

    def texts() -> Iterator[str]:
        for number, line in lines:
            numbers.append(number)
            yield f"{line.splitlines()[0]}\n"

    try:
        for cells in csv.reader(texts(), delimiter=delimiter):
            where = f"{name}:{numbers[0]}"
            numbers.clear()
            if len(cells) != len(header):
                rows.left_out.append(
                    LeftOut(where, f"has {count(len(cells), 'cell')}, and the header has {len(header)}")
                )
                continue
            pairs = zip(header, cells, strict=True)
            rows.rows.append(Row(where, {column: cell.strip() for column, cell in pairs if column}))
    except csv.Error as error:
        raise InputError(Problem(f"{name}:{numbers[0]}", "", str(error), "is a quote left open?")) from None


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
    rows, wide = Rows(left_out=list(table.left_out)), list(table.rows)
    for column, run in _run_columns(table, loss).items():
        settings = _settings_in_name(run, pattern)
        if not settings:
            reason = "does not match --from-path" if pattern is not None else "names no setting (see --from-path)"
            rows.left_out.append(LeftOut(column, f"the name of its run {reason}"))
            continue
        rows.add_columns([RUN, *settings])
        rows.rows.extend(
            Row(row.where, {RUN: run, **settings, step: row.values.get(step), loss: row.values[column]})
            for row in wide
            if cell_text(row.values.get(column)) != BLANK
        )
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
