"""Columns of a log by their usual or given names, and increasing steps from the numbers in them.

If several columns are possible, nothing is guessed.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.base.words import count, plural

EPOCH = "epoch"
VALIDATION_NAMES = ("validation_loss", "val_loss", "valid_loss", "eval_loss", "eval/loss", "val/loss", "valid/loss",
                    "validation/loss", "loss/val", "loss/validation", "losses/val", "test_loss", "test/loss",
                    "val_loss_epoch", "eval/average_loss", "avg_val_loss", "tel", "validation_bpb", "val_bpb",
                    "val/bpb")  # fmt: skip
COUNTER = "counter"  # of a line of text, such as 10/300
STEP_NAMES = ("global_step", "trainer/global_step", "train/global_step", "step", "steps", "iter", "iteration",
              "iterations", "iters", "train_step", "training_step", "trainer_step", "train_iter", "train_iteration",
              "training_iter", "training_iteration", "num_updates", "update", "update_step", "gradient_step", "batch",
              "train/step", "_step", "completed_step", "finished_step", "current_step", "current_steps",
              "train_in_step", "optimizer_step", "at_step",
              "at_iteration", "after_step", "it", "i", COUNTER)  # fmt: skip
LOSS_NAMES = ("loss", "train_loss", "train/loss", "training_loss", "loss/train", "train_loss_step", "lm_loss",
              "train/lm_loss", "ce_loss", "train/ce_loss", "cross_entropy_loss", "train/crossentropyloss",
              "train/cross_entropy_loss", "loss/total", "total_loss", "train/total_loss", "losses/train",
              "loss_metrics/global_avg_loss", "loss_step", "nll_loss", "gpt_loss", "trn_loss", "cross_entropy", "nll",
              "trl")  # fmt: skip
NORM_NAMES = ("grad_norm", "train/grad_norm", "gradnorm", "gnorm", "gradient_norm", "grad_norm_before_clip", "norm",
              "total_grad_norm", "optim/total_grad_norm", "grad/norm", "global_grad_norm", "grad_norm_step",
              "train/gradient_norm", "optim/grad_norm", "l2_norm/grad/global", "train_l2_norm/grad/global",
              "train/l2_norm/grad/global")  # fmt: skip
LR_NAMES = ("lr", "learning_rate", "train/lr", "train/learning_rate", "lr_group_0", "lr/group_0", "lr_adamw",
            "optim/learning_rate_group0", "optim/lr", "schedule/lr", "metrics/lr", "lr_now", "current_lr")  # fmt: skip
_NOT_TRAINING = re.compile(
    r"(?<![a-z])(val|critic|qf?\d?_|td_|vf?_|eval|test|held|dev|scale|aux|z_?loss|best|ema|std)|scale$|_min$|_max$"
)
MAX_LISTED = 12  # columns that a message lists


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns of a log; None for a column that is to be found, or that does not exist."""

    step: str | None = None
    loss: str | None = None
    grad_norm: str | None = None

    @property
    def given(self) -> list[str]:
        """The names that are not None."""
        return [name for name in (self.step, self.loss, self.grad_norm) if name is not None]


class ScoreConfig(BaseModel):
    """A metric that settings are compared by in place of the loss, with its direction."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    name: str | None = Field(
        None, min_length=1, description="its name in the output, and in answers; `score` if it has none"
    )
    pattern: str | None = Field(
        None, min_length=1, description="a regular expression whose first group is its value, in any line"
    )
    maximize: bool | None = Field(
        None, description="true if more is better (accuracy, return), false if less is (bits per byte); must be given"
    )
    initial: float | None = Field(
        None, description="its value before training; null for the first one if that comes within 5 % of the steps"
    )

    @property
    def title(self) -> str:
        """The name in answers."""
        return self.name or "score"


class MetricsConfig(BaseModel):
    """Where a custom trainer reports its losses, and under which names."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    file: str | None = Field(
        None,
        min_length=1,
        description="a file that the trainer appends to (CSV, JSON lines, text, TensorBoard events; may be a glob); "
        "null for its standard output",
    )
    format: Literal["auto", "text", "json", "csv", "tensorboard"] = Field(
        "auto", description="format of the lines: `step 10 loss 3.2`, JSON objects, comma separated values, events"
    )
    pattern: str | None = Field(
        None, min_length=1, description="a regular expression with named groups, in place of a format"
    )
    step: str | None = Field(None, description="name of the step; null for the usual ones")
    loss: str | None = Field(None, description="name of the training loss; null for the usual ones")
    grad_norm: str | None = Field(None, description="name of the gradient norm; null for the usual ones")
    validation_loss: str | None = Field(None, description="name of the validation loss; null for the usual ones")
    every: int | None = Field(
        None, gt=0, description="steps between two losses, if the trainer prints no steps; null counts losses"
    )
    also: list[Annotated[str, Field(min_length=1)]] = Field(
        [],
        max_length=100,
        description="other metrics to keep, with their own steps; the last values are columns and metrics of maps",
    )
    score: ScoreConfig | None = Field(None, description="a metric to compare settings by in place of the loss")


