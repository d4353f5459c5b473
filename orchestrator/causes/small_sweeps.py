"""A small sweep file with a trial's cell and others around it, for a question that no cell of its sweep answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from objectives.base import OBJECTIVES
from objectives.fields import inert_fields
from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.settings import settings_of
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import Document, read_document, text_of

CURVATURE_EVERY = 20  # steps; expensive, but these sweeps are small
_LONGEST_NAME, _LONGEST = 28, 64  # characters of the sweep's name within a small one's, and of the latter
_SHOWN_OF_ID = 6
_UNUSED = ("sample", "search", "budget", "tie", "zip", "keep", "max_trials")  # keys of a whole sweep


def small_sweep(
    folder: Path,
    trial: TrialResult,
    change: str,
    setting: str | None,
    values: Sequence[Any],
    seeds: Sequence[int] | None = None,
) -> str:
    """A sweep file with the trial's cell and the same cell with other ``values`` of ``setting``; it measures curvature.

    Made from the file of the sweep in ``folder``: same objective, stopping and, unless given, ``seeds``. Its name
    contains ``change``, raise or lower, and the start of the trial's id. Without a ``setting`` it trains the cell
    alone. Raises InputError if the file is missing or does not accept the setting. The file of a custom packed
    objective is not checked: only its code, which is not imported here, knows its fields.
    """
    document = cell_alone(folder, trial)
    data = document.data
    fixed, facts, axes = dict(data["fixed"]), _mapping(data, "facts"), {}
    if setting is not None:
        own = {**settings_of(trial.objective, trial.config), **facts, **fixed}.get(setting)
        fixed.pop(setting, None)
        if setting in facts:
            data["facts"] = {name: value for name, value in facts.items() if name != setting}
        axes = {setting: {"values": [own, *(value for value in values if value != own)]}}
    if trial.objective not in CUSTOM_KINDS:
        data["telemetry"] = {**_mapping(data, "telemetry"), "curvature": CURVATURE_EVERY}
    document.data = {**data, "axes": axes, "fixed": fixed} | ({} if seeds is None else {"seeds": list(seeds)})
    tried = change if setting is None else f"{change}_{setting}"
    name = f"{str(data.get('name', 'sweep'))[:_LONGEST_NAME]}_{tried}_{trial.trial_id[:_SHOWN_OF_ID]}"[:_LONGEST]
    if "packed" in _mapping(data, "objective"):  # only its code, which nobody allowed to import, could check the file
        return text_of({**document.data, "name": name})
    return build_sweep(document, Overrides(name=name)).text


def cell_alone(folder: Path, trial: TrialResult) -> Document:
    """The file of the sweep in ``folder`` reduced to the trial's cell: its settings in ``fixed``, without axes.

    Same objective, seeds and stopping; no search, sample, budget or ties. Not checked. Raises InputError if the file
    is missing.
    """
    document = _document(folder, trial)
    data = document.data
    settings = settings_of(trial.objective, trial.config)
    tied = {name: settings[name] for name in _mapping(data, "tie") if name in settings}
    cell = {name: settings.get(name, value) for name, value in _existing(data, trial).items()}
    given, inert = {**_mapping(data, "fixed"), **cell, **tied}, _inert(trial)
    fixed = {name: value for name, value in given.items() if name not in inert}
    kept = {key: value for key, value in data.items() if key not in _UNUSED}
    document.data = {**kept, "axes": {}, "fixed": fixed}
    return document


def _existing(data: Mapping[str, Any], trial: TrialResult) -> dict[str, Any]:
    """The trial's cell without axes that do not exist in it."""
    axes = _mapping(data, "axes")
    conditional = {name for name in axes if "when" in _mapping(axes, name)}
    return {name: value for name, value in trial.cell.items() if value is not None or name not in conditional}


def _inert(trial: TrialResult) -> set[str]:
    """The fields without effect in the trial, which its sweep file must not name."""
    objective = OBJECTIVES.get(trial.objective)
    if objective is None:
        return set()
    try:
        return inert_fields(objective.config_of(trial.config))
    except ValidationError:  # a configuration of an older version
        return set()


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The section ``key``; empty if it is not a mapping, an error that ``build_sweep`` reports if it matters."""
    section = data.get(key)
    return section if isinstance(section, Mapping) else {}


def _document(folder: Path, trial: TrialResult) -> Document:
    """Read the sweep file of ``folder``, or make one from the trial of a built-in objective. Raises InputError."""
    objective = OBJECTIVES.get(trial.objective)
    if (folder / FROZEN_SWEEP).is_file() or objective is None:
        return read_document(folder / FROZEN_SWEEP)
    fields = objective.config_class.model_fields
    wanted = fields.keys() - {"steps", *_inert(trial)}
    config = {key: value for key, value in trial.config.items() if key in wanted}
    fixed = {key: value for key, value in config.items() if value != fields[key].default and value != []}
    data = {"name": folder.name, "objective": objective.name, "steps": trial.steps, "fixed": fixed}
    return Document(str(folder), {**data, "seeds": [trial.seed]})
