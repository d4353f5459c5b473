"""Sweep files to start from: shipped ones, and the commented one that `sweep init` writes; fields of objectives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from objectives.base import OBJECTIVES, Objective
from objectives.fields import condition_of
from orchestrator.base.errors import InputError, Problem
from orchestrator.sweepfile.overrides import Overrides, parse_set
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

# Shipped sweeps are in the package if it is installed, and next to it in a clone.
_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "shipped", _PACKAGE.parent / "sweeps")
_STARTER = """\
name: {name}
objective: {objective}
steps: {steps}
seeds: [0, 1, 2]
axes:
{axes}"""
_STARTER_AXES = {
    "lr": "{log: [1e-3, 1.0], num: 7}",
    "beta2": "{values: [0.5, 0.9, 0.99, 0.999]}",
    "beta": "{log: [0.5, 8], num: 5}",  # of the router
}
# A YAML parser reads JSON's strings, so that a command with quotes and backslashes stays what it is.
_SCRIPT = "name: {name}\nobjective: {{command: {command}}}\nsteps: {steps}\nseeds: [0, 1]\naxes: {{}}\n"
_USUAL_AXIS = "lr=log:1e-4,1,5"
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}  # of the bounds in the metadata of a field
_STEPS = 200  # for a script, and for an unknown objective, which is rejected later
_COMMENTS = {
    "name": "The results folder is results/<name>. Use small letters, digits, _ and -.",
    "objective": "What to train; `sweep objectives` lists the choices and their fields.",
    "steps": "Length of each training run.",
    "seeds": "Every cell is trained once per seed; the map shows the fraction of stable seeds.",
    "axes": (
        "Each axis is {values: [...]}, or {linear|log|log1m: [low, high], num: N}.\n"
        "log1m is even in log(1 - x), the scale for beta2. null in values means none."
    ),
    "fixed": "Other fields of the objective; all others keep their defaults.",
    "sample": "Cells sampled from continuous ranges in place of a grid: {method: random|sobol, num: N}.",
    "stopping": "How spikes and diverged runs are detected; see docs/sweep-file.md.",
    "resources": "For one pack: cpus, gpus; pack: auto or members per pack; parallel: packs at a time.",
    "checkpoint": "Checkpoints are written every every_s seconds or every_steps steps.",
    "tracking": "MLflow: uri, experiment, every (log every n-th step), enabled.",
    "notify": "Messages about a run: {url_from: NAME}, an environment variable with a URL of Apprise.",
}


# Of a script, the same or in place of these.
_SCRIPT_COMMENTS = {
    **{key: _COMMENTS[key] for key in ("name", "seeds")},
    "objective": (
        "How one trial is started. A name in braces is its value of an axis, or one of {steps}, {seed}, {folder} (its\n"
        "own folder, for checkpoints) and {config} (a JSON file with all values). docs/custom-trainer.md has more keys."
    ),
    "steps": "Steps that one trial trains for: passed on as {steps}, or what the script does by itself.",
    "axes": "What is swept: {values: [...]}, or {linear|log|log1m: [low, high], num: N}.",
    "fixed": "Other values for names in braces, the same in all trials.",
    "resources": (
        "`workers: 2` starts each trial as two processes, as torchrun does; `parallel: 1` trains one at a time."
    ),
    "stopping": "Losses that fall over decades, such as squared errors: `spike_rise: 2.0`. See docs/detection.md.",
}


def starter_file(name: str, objective: str, overrides: Overrides) -> str:
    """Return a commented sweep file that runs as it is; axes among the ``overrides`` replace its default axes.

    Raises InputError for invalid overrides.
    """
    steps = OBJECTIVES[objective].starter_steps if objective in OBJECTIVES else _STEPS
    axes = "".join(f"  {axis}: {_STARTER_AXES[axis]}\n" for axis in starter_axes(objective, overrides))
    text = _STARTER.format(name=name, objective=objective, steps=steps, axes=axes or "  {}\n")
    document = parse_document(text, "starter file")
    if overrides.axes:
        overrides = replace(overrides, drops=tuple(dict.fromkeys([*document.data["axes"], *overrides.drops])))
    return _commented(build_sweep(document, overrides).text.splitlines(), _COMMENTS)


def starter_axes(objective: str, overrides: Overrides) -> list[str]:
    """The axes of a starter file that no ``overrides`` replace: what the objective has and acts, and is not fixed."""
    if objective not in OBJECTIVES:
        return ["lr", "beta2"]
    fixed = _fixed_by(overrides)
    fields = OBJECTIVES[objective].config_class.model_fields
    return [
        name
        for name in _STARTER_AXES
        if name in fields and not inert_where(objective, name, overrides) and (name not in fixed or name != "beta")
    ]


def inert_where(objective: str, name: str, overrides: Overrides) -> str:
    """In words, where the field ``name`` acts, if that is false of what ``overrides`` fix and empty if it acts."""
    if objective not in OBJECTIVES:
        return ""
    fields = OBJECTIVES[objective].config_class.model_fields
    acts = condition_of(fields[name])
    settings = {key: field.default for key, field in fields.items()} | _fixed_by(overrides)
    return "" if acts.holds(settings) else acts.text


def _fixed_by(overrides: Overrides) -> dict[str, Any]:
    """The fields that ``--set`` fixes."""
    parsed = map(parse_set, overrides.sets)
    return {path[1]: value for path, value in parsed if len(path) == 2 and path[0] == "fixed"}


def script_starter(name: str, command: str, overrides: Overrides) -> str:
    """Return a commented sweep file for somebody's script. Raises InputError for an invalid command or override."""
    if not overrides.axes and "{lr}" not in command:
        remedy = "add --axis NAME=log:LOW,HIGH,NUM, and {NAME} to the command"
        raise InputError(Problem("--command", command, "has no {lr}, and no --axis says what is swept", remedy))
    if not overrides.axes:
        overrides = replace(overrides, axes=(_USUAL_AXIS,))
    shown = _SCRIPT.format(name=name, command=json.dumps(command), steps=_STEPS)
    lines = build_sweep(parse_document(shown, "starter file"), overrides).text.splitlines()
    # The frozen form of a sweep has an absolute folder; a starter goes where its script goes.
    said_anyway = (f"  folder: {Path.cwd()}", "fixed: {}")
    return _commented([line for line in lines if line not in said_anyway], _SCRIPT_COMMENTS)


