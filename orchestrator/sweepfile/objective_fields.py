"""The fields of a built-in objective, and the placeholders of a custom trainer."""

from __future__ import annotations

import functools
import glob
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from objectives.base import Objective, TrainingConfig
from objectives.fields import acting, condition_of, inert_fields, unit_of
from objectives.models.facts.feed import FeedFields
from objectives.models.facts.text import NAMED_TEXTS
from orchestrator.base.errors import Problem, did_you_mean
from orchestrator.base.space import is_number, to_hashable
from orchestrator.sweepfile.custom_trainer import GIVEN, CustomTrainer, placeholders
from orchestrator.sweepfile.entries import (
    CONTROL,
    ENTRY_FIELDS,
    are_rules,
    canonical_entries,
    entries_problem,
    loop_problem,
)
from orchestrator.sweepfile.fields import Fields, Resolved, lowered, shown, without_noise
from orchestrator.sweepfile.sections import ResourcesConfig
from orchestrator.sweepfile.steps import BATCH_NAMES, CONTEXT, is_share, share_problem

_NAME = re.compile(r"[A-Za-z]\w{0,63}")
_STEPS_PROBLEM = ("is not swept or fixed here", "set the top-level key `steps`")


class ObjectiveFields(Fields):
    """The typed fields of an objective's configuration."""

    def __init__(self, objective: Objective, resources: ResourcesConfig | None = None) -> None:
        self._objective, self._config_class = objective, objective.config_class
        workers = set() if resources is None else {resources.fewest_workers, resources.most_workers}
        self._workers = sorted(workers - {1})
        self._fields = objective.config_class.model_fields

    def problem(self, name: str, value: Any) -> tuple[str, str] | None:
        """Check the value against the type and domain of the field."""
        if name == "steps":
            return _STEPS_PROBLEM
        if name not in self._fields:
            known = [field for field in self._fields if field != "steps"]
            remedy = did_you_mean(name, known) or f"`sweep objectives` lists the fields of {self._objective.name}"
            return f"unknown field of {self._objective.name}", remedy
        if name in ENTRY_FIELDS:
            return entries_problem(name, value)
        if is_share(value) and self.counts_steps(name):
            return share_problem(value)
        try:
            _field_checker(self._config_class, name).validate_python(to_hashable(value))
        except ValidationError as error:
            message = lowered(error.errors()[0]["msg"])
            return f"{shown(value)} is refused: {message}", f"{name}: {self._fields[name].description}"
        return None

    def is_known(self, name: str) -> bool:
        """Whether the objective has the field."""
        return name in self._fields

    def is_integer(self, name: str, ends: Iterable[Any]) -> bool:
        """Whether the field accepts integers only."""
        annotation = self._fields[name].annotation
        return annotation is int or annotation == int | None

    def canonical(self, name: str, value: Any) -> Any:
        """Convert to the field's type: 1 and 1.0 are the same learning rate."""
        if name in ENTRY_FIELDS:
            return canonical_entries(name, value)
        annotation = self._fields[name].annotation
        if isinstance(value, int) and not isinstance(value, bool) and annotation in (float, float | None):
            return float(value)
        return to_hashable(value)

    def computed(self, name: str, value: float) -> Any:
        """Round to an integer if the field takes no other, else drop the noise of the computation."""
        return round(value) if self.is_integer(name, ()) else self.canonical(name, without_noise(value))

    def names_files(self, name: str) -> bool:
        """Whether the field holds patterns of text files, or weights of such patterns."""
        is_list = name in ("text", "shift_text", "mix_text") and self._fields[name].annotation == tuple[str, ...]
        return is_list or (name == "domains" and issubclass(self._config_class, FeedFields))

    def counts_steps(self, name: str) -> bool:
        """Whether the unit of the field is a step."""
        return name in ENTRY_FIELDS or unit_of(self._fields[name]) in ("step", "steps")

    def tokens_per_step(self, settings: Mapping[str, Any]) -> float:
        """Multiply batch size and context; a missing one has its default."""
        return self._objective.tokens_per_step(settings)

    def resolve(self, steps: int, fixed: Mapping[str, Any], cell: Mapping[str, Any]) -> Resolved:
        """Keep the fields that act, and the cell's values that do not, so that each cell has its own trials."""
        try:
            config = self._config_class(steps=steps, **fixed, **cell)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
        if (check := self._objective.check_workers) is not None:
            for workers in self._workers:
                check(config, workers)
        inert = inert_fields(config)
        swept = config.model_dump(mode="json", include=inert & cell.keys())
        return Resolved({**acting(config), **swept}, frozenset(inert & (fixed.keys() | cell.keys())))

    def acts_where(self, name: str) -> str:
        """Describe the field's condition."""
        return condition_of(self._fields[name]).text


