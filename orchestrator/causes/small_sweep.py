"""The small sweep file that answers a question for which the sweep has no cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from objectives.base import OBJECTIVES
from objectives.fields import inert_fields
from orchestrator.base.errors import InputError
from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS
from orchestrator.sweepfile.frozen import text_of
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.settings import settings_of
from orchestrator.sweepfile.spec import build_sweep, read_document
from orchestrator.sweepfile.strict_yaml import Document

CURVATURE_EVERY = 20  # steps; expensive, but these sweeps are small
_LONGEST_NAME, _LONGEST = 28, 64  # characters of the sweep's name within a small one's, and of the latter
_SHOWN_OF_ID = 6
_OF_THE_WHOLE = ("sample", "search", "budget", "tie", "zip", "max_trials")  # keys that a small sweep has no use for


def small_sweep(
    folder: Path, trial: TrialResult, change: str, setting: str | None, values: Sequence[Any]
) -> str | None:
    """A sweep file with the trial's cell and the same cell with other ``values`` of ``setting``; it measures curvature.

    Made from the file that the sweep in ``folder`` was run with: same objective, seeds and stopping. Its name contains
    ``change``, raise or lower, and the start of the trial's id. Without a ``setting`` it trains the cell alone. None
    where it cannot be written: ``written_sweep`` says why.
    """
    try:
        return written_sweep(folder, trial, change, setting, values)
    except InputError:
        return None


def written_sweep(
    folder: Path,
    trial: TrialResult,
    change: str,
    setting: str | None,
    values: Sequence[Any],
    seeds: Sequence[int] | None = None,
) -> str:
    """As ``small_sweep``, with other ``seeds`` if given.

    Raises InputError where the file is missing, or is refused with the setting. That of a custom packed objective is
    checked when it is run: its fields are known to its code alone, which is not imported here.
    """
    document = cell_alone(folder, trial)
    data = document.data
    fixed, axes = dict(data["fixed"]), {}
    if setting is not None:
        own = fixed.pop(setting, settings_of(trial.objective, trial.config).get(setting))
        axes = {setting: {"values": [own, *(value for value in values if value != own)]}}
    if trial.objective not in CUSTOM_KINDS:
        data["telemetry"] = {**_mapping(data, "telemetry"), "curvature": CURVATURE_EVERY}
    document.data = {**data, "axes": axes, "fixed": fixed} | ({} if seeds is None else {"seeds": list(seeds)})
    tried = change if setting is None else f"{change}_{setting}"
    name = f"{str(data.get('name', 'sweep'))[:_LONGEST_NAME]}_{tried}_{trial.trial_id[:_SHOWN_OF_ID]}"[:_LONGEST]
    if _is_packed(data):  # only its code could check the file, which nobody has allowed to be imported here
        return text_of({**document.data, "name": name})
    return build_sweep(document, Overrides(name=name)).text


def cell_alone(folder: Path, trial: TrialResult) -> Document:
    """The file of the sweep in ``folder`` with the trial's cell alone: its settings in ``fixed``, and no axes.

    Same objective, seeds and stopping; no search, sample, budget or ties. Not checked. Raises InputError where the file
    is missing.
    """
    document = _document(folder, trial)
    data = document.data
    settings = settings_of(trial.objective, trial.config)
    tied = {name: settings[name] for name in _mapping(data, "tie") if name in settings}
    cell = {name: settings.get(name, value) for name, value in _existing(data, trial).items()}
    given, inert = {**_mapping(data, "fixed"), **cell, **tied}, _inert(trial)
    fixed = {name: value for name, value in given.items() if name not in inert}
    kept = {key: value for key, value in data.items() if key not in _OF_THE_WHOLE}
    document.data = {**kept, "axes": {}, "fixed": fixed}
    return document


def _is_packed(data: Mapping[str, Any]) -> bool:
    """Whether the sweep file trains a custom packed objective."""
    return "packed" in _mapping(data, "objective")


def _existing(data: Mapping[str, Any], trial: TrialResult) -> dict[str, Any]:
    """The trial's cell without axes that do not exist in it."""
    axes = _mapping(data, "axes")
    conditional = {name for name in axes if "when" in _mapping(axes, name)}
    return {name: value for name, value in trial.cell.items() if value is not None or name not in conditional}


def _inert(trial: TrialResult) -> set[str]:
    """The fields that do not act in the trial, which its own sweep file may not name."""
    objective = OBJECTIVES.get(trial.objective)
    if objective is None:
        return set()
    try:
        return inert_fields(objective.config_class.model_validate(trial.config, strict=False))
    except ValidationError:  # a configuration of an older version
        return set()


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The section ``key``; empty if it is not a mapping, which ``build_sweep`` rejects where it matters."""
    section = data.get(key)
    return section if isinstance(section, Mapping) else {}


def _document(folder: Path, trial: TrialResult) -> Document:
    """The sweep file of ``folder``, or for a built-in objective one made from the trial. Raises InputError."""
    objective = OBJECTIVES.get(trial.objective)
    if (folder / FROZEN_SWEEP).is_file() or objective is None:
        return read_document(folder / FROZEN_SWEEP)
    fields = objective.config_class.model_fields
    wanted = fields.keys() - {"steps", *_inert(trial)}
    config = {key: value for key, value in trial.config.items() if key in wanted}
    fixed = {key: value for key, value in config.items() if value != fields[key].default and value != []}
    data = {"name": folder.name, "objective": objective.name, "steps": trial.steps, "fixed": fixed}
    return Document(str(folder), {**data, "seeds": [trial.seed]})
