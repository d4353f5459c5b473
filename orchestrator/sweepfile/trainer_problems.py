"""Settings of a sweep file that do not fit what it trains: an objective, built-in or packed, or a custom trainer."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Iterator

from objectives.base import Objective
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.measure import names_a_moving_loss, names_a_score
from orchestrator.logs.lines import compiled
from orchestrator.logs.pattern import compiled_pattern
from orchestrator.logs.scores import compiled_score
from orchestrator.sweepfile.custom_trainer import PARTS, PLACEHOLDERS, PYTHONS, CustomTrainer, formatted, placeholders
from orchestrator.sweepfile.sections import CustomTrainerSection, SweepFile
from orchestrator.sweepfile.strict_yaml import Document

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
    if resources.most_workers > 1 and objective.check_workers is not None:
        yield from _sharing_problems(objective, file)
    elif resources.most_workers > 1 or resources.gpus_per_worker:
        message = f"{objective.name} trains in one process"
        remedy = "`parallel` is the number of packs at a time, `gpus` the GPUs of one pack"
        yield ("resources", "workers"), message, remedy
    if resources.compile and not objective.can_compile:
        yield ("resources", "compile"), f"{objective.name} cannot be compiled", "remove it"
    section = file.objective
    if isinstance(section, CustomTrainerSection) and (others := section.model_fields_set - {"packed", "folder"}):
        yield ("objective", min(others)), "does not apply to packed", "remove it"


def with_one_member(file: SweepFile, objective: Objective | CustomTrainer) -> SweepFile:
    """Return ``file`` with packs of one member if several processes share the batches of an objective's trial."""
    if isinstance(objective, CustomTrainer) or file.resources.most_workers == 1 or file.resources.pack != "auto":
        return file
    return file.model_copy(update={"resources": file.resources.model_copy(update={"pack": 1})})


def _sharing_problems(objective: Objective, file: SweepFile) -> Iterator[KeyedProblem]:
    """Yield what does not fit trials of several processes."""
    resources = file.resources
    yield from _range_problems(file)
    if resources.pack not in ("auto", 1):
        message = f"{resources.pack} members at a time, and {resources.most_workers} workers share the batches of one"
        yield ("resources", "pack"), message, "remove it, or remove workers"
    if resources.compile:
        yield ("resources", "compile"), f"{objective.name} is not compiled for several workers", "remove it"
    for key in ("gpus", "gpus_per_worker"):
        if getattr(resources, key):
            message = f"several workers of {objective.name} train on CPUs only"
            yield ("resources", key), message, "remove it, or remove workers"


def _range_problems(file: SweepFile) -> Iterator[KeyedProblem]:
    """Yield what is wrong with the numbers of workers of an elastic trial."""
    resources = file.resources
    if resources.fewest_workers > resources.most_workers:
        message = f"min = {resources.fewest_workers} is more than max = {resources.most_workers}"
        yield ("resources", "workers", "min"), message, "swap them"


def _elastic_problems(trainer: CustomTrainer, file: SweepFile) -> Iterator[KeyedProblem]:
    """Yield why a custom trainer cannot go on with another number of workers and the same global batch."""
    yield from _range_problems(file)
    key = ("resources", "workers")
    if trainer.section.resume is None:
        yield key, "a trial goes on from its checkpoint when they change", "say objective.resume, or write one number"
    if file.batch is None:
        message = "the global batch, which each number of workers must hold, is not known"
        yield key, message, "add batch: {global: N, micro: M}, or write one number"
    elif not any(map(trainer.uses, PARTS.values())):
        message = "the command takes no size of the batch, so each number of workers would train another"
        yield key, message, "write {accumulation}, {micro_batch} or {global_batch} in objective.command"


