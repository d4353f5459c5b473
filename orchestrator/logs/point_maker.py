"""From rows of named numbers to points: columns of step, loss and norm are chosen, and steps made to increase."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from orchestrator.base.errors import printable
from orchestrator.base.measure import SCORE
from orchestrator.base.words import listed
from orchestrator.logs.columns import (
    COUNTER,
    EPOCH,
    LOSS_NAMES,
    MAX_LISTED,
    NORM_NAMES,
    NUM_FIRST,
    STEP_NAMES,
    VALIDATION_NAMES,
    MetricsConfig,
    Numbering,
    Silence,
    counts_steps,
    find_name,
    first_usual,
    may_be_loss,
    names_any_loss,
    plain_name,
    training_losses,
)
from orchestrator.logs.lines import Row, Rows
from orchestrator.logs.scores import FOUND
from orchestrator.logs.series import EVALUATION

VALIDATION = "validation_loss"  # name of its readings, whatever the trainer calls it
# Steps in a line of an evaluation, where the other usual names count its own batches.
_OWN_STEPS = tuple(name for name in STEP_NAMES if name not in (COUNTER, "batch", "it", "i"))
_MAX_NAMES = 1000  # that are remembered


class Point(NamedTuple):
    """One step of a curve. Loss and norm may be any float, including NaN and infinities.

    If no gradient norm was printed since the last point, the last finite one is used.
    """

    step: int
    loss: float
    grad_norm: float | None
    others: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Reading:
    """Finite values by name that were printed at a step: validation losses, and metrics that the user asked for."""

    step: int
    values: Mapping[str, float]


_Role = Literal["step", "loss", "grad_norm", ""]
_MAX_LANES = 100


class _Lane(NamedTuple):
    """The columns of rows that are each one point."""

    step: str | None
    loss: str
    norm: str | None
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Held:
    """A row with a loss, and the steps and norms of all rows since the previous such row."""

    row: Row
    steps: Row
    norms: Row
    epoch: float | None


class PointMaker:
    """Turns rows into points, once the columns are chosen."""

    def __init__(self, metrics: MetricsConfig, *, goes_back: bool = False) -> None:
        step, loss = metrics.step, metrics.loss
        self._wanted = {"step": step, "loss": loss, "grad_norm": metrics.grad_norm}
        self._validation = VALIDATION_NAMES if metrics.validation_loss is None else (metrics.validation_loss,)
        self.validation_loss: float | None = None  # the last finite one
        # Names in the output, by the names of readings.
        self._also = {name: name for name in metrics.also}
        if metrics.score is not None:
            self._also[SCORE] = metrics.score.title if metrics.score.pattern is None else FOUND
        self._readings: list[Reading] = []
        self._last_reading = 0  # its step
        self._read: dict[str, None] = {}  # the metrics of ``also`` that were found
        self._is_settled = step is not None and loss is not None
        self._roles: dict[str, _Role] = {}
        self._lanes: dict[tuple[str, ...], _Lane] = {}  # by the names of a row
        self._steps: dict[str, float] = {}
        self._norms: dict[str, float] = {}
        self._finite_norms: dict[str, float] = {}
        self._held: list[_Held] = []
        self._names: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()
        self._norm: str | None = None
        self.numbering = Numbering(metrics.every or 1, goes_back=goes_back)
        self._silence = Silence()
        self._epoch: float | None = None  # of the last row that had one

    @property
    def loss(self) -> str | None:
        """The name of the loss, if it was chosen or given."""
        return self._wanted["loss"]

    def choose_among(self, names: list[str]) -> None:
        """Choose immediately among ``names``, which are final."""
        self._wanted["loss"] = self._wanted["loss"] or "loss"
        if self._wanted["step"] is None:
            self._wanted["step"] = first_usual(STEP_NAMES, names)
        self._is_settled = True

    def is_loss(self, name: str) -> bool:
        """Whether the column ``name`` may be the loss."""
        return self._role(name) == "loss"

    def take_part(self, part: Row | Rows) -> list[Point]:
        """Return the points that one row or several complete."""
        if not isinstance(part, Rows):
            return self.take(part)
        points = self._along_all(part) if part.values else []
        return [point for row in part.each() for point in self.take(row)] if points is None else points

    def _along_all(self, rows: Rows) -> list[Point] | None:
        """Return the points of rows whose columns are known and whose steps plainly increase, as ``take`` would."""
        lane = self._lanes.get(rows.names)
        if lane is None or lane.step in (None, COUNTER) or COUNTER in rows.names:
            return None
        if self._steps or self._norms or self._held:
            return None
        columns = dict(zip(rows.names, zip(*rows.values, strict=True), strict=True))
        epoch = columns[EPOCH][-1] if EPOCH in columns else self._epoch
        steps = self.numbering.next_steps(columns[lane.step], epoch)
        if steps is None:
            return None
        self._epoch, self._norm = epoch, lane.norm or self._norm
        self._silence.end(columns[lane.step][-1], len(steps))
        norms: Sequence[float | None] = [None] * len(steps) if lane.norm is None else columns[lane.norm]
        if lane.norm is not None and (finite := list(filter(math.isfinite, columns[lane.norm]))):
            self._finite_norms[lane.norm] = finite[-1]
        others: Sequence[Mapping[str, float]] = [{}] * len(steps)
        if lane.others:
            kept = zip(*(columns[name] for name in lane.others), strict=True)
            others = [dict(zip(lane.others, values, strict=True)) for values in kept]
        return list(map(Point, steps, columns[lane.loss], norms, others))

    def take(self, row: Row) -> list[Point]:
        """Return the points that ``row`` completes."""
        names = tuple(row)
        lane = self._lanes.get(names)
        if lane is not None and not (self._steps or self._norms or self._held):
            return self._along(lane, row)
        losses = []
        self._epoch = row.get(EPOCH, self._epoch)
        for name, value in row.items():
            role = self._roles.get(name)
            if role is None:
                role = self._role(name)
            if role == "loss":
                losses.append(name)
            elif role == "step":
                self._steps[name] = value
            elif role == "grad_norm":
                self._norms[name] = value
        self._read_others(row)
        if self.numbering.last is None:
            _count(row, self._names)
        if not losses:
            step = self._wanted["step"]
            if self._is_settled and step not in (None, COUNTER) and not names_any_loss(row):
                self._silence.add(row.get(find_name(row, step) or "", -math.inf))
            return []
        if not self._is_settled:
            _count(losses, self._losses)
        self._held.append(_Held(row, self._steps, {**self._finite_norms, **self._norms}, self._epoch))
        num_norms = len(self._finite_norms)
        self._finite_norms |= {name: norm for name, norm in self._norms.items() if math.isfinite(norm)}
        if len(self._finite_norms) != num_norms:
            self._lanes.clear()  # another norm may come before theirs
        self._steps, self._norms = {}, {}
        if not self._is_settled and not self._is_clear(row) and len(self._held) < NUM_FIRST:
            return []
        points = self._release()
        if points and (lane := self._lane(names)) is not None:
            self._lanes[names] = lane
        return points

    def _lane(self, names: tuple[str, ...]) -> _Lane | None:
        """Return which columns rows with these ``names`` have, or None if they say more than one point.

        A row without a norm would have the last one that was printed in another row.
        """
        by_role = {role: [name for name in names if self._roles.get(name) == role] for role in ("loss", "grad_norm")}
        step = self._wanted["step"] and find_name(names, self._wanted["step"])
        others = first_usual(self._validation, list(names)) is not None or bool(self._also)
        norms = by_role["grad_norm"]
        if others or len(by_role["loss"]) != 1 or len(norms) > 1 or set(self._finite_norms) - set(norms):
            return None
        if len(self._lanes) >= _MAX_LANES:
            self._lanes.clear()
        (loss,), norm = by_role["loss"], norms[0] if norms else None
        kept = tuple(name for name in names if name not in (loss, step, norm))
        return _Lane(step, loss, norm, kept)

    def _along(self, lane: _Lane, row: Row) -> list[Point]:
        """Return the point of a row whose columns are known, as ``take`` would."""
        self._epoch = row.get(EPOCH, self._epoch)
        value = None if lane.step is None else row[lane.step]
        self._silence.end(-math.inf if value is None else value)
        is_counter, is_own = self._wanted["step"] == COUNTER, COUNTER in row
        number = self.numbering.next_step(value, self._epoch, is_counter=is_counter, is_own=is_own)
        norm = None if lane.norm is None else row[lane.norm]
        if lane.norm is not None and norm is not None and math.isfinite(norm):
            self._finite_norms[lane.norm] = norm
        if number is None:
            return []
        self._norm = lane.norm or self._norm
        return [Point(number, row[lane.loss], norm, {name: row[name] for name in lane.others})]

    def _read_others(self, row: Row) -> None:
        """Keep validation losses and the metrics that the user asked for."""
        names, values = list(row), {}
        validation = first_usual(self._validation, names)
        if validation is not None and math.isfinite(row[validation]):
            values[VALIDATION] = self.validation_loss = row[validation]
        for key, wanted in self._also.items():
            name = find_name(names, wanted) or find_name(names, f"{EVALUATION}/{wanted}")
            if name is not None and math.isfinite(row[name]):
                values[key] = row[name]
                self._read.setdefault(key)
        if values:
            self._readings.append(Reading(self._step_of(row, names), values))

    def _step_of(self, row: Row, names: list[str]) -> int:
        """Return the step of a row that may belong to an evaluation: its own if it has one, else the last loss's."""
        of_loss = max(0, len(self._held) - 1) if self.numbering.last is None else self.numbering.last
        last = max(of_loss, self._readings[-1].step if self._readings else 0, self._last_reading)
        wanted = (*filter(None, [self._wanted["step"]]), *_OWN_STEPS)
        own = first_usual([*wanted, *(f"{EVALUATION}/{name}" for name in wanted)], names)
        value = row[own] if own is not None else math.nan
        is_step = math.isfinite(value) and value >= last and abs(value - round(value)) < 1e-6 and value < 2**53
        return round(value) if is_step else last

    def taken_readings(self) -> list[Reading]:
        """Return the readings since the last call; steps do not decrease."""
        readings, self._readings = self._readings, []
        if readings:
            self._last_reading = readings[-1].step
        return readings

    def finish(self) -> list[Point]:
        """Return the points of rows that were held back, and one for a loss that was lost (Silence, WaysBack)."""
        points, numbering = self._release(), self.numbering
        step = numbering.next_step(self._silence.first, self._epoch) if self._silence.is_telling else None
        step = numbering.after_last() if numbering.ways_back.are_for_ever else step
        return points if step is None else [*points, Point(step, math.nan, None, {})]

    def note(self) -> str:
        """Return the columns in use, or why there are none."""
        if self.numbering.last is not None:
            wanted = self._wanted
            step = f"step: {wanted['step']}" if wanted["step"] else "no column of steps: points are numbered from 0"
            parts = [f"loss: {wanted['loss']}", step, f"gradient norm: {self._norm or 'none'}"]
            if missing := [wanted for key, wanted in self._also.items() if key not in self._read]:
                parts.append(f"never printed: {', '.join(missing)}")
            return printable(
                "; ".join([*parts, *self._silence.notes(), *self.numbering.notes(wanted["step"] is not None)])
            )
        names = [name for name, _ in self._names.most_common()]
        if not names:
            return "no line with a name and a number"
        if self._wanted["loss"] is not None and find_name(names, self._wanted["loss"]) is None:
            return printable(f"no line with {self._wanted['loss']!r}: names seen: {listed(names, MAX_LISTED)}")
        if self._held and max(self._losses.values(), default=0) < NUM_FIRST:
            return printable(
                f"fewer than {NUM_FIRST} lines with a loss so far: names seen: {listed(names, MAX_LISTED)}"
            )
        losses = training_losses(self._losses)
        if len(losses) > 1:
            return printable(f"several may be the loss: {listed(losses, MAX_LISTED)}; say which under metrics: loss")
        return printable(f"no line with a loss: names seen: {listed(names, MAX_LISTED)}")

    def _is_clear(self, row: Row) -> bool:
        """Whether no later row can have a better loss column, and this one has exactly one name for its step."""
        names = [plain_name(name) for name in row]
        steps = [name for name in names if name in STEP_NAMES and name != COUNTER]
        return self._wanted["loss"] is None and LOSS_NAMES[0] in names and len(steps) == 1

    def _role(self, name: str) -> _Role:
        if len(self._roles) >= _MAX_NAMES:
            self._roles.clear()
        plain = plain_name(name)
        role: _Role = ""
        if may_be_loss(name, self._wanted["loss"]):
            role = "loss"
        elif self._is("step", plain, () if self._is_settled else STEP_NAMES):
            role = "step"
        elif self._is("grad_norm", plain, NORM_NAMES):
            role = "grad_norm"
        self._roles[name] = role
        return role

    def _is(self, what: str, plain: str, usual: Sequence[str]) -> bool:
        wanted = self._wanted[what]
        return plain in usual if wanted is None else plain == plain_name(wanted)

    def _release(self) -> list[Point]:
        """Return the points of the held rows, or none if the loss column is ambiguous."""
        held, self._held = self._held, []
        if held and not self._is_settled and not self._choose(held):
            return []  # only a new name can resolve this, so these rows are lost
        return [point for row in held if (point := self._point(row)) is not None]

    def _choose(self, held: list[_Held]) -> bool:
        loss = self._wanted["loss"]
        if loss is None:
            names = [name for name, _ in self._losses.most_common()]
            losses = training_losses(names)
            loss = first_usual(LOSS_NAMES, names) or (losses[0] if len(losses) == 1 else None)
            if loss is None:
                return False
            self._wanted["loss"] = loss
        if self._wanted["step"] is None:
            self._wanted["step"] = _usual_step([row for row in held if find_name(row.row, loss)])
        self._is_settled = True
        self._roles.clear()
        return True

    def _point(self, held: _Held) -> Point | None:
        row, wanted = held.row, self._wanted
        loss = None if wanted["loss"] is None else find_name(row, wanted["loss"])
        if loss is None:
            return None
        step = wanted["step"] and find_name(held.steps, wanted["step"])
        value = held.steps[step] if step else None
        self._silence.end(-math.inf if value is None else value)
        is_counter, is_own = wanted["step"] == COUNTER, COUNTER in row
        number = self.numbering.next_step(value, held.epoch, is_counter=is_counter, is_own=is_own)
        if number is None:
            return None
        if wanted["grad_norm"] is None:
            norm = first_usual(NORM_NAMES, list(held.norms))
        else:
            norm = find_name(held.norms, wanted["grad_norm"])
        self._norm = norm or self._norm
        others = {name: value for name, value in row.items() if name not in (loss, step, norm)}
        return Point(number, row[loss], held.norms[norm] if norm else None, others)


def _count(names: Iterable[str], counts: Counter[str]) -> None:
    """Add ``names`` to ``counts``, up to a limited size."""
    counts.update(name for name in names if name in counts or len(counts) < _MAX_NAMES)


def _usual_step(held: list[_Held]) -> str | None:
    """Return the usual step name in most of the rows, or else one that occurs before every row, or None."""
    counted = [row for row in held if COUNTER in row.steps]
    epochs = [math.nan if row.epoch is None else row.epoch for row in counted]
    left_out = set() if counts_steps([row.steps[COUNTER] for row in counted], epochs) else {COUNTER}
    own = Counter(name for row in held for name in row.steps if name in row.row and name not in left_out)
    between = Counter(name for row in held for name in row.steps if name not in left_out)
    counts = own or Counter({name: num for name, num in between.items() if num == len(held) > 1})
    return max(counts, key=lambda name: (counts[name], -STEP_NAMES.index(plain_name(name))), default=None)
