"""The metric ``margin`` of a search: distances of cells to the edge of stability, on a surface fitted to results.

Letters of shapes: N cells with a result, R all cells, L points along the axis, D axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from orchestrator.base.space import Axis
from orchestrator.search.protocol import CellResult
from orchestrator.surface.fitting import surface_of
from orchestrator.surface.lattice import Lattice, lattice_of
from orchestrator.surface.surface import Crossing, Surface

LEVEL = 0.5  # P(stable) at the edge
OPEN = 1.0  # the margin without an edge in sight: the whole axis


@dataclass(frozen=True)
class EdgeMargins:
    """Margins along one of ``axes``.

    ``is_over_edge`` maps an outcome to whether it is over the edge, or None if unknown. ``have_learned`` says for each
    of all known cells whether it learned enough to deserve a positive margin.
    """

    axes: tuple[Axis, ...]
    along: str
    is_over_edge: Callable[[str], bool | None]
    have_learned: Callable[[Sequence[CellResult]], list[bool]]

    def of(self, known: Sequence[CellResult]) -> list[float]:
        """Return the margin of each cell of ``known``, as a fraction of the axis on its scale, from -1 to 1.

        It is the distance to the nearest edge, where P(stable) = 1/2, given all results of ``known``, and negative over
        the edge. Without an edge in sight it is the whole axis. A cell with a trial over the edge, or one that has not
        learned enough, has a margin of at most zero.
        """
        lattice = lattice_of(self.axes, self.along, None)
        counts = [self._counts(result) for result in known]
        points_RD = np.array([lattice.point(result.cell) for result in known]).reshape(len(known), len(self.axes))
        seen = [(tuple(point), *count) for point, count in zip(points_RD.tolist(), counts, strict=True) if count[1]]
        num_stable, num_judged = sum(stable for _, stable, _ in seen), sum(judged for _, _, judged in seen)
        if num_stable in (0, num_judged):
            # With all results on one side, an edge of the fit would come from the prior.
            margins = [OPEN if num_stable else -OPEN] * len(known)
        else:
            surface = _surface(tuple(sorted(set(seen))), lattice.layout, lattice.resolution)
            margins = _margins(surface, lattice, points_RD)
        return [
            margin if stable == judged and has_learned else min(margin, 0.0)
            for margin, (stable, judged), has_learned in zip(margins, counts, self.have_learned(known), strict=True)
        ]

    def _counts(self, result: CellResult) -> tuple[int, int]:
        """Return the numbers of stable and of judged trials of a cell."""
        sides = [self.is_over_edge(seed.outcome) for seed in result.seeds if seed.outcome is not None]
        return sides.count(False), len(sides) - sides.count(None)


# A search by generations replays all of them for each proposal.
_surface = lru_cache(maxsize=256)(surface_of)


def _margins(surface: Surface, lattice: Lattice, points_RD: np.ndarray) -> list[float]:
    """Return the signed distance of each point to the nearest edge of its row."""
    along = lattice.along
    assert along is not None
    units_L = np.array(lattice.columns[along].units)
    rows = surface.crossings(points_RD, units_L, LEVEL)
    is_stable_R = surface.latent(points_RD).above(LEVEL) > 0
    return [
        _distance(float(point_D[along]), row) * (1 if is_stable else -1)
        for point_D, row, is_stable in zip(points_RD, rows, is_stable_R, strict=True)
    ]


def _distance(unit: float, row: Sequence[Crossing]) -> float:
    return min((abs(unit - crossing.at) for crossing in row if crossing.at is not None), default=OPEN)
