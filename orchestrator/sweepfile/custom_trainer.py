"""A custom trainer: the command or function that a sweep file names, and what each trial passes to it.

Its global batch, in the section `batch`, is micro batch x accumulation x workers: two parts are given.
"""

from __future__ import annotations

import os
import re
import shutil
import string
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from objectives.base import Objective
from orchestrator.base.errors import InputError, Problem
from orchestrator.logs.line_formats import compiled_pattern
from orchestrator.sweepfile.sections import CustomTrainerSection, SweepFile
from orchestrator.sweepfile.strict_yaml import Document

# Sweep itself sets these names in a command; all other names are values of a trial.
_PLACEHOLDERS = ("steps", "seed", "trial", "folder", "config", "workers")
GIVEN = frozenset({*_PLACEHOLDERS, "command", "python", "environment", "metrics"})
# The keys of the section `batch`, and their names as placeholders, axes and tied fields.
GLOBAL, MICRO, ACCUMULATION = "global_batch", "micro_batch", "accumulation"
PARTS: Mapping[str, str] = {"global": GLOBAL, "micro": MICRO, "accumulation": ACCUMULATION}
_PYTHONS = ("python", "python3")
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
        """Return a trial's values with what is run. Raises ValueError if a value does not accept its format."""
        values = self.with_whole_batch(values)
        for _, text in self.templates():
            render(text, {**values, **self.stand_ins(steps)})
        section = self.section
        what: dict[str, Any] = {"python": section.python}
        if section.python is not None and section.metrics.also:
            what["metrics"] = section.metrics.model_dump()
        if section.command is not None:
            what = {"command": section.command, "metrics": section.metrics.model_dump()}
        if section.environment:
            what["environment"] = section.environment
        if self.workers > 1 or self.batch_workers is not None:
            what["workers"] = self.batch_workers or self.workers
        return {"steps": steps, **values, **what}

    def with_whole_batch(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Complete the three parts of a global batch if the file has one. Raises ValueError."""
        return values if self.batch_workers is None else whole_batch(values, self.batch_workers)

    def stand_ins(self, steps: int) -> dict[str, Any]:
        """Return values of the types that sweep's own placeholders have."""
        return {**dict.fromkeys(_PLACEHOLDERS, ""), "steps": steps, "seed": 0, "workers": 1}


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
            parts.append(_formatted(name, values[name], form or "", conversion))
    return "".join(parts)


def _formatted(name: str, value: Any, form: str, conversion: str | None) -> str:
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
    workers = file.resources.workers
    sharing = None if file.batch is None else file.batch.workers or workers
    return CustomTrainer(section, absolute_folder(section, file_name), workers, file_name, sharing)


def absolute_folder(section: CustomTrainerSection, file_name: str) -> str:
    """Resolve ``section.folder`` against the sweep file's folder, or the working directory without a file."""
    base = Path(file_name).absolute().parent if os.path.isfile(file_name) else Path.cwd()
    return os.path.normpath(base / Path(section.folder).expanduser())


# --- problems --------------------------------------------------------------------------------------

KeyedProblem = tuple[tuple[str | int, ...], str, str]  # key, message and remedy


def trainer_problems(file: SweepFile, objective: Objective | CustomTrainer, document: Document) -> Iterator[Problem]:
    """Yield settings that do not fit what the sweep trains: an objective, built-in or packed, or a custom trainer."""
    problems = _objective_problems if isinstance(objective, Objective) else _custom_problems
    for path, message, remedy in problems(objective, file):  # type: ignore[arg-type]
        yield document.problem(path, message, remedy)


def _objective_problems(objective: Objective, file: SweepFile) -> Iterator[KeyedProblem]:
    every, resources = file.validation.every, file.resources
    if file.facts:
        yield ("facts",), f"are about a custom trainer, and {objective.name} has fields", "write them under `fixed`"
    if file.stopping.validation_patience is not None and every is None:
        message, remedy = "nothing is validated before the last step", "say validate: {every: STEPS}"
        yield ("stopping", "validation_patience"), message, remedy
    if every is not None and not objective.has_held_out:
        yield ("validate", "every"), f"{objective.name} has no held-out data", "remove it"
    if resources.workers > 1 or resources.gpus_per_worker:
        message = f"{objective.name} trains in one process"
        remedy = "`parallel` is the number of packs at a time, `gpus` the GPUs of one pack"
        yield ("resources", "workers"), message, remedy
    if resources.compile and not objective.can_compile:
        yield ("resources", "compile"), f"{objective.name} cannot be compiled", "remove it"
    section = file.objective
    if isinstance(section, CustomTrainerSection) and (others := section.model_fields_set - {"packed", "folder"}):
        yield ("objective", min(others)), "does not apply to packed", "remove it"


def _custom_problems(trainer: CustomTrainer, file: SweepFile) -> Iterator[KeyedProblem]:
    every = file.validation.every
    if file.resources.compile:
        yield ("resources", "compile"), "a custom trainer compiles by itself", "remove it"
    if file.stopping.validation_patience is not None and every is None:
        yield ("stopping", "validation_patience"), "a custom trainer that validates decides when it ends", "remove it"
    if every is not None:
        remedy = "remove it; objective.metrics.validation_loss names what it prints"
        yield ("validate", "every"), "a custom trainer validates by itself", remedy
    parts = [] if trainer.batch_workers is None else [name for name in PARTS.values() if name not in file.fixed]
    problems = list(_template_problems(trainer, [*file.axes, *file.fixed, *file.tie, *parts], file.steps or 1))
    if problems:
        yield from problems
        return
    section, resources = trainer.section, file.resources
    metrics = section.metrics
    if section.python is not None and metrics.model_fields_set - {"also"}:
        yield (("objective", "metrics"), "does not apply to python, except for also", "remove it")
    if section.python is not None and section.resume is not None and section.resume.arguments:
        yield ("objective", "resume", "arguments"), "a function has no arguments", "remove them"
    yield from _preload_problems(section)
    if metrics.pattern is not None:
        try:
            compiled_pattern(metrics)
        except InputError as error:
            yield from (
                (("objective", "metrics", "pattern"), p.message, p.remedy)
                for p in error.problems
                if isinstance(p, Problem)
            )
    for name in sorted(file.facts.keys() & {*file.axes, *file.fixed, *file.tie}):
        yield ("facts", name), "is given elsewhere in the file as well", "keep one of the two"
    try:
        re.compile(section.diverged_if or "")
    except (re.error, OverflowError, RecursionError) as error:
        what = f"{section.diverged_if!r:.80} is not a valid regular expression: {error}"
        yield ("objective", "diverged_if"), what, "write e.g. 'exploded at step'"
    if metrics.file is not None and not set(placeholders(metrics.file)) - {"steps", "workers"}:
        message = f"{metrics.file!r} would be the file of all trials"
        yield ("objective", "metrics", "file"), message, f"write {{folder}}/{metrics.file}"
    if trainer.workers > 1 and resources.gpus:
        yield ("resources", "gpus"), "is ambiguous with several workers", "say gpus_per_worker"


def _preload_problems(section: CustomTrainerSection) -> Iterator[KeyedProblem]:
    if not section.preload and section.preload != []:
        return
    if section.command is not None:
        program, *arguments = section.command
        script = arguments[:2] if arguments[:1] == ["-m"] else arguments[:1]
        is_script = bool(script) and (not script[0].startswith("-") or len(script) == 2)
        if program not in _PYTHONS or not is_script or any(placeholders(word) for word in script):
            yield (
                ("objective", "preload"),
                f"the command is {' '.join(section.command):.60}",
                "only python SCRIPT or python -m MODULE can be forked; remove preload for another command",
            )
    for name, text in section.environment.items():
        if placeholders(text):
            message = f"{text!r:.60} differs between trials, which are forks of one process"
            yield ("objective", "environment", name), message, "pass it as an argument, or say preload: false"


def _template_problems(trainer: CustomTrainer, known: Iterable[str], steps: int) -> Iterator[KeyedProblem]:
    names = [*known, *_PLACEHOLDERS]
    given = trainer.stand_ins(steps)
    for path, text in trainer.templates():
        key = ("objective", *path)
        try:
            unknown = [name for name in placeholders(text) if name not in names]
            for _, name, form, conversion in string.Formatter().parse(text):
                if name in given:
                    _formatted(name, given[name], form or "", conversion)
        except ValueError as error:
            remedy = "a placeholder is a name in braces, such as {lr}, or with a format of Python, {lr:.2e}"
            yield key, f"{text!r:.80} is refused: {error}", remedy
            continue
        for name in unknown:
            yield key, f"{{{name}}} is neither an axis nor fixed nor tied", f"names: {', '.join(names)}"


def command_of(command: Sequence[str]) -> list[str]:
    """Return ``command`` with sweep's interpreter for a bare ``python``, which may not be on the path."""
    return [sys.executable if command[0] in _PYTHONS else command[0], *command[1:]]


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
    script = arguments[0] if arguments and trainer.section.command[0] in _PYTHONS else ""
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
    if (workers := file.batch.workers) is not None and file.resources.workers not in (1, workers):
        message = f"{workers} differs from resources.workers = {file.resources.workers}"
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


def formula(given: Collection[str], workers: int) -> tuple[str, str]:
    """Return the part that follows when ``given`` have values, and its formula."""
    if GLOBAL not in given:
        return GLOBAL, f"{MICRO} x {ACCUMULATION} x {workers} workers"
    other, missing = _other_and_missing(given)
    return missing, f"{GLOBAL} / ({other} x {workers} workers)"


def _other_and_missing(given: Collection[str]) -> tuple[str, str]:
    """Return the part that is given besides the global batch, and the one that follows."""
    return (MICRO, ACCUMULATION) if MICRO in given else (ACCUMULATION, MICRO)
