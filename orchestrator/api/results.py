"""A sweep's results for a notebook: `orchestrator.load("NAME")` gives pandas, pictures and answers."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from orchestrator.api.told import (
    ToldCellRemedies,
    ToldComparison,
    ToldDiagnosis,
    ToldExplanation,
    ToldFittedComparison,
    ToldFront,
    ToldRemedies,
    in_words,
)
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import LEDGER, sweep_folder
from orchestrator.base.space import Axis
from orchestrator.causes.diagnosis import diagnose
from orchestrator.causes.explanation import explain
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.boundary import RowBoundary, boundary
from orchestrator.maps.compared import are_scattered
from orchestrator.maps.comparison import compare
from orchestrator.maps.curve_metrics import CURVE_METRICS, Measured, also_of, measured
from orchestrator.maps.fitted_comparison import compare_fitted
from orchestrator.maps.front import front
from orchestrator.maps.labelled import labelled
from orchestrator.maps.one_value import values_along
from orchestrator.maps.recommendation import Recommendation, recommend
from orchestrator.maps.sensitivity import Sensitivity, lr_sensitivity
from orchestrator.maps.stability import stability_map, sweep_axes
from orchestrator.maps.tables import map_table, trial_table
from orchestrator.render.maps import fraction_axes, heatmap, map_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Result = TypeVar("_Result")
# What a notebook shows to go on with.
_NEXT = ("plot()", "trials", "boundary()", "recommend()", "explain()", "diagnose()", "compare(other)")


class SweepResults:
    """The results of one sweep, read from its ledger on demand. It keeps no file open.

    Raises InputError when ``folder`` has no ledger, and StorageError when it cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / LEDGER).is_file():
            raise InputError(Problem(str(folder), "", f"has no {LEDGER}", "give a sweep's folder: results/NAME"))
        self.name = self._read(lambda ledger: ledger.facts().get("name", self.folder.name))

    def __dir__(self) -> list[str]:
        return [*(name for name in vars(type(self)) if not name.startswith("_")), "folder", "name"]

    def _repr_html_(self) -> str:
        """For a notebook: outcomes, the map, and what to call next."""
        outcomes = self.trials.outcome.dropna().value_counts()
        counts = ", ".join(f"{num} {outcome}" for outcome, num in outcomes.items()) or "no trial is over"
        picture = base64.b64encode(self._read(self._small_map)).decode()
        return (
            f"<p><b>{html.escape(self.name)}</b>: axes {html.escape(self._axes_text())}; {counts}</p>"
            f'<img alt="stability map" src="data:image/png;base64,{picture}">'
            f"<p>{', '.join(f'<code>.{call}</code>' for call in _NEXT)}</p>"
        )

    def _small_map(self, ledger: LedgerReader) -> bytes:
        return heatmap(stability_map(ledger), "png")

    def _axes_text(self) -> str:
        return ", ".join(f"{axis.name} ({len(axis.values)})" for axis in self.axes) or "none"

    def __repr__(self) -> str:
        return f"<sweep {self.name}: {len(self.trials)} trials, axes {self._axes_text()}>"

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per trial: every field of its configuration, and TRIAL_COLUMNS of ``orchestrator.base.columns``."""
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

        ``orchestrator.base.columns`` defines its columns in MAP_COLUMNS.
        """
        return self._read(
            lambda ledger: map_table(stability_map(ledger, x, y, "final_loss", where, reduce, self._measured))
        )

    def plot(
        self,
        x: str | None = None,
        y: str | None = None,
        metric: str = "final_loss",
        where: Mapping[str, Any] | None = None,
        reduce: str = "worst",
        degraded: bool = False,
        ax: Axes | None = None,
    ) -> Figure | Axes:
        """The stability map as a matplotlib figure: the fraction of stable seeds, and ``metric`` beside it.

        With ``ax`` only the fractions are drawn, into axes of your own, which are returned. Raises InputError for an
        axis or a metric that the sweep does not have.
        """

        def drawn(ledger: LedgerReader) -> Figure | Axes:
            found = stability_map(ledger, x, y, metric, where, reduce, self._measured, counts_degraded=degraded)
            return map_figure([found]) if ax is None else fraction_axes(ax, found)

        return self._read(drawn)

    def to_xarray(self) -> xarray.Dataset:
        """The sweep as an xarray.Dataset over its axes: `stable_fraction` and `state` of cells, results by `seed`.

        Raises InputError where its cells are no grid, or xarray is not installed.
        """
        return self._read(labelled)

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

    def recommend(self, margin: float = 2.0, metric: str | None = None, degraded: bool = False) -> Recommendation:
        """The setting of lowest loss that is stable on all seeds and a factor ``margin`` from every edge.

        With ``degraded`` degraded cells are over the edge.
        """
        return self._read(lambda ledger: recommend(ledger, margin, metric, degraded))

    def front(
        self,
        metric: str | None = None,
        against: str = "margin",
        along: str | None = None,
        target: float | None = None,
        degraded: bool = False,
    ) -> ToldFront:
        """The settings that no other beats in both a low loss and ``against``; ``.members`` by ascending loss.

        With ``degraded`` degraded cells are over the edge.
        """
        return self._read(lambda ledger: in_words(ToldFront, front(ledger, metric, against, along, target, degraded)))

    def lr_sensitivity(self, axis: str = "lr", between: tuple[float, float] | None = None) -> list[Sensitivity]:
        """What a wrong learning rate costs, for each setting of the other axes; ``between`` two learning rates."""
        return self._read(lambda ledger: lr_sensitivity(ledger, axis, between))

    def compare(
        self,
        other: SweepResults | None = None,
        x: str | None = None,
        degraded: bool = False,
        along: str | None = None,
        base: Any = None,
    ) -> ToldComparison | ToldFittedComparison:
        """How ``other`` differs from this sweep: on the cells that both have, or on surfaces where cells are scattered.

        Or, without ``other``, how the values of the axis ``along`` differ from ``base``, by default the first. ``x`` is
        the axis of the edge. Raises InputError where they share nothing, and unless one of both is given.
        """
        if (other is None) == (along is None) or (along is None and base is not None):
            what = "compares with another sweep, or the values of an axis of this one"
            raise InputError(Problem(".compare", "", what, "give other, or along and perhaps base"))
        with ExitStack() as stack:
            if along is not None:
                ledgers: Sequence[LedgerReader] = values_along(self.folder / LEDGER, along, base, stack)
            else:
                folders = [each.folder for each in (self, other) if each is not None]
                ledgers = [stack.enter_context(LedgerReader(folder / LEDGER)) for folder in folders]
            if are_scattered(ledgers):
                return in_words(ToldFittedComparison, compare_fitted(ledgers, x, degraded))
            return in_words(ToldComparison, compare(ledgers, x, degraded))

    def diagnose(self, trial: str | None = None, cell: Mapping[str, Any] | None = None) -> ToldDiagnosis | None:
        """Why ``trial``, by its id or a unique prefix, became unstable; or the most typical one, of ``cell`` or of all.

        None where all trials are stable. Raises InputError where there is no such trial or cell.
        """
        found = self._read(lambda ledger: diagnose(ledger, trial, cell))
        return None if found is None else in_words(ToldDiagnosis, found, folder=self.folder)

    def remedy(
        self,
        trial: str | None = None,
        cell: Mapping[str, Any] | None = None,
        tried: Sequence[str] = (),
        at: Sequence[str] = (),
        replicates: int = 3,
        pairs: bool = True,
        allow_import: bool = False,
    ) -> ToldRemedies:
        """What would have saved ``trial``, or the one that ``diagnose`` takes: remedies tried on forks of it.

        Trains the forks that are missing, in this process. ``tried`` and ``at`` are as on the command line: "lr=x0.5",
        "-50"; ``allow_import`` lets code be imported that the sweep's file names. Raises InputError for a trial that is
        stable, and for a remedy that it does not take.
        """
        from orchestrator.causes.remedies.request import RemedyRequest
        from orchestrator.causes.remedies.training import find_remedies  # they bring what trains

        asked = RemedyRequest(tuple(tried), tuple(at), replicates, pairs, allow_import)
        return in_words(ToldRemedies, find_remedies(self.folder, trial, cell or {}, asked))

    def remedies(
        self,
        cell: Mapping[str, Any] | None = None,
        tried: Sequence[str] = (),
        at: Sequence[str] = (),
        replicates: int = 3,
        pairs: bool = False,
        allow_import: bool = False,
    ) -> ToldCellRemedies:
        """The cheapest remedy of each cell of the map that is not stable, of those with the values of ``cell``.

        ``.cells`` has an entry for each, and ``.table`` a row. Trains the forks that are missing, in this process;
        ``allow_import`` is as in ``remedy``. Raises InputError where no cell is unstable, and for a remedy that no cell
        takes.
        """
        from orchestrator.causes.remedies.training import (
            RemedyRequest,
            find_cell_remedies,  # they bring what trains
        )

        asked = RemedyRequest(tuple(tried), tuple(at), replicates, pairs, allow_import, each_cell=True)
        return in_words(ToldCellRemedies, find_cell_remedies(self.folder, cell or {}, asked))

    def explain(self, x: str | None = None, y: str | None = None) -> ToldExplanation:
        """The mechanism that rules each cell of the map that is not stable."""
        return self._read(lambda ledger: in_words(ToldExplanation, explain(ledger, x, y)))

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


def load(name: str | Path, results: str | Path = "results") -> SweepResults:
    """The results of a sweep, by its name in ``results`` or by its folder. Raises InputError when there are none."""
    return SweepResults(sweep_folder(str(name), Path(results)))
