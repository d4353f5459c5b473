"""On which machine and versions this process runs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket


def describe_process() -> dict[str, str]:
    """Where this process runs and on which versions."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "ray")}
    return {
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **versions,
    }
