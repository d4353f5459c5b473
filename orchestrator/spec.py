"""A sweep file, strictly read: every error names file, line, key, offending value and remedy."""

from __future__ import annotations

import difflib
import functools
import glob
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from objectives.base import OBJECTIVES, Objective, TrainingConfig
from orchestrator.detection import StoppingConfig
from orchestrator.errors import InputError, Problem
from orchestrator.overrides import Overrides, apply
from orchestrator.sampling import sample_cells
from orchestrator.sections import SECTIONS, AxisSection, CheckpointConfig, ResourcesConfig, SweepFile, TrackingConfig
from orchestrator.space import SCALES, Axis, Trial, format_value, grid_cells, trial_id
from orchestrator.strict_yaml import Document, parse_document

_MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Sweep:
    """A checked sweep: everything that `run` needs to know."""

    name: str
    objective: Objective
    steps: int
    seeds: tuple[int, ...]
    axes: tuple[Axis, ...]
    fixed: Mapping[str, Any]
    is_sampled: bool
    trials: tuple[Trial, ...]
    stopping: StoppingConfig
    resources: ResourcesConfig
    checkpoint: CheckpointConfig
    tracking: TrackingConfig
    text: str  # this sweep as a sweep file, with the command line's changes

    @property
    def axis_names(self) -> list[str]:
        """Names of the axes in order."""
        return [axis.name for axis in self.axes]


def load_sweep(path: Path, overrides: Overrides = Overrides()) -> Sweep:
    """Read and check the sweep file at ``path``. Raises InputError with all problems found."""
    return build_sweep(read_document(path), overrides)


def read_document(path: Path) -> Document:
    """The plain data of the file at ``path``. Raises InputError when it is not one YAML mapping."""
    try:
        with open(path, "rb") as file:
            content = file.read(10 * 1024 * 1024)
    except FileNotFoundError:
        raise InputError(
            Problem(str(path), "", "no such file", "`sweep init NAME` writes a sweep file to start from")
        ) from None
    except OSError as error:
        raise InputError(Problem(str(path), "", f"cannot be read: {error.strerror}")) from None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(Problem(str(path), "", f"is not UTF-8 text (byte {error.start})")) from None
    return parse_document(text, str(path))


def build_sweep(document: Document, overrides: Overrides = Overrides()) -> Sweep:
    """Check ``document`` with the command line's changes and span its trials."""
    apply(overrides, document)
    file = _validated(document)
    objective = _objective(file, document)
    problems: list[Problem] = []
    fixed = _checked_fixed(file, objective, document, problems)
    axes = _checked_axes(file, objective, document, problems)
    if problems:
        raise InputError(*problems[:_MAX_PROBLEMS])
    _refuse_huge(file, axes, document)
    if file.sample is not None:
        cells: Iterable[dict[str, Any]] = sample_cells(axes, file.sample.method, file.sample.num, file.sample.seed)
    else:
        cells = grid_cells(axes)
    stopping = file.stopping.resolved(objective.spike_rise)
    trials = _resolve(cells, file, objective, fixed, stopping, document)
    return Sweep(
        name=file.name,
        objective=objective,
        steps=file.steps,
        seeds=tuple(file.seeds),
        axes=tuple(axes),
        fixed=fixed,
        is_sampled=file.sample is not None,
        trials=tuple(trials),
        stopping=stopping,
        resources=file.resources,
        checkpoint=file.checkpoint,
        tracking=file.tracking,
        text=_as_file(document, fixed),
    )


# --- checks --------------------------------------------------------------------------------------


def _validated(document: Document) -> SweepFile:
    # `seeds:` with nothing behind it means the same as leaving the key out.
    data = {
        key: value for key, value in document.data.items() if value is not None or key not in SweepFile.model_fields
    }
    try:
        file = SweepFile.model_validate(data)
    except ValidationError as error:
        found = [_problem(details, document) for details in error.errors()[:_MAX_PROBLEMS]]
        raise InputError(*dict.fromkeys(found)) from None
    if len(set(file.seeds)) < len(file.seeds):
        raise InputError(Problem(document.place(("seeds",)), "seeds", f"{file.seeds} repeats a seed", "list each once"))
    if min(file.seeds) < 0 or max(file.seeds) >= 2**53:
        raise InputError(Problem(document.place(("seeds",)), "seeds", "must lie in 0 .. 2^53"))
    if file.sample is not None and file.sample.seed >= 2**32:
        raise InputError(Problem(document.place(("sample", "seed")), "sample.seed", "must lie in 0 .. 2^32"))
    return file


def _problem(details: Mapping[str, Any], document: Document) -> Problem:
    path = tuple(part for part in details["loc"] if part not in ("literal['auto']", "constrained-int", "int"))
    key = ".".join(str(part) for part in path)
    where = document.place(path)
    if details["type"] == "extra_forbidden":
        known = _known_keys(path[:-1])
        return Problem(
            where, key, "unknown key", did_you_mean(str(path[-1]), known) or f"known keys: {', '.join(known)}"
        )
    if details["type"] == "missing":
        return Problem(where, key, "is missing", f"add `{path[-1]}:` to the file")
    if details["type"] == "string_pattern_mismatch":
        return Problem(
            where, key, f"{_shown(details['input'])} is not a safe name", "use a-z, 0-9, _ and -, at most 64, no path"
        )
    return Problem(where, key, f"{_shown(details['input'])} is refused: {_lower(details['msg'])}", _remedy(path))