def _commented(lines: Iterable[str], comments: Mapping[str, str]) -> str:
    """The lines of a sweep file with the comment of each key above it; other keys follow, commented out."""
    first = (
        "# Write here the question that this sweep answers: lists of sweeps show the first question of this comment."
    )
    found, missing = [first, ""], dict(comments)
    for line in lines:
        found += [f"# {part}" for part in missing.pop(line.split(":", 1)[0], "").splitlines()]
        found.append(line)
    for key, comment in missing.items():
        found += ["", *(f"# {part}" for part in comment.splitlines()), f"# {key}: {{}}"]
    return "\n".join(found) + "\n"


def objective_rows(objective: Objective) -> list[tuple[str, str, str, str, str]]:
    """Return name, default, unit, domain and meaning of every field of an objective."""
    rows = []
    for name, field in objective.config_class.model_fields.items():
        extra: dict[str, Any] = dict(field.json_schema_extra)  # type: ignore[arg-type]
        default = "set by `steps:`" if field.is_required() else _shown(field.default)
        acts = condition_of(field).text
        meaning = f"{field.description}{'' if extra['per_member'] else ' [splits packs]'}"
        meaning += f" [where {acts}]" if acts else ""
        rows.append((name, default, extra["unit"], _domain(field), meaning))
    return rows


def objectives_with_rows() -> list[tuple[Objective, list[tuple[str, str, str, str, str]]]]:
    """Return every objective with its fields."""
    return [(objective, objective_rows(objective)) for objective in OBJECTIVES.values()]


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else "[]" if value == () else f"{value}"


def _domain(field: Any) -> str:
    bounds = [
        f"{sign} {getattr(bound, name)}"
        for name, sign in _SIGNS.items()
        for bound in field.metadata
        if hasattr(bound, name)
    ]
    if bounds:
        return ", ".join(bounds)
    kinds = get_args(field.annotation) if NoneType in get_args(field.annotation) else (field.annotation,)
    words = [str(word) for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    return " | ".join([*words, "null"] if words and NoneType in kinds else words)


def shipped_sweeps() -> dict[str, Path]:
    """Return the file of each sweep that ships, by name."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def shipped_sweep(name: str) -> Path | None:
    """Return the file of the sweep ``name`` that ships, also of one in a folder, such as known/router, or None."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    parts = name.removesuffix(".yaml").split("/")
    if folder is None or not all(re.fullmatch(r"\w+", part) for part in parts):
        return None
    path = folder.joinpath(*parts).with_suffix(".yaml")
    return path if path.is_file() else None
