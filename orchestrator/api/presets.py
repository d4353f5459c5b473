"""`sweep init NAME --preset ...`, `--goal safe` and `--from config.json`: a search over usual axes in a budget.

A preset names the axes that people ask for; a value in the user's own configuration is the middle of its axis, and the
rest of that configuration is fixed.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from objectives.base import OBJECTIVES
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import format_value, is_number
from orchestrator.base.words import count, listed
from orchestrator.detection.relative import lr_axis
from orchestrator.sweepfile.custom_trainer import GIVEN, placeholders
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.settings import run_settings
from orchestrator.sweepfile.starter import inert_where, starter_axes
from orchestrator.sweepfile.steps import is_share

NUM_TRIALS = 60
CONFIGS = (".json", ".yaml", ".yml")  # endings of a configuration
GOALS = ("safe",)
_AROUND = 30  # the range of a rate: this factor below and above the user's own
_MARGIN = 3  # of a setting that is called safe
_STEPS = 200  # of a starter file that says nothing else
_NAME = re.compile(r"[A-Za-z_]\w*")
_SHOWN = 8  # keys that are listed
_RATE = "lr"
_MOST_BYTES = 1_000_000  # of a configuration


@dataclass(frozen=True, slots=True)
class _Usual:
    """An axis of a preset: the names that trainers give it, and its values around the user's own, or None."""

    names: tuple[str, ...]
    values: Callable[[Any, int], str]


def _rates(own: Any, steps: int) -> str:
    return f"log:{own / _AROUND:.3g},{own * _AROUND:.3g}" if _is_positive(own) else "log:1e-5,1"


def _warmups(own: Any, steps: int) -> str:
    if _is_positive(own):
        return _listed({min(each, steps) for each in (0, round(own / 4), round(own), round(own * 4))})
    return _listed({0, round(0.02 * steps), round(0.1 * steps)})


def _beta2s(own: Any, steps: int) -> str:
    return _listed({0.9, 0.95, 0.99, 0.999, *([own] if is_number(own) and 0 < own < 1 else [])})


def _clips(own: Any, steps: int) -> str:
    return _listed({1.0, 0.3, *([own] if _is_positive(own) else [])}, "none", reverse=True)


PRESETS: Mapping[str, Mapping[str, _Usual]] = {
    "adamw": {
        _RATE: _Usual((_RATE, "learning_rate", "max_lr", "peak_lr"), _rates),
        "warmup": _Usual(("warmup", "warmup_steps", "warmup_iters", "num_warmup_steps"), _warmups),
        "beta2": _Usual(("beta2", "adam_beta2", "adamw_beta2"), _beta2s),
        "clip": _Usual(("clip", "grad_clip", "max_grad_norm", "clip_grad", "gradient_clip_val"), _clips),
    },
}


_ACCEPTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    _RATE: (lambda value: _is_positive(value), "a number above 0"),
    "warmup": (lambda value: is_share(value) or (is_number(value) and value >= 0), "a number of steps"),
    "beta2": (lambda value: is_number(value) and 0 <= value < 1, "a number from 0 to below 1"),
    "clip": (lambda value: is_number(value) and value >= 0, "a number from 0"),
}


def preset_changes(
    preset: str | None,
    goal: str | None,
    config: Path | None,
    objective: str,
    command: str | None,
    changes: Overrides,
    num_trials: int,
) -> tuple[Overrides, list[str]]:
    """Return the changes of a starter file that make it this search, and what to say about it.

    Axes of ``preset`` need a name that the objective or the ``command`` takes; ``changes`` may have others. Raises
    InputError.
    """
    _check_choice("--preset", preset, PRESETS)
    _check_choice("--goal", goal, GOALS)
    if command is None and (preset is not None or goal is not None):
        _check_choice("--objective", objective, OBJECTIVES)
    own = {} if config is None else _read(config)
    takes = _taken(objective, command)
    _check_usual(config, own)
    steps = own.pop("steps", None)
    if changes.steps is None and type(steps) is int and steps > 0:
        changes = replace(changes, steps=steps)
    given = {axis.partition("=")[0] for axis in changes.axes}
    said, axes = [], list(changes.axes)
    fixing = replace(changes, sets=(*_fixed(own, (), takes, passes_all=False)[0], *changes.sets))
    for name, usual in PRESETS[preset].items() if preset is not None else ():
        found = next((each for each in usual.names if each in takes), None)
        if found is None or found in changes.drops:
            missing = f"{name} is not searched: {_place(command)} has none of {', '.join(usual.names)}"
            said += [] if found else [missing]
        elif command is None and found not in given and (acts := inert_where(objective, found, fixing)):
            said.append(f"{found} is not searched: it acts only where {acts}")
        elif found not in given:
            axes.append(f"{found}={usual.values(_first(own, found, usual), changes.steps or _STEPS)}")
        elif (value := _first(own, found, usual)) is not None:
            said.append(f"{found} = {value} of the configuration is not used: --axis {found} says what is searched")
        if found is not None:
            kept = _first(own, found, usual)
            own = {each: value for each, value in own.items() if each not in usual.names}
            if found in changes.drops and kept is not None:  # not searched, but still the user's own
                own[found] = kept
    if preset is None and command is None:
        own = _by_own_names(own, takes)
    names = [axis.partition("=")[0] for axis in axes] or (
        [_RATE] if command is not None else starter_axes(objective, fixing)
    )
    drops = tuple(name for name in changes.drops if name not in takes or preset is None)
    sets, left_out = _fixed(own, names, takes, passes_all=command is not None and "{config}" in command)
    said += left_out
    if preset is None:
        swept = {name: own[name] for name in names if own.get(name) is not None}
        said += [
            f"{name} = {value} of the configuration is not fixed: {name} is an axis" for name, value in swept.items()
        ]
    changes = replace(changes, axes=tuple(axes), drops=drops, sets=(*sets, *changes.sets))
    if preset is not None or goal is not None:
        changes = _searched(changes, names, preset or "", num_trials)
        margin = f" --margin {_MARGIN} --paste" if goal is not None else ""
        said.append(f"at most {count(num_trials, 'trial')}; then: `sweep recommend NAME{margin}`")
    return changes, said


