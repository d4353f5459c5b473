"""Anyone's training log -> steps, losses and gradient norms.

A reader for each format turns a file into a table of named columns; which of them are meant is then
found by their usual names, or named by the user. Nothing here knows how spikes are detected.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from orchestrator.errors import InputError, Problem

MAX_BYTES = 1024**3
_INFINITE = 1e100
_SHOWN_COLUMNS = 12
_COMPARED_COLUMNS = 50
_LONGEST_NAME = 250  # of a metric, as in MLflow
_LONGEST_LINE = 4000  # of text
_LONGEST_ROW = 4 * 1024**2  # of a table or of JSON lines
_LOG_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".log", ".txt", ".out", ".err")


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns of a log; None where they are to be found, or where there is none."""

    step: str | None = None
    loss: str | None = None
    grad_norm: str | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """One training run: steps that increase, a loss for each, gradient norms or None.

    Where a loss has no gradient norm beside it, the last one that was logged stands for it. ``notes``
    say what was left out on the way.
    """

    name: str
    columns: Columns
    step_N: np.ndarray = field(repr=False)
    loss_N: np.ndarray = field(repr=False)
    grad_norm_N: np.ndarray | None = field(repr=False)
    notes: tuple[str, ...] = ()


class Table:
    """Named columns of numbers, each with gaps: what one file holds."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.num_odd_lines = 0
        self._cells: dict[str, tuple[array[int], array[float]]] = {}

    def add(self, pairs: Iterable[tuple[str, float]]) -> None:
        """Append a row; of a name that comes twice the first counts."""
        for name, value in pairs:
            rows, values = self._cells.setdefault(name, (array("q"), array("d")))
            if not rows or rows[-1] != self.num_rows:
                rows.append(self.num_rows)
                values.append(value)
        self.num_rows += 1

    def names(self) -> list[str]:
        """Columns, the fullest first."""
        return sorted(self._cells, key=lambda name: -len(self._cells[name][0]))

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Rows that have a value in the column, and the values."""
        rows, values = self._cells[name]
        return np.array(rows, dtype=np.int64), np.array(values, dtype=np.float64)


def find_logs(path: Path) -> list[Path]:
    """The files that may be logs: ``path`` itself, or those in a folder and below, in order."""
    if not os.path.exists(path):  # a name that is too long is no error for it
        raise InputError(Problem(str(path), "", "no such file or folder", "give a log, a folder, or a sweep's name"))
    if not path.is_dir():
        return [path]
    found = [p for p in sorted(path.rglob("*")) if p.is_file() and _may_be_log(p.relative_to(path))]
    if not found:
        kinds = ", ".join(_LOG_SUFFIXES)
        raise InputError(Problem(str(path), "", "holds no logs", f"looked for {kinds} and TensorBoard event files"))
    return found


def _may_be_log(path: Path) -> bool:
    if any(part.startswith(".") for part in path.parts):
        return False
    return "tfevents" in path.name or path.suffix.lower() in _LOG_SUFFIXES


def read_log(path: Path, wanted: Columns) -> Log:
    """The training run in the file at ``path``.

    Raises InputError, naming the file and what was found in it, when it is no log or its columns
    cannot be told.
    """
    try:
        table = _read_table(path)
    except OSError as error:
        problem = Problem(str(path), "", f"cannot be read: {error.strerror or error}", "check that you may read it")
        raise InputError(problem) from None
    except csv.Error as error:
        raise InputError(Problem(str(path), "", f"is not a table: {error}", "check its first lines")) from None
    return make_log(str(path), table, wanted)


