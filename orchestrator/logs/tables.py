"""From the named columns of a whole log, each with gaps, to one training run: steps, losses and gradient norms.

Since all of the log is known, a resumed run continues from the step that it returned to, and a gradient norm may
follow the loss of its step.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.words import count, listed
from orchestrator.logs.columns import (
    COUNTER,
    FEWEST_SILENT,
    LOSS_NAMES,
    LR_NAMES,
    MAX_LISTED,
    NORM_NAMES,
    STEP_NAMES,
    VALIDATION_NAMES,
    Columns,
    Silence,
    WaysBack,
    find_name,
    first_usual,
    names_any_loss,
    plain_name,
    training_losses,
)
from orchestrator.logs.counted import ENDS, FEWEST, MUCH_NEARER, counted
from orchestrator.logs.steps import Cells, continued_steps, epochs_of, first_lines, kept_points, steps_of

_INFINITE = 1e100  # MLflow stores infinity as a number near the largest float
_MAX_COMPARED = 50  # columns of steps
_OFTEN = 10  # a loss with fewer values by this factor than another usual one was not printed by the training


@dataclass(frozen=True, slots=True)
class Log:
    """One training run: increasing steps, a loss for each, and gradient norms or None.

    A loss without a gradient norm has the last one logged before it, as has the learning rate. ``notes`` say what was
    left out. ``validation`` are steps and losses of validations, None without any.
    """

    name: str
    columns: Columns
    step_N: np.ndarray = field(repr=False)
    loss_N: np.ndarray = field(repr=False)
    grad_norm_N: np.ndarray | None = field(repr=False)
    notes: tuple[str, ...] = ()
    lr_N: np.ndarray | None = field(default=None, repr=False)
    validation: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)


class Table:
    """Named columns of numbers, each with gaps: the content of one file."""

    def __init__(self) -> None:
        self.num_odd_lines = 0
        self.num_left_out = 0  # lines with a loss that have another kind or rank
        self.question: Callable[[str], str | None] = lambda loss: None  # for the user, about the lines of a loss
        self._num_rows = 0
        # Rows with equal names, of which a log has few kinds, are stored together: their numbers and values.
        self._kinds: dict[tuple[str, ...], tuple[array[int], array[float]]] = {}

    def add(self, row: Mapping[str, float]) -> None:
        """Append a row."""
        names = tuple(row)
        kind = self._kinds.get(names)
        if kind is None:
            kind = self._kinds[names] = (array("q"), array("d"))
        kind[0].append(self._num_rows)
        kind[1].extend(row.values())
        self._num_rows += 1

    def columns(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return, by name, the rows with a value in the column, and the values; the fullest column comes first."""
        parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for names, (rows, values) in self._kinds.items():
            row_N, table = np.asarray(rows), np.asarray(values).reshape(-1, max(len(names), 1))
            for i, name in enumerate(names):
                parts.setdefault(name, []).append((row_N, table[:, i]))
        merged = {name: _in_order(of) for name, of in parts.items()}
        return dict(sorted(merged.items(), key=lambda item: -len(item[1][0])))


