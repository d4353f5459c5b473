"""The checkpoints that a custom trainer writes by itself."""

from __future__ import annotations

import glob
import os


def changed_at(path: str) -> float:
    """Return when a file was changed, in seconds since 1970; 0 if it is missing or a dangling link."""
    try:
        return os.path.getmtime(path)
    except OSError:
        return 0.0


def trainer_checkpoints(checkpoint: str, working_folder: str, trial_folder: str) -> list[str]:
    """Return the files that ``checkpoint``, a path or a pattern with the values filled in, means.

    The user's text is a pattern, but not the folder of the trial that was filled into it.
    """
    path = os.path.join(working_folder, checkpoint)
    if os.path.exists(path):
        return [path]
    escaped = checkpoint.replace(trial_folder, glob.escape(trial_folder))
    return [path for path in glob.glob(os.path.join(glob.escape(working_folder), escaped)) if changed_at(path)]
