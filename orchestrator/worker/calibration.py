"""Measure structures of packs in a process of their own, as the first pack of a run would, so that `plan` knows a time.

The asking process imports no torch. What is measured goes into the cache of this machine, where a run finds it too.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from objectives.base import Kernels, Objective, load_objective
from objectives.training_config import TrainingConfig
from orchestrator.base.environment import OWN_PYTHON
from orchestrator.worker.machine import (
    Machine,
    Measurement,
    load_measurements,
    measure,
    measure_widths,
    prepare_process,
    save_measurements,
)

MEASURED_S = 2.0  # of all structures together, except that each has one width at least
_LIMIT_S = 60.0  # of the process; a step that takes seconds is not waited for longer


@dataclass(frozen=True, slots=True)
class Structure:
    """A structure to measure: a configuration of it, how many of its trials there are, and their kernels."""

    config: dict[str, Any]
    num_members: int
    kernels: Kernels


def calibrate(objective: Objective, cpus: int, structures: Sequence[Structure]) -> None:
    """Measure ``structures`` on this machine; what fails or takes too long stays unknown."""
    request = {
        "objective": objective.reference or objective.name,
        "folder": objective.folder,
        "cpus": cpus,
        "structures": [[each.config, each.num_members, each.kernels] for each in structures],
    }
    command = [*OWN_PYTHON, "-m", __name__]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(command, input=json.dumps(request), text=True, capture_output=True, timeout=_LIMIT_S)


class _OutOfTime(MemoryError):
    """Ends the measurement of wider packs, as if there were no memory for them."""


def _main() -> None:
    request = json.load(sys.stdin)
    prepare_process()
    import torch

    torch.set_num_threads(request["cpus"])
    objective = load_objective(request["objective"], request["folder"])
    each_s = MEASURED_S / len(request["structures"])
    for settings, num_members, kernels in request["structures"]:
        with contextlib.suppress(MemoryError, RuntimeError):
            _measure(objective, objective.config_of(settings), request["cpus"], num_members, kernels, each_s)


def _measure(
    objective: Objective, config: TrainingConfig, cpus: int, num_members: int, kernels: Kernels, seconds: float
) -> None:
    """Measure one structure for about ``seconds``, and keep what is known then; a run goes on from there."""
    began = time.process_time()  # so that a busy machine is measured like a quiet one
    known: list[Measurement] = []

    def within_time(*given: Any) -> Measurement:
        if known and time.process_time() - began > seconds:
            raise _OutOfTime
        known.append(measure(*given))
        return known[-1]

    machine = replace(Machine(), measure=within_time)
    before = load_measurements(objective, config, "cpu", cpus, kernels)
    found = measure_widths(objective, config, "cpu", num_members, before, machine, kernels)
    if found != before:
        save_measurements(objective, config, "cpu", cpus, found, kernels)


if __name__ == "__main__":
    _main()
