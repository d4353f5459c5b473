"""The checkpoints that a custom trainer writes by itself."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING

from orchestrator.base.vocabulary import STARTED_LATER
from orchestrator.base.words import count

if TYPE_CHECKING:
    from orchestrator.worker.points import Curve


def changed_at(path: str) -> float:
    """Return when a file was changed, in seconds since 1970; 0 if it is missing or a dangling link."""
    try:
        return os.path.getmtime(path)
    except OSError:
        return 0.0


def read_text(curve: Curve, num_points: int, steps: int, note: str) -> str:
    """Return in words how many losses of a run of ``steps`` were read; the ``note`` says from where."""
    return f"{count(num_points, 'loss', 'losses')} for {count(steps, 'step')}{ends_text(curve, num_points)} ({note})"


def ends_text(curve: Curve, num_points: int) -> str:
    """Return in words that a run began later than its second point would be, lost losses, or was ended; else empty."""
    first, last = curve.first_step, curve.last_step
    is_late = (
        first is not None and last is not None and num_points > 1 and first * (num_points - 1) > 2 * (last - first)
    )
    began = f", from step {first:,} on, {STARTED_LATER}" if is_late else ""
    lost = f", without the losses between steps {curve.lost[0]:,} and {curve.lost[1]:,}" if curve.lost else ""
    lost += ", lost as an earlier attempt was killed" if lost else ""
    return began + lost + (", where it was ended, as it went on" if curve.goes_on else "")


def trainer_checkpoints(checkpoint: str, working_folder: str, trial_folder: str) -> list[str]:
    """Return the files that ``checkpoint``, a path or a pattern with the values filled in, means.

    The user's text is a pattern, but not the folder of the trial that was filled into it.
    """
    path = os.path.join(working_folder, checkpoint)
    if os.path.exists(path):
        return [path]
    escaped = checkpoint.replace(trial_folder, glob.escape(trial_folder))
    return [path for path in glob.glob(os.path.join(glob.escape(working_folder), escaped)) if changed_at(path)]
