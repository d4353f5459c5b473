"""A surface of P(stable) over the unit cube of one to four axes: its posterior at points, and its edges.

Letters of shapes: K known points, M points, R rows, L points along a row, D columns of a point, P fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit, ndtr, ndtri

from orchestrator.surface.gaussian import Field, Layout, one_thread

CONFIDENCE = 1.96  # standard deviations around the mean that hold 95 % of a normal distribution
RESOLUTION = 1 / 32  # smallest distance along the axis that a fit resolves, as a fraction of the axis
JITTER = 1e-6  # added to variances
_NUM_BISECTIONS = 40
_BLOCK = 1024  # points that are read at once
_MIN_SHARE = 1e-15
_FLAT = 0.01  # of the mean slope of P


@dataclass(frozen=True, slots=True)
class LatentPart:
    """The posterior at M points if one of the fields is true: means and standard deviations, (M,).

    Covariances follow from ``lifted_MD`` and ``explained_KM``, which is None if it was not asked for.
    """

    mean_M: np.ndarray
    sd_M: np.ndarray
    lifted_MD: np.ndarray
    explained_KM: np.ndarray | None = None

    def at(self, index_T: np.ndarray) -> LatentPart:
        """Select some of the points."""
        explained_KM = None if self.explained_KM is None else self.explained_KM[:, index_T]
        return LatentPart(self.mean_M[index_T], self.sd_M[index_T], self.lifted_MD[index_T], explained_KM)


@dataclass(frozen=True, slots=True)
class Latent:
    """The posterior of the logit of P(stable) at M points: a mixture of normal distributions with weights (P,)."""

    weight_P: np.ndarray
    parts: tuple[LatentPart, ...]

    @property
    def mean_M(self) -> np.ndarray:
        """The mean, (M,)."""
        return _weighted(self.weight_P, [part.mean_M for part in self.parts])

    @property
    def sd_M(self) -> np.ndarray:
        """The standard deviation, (M,)."""
        square_M = _weighted(self.weight_P, [part.sd_M**2 + part.mean_M**2 for part in self.parts])
        return np.sqrt(np.maximum(square_M - self.mean_M**2, JITTER))

    def probability(self) -> np.ndarray:
        """Return P(stable), averaged over the posterior of the latent value (MacKay's approximation), (M,)."""
        each = [expit(part.mean_M / np.sqrt(1 + math.pi / 8 * part.sd_M**2)) for part in self.parts]
        return _weighted(self.weight_P, each)

    def above(self, level: float) -> np.ndarray:
        """Return how surely P(stable) is above ``level``, in standard deviations of a normal distribution, (M,)."""
        share_M = self._share_below(np.full(len(self.parts[0].mean_M), logit(level)))
        return -ndtri(np.clip(share_M, _MIN_SHARE, 1 - _MIN_SHARE))

    def quantile(self, deviations: float) -> np.ndarray:
        """Return the latent value that lies as far up its distribution as ``deviations`` up a normal one, (M,)."""
        low_M = np.min([part.mean_M - 8 * part.sd_M for part in self.parts], axis=0)
        high_M = np.max([part.mean_M + 8 * part.sd_M for part in self.parts], axis=0)
        for _ in range(_NUM_BISECTIONS):
            middle_M = (low_M + high_M) / 2
            is_lower_M = self._share_below(middle_M) < ndtr(deviations)
            low_M, high_M = np.where(is_lower_M, middle_M, low_M), np.where(is_lower_M, high_M, middle_M)
        return (low_M + high_M) / 2

    def at(self, index_T: np.ndarray) -> Latent:
        """Select some of the points."""
        return Latent(self.weight_P, tuple(part.at(index_T) for part in self.parts))

    def _share_below(self, value_M: np.ndarray) -> np.ndarray:
        """Return the probability that the latent value is below another, (M,)."""
        return _weighted(self.weight_P, [ndtr((value_M - part.mean_M) / part.sd_M) for part in self.parts])


@dataclass(frozen=True, slots=True)
class Crossing:
    """A crossing of the level in a row: its coordinate ``at`` in [0, 1] of the axis along, with a 95 % interval.

    An end is infinite if the interval reaches the end of the row. ``at`` is None if the median does not cross the level
    but the row may: a crossing can be anywhere in the interval. ``rises`` means that stability rises along the axis.
    """

    at: float | None
    low: float
    high: float
    rises: bool


@dataclass(frozen=True, slots=True)
class Jump:
    """Where an edge may jump: between the points below and above ``place`` in the numeric ``column``."""

    column: int
    place: float

    def lifted(self, points_MD: np.ndarray) -> np.ndarray:
        """Append the side of the jump as a category."""
        return np.column_stack([points_MD, points_MD[:, self.column] > self.place])


@dataclass(frozen=True, slots=True)
class Fit:
    """A field with its posterior, in terms of covariances with K points.

    ``weight_K`` times them is the mean's distance to the prior mean; the products ``A.T @ A`` of ``explaining_KK``
    times them are the covariance that the counts explain.
    """

    field: Field
    points_KD: np.ndarray
    weight_K: np.ndarray
    explaining_KK: np.ndarray
    jump: Jump | None = None

    def latent(self, points_MD: np.ndarray, has_covariance: bool = False) -> LatentPart:
        """Return the posterior at points, which are read in blocks: K values of many would not fit into memory."""
        lifted_MD = self.jump.lifted(points_MD) if self.jump else points_MD
        mean_M, variance_M = self.field.mean(lifted_MD), np.full(len(lifted_MD), self.field.variance())
        kept = []
        for start in range(0, len(lifted_MD), _BLOCK):
            block = slice(start, start + _BLOCK)
            cross_KM = self.field.kernel(self.points_KD, lifted_MD[block])
            explained_KM = self.explaining_KK @ cross_KM
            mean_M[block] += cross_KM.T @ self.weight_K
            variance_M[block] -= np.einsum("ij,ij->j", explained_KM, explained_KM)
            kept += [explained_KM] if has_covariance else []
        sd_M = np.sqrt(np.maximum(variance_M, JITTER))
        return LatentPart(mean_M, sd_M, lifted_MD, np.hstack(kept) if kept else None)

    def covariance(self, some: LatentPart, others: LatentPart) -> np.ndarray:
        """Return the posterior covariance of points with others, both read with ``has_covariance``."""
        assert some.explained_KM is not None
        assert others.explained_KM is not None
        return self.field.kernel(some.lifted_MD, others.lifted_MD) - some.explained_KM.T @ others.explained_KM


@dataclass(frozen=True, slots=True)
class Surface:
    """The posterior of a field given counts of stable trials: a mixture over what the counts leave open.

    With an axis along, these are the steepness of the transition, the lengths over which the edge varies, and whether
    and where it jumps. A single best fit takes trials that lie near a supposed edge for a steep one, and its intervals
    are too narrow. ``weight_P`` are the posterior weights of the fits.
    """

    layout: Layout
    weight_P: np.ndarray
    fits: tuple[Fit, ...]

    @property
    def best(self) -> Surface:
        """The surface of the fit with the largest weight."""
        return Surface(self.layout, np.ones(1), (self.fits[int(np.argmax(self.weight_P))],))

    @property
    def field(self) -> Field:
        """The field of the fit with the largest weight."""
        return self.best.fits[0].field

    @property
    def has_one_edge(self) -> bool:
        """Whether each row has one edge along the axis; if False, rows may have more."""
        return self.field.layout.along is not None

    def latent(self, points_MD: np.ndarray, has_covariance: bool = False) -> Latent:
        """Return the posterior at points, ``has_covariance`` if points' covariance with each other is needed too."""
        with one_thread():
            return Latent(self.weight_P, tuple(fit.latent(points_MD, has_covariance) for fit in self.fits))

    def covariance(self, some: Latent, others: Latent) -> np.ndarray:
        """Return the posterior covariance of points with others, (M, M). Raises ValueError for more than one fit."""
        (fit,), (a,), (b,) = self.fits, some.parts, others.parts
        return fit.covariance(a, b)

    def mean_deviation(self, points_MD: np.ndarray) -> float:
        """Return the standard deviation of the mean of P(stable) over points, to first order within each fit.

        Points where P hardly moves with the field are left out: their slopes add up to less than 1 % of the whole.
        """
        means, squares = [], []
        for fit, part in zip(self.fits, self.latent(points_MD).parts, strict=True):
            p_M = expit(part.mean_M)
            slope_M = p_M * (1 - p_M)
            is_moved_M = slope_M >= _FLAT * slope_M.mean()
            moved = fit.latent(points_MD[is_moved_M], has_covariance=True)
            slope_N = slope_M[is_moved_M] / len(p_M)
            means.append(p_M.mean())
            squares.append(p_M.mean() ** 2 + slope_N @ fit.covariance(moved, moved) @ slope_N)
        return math.sqrt(max(0.0, float(self.weight_P @ squares - (self.weight_P @ means) ** 2)))

    def crossings(self, rows_RD: np.ndarray, units_L: np.ndarray, level: float = 0.5) -> list[tuple[Crossing, ...]]:
        """Return the edges of each row, where P(stable) crosses ``level``, in order along the axis.

        ``rows_RD`` are points whose column along is ignored; the posterior is interpolated linearly between the
        ascending coordinates ``units_L``. Raises ValueError without an axis along.
        """
        if self.layout.along is None:
            raise ValueError("the surface has no axis along which an edge is looked for")
        points_MD = np.repeat(rows_RD, len(units_L), axis=0)
        points_MD[:, self.layout.along] = np.tile(units_L, len(rows_RD))
        above_RL = self.latent(points_MD).above(level).reshape(len(rows_RD), -1)
        return [crossings_of(units_L, above_L) for above_L in above_RL]


def _weighted(weight_P: np.ndarray, values: Sequence[np.ndarray]) -> np.ndarray:
    return np.einsum("p,p...->...", weight_P, np.array(values))


def crossings_of(units_L: np.ndarray, above_L: np.ndarray) -> tuple[Crossing, ...]:
    """Return the crossings of one row, given how surely its points are above the level."""
    changes = np.flatnonzero((above_L[:-1] > 0) != (above_L[1:] > 0))
    crossings = []
    for i in changes:
        side = 1.0 if above_L[i + 1] > 0 else -1.0
        sure_after_L = side * above_L - CONFIDENCE  # above zero: surely beyond this crossing
        sure_before_L = -side * above_L - CONFIDENCE
        crossings.append(
            Crossing(
                _between(units_L, above_L, int(i)),
                -_first_sure(-units_L[i::-1], sure_before_L[i::-1], sure_before_L[i + 1], -units_L[i + 1]),
                _first_sure(units_L[i + 1 :], sure_after_L[i + 1 :], sure_after_L[i], units_L[i]),
                side > 0,
            )
        )
    return tuple(crossings) or _possible_crossing(units_L, above_L)


def _possible_crossing(units_L: np.ndarray, above_L: np.ndarray) -> tuple[Crossing, ...]:
    """Return the part of a row without a crossing where there may be one, if any."""
    uncertain = np.flatnonzero(np.abs(above_L) < CONFIDENCE)
    if not len(uncertain):
        return ()
    first, last = uncertain[0], uncertain[-1]
    low = -math.inf if first == 0 else float(units_L[first - 1])
    high = math.inf if last == len(units_L) - 1 else float(units_L[last + 1])
    return (Crossing(None, low, high, bool(above_L[last] > above_L[first])),)


def _between(units_L: np.ndarray, values_L: np.ndarray, i: int) -> float:
    """Return where a line from value i to the next one is zero."""
    share = values_L[i] / (values_L[i] - values_L[i + 1])
    return float(units_L[i] + share * (units_L[i + 1] - units_L[i]))


def _first_sure(units: np.ndarray, sure: np.ndarray, before: float, unit_before: float) -> float:
    """Return where values, in the order given, first rise above zero; infinity if they do not."""
    above = np.flatnonzero(sure > 0)
    if not len(above):
        return math.inf
    i = above[0]
    unit, value = (unit_before, before) if i == 0 else (units[i - 1], sure[i - 1])
    if value >= 0:
        return float(unit)
    return float(unit + value / (value - sure[i]) * (units[i] - unit))
