"""`sweep export optuna`: the sweep as an Optuna study, for optuna-dashboard."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base.errors import EXIT_OK
from orchestrator.commands.printing import Answer
from orchestrator.render.optuna_study import export_study


def export_optuna(folder: Path) -> Answer:
    """Write the study of the sweep in ``folder``, and say how to open it. Raises InputError."""
    path = export_study(folder)
    yield f"wrote {path}"
    yield f"optuna-dashboard sqlite:///{path} shows it (pip install 'sweep-stability[optuna-dashboard]')"
    return EXIT_OK
