"""What the shell may complete beside commands and options: names of sweeps, and sweep files."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path

import typer

from orchestrator.base.files import LEDGER

_ENDINGS = (".yaml", ".yml")


def sweep_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the sweeps that have a ledger in the folder of ``--results``."""
    results = Path(context.params.get("results") or "results")
    names = sorted(path.parent.name for path in results.glob(f"*/{LEDGER}"))
    return [name for name in names if name.startswith(incomplete)]


def sweep_files(context: typer.Context, incomplete: str) -> list[str]:
    """Sweep files and folders on the way to them, and names of sweeps."""
    return [*_paths(incomplete), *sweep_names(context, incomplete)]


def _paths(incomplete: str) -> Iterator[str]:
    for name in sorted(glob.glob(f"{glob.escape(incomplete)}*")):
        if name.endswith(_ENDINGS):
            yield name
        elif Path(name).is_dir():
            yield f"{name}/"
