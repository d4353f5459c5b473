"""What a trial at a cell is expected to say of the edge.

Letters of shapes: M points, the first C candidates, T targets, R rows, L points of a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import log_ndtr, logit

from orchestrator.surface.surface import Latent, Surface

MAX_TARGETS = 256
_LOGISTIC_SD = 1.6  # a probit with this scale resembles a logit
_MIN_VARIANCE = 1e-9
_FALL = 1 - 2 / math.pi  # near its peak, at z = 0, a share falls as exp(-_FALL z^2)


def choose(
    surface: Surface,
    points: Latent,
    row_length: int,
    room_C: np.ndarray,
    pending: Sequence[int],
    num: int,
    level: float,
) -> list[int]:
    """Choose up to ``num`` candidates by index, best first, each at most ``room_C`` times.

    The candidates are the first C points: rows of ``row_length`` points along the axis, one after the other, or 1 if
    there is no such axis. ``pending`` are indices of points, of trials under way, whose expected outcomes count as
    known. A trial's value is the expected fall of the sum of standard deviations at the targets, one outcome ahead, by
    the variance of the posterior mean of a probit (Letham et al., Look-ahead acquisition functions for Bernoulli level
    set estimation, 2022).
    """
    num_candidates = len(room_C)
    mean_M = points.mean_M - logit(level)
    targets_T, weight_T = _targets(mean_M[:num_candidates], points.sd_M[:num_candidates], row_length)
    outlook = _Outlook(surface, points, mean_M, targets_T, weight_T)
    for index in pending:
        outlook.foresee(index)
    room_C = room_C.copy()
    chosen: list[int] = []
    while len(chosen) < num and room_C.any():
        index = int(np.argmax(np.where(room_C > 0, outlook.gain()[:num_candidates], -math.inf)))
        chosen.append(index)
        room_C[index] -= 1
        outlook.foresee(index)
    return chosen


def _targets(mean_C: np.ndarray, sd_C: np.ndarray, row_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of points at the edge, the least known if there are too many, and their weights.

    The targets of a row are the points next to a crossing of the mean, or the point closest to the level; without rows
    all points are targets. A weight falls with the distance of the mean from the level, in standard deviations.
    """
    weight_C = np.exp(-0.5 * (mean_C / sd_C) ** 2)
    if row_length == 1:
        weight_C /= sd_C
        targets_T = np.argsort(-weight_C * sd_C, kind="stable")[:MAX_TARGETS]
        return targets_T, weight_C[targets_T]
    mean_RL = mean_C.reshape(-1, row_length)
    is_target_RL = np.zeros(mean_RL.shape, dtype=bool)
    rows_X, columns_X = np.nonzero((mean_RL[:, :-1] > 0) != (mean_RL[:, 1:] > 0))
    is_nearer_X = np.abs(mean_RL[rows_X, columns_X + 1]) < np.abs(mean_RL[rows_X, columns_X])
    is_target_RL[rows_X, columns_X + is_nearer_X] = True
    is_target_RL[np.arange(len(mean_RL)), np.argmax(weight_C.reshape(mean_RL.shape), axis=1)] |= ~is_target_RL.any(
        axis=1
    )
    targets_T = np.flatnonzero(is_target_RL)
    order = np.argsort(-weight_C[targets_T] * sd_C[targets_T], kind="stable")[:MAX_TARGETS]
    return targets_T[order], weight_C[targets_T[order]]


class _Outlook:
    """The variances expected after the trials that are under way or chosen.

    Their outcomes will also move the means; ``_moved_M`` is the variance of that movement.
    """

    def __init__(
        self, surface: Surface, points: Latent, mean_M: np.ndarray, targets_T: np.ndarray, weight_T: np.ndarray
    ) -> None:
        self._surface, self._points, self._mean_M, self._weight_T = surface, points, mean_M, weight_T
        self._cross_TM = surface.covariance(points.at(targets_T), points)
        self._variance_T = points.sd_M[targets_T] ** 2
        self._variance_M = points.sd_M**2
        self._moved_M = np.zeros_like(self._variance_M)
        self._observed: list[np.ndarray] = []

    def gain(self) -> np.ndarray:
        """Return the value of a trial at each point, (M,)."""
        left_TM = self._variance_T[:, None] - self._cross_TM**2 * self._share()
        return self._weight_T @ (np.sqrt(self._variance_T)[:, None] - np.sqrt(np.maximum(left_TM, _MIN_VARIANCE)))

    def foresee(self, index: int) -> None:
        """Count one more trial at a point as known."""
        root = math.sqrt(self._share()[index])
        cross_M = self._surface.covariance(self._points.at(np.array([index])), self._points)[0]
        for observed_M in self._observed:
            cross_M = cross_M - observed_M[index] * observed_M
        observed_M = root * cross_M
        observed_T = root * self._cross_TM[:, index]
        self._observed.append(observed_M)
        self._cross_TM -= observed_T[:, None] * observed_M
        self._variance_T = np.maximum(self._variance_T - observed_T**2, _MIN_VARIANCE)
        self._variance_M = np.maximum(self._variance_M - observed_M**2, _MIN_VARIANCE)
        self._moved_M += observed_M**2

    def _share(self) -> np.ndarray:
        return expected_share(self._mean_M, self._variance_M, self._moved_M)


def expected_share(mean_M: np.ndarray, variance_M: np.ndarray, moved_M: np.ndarray) -> np.ndarray:
    """Return how much one outcome reduces a variance, as a factor of the squared covariance, (M,).

    ``moved_M`` is the variance of what other outcomes will have added to the mean by then; the result is averaged over
    it, with the shape of a share near its peak.
    """
    total_M = _LOGISTIC_SD**2 + variance_M
    width_M = np.sqrt(1 + 2 * _FALL * moved_M / total_M)
    z_M = mean_M / np.sqrt(total_M) / width_M
    log_density_M = -0.5 * z_M**2 - 0.5 * math.log(2 * math.pi)
    return np.exp(2 * log_density_M - log_ndtr(z_M) - log_ndtr(-z_M)) / total_M / width_M