class CustomFields(Fields):
    """User-defined names for a custom trainer, which may distinguish 1 from 1.0 and gets ``5%`` as written.

    Sweep itself uses the names in ``read_by_sweep``, so that a command need not.
    """

    def __init__(self, trainer: CustomTrainer, read_by_sweep: Collection[str]) -> None:
        self._trainer, self._read_by_sweep = trainer, read_by_sweep

    def problem(self, name: str, value: Any) -> tuple[str, str] | None:
        """Accept any plain value of a name that the command uses."""
        if name == "steps":
            return _STEPS_PROBLEM
        if are_rules(name, value) and any(name in placeholders(text) for _, text in self._trainer.templates()):
            return "rules are for the trainer's Watch, and a command cannot use them", f"take {{{name}}} out of it"
        if are_rules(name, value):
            return entries_problem(name, value)
        if name in GIVEN:
            return "is given to a trainer by sweep itself", f"choose another name than {', '.join(sorted(GIVEN))}"
        if not _NAME.fullmatch(name):
            return f"{shown(name)} is not a valid name of a placeholder", "use letters, digits and _"
        if not self._uses(name):
            return f"no part of the command uses {{{name}}}", f"write {{{name}}} in objective.command, or {{config}}"
        if isinstance(value, str) and "\0" in value:
            return f"{shown(value)} contains NUL, which no command accepts", "leave it out"
        if not isinstance(value, str | bool | int | float | None):
            return f"{shown(value)} is refused: a value is a number, a word, true, false or null", "write one value"
        if isinstance(value, float) and not math.isfinite(value):
            return f"{value} is refused: not a finite number", "write a number"
        return None

    def is_known(self, name: str) -> bool:
        """Whether the name is valid and used."""
        return name == CONTROL or (bool(_NAME.fullmatch(name)) and name not in GIVEN and self._uses(name))

    def canonical(self, name: str, value: Any) -> Any:
        """Return rules in their one form, and any other value as it is."""
        return canonical_entries(name, value) if are_rules(name, value) else to_hashable(value)

    def counts_steps(self, name: str) -> bool:
        """Whether values of ``name`` may be rules, whose keys count steps."""
        return name == CONTROL

    def _uses(self, name: str) -> bool:
        return name in self._read_by_sweep or self._trainer.uses(name)

    def is_integer(self, name: str, ends: Iterable[Any]) -> bool:
        """Whether both ends were written as integers: 8 and 64, not 8.0."""
        return all(isinstance(end, int) and not isinstance(end, bool) for end in ends)

    def tokens_per_step(self, settings: Mapping[str, Any]) -> float:
        """Multiply batch and context, which must both be positive numbers."""
        settings = self._trainer.with_whole_batch(settings)
        batch = next(name for name in BATCH_NAMES if name in settings)
        for name in (batch, CONTEXT):
            if not is_number(settings.get(name)) or settings[name] <= 0:
                value = shown(settings.get(name))
                raise ValueError(f"{name} = {value} must be a positive number, since tokens are counted with it")
        return settings[batch] * settings[CONTEXT]

    def resolve(self, steps: int, fixed: Mapping[str, Any], cell: Mapping[str, Any]) -> Resolved:
        """Return the trial's values, and what is run with them."""
        values = {**fixed, **cell}
        if are_rules(CONTROL, values.get(CONTROL)) and (problem := loop_problem(values[CONTROL], steps)):
            raise ValueError(problem[0])
        return Resolved(self._trainer.resolve(steps, values))


@functools.lru_cache(maxsize=512)
def _field_checker(config_class: type[TrainingConfig], name: str) -> TypeAdapter[Any]:
    field = config_class.model_fields[name]
    checked: Any = Annotated[field.annotation, field]  # type: ignore[name-defined,valid-type,unused-ignore]
    return TypeAdapter(checked, config=ConfigDict(strict=True, allow_inf_nan=False))


def absolute_text(patterns: Any, where: str, key: str, problems: list[Problem]) -> Any:
    """Make relative patterns absolute, since workers have other working directories; appends to ``problems``.

    ``patterns`` are a list, or have weights, as a mapping or as the pairs of a trial. Names of texts that every machine
    has stay as they are.
    """
    if not key.endswith(".domains"):
        return _absolute_paths(patterns, where, key, problems)
    weights = dict(patterns)
    names = _absolute_paths(list(weights), where, key, problems)
    return to_hashable(dict(zip(names, weights.values(), strict=True)))


def _absolute_paths(patterns: Sequence[str], where: str, key: str, problems: list[Problem]) -> tuple[str, ...]:
    absolute = []
    for pattern in patterns:
        if pattern in NAMED_TEXTS:
            absolute.append(pattern)
            continue
        full = str(Path(os.path.expanduser(pattern)).absolute())
        absolute.append(full)
        if not os.path.exists(full) and not _matches(full):
            message = f"{shown(pattern)} matches no file"
            remedy = did_you_mean(pattern, NAMED_TEXTS) or "paths are relative to the working directory"
            problems.append(Problem(where, key, message, remedy))
    return tuple(absolute)


def _matches(pattern: str) -> bool:
    try:
        return any(True for _ in glob.iglob(pattern, recursive=True))
    except (OSError, ValueError, RecursionError):  # too long, a NUL, too many folders
        return False
