"""The form of the laws over sizes: the prior of exponents, groups of sizes, and bends.

An exponent that is assumed is the edge's. The best rate falls faster: over the widths of `gpt` as width^-1.1 where the
edge goes as width^-0.8, and where the edge does not move, as with muP, the best rate does not either. So its exponent
is taken to be 1.375 times the edge's, within about a quarter. On the public grids of Step Law, which had no part in
that number, the best rates of 429M weights are then predicted within 1 % where they were 9 % high, and of 215M weights
4 % high where they were 6 % low.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.maps.ladder import Ladder, log_size
from orchestrator.maps.law import Exponents, Law, fit_centres, fit_edges, fit_edges_over_time
from orchestrator.maps.lengths import STEPS
from orchestrator.maps.optimum import FLAT

_ASSUMED_SD = 1e-3
_BEST_STEEPER, _BEST_STEEPER_SD = 1.375, 0.25
_LEAST_OPTIMA = 2
_FEWEST_LOSSES = 3  # an exponent of the loss that is assumed for two sizes would be a guess
LOSS_SCALE = 10.0


@dataclass(frozen=True, slots=True)
class Form:
    """The form of the laws: the prior of exponents, axes whose values make groups, and axes that may bend.

    The exponents of the axes ``assumed`` are not fitted, but given for the edge.
    """

    prior: Exponents
    shared: tuple[int, ...]
    bent: tuple[int, ...]
    assumed: tuple[int, ...] = ()

    @property
    def best_prior(self) -> Exponents:
        """The prior of the exponents of the best rate."""
        mean_K, sd_K = self.prior.mean_K.copy(), self.prior.sd_K.copy()
        for axis in self.assumed:
            sd_K[axis] = max(_ASSUMED_SD, _BEST_STEEPER_SD * abs(mean_K[axis]))
            mean_K[axis] *= _BEST_STEEPER
        return Exponents(mean_K, sd_K)

    def edge_law(self, ladder: Ladder) -> Law:
        """Fit the law of the edge, which is straight in sizes: brackets are too coarse to show a bend."""
        size_NK, log_rate_N, num_stable_N = ladder.outcomes()
        if not ladder.lengths:
            return fit_edges(size_NK, log_rate_N, num_stable_N == 0, self.prior, self.shared)
        shared = [axis for axis in self.shared if ladder.names[axis] != STEPS]
        log_step_J = np.log(ladder.lengths)
        return fit_edges_over_time(size_NK[:, :-1], log_rate_N, num_stable_N, log_step_J, self.prior, shared)

    def loss_law(self, ladder: Ladder) -> Law | None:
        """Fit the law of ``LOSS_SCALE`` times the log of the best loss; None without losses, which are positive.

        Losses scatter less between sizes than rates, and their exponents are smaller, so that they are scaled up to
        what the priors are made for.
        """
        optima = [(size, min(optimum.costs)) for size, optimum in ladder.optima() if not optimum.beyond]
        if (
            ladder.lengths
            or not ladder.measure.is_loss
            or len(optima) < _FEWEST_LOSSES
            or min(c for _, c in optima) <= 0
        ):
            return None
        sizes = np.array([log_size(size.setting, ladder.names) for size, _ in optima])
        log_R = LOSS_SCALE * np.log([cost for _, cost in optima])
        spread_R = np.full(len(log_R), LOSS_SCALE * FLAT)
        usual = Exponents.usual(len(ladder.names))
        return fit_centres(sizes, log_R, spread_R, np.zeros(len(log_R)), usual, self.shared, self.bent)

    def best_law(self, ladder: Ladder) -> Law | None:
        """Fit the law of the centres of flat optima; None without a centre on the axis, or for another length."""
        optima = ladder.optima()
        if ladder.lengths or len(optima) < _LEAST_OPTIMA or all(optimum.beyond for _, optimum in optima):
            return None
        sizes = np.array([log_size(size.setting, ladder.names) for size, _ in optima])
        known = [(optimum.centre, optimum.spread, optimum.beyond) for _, optimum in optima]
        centre_R, spread_R, beyond_R = np.array(known).T
        return fit_centres(sizes, centre_R, spread_R, beyond_R, self.best_prior, self.shared, self.bent)


def usual_prior(num: int, assumed: Sequence[int] = (), assume: float | None = None) -> Exponents:
    """Return the prior of ``num`` exponents, those at the places ``assumed`` being ``assume``."""
    prior = Exponents.usual(num)
    if assume is None:
        return prior
    is_assumed_K = np.isin(np.arange(num), assumed)
    return Exponents(np.where(is_assumed_K, assume, prior.mean_K), np.where(is_assumed_K, _ASSUMED_SD, prior.sd_K))