def _known_keys(path: Sequence[str | int]) -> list[str]:
    pattern = ("axes", "*") if len(path) == 2 and path[0] == "axes" else tuple(path)
    section = SECTIONS.get(pattern)  # type: ignore[arg-type]
    return list(section.model_fields) if section else []


def _remedy(path: Sequence[str | int]) -> str:
    if path and path[0] == "axes":
        return "an axis is {values: [...]}, or {linear|log|log1m: [low, high], num: N}"
    return ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A remedy for a misspelt word, or nothing when no known word is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else ""


def _objective(file: SweepFile, document: Document) -> Objective:
    if file.objective not in OBJECTIVES:
        remedy = did_you_mean(file.objective, OBJECTIVES) or f"choose one of {', '.join(OBJECTIVES)}"
        raise InputError(Problem(document.place(("objective",)), "objective", f"{file.objective!r} is unknown", remedy))
    return OBJECTIVES[file.objective]


@functools.lru_cache(maxsize=512)
def _field_checker(config_class: type[TrainingConfig], name: str) -> TypeAdapter[Any]:
    field = config_class.model_fields[name]
    return TypeAdapter(
        Annotated[field.annotation, field],  # type: ignore[name-defined]
        config=ConfigDict(strict=True, allow_inf_nan=False),
    )


def _field_problem(
    objective: Objective, name: str, value: Any, path: tuple[str, ...], document: Document
) -> Problem | None:
    """What is wrong with ``value`` for the objective's field ``name``, if anything."""
    key, where = ".".join(path[:2]), document.place(path)
    if name == "steps":
        return Problem(where, key, "is not swept or fixed here", "set the top-level key `steps`")
    fields = objective.config_class.model_fields
    if name not in fields:
        known = [field for field in fields if field != "steps"]
        remedy = did_you_mean(name, known) or f"`sweep objectives` lists the fields of {objective.name}"
        return Problem(where, key, f"unknown field of {objective.name}", remedy)
    try:
        _field_checker(objective.config_class, name).validate_python(_frozen(value))
    except ValidationError as error:
        message = _lower(error.errors()[0]["msg"])
        description = fields[name].description
        return Problem(where, key, f"{_shown(value)} is refused: {message}", f"{name} is the {description}")
    return None


def _checked_fixed(
    file: SweepFile, objective: Objective, document: Document, problems: list[Problem]
) -> dict[str, Any]:
    fixed = {}
    for name, value in file.fixed.items():
        if len(problems) >= _MAX_PROBLEMS:
            break
        path = ("fixed", name)
        if problem := _field_problem(objective, name, value, path, document):
            problems.append(problem)
        elif name in file.axes:
            problems.append(Problem(document.place(path), f"fixed.{name}", "is also an axis", "keep one of the two"))
        elif name == "text":
            fixed[name] = _absolute_text(value, document.place(path), problems)
        else:
            fixed[name] = _frozen(value)
    return fixed


def _absolute_text(patterns: Sequence[str], where: str, problems: list[Problem]) -> tuple[str, ...]:
    """Workers stand in other folders, so relative paths are made absolute here."""
    absolute = []
    for pattern in patterns:
        full = str(Path(os.path.expanduser(pattern)).absolute())
        absolute.append(full)
        if not os.path.exists(full) and not _matches(full):
            problems.append(
                Problem(
                    where, "fixed.text", f"{_shown(pattern)} matches no file", "paths are relative to where you stand"
                )
            )
    return tuple(absolute)


def _matches(pattern: str) -> bool:
    try:
        return any(True for _ in glob.iglob(pattern, recursive=True))
    except (OSError, ValueError, RecursionError):  # too long, a NUL, too many folders
        return False


def _checked_axes(file: SweepFile, objective: Objective, document: Document, problems: list[Problem]) -> list[Axis]:
    axes = []
    for name, section in file.axes.items():
        if len(problems) >= _MAX_PROBLEMS:
            break
        axis = _axis(name, section, file, objective, document, problems)
        if axis is None:
            continue
        candidates = (axis.at(0.0), axis.at(1.0), *axis.values)
        wrong = (_field_problem(objective, name, value, ("axes", name), document) for value in candidates)
        if problem := next(filter(None, wrong), None):
            problems.append(problem)
        else:
            axes.append(axis)
    return axes