@lru_cache(4096)
def plain_name(name: str) -> str:
    """Normalise ``name`` to compare it: lower case, words joined by underscores."""
    return re.sub(r"[\s\-.]+", "_", name.strip().lower())


def find_name(names: Collection[str], wanted: str) -> str | None:
    """Return ``wanted``, or the first of ``names`` that differs only in case and separators, or None."""
    if wanted in names:
        return wanted
    return next((name for name in names if plain_name(name) == plain_name(wanted)), None)


def first_usual(usual: Iterable[str], names: list[str]) -> str | None:
    """Return the first of the ``usual`` names that is among ``names``, as spelled there, or None."""
    plain = {plain_name(n): n for n in reversed(names)}
    return next((plain[candidate] for candidate in usual if candidate in plain), None)


def training_losses(names: Iterable[str]) -> list[str]:
    """Return the ``names`` that can be a training loss, usual or not."""
    candidates = [n for n in names if "loss" in plain_name(n) and not _NOT_TRAINING.search(plain_name(n))]
    return [n for n in candidates if "train" in plain_name(n)] or candidates


def may_be_loss(name: str, wanted: str | None) -> bool:
    """Whether ``name`` is the loss ``wanted`` by the user, or can be a training loss if none is wanted."""
    if wanted is not None:
        return plain_name(name) == plain_name(wanted)
    return plain_name(name) in LOSS_NAMES or bool(training_losses([name]))


# --- increasing steps ------------------------------------------------------------------------------

NUM_FIRST = 5  # points that decide whether a counter counts steps


def counts_steps(values: Sequence[float], epochs: Sequence[float]) -> bool:
    """Whether a counter such as 10/300 with these ``values`` at the first points counts their steps.

    It may go back once, and with each new one of the ``epochs``, which are NaN without one.
    """
    pairs = zip(itertools.pairwise(values), itertools.pairwise(epochs), strict=True)
    num_back = sum(after < before and not later > epoch for (before, after), (epoch, later) in pairs)
    return len(set(values)) > 1 and num_back <= 1


_FOR_EVER = 10  # ways back without a new step


@dataclass(slots=True)
class WaysBack:
    """How often a run went back to a step that it had passed, as one does that is rolled back, since its last new step.

    Several processes that print the same steps go back as well, but all the time.
    """

    num: int = 0
    highest: int = -1
    _first: int = -1
    _last: int = -1
    _num_new: int = 0
    _num_again: int = 0
    _again_before: int = 0  # steps that had been printed again at the last new one

    def add(self, step: int) -> None:
        """Take the step of the next point."""
        if not self._num_new or step > self.highest:
            self._first = self._first if self._num_new else step
            self.num, self.highest, self._num_new, self._again_before = 0, step, self._num_new + 1, self._num_again
        else:
            self._num_again += 1
            self.num += self._first < step <= self._last
        self._last = step

    def add_new(self, num: int, last: int) -> None:
        """Take ``num`` points with steps above all before, after the first."""
        self.num, self.highest, self._last = 0, last, last
        self._num_new, self._again_before = self._num_new + num, self._num_again

    @property
    def are_for_ever(self) -> bool:
        """Whether it goes back again and again and comes no further."""
        return self.num >= _FOR_EVER and self._again_before < self._num_new

    def notes(self) -> Iterator[str]:
        """Yield what became of such steps, if anything."""
        if self.are_for_ever:
            yield f"it went back {self.num} times from step {self.highest} and came no further: taken as not finite"


