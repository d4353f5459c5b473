"""`sweep init`: a commented sweep file as a starting point."""

from __future__ import annotations

from pathlib import Path

from orchestrator.commands.printing import Answer
from orchestrator.errors import EXIT_OK, InputError, Problem
from orchestrator.files import check_output, write_output
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.starter import starter_file


def init(name: str, objective: str, changes: Overrides, output: Path | None) -> Answer:
    """Write the starter file of a sweep ``name`` to ``output`` or NAME.yaml. Raises InputError if it exists."""
    text = starter_file(name, objective, changes)
    path = output or Path(f"{name}.yaml")
    if path.exists():
        raise InputError(Problem(str(path), "", "already exists", "choose another name, or --output FILE"))
    check_output(path)
    write_output(path, text)
    yield f"wrote {path}; next: sweep plan {path}"
    return EXIT_OK
