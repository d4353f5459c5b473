"""Imports what the files of a finished sweep need while its workers train, so that they are there sooner.

Only for a process that does not train: its time is idle then.
"""

from __future__ import annotations

import contextlib
import importlib
import threading

_MODULES = (
    "orchestrator.render.maps",
    "orchestrator.pages.report",
    "matplotlib.backends.backend_agg",
    "scipy.stats",
    "sklearn.ensemble",
    "optuna.importance",
)


def import_ahead() -> threading.Thread:
    """Start the imports in a thread, and return it; an error is left to whoever imports for use."""
    thread = threading.Thread(target=_import_all, daemon=True, name="imports-ahead")
    thread.start()
    return thread


def _import_all() -> None:
    for name in _MODULES:
        with contextlib.suppress(Exception):  # an extra may be missing: the report then leaves something out
            importlib.import_module(name)
