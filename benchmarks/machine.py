"""The machine of a measurement, and its fastest matrix product."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.crew import WORKERS, Advance, Crew, CrewFailed

_WIDTH = 2048
# Memory that malloc keeps instead of returning it after every step: as sweep sets it for its workers, here for every
# arm. glibc reads these when a process starts.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}


def machine_facts() -> dict[str, str | int | float]:
    """Date, processor, cores, load and versions; nothing that identifies the machine or its owner.

    The load is of the last minute, in processes that run or wait to: others compete with a measurement where it is
    above 0 before the measurement starts.
    """
    versions = {name: importlib.metadata.version(name) for name in ("torch", "ray", "mlflow", "optuna")}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "load": round(os.getloadavg()[0], 1),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **versions,
    }


def cpu_model() -> str:
    """The name of the processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def measured_peak(seconds: float) -> dict[str, float | None]:
    """Single-precision operations per second of large matrix products, two processes at a time, by library."""
    return {kernels: _products_per_second(kernels, seconds) for kernels in ("default", "onednn")}


def _products_per_second(kernels: str, seconds: float) -> float | None:
    try:
        crew = Crew(matrix_products, [(kernels, _WIDTH)] * WORKERS)
    except CrewFailed:
        return None  # a build of torch without oneDNN
    try:
        return crew.measure(seconds).member_steps_per_second * 2 * _WIDTH**3
    finally:
        crew.close()


def matrix_products(kernels: str, width: int) -> Advance:
    """Square single-precision products, each counted as one step; ``kernels`` as in a pack's way."""
    import torch

    torch.set_num_threads(1)
    a, b = torch.randn(width, width), torch.randn(width, width)

    def advance() -> int:
        if kernels == "onednn":
            torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        else:
            torch.mm(a, b)
        return 1

    return advance
