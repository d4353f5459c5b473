"""The cells a setting is chosen from: stable on all seeds, with their losses and their margins to the edge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.query import reported
from orchestrator.base.space import Axis, Cell, is_ordered
from orchestrator.base.trial_result import TrialResult
from orchestrator.maps.boundary import Margin, margins
from orchestrator.maps.fitted import Fit, fit
from orchestrator.maps.fitted_margins import fitted_margins
from orchestrator.maps.rule import STABLE, StableRule
from orchestrator.maps.table import SweepTable, tied_settings

LOSSES = ("final_loss", "validation_loss", "best_loss")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cell whose seeds are all stable: its median loss, and its margins along the axes.

    ``tied`` are the values that follow from those of the axes: of tied fields, and ``effective_NAME`` of tied axes.
    """

    setting: Cell
    loss: float
    num_seeds: int
    margins: tuple[Margin, ...]
    tied: Mapping[str, Any]

    @reported
    def margin(self) -> float:
        """The smallest factor up to which every cell is stable; infinite if that holds to the ends of all axes."""
        return smallest(self.margins)

    @property
    def name(self) -> str:
        """The setting in words."""
        return setting_name(self.setting, self.tied)


@dataclass(frozen=True, slots=True)
class TriedCells:
    """The cells of a sweep by the values of ``axes``, each with its trials and its state, and the loss to compare.

    Trials that repeat a run of their cell are left out. ``ties`` are the sweep's tied fields.
    """

    axes: tuple[Axis, ...]
    metric: str
    trials: Mapping[Cell, list[TrialResult]]
    states: Mapping[Cell, str]
    ties: Mapping[str, str]

    def loss(self, cell: Cell) -> float | None:
        """The median loss of a cell; None if one of its seeds has none."""
        return median_of_all(getattr(trial, self.metric) for trial in self.trials[cell])

    def tied(self, cell: Cell) -> dict[str, Any]:
        """The values that follow from a cell."""
        return tied_settings(self.trials[cell][0], self.ties)


@dataclass(frozen=True, slots=True)
class Margins:
    """How the margins of a setting are found; ``fitted`` is the surface they are from, where cells are scattered."""

    margins_of: Callable[[Cell], list[Margin]]
    fitted: Fit | None


def tried_cells(table: SweepTable, metric: str | None) -> TriedCells:
    """The cells of a sweep, compared by ``metric``, by default the `usual_loss`.

    Raises InputError for a metric that is not a loss, and for a sweep without axes.
    """
    metric = table.usual_loss if metric is None else metric
    if metric not in LOSSES:
        raise InputError(Problem("--metric", "", f"{metric!r} is no loss", f"choose one of {', '.join(LOSSES)}"))
    if not table.axes:
        raise InputError(Problem(str(table.ledger.path), "", "the sweep has no axes, so there is nothing to choose"))
    return TriedCells(table.axes, metric, table.by_cell(), table.states(), table.ties)


def margins_by(table: SweepTable, tried: TriedCells, rule: StableRule = STABLE) -> Margins:
    """How margins are found: from cell to cell on a grid, by a fitted surface where cells are scattered.

    With ``counts_degraded`` degraded cells are over the edge. Raises InputError for too few scattered cells to fit a
    surface to.
    """
    if table.is_grid:
        return Margins(lambda setting: margins(setting, tried.axes, tried.states, rule), None)
    ordered = [axis.name for axis in tried.axes if axis.ends is not None or is_ordered(axis.values)]
    fitted = fit(table, next(iter(ordered), None), rule=rule)
    return Margins(lambda setting: fitted_margins(fitted, setting), fitted)


def candidates(tried: TriedCells, margins_of: Callable[[Cell], list[Margin]]) -> Iterator[Candidate]:
    """The stable cells with a loss on every seed, in the order of the sweep."""
    for cell, trials in tried.trials.items():
        loss = tried.loss(cell)
        if tried.states[cell] == "stable" and loss is not None:
            yield Candidate(cell, loss, len(trials), tuple(margins_of(cell)), tried.tied(cell))


def smallest(margins: Iterable[Margin]) -> float:
    """The smallest factor up to which every cell is stable; infinite where all directions are open."""
    return min((margin.known for margin in margins if not margin.is_open), default=float("inf"))


def median_of_all(values: Iterable[float | None]) -> float | None:
    """The median; None if one of ``values`` is None."""
    found = list(values)
    known = [value for value in found if value is not None]
    return median(known) if known and len(known) == len(found) else None


def setting_name(setting: Cell, tied: Mapping[str, Any]) -> str:
    """A setting in words, with the values that follow from it in brackets."""
    own, following = setting.name, Cell(tied).name
    return f"{own} ({following})" if following else own
