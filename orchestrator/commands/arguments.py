"""From command-line strings to the arguments of commands: a sweep, overrides, conditions."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import FROZEN_SWEEP

if TYPE_CHECKING:
    from orchestrator.detection.config import StoppingConfig
    from orchestrator.logs.columns import MetricsConfig
    from orchestrator.sweepfile.overrides import Overrides
    from orchestrator.sweepfile.spec import Sweep

_NEXT_AXIS = re.compile(r",(?=[^,={}]+=)")


def overrides(
    axes: Sequence[str] = (),
    drops: Sequence[str] = (),
    sets: Sequence[str] = (),
    seeds: str | None = None,
    steps: int | None = None,
    name: str | None = None,
) -> Overrides:
    """The options that change a sweep file."""
    from orchestrator.sweepfile.overrides import Overrides

    return Overrides(tuple(axes), tuple(sets), seeds, steps, name, tuple(drops))


def read_sweep(file: str, results: Path, changes: Overrides, allow_import: bool) -> Sweep:
    """A sweep from its file, from the frozen file in its folder, or of those that ship. Raises InputError."""
    from orchestrator.ledger.reader import check_not_imported
    from orchestrator.sweepfile.spec import load_sweep
    from orchestrator.sweepfile.starter import shipped_sweeps

    path = Path(file)
    for folder in (path, results / file):
        if not os.path.isfile(path) and os.path.isfile(folder / FROZEN_SWEEP):
            path = folder / FROZEN_SWEEP
    if path == Path(file) and not os.path.isfile(path):
        for folder in (path, results / file):
            check_not_imported(folder)
    if not path.exists():
        path = shipped_sweeps().get(file, path)
    return load_sweep(path, changes, allow_import=allow_import)


def conditions(texts: Sequence[str], option: str = "--where") -> dict[str, str]:
    """AXIS=VALUE ``texts`` of an option as a mapping. Raises InputError."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(Problem(option, text, "is not AXIS=VALUE", "write e.g. clip=none"))
        found[key.strip()] = value.strip()
    return found


def cell_of(text: str | None) -> dict[str, str]:
    """The AXIS=VALUE,... of `--cell`, where a value may have commas: those that no other axis follows."""
    return {} if text is None else conditions(_NEXT_AXIS.split(text), "--cell")


def told_metrics(pattern: str | None, format_: str, loss: str | None) -> MetricsConfig:
    """The pattern and the format of logs as options give them. Raises InputError."""
    from pydantic import ValidationError

    from orchestrator.logs.columns import MetricsConfig
    from orchestrator.logs.line_formats import compiled

    try:
        metrics = MetricsConfig.model_validate({"pattern": pattern, "format": format_, "loss": loss})
    except ValidationError as error:
        details = error.errors()[0]
        remedy = "see `sweep replay --help`"
        raise InputError(Problem(f"--{details['loc'][0]}", "", details["msg"], remedy)) from None
    if metrics.pattern is not None:
        compiled(metrics)
    return metrics


def stopping_of(sets: Sequence[str]) -> StoppingConfig:
    """The detector's settings for logs, changed by `--set stopping.KEY=VALUE`. Raises InputError."""
    from pydantic import ValidationError

    from orchestrator.detection.config import StoppingConfig
    from orchestrator.sweepfile.overrides import parse_set

    changes = {}
    for text in sets:
        path, value = parse_set(text)
        if len(path) != 2 or path[0] != "stopping":
            raise InputError(Problem(f"--set {text}", "", "is not a key of stopping", "write e.g. stopping.window=100"))
        changes[path[1]] = value
    try:
        return StoppingConfig(**changes)
    except ValidationError as error:
        details = error.errors()[0]
        key = ".".join(str(part) for part in details["loc"])
        known = f"keys: {', '.join(StoppingConfig.model_fields)}" if details["type"] == "extra_forbidden" else ""
        raise InputError(Problem("--set", f"stopping.{key}", details["msg"], known)) from None
