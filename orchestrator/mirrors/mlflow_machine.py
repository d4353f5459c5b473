"""The load of the driver's machine while it trains, under the names of MLflow's own system metrics.

MLflow's monitor would call the store from a thread of its own, where no limit on waiting holds; only its readings are
used here. They are not results: the ledger does not have them, and a store that is made anew lacks them.
"""

from __future__ import annotations

import contextlib
import time

_EVERY_S = 10.0


class MachineReadings:
    """Readings of processors, memory, disks, network, and GPUs where there are some."""

    def __init__(self) -> None:
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
        from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
        from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor
        from mlflow.system_metrics.metrics.rocm_monitor import ROCMMonitor

        self._monitors = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
        for monitor in (GPUMonitor, ROCMMonitor):
            # Each raises another error for what it lacks: a package, a driver, a device.
            with contextlib.suppress(Exception):
                self._monitors.append(monitor())
        self._due = time.monotonic()

    def due(self) -> dict[str, float]:
        """New readings by name, or nothing where the last ones are younger than ten seconds."""
        if time.monotonic() < self._due:
            return {}
        self._due = time.monotonic() + _EVERY_S
        found: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            found |= {f"system/{name}": float(value) for name, value in monitor.aggregate_metrics().items()}
            monitor.clear_metrics()
        return found
