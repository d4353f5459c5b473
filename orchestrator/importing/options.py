"""Options of an import: the command line overrides the keys of a mapping file, which is strict YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from orchestrator.base.errors import InputError, Problem, did_you_mean
from orchestrator.base.space import SCALES, Scale
from orchestrator.base.vocabulary import OUTCOMES, PRUNED
from orchestrator.detection.config import StoppingConfig
from orchestrator.importing.runs import AxisColumn, column_named
from orchestrator.logs.columns import Columns, MetricsConfig
from orchestrator.logs.lines import compiled
from orchestrator.logs.pattern import compiled_pattern
from orchestrator.sweepfile.fields import lowered, shown
from orchestrator.sweepfile.overrides import parse_set
from orchestrator.sweepfile.sections import Section
from orchestrator.sweepfile.strict_yaml import MAX_PROBLEMS, Document, KeyPath, read_document

SKIP = "skip"  # a meaning of a label: leave the row out
LABELS = (*OUTCOMES, "unknown", PRUNED)
_UNION_MEMBERS = ("int", "float", "str")  # parts of pydantic's error paths that are not keys of a file


def _word(value: Any) -> Any:
    """Read a YAML scalar as the text that stands in a table."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else value


def _words(value: Any) -> Any:
    return list(map(_word, value)) if isinstance(value, list) else [_word(value)]


def _axis_source(value: Any) -> Any:
    return {} if value is None else {"column": value} if isinstance(value, str) else value


class AxisSource(Section):
    """The column and the scale of an axis; by default the column has its name, and its values suggest a scale."""

    column: str | None = Field(None, min_length=1)
    scale: Scale | None = None


class MappingFile(Section):
    """The keys of a mapping file."""

    axes: dict[str, Annotated[AxisSource, BeforeValidator(_axis_source)]] = Field(
        min_length=1, description="the axes with their columns and scales; the first two are the axes of the map"
    )
    merge: Annotated[list[str], BeforeValidator(_words)] = Field(
        [], description="axes whose values within half a percent are one value that was rounded in several ways"
    )
    outcome: str | None = Field(None, description="column of labels (stable, diverged, ...) or of final losses")
    loss: str | None = Field(None, description="column of final losses if outcome has labels, or of losses by step")
    validation_loss: str | None = Field(None, description="column of final losses on held-out data")
    initial_loss: float | str | None = Field(None, description="column of losses before training, or one number")
    map: dict[str, Annotated[list[str], BeforeValidator(_words)]] = Field(
        {}, description="for each outcome, or skip, the labels of the source that mean it"
    )
    diverged_above: float | None = Field(None, description="a final loss above this number has diverged")
    maximize: bool | None = Field(
        None, description="whether more of the values in outcome or loss is better: true for scores, false for losses"
    )
    seed: str | None = Field(None, description="column of seeds; by default the rows of a cell are numbered")
    steps: int | str | None = Field(None, description="column of the lengths of runs, or one number")
    where: dict[str, Annotated[str, BeforeValidator(_word)]] = Field(
        {}, description="columns and values of the rows to import"
    )
    step: str | None = Field(None, description="column of steps, in a table with a loss in each row")
    run: Annotated[list[str], BeforeValidator(_words)] = Field(
        [], description="columns that identify a run; by default the axes and the seed"
    )
    grad_norm: str | None = Field(None, description="column of gradient norms")
    from_path: str | None = Field(None, description="regular expression whose groups are settings, for paths or runs")
    config: str | None = Field(None, description="name of the settings file of each run")
    log: str | None = Field(None, description="name of the log of each run, if there are several")
    pattern: str | None = Field(None, min_length=1, description="regular expression for the lines of a log")
    format: Literal["auto", "text", "json", "csv", "tensorboard"] = Field("auto", description="format of logs")
    scattered: bool | None = Field(
        None, description="true for cells that fill no grid; by default found from the cells"
    )
    stopping: StoppingConfig | None = Field(None, description="settings of the detector, as in a sweep file")