def make_log(name: str, table: Table, wanted: Columns) -> Log:
    """The log in ``table``. Raises InputError when its columns cannot be told."""
    chosen = _choose(name, table, wanted)
    loss_rows, losses = table.column(chosen.loss)
    losses = _unbounded(losses)
    steps, note = _steps_of(table, chosen.step, loss_rows)
    step = None if note else chosen.step
    if len(_kept(steps)) <= len(steps) // 2:
        step, steps, note = None, np.arange(len(steps)), f"{step} goes back too often: points are numbered from 0"
    notes = [note] if note else []
    if table.num_odd_lines:
        notes.append(f"not understood: {table.num_odd_lines} lines or records")
    kept = _kept(steps)
    if (num_dropped := len(steps) - len(kept)) > 0:
        notes.append(f"{num_dropped} points were written again at the same or an earlier step; the later ones count")
    grad_norms = None
    if chosen.grad_norm is not None:
        place_N, norms = table.column(chosen.grad_norm)
        wanted_N = loss_rows[kept]
        norm_steps, norm_note = _steps_of(table, step, place_N)
        if not norm_note:  # losses and norms of one step need not be of one line
            kept_norms = _kept(norm_steps)
            place_N, norms, wanted_N = norm_steps[kept_norms], norms[kept_norms], steps[kept]
        grad_norms = _last_of(place_N, _unbounded(norms), wanted_N)
    return Log(name, chosen, steps[kept], losses[kept], grad_norms, tuple(notes))


# --- which column is what --------------------------------------------------------------------------

STEP_NAMES = ("step", "global_step", "steps", "iter", "iteration", "iterations", "iters", "train_step", "update",
              "num_updates", "batch", "trainer/global_step", "train/global_step", "train/step",
              "_step", "it", "i")  # fmt: skip
LOSS_NAMES = ("loss", "train_loss", "train/loss", "training_loss", "loss/train", "train_loss_step", "lm_loss",
              "train/lm_loss", "ce_loss", "train/ce_loss", "cross_entropy_loss", "train/crossentropyloss",
              "train/cross_entropy_loss", "loss/total", "total_loss", "train/total_loss", "losses/train",
              "loss_metrics/global_avg_loss", "loss_step", "nll_loss", "trn_loss", "cross_entropy", "nll")  # fmt: skip
NORM_NAMES = ("grad_norm", "train/grad_norm", "gradnorm", "gnorm", "gradient_norm", "grad_norm_before_clip", "norm",
              "total_grad_norm", "optim/total_grad_norm", "grad/norm", "global_grad_norm", "grad_norm_step",
              "train/gradient_norm", "optim/grad_norm")  # fmt: skip
_NOT_TRAINING = re.compile(r"(?<![a-z])(val|eval|test|held|dev|scale|aux|z_?loss|best|ema|std)|scale$|_min$|_max$")


def _choose(name: str, table: Table, wanted: Columns) -> Columns:
    names = table.names()
    if not names:
        raise InputError(Problem(name, "", "holds no numbers with names", "a line such as `step 10 loss 3.2` is a log"))
    loss = _named(name, "--loss", wanted.loss, names) or first_usual(LOSS_NAMES, names) or _only_loss(name, names)
    step = _named(name, "--step", wanted.step, names)
    if step is None:
        rows = table.column(loss)[0]
        usual = [n for n in names if plain_name(n) in STEP_NAMES and n != loss][:_COMPARED_COLUMNS]
        shared = {n: len(np.intersect1d(table.column(n)[0], rows)) for n in usual}
        step = max(usual, key=lambda n: (shared[n], -STEP_NAMES.index(plain_name(n))), default=None)
    grad_norm = _named(name, "--grad-norm", wanted.grad_norm, names) or first_usual(NORM_NAMES, names)
    return Columns(step, loss, grad_norm)


@lru_cache(4096)
def plain_name(name: str) -> str:
    """``name`` as names are compared: in lower case, words joined by underscores."""
    return re.sub(r"[\s\-.]+", "_", name.strip().lower())


def _named(where: str, option: str, wanted: str | None, names: list[str]) -> str | None:
    if wanted is None:
        return None
    for match in (lambda n: n == wanted, lambda n: plain_name(n) == plain_name(wanted)):
        if found := [n for n in names if match(n)]:
            return found[0]
    raise InputError(Problem(where, option, f"no column {wanted!r}", f"columns: {listed(names)}"))


def first_usual(usual: Iterable[str], names: list[str]) -> str | None:
    """The first of the ``usual`` names that is among ``names``, as it is written there."""
    plain = {plain_name(n): n for n in reversed(names)}
    return next((plain[candidate] for candidate in usual if candidate in plain), None)


def training_losses(names: Iterable[str]) -> list[str]:
    """Those of ``names`` that can be a training loss, usual name or not."""
    candidates = [n for n in names if "loss" in plain_name(n) and not _NOT_TRAINING.search(plain_name(n))]
    return [n for n in candidates if "train" in plain_name(n)] or candidates


