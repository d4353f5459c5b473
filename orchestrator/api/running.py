"""`orchestrator.run`: what `sweep run` does, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from orchestrator.api.results import SweepResults
from orchestrator.base.errors import EXIT_INTERRUPTED
from orchestrator.commands.arguments import overrides, read_sweep
from orchestrator.commands.printing import show
from orchestrator.commands.run import run as answer
from orchestrator.executors.catalogue import ExecutorOptions, executor_loader
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import Sweep, build_sweep, check_import
from orchestrator.sweepfile.strict_yaml import parse_document

_SIGNAL = 128  # exit codes from here on say which signal stopped the run


def run(
    sweep: str | Path | Mapping[str, Any],
    *,
    axis: Sequence[str] = (),
    drop: Sequence[str] = (),
    set: Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    steps: int | None = None,
    name: str | None = None,
    results: str | Path = "results",
    executor: str = "ray",
    retry_errored: bool = False,
    allow_import: bool = False,
) -> SweepResults:
    """Train the missing trials of ``sweep``, and return its results; running it again trains nothing.

    ``sweep`` is a sweep file, the name of a sweep that was run, or the content of a file as a dictionary. The options
    are those of `sweep run`; ``seeds`` may also be their number. Raises InputError for what a file may not say, and
    KeyboardInterrupt where a signal stopped the run, which the same call continues.
    """
    found = _sweep(sweep, overrides(axis, drop, set, _seeds_text(seeds), steps, name), Path(results), allow_import)
    check_import(found, allow_import)
    folder = Path(results) / found.name
    load = executor_loader(executor, ExecutorOptions(folder, found.resources))
    code = show(answer(found, Path(results), load, retry_errored))
    if code == EXIT_INTERRUPTED or code > _SIGNAL:
        raise KeyboardInterrupt
    return SweepResults(folder)


def _sweep(sweep: str | Path | Mapping[str, Any], changes: Overrides, results: Path, allow_import: bool) -> Sweep:
    if isinstance(sweep, Mapping):
        text = yaml.safe_dump(dict(sweep), sort_keys=False)
        return build_sweep(parse_document(text, "sweep"), changes, allow_import=allow_import)
    return read_sweep(str(sweep), results, changes, allow_import)


def _seeds_text(seeds: int | Sequence[int] | None) -> str | None:
    if seeds is None:
        return None
    return ",".join(map(str, range(seeds) if isinstance(seeds, int) else seeds))
