"""What the ledger records about a sweep as a whole: its names, versions and axes."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from typing import Any

from objectives.base import Objective
from orchestrator.base import __version__
from orchestrator.base.space import Axis, canonical_text
from orchestrator.ledger.facts import (
    INTENSITY_FACT,
    NUMERICS_FACT,
    PACKED_FACT,
    TRAINER_FACT,
    numerics_fact,
    packed_fact,
)
from orchestrator.sweepfile.custom_trainer import CustomTrainer
from orchestrator.sweepfile.spec import Sweep


def driver_facts(sweep: Sweep) -> dict[str, str]:
    """Return the facts that the ledger records about a sweep as a whole."""
    objective = sweep.objective
    return {
        "name": sweep.name,
        "objective": objective.name,
        "sweep_version": __version__,
        "python": platform.python_version(),
        "git_commit": git_commit(),
        "sweep_sha256": hashlib.sha256(sweep.text.encode()).hexdigest(),
        "axes": canonical_text([_axis_fact(axis) for axis in sweep.axes]),
        "ties": canonical_text({name: tie.text for name, tie in sweep.maker.ties.items()}),
        "is_sampled": canonical_text(not sweep.is_grid),
        "edge_axis": canonical_text(sweep.edge_axis),
        "num_spread": canonical_text(sweep.num_initial),
        "stopping": canonical_text(sweep.stopping.model_dump()),
        INTENSITY_FACT: canonical_text(sweep.resources.grams_per_kwh),
        TRAINER_FACT: canonical_text(sweep.facts),
        **(objective.score_fact if isinstance(objective, CustomTrainer) else {}),
        **({NUMERICS_FACT: numerics_fact(sweep.roundings)} if isinstance(objective, Objective) else {}),
        **({PACKED_FACT: packed_fact(objective)} if isinstance(objective, Objective) and objective.reference else {}),
    }


def _axis_fact(axis: Axis) -> dict[str, Any]:
    others = {"zipped": axis.zipped, "when": dict(axis.when), "refined": axis.refined}
    given = {name: value for name, value in others.items() if value}
    return {"name": axis.name, "scale": axis.scale, "ends": axis.ends, **given}


def git_commit() -> str:
    """Return the commit of the working directory, with + if files differ from it; empty without git."""
    commit = _git("rev-parse", "HEAD")
    is_changed = commit and _git("status", "--porcelain", "--untracked-files=no")
    return f"{commit}+" if is_changed else commit


def _git(*arguments: str) -> str:
    """The output of git, or empty if it fails. It takes no lock, which would remain if it were killed."""
    try:
        command = ["git", "--no-optional-locks", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, env={**os.environ, "LC_ALL": "C"})
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