def _only_loss(where: str, names: list[str]) -> str:
    """The one column that can be a training loss by its name."""
    candidates = training_losses(names)
    if len(candidates) == 1:
        return candidates[0]
    found = (
        f"several may be the loss: {listed(candidates)}" if candidates else "no column is a training loss by its name"
    )
    raise InputError(Problem(where, "", found, f"say --loss NAME; columns: {listed(names)}"))


def listed(names: list[str]) -> str:
    """``names`` for a message: the first dozen, and how many more there are."""
    more = f" and {len(names) - _SHOWN_COLUMNS} more" if len(names) > _SHOWN_COLUMNS else ""
    return ", ".join(names[:_SHOWN_COLUMNS]) + more


def _steps_of(table: Table, step: str | None, loss_rows: np.ndarray) -> tuple[np.ndarray, str]:
    """The step of each loss, and a note. A step counts for the lines below it that name none."""
    numbered = np.arange(len(loss_rows), dtype=np.int64)
    if step is None:
        return numbered, "no column of steps: points are numbered from 0"
    rows, values = table.column(step)
    last = np.searchsorted(rows, loss_rows, side="right") - 1
    found = np.where(last >= 0, values[np.maximum(last, 0)], np.nan)
    found[last < 0] = values[0]  # losses before the first named step
    if not (np.abs(found) < 2**53).all() or (found != np.round(found)).any():
        return numbered, f"{step} is not a whole number everywhere: points are numbered from 0"
    return found.astype(np.int64), ""


def _unbounded(value_N: np.ndarray) -> np.ndarray:
    """``value_N`` with infinity for what is next to it, as MLflow stores it."""
    return np.where(np.abs(value_N) > _INFINITE, np.copysign(np.inf, value_N), value_N)


def _last_of(place_N: np.ndarray, value_N: np.ndarray, wanted_N: np.ndarray) -> np.ndarray:
    """The value at each wanted place; where there is none the last before it that is finite."""
    last_N = np.maximum(np.searchsorted(place_N, wanted_N, side="right") - 1, 0)
    finite = np.flatnonzero(np.isfinite(value_N))
    if len(finite):
        before_N = finite[np.maximum(np.searchsorted(finite, last_N, side="right") - 1, 0)]
        last_N = np.where(place_N[last_N] == wanted_N, last_N, before_N)
    return value_N[last_N]


def _kept(steps: np.ndarray) -> np.ndarray:
    """Points to keep: a run that went back to an earlier step wrote what follows again."""
    lowest_later = np.minimum.accumulate(steps[::-1])[::-1]
    return np.flatnonzero(np.append(steps[:-1] < lowest_later[1:], True))


# --- files -----------------------------------------------------------------------------------------


def _read_table(path: Path) -> Table:
    size = path.stat().st_size
    if size == 0:
        raise InputError(Problem(str(path), "", "is empty", "is the output still held back, or elsewhere?"))
    if size > MAX_BYTES:
        shown = f"{size / 1024**3:.1f} GiB"
        raise InputError(Problem(str(path), "", f"is {shown}, more than the 1 GiB that is read", "thin it first"))
    with open(path, "rb") as file:
        head = file.read(64 * 1024)
    if is_event_file(head):
        return _read_events(path)
    encoding = _encoding(head)
    if encoding is None:
        raise InputError(
            Problem(str(path), "", "is a binary file, not a log", "TensorBoard event files are understood")
        )
    return _reader(path, head.decode(encoding, "replace"))(path, encoding)


def _encoding(head: bytes) -> str | None:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"  # what a redirect writes on Windows
    return None if b"\0" in head else "utf-8-sig"


def _reader(path: Path, head: str) -> Callable[[Path, str], Table]:
    text = without_colours(head).lstrip()
    if text.startswith(("{", "[")):
        first_line = text.splitlines()[0]
        try:
            if isinstance(json.loads(first_line), dict):
                return _read_json_lines if len(text.splitlines()) > 1 else _read_json
        except (ValueError, RecursionError):
            pass
        if path.suffix.lower() == ".json" or re.match(r'[\[{]\s*["\[{]', text):
            return _read_json
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return _read_csv if delimiter_of(lines) else _read_text


