"""The coefficients of a law, given the scatter between sizes and hypotheses about the rest, all hypotheses at once.

Axes of arrays: H hypotheses, R sizes (rows), D coefficients, M points of a grid of log rates, S draws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.special import gammaln
from scipy.stats import chi2, norm, qmc

GRID_STEP = 0.03
PROPOSALS = 256
SEED = 0
_CURVATURE_SPAN = 0.12  # a bracket's likelihood is flat inside, so curvature is read over a span
_NEWTON_STEPS = 30
_LEAST_RISE = 1e-3  # of a log density, for which a further step is made
_HALVINGS = 8
_DEGREES, _WIDER = 5.0, 1.2  # Student's t around the mode, from which coefficients are proposed


@dataclass(frozen=True, slots=True)
class Posterior:
    """The coefficients under each hypothesis: a design, and the log likelihood of each row over its log rate.

    ``design_HRD`` or ``log_HRM`` may be one for all hypotheses.
    """

    design_HRD: np.ndarray
    grid_M: np.ndarray
    log_HRM: np.ndarray
    mean_D: np.ndarray
    precision_D: np.ndarray

    def modes(self, start_HD: np.ndarray) -> np.ndarray:
        """Climb by Newton's steps, halved until they rise; the densities are log-concave."""
        here_HD, value_H = start_HD.copy(), self._log_density(start_HD[:, None])[:, 0]
        rises_H = np.arange(len(here_HD))
        for _ in range(_NEWTON_STEPS):
            some = self.of(rises_H)
            gradient_HD, hessian_HDD = some._slopes(here_HD[rises_H])
            step_HD = np.linalg.solve(hessian_HDD, gradient_HD[..., None])[..., 0]
            tried_HSD = here_HD[rises_H, None] + step_HD[:, None] * 0.5 ** np.arange(_HALVINGS)[:, None]
            values_HS = some._log_density(tried_HSD)
            best_H = values_HS.argmax(axis=1)
            best_value_H = values_HS[np.arange(len(best_H)), best_H]
            is_better_H = best_value_H > value_H[rises_H] + _LEAST_RISE
            if not is_better_H.any():
                break
            rises_H, best_H = rises_H[is_better_H], best_H[is_better_H]
            here_HD[rises_H] = tried_HSD[is_better_H][np.arange(len(best_H)), best_H]
            value_H[rises_H] = best_value_H[is_better_H]
        return here_HD

    def of(self, some_H: np.ndarray) -> Posterior:
        """Return the posterior of some of the hypotheses."""
        design_HRD = self.design_HRD if len(self.design_HRD) == 1 else self.design_HRD[some_H]
        log_HRM = self.log_HRM if len(self.log_HRM) == 1 else self.log_HRM[some_H]
        return replace(self, design_HRD=design_HRD, log_HRM=log_HRM)

    def sample(self, mode_HD: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients proposed around each mode, and their log weights, whose sum is the log evidence."""
        num = mode_HD.shape[1]
        _, hessian_HDD = self._slopes(mode_HD)
        root_HDD = _WIDER * np.linalg.cholesky(np.linalg.inv(hessian_HDD))
        base_SD = _student_draws(num)
        sample_HSD = mode_HD[:, None] + base_SD @ root_HDD.swapaxes(1, 2)
        log_proposal_S = -0.5 * (_DEGREES + num) * np.log1p((base_SD**2).sum(axis=1) / _DEGREES)
        log_proposal_S += gammaln((_DEGREES + num) / 2) - gammaln(_DEGREES / 2) - num / 2 * np.log(_DEGREES / 2)
        log_volume_H = np.log(np.diagonal(root_HDD, axis1=1, axis2=2)).sum(axis=1)
        log_proposal_HS = log_proposal_S - log_volume_H[:, None]
        return sample_HSD, self._log_density(sample_HSD) - log_proposal_HS - np.log(len(base_SD))

    def _log_density(self, coefficient_HSD: np.ndarray) -> np.ndarray:
        place_HSR = (coefficient_HSD @ self.design_HRD.swapaxes(1, 2) - self.grid_M[0]) / GRID_STEP
        index_HSR = np.clip(place_HSR.astype(int), 0, len(self.grid_M) - 2)
        place_HSR -= index_HSR
        index_HSR += self._starts()[:, None]
        flat = self.log_HRM.reshape(-1)
        below_HSR, above_HSR = flat[index_HSR], flat[index_HSR + 1]
        log_HS = (below_HSR + place_HSR * (above_HSR - below_HSR)).sum(axis=2)
        log_HS += 0.5 * np.log(self.precision_D).sum()
        return np.asarray(log_HS - 0.5 * (coefficient_HSD - self.mean_D) ** 2 @ self.precision_D)

    def _slopes(self, coefficient_HD: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients of the log densities, and the negatives of their second derivatives."""
        span = round(_CURVATURE_SPAN / GRID_STEP)
        design_HDR = self.design_HRD.swapaxes(1, 2)
        place_HR = (coefficient_HD[:, None] @ design_HDR)[:, 0]
        place_HR = np.rint((place_HR - self.grid_M[0]) / GRID_STEP).astype(int)
        place_HR = np.clip(place_HR, span, len(self.grid_M) - 1 - span) + self._starts()
        flat = self.log_HRM.reshape(-1)
        low_HR, mid_HR, high_HR = (flat[place_HR + shift] for shift in (-span, 0, span))
        slope_HR = (high_HR - low_HR) / (2 * _CURVATURE_SPAN)
        curvature_HR = np.maximum((2 * mid_HR - low_HR - high_HR) / _CURVATURE_SPAN**2, 1e-6)
        gradient_HD = (slope_HR[:, None] @ self.design_HRD)[:, 0] - self.precision_D * (coefficient_HD - self.mean_D)
        hessian_HDD = (design_HDR * curvature_HR[:, None]) @ self.design_HRD + np.diag(self.precision_D)
        return gradient_HD, hessian_HDD

    def _starts(self) -> np.ndarray:
        """Where each row of each hypothesis begins in the flat table."""
        num_hypotheses, num_rows, num_points = self.log_HRM.shape
        return np.arange(num_hypotheses * num_rows).reshape(num_hypotheses, num_rows) * num_points


@cache
def _student_draws(num: int) -> np.ndarray:
    """Draws from Student's t in ``num`` dimensions, the same in each fit, so that answers repeat."""
    uniform_SD = qmc.Sobol(num + 1, seed=SEED).random(PROPOSALS)
    scale_S = np.sqrt(chi2.ppf(uniform_SD[:, -1], _DEGREES) / _DEGREES)
    return np.asarray(norm.ppf(uniform_SD[:, :-1]) / scale_S[:, None])
