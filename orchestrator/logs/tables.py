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
from orchestrator.base.words import listed
from orchestrator.logs.columns import (
    COUNTER,
    FEWEST_SILENT,
    LOSS_NAMES,
    MAX_LISTED,
    NORM_NAMES,
    NUM_FIRST,
    STEP_NAMES,
    Columns,
    Numbering,
    Silence,
    WaysBack,
    counts_steps,
    find_name,
    first_usual,
    names_any_loss,
    plain_name,
    training_losses,
)
from orchestrator.logs.steps import Cells, continued_steps, epochs_of, first_lines, kept_points, steps_of

_INFINITE = 1e100  # MLflow stores infinity as a number near the largest float
_MAX_COMPARED = 50  # columns of steps
_OFTEN = 10  # a loss with fewer values by this factor than another usual one was not printed by the training
_FEWEST, _ENDS = 10, 3  # points of a run that another follows in the same file; and at its ends, whose median counts
_MUCH_NEARER = 0.5
_BEYOND_NOISE = 6.0  # median changes from loss to loss


@dataclass(frozen=True, slots=True)
class Log:
    """One training run: increasing steps, a loss for each, and gradient norms or None.

    A loss without a gradient norm has the last one logged before it. ``notes`` say what was left out.
    """

    name: str
    columns: Columns
    step_N: np.ndarray = field(repr=False)
    loss_N: np.ndarray = field(repr=False)
    grad_norm_N: np.ndarray | None = field(repr=False)
    notes: tuple[str, ...] = ()


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
    if chosen.step == COUNTER and (counted := _counted(cells, loss_rows, losses)) is not None:
        kept_N, steps, is_first_N, notes = counted
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
    notes += [f"{table.num_left_out:,} lines of another kind or rank left out"] if table.num_left_out else []
    notes += [f"not understood: {table.num_odd_lines} lines or records"] if table.num_odd_lines else []
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
        if at - begins[-1] < _FEWEST or len(steps) - at < _FEWEST:
            continue
        first, last, new = (np.median(losses[i : i + _ENDS]) for i in (begins[-1], at - _ENDS, at))
        if not np.isfinite(last) or abs(new - first) < _MUCH_NEARER * abs(new - last):
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
        notes.append(f"{num_dropped} points were written again at the same or an earlier step; the later ones count")
    grad_norms = None
    if run.norms is not None:
        at_N, norms = run.norms
        wanted_N = run.rows[kept]
        norm_steps, norm_note = steps_of(cells, step, at_N)
        if not norm_note:  # losses and norms of one step may be on different lines
            kept_norms = kept_points(norm_steps)
            at_N, norms, wanted_N = norm_steps[kept_norms], norms[kept_norms], steps[kept]
        grad_norms = _last_of(at_N, _unbounded(norms), wanted_N)
    steps, losses = steps[kept], run.losses[kept]
    if ways_back.are_for_ever:
        steps, losses = np.append(steps, 2 * steps[-1] - steps[-2]), np.append(losses, np.nan)
        grad_norms = None if grad_norms is None else np.append(grad_norms, grad_norms[-1])
    return Log(name, chosen, steps, losses, grad_norms, tuple(notes))


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


def _counted(
    cells: Cells, loss_rows: np.ndarray, losses: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]] | None:
    """Return the losses that count, their steps by the counter, which ones begin a run, and notes.

    None if the counter counts no steps.
    """
    rows, values = cells[COUNTER]
    last_N = np.searchsorted(rows, loss_rows, side="right") - 1
    # A counter applies to one loss, on its line or below it.
    is_new_N = (last_N >= 0) & (rows[np.maximum(last_N, 0)] > np.append(-1, loss_rows[:-1]))
    value_N = np.where(is_new_N, values[np.maximum(last_N, 0)], np.nan)
    epoch_N = epochs_of(cells, loss_rows)
    is_first_N = np.isfinite(value_N[:NUM_FIRST])
    if not counts_steps(value_N[:NUM_FIRST][is_first_N].tolist(), epoch_N[:NUM_FIRST][is_first_N].tolist()):
        return None
    begins = _counters_begin(value_N, epoch_N, losses)
    kept: list[int] = []
    steps: list[int] = []
    is_first: list[bool] = []
    notes: list[str] = []
    for begin, end in zip(begins, [*begins[1:], len(losses)], strict=True):
        numbering, num_before = Numbering(), len(kept)
        for i in range(begin, end):
            is_own = bool(last_N[i] >= 0 and rows[last_N[i]] == loss_rows[i])
            step = numbering.next_step(float(value_N[i]), float(epoch_N[i]), is_counter=True, is_own=is_own)
            if step is not None:
                kept.append(i)
                steps.append(step)
                is_first.append(len(kept) == num_before + 1)
        notes += numbering.notes(has_steps=True)
    return np.array(kept), np.array(steps, dtype=np.int64), np.array(is_first), list(dict.fromkeys(notes))


def _counters_begin(value_N: np.ndarray, epoch_N: np.ndarray, losses: np.ndarray) -> list[int]:
    """Return where runs begin, of counters that also begin again with each epoch.

    The epoch says so, if it begins again too. Otherwise the losses do: they fell, and then fall once more like the
    first ones.
    """
    begins = [0]
    counted = np.flatnonzero(np.isfinite(value_N))
    values = value_N[counted]
    back = counted[1:][(values[1:] < values[:-1]) & (values[1:] <= values[0])]
    for at in back.tolist():
        begin = begins[-1]
        if at - begin < _FEWEST or len(losses) - at < _FEWEST:
            continue
        first, before, epoch = epoch_N[[begin, at - 1, at]]
        if not epoch > before and (epoch <= first < before or _falls_again(losses[begin:at], losses[at:])):
            begins.append(at)
    return begins


def _falls_again(run: np.ndarray, later: np.ndarray) -> bool:
    """Whether ``later`` losses begin like the ``run`` before, which fell by more than its noise."""
    last = np.median(run[-_ENDS:])
    if not np.isfinite(last):
        return True
    firsts, again = (np.median(part[: _ENDS**2].reshape(_ENDS, _ENDS), axis=1) for part in (run, later))
    change_N = np.abs(np.diff(run[np.isfinite(run)]))
    has_fallen = firsts[0] - last > _BEYOND_NOISE * np.median(change_N)
    return bool(has_fallen and np.abs(again - firsts).sum() < _MUCH_NEARER * np.abs(again - last).sum())


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