def delimiter_of(lines: list[str]) -> str | None:
    """What separates the columns of a table with a header, or None for other text."""
    if not lines:
        return None
    for delimiter in ("\t", ",", ";"):
        cells = [next(csv.reader([line], delimiter=delimiter), []) for line in lines[:2]]
        if len(cells[0]) < 2 or len(cells[0]) != len(cells[-1]):
            continue
        if all(next(text_pairs(line), None) for line in lines[:2]):
            continue
        if len(cells) == 1 or all(number_of(cell) is not None or not cell.strip() for cell in cells[1][:1]):
            return delimiter
        if any(number_of(cell) is not None for cell in cells[1]):
            return delimiter
    return None


def _read_csv(path: Path, encoding: str) -> Table:
    """Comma, tab or semicolon separated values with a header; empty cells were not logged."""
    table = Table()
    with open(path, encoding=encoding, errors="replace", newline="") as file:
        lines = (line for line in _lines(file, _LONGEST_ROW) if line.strip() and not line.startswith("#"))
        first = [next(lines, ""), next(lines, "")]
        delimiter = delimiter_of([line for line in first if line]) or ","
        header = [name.strip() for name in next(csv.reader([first[0]], delimiter=delimiter))]
        if all(number_of(name) is not None for name in header):
            header = [f"column_{i + 1}" for i in range(len(header))]
            lines = _chain(first, lines)
        else:
            lines = _chain(first[1:], lines)
        for row in csv.reader((line for line in lines if line), delimiter=delimiter):
            if len(row) != len(header):
                table.num_odd_lines += 1
                continue
            if delimiter == ";":  # what a spreadsheet writes where the comma is the decimal point
                row = [cell.replace(",", ".") for cell in row]
            cells = ((name, number_of(cell)) for name, cell in zip(header, row, strict=True))
            table.add((name, value) for name, value in cells if value is not None)
    return table


def _lines(file: TextIO, longest: int) -> Iterator[str]:
    """Lines of ``file``, cut to ``longest`` characters: what is a gigabyte long is no line of a log."""
    while line := file.readline(longest):
        yield line
        while len(line) == longest and line[-1] not in "\r\n":
            line = file.readline(longest)


def _chain(first: Iterable[str], rest: Iterable[str]) -> Iterator[str]:
    yield from first
    yield from rest


def _read_json_lines(path: Path, encoding: str) -> Table:
    """One JSON object a line."""
    table = Table()
    with open(path, encoding=encoding, errors="replace") as file:
        for line in _lines(file, _LONGEST_ROW):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                table.add(flat_pairs(row))
            else:
                table.num_odd_lines += 1
    return table


def _read_json(path: Path, encoding: str) -> Table:
    """A JSON document: `log_history` of the Hugging Face trainer, a list of objects, or lists by name."""
    try:
        data = json.loads(path.read_text(encoding=encoding, errors="replace"))
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(str(path), "", f"is not JSON: {error}", "was it cut off or written twice?")) from None
    rows = data.get("log_history", data) if isinstance(data, dict) else data
    table = Table()
    if isinstance(rows, dict):
        columns = {name: values for name, values in rows.items() if isinstance(values, list)}
        if not columns:
            table.add(flat_pairs(rows))
        for i in range(max(map(len, columns.values()), default=0)):
            table.add(flat_pairs({name: values[i] for name, values in columns.items() if i < len(values)}))
    elif isinstance(rows, list):
        for row in rows:
            if isinstance(row, dict):
                table.add(flat_pairs(row))
            else:
                table.num_odd_lines += 1
    return table


