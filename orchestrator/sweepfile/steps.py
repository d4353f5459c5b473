"""How long trials train: steps or tokens, and values that are a share of the steps, such as ``5%``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from objectives.base import Objective
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Axis
from orchestrator.sweepfile.custom_trainer import GLOBAL, PARTS, CustomTrainer
from orchestrator.sweepfile.fields import Fields
from orchestrator.sweepfile.sections import MAX_STEPS, SweepFile
from orchestrator.sweepfile.strict_yaml import MAX_PROBLEMS, Document

# The keys of an intervention or a rule of control that count steps.
STEP_KEYS = ("at", "every", "after", "cool_down", "over", "lasts", "calm")
# The tokens of a step are the product of the batch, under one of these names, and the context.
BATCH_NAMES, CONTEXT = (GLOBAL, "batch_size"), "context"
_NUMBER = re.compile(r"[0-9]{1,3}(\.[0-9]{1,12})?")
_TOKEN_FACTORS = {*BATCH_NAMES, *PARTS.values(), CONTEXT}
_USE_STEPS = "write `steps:` in place of `tokens:`"


# --- shares --------------------------------------------------------------------------------------


def is_share(value: Any) -> bool:
    """Whether ``value`` is meant as a share of the steps."""
    return isinstance(value, str) and value.endswith("%")


def share_problem(text: str) -> tuple[str, str] | None:
    """Return what is wrong with the share ``text``, which ends in a percent sign, and the remedy; None if valid."""
    number = text.removesuffix("%")
    if not _NUMBER.fullmatch(number.strip()) or Fraction(number.strip()) > 100:
        return f"{text!r:.80} is refused: not a share of the steps", "write 0% to 100%, such as 5% or 2.5%"
    if number != number.strip():
        return f"{text!r:.80} is refused: there is a space in it", f"write {number.strip()}%"
    return None


def steps_of_share(text: str, steps: int) -> int:
    """Round a share of ``steps`` to the nearest whole step; a share above zero gives at least one step."""
    share = Fraction(text.removesuffix("%")) / 100
    return max(round(share * steps), int(share > 0))


def needs_steps(value: Any) -> bool:
    """Whether ``value`` is a share of the steps, or a list of entries that contain one."""
    if isinstance(value, list | tuple):
        return any(isinstance(entry, Mapping) and any(is_share(entry.get(key)) for key in STEP_KEYS) for entry in value)
    return is_share(value)


def entry_in_steps(entry: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Replace the shares in an intervention or a rule by whole steps."""
    return {**entry, **{key: steps_of_share(entry[key], steps) for key in STEP_KEYS if is_share(entry.get(key))}}


def in_whole_steps(values: Mapping[str, Any], steps: int, fields: Fields) -> dict[str, Any]:
    """Replace shares of ``steps`` by whole steps in values by field. Raises ValueError if a field refuses one."""
    resolved = dict(values)
    for name, value in values.items():
        if not (needs_steps(value) and fields.counts_steps(name)):
            continue
        if is_share(value):
            resolved[name] = steps_of_share(value, steps)
        else:
            resolved[name] = fields.canonical(name, [entry_in_steps(entry, steps) for entry in value])
        if problem := fields.problem(name, resolved[name]):
            raise ValueError(f"{name} = {value} of {steps} steps: {problem[0]}")
    return resolved


def _axis_in_whole_steps(axis: Axis, steps: int, fields: Fields, document: Document, problems: list[Problem]) -> Axis:
    """Replace shares by whole steps in the values and conditions of ``axis``; appends to ``problems``."""
    source_of: dict[Any, Any] = {}
    for position, value in enumerate(axis.values):
        path, key = ("axes", axis.name, "values", position), f"axes.{axis.name}"
        try:
            number = in_whole_steps({axis.name: value}, steps, fields)[axis.name]
        except ValueError as error:
            problems.append(Problem(document.place(path), key, str(error), "write another share, or a number of steps"))
            continue
        if number in source_of and needs_steps(value):
            message = f"{source_of[number]} and {value} are both {number} of {steps} steps"
            problems.append(Problem(document.place(path), key, message, "keep one"))
        source_of[number] = value
    when = tuple(
        (name, tuple(in_whole_steps({name: value}, steps, fields)[name] for value in wanted))
        for name, wanted in axis.when
    )
    return replace(axis, values=tuple(source_of), when=when)