def _axis(
    name: str, section: AxisSection, file: SweepFile, objective: Objective, document: Document, problems: list[Problem]
) -> Axis | None:
    where, key = document.place(("axes", name)), f"axes.{name}"

    def refuse(message: str, remedy: str) -> None:
        problems.append(Problem(where, key, message, remedy))

    if unknown := name not in objective.config_class.model_fields and _field_problem(
        objective, name, None, ("axes", name), document
    ):
        problems.append(unknown)
        return None
    given = [scale for scale in SCALES if getattr(section, scale) is not None]
    if len(given) != 1:
        what = "has no values" if not given else f"has both {' and '.join(given)}"
        return refuse(what, "give one of values: [...], linear: [a, b], log: [a, b], log1m: [a, b]")
    scale = given[0]
    is_integer = _is_integer(objective, name)
    if scale == "values":
        if section.num is not None:
            return refuse("num has no meaning beside values", "remove num")
        values = tuple(_canonical(value, objective, name) for value in section.values or ())
        shown = [repr(value) for value in values]
        if len(set(shown)) < len(shown):
            return refuse(f"{_shown(section.values)} repeats a value", "list each once")
        return Axis(name, "values", values)
    low, high = getattr(section, scale)
    if low >= high:
        return refuse(f"[{low:g}, {high:g}] is not low, high", f"write {scale}: [{high:g}, {low:g}]")
    if scale == "log" and low <= 0:
        return refuse(f"a log axis cannot begin at {low:g}", "begin above 0, or use linear")
    if scale == "log1m" and high >= 1:
        return refuse(f"a log1m axis cannot reach {high:g}", "end below 1")
    if not math.isfinite(high / low if scale == "log" else high - low):
        return refuse(f"[{low:g}, {high:g}] is too wide for numbers of double precision", "bring its ends nearer")
    unfilled = Axis(name, scale, (), (low, high), is_integer)
    if file.sample is not None:
        if section.num is not None:
            return refuse("num has no meaning when cells are sampled", "remove num, or remove sample")
        return unfilled
    if section.num is None:
        return refuse("num is missing", "say how many values, e.g. num: 7")
    if section.num > file.max_trials:
        return refuse(
            f"num: {section.num} is more than max_trials = {file.max_trials}", "lower num or raise max_trials"
        )
    return Axis(name, scale, unfilled.grid(section.num), (low, high), is_integer)


def _is_integer(objective: Objective, name: str) -> bool:
    annotation = objective.config_class.model_fields[name].annotation
    return annotation is int or annotation == int | None


def _canonical(value: Any, objective: Objective, name: str) -> Any:
    """1 and 1.0 are one learning rate: the field's type decides."""
    annotation = objective.config_class.model_fields[name].annotation
    if isinstance(value, int) and not isinstance(value, bool) and annotation in (float, float | None):
        return float(value)
    return _frozen(value)


def _refuse_huge(file: SweepFile, axes: Sequence[Axis], document: Document) -> None:
    num_cells = file.sample.num if file.sample else math.prod(len(axis.values) for axis in axes)
    num_trials = num_cells * len(file.seeds)
    if num_trials > file.max_trials:
        raise InputError(
            Problem(
                document.place(("sample" if file.sample else "axes",)),
                "axes",
                f"{num_cells} cells x {len(file.seeds)} seeds = {num_trials} trials,"
                f" more than max_trials = {file.max_trials}",
                f"shorten an axis, or say max_trials: {num_trials}",
            )
        )


def _resolve(
    cells: Iterable[dict[str, Any]],
    file: SweepFile,
    objective: Objective,
    fixed: Mapping[str, Any],
    stopping: StoppingConfig,
    document: Document,
) -> list[Trial]:
    """Every trial with its full configuration: nothing is left to a default later on."""
    # A trial that is audited is the same trial.
    judged_by = stopping.model_dump(exclude={"audit"})
    trials: dict[str, Trial] = {}
    for cell in cells:
        try:
            config = objective.config_class(steps=file.steps, **fixed, **cell).model_dump(mode="json")
        except ValidationError as error:
            raise InputError(_combination_problem(error, cell, document)) from None
        for seed in file.seeds:
            identity = trial_id(objective.name, config, seed, judged_by)
            trials.setdefault(identity, Trial(identity, cell, seed, config))
    return list(trials.values())


def _combination_problem(error: ValidationError, cell: Mapping[str, Any], document: Document) -> Problem:
    message = error.errors()[0]["msg"].removeprefix("Value error, ")
    field = message.split(" ", 1)[0]
    path = next((path for path in (("axes", field), ("fixed", field)) if path in document.places), ())
    at = " ".join(f"{key}={format_value(value)}" for key, value in cell.items())
    shown = f"{message} (at {at})" if at else message
    return Problem(document.place(path), ".".join(path), shown, "change one of the two")


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- writing -------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Floats as a person writes them, short lists on one line, null spelt out."""


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
    # 1e-12 would be text to other YAML readers; 1.0e-12 is a number to all of them.
    digits = repr(value)
    text = digits.replace("e", ".0e") if "e" in digits and "." not in digits else digits
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(float, _represent_float)
_Dumper.add_representer(
    list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)
)


def _as_file(document: Document, fixed: Mapping[str, Any]) -> str:
    """The sweep as a file: the keys as they were written, with the command line's changes."""
    data = {key: document.data[key] for key in SweepFile.model_fields if key in document.data}
    if fixed:
        data["fixed"] = {key: list(value) if isinstance(value, tuple) else value for key, value in fixed.items()}
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
