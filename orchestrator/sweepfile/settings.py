"""The settings of one run: a trial, with the features that are off, or a run elsewhere, as a user describes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from objectives.base import OBJECTIVES, TrainingConfig
from objectives.fields import with_features_off
from orchestrator.base.errors import InputError, Problem, did_you_mean
from orchestrator.base.space import to_hashable
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS
from orchestrator.sweepfile.overrides import parse_set
from orchestrator.sweepfile.sections import SweepFile
from orchestrator.sweepfile.steps import is_share, share_problem, steps_of_share
from orchestrator.sweepfile.strict_yaml import Document, read_document

_SEED = "seed"  # every run has its own, so it does not place a run on the map


def settings_of(objective: str, config: Mapping[str, Any], cell: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a trial's configuration, which holds only what acts, with the features that are off and its ``cell``.

    A custom objective has the features that all objectives share; a custom trainer has none.
    """
    known = dict(config)
    if objective not in CUSTOM_KINDS:
        config_class = OBJECTIVES[objective].config_class if objective in OBJECTIVES else TrainingConfig
        known = with_features_off(config_class, config)
    return {**(cell or {}), **known}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The ``values`` of a run's settings by name, without its seed, and the ``places`` where they were written."""

    values: Mapping[str, Any]
    places: Mapping[str, str]

    def in_whole_steps(self, rows: Sequence[TrialResult]) -> RunSettings:
        """Replace shares of the steps by whole steps in the settings that are integers in the trials ``rows``.

        The steps are the run's own, or else the common length of all trials; if neither is known, shares stay. Raises
        InputError for an invalid share.
        """
        lengths = {row.steps for row in rows}
        steps = self.values.get("steps", next(iter(lengths)) if len(lengths) == 1 else None)
        if type(steps) is not int or steps < 1:
            return self
        known = settings_of(rows[0].objective, rows[0].config, rows[0].cell)
        shares = {
            name: value for name, value in self.values.items() if is_share(value) and type(known.get(name)) is int
        }
        if problems := [
            Problem(self.places[name], name, *p) for name, value in shares.items() if (p := share_problem(value))
        ]:
            raise InputError(*problems)
        return replace(self, values={**self.values, **{n: steps_of_share(share, steps) for n, share in shares.items()}})


def run_settings(file: Path | None, sets: Sequence[str]) -> RunSettings:
    """Read the settings in ``file``, and set the KEY=VALUE of ``sets`` over them.

    The file is one YAML mapping of names to values. One with the key ``fixed`` is taken for a sweep file without axes:
    its settings are ``fixed`` and ``steps``. Raises InputError with all problems found.
    """
    if file is None and not sets:
        raise InputError(Problem("--config", "", "no setting is given", "write --config FILE, or --at lr=3e-3"))
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    if file is not None:
        document = read_document(file, "give a YAML file with a line for each setting, such as `lr: 3e-3`")
        for path, value in _settings_in(document).items():
            values[path[-1]], places[path[-1]] = value, document.place(path)
    for text in sets:
        path, value = parse_set(text, "--at")
        name = path[-1]
        if path not in ((name,), ("fixed", name)):
            raise InputError(
                Problem(f"--at {text}", ".".join(path), "is not the name of a setting", "write e.g. lr=3e-3")
            )
        values[name], places[name] = value, f"--at {text}"
    values.pop(_SEED, None)
    if problems := [p for name, value in values.items() if (p := _value_problem(places[name], name, value))]:
        raise InputError(*problems)
    return RunSettings({name: to_hashable(value) for name, value in values.items()}, places)


def _settings_in(document: Document) -> dict[tuple[str, ...], Any]:
    """Return the settings of the document by their paths."""
    data = document.data
    if "fixed" not in data:
        return {(name,): value for name, value in data.items()}
    problems = []
    for key in data:
        if key not in SweepFile.model_fields:
            remedy = did_you_mean(key, SweepFile.model_fields) or "write settings under `fixed`, or all without it"
            problems.append(document.problem((key,), "is not a key of a sweep file", remedy))
    if data.get("axes"):
        remedy = "a run has one value of each setting: write it under `fixed`"
        problems.append(document.problem(("axes",), "are not settings of one run", remedy))
    fixed = data["fixed"] if data["fixed"] is not None else {}
    if not isinstance(fixed, dict):
        problems.append(document.problem(("fixed",), "is not a mapping of keys to values"))
    if problems:
        raise InputError(*problems)
    own: dict[tuple[str, ...], Any] = {("fixed", name): value for name, value in fixed.items()}
    return own | ({("steps",): data["steps"]} if "steps" in data else {})


def _value_problem(place: str, name: str, value: Any) -> Problem | None:
    if isinstance(value, dict):
        return Problem(place, name, "holds further keys", "settings are flat: write a line for each")
    if isinstance(value, float) and not math.isfinite(value):
        return Problem(place, name, f"{value} is refused: not a finite number", "write a number")
    return None
