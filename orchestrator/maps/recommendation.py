"""The setting with the lowest loss that is stable on every seed and far enough from the edge."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.query import hidden, reported
from orchestrator.base.space import Axis, is_ordered
from orchestrator.maps.candidates import Candidate, candidates, margins_by, tried_cells
from orchestrator.maps.fitted import Fit
from orchestrator.maps.rule import STABLE, StableRule
from orchestrator.maps.table import SweepTable

_SHOWN = 3  # rejected candidates, and values without a result, that are listed


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended setting or None, and what it was chosen from: stable candidates by ascending loss."""

    chosen: Candidate | None
    candidates: tuple[Candidate, ...]
    num_cells: int
    metric: str
    margin: float
    without_order: tuple[str, ...]
    axes: tuple[Axis, ...] = hidden()
    fitted: Fit | None = hidden()  # the surface that margins are from if cells are scattered

    @reported
    def is_fitted(self) -> bool:
        """Whether margins are from a surface."""
        return self.fitted is not None


def recommend(
    table: SweepTable, at_least: float = 2.0, metric: str | None = None, rule: StableRule = STABLE
) -> Recommendation:
    """The stable cell of lowest median ``metric`` around which every cell within a factor ``at_least`` is stable.

    Without a ``metric`` it is the `usual_loss`.

    A direction in which every cell up to the axis's end is stable is open, and passes. Cells that are not known
    (``cell_state``) do not count as stable: an unseen cell is no margin. A degraded cell is never chosen, and with
    ``counts_degraded`` it is over the edge. Scattered cells have margins by a fitted surface. Raises InputError for a
    metric that is not a loss, a factor below 1, and too few scattered cells to fit a surface to.
    """
    if not at_least >= 1:
        raise InputError(Problem("--margin", "", f"{at_least:g} is no factor", "write a number from 1 up, such as 2"))
    tried = tried_cells(table, metric)
    way = margins_by(table, tried, rule)
    found = sorted(candidates(tried, way.margins_of), key=lambda candidate: candidate.loss)
    chosen = next((candidate for candidate in found if candidate.margin >= at_least), None)
    axes = tried.axes
    without_order = tuple(axis.name for axis in axes if len(axis.values) > 1 and not is_ordered(axis.values))
    return Recommendation(
        chosen, tuple(found), len(tried.trials), tried.metric, at_least, without_order, axes, way.fitted
    )
