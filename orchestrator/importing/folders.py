"""A folder of runs -> logs, each with a row of its settings from a file beside it and from its path."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator.base.errors import InputError, Problem
from orchestrator.importing.rows import LeftOut, Row, flat
from orchestrator.logs.columns import Columns, MetricsConfig
from orchestrator.logs.files import find_logs, read_log
from orchestrator.logs.tables import Log

# Written by trainers, Hydra, Lightning, Ray Tune and Weights & Biases.
SETTINGS_FILES = (
    "config.yaml", "config.yml", "config.json", "hparams.yaml", "hparams.yml", "hparams.json", "args.json", "args.yaml",
    "params.json", ".hydra/config.yaml", "files/config.yaml",
)  # fmt: skip
_MOST_BYTES = 16 * 2**20
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class FolderOptions:
    """How runs are found: a pattern of settings in paths, the settings file, the log of several, and its columns."""

    from_path: re.Pattern[str] | None
    config: str | None
    log: str | None
    columns: Columns
    told: MetricsConfig


def path_pattern(text: str | None) -> re.Pattern[str] | None:
    """The regular expression of `--from-path`. Raises InputError where it is none, or names no setting."""
    if text is None:
        return None
    try:
        found = re.compile(text)
    except re.error as error:
        message = f"is no regular expression: {error}"
        raise InputError(Problem("--from-path", text, message, "write e.g. 'lr(?P<lr>[^_/]+)_'")) from None
    if not found.groupindex:
        message = "has no named group"
        raise InputError(Problem("--from-path", text, message, "name settings: 'lr(?P<lr>[^_/]+)_'"))
    return found


def logs_in(folder: Path, options: FolderOptions) -> tuple[list[Row], list[Log], list[LeftOut]]:
    """For each run in ``folder`` a row of its settings and its log; and runs that cannot be used.

    Logs below one settings file are one run. Raises InputError where the folder holds no log.
    """
    groups: dict[Path, list[Path]] = {}
    settings: dict[Path, Path | None] = {}
    for path in _candidates(folder, options):
        beside = _settings_file(path, folder, options.config)
        run = path if beside is None else beside[0]
        groups.setdefault(run, []).append(path)
        settings[run] = None if beside is None else beside[1]
    rows: list[Row] = []
    logs: list[Log] = []
    left_out: list[LeftOut] = []
    for run, paths in groups.items():
        found = _one_log(run, paths, options)
        if isinstance(found, Log):
            values = _settings(Path(found.name), folder, settings[run], options)
        if isinstance(found, LeftOut):
            left_out.append(found)
        elif isinstance(values, LeftOut):
            left_out.append(values)
        else:
            rows.append(Row(found.name, values))
            logs.append(found)
    return rows, logs, left_out


def _candidates(folder: Path, options: FolderOptions) -> list[Path]:
    """Files that may be logs, without files of settings."""
    names = {Path(name).name for name in SETTINGS_FILES} | ({Path(options.config).name} if options.config else set())
    found = [path for path in find_logs(folder) if path.name not in names]
    if options.log is not None:
        found = [path for path in found if path.match(options.log)]
        if not found:
            raise InputError(
                Problem("--log", options.log, f"no log in {folder} has this name", "write e.g. metrics.csv")
            )
    return found


def _settings_file(path: Path, folder: Path, name: str | None) -> tuple[Path, Path] | None:
    """The nearest folder above ``path``, within ``folder``, that has a settings file, and that file."""
    for parent in path.parents:
        for wanted in SETTINGS_FILES if name is None else (name,):
            if (parent / wanted).is_file():
                return parent, parent / wanted
        if parent == folder:
            return None
    return None


def _one_log(run: Path, paths: Sequence[Path], options: FolderOptions) -> Log | LeftOut:
    """The only readable log of a run."""
    logs: list[Log] = []
    reasons: list[str] = []
    for path in paths:
        try:
            logs.append(read_log(path, options.columns, options.told))
        except InputError as error:
            reasons.append(str(error).partition("\n")[0])
    if len(logs) == 1:
        return logs[0]
    if not logs:
        return LeftOut(str(run), f"no log: {'; '.join(reasons[:_SHOWN])}")
    names = ", ".join(str(Path(log.name).relative_to(run)) for log in logs[:_SHOWN])
    return LeftOut(
        str(run), f"has {len(logs)} logs ({names}): say which with --log, e.g. --log {Path(logs[0].name).name}"
    )


def _settings(log: Path, folder: Path, file: Path | None, options: FolderOptions) -> Mapping[str, Any] | LeftOut:
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = _read_settings(file)
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            return LeftOut(str(file), f"cannot be read: {str(error).splitlines()[0]}")
    if options.from_path is not None:
        relative = log.relative_to(folder).as_posix()
        match = options.from_path.search(relative)
        if match is None:
            return LeftOut(str(log), f"its path {relative} does not match --from-path")
        values |= {name: text for name, text in match.groupdict().items() if text is not None}
    return values if values else LeftOut(str(log), "has no settings: no file of them is beside it (see --from-path)")


def _read_settings(path: Path) -> dict[str, Any]:
    """The settings of a file with names joined by dots; those of Weights & Biases stand each under `value`."""
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError("is larger than 16 MiB")
    text = path.read_text(encoding="utf-8")
    found = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    if not isinstance(found, Mapping):
        raise ValueError("holds no names and values")
    plain = {
        key: value["value"]
        if isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "desc"}
        else value
        for key, value in found.items()
    }
    return flat(plain)