def flat_pairs(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Names and numbers of a JSON object; nested names are joined with a slash."""
    for name, value in row.items():
        if len(prefix) + len(name) > _LONGEST_NAME:
            continue
        if isinstance(value, dict):
            yield from flat_pairs(value, f"{prefix}{name}/")
        elif isinstance(value, str):
            if (number := number_of(value)) is not None:
                yield f"{prefix}{name}", number
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", _float(value)


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a JSON integer of any length
        return math.inf if value > 0 else -math.inf


_NUMBER = r"[-+]?(?:\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_WORD = r"(?!(?:nan|inf|infinity|info|debug|warning)\b)[A-Za-z_][\w/.\-]{0,249}+"
# A name of up to three words; a colon or an equals sign, maybe; a number, maybe with a unit. Both may be quoted.
_PAIR = re.compile(
    rf"(?<![\w.])({_WORD}(?: {_WORD}){{0,2}})(?=[\"'\s(:=])[\"']?\s*+(?:\([^)]*+\))?+\s*+[:=]?\s*+[\"']?"
    rf"({_NUMBER})(?=[A-Za-z%]{{0,3}}(?![\w.]\w))",
    re.IGNORECASE,
)
_NUMBER_ALONE = re.compile(_NUMBER, re.IGNORECASE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def _read_text(path: Path, encoding: str) -> Table:
    """Lines such as `step 10/1000 | loss 3.21 | norm 0.5`: names followed by numbers."""
    table = Table()
    with open(path, encoding=encoding, errors="replace") as file:
        for line in _lines(file, _LONGEST_LINE):
            if any(character.isdigit() for character in line) or "nan" in line.lower():
                table.add(text_pairs(without_colours(line)))
    return table


def without_colours(text: str) -> str:
    """``text`` without the codes that colour it on a terminal."""
    return _COLOURS.sub("", text)


def text_pairs(line: str) -> Iterator[tuple[str, float]]:
    """Names in their plain form, and the numbers that follow them."""
    for match in _PAIR.finditer(line[:_LONGEST_LINE]):
        yield plain_name(match[1]), float(match[2].replace(",", ""))


def number_of(cell: str) -> float | None:
    """The number that is all of ``cell``, maybe quoted; None for anything else."""
    text = cell.strip().strip("\"'")
    if not _NUMBER_ALONE.fullmatch(text):
        return None
    return float(text.replace(",", ""))


# --- TensorBoard -----------------------------------------------------------------------------------

_FRAME = struct.Struct("<QI")  # length of a record and a checksum of it; the record; another checksum
_CHECKSUM_SIZE = 4


def is_event_file(head: bytes) -> bool:
    """Whether the first record is the one in which TensorBoard writes its version."""
    return len(head) > _FRAME.size and b"brain.Event:" in head[:64]


def event_frames(content: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Where the frame of each record begins and ends; the last may end beyond ``content``."""
    begin = 0
    while begin + _FRAME.size <= len(content):
        length, _ = _FRAME.unpack_from(content, begin)
        end = begin + _FRAME.size + length + _CHECKSUM_SIZE
        yield begin, end
        begin = end


def event_scalars(frame: bytes) -> tuple[int, list[tuple[str, float]]]:
    """Step, names and numbers of the record in ``frame``. Raises ValueError where it is damaged."""
    from tensorboardX.proto.event_pb2 import Event  # comes with Ray

    length, _ = _FRAME.unpack_from(frame)
    try:
        event = Event.FromString(frame[_FRAME.size : _FRAME.size + length])
    except Exception as error:  # the protobuf runtime names its errors differently in each version
        raise ValueError(str(error)) from None
    scalars = ((value.tag, _scalar(value)) for value in event.summary.value)
    return event.step, [(tag, number) for tag, number in scalars if number is not None]


def _read_events(path: Path) -> Table:
    """Scalars of a TensorBoard event file; a record that was cut off ends it."""
    table = Table()
    size = path.stat().st_size
    with open(path, "rb") as file:
        while len(head := file.read(_FRAME.size)) == _FRAME.size:
            length, _ = _FRAME.unpack(head)
            record = file.read(length) if length <= size else b""
            file.read(_CHECKSUM_SIZE)
            if len(record) < length:
                table.num_odd_lines += 1
                break
            try:
                step, scalars = event_scalars(head + record)
            except ValueError as error:
                problem = Problem(str(path), "", f"is a damaged event file: {error}", "copy it again")
                raise InputError(problem) from None
            for name, value in scalars:
                table.add([("step", float(step)), (name, value)])
    return table


def _scalar(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return value.simple_value
    if kind != "tensor":
        return None
    tensor = value.tensor
    for numbers in (tensor.float_val, tensor.double_val):
        if len(numbers) == 1:
            return float(numbers[0])
    content = {1: "<f", 2: "<d"}.get(tensor.dtype)
    if content and len(tensor.tensor_content) == struct.calcsize(content):
        return struct.unpack(content, tensor.tensor_content)[0]
    return None
