"""A custom trainer: the command or function that a sweep file names, and what each trial passes to it."""

from __future__ import annotations

import os
import re
import shutil
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.base.errors import InputError, Problem
from orchestrator.sweepfile.global_batch import PARTS, whole_batch
from orchestrator.sweepfile.sections import CustomTrainerSection, SweepFile

# The user cannot choose the values of these names in a command; the other names are those of the trials.
_PLACEHOLDERS = ("steps", "seed", "trial", "folder", "config", "workers")
GIVEN = frozenset({*_PLACEHOLDERS, "command", "python", "environment", "metrics"})
_PYTHONS = ("python", "python3")
AUTO = "auto"
LONGEST_FORMATTED = 200  # largest width or precision of a format, in characters: a line of a script
_CONVERSIONS: Mapping[str | None, Callable[[Any], Any]] = {None: lambda value: value, "r": repr, "s": str, "a": ascii}


@dataclass(frozen=True, slots=True)
class CustomTrainer:
    """A command, or a Python function, that trains one trial; ``folder`` is absolute."""

    section: CustomTrainerSection
    folder: str
    workers: int
    file: str  # the sweep file that names it, for messages
    batch_workers: int | None  # that share a global batch, where the file has the section `batch`

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
        """What is run, as written in the sweep file."""
        return " ".join(self.section.command) if self.section.command is not None else f"{self.section.python}()"

    @property
    def preload(self) -> str | tuple[str, ...] | None:
        """The modules of the process that forks its trials, "auto" for those that it imports; None for no such process.

        The variables of its environment must be the same for all trials.
        """
        chosen, section = self.section.preload, self.section
        if chosen is None:
            is_shared = not any(placeholders(text) for text in section.environment.values())
            return AUTO if section.python is not None and is_shared else None
        return tuple(chosen) if isinstance(chosen, list) else chosen or None

    def templates(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Every text with placeholders, and its key below ``objective``."""
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
        """Whether a value called ``name`` is passed to the trainer."""
        if self.section.python is not None:
            return True
        used = {word for _, text in self.templates() for word in placeholders(text)}
        return name in used or "config" in used

    def resolve(self, steps: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """A trial's full configuration: its values and what is run. Raises ValueError where a format does not fit."""
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
        """``values``, with all three parts of a global batch where the file has one. Raises ValueError."""
        return values if self.batch_workers is None else whole_batch(values, self.batch_workers)

    def stand_ins(self, steps: int) -> dict[str, Any]:
        """Values of the types that sweep's own placeholders have."""
        return {**dict.fromkeys(_PLACEHOLDERS, ""), "steps": steps, "seed": 0, "workers": 1}


def placeholders(text: str) -> list[str]:
    """Names in braces in ``text``.

    Raises ValueError for unbalanced braces, and for formats whose result could be of any length.
    """
    names = []
    for _, name, form, conversion in string.Formatter().parse(text):
        if name is None:
            continue
        if not name.isidentifier():
            raise ValueError(f"{{{name}}} is no placeholder: write {{{{ and }}}} for braces")
        if conversion not in _CONVERSIONS:
            raise ValueError(f"{{{name}!{conversion}}}: there is no conversion !{conversion}, but !r, !s or !a")
        form = form or ""
        if "{" in form:
            raise ValueError(f"{{{name}:{form}}} has a placeholder in its format, which is taken as it is written")
        for digits in re.findall(r"\d+", form):
            # Python parses integers of at most some thousand digits.
            if len(digits.lstrip("0")) > len(str(LONGEST_FORMATTED)) or int(digits) > LONGEST_FORMATTED:
                raise ValueError(f"a width or precision of {digits:.20} is more than {LONGEST_FORMATTED} characters")
        names.append(name)
    return names


def render(text: str, values: Mapping[str, Any]) -> str:
    """``text`` with its placeholders replaced by values, as Python writes them: 0.001, 1e-05, True, None.

    Raises ValueError naming the placeholder where a value does not accept its format.
    """
    parts = []
    for literal, name, form, conversion in string.Formatter().parse(text):
        parts.append(literal)
        if name is not None:
            # Neither attributes nor indexes: a command gets only what a sweep file holds.
            parts.append(_formatted(name, values[name], form or "", conversion))
    return "".join(parts)


def _formatted(name: str, value: Any, form: str, conversion: str | None) -> str:
    """``value`` of the placeholder ``name``. Raises ValueError where it does not accept the format."""
    try:
        converted = _CONVERSIONS[conversion](value)
        formatted = format(converted, form) if form else str(converted)
        if "\0" in formatted:
            raise ValueError("a NUL comes of it, which no command takes")
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{name} = {value!r} does not take the format {{{name}:{form}}}: {error}") from None
    return formatted


def custom_trainer(section: CustomTrainerSection, file: SweepFile, file_name: str) -> CustomTrainer:
    """The trainer of ``section`` in the sweep file ``file_name``; relative paths start at that file's folder."""
    workers = file.resources.workers
    sharing = None if file.batch is None else file.batch.workers or workers
    return CustomTrainer(section, absolute_folder(section, file_name), workers, file_name, sharing)


def absolute_folder(section: CustomTrainerSection, file_name: str) -> str:
    """``section.folder`` relative to the sweep file's folder, or to the working directory without a file."""
    base = Path(file_name).absolute().parent if os.path.isfile(file_name) else Path.cwd()
    return os.path.normpath(base / Path(section.folder).expanduser())


Found = tuple[tuple[str | int, ...], str, str]  # key, message and remedy


def custom_trainer_problems(own: CustomTrainer, file: SweepFile) -> Iterator[Found]:
    """Problems of a custom trainer in its sweep file."""
    parts = [] if own.batch_workers is None else [name for name in PARTS.values() if name not in file.fixed]
    wrong = list(_template_problems(own, [*file.axes, *file.fixed, *file.tie, *parts], file.steps or 1))
    if wrong:
        yield from wrong
        return
    section, resources = own.section, file.resources
    metrics = section.metrics
    if section.python is not None and metrics.model_fields_set - {"also"}:
        yield (("objective", "metrics"), "has no meaning beside python, but for also", "remove it")
    if section.python is not None and section.resume is not None and section.resume.arguments:
        yield ("objective", "resume", "arguments"), "a function has no arguments", "remove them"
    yield from _preload_problems(section)
    if metrics.pattern is not None:
        try:
            from orchestrator.logs.streams import MetricStream  # numpy, which other sweep files need not

            MetricStream(metrics)
        except InputError as error:
            yield from (
                (("objective", "metrics", "pattern"), p.message, p.remedy)
                for p in error.problems
                if isinstance(p, Problem)
            )
    if metrics.file is not None and not set(placeholders(metrics.file)) - {"steps", "workers"}:
        message = f"{metrics.file!r} would be the file of all trials"
        yield ("objective", "metrics", "file"), message, f"write {{folder}}/{metrics.file}"
    if own.workers > 1 and resources.gpus:
        yield ("resources", "gpus"), "is ambiguous beside workers", "say gpus_per_worker"


def _preload_problems(section: CustomTrainerSection) -> Iterator[Found]:
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
                "a process can be forked for python SCRIPT or python -m MODULE; remove preload for another command",
            )
    for name, text in section.environment.items():
        if placeholders(text):
            message = f"{text!r:.60} differs between trials, which are forks of one process"
            yield ("objective", "environment", name), message, "pass it as an argument, or say preload: false"


