"""A sweep's results for a notebook: `orchestrator.load("results/NAME")` gives pandas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from orchestrator.errors import InputError, Problem
from orchestrator.files import LEDGER
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.boundary import RowBoundary, boundary
from orchestrator.maps.curve_metrics import CURVE_METRICS, Measured, also_of, measured
from orchestrator.maps.front import Front, front
from orchestrator.maps.recommendation import Recommendation, recommend
from orchestrator.maps.sensitivity import Sensitivity, lr_sensitivity
from orchestrator.maps.stability import stability_map, sweep_axes
from orchestrator.maps.tables import map_table, trial_table
from orchestrator.space import Axis

_Result = TypeVar("_Result")


class SweepResults:
    """The results of one sweep, read from its ledger on demand. It keeps no file open.

    Raises InputError when ``folder`` has no ledger, and StorageError when it cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / LEDGER).is_file():
            raise InputError(Problem(str(folder), "", f"has no {LEDGER}", "give a sweep's folder: results/NAME"))
        self.name = self._read(lambda ledger: ledger.facts().get("name", self.folder.name))

    def __repr__(self) -> str:
        axes = ", ".join(f"{axis.name} ({len(axis.values)})" for axis in self.axes)
        return f"<sweep {self.name}: {len(self.trials)} trials, axes {axes or 'none'}>"

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per trial: every field of its configuration, and TRIAL_COLUMNS of ``orchestrator.columns``."""
        return self._read(trial_table)

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The sweep's axes, with their values and scales."""
        return tuple(self._read(sweep_axes))

    def trace(self, trial_id: str) -> pd.DataFrame:
        """The curve of one trial: step, loss, grad_norm and any other columns of its objective.

        Raises InputError for a trial that the sweep does not have.
        """
        self._require(trial_id)
        return pd.DataFrame(self._read(lambda ledger: ledger.trace(trial_id)))

    def telemetry(self, trial_id: str) -> pd.DataFrame:
        """Readings of one trial every few steps, possibly none: step, v_lag/GROUP, lambda_max, ...

        Raises InputError for a trial that the sweep does not have.
        """
        self._require(trial_id)
        return pd.DataFrame(self._read(lambda ledger: ledger.telemetry(trial_id)))

    def map(
        self,
        x: str | None = None,
        y: str | None = None,
        where: Mapping[str, Any] | None = None,
        reduce: str = "worst",
    ) -> pd.DataFrame:
        """The stability map over two axes, one row per cell; ``attrs["note"]`` says what was reduced.

        ``orchestrator.columns`` defines its columns in MAP_COLUMNS.
        """
        return self._read(
            lambda ledger: map_table(stability_map(ledger, x, y, "final_loss", where, reduce, self._measured))
        )

    def boundary(
        self,
        x: str | None = None,
        y: str | None = None,
        where: Mapping[str, Any] | None = None,
        reduce: str = "worst",
        degraded: bool = False,
    ) -> list[RowBoundary]:
        """The edges along ``x``, for each row of the map; with ``degraded`` degraded cells are over the edge."""
        return self._read(
            lambda ledger: boundary(stability_map(ledger, x, y, where=where, reduce=reduce, counts_degraded=degraded))
        )

    def recommend(self, at_least: float = 2.0, metric: str | None = None, degraded: bool = False) -> Recommendation:
        """The setting of lowest loss that is stable on all seeds and a factor ``at_least`` from every edge.

        With ``degraded`` degraded cells are over the edge.
        """
        return self._read(lambda ledger: recommend(ledger, at_least, metric, degraded))

    def front(
        self,
        metric: str | None = None,
        against: str = "margin",
        along: str | None = None,
        target: float | None = None,
        degraded: bool = False,
    ) -> Front:
        """The settings that no other beats in both a low loss and ``against``; ``.members`` by ascending loss.

        With ``degraded`` degraded cells are over the edge.
        """
        return self._read(lambda ledger: front(ledger, metric, against, along, target, degraded))

    def lr_sensitivity(self, axis: str = "lr") -> list[Sensitivity]:
        """What a wrong learning rate costs, for each setting of the other axes."""
        return self._read(lambda ledger: lr_sensitivity(ledger, axis))

    def _require(self, trial_id: str) -> None:
        if trial_id not in set(self.trials["trial_id"]):
            raise InputError(Problem(str(self.folder), "", f"has no trial {trial_id!r}", "see .trials.trial_id"))

    @cached_property
    def _measured(self) -> Measured:
        def of_ledger(ledger: LedgerReader) -> Measured:
            return measured(ledger, [*CURVE_METRICS, *also_of(ledger.trials())], self.trials["trial_id"])

        return self._read(of_ledger)

    def _read(self, action: Callable[[LedgerReader], _Result]) -> _Result:
        with LedgerReader(self.folder / LEDGER) as ledger:
            return action(ledger)


def load(folder: str | Path) -> SweepResults:
    """The results of the sweep in ``folder``. Raises InputError when there are none."""
    return SweepResults(folder)
