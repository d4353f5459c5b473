"""The machine, versions and optional libraries of this process.

The package by itself reads logs and finished sweeps; training needs the libraries of the extra `run`.
"""

from __future__ import annotations

import atexit
import gc
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import socket
import sys
from collections.abc import Sequence
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from orchestrator.base.errors import InputError, Problem

_NAME, _PACKAGES = "sweep-stability", ("objectives", "orchestrator")
PLACE = Path(__file__).parents[2]  # of sweep's packages
# Runs -m MODULE of sweep, also where a folder of the user has the name of one of its packages.
OWN_PYTHON = (sys.executable, "-P", str(PLACE / "sweep_stability.py"))

# The extra that installs each library, by the name of its module.
EXTRAS = {
    "mcp": "mcp",
    "mlflow": "run",
    "optuna": "run",
    "ray": "run",
    "safetensors": "weights",
    "sklearn": "run",
    "torch": "run",
}


def collect_rarely() -> None:
    """Let Python look for cycles of objects rarely, and not at the end. For a process without code of the user.

    Libraries and results make many objects and few cycles: at Python's default imports take a tenth longer, and the end
    up to a second. A user's code may have tensors in cycles, or rely on the end to close its files.
    """
    gc.set_threshold(100_000, 50, 100)
    atexit.register(gc.freeze)


@cache  # every pack asks, and the metadata of a package takes milliseconds to read
def installed_version(package: str) -> str | None:
    """Return the version of ``package``, or None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe_process() -> dict[str, str]:
    """Return the machine and versions of this process, by name."""
    versions = {name: version for name in ("torch", "numpy", "ray") if (version := installed_version(name))}
    return {
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **versions,
    }


def is_installed(library: str) -> bool:
    """Whether ``library`` can be imported; it is not imported."""
    return importlib.util.find_spec(library) is not None


def are_first(path: Sequence[str]) -> bool:
    """Whether a process with this sys.path would import sweep's own packages."""
    specs = {name: PathFinder.find_spec(name, path) for name in _PACKAGES}
    return all(spec and spec.origin == str(PLACE / name / "__init__.py") for name, spec in specs.items())


def clash_remedy(error: ImportError) -> str | None:
    """Return what to do if a user's own module was not found since one of sweep's packages has its name."""
    name = (error.name or "").partition(".")[0]
    return f"sweep's package {PLACE / name} has this name too: rename yours" if name in _PACKAGES else None


def install_command(library: str) -> str:
    """Return the command that installs the packages of a library's extra, which may have the library's name."""
    end = f"; extra == '{EXTRAS.get(library, library)}'"
    needs = (installed_version(_NAME) and importlib.metadata.requires(_NAME)) or ()
    return shlex.join(["pip", "install", *([n.removesuffix(end) for n in needs if n.endswith(end)] or [library])])


def check_installed(what: str, library: str) -> None:
    """Raise InputError if ``library`` is not installed; ``what`` needs it."""
    if not is_installed(library):
        raise InputError(_problem(f"{what} needs the package {library}", library))


def missing_library_error(error: ModuleNotFoundError) -> InputError | None:
    """Return the error for a user who lacks the library of an extra, or None for any other module."""
    library = (error.name or "").partition(".")[0]
    return InputError(_problem(f"this needs the package {library}", library)) if library in EXTRAS else None


def _problem(needs: str, library: str) -> Problem:
    return Problem("", "", f"{needs}, which is not installed", install_command(library))