def _custom_problems(trainer: CustomTrainer, file: SweepFile) -> Iterator[KeyedProblem]:
    every = file.validation.every
    if file.resources.is_elastic:
        yield from _elastic_problems(trainer, file)
    if file.resources.compile:
        yield ("resources", "compile"), "a custom trainer compiles by itself", "remove it"
    if file.stopping.validation_patience is not None and every is None and trainer.section.metrics.score is None:
        message = "a custom trainer that validates decides when it ends"
        yield ("stopping", "validation_patience"), message, "remove it, or name its score: objective.metrics.score"
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
    if section.python is not None and metrics.model_fields_set - {"also", "score"}:
        yield (("objective", "metrics"), "does not apply to python, except for also and score", "remove it")
    if section.python is not None and section.resume is not None and section.resume.arguments:
        yield ("objective", "resume", "arguments"), "a function has no arguments", "remove them"
    yield from _preload_problems(section)
    if metrics.pattern is not None:
        yield from _pattern_problems(("objective", "metrics", "pattern"), lambda: compiled_pattern(metrics))
    for name in sorted(file.facts.keys() & {*file.axes, *file.fixed, *file.tie}):
        yield ("facts", name), "is given elsewhere in the file as well", "keep one of the two"
    own, key = section.diverged_if or "", ("objective", "diverged_if")
    yield from _pattern_problems(key, lambda: compiled(own, "diverged_if", "write e.g. 'exploded at step'"))
    yield from _score_problems(section)
    if metrics.file is not None and not set(placeholders(metrics.file)) - {"steps", "workers"}:
        message = f"{metrics.file!r} would be the file of all trials"
        yield ("objective", "metrics", "file"), message, f"write {{folder}}/{metrics.file}"
    if trainer.workers > 1 and resources.gpus:
        yield ("resources", "gpus"), "is ambiguous with several workers", "say gpus_per_worker"


def _pattern_problems(key: tuple[str, ...], make: Callable[[], re.Pattern[str]]) -> Iterator[KeyedProblem]:
    try:
        make()
    except InputError as error:
        for problem in error.problems:
            assert isinstance(problem, Problem)
            yield key, problem.message, problem.remedy


def _score_problems(section: CustomTrainerSection) -> Iterator[KeyedProblem]:
    metrics = section.metrics
    for key in ("loss", "validation_loss"):
        name = getattr(metrics, key)
        if name is not None and names_a_score(name):
            message = f"{name!r} is the name of a score, where more is better, and not of a loss"
            remedy = f"name the loss, and write score: {{name: {name}, maximize: true}}"
            yield ("objective", "metrics", key), message, remedy
    if metrics.loss is not None and names_a_moving_loss(metrics.loss):
        message = f"{metrics.loss!r} rises while an agent learns, since its targets do"
        remedy = "name the loss of the policy, and what the agent gains under score: {name: ..., maximize: true}"
        yield ("objective", "metrics", "loss"), message, remedy
    score = metrics.score
    if score is None:
        return
    place = ("objective", "metrics", "score")
    if score.maximize is None:
        message = f"does not say whether more of {score.title} is better"
        remedy = "add maximize: true (accuracy, F1, a return), or maximize: false (bits per byte)"
        yield (*place, "maximize"), message, remedy
    if score.pattern is None:
        return
    if section.python is not None or metrics.format == "tensorboard":
        what = "a function" if section.python is not None else "an event file"
        yield (*place, "pattern"), f"{what} has no lines of text", "give the name that it reports instead"
    yield from _pattern_problems((*place, "pattern"), lambda: compiled_score(score))


def _preload_problems(section: CustomTrainerSection) -> Iterator[KeyedProblem]:
    if not section.preload and section.preload != []:
        return
    if section.command is not None:
        program, *arguments = section.command
        script = arguments[:2] if arguments[:1] == ["-m"] else arguments[:1]
        is_script = bool(script) and (not script[0].startswith("-") or len(script) == 2)
        if program not in PYTHONS or not is_script or any(placeholders(word) for word in script):
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
    names = [*known, *PLACEHOLDERS]
    given = trainer.stand_ins(steps)
    for path, text in trainer.templates():
        key = ("objective", *path)
        try:
            unknown = [name for name in placeholders(text) if name not in names]
            for _, name, form, conversion in string.Formatter().parse(text):
                if name in given:
                    formatted(name, given[name], form or "", conversion)
        except ValueError as error:
            remedy = "a placeholder is a name in braces, such as {lr}, or with a format of Python, {lr:.2e}"
            yield key, f"{text!r:.80} is refused: {error}", remedy
            continue
        for name in unknown:
            yield key, f"{{{name}}} is neither an axis nor fixed nor tied", f"names: {', '.join(names)}"