def _in_order(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    rows, values = (np.concatenate(of) for of in zip(*parts, strict=True))
    order = np.argsort(rows) if len(parts) > 1 else slice(None)
    return rows[order], values[order]


@dataclass(frozen=True, slots=True)
class _Run:
    """The rows, losses and steps of one run of a table, and the rows and values of its gradient norms."""

    rows: np.ndarray
    losses: np.ndarray
    steps: np.ndarray
    norms: tuple[np.ndarray, np.ndarray] | None


def make_log(name: str, table: Table, wanted: Columns) -> Log:
    """Return the log in ``table``, of several runs the last one. Raises InputError as ``make_logs`` does."""
    *others, last = make_logs(name, table, wanted)
    if not others:
        return last
    note = f"holds {len(others) + 1} runs, each from its start: the last one is read"
    return replace(last, name=name, notes=(*last.notes, note))


def make_logs(name: str, table: Table, wanted: Columns) -> list[Log]:
    """Return the runs in ``table``, of which each begins where the one before began.

    Raises InputError, which names ``name``, if its columns are ambiguous.
    """
    cells = table.columns()
    chosen = _choose(name, cells, wanted)
    assert chosen.loss is not None, "a log without a loss is rejected"
    if wanted.loss is None and (question := table.question(chosen.loss)) is not None:
        raise InputError(Problem(name, "", question, f"say --loss NAME; columns: {listed(list(cells), MAX_LISTED)}"))
    loss_rows, losses = cells[chosen.loss]
    loss_rows, losses, silence = _with_silence(cells, chosen.step, loss_rows, _unbounded(losses))
    is_first_N = None  # of each run, if a counter counts the steps
    if chosen.step == COUNTER and (by_counter := counted(cells, loss_rows, losses)) is not None:
        kept_N, steps, is_first_N, notes = by_counter
        loss_rows, losses, step = loss_rows[kept_N], losses[kept_N], None  # norms are matched by position
    else:
        chosen = replace(chosen, step=None) if chosen.step == COUNTER else chosen
        steps, note = steps_of(cells, chosen.step, loss_rows)
        notes = [note] if note else []
        step = None if note else chosen.step
    if step is not None and (continued := continued_steps(steps, epochs_of(cells, loss_rows))) is not None:
        # Norms are then matched by position: the steps of rows without a loss are unknown.
        step, steps = None, continued
        notes.append("steps begin again with each epoch: they continue from the last one")
    norms = None if chosen.grad_norm is None else cells[chosen.grad_norm]
    if step is not None and np.isin(loss_rows, cells[step][0]).all():
        first, num_processes = first_lines(steps.tolist())
        if first:
            loss_rows, losses, steps = loss_rows[first], losses[first], steps[first]
            if norms is not None and (is_own_N := np.isin(norms[0], loss_rows)).any():
                norms = norms[0][is_own_N], norms[1][is_own_N]
            notes.append(f"{num_processes} processes printed each step: the first line of each counts")
    is_once_N = np.append(True, (steps[1:] != steps[:-1]) | (losses[1:] != losses[:-1]))
    loss_rows, losses, steps = loss_rows[is_once_N], losses[is_once_N], steps[is_once_N]
    notes += silence
    notes += [f"{count(table.num_left_out, 'line')} of another kind or rank left out"] if table.num_left_out else []
    if num_odd := table.num_odd_lines:
        notes.append(f"not understood: {count(num_odd, 'line or record', 'lines or records')}")
    begins = _begins(steps, losses) if is_first_N is None else np.flatnonzero(is_first_N[is_once_N]).tolist()
    logs = []
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], len(steps)], strict=True), 1):
        part = slice(begin, end)
        own = norms
        if norms is not None and len(begins) > 1:
            first, last = loss_rows[begin], loss_rows[end] if end < len(steps) else np.inf
            is_own_N = (norms[0] >= first) & (norms[0] < last)
            own = norms[0][is_own_N], norms[1][is_own_N]
        title = name if len(begins) == 1 else f"{name} (run {number} of {len(begins)})"
        run = _Run(loss_rows[part], losses[part], steps[part], own if own is not None and len(own[0]) else None)
        logs.append(_log(title, run, cells, chosen, step, notes))
    return logs