def _first(own: Mapping[str, Any], found: str, usual: _Usual) -> Any:
    """The configuration's value of an axis, under whichever of its names; None without one."""
    return next((own[each] for each in (found, *usual.names) if each in own), None)


def _check_usual(config: Path | None, own: Mapping[str, Any]) -> None:
    """Raise InputError for values of rates, warmups and decays that no trainer takes, and for infinite numbers."""
    problems = []
    for name, usual in PRESETS["adamw"].items():
        for each in usual.names:
            if own.get(each) is not None and not _ACCEPTED[name][0](own[each]):
                message = f"{own[each]!r} is not {_ACCEPTED[name][1]}"
                problems.append(Problem(str(config), each, message, "mend it, or leave it out of the file"))
    for each, value in own.items():
        if isinstance(value, float) and not math.isfinite(value):
            problems.append(Problem(str(config), each, f"{value} is not a finite number", "write a number"))
    if problems:
        raise InputError(*problems)


def _by_own_names(own: Mapping[str, Any], takes: Collection[str]) -> dict[str, Any]:
    """The settings under the names of fields where they have a usual other name, such as learning_rate."""
    usual = {each: name for name, one in PRESETS["adamw"].items() for each in one.names}
    names = {each: usual.get(each, each) if each not in takes else each for each in own}
    return {names[each]: value for each, value in own.items() if names[each] == each or names[each] not in own}


def _read(config: Path) -> dict[str, Any]:
    """The settings of a configuration without its seed. Raises InputError for one that is not flat, and for doubt."""
    if config.suffix.lower() != ".json":
        return dict(run_settings(config, ()).values)
    try:
        with config.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        values = json.loads(text, object_pairs_hook=_without_doubles, parse_constant=_refuse_constant)
    except OSError as error:
        problem = Problem("--from", str(config), error.strerror or str(error), "give a JSON or YAML file")
        raise InputError(problem) from None
    except (ValueError, RecursionError) as error:
        raise InputError(Problem("--from", str(config), f"is not JSON: {error}", "mend it")) from None
    if not isinstance(values, dict):
        raise InputError(Problem("--from", str(config), "is not a mapping of names to values", "write {...}"))
    if nested := [name for name, value in values.items() if isinstance(value, dict)]:
        remedy = "give a flat file: a name and a value for each setting"
        raise InputError(Problem("--from", str(config), f"{listed(nested, _SHOWN)} hold further keys", remedy))
    return {name: value for name, value in values.items() if name != "seed"}


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is listed twice")
    return values


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _check_choice(option: str, value: str | None, known: Collection[str]) -> None:
    if value is not None and value not in known:
        raise InputError(Problem(option, value, "is not known", f"choose {', '.join(known)}"))


def _place(command: str | None) -> str:
    return "the objective" if command is None else "the command"


def _taken(objective: str, command: str | None) -> Collection[str]:
    """The names that the objective or the command takes. Raises InputError for braces that are not balanced."""
    if command is None:
        return set(OBJECTIVES[objective].config_class.model_fields) if objective in OBJECTIVES else set()
    try:
        return {name for word in shlex.split(command) for name in placeholders(word)} - GIVEN
    except ValueError as error:
        raise InputError(Problem("--command", command, str(error), "write {NAME} where a value goes")) from None


def _fixed(
    own: Mapping[str, Any], axes: Collection[str], takes: Collection[str], *, passes_all: bool
) -> tuple[list[str], list[str]]:
    """The `--set` of each setting that is passed on, and a line about the others."""
    sets, left_out = [], []
    for name, value in own.items():
        is_plain = value is None or isinstance(value, str | bool) or is_number(value)
        if name in axes or name in GIVEN:
            continue
        if (name in takes or passes_all) and is_plain and _NAME.fullmatch(name):
            sets.append(f"fixed.{name}={json.dumps(value, ensure_ascii=False)}")
        else:
            left_out.append(name)
    line = f"left out of the configuration, since nothing takes it: {listed(left_out, _SHOWN)}"
    return sets, [line] if left_out else []


def _searched(changes: Overrides, names: list[str], preset: str, num_trials: int) -> Overrides:
    """The changes with a search for the edge along the rate, or else along the first range."""
    axes = [axis if _is_list(axis) else ",".join(axis.split(",")[:2]) for axis in changes.axes]  # without counts
    ranges = [axis.partition("=")[0] for axis in axes if not _is_list(axis) and axis.count(",") == 1]
    along = lr_axis(ranges) or next(iter(ranges), None)
    if along is None:
        option = f"--preset {preset}" if preset else "--goal safe"
        remedy = "add the range that is searched: --axis lr=log:1e-5,1, and {lr} to a command"
        raise InputError(Problem(option, ", ".join(names) or "no axis", "has no range to look for an edge in", remedy))
    search = ("search.method=edge", f"search.along={along}", f"search.trials={num_trials}")
    return replace(changes, axes=tuple(axes), sets=(*search, *changes.sets), seeds=changes.seeds or "0")


def _is_list(axis: str) -> bool:
    return axis.partition("=")[2].startswith("values:")


def _is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


def _listed(values: Iterable[float], *first: str, reverse: bool = False) -> str:
    return f"values:{','.join([*first, *map(format_value, sorted(values, reverse=reverse))])}"
