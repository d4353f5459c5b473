"""How long the trials of a sweep train: a number of steps, or of tokens, from which the steps of each trial follow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from objectives.base import Objective
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Axis
from orchestrator.sweepfile.axes import MAX_PROBLEMS
from orchestrator.sweepfile.counted_steps import counted_axes
from orchestrator.sweepfile.custom_trainer import CustomTrainer
from orchestrator.sweepfile.fields import BATCH_NAMES, CONTEXT, Fields
from orchestrator.sweepfile.global_batch import PARTS
from orchestrator.sweepfile.sections import MOST_STEPS, SweepFile
from orchestrator.sweepfile.strict_yaml import Document

_COUNTED = {*BATCH_NAMES, *PARTS.values(), CONTEXT}
_INSTEAD = "write `steps:` in place of `tokens:`"


@dataclass(frozen=True, slots=True)
class Length:
    """The ``steps`` of every trial; where ``tokens`` are given, of each trial as many steps as have these tokens."""

    steps: int | None
    tokens: float | None

    def steps_of(self, settings: Mapping[str, Any], fields: Fields) -> int:
        """The steps of a trial with these ``settings``: of its tokens to the nearest step, and at least one.

        Raises ValueError where a step's tokens are not known, or the steps are too many.
        """
        if self.tokens is None:
            assert self.steps is not None, "one of the two is given"
            return self.steps
        tokens_per_step = fields.tokens_per_step(settings)
        found = max(1, round(self.tokens / tokens_per_step))
        if found > MOST_STEPS:
            what = f"{found:,} steps of {tokens_per_step:,} tokens, more than {MOST_STEPS:,}"
            raise ValueError(f"tokens = {self.tokens:,.0f} are {what}")
        return found

    def differs(self, names: Collection[str]) -> bool:
        """Whether it may differ between trials in which the values of ``names`` do."""
        return self.tokens is not None and not _COUNTED.isdisjoint(names)


def in_whole_steps(
    length: Length, axes: Sequence[Axis], fixed: Mapping[str, Any], fields: Fields, document: Document
) -> tuple[Length, list[Axis]]:
    """A ``length`` that is the same for all trials, as steps, and ``axes`` with whole steps in place of shares of them.

    Raises InputError where that is not possible.
    """
    try:
        steps = length.steps_of(fixed, fields)
    except ValueError as error:
        where = document.place(("tokens",))
        raise InputError(Problem(where, "tokens", str(error), f"change one of them, or {_INSTEAD}")) from None
    problems: list[Problem] = []
    counted = counted_axes(axes, steps, fields, document, problems)
    if problems:
        raise InputError(*problems[:MAX_PROBLEMS])
    return Length(steps, None), counted


def counted_names(file: SweepFile) -> set[str]:
    """The names that sweep itself reads the values of, whether or not a command uses them."""
    of_batch = () if file.batch is None else PARTS.values()
    return {*of_batch, *(() if file.tokens is None else (*BATCH_NAMES, CONTEXT))}


def missing_length(data: Mapping[str, Any], document: Document) -> Iterator[Problem]:
    """The problem of a sweep file that has neither steps nor tokens, or both."""
    given = [key for key in ("steps", "tokens") if data.get(key) is not None]
    if not given:
        yield Problem(document.place(("steps",)), "steps", "is missing", "add `steps:` to the file, or `tokens:`")
    if len(given) > 1:
        yield Problem(document.place(("tokens",)), "tokens", "stands beside steps", "keep one of the two")


def length_problems(
    file: SweepFile, objective: Objective | CustomTrainer, late: Iterable[str], document: Document
) -> Iterator[Problem]:
    """What keeps the tokens of ``file`` from being steps; ``late`` are the tied fields that need the steps."""
    if file.tokens is None:
        return

    def problem(path: tuple[str, ...], message: str, remedy: str) -> Problem:
        return Problem(document.place(path), ".".join(path), message, remedy)

    given = {*file.axes, *file.fixed, *file.tie, *(() if file.batch is None else PARTS.values())}
    if isinstance(objective, CustomTrainer):
        if CONTEXT not in given or given.isdisjoint(BATCH_NAMES):
            message = "the tokens of a step are not known, without values called batch_size and context"
            yield problem(("tokens",), message, f"name them so in axes, fixed or tie, or {_INSTEAD}")
    elif CONTEXT not in objective.config_class.model_fields:
        yield problem(("tokens",), f"{objective.name} has no context, so its data are no tokens", _INSTEAD)
    elif "context_start" in file.axes or file.fixed.get("context_start", file.tie.get("context_start")) is not None:
        yield problem(("tokens",), "a step has fewer tokens while the context grows (context_start)", _INSTEAD)
    for name in late:
        if name in _COUNTED:
            yield problem(("tie", name), "needs the steps, which follow from it where tokens are given", _INSTEAD)
