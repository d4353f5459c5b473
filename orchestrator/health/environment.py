"""Health of the environment: versions, memory, disk, GPUs, listening and leftover processes."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from orchestrator.base.environment import install_command, installed_version, is_installed
from orchestrator.base.processes import end_marked, leftovers, listening
from orchestrator.health.finding import Finding, Level

_LIBRARIES = ("torch", "ray", "optuna", "mlflow", "numpy", "pandas")
_LITTLE_SPACE = 2**30
_LITTLE_MEMORY = 2 * 2**30
# Below these versions torch's weights_only could be bypassed, and Ray let web pages in a browser run code.
_OLDEST = {"torch": (2, 10), "ray": (2, 60)}


def examine_environment(results: Path) -> Iterator[Finding]:
    """Versions, memory, disk, GPUs, listening and leftover processes."""
    versions = {name: version for name in _LIBRARIES if (version := installed_version(name))}
    if missing := [name for name in _LIBRARIES if name not in versions]:
        what = f"not installed: {', '.join(missing)}; sweeps can be read here, not trained"
        yield Finding("warning", what, remedy=install_command(missing[0]))
    yield Finding("ok", f"Python {sys.version.split()[0]}, " + ", ".join(f"{k} {v}" for k, v in versions.items()))
    for name, oldest in _OLDEST.items():
        found = tuple(map(int, re.findall(r"\d+", versions.get(name, "9.9"))[:2]))
        if found < oldest:
            wanted = ".".join(map(str, oldest))
            yield Finding(
                "fault",
                f"{name} {versions[name]} has known vulnerabilities",
                remedy=f"install {name} {wanted} or newer",
            )
    folder = next(path for path in (results.absolute(), *results.absolute().parents) if path.exists())
    yield from _space("results", folder)
    yield from _space("Ray's shared memory", Path("/dev/shm"))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    level: Level = "ok" if free > _LITTLE_MEMORY else "warning"
    yield Finding(level, f"{os.cpu_count()} cores, {free / 2**30:.1f} GiB of memory free")
    yield Finding("ok", _gpus())
    yield from _processes()


def _space(what: str, folder: Path) -> Iterator[Finding]:
    if not folder.is_dir():
        return
    free = shutil.disk_usage(folder).free
    level: Level = "ok" if free > _LITTLE_SPACE else "warning"
    yield Finding(level, f"{what} in {folder}: {free / 2**30:.1f} GiB free")
    if not os.access(folder, os.W_OK):
        yield Finding("fault", f"{folder} cannot be written")


def _gpus() -> str:
    if not is_installed("torch"):
        return "GPUs are not known without torch"
    import torch

    if not torch.cuda.is_available():
        return "no GPU"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"GPUs: {', '.join(names)}"


def _processes() -> Iterator[Finding]:
    left = leftovers()
    if left:
        text = f"{len(left)} processes are left over from a driver that was killed; the next run ends them"
        yield Finding("note", text, lambda: [end_marked(mark) for mark in set(left.values())])
    listeners = listening()
    for address, name in sorted(listeners.items()):
        yield Finding("ok", f"{name} listens on {address}")
    if not listeners:
        yield Finding("ok", "no process of sweep listens on a port")
