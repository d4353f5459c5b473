"""The form of the laws over sizes: the prior of exponents, groups of sizes, and bends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.maps.ladder import Ladder, log_size
from orchestrator.maps.law import Exponents, Law, fit_centres, fit_edges, fit_edges_over_time
from orchestrator.maps.lengths import STEPS

_ASSUMED_SD = 1e-3
_LEAST_OPTIMA = 2


@dataclass(frozen=True, slots=True)
class Form:
    """The form of the laws: the prior of exponents, axes whose values make groups, and axes that may bend."""

    prior: Exponents
    shared: tuple[int, ...]
    bent: tuple[int, ...]

    def edge_law(self, ladder: Ladder) -> Law:
        """Fit the law of the edge, which is straight in sizes: brackets are too coarse to show a bend."""
        size_NK, log_rate_N, num_stable_N = ladder.outcomes()
        if not ladder.lengths:
            return fit_edges(size_NK, log_rate_N, num_stable_N == 0, self.prior, self.shared)
        shared = [axis for axis in self.shared if ladder.names[axis] != STEPS]
        log_step_J = np.log(ladder.lengths)
        return fit_edges_over_time(size_NK[:, :-1], log_rate_N, num_stable_N, log_step_J, self.prior, shared)

    def best_law(self, ladder: Ladder) -> Law | None:
        """Fit the law of the centres of flat optima; None without a centre on the axis, or for another length."""
        optima = ladder.optima()
        if ladder.lengths or len(optima) < _LEAST_OPTIMA or all(optimum.beyond for _, optimum in optima):
            return None
        sizes = np.array([log_size(size.setting, ladder.names) for size, _ in optima])
        known = [(optimum.centre, optimum.spread, optimum.beyond) for _, optimum in optima]
        centre_R, spread_R, beyond_R = np.array(known).T
        return fit_centres(sizes, centre_R, spread_R, beyond_R, self.prior, self.shared, self.bent)


def usual_prior(num: int, assumed: Sequence[int] = (), assume: float | None = None) -> Exponents:
    """Return the prior of ``num`` exponents, those at the places ``assumed`` being ``assume``."""
    prior = Exponents.usual(num)
    if assume is None:
        return prior
    is_assumed_K = np.isin(np.arange(num), assumed)
    return Exponents(np.where(is_assumed_K, assume, prior.mean_K), np.where(is_assumed_K, _ASSUMED_SD, prior.sd_K))
