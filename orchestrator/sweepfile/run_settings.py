"""The settings of one run: a flat YAML file, or the `fixed` of a sweep file, changed by the command line."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError, Problem, did_you_mean
from orchestrator.base.space import frozen
from orchestrator.sweepfile.overrides import parse_set
from orchestrator.sweepfile.sections import SweepFile
from orchestrator.sweepfile.spec import read_document
from orchestrator.sweepfile.strict_yaml import Document

_SEED = "seed"  # every run has its own, so it tells nothing about where the run is


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The ``values`` of a run's settings by name, without its seed, and the ``places`` where they were written."""

    values: Mapping[str, Any]
    places: Mapping[str, str]


def run_settings(file: Path | None, sets: Sequence[str]) -> RunSettings:
    """The settings in ``file`` with the KEY=VALUE of ``sets`` over them.

    The file is one YAML mapping of names to values. One with the key ``fixed`` is taken for a sweep file without axes:
    its settings are those of ``fixed``, and ``steps``. Raises InputError with all problems found.
    """
    if file is None and not sets:
        raise InputError(Problem("--config", "", "no setting is given", "write --config FILE, or --set lr=3e-3"))
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    if file is not None:
        if not os.path.isfile(file):
            remedy = "give a YAML file with a line for each setting, such as `lr: 3e-3`"
            raise InputError(Problem(f"--config {file}", "", "no such file", remedy))
        document = read_document(file)
        for path, value in _written(document).items():
            values[path[-1]], places[path[-1]] = value, document.place(path)
    for text in sets:
        path, value = parse_set(text)
        name = path[-1]
        if path not in ((name,), ("fixed", name)):
            raise InputError(Problem(f"--set {text}", ".".join(path), "is no name of a setting", "write e.g. lr=3e-3"))
        values[name], places[name] = value, f"--set {text}"
    values.pop(_SEED, None)
    if problems := [problem for name, value in values.items() if (problem := _refused(places[name], name, value))]:
        raise InputError(*problems)
    return RunSettings({name: frozen(value) for name, value in values.items()}, places)


def _written(document: Document) -> dict[tuple[str, ...], Any]:
    """The settings of the document by their paths."""
    data = document.data
    if "fixed" not in data:
        return {(name,): value for name, value in data.items()}
    problems = []
    for key in data:
        if key not in SweepFile.model_fields:
            remedy = did_you_mean(key, SweepFile.model_fields) or "write settings under `fixed`, or all without it"
            problems.append(Problem(document.place((key,)), key, "is no key of a sweep file", remedy))
    if data.get("axes"):
        remedy = "a run has one value of each setting: write it under `fixed`"
        problems.append(Problem(document.place(("axes",)), "axes", "are no settings of one run", remedy))
    fixed = data["fixed"] if data["fixed"] is not None else {}
    if not isinstance(fixed, dict):
        problems.append(Problem(document.place(("fixed",)), "fixed", "is not a mapping of keys to values"))
    if problems:
        raise InputError(*problems)
    own: dict[tuple[str, ...], Any] = {("fixed", name): value for name, value in fixed.items()}
    return own | ({("steps",): data["steps"]} if "steps" in data else {})


def _refused(place: str, name: str, value: Any) -> Problem | None:
    """The problem of a value that no setting has."""
    if isinstance(value, dict):
        return Problem(place, name, "holds further keys", "settings are flat: write a line for each")
    if isinstance(value, float) and not math.isfinite(value):
        return Problem(place, name, f"{value} is refused: not a finite number", "write a number")
    return None
