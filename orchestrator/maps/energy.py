"""The energy of a sweep's trials, as far as counters of the machine measured it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.base.query import reported
from orchestrator.base.trial_result import TrialResult
from orchestrator.ledger.facts import INTENSITY_FACT

_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Energy:
    """The joules of the ``num_measured`` of ``num_finished`` trials that have any; ``lost_joules`` of diverged ones.

    ``joules_per_step`` is the mean of a trial's step. ``grams_per_kwh`` is None without a carbon intensity.
    """

    joules: float
    lost_joules: float
    joules_per_step: float | None
    num_measured: int
    num_finished: int
    grams_per_kwh: float | None = None

    @reported
    def grams(self) -> float | None:
        """Grams of carbon dioxide, or None if the intensity of the electricity is unknown."""
        return None if self.grams_per_kwh is None else self.joules / _JOULES_PER_KWH * self.grams_per_kwh

    def text(self, joules: float) -> str:
        """Return an amount of energy in watt-hours, with its grams if these are known."""
        watt_hours = f"{joules / 3600:,.3g} Wh"
        if self.grams_per_kwh is None:
            return watt_hours
        return f"{watt_hours} ({joules / _JOULES_PER_KWH * self.grams_per_kwh:,.3g} g of CO2)"

    @property
    def coverage(self) -> str:
        """How many trials were measured, if not all; else empty."""
        is_whole = self.num_measured == self.num_finished
        return "" if is_whole else f" in {self.num_measured} of {self.num_finished} finished trials"


def energy_of(trials: Sequence[TrialResult], facts: Mapping[str, str]) -> Energy | None:
    """Return the energy of a sweep with these ``facts``, or None if none of its trials has a measured one."""
    finished = [trial for trial in trials if trial.outcome is not None]
    measured = [(trial, trial.joules) for trial in finished if trial.joules is not None]
    if not measured:
        return None
    joules, steps = sum(spent for _, spent in measured), sum(trial.steps_done or 0 for trial, _ in measured)
    return Energy(
        joules=joules,
        lost_joules=sum(spent for trial, spent in measured if trial.outcome == "diverged"),
        joules_per_step=joules / steps if steps else None,
        num_measured=len(measured),
        num_finished=len(finished),
        grams_per_kwh=json.loads(facts.get(INTENSITY_FACT, "null")),
    )
