"""The code, versions and settings with which a sweep was run."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from typing import Any

from objectives.base import Objective
from orchestrator.base.space import Axis, canonical_text
from orchestrator.ledger.facts import PACKED_FACT, packed_fact
from orchestrator.sweepfile.spec import Sweep
from orchestrator.version import __version__


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
        "num_spread": canonical_text(sweep.num_initial),
        "stopping": canonical_text(sweep.stopping.model_dump()),
        **({PACKED_FACT: packed_fact(objective)} if isinstance(objective, Objective) and objective.reference else {}),
    }


def _axis_fact(axis: Axis) -> dict[str, Any]:
    related = {"zipped": axis.zipped} if axis.zipped else {}
    conditions = {"when": dict(axis.when)} if axis.when else {}
    return {"name": axis.name, "scale": axis.scale, "ends": axis.ends, **related, **conditions}


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