@dataclass(frozen=True)
class ImportOptions:
    """The merged ``keys`` of an import, and where each was written."""

    keys: MappingFile
    document: Document

    def source(self, key: str) -> tuple[str, str]:
        """Return place and key of a value for a ``Problem``: an option, or FILE:LINE and the key."""
        place = self.document.place((key,))
        return (place, "") if place.startswith("--") else (place, key)

    def column(self, key: str, columns: Sequence[str]) -> str | None:
        """Return the one of ``columns`` that ``key`` names, or None if it is not given. Raises InputError."""
        wanted = getattr(self.keys, key)
        return None if wanted is None else self.column_of(key, wanted, columns)

    def column_of(self, key: str, wanted: str, columns: Sequence[str]) -> str:
        """Return the one of ``columns`` that is called ``wanted``, a value of ``key``. Raises InputError."""
        return column_named(*self.source(key), wanted, columns)

    def axis_columns(self, columns: Sequence[str]) -> list[AxisColumn]:
        """Return the axes with their columns. Raises InputError."""
        axes = []
        for name, axis in self.keys.axes.items():
            place = self.document.place(("axes", name))
            key = "" if place.startswith("--") else f"axes.{name}"
            column = column_named(place, key, axis.column or name, columns)
            axes.append(AxisColumn(name, column, axis.scale, name in self.keys.merge))
        if unknown := [name for name in self.keys.merge if name not in self.keys.axes]:
            known = f"axes: {', '.join(self.keys.axes)}"
            raise InputError(Problem(*self.source("merge"), f"{unknown[0]!r} is not an axis of this import", known))
        return axes

    def reject(self, keys: Sequence[str], message: str) -> None:
        """Raise InputError with ``message`` if one of ``keys`` is given, because it does not apply."""
        for key in keys:
            if getattr(self.keys, key) not in (None, [], {}):
                raise InputError(Problem(*self.source(key), message, "leave it out"))

    @property
    def log_columns(self) -> Columns:
        """The columns of a log."""
        return Columns(self.keys.step, self.keys.loss, self.keys.grad_norm)

    @property
    def metrics(self) -> MetricsConfig:
        """The pattern or the format of logs."""
        return MetricsConfig(pattern=self.keys.pattern, format=self.keys.format, loss=self.keys.loss)

    @property
    def stopping(self) -> StoppingConfig:
        """The detector's settings for curves."""
        return self.keys.stopping or StoppingConfig()

    @cached_property
    def path_pattern(self) -> re.Pattern[str] | None:
        """The regular expression of ``from_path``. Raises InputError if it is invalid or has no named group."""
        if self.keys.from_path is None:
            return None
        place, key = self.source("from_path")
        pattern = compiled(self.keys.from_path, key, "write e.g. 'lr(?P<lr>[^_/]+)_'", place)
        if not pattern.groupindex:
            remedy = "name settings: 'lr(?P<lr>[^_/]+)_'"
            raise InputError(Problem(*self.source("from_path"), "has no named group", remedy))
        return pattern


def import_options(
    mapping: Path | None = None,
    *,
    axis: Sequence[str] = (),
    where: Sequence[str] = (),
    map: Sequence[str] = (),
    set: Sequence[str] = (),
    **values: Any,
) -> ImportOptions:
    """Read the file ``mapping``, and put the options of the command line over it. Raises InputError.

    ``axis`` are NAME or NAME=SCALE, and replace the file's list of axes; ``where`` are COLUMN=VALUE, ``map``
    OUTCOME=LABEL,LABEL and ``set`` stopping.KEY=VALUE, and replace single entries. ``values`` are other keys.
    """
    document = Document("") if mapping is None else read_document(mapping, "docs/import.md lists the keys of this file")
    if axis:
        _set_axes(axis, document)
    for text in where:
        column, value = _split(f"--where {text}", text, "COLUMN=VALUE", "model=130m")
        _set(document, ("where", column), value, f"--where {text}")
    for text in map:
        outcome, labels = _split(f"--map {text}", text, "OUTCOME=LABEL,LABEL", "diverged=nan,crashed")
        names = [label.strip() for label in labels.split(",")]
        for name in names:
            other, equals, _ = name.partition("=")
            if equals and other.strip() in (*LABELS, SKIP):
                remedy = f"write each outcome by itself: --map {outcome}={names[0]} --map {name}"
                raise InputError(Problem(f"--map {text}", "", f"{name!r} is another outcome, not a label", remedy))
        _set(document, ("map", outcome), names, f"--map {text}")
    for text in set:
        path, value = parse_set(text)
        if len(path) != 2 or path[0] != "stopping":
            raise InputError(Problem(f"--set {text}", "", "is not a key of stopping", "write e.g. stopping.window=100"))
        _set(document, path, value, f"--set {text}")
    for key, value in values.items():
        if value not in (None, [], ()):
            flag = "minimize" if key == "maximize" and not value else key.replace("_", "-")
            _set(document, (key,), list(value) if isinstance(value, tuple) else value, f"--{flag}")
    return _checked(document)