def _template_problems(own: CustomTrainer, known: Iterable[str], steps: int) -> Iterator[Found]:
    names = [*known, *_PLACEHOLDERS]
    given = own.stand_ins(steps)
    for path, text in own.templates():
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
            yield key, f"{{{name}}} is neither an axis nor fixed nor tied", f"there are: {', '.join(names)}"


def command_of(own: Sequence[str]) -> list[str]:
    """The command, with sweep's interpreter for a bare ``python``, which may not be on the path."""
    return [sys.executable if own[0] in _PYTHONS else own[0], *own[1:]]


def refuse_what_is_not_there(own: object) -> None:
    """Raise InputError where the folder, the program or the script of a custom trainer is not on this machine."""
    if not isinstance(own, CustomTrainer):
        return

    def refuse(key: str, message: str, remedy: str) -> None:
        raise InputError(Problem(own.file, f"objective.{key}", message, remedy))

    if not os.path.isdir(own.folder):
        refuse("folder", f"{own.folder} is not a folder", "it is relative to the folder of the sweep file")
    if own.section.command is None:
        return
    program, *arguments = command_of(own.section.command)
    if "{" not in program and shutil.which(_from(own.folder, program)) is None:
        refuse("command.0", f"{program!r} is not a program on this machine", "install it, or give its path")
    script = arguments[0] if arguments and own.section.command[0] in _PYTHONS else ""
    if script.endswith(".py") and "{" not in script and not os.path.isfile(os.path.join(own.folder, script)):
        refuse("command.1", f"{script!r} is not in {own.folder}", "the command runs in objective.folder")


def _from(folder: str, program: str) -> str:
    """``program`` as a command in ``folder`` finds it: a path relative to it, or a name on the path."""
    return os.path.join(folder, program) if os.sep in program else program
