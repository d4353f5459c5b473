"""How long packs will train before any has been timed: from a few measured structures, and how far it may be off.

A structure is measured as the first pack of a run would be. Of many structures a few are: the others follow by a power
of their shapes' product, fitted to the measured ones. Imports no torch and no numpy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from objectives.base import Rounding
from objectives.native.cache import cache_folder
from objectives.training_config import TrainingConfig
from orchestrator.base.environment import is_installed
from orchestrator.base.errors import StorageError
from orchestrator.base.files import atomic_write
from orchestrator.base.space import Trial, canonical_text
from orchestrator.driver.packing import expected_width, grouped, rounding_of, structure_of
from orchestrator.sweepfile.custom_trainer import CustomTrainer
from orchestrator.sweepfile.spec import Sweep
from orchestrator.worker.calibration import Structure, calibrate
from orchestrator.worker.machine import Measurement, load_measurements

_MOST_MEASURED = 4  # structures that a plan measures
_MEASURED_WITHIN, _GUESSED_WITHIN = 1.5, 3.0  # factors: of measured structures, and of one measured for several
_CURVED_WITHIN = 2.0  # with measurements of the curvature, whose time differs more
CHECKED_WITHIN = 2.0  # of trials like the one that was checked
_POWERS = (0.0, 1.5)  # of the product of shapes
_NO_SIZES = {"steps", "rollback_every", "merge_every", "merge_last", "validation_batches"}


@dataclass(frozen=True, slots=True)
class PlannedTime:
    """Member-steps per second of a worker and the seconds of all, None if unknown.

    They may be off by the factor ``within``, None as after a run; if it ``is_bound`` training will be faster.
    """

    member_steps_per_second: float | None = None
    seconds: float | None = None
    within: float | None = None
    is_bound: bool = False


@dataclass(slots=True)
class _Structure:
    """The trials of one structure, and what is known of its speed."""

    trials: Sequence[Trial]
    config: TrainingConfig
    rounding: Rounding
    known: Sequence[Measurement]
    width: int

    @property
    def seconds(self) -> float | None:
        """Seconds of one step of a member in a pack of its width, or of the widest that was measured below it."""
        below = [each for each in self.known if each.width <= self.width] or self.known[:1]
        return 1 / below[-1].member_steps_per_second if below else None


def measure_structures(sweep: Sweep, missing: Sequence[Trial]) -> None:
    """Measure a few structures of the ``missing`` trials, where they train on a CPU of this machine."""
    if isinstance(sweep.objective, CustomTrainer) or not missing:
        return
    if not _trains_as_measured(sweep) or not is_installed("torch"):
        return
    structures = _structures(sweep, missing)
    costs = _costs(structures)
    order = [structure for _, structure in sorted(zip(costs, structures, strict=True), key=lambda pair: pair[0])]
    most = min(_MOST_MEASURED, len(order))
    if sum(bool(each.known) for each in order) >= most:
        return
    places = {round(n * (len(order) - 1) / max(1, most - 1)) for n in range(most)}
    chosen = [order[place] for place in sorted(places) if not order[place].known]
    calibrate(
        sweep.objective,
        sweep.resources.cpus,
        [Structure(dict(each.trials[0].config), len(each.trials), each.rounding.measured) for each in chosen],
    )


def planned_time(
    sweep: Sweep, missing: Sequence[Trial], num_steps: int, at_a_time: int, as_run: float | None
) -> PlannedTime:
    """Return how long ``num_steps`` of the ``missing`` trials take, with so many packs at a time.

    It goes by the speed ``as_run`` if there is one, else by what is measured or was checked on this machine.
    """
    if not missing:
        return PlannedTime(as_run, 0.0)
    if as_run is not None:
        return PlannedTime(as_run, num_steps / (as_run * at_a_time))
    if isinstance(sweep.objective, CustomTrainer):
        checked = trial_time(sweep.objective)
        seconds = None if checked is None else sum(checked.of(trial.steps) for trial in missing) / at_a_time
        return PlannedTime(None, seconds, CHECKED_WITHIN if checked else None)
    if not _trains_as_measured(sweep):
        return PlannedTime()
    structures = _structures(sweep, missing)
    costs = _costs(structures)
    known = [(cost, each.seconds) for cost, each in zip(costs, structures, strict=True) if each.seconds is not None]
    if not known:
        return PlannedTime()
    power, offset, off = _line([(cost, math.log(seconds)) for cost, seconds in known])
    within = _MEASURED_WITHIN
    if len(known) < len(structures):
        within = _GUESSED_WITHIN if len(known) < 3 else max(_MEASURED_WITHIN, math.exp(2 * off))
    total = steps = 0.0
    for cost, each in zip(costs, structures, strict=True):
        per_step = each.seconds or math.exp(offset + power * cost)
        num = sum(trial.steps for trial in each.trials)
        factor = sweep.telemetry.time_factor(native=each.rounding.kernels == "native")
        total, steps = total + num * per_step * factor, steps + num
    is_bound = any(not each.rounding.is_measured for each in structures)
    speed = steps / total
    if sweep.telemetry.curvature:
        within = max(within, _CURVED_WITHIN)
    return PlannedTime(speed, num_steps / (speed * at_a_time), within, is_bound)


def _trains_as_measured(sweep: Sweep) -> bool:
    """Whether a pack trains in one process on a CPU of this machine."""
    return not sweep.resources.gpus and sweep.resources.most_workers == 1


def _structures(sweep: Sweep, missing: Sequence[Trial]) -> list[_Structure]:
    found = []
    for trials in grouped(missing, lambda trial: structure_of(sweep, trial)):
        assert not isinstance(sweep.objective, CustomTrainer)
        config, rounding = sweep.objective.config_of(trials[0].config), rounding_of(sweep, trials[0])
        known = load_measurements(sweep.objective, config, "cpu", sweep.resources.cpus, rounding.measured)
        width = min(expected_width(sweep, trials[0]), max(1, len(trials)))
        found.append(_Structure(trials, config, rounding, known, width))
    return found


def _costs(structures: Sequence[_Structure]) -> list[float]:
    """The logarithm of the product of what differs in size: width, depth, context, batch size and the like."""
    settings: list[Mapping[str, Any]] = [each.config.model_dump() for each in structures]

    def is_size(name: str) -> bool:
        values = [each.get(name) for each in settings]
        return len({*map(str, values)}) > 1 and all(
            isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in values
        )

    sizes = [name for name in settings[0] if name not in _NO_SIZES and is_size(name)] if settings else []
    return [sum(math.log(each[name]) for name in sizes) for each in settings]


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """The slope, offset and standard deviation of a line through ``points``, with a slope that a cost can have."""
    x = sum(cost for cost, _ in points) / len(points)
    y = sum(value for _, value in points) / len(points)
    spread = sum((cost - x) ** 2 for cost, _ in points)
    slope = sum((cost - x) * (value - y) for cost, value in points) / spread if spread else 1.0
    slope = min(max(slope, _POWERS[0]), _POWERS[1])
    offset = y - slope * x
    off = sum((value - offset - slope * cost) ** 2 for cost, value in points) / max(1, len(points) - 2)
    return slope, offset, math.sqrt(off)


# --- custom trainers ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrialTime:
    """Seconds of a trial of a custom trainer: until its first step, and of each step."""

    start_s: float
    step_s: float

    def of(self, steps: int) -> float:
        """Return the seconds of a trial of so many steps."""
        return self.start_s + steps * self.step_s


def keep_trial_time(trainer: CustomTrainer, time: TrialTime) -> None:
    """Keep what a check measured on this machine, for plans; without a place for it, nothing happens."""
    path = _path_of(trainer)
    with contextlib.suppress(StorageError):
        atomic_write(path, json.dumps([time.start_s, time.step_s]).encode())


def trial_time(trainer: CustomTrainer) -> TrialTime | None:
    """Return what the last check of this trainer measured on this machine, or None without one."""
    try:
        return TrialTime(*map(float, json.loads(_path_of(trainer).read_bytes())))
    except (OSError, ValueError, TypeError):
        return None


def _path_of(trainer: CustomTrainer) -> Path:
    """A file for each way to call a script, on a machine of this many cores."""
    content = canonical_text([trainer.section.model_dump(mode="json"), str(trainer.folder), os.cpu_count()])
    return cache_folder() / "checks" / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.json"
