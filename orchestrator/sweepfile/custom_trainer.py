"""A custom trainer: the command or function that a sweep file names, and what each trial passes to it.

Its global batch, in the section `batch`, is micro batch x accumulation x workers: two parts are given.
"""

from __future__ import annotations

import os
import re
import shutil
import string
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.measure import SCORE, score_fact
from orchestrator.logs.columns import MetricsConfig
from orchestrator.sweepfile.sections import CustomTrainerSection, SweepFile
from orchestrator.sweepfile.strict_yaml import Document

# Sweep itself sets these names in a command; all other names are values of a trial.
PLACEHOLDERS = ("steps", "seed", "trial", "folder", "config", "workers")
GIVEN = frozenset({*PLACEHOLDERS, "command", "python", "environment", "metrics"})
# The keys of the section `batch`, and their names as placeholders, axes and tied fields.
GLOBAL, MICRO, ACCUMULATION = "global_batch", "micro_batch", "accumulation"
PARTS: Mapping[str, str] = {"global": GLOBAL, "micro": MICRO, "accumulation": ACCUMULATION}
PYTHONS = ("python", "python3")
AUTO = "auto"
MAX_FORMATTED = 200  # largest width or precision of a format, in characters: a line of a script
_CONVERSIONS: Mapping[str | None, Callable[[Any], Any]] = {None: lambda value: value, "r": repr, "s": str, "a": ascii}


