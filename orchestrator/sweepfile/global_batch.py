"""The section ``batch`` of a sweep file: a global batch is micro batch x accumulation x workers, and one follows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from orchestrator.base.errors import Problem
from orchestrator.sweepfile.sections import SweepFile
from orchestrator.sweepfile.strict_yaml import Document

# The keys of the section, and the names that they have as placeholders, axes and tied fields.
GLOBAL, MICRO, ACCUMULATION = "global_batch", "micro_batch", "accumulation"
PARTS: Mapping[str, str] = {"global": GLOBAL, "micro": MICRO, "accumulation": ACCUMULATION}


def with_batch(file: SweepFile) -> SweepFile:
    """``file`` with the numbers of its section ``batch`` among its fixed values."""
    if file.batch is None:
        return file
    return file.model_copy(update={"fixed": {**file.fixed, **_written(file)}})


def batch_problems(file: SweepFile, is_custom: bool, document: Document) -> Iterator[Problem]:
    """Problems of the section ``batch``, for a custom trainer or not."""
    if file.batch is None:
        return

    def problem(path: tuple[str, ...], message: str, remedy: str) -> Problem:
        return Problem(document.place(path), ".".join(path), message, remedy)

    if not is_custom:
        remedy = "remove it; batch_size is a field of the objective, and so is accumulate where it has one"
        yield problem(("batch",), "has a meaning for custom trainers alone", remedy)
        return
    written, elsewhere = _written(file), {*file.axes, *file.fixed, *file.tie}
    for key, name in PARTS.items():
        if name in written and name in elsewhere:
            yield problem(("batch", key), f"{name} has a value elsewhere in the file, too", "keep one of the two")
    given = [name for name in PARTS.values() if name in written or name in elsewhere]
    if len(given) != 2:
        message = f"{', '.join(given) or 'none'} of {', '.join(PARTS.values())} given: the third follows from two"
        remedy = "give two of them, here (global, micro, accumulation), or as axes, fixed or tied"
        yield problem(("batch",), message, remedy)
    if (workers := file.batch.workers) is not None and file.resources.workers not in (1, workers):
        message = f"{workers} are not the {file.resources.workers} of resources.workers"
        yield problem(("batch", "workers"), message, "remove it, and those of resources count")


def _written(file: SweepFile) -> dict[str, int]:
    """The numbers of the section by their names as placeholders."""
    assert file.batch is not None
    numbers = file.batch.model_dump(by_alias=True, exclude_none=True)
    return {name: numbers[key] for key, name in PARTS.items() if key in numbers}


def whole_batch(values: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """``values`` with the third of global batch, micro batch and accumulation, which follows from the other two.

    Raises ValueError where one of them is no whole number above zero, or would not be.
    """
    for name in PARTS.values():
        if name in values and (type(values[name]) is not int or values[name] < 1):
            raise ValueError(f"{name} = {values[name]!r:.80} is no whole number above 0")
    if GLOBAL not in values:
        return {**values, GLOBAL: values[MICRO] * values[ACCUMULATION] * workers}
    other, missing = (MICRO, ACCUMULATION) if MICRO in values else (ACCUMULATION, MICRO)
    unit = values[other] * workers
    if values[GLOBAL] % unit:
        product = f"{other} x workers = {values[other]} x {workers} = {unit}"
        raise ValueError(f"{GLOBAL} = {values[GLOBAL]} is no multiple of {product}")
    return {**values, missing: values[GLOBAL] // unit}


def formula(given: Collection[str], workers: int) -> tuple[str, str]:
    """The name that follows where ``given`` have values, and what it follows from, in words."""
    if GLOBAL not in given:
        return GLOBAL, f"{MICRO} x {ACCUMULATION} x {workers} workers"
    other, missing = (MICRO, ACCUMULATION) if MICRO in given else (ACCUMULATION, MICRO)
    return missing, f"{GLOBAL} / ({other} x {workers} workers)"
