"""The section ``batch`` of a sweep file: global batch = micro batch x accumulation x workers. Two are given."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from orchestrator.base.errors import Problem
from orchestrator.sweepfile.sections import SweepFile
from orchestrator.sweepfile.strict_yaml import Document

# The keys of the section, and their names as placeholders, axes and tied fields.
GLOBAL, MICRO, ACCUMULATION = "global_batch", "micro_batch", "accumulation"
PARTS: Mapping[str, str] = {"global": GLOBAL, "micro": MICRO, "accumulation": ACCUMULATION}


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
