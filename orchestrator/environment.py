"""The machine and versions of this process."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket


def describe_process() -> dict[str, str]:
    """The machine and versions of this process, by name."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "ray")}
    return {
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **versions,
    }
