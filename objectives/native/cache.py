"""Where measurements and compiled code are kept on a machine."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder of measurements and compiled packs: ``SWEEP_CACHE``, or ``sweep`` in the user's cache."""
    if folder := os.environ.get("SWEEP_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sweep"


def kernel_folder() -> Path:
    """The folder of compiled kernels: ``SWEEP_KERNELS``, or ``kernels`` in the ``cache_folder``."""
    return Path(os.environ.get("SWEEP_KERNELS") or cache_folder() / "kernels")
