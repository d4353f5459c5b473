"""Settings of a sweep file that do not fit what it trains: a built-in objective, a packed one, or a custom trainer."""

from __future__ import annotations

from collections.abc import Iterator

from objectives.base import Objective
from orchestrator.base.errors import Problem
from orchestrator.sweepfile.custom_trainer import CustomTrainer, custom_trainer_problems
from orchestrator.sweepfile.sections import CustomTrainerSection, SweepFile
from orchestrator.sweepfile.strict_yaml import Document


def trainer_problems(file: SweepFile, objective: Objective | CustomTrainer, document: Document) -> Iterator[Problem]:
    """Settings that are not compatible with the trainer, built-in or custom."""
    resources, every = file.resources, file.validation.every

    def problem(path: tuple[str | int, ...], message: str, remedy: str) -> Problem:
        return Problem(document.place(path), ".".join(map(str, path)), message, remedy)

    if file.stopping.validation_patience is not None and every is None:
        message, remedy = "nothing is validated before the last step", "say validate: {every: STEPS}"
        if not isinstance(objective, Objective):
            message, remedy = "a custom trainer that validates decides when it ends", "remove it"
        yield problem(("stopping", "validation_patience"), message, remedy)
    if isinstance(objective, Objective):
        if every is not None and not objective.has_held_out:
            yield problem(("validate", "every"), f"{objective.name} has no held-out data", "remove it")
        if resources.workers > 1 or resources.gpus_per_worker:
            yield problem(
                ("resources", "workers"),
                f"{objective.name} trains in one process",
                "`parallel` is the number of packs at a time, `gpus` those of one pack",
            )
        section = file.objective
        if isinstance(section, CustomTrainerSection) and (section.model_fields_set - {"packed", "folder"}):
            name = min(section.model_fields_set - {"packed", "folder"})
            yield problem(("objective", name), "has no meaning beside packed", "remove it")
        return
    if every is not None:
        message = "a custom trainer validates by itself"
        yield problem(
            ("validate", "every"), message, "remove it; objective.metrics.validation_loss names what it prints"
        )
    for path, message, remedy in custom_trainer_problems(objective, file):
        yield problem(path, message, remedy)
