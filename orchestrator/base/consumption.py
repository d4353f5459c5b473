"""What training consumes: peaks of memory, and energy by the counters of the machine; unknown if none can be read.

RAPL counts the energy of a machine's processors and their memory, and a process gets its share by processor time. NVML
counts the energy of a whole GPU, and a pack gets the share that it asked for.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

POWERCAP = Path("/sys/class/powercap")  # RAPL's folder, readable by root only on many machines
_STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6)  # its columns user, nice, system, irq and softirq
_MIB = 2**20


def peak_memory() -> float | None:
    """Return the largest resident memory of this process so far in MiB, or None if unknown."""
    return peak_memory_of(os.getpid())


def peak_memory_of_children(variable: str) -> float | None:
    """Return the largest resident memory so far of any of ``_children``, or None without one."""
    peaks = [peak_memory_of(process.pid) for process in _children(variable)]
    return max((peak for peak in peaks if peak is not None), default=None)


def _children(variable: str) -> list[psutil.Process]:
    """Return the living descendants of this process with ``variable`` in their environment."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            found += [process] if variable in process.environ() else []
    return found


def peak_memory_of(pid: int) -> float | None:
    """Return the largest resident memory so far of a process that lives, in MiB; None if unknown."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return None


def peak_device_memory() -> float | None:
    """Return the most memory that torch has allocated on one GPU in this process in MiB, or None without a GPU."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return max(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count())) / _MIB


def fullest_device() -> tuple[float, float] | None:
    """Return the memory in use on the fullest GPU of this machine and all of its memory, in MiB; None if unknown."""
    with contextlib.suppress(Exception):  # no library, no driver
        nvml = _nvml()
        devices = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        fullest = max(map(nvml.nvmlDeviceGetMemoryInfo, devices), key=lambda info: info.used / info.total)
        return fullest.used / _MIB, fullest.total / _MIB
    return None


def _nvml() -> Any:
    """Return the library of NVML, ready. Raises any error where it cannot be used."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def reset_peaks() -> None:
    """Let the peaks of this process begin again, since a worker trains one pack after another."""
    with contextlib.suppress(OSError):  # not on Linux, or not allowed
        Path("/proc/self/clear_refs").write_text("5")
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)


class Rapl:
    """The counters of a machine's processors and of their memory, in ``folder``."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        # Zones for parts of a processor and for the whole machine would count the same energy twice.
        names = {zone: _read(zone / "name") or "" for zone in sorted(folder.glob("intel-rapl:*"))}
        self._zones = [zone for zone, name in names.items() if name.startswith(("package", "dram"))]
        self._last = [self._counter(zone) for zone in self._zones]
        self.is_known = bool(self._zones) and None not in self._last

    def take(self) -> float:
        """Return the joules since the last call, of counters that have wrapped at most once."""
        now, joules = [self._counter(zone) for zone in self._zones], 0.0
        for zone, before, after in zip(self._zones, self._last, now, strict=True):
            if before is None or after is None:
                continue
            wrapped = int(_read(zone / "max_energy_range_uj") or 0) if after < before else 0
            joules += max(0, after - before + wrapped) / 1e6
        self._last = now
        return joules

    @staticmethod
    def _counter(zone: Path) -> int | None:
        text = _read(zone / "energy_uj")
        return None if text is None else int(text)


class Nvml:
    """The counters of the GPUs in ``devices``: numbers or UUIDs, as in CUDA_VISIBLE_DEVICES."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        self.is_known = False
        with contextlib.suppress(Exception):  # no library, no driver, or a GPU without a counter
            self._nvml = _nvml()
            self._handles = [self._handle(device) for device in devices]
            self._last = self._counters()
            self.is_known = bool(self._handles)

    def take(self) -> float:
        """Return the joules since the last call that could read all counters; 0 if one cannot be read now."""
        before = self._last
        with contextlib.suppress(Exception):  # such as of a GPU that is lost; a trial must not fail for its energy
            self._last = self._counters()
        return sum(max(0, after - old) for old, after in zip(before, self._last, strict=True)) / 1e3

    def _handle(self, device: str) -> Any:
        if device.isdecimal():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(device))
        return self._nvml.nvmlDeviceGetHandleByUUID(device)

    def _counters(self) -> list[int]:
        return [self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles]


class EnergyMeter:
    """The energy of this process, or of its ``_children`` with a variable, on ``gpus`` GPUs or a fraction of one."""

    def __init__(self, gpus: float = 0.0, *, variable: str | None = None, folder: Path = POWERCAP) -> None:
        self._variable, self._gpu_share = variable, min(1.0, gpus)
        counters: dict[str, Rapl | Nvml] = {
            "rapl": Rapl(folder),
            "nvml": Nvml(_devices(math.ceil(gpus))),
        }
        self._counters = {name: counter for name, counter in counters.items() if counter.is_known}
        self._own_s, self._busy_s = self._times()

    @property
    def source(self) -> str:
        """The counters that are read, or an empty text."""
        return ", ".join(self._counters)

    def take(self) -> float | None:
        """Return the joules since the last call, or None if no counter can be read."""
        if not self._counters:
            return None
        joules = {name: counter.take() for name, counter in self._counters.items()}
        before, (self._own_s, self._busy_s) = (self._own_s, self._busy_s), self._times()
        own_s, busy_s = max(0.0, self._own_s - before[0]), self._busy_s - before[1]
        share = min(1.0, own_s / busy_s) if busy_s > 0 else 1.0
        return joules.get("rapl", 0.0) * share + joules.get("nvml", 0.0) * self._gpu_share

    def _times(self) -> tuple[float, float]:
        """Return the seconds that this process, and that all processes of the machine, have kept processors busy."""
        if "rapl" not in self._counters:
            return 0.0, 0.0
        numbers = (_read(_STAT) or "cpu 0 0 0 0 0 0 0").split()[1:8]
        busy_s = sum(int(numbers[column]) for column in _BUSY) / os.sysconf("SC_CLK_TCK")
        if self._variable is None:
            return time.process_time(), busy_s
        own_s = 0.0
        for process in _children(self._variable):
            with contextlib.suppress(psutil.Error):
                own_s += sum(process.cpu_times()[:4])
        return own_s, busy_s


def _devices(num: int) -> list[str]:
    """Return the first ``num`` GPUs that this process may see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(num)] if visible is None else visible.split(",")
    return [name.strip() for name in names if name.strip()][:num]


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
