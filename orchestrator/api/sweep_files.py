"""From command-line strings to the arguments of commands: a sweep, overrides, conditions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.files import FROZEN_SWEEP

if TYPE_CHECKING:
    from orchestrator.sweepfile.overrides import Overrides
    from orchestrator.sweepfile.spec import Sweep


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
    """A sweep from its file, from the frozen file in its folder, or from the sweeps that ship. Raises InputError."""
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
