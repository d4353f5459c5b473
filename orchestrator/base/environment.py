"""The machine and versions of this process."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket


def installed_version(package: str) -> str | None:
    """The version of ``package``; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe_process() -> dict[str, str]:
    """The machine and versions of this process, by name."""
    versions = {name: version for name in ("torch", "numpy", "ray") if (version := installed_version(name))}
    return {
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **versions,
    }