@dataclass(frozen=True, slots=True)
class CustomTrainer:
    """A command, or a Python function, that trains one trial; ``folder`` is absolute."""

    section: CustomTrainerSection
    folder: str
    workers: int
    file: str  # the sweep file that names it, for messages
    batch_workers: int | None  # that share a global batch, if the file has the section `batch`
    fewest_workers: int | None = None  # of an elastic trial, whose batch they hold as well

    # For a cross-entropy a rise by a tenth is a spike; for squared errors set it in `stopping`.
    spike_rise = 0.1
    # A loss scaler skips steps whose gradient is not finite.
    gradient_patience = 20

    @property
    def name(self) -> Literal["command", "python"]:
        """Which kind of trainer it is."""
        return "command" if self.section.command is not None else "python"

    @property
    def summary(self) -> str:
        """The command or function, as written in the sweep file."""
        return " ".join(self.section.command) if self.section.command is not None else f"{self.section.python}()"

    @property
    def preload(self) -> str | tuple[str, ...] | None:
        """Modules imported once in a process that forks all trials, "auto" to detect them; None for no such process.

        By default a function is preloaded if its environment is the same for all trials.
        """
        chosen, section = self.section.preload, self.section
        if chosen is None:
            is_shared = not any(placeholders(text) for text in section.environment.values())
            return AUTO if section.python is not None and is_shared else None
        return tuple(chosen) if isinstance(chosen, list) else chosen or None

    def templates(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield every text with placeholders, and its key below ``objective``."""
        section = self.section
        yield from ((("command", i), text) for i, text in enumerate(section.command or ()))
        yield from ((("environment", name), text) for name, text in section.environment.items())
        if section.metrics.file is not None:
            yield ("metrics", "file"), section.metrics.file
        if section.resume is not None:
            yield ("resume", "checkpoint"), section.resume.checkpoint
            for i, text in enumerate(section.resume.arguments):
                yield ("resume", "arguments", i), text.replace("{checkpoint}", "")

    def uses(self, name: str) -> bool:
        """Whether the trainer receives the value ``name``."""
        if self.section.python is not None:
            return True
        used = {word for _, text in self.templates() for word in placeholders(text)}
        return name in used or "config" in used

    def resolve(self, steps: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a trial's values with what is run. Raises ValueError if a value does not accept its format.

        An elastic trial gets ``workers``, and the part of its batch that follows from them, at each start.
        """
        whole = self.with_whole_batch(values)
        for _, text in self.templates():
            render(text, {**whole, **self.stand_ins(steps)})
        section = self.section
        what: dict[str, Any] = {"python": section.python}
        if section.python is not None and (section.metrics.also or section.metrics.score is not None):
            what["metrics"] = _what_is_read(section.metrics)
        if section.command is not None:
            what = {"command": section.command, "metrics": _what_is_read(section.metrics)}
        if section.environment:
            what["environment"] = section.environment
        if self.fewest_workers is not None:
            return {"steps": steps, **values, **what}
        if self.workers > 1 or self.batch_workers is not None:
            what["workers"] = self.batch_workers or self.workers
        return {"steps": steps, **whole, **what}

    @property
    def score_fact(self) -> dict[str, str]:
        """The fact of the ledger about its score; null without one, so that the fact of an earlier run goes."""
        score = self.section.metrics.score
        return {SCORE: "null" if score is None else score_fact(score.title, maximize=bool(score.maximize))}

    def with_whole_batch(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Complete the three parts of a global batch if the file has one. Raises ValueError."""
        if self.batch_workers is None:
            return values
        if self.fewest_workers is not None:
            whole_batch(values, self.fewest_workers)
        return whole_batch(values, self.batch_workers)

    def stand_ins(self, steps: int) -> dict[str, Any]:
        """Return values of the types that sweep's own placeholders have."""
        return {**dict.fromkeys(PLACEHOLDERS, ""), "steps": steps, "seed": 0, "workers": 1}


def _what_is_read(metrics: MetricsConfig) -> dict[str, Any]:
    """The part of ``metrics`` that belongs to a trial: not the direction of its score, which is the sweep's."""
    read = metrics.model_dump(exclude={"score"})
    if metrics.score is not None:
        read["score"] = metrics.score.model_dump(exclude={"maximize"}, exclude_none=True)
    return read


def takes_steps(config: Mapping[str, Any]) -> bool:
    """Whether the trainer of a trial with this ``config`` receives its steps, as every function does."""
    command = config.get("command")
    return command is None or not {"steps", "config"}.isdisjoint(
        name for word in command for name in placeholders(word)
    )


def placeholders(text: str) -> list[str]:
    """Return the names in braces in ``text``.

    Raises ValueError for unbalanced braces, and for formats whose result could have any length.
    """
    names = []
    for _, name, form, conversion in string.Formatter().parse(text):
        if name is None:
            continue
        if not name.isidentifier():
            raise ValueError(f"{{{name}}} is not a placeholder: write {{{{ and }}}} for braces")
        if conversion not in _CONVERSIONS:
            raise ValueError(f"{{{name}!{conversion}}}: unknown conversion !{conversion}; use !r, !s or !a")
        form = form or ""
        if "{" in form:
            raise ValueError(f"{{{name}:{form}}} has a placeholder in its format, which cannot change")
        for digits in re.findall(r"\d+", form):
            # Python parses integers of at most some thousand digits.
            if len(digits.lstrip("0")) > len(str(MAX_FORMATTED)) or int(digits) > MAX_FORMATTED:
                raise ValueError(f"a width or precision of {digits:.20} is more than {MAX_FORMATTED} characters")
        names.append(name)
    return names


def render(text: str, values: Mapping[str, Any]) -> str:
    """Replace the placeholders in ``text`` by values, as Python writes them: 0.001, 1e-05, True, None.

    Raises ValueError naming the placeholder whose value does not accept its format.
    """
    parts = []
    for literal, name, form, conversion in string.Formatter().parse(text):
        parts.append(literal)
        if name is not None:
            # Neither attributes nor indexes: a command gets only what a sweep file holds.
            parts.append(formatted(name, values[name], form or "", conversion))
    return "".join(parts)


def formatted(name: str, value: Any, form: str, conversion: str | None) -> str:
    """Format the value of a placeholder. Raises ValueError if it does not accept the format."""
    try:
        converted = _CONVERSIONS[conversion](value)
        formatted = format(converted, form) if form else str(converted)
        if "\0" in formatted:
            raise ValueError("the result contains NUL, which no command accepts")
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{name} = {value!r} does not accept the format {{{name}:{form}}}: {error}") from None
    return formatted


def custom_trainer(section: CustomTrainerSection, file: SweepFile, file_name: str) -> CustomTrainer:
    """Make the trainer of ``section``; its paths are relative to the folder of the sweep file ``file_name``."""
    workers = file.resources.most_workers
    sharing = None if file.batch is None else file.batch.workers or workers
    fewest = file.resources.fewest_workers if file.resources.is_elastic else None
    return CustomTrainer(section, absolute_folder(section, file_name), workers, file_name, sharing, fewest)


def absolute_folder(section: CustomTrainerSection, file_name: str) -> str:
    """Resolve ``section.folder`` against the sweep file's folder, or the working directory without a file."""
    base = Path(file_name).absolute().parent if os.path.isfile(file_name) else Path.cwd()
    return os.path.normpath(base / Path(section.folder).expanduser())


def command_of(command: Sequence[str]) -> list[str]:
    """Return ``command`` with sweep's interpreter for a bare ``python``, which may not be on the path."""
    return [sys.executable if command[0] in PYTHONS else command[0], *command[1:]]


def check_files_exist(trainer: object) -> None:
    """Raise InputError if the folder, the program or the script of a custom trainer is not on this machine."""
    if not isinstance(trainer, CustomTrainer):
        return

    def reject(key: str, message: str, remedy: str) -> None:
        raise InputError(Problem(trainer.file, f"objective.{key}", message, remedy))

    if not os.path.isdir(trainer.folder):
        reject("folder", f"{trainer.folder} is not a folder", "it is relative to the folder of the sweep file")
    if trainer.section.command is None:
        return
    program, *arguments = command_of(trainer.section.command)
    if "{" not in program and shutil.which(_found_from(trainer.folder, program)) is None:
        reject("command.0", f"{program!r} is not a program on this machine", "install it, or give its path")
    script = arguments[0] if arguments and trainer.section.command[0] in PYTHONS else ""
    if script.endswith(".py") and "{" not in script and not os.path.isfile(os.path.join(trainer.folder, script)):
        reject("command.1", f"{script!r} is not in {trainer.folder}", "the command runs in objective.folder")


def _found_from(folder: str, program: str) -> str:
    """Return ``program`` as a command in ``folder`` finds it: a path relative to it, or a name on the path."""
    return os.path.join(folder, program) if os.sep in program else program


# --- the section batch -----------------------------------------------------------------------------


def with_batch(file: SweepFile) -> SweepFile:
    """Return ``file`` with the numbers of its section ``batch`` among its fixed values."""
    if file.batch is None:
        return file
    return file.model_copy(update={"fixed": {**file.fixed, **_given_parts(file)}})


def batch_problems(file: SweepFile, is_custom: bool, document: Document) -> Iterator[Problem]:
    """Yield problems of the section ``batch``, for a custom trainer or another objective."""
    if file.batch is None:
        return
    if not is_custom:
        remedy = "remove it; batch_size is a field of the objective, and so is accumulate where it has one"
        yield document.problem(("batch",), "applies to custom trainers only", remedy)
        return
    written, elsewhere = _given_parts(file), {*file.axes, *file.fixed, *file.tie}
    for key, name in PARTS.items():
        if name in written and name in elsewhere:
            yield document.problem(
                ("batch", key), f"{name} is given elsewhere in the file as well", "keep one of the two"
            )
    given = [name for name in PARTS.values() if name in written or name in elsewhere]
    if len(given) != 2:
        message = f"{', '.join(given) or 'none'} of {', '.join(PARTS.values())} given: the third follows from two"
        remedy = "give two parts, here (global, micro, accumulation), or as axes, fixed or tied"
        yield document.problem(("batch",), message, remedy)
    if file.resources.is_elastic and len(given) == 2 and GLOBAL not in given:
        message = "would change with the number of workers: resources.workers is a range"
        remedy = "give batch.global in place of one of the others, so that each number of workers holds it"
        yield document.problem(("batch",), message, remedy)
    if (workers := file.batch.workers) is not None and file.resources.most_workers not in (1, workers):
        message = f"{workers} differs from resources.workers = {file.resources.most_workers}"
        yield document.problem(("batch", "workers"), message, "remove it to use resources.workers")


def _given_parts(file: SweepFile) -> dict[str, int]:
    """Return the numbers in the section by their names as placeholders."""
    assert file.batch is not None
    numbers = file.batch.model_dump(by_alias=True, exclude_none=True)
    return {name: numbers[key] for key, name in PARTS.items() if key in numbers}


def whole_batch(values: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """Add the third of global batch, micro batch and accumulation, which follows from the other two.

    Raises ValueError if a part is not a positive integer, or would not be.
    """
    for name in PARTS.values():
        if name in values and (type(values[name]) is not int or values[name] < 1):
            raise ValueError(f"{name} = {values[name]!r:.80} must be a positive integer")
    if GLOBAL not in values:
        return {**values, GLOBAL: values[MICRO] * values[ACCUMULATION] * workers}
    other, missing = _other_and_missing(values)
    unit = values[other] * workers
    if values[GLOBAL] % unit:
        product = f"{other} x workers = {values[other]} x {workers} = {unit}"
        raise ValueError(f"{GLOBAL} = {values[GLOBAL]} is not a multiple of {product}")
    return {**values, missing: values[GLOBAL] // unit}


def sized(config: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """Return the configuration of an elastic trial with its number of ``workers``, and what follows from it."""
    return {**whole_batch(config, workers), "workers": workers}


def holds_batch(config: Mapping[str, Any], workers: int) -> bool:
    """Return whether ``workers`` can share the global batch of an elastic trial."""
    try:
        whole_batch(config, workers)
    except ValueError:
        return False
    return True


def formula(given: Collection[str], workers: str) -> tuple[str, str]:
    """Return the part that follows when ``given`` have values, and its formula with the number of ``workers``."""
    if GLOBAL not in given:
        return GLOBAL, f"{MICRO} x {ACCUMULATION} x {workers} workers"
    other, missing = _other_and_missing(given)
    return missing, f"{GLOBAL} / ({other} x {workers} workers)"


def _other_and_missing(given: Collection[str]) -> tuple[str, str]:
    """Return the part that is given besides the global batch, and the one that follows."""
    return (MICRO, ACCUMULATION) if MICRO in given else (ACCUMULATION, MICRO)