# --- the length of a trial -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Length:
    """The length of trials: ``steps`` for all, or ``tokens``, which determine the steps of each trial."""

    steps: int | None
    tokens: float | None

    def steps_of(self, settings: Mapping[str, Any], fields: Fields) -> int:
        """Return the steps of a trial with these ``settings``: its tokens to the nearest step, at least one.

        Raises ValueError if the tokens of a step are unknown, or if there would be too many steps.
        """
        if self.tokens is None:
            assert self.steps is not None, "a sweep file gives steps or tokens"
            return self.steps
        tokens_per_step = fields.tokens_per_step(settings)
        steps = max(1, round(self.tokens / tokens_per_step))
        if steps > MAX_STEPS:
            count = f"{steps:,} steps of {tokens_per_step:,} tokens, more than {MAX_STEPS:,}"
            raise ValueError(f"tokens = {self.tokens:,.0f} are {count}")
        return steps

    def varies_with(self, names: Collection[str]) -> bool:
        """Whether trials that differ in the values of ``names`` may have different lengths."""
        return self.tokens is not None and not _TOKEN_FACTORS.isdisjoint(names)


def common_length(
    length: Length, axes: Sequence[Axis], fixed: Mapping[str, Any], fields: Fields, document: Document
) -> tuple[Length, list[Axis]]:
    """Express a length that all trials share in steps, and shares on ``axes`` in whole steps.

    Raises InputError if that is not possible.
    """
    try:
        steps = length.steps_of(fixed, fields)
    except ValueError as error:
        remedy = f"change a value, or {_USE_STEPS}"
        raise InputError(document.problem(("tokens",), str(error), remedy)) from None
    problems: list[Problem] = []
    axes = [_axis_in_whole_steps(axis, steps, fields, document, problems) for axis in axes]
    if problems:
        raise InputError(*problems[:MAX_PROBLEMS])
    return Length(steps, None), axes


def names_read_by_sweep(file: SweepFile) -> set[str]:
    """Return the names whose values sweep itself needs, whether or not a custom command uses them."""
    of_batch = () if file.batch is None else PARTS.values()
    return {*of_batch, *(() if file.tokens is None else (*BATCH_NAMES, CONTEXT))}


def missing_length(data: Mapping[str, Any], document: Document) -> Iterator[Problem]:
    """Yield a problem if a sweep file gives neither steps nor tokens, or both."""
    given = [key for key in ("steps", "tokens") if data.get(key) is not None]
    if not given:
        yield document.problem(("steps",), "is missing", "add `steps:` to the file, or `tokens:`")
    if len(given) > 1:
        yield document.problem(("tokens",), "is given together with steps", "keep one of the two")


def length_problems(
    file: SweepFile, objective: Objective | CustomTrainer, late: Iterable[str], document: Document
) -> Iterator[Problem]:
    """Yield what prevents converting the tokens of ``file`` to steps; ``late`` are the ties that need the steps."""
    if file.tokens is None:
        return
    given = {*file.axes, *file.fixed, *file.tie, *(() if file.batch is None else PARTS.values())}
    if isinstance(objective, CustomTrainer):
        if CONTEXT not in given or given.isdisjoint(BATCH_NAMES):
            message = "tokens per step are unknown without values called batch_size and context"
            yield document.problem(("tokens",), message, f"name them so in axes, fixed or tie, or {_USE_STEPS}")
    elif CONTEXT not in objective.config_class.model_fields:
        yield document.problem(("tokens",), f"{objective.name} has no context, so its data have no tokens", _USE_STEPS)
    elif "context_start" in file.axes or file.fixed.get("context_start", file.tie.get("context_start")) is not None:
        yield document.problem(
            ("tokens",), "a step has fewer tokens while the context grows (context_start)", _USE_STEPS
        )
    for name in late:
        if name in _TOKEN_FACTORS:
            yield document.problem(
                ("tie", name), "needs the steps, which follow from it when tokens are given", _USE_STEPS
            )