class Numbering:
    """Makes steps increase. A counter begins again whenever it goes back, a named step only in a later epoch."""

    def __init__(self, every: int = 1, *, goes_back: bool = False) -> None:
        """``every`` is the distance between points without a number. ``goes_back`` keeps named steps that go back."""
        self._every, self._goes_back = every, goes_back
        self.last: int | None = None
        self._num_dropped = self._num_numbered = 0
        self._first = self._gap = self._offset = 0
        self._epoch = self._first_epoch = math.inf
        self._num_of_others = 0  # points of runs that follow, after all epochs
        self._value = -math.inf  # the last one that was printed
        self.ways_back = WaysBack()

    def next_step(
        self, value: float | None, epoch: float | None, *, is_counter: bool = False, is_own: bool = True
    ) -> int | None:
        """Return the step of the next point, or None if it is not greater than the last one and may not go back.

        A row without an integer step gets the next number. Steps that begin again continue from the last one. A counter
        that is not the row's own is from a progress bar, which may lag behind: then one is added, and no more, so that
        steps do not run ahead of it.
        """
        if self._num_of_others or self._is_of_another_run(value, epoch, is_counter=is_counter):
            if not self._goes_back:
                self._num_of_others += 1
                return None
            self.last, self._offset = None, 0
        last = -1 if self.last is None else self.last
        if value is None or not abs(value) + self._offset < 2**53 or abs(value - round(value)) > 1e-6:
            step = 0 if self.last is None else last + self._every
            self._num_numbered += 1
        else:
            step = round(value) + self._offset
            if self.last is None:
                self._first, self._first_epoch = step, math.inf if epoch is None else epoch
            elif step <= last and is_counter and not is_own and value >= self._value:
                step = last + 1
            elif step <= last and self._begins_again(value, epoch, is_counter=is_counter):
                self._offset += last + self._gap - step
                step = last + self._gap
            self._value = value
            if not is_counter:
                self.ways_back.add(step)
            if self.last is not None and step <= last and not self._goes_back:
                self._num_dropped += 1
                return None
        self._gap = 1 if self.last is None else max(1, step - last)
        self._epoch = math.inf if epoch is None else epoch
        self.last = step
        return step

    def next_steps(self, values: Sequence[float], epoch: float | None) -> list[int] | None:
        """Return the steps of points with these named steps, the last one in ``epoch``, if each is above all before.

        None if anything else is in question, where ``next_step`` knows the answer for each.
        """
        if self.last is None or self._num_of_others or not all(map(float.is_integer, values)):
            return None
        steps = [round(value) + self._offset for value in values]
        highest = max(self.last, self.ways_back.highest)
        if not all(map(operator.lt, [highest, *steps], steps)) or steps[-1] >= 2**53:
            return None
        self.ways_back.add_new(len(steps), steps[-1])
        self._gap = steps[-1] - (steps[-2] if len(steps) > 1 else self.last)
        self._value, self._epoch = values[-1], math.inf if epoch is None else epoch
        self.last = steps[-1]
        return steps

    def _is_of_another_run(self, value: float | None, epoch: float | None, *, is_counter: bool) -> bool:
        """Whether a counter and the epoch begin again."""
        if not is_counter or value is None or epoch is None or self.last is None:
            return False
        return value < self._value and value <= self._first and epoch <= self._first_epoch < self._epoch < math.inf

    def _begins_again(self, value: float, epoch: float | None, *, is_counter: bool) -> bool:
        if is_counter:
            return value < self._value
        return round(value) <= self._first and epoch is not None and epoch > self._epoch

    def after_last(self) -> int:
        """Return the step that would follow the last one."""
        return (-1 if self.last is None else self.last) + self._gap

    def notes(self, has_steps: bool) -> Iterator[str]:
        """Yield how steps were changed, if at all."""
        if has_steps and self._num_numbered:
            yield f"{_points(self._num_numbered, 'without an integer step')} numbered"
        if self._offset:
            yield "steps begin again with each epoch: they continue from the last one"
        if self._num_of_others:
            where = "of another run, with steps and epochs from the start,"
            yield f"{_points(self._num_of_others, where)} left out"
        if self._num_dropped:
            yield f"{_points(self._num_dropped, 'at the same or an earlier step')} left out"
        yield from self.ways_back.notes()


def _points(num: int, where: str) -> str:
    return f"{count(num, 'point')} {where} {plural(num, 'was', 'were')}"


# --- losses that are no longer printed -------------------------------------------------------------

FEWEST_SILENT = 5  # lines, and more than three times as many as ever came between two losses
_FEWEST_LOSSES = 10  # before them, which show how often one comes


@dataclass(slots=True)
class Silence:
    """Lines after the last loss that say a later step and no loss of any kind.

    Some trainers write null, None or nothing for a loss that is not finite.
    """

    first: float = math.nan  # the step of the first of them
    num: int = 0
    _last: float = -math.inf
    _most: int = 0  # such lines between two losses
    _num_losses: int = 0

    def end(self, step: float, num: int = 1) -> None:
        """Take ``num`` lines with a loss, the last of them at ``step``."""
        self._most, self.num, self._last = max(self._most, self.num), 0, max(self._last, step)
        self._num_losses += num

    def add(self, step: float) -> None:
        """Take a line with a step alone."""
        if step > self._last:
            self.first = self.first if self.num else step
            self.num, self._last = self.num + 1, step

    @property
    def is_telling(self) -> bool:
        """Whether there are so many that the losses must have been no numbers."""
        return self._num_losses >= _FEWEST_LOSSES and self.num >= max(FEWEST_SILENT, 3 * self._most + 1)

    def notes(self) -> Iterator[str]:
        """Yield what became of such steps, if anything."""
        if self.is_telling:
            yield f"{self.num} steps from {self.first:.0f} on have no loss: taken as not finite"


def names_any_loss(names: Iterable[str]) -> bool:
    """Whether one of ``names`` is a loss of any kind, also of a validation."""
    return any("loss" in name and not name.endswith("scale") for name in map(plain_name, names))