def _set_axes(texts: Sequence[str], document: Document) -> None:
    """Replace the axes by the options' axes, which keep the columns and scales that the file gives them."""
    known = document.data.get("axes")
    axes: dict[str, Any] = {}
    for text in texts:
        name, equals, scale = text.partition("=")
        if equals and scale not in SCALES:
            remedy = f"choose {', '.join(SCALES)}; a mapping file gives an axis another column"
            raise InputError(Problem(f"--axis {text}", "", f"{scale!r} is not a scale", remedy))
        if name in axes:
            raise InputError(Problem(f"--axis {text}", "", f"{name!r} is an axis already", "name each axis once"))
        of_file = _axis_source(known.get(name)) if isinstance(known, dict) else {}
        axes[name] = {**of_file, **({"scale": scale} if equals else {})} if isinstance(of_file, dict) else of_file
    document.data["axes"] = axes
    for text, name in zip(texts, axes, strict=True):
        if not (isinstance(known, dict) and name in known):
            document.set_place(("axes", name), f"--axis {text}")


def _split(place: str, text: str, form: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InputError(Problem(place, "", f"is not {form}", f"write e.g. {example}"))
    return name.strip(), value.strip()


def _set(document: Document, path: KeyPath, value: Any, option: str) -> None:
    target: Any = document.data
    for part in path[:-1]:
        if not isinstance(target.get(part), dict):
            target[part] = {}
        target = target[part]
    target[path[-1]] = value
    document.set_place(path, option)


def _checked(document: Document) -> ImportOptions:
    """Validate the keys of ``document``. Raises InputError with all problems found."""
    if not document.data.get("axes"):
        place, key = (document.place(("axes",)), "axes") if document.name else ("--axis", "")
        remedy = "say --axis NAME for each column of a setting; the first two are the axes of the map"
        raise InputError(Problem(place, key, "is missing", remedy))
    data = {key: value for key, value in document.data.items() if value is not None}
    try:
        options = ImportOptions(MappingFile.model_validate(data), document)
    except ValidationError as error:
        problems = [_problem(details, document) for details in error.errors()]
        raise InputError(*list(dict.fromkeys(problems))[:MAX_PROBLEMS]) from None
    if options.keys.pattern is not None:
        try:
            compiled_pattern(options.metrics)
        except InputError as error:
            place, key = options.source("pattern")
            problems = [Problem(place, key, p.message, p.remedy) for p in error.problems if isinstance(p, Problem)]
            raise InputError(*problems) from None
    return options


def _problem(details: Mapping[str, Any], document: Document) -> Problem:
    path = tuple(part for part in details["loc"] if part not in _UNION_MEMBERS)
    place, key = document.place(path), ".".join(map(str, path))
    if details["type"] == "extra_forbidden":
        known = _KNOWN_KEYS.get(str(path[0]) if len(path) > 1 else "", ())
        remedy = did_you_mean(str(path[-1]), known) or f"known keys: {', '.join(known)}"
        return Problem(place, key, "unknown key", remedy)
    return Problem(place, key, f"{shown(details['input'])} is refused: {lowered(details['msg'])}", _remedy(path))


_KNOWN_KEYS: Mapping[str, Sequence[str]] = {
    "": list(MappingFile.model_fields),
    "axes": list(AxisSource.model_fields),
    "stopping": list(StoppingConfig.model_fields),
}


def _remedy(path: KeyPath) -> str:
    if path[:1] == ("axes",):
        return "an axis is NAME: COLUMN, or NAME: {column: COLUMN, scale: log}"
    return ""
