"""The metric ``margin`` of a search: how far cells are from the edge of stability, by a surface fitted to results.

Letters of shapes: N cells with a result, R all cells, L places along the axis, D axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import logit

from orchestrator.base.space import Axis
from orchestrator.search.protocol import CellResult
from orchestrator.surface.places import Lattice, lattice_of
from orchestrator.surface.surface import Crossing, Surface, fit_surface

LEVEL = 0.5  # P(stable) at the edge
OPEN = 1.0  # the margin where no edge is in sight: the whole axis

Counts = tuple[tuple[tuple[float, ...], int, int], ...]  # points of cells, with their stable and all judged trials


@dataclass(frozen=True)
class EdgeMargins:
    """Margins along one of ``axes``.

    ``is_over_edge`` says of an outcome whether it is over the edge; None where that cannot be told. ``have_learned``
    says of each cell, beside all others, whether it learned enough for its margin to be worth something.
    """

    axes: tuple[Axis, ...]
    along: str
    is_over_edge: Callable[[str], bool | None]
    have_learned: Callable[[Sequence[CellResult]], list[bool]]

    def of(self, known: Sequence[CellResult]) -> list[float]:
        """The margin of each cell of ``known``, as a part of the axis on its scale, from -1 to 1.

        It is the distance to the nearest edge, where P(stable) = 1/2, given all results of ``known``; negative over
        the edge. Where no edge is in sight it is that of the whole axis. A cell with a trial over the edge, or
        one that has not learned enough, has no positive one.
        """
        lattice = lattice_of(self.axes, self.along, None)
        counts = [self._counts(result) for result in known]
        points_RD = np.array([lattice.point(result.cell) for result in known]).reshape(len(known), len(self.axes))
        seen = [(tuple(point), *own) for point, own in zip(points_RD.tolist(), counts, strict=True) if own[1]]
        num_stable, num_judged = sum(stable for _, stable, _ in seen), sum(judged for _, _, judged in seen)
        if num_stable in (0, num_judged):
            # All that is known lies on one side: an edge of the fit would be the prior's.
            margins = [OPEN if num_stable else -OPEN] * len(known)
        else:
            margins = _margins(_surface(self.axes, self.along, tuple(sorted(set(seen)))), lattice, points_RD)
        return [
            margin if stable == judged and has_learned else min(margin, 0.0)
            for margin, (stable, judged), has_learned in zip(margins, counts, self.have_learned(known), strict=True)
        ]

    def _counts(self, result: CellResult) -> tuple[int, int]:
        """The stable and all judged trials of a cell."""
        told = [self.is_over_edge(seed.outcome) for seed in result.seeds if seed.outcome is not None]
        return told.count(False), len(told) - told.count(None)


# A search that goes from generation to generation is led through all of them for each proposal.
@lru_cache(maxsize=256)
def _surface(axes: tuple[Axis, ...], along: str, seen: Counts) -> Surface:
    lattice = lattice_of(axes, along, None)
    points_ND = np.array([point for point, _, _ in seen])
    stable_N = np.array([float(stable) for _, stable, _ in seen])
    judged_N = np.array([float(judged) for _, _, judged in seen])
    return fit_surface(points_ND, stable_N, judged_N, lattice.layout, lattice.resolution)


def _margins(surface: Surface, lattice: Lattice, points_RD: np.ndarray) -> list[float]:
    """The signed distance of each point to the nearest edge of its row."""
    along = lattice.along
    assert along is not None
    places_L = np.array(lattice.columns[along].units)
    rows = surface.crossings(points_RD, places_L, LEVEL)
    is_stable_R = surface.latent(points_RD).mean_M > logit(LEVEL)
    return [
        _distance(float(point_D[along]), row) * (1 if is_stable else -1)
        for point_D, row, is_stable in zip(points_RD, rows, is_stable_R, strict=True)
    ]


def _distance(place: float, row: Sequence[Crossing]) -> float:
    return min((abs(place - crossing.at) for crossing in row if crossing.at is not None), default=OPEN)