def _with_silence(
    cells: Cells, step: str | None, loss_rows: np.ndarray, losses: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return rows and values of the losses, and notes; losses that are no longer printed are one more, NaN."""
    rows, values = cells[step] if step not in (None, COUNTER) else (np.empty(0), np.empty(0))
    if (rows > loss_rows[-1]).sum() < FEWEST_SILENT:
        return loss_rows, losses, []
    others = [of for name, (of, _) in cells.items() if names_any_loss([name])]
    is_other_N, is_loss_N = np.isin(rows, np.concatenate([loss_rows, *others])), np.isin(rows, loss_rows)
    silence, first_row = Silence(), 0
    for row, value, is_other, is_loss in zip(rows, values.tolist(), is_other_N, is_loss_N, strict=True):
        if is_loss:
            silence.end(value)
        elif not is_other:
            silence.add(value)
            first_row = row if silence.num == 1 and silence.first == value else first_row
    if not silence.is_telling:
        return loss_rows, losses, []
    return np.append(loss_rows, first_row), np.append(losses, np.nan), [*silence.notes()]


def _begins(steps: np.ndarray, losses: np.ndarray) -> list[int]:
    """Return where runs begin: at the first one's first step or before it, with a loss like its first ones again."""
    begins = [0]
    back = np.flatnonzero((steps[1:] <= steps[:-1]) & (steps[1:] <= steps[0])) + 1
    for at in back.tolist():
        if at - begins[-1] < FEWEST or len(steps) - at < FEWEST:
            continue
        first, last, new = (np.median(losses[i : i + ENDS]) for i in (begins[-1], at - ENDS, at))
        if not np.isfinite(last) or abs(new - first) < MUCH_NEARER * abs(new - last):
            begins.append(at)
    return begins


def _log(name: str, run: _Run, cells: Cells, chosen: Columns, step: str | None, notes: list[str]) -> Log:
    """Return the log of one run, with norms by the column ``step``, or by position without one."""
    notes, steps, ways_back = [*notes], run.steps, WaysBack()
    if step is not None and (np.diff(steps) <= 0).any():
        for value in steps.tolist():
            ways_back.add(value)
        notes += ways_back.notes()
    if len(kept_points(steps)) <= len(steps) // 2 and not ways_back.are_for_ever:
        notes.append(f"{chosen.step} goes back too often: points are numbered from 0")
        step, steps = None, np.arange(len(steps))
    kept = kept_points(steps)
    if (num_dropped := len(steps) - len(kept)) > 0:
        what = count(num_dropped, "point was", "points were")
        notes.append(f"{what} written again at the same or an earlier step; the later ones count")
    grad_norms = None
    if run.norms is not None:
        at_N, norms = run.norms
        wanted_N = run.rows[kept]
        norm_steps, norm_note = steps_of(cells, step, at_N)
        if not norm_note:  # losses and norms of one step may be on different lines
            kept_norms = kept_points(norm_steps)
            at_N, norms, wanted_N = norm_steps[kept_norms], norms[kept_norms], steps[kept]
        grad_norms = _last_of(at_N, _unbounded(norms), wanted_N)
    rows, steps, losses = run.rows[kept], steps[kept], run.losses[kept]
    lr = first_usual(LR_NAMES, list(cells))
    lrs = None if lr is None else _last_of(*cells[lr], rows)
    validation = _validation(cells, rows, steps)
    if ways_back.are_for_ever:
        steps, losses = np.append(steps, 2 * steps[-1] - steps[-2]), np.append(losses, np.nan)
        grad_norms, lrs = (None if one is None else np.append(one, one[-1]) for one in (grad_norms, lrs))
    return Log(name, chosen, steps, losses, grad_norms, tuple(notes), lrs, validation)


def _validation(cells: Cells, row_N: np.ndarray, step_N: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the finite validation losses of a run whose losses are at ``row_N``, each with the last step before it."""
    name = first_usual(VALIDATION_NAMES, list(cells))
    if name is None:
        return None
    rows, values = cells[name]
    is_own_N = np.isfinite(values) & (rows >= row_N[0])
    last_N = np.searchsorted(row_N, rows[is_own_N], side="right") - 1
    return (step_N[last_N], values[is_own_N]) if len(last_N) else None


def _choose(where: str, cells: Cells, wanted: Columns) -> Columns:
    """Choose the columns to use. Raises InputError naming ``where`` if one is missing or the loss is ambiguous."""
    names = list(cells)
    if not names:
        problem = Problem(where, "", "holds no numbers with names", "a line such as `step 10 loss 3.2` is a log")
        raise InputError(problem)
    most = _most_values(cells)
    usual = [name for name in names if _OFTEN * len(cells[name][0]) >= most]
    loss = _given(where, "--loss", wanted.loss, names) or first_usual(LOSS_NAMES, usual) or _only_loss(where, names)
    step = _given(where, "--step", wanted.step, names)
    if step is None:
        usual = [n for n in names if plain_name(n) in STEP_NAMES and n != loss][:_MAX_COMPARED]
        shared = {n: len(np.intersect1d(cells[n][0], cells[loss][0])) for n in usual}
        step = max(usual, key=lambda n: (shared[n], -STEP_NAMES.index(plain_name(n))), default=None)
    grad_norm = _given(where, "--grad-norm", wanted.grad_norm, names) or first_usual(NORM_NAMES, names)
    return Columns(step, loss, grad_norm)


def _most_values(cells: Cells) -> int:
    """Return the number of values of the fullest column that has a usual name of a loss."""
    return max((len(rows) for name, (rows, _) in cells.items() if plain_name(name) in LOSS_NAMES), default=0)


def _given(where: str, option: str, wanted: str | None, names: list[str]) -> str | None:
    if wanted is None:
        return None
    if (name := find_name(names, wanted)) is None:
        raise InputError(Problem(where, option, f"no column {wanted!r}", f"columns: {listed(names, MAX_LISTED)}"))
    return name


def _only_loss(where: str, names: list[str]) -> str:
    """Return the only column whose name can be a training loss. Raises InputError."""
    candidates = training_losses(names)
    if len(candidates) == 1:
        return candidates[0]
    message = "no column is a training loss by its name"
    if candidates:
        message = f"several may be the loss: {listed(candidates, MAX_LISTED)}"
    raise InputError(Problem(where, "", message, f"say --loss NAME; columns: {listed(names, MAX_LISTED)}"))


def _unbounded(value_N: np.ndarray) -> np.ndarray:
    """Replace values next to infinity, as stored by MLflow, by infinity."""
    return np.where(np.abs(value_N) > _INFINITE, np.copysign(np.inf, value_N), value_N)


def _last_of(at_N: np.ndarray, value_N: np.ndarray, wanted_N: np.ndarray) -> np.ndarray:
    """Return the value at each wanted row or step, or else the last finite one before it."""
    last_N = np.maximum(np.searchsorted(at_N, wanted_N, side="right") - 1, 0)
    finite = np.flatnonzero(np.isfinite(value_N))
    if len(finite):
        before_N = finite[np.maximum(np.searchsorted(finite, last_N, side="right") - 1, 0)]
        last_N = np.where(at_N[last_N] == wanted_N, last_N, before_N)
    return value_N[last_N]
