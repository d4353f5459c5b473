"""Libraries that only training needs, and what to install where one is missing.

The package by itself reads logs and finished sweeps; the extra `run` brings what trains them.
"""

from __future__ import annotations

import importlib.util

from orchestrator.base.errors import InputError, Problem

# The library, by the name of its module, and the extra that brings it.
EXTRAS = {"mlflow": "run", "optuna": "run", "ray": "run", "sklearn": "run", "torch": "run"}


def is_installed(library: str) -> bool:
    """Whether ``library`` can be imported, without importing it."""
    return importlib.util.find_spec(library) is not None


def install_command(library: str) -> str:
    """What installs ``library``: its extra, or one of its own name."""
    return f"pip install 'sweep-stability[{EXTRAS.get(library, library)}]'"


def refuse_without(what: str, library: str) -> None:
    """Raise InputError if ``library``, which ``what`` needs, is not installed."""
    if not is_installed(library):
        raise InputError(_problem(f"{what} needs the package {library}", library))


def as_input_error(error: ModuleNotFoundError) -> InputError | None:
    """What to tell a user whose installation lacks the library of an extra; None for any other module."""
    library = (error.name or "").partition(".")[0]
    return InputError(_problem(f"this needs the package {library}", library)) if library in EXTRAS else None


def _problem(needs: str, library: str) -> Problem:
    return Problem("", "", f"{needs}, which is not installed", install_command(library))
