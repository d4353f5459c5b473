"""The second moment of a run: its settings, and how far it lags behind the gradient.

The sum of v over all coordinates follows |g|^2 by the recursion of v itself, so the gradient norms of all steps give
|g|^2 / sum(vhat) exactly. Bai et al. (arXiv 2506.04805): far below one v only decays, far above one it lags behind a
growing gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from objectives.base import Objective
from objectives.optimizers.facts import facts_of
from orchestrator.base.space import is_number

# Shapes: N steps.

_CLIP_SLACK = 1e-6  # as in torch.nn.utils.clip_grad_norm_
# Settings that change what enters v, so that v does not follow from the norms.
_INTO_V = ("zclip", "adagc", "rollback")


def number_of(config: Mapping[str, Any], name: str) -> float | None:
    """The setting ``name`` if it is a finite number."""
    value = config.get(name)
    return float(value) if value is not None and is_number(value) and math.isfinite(value) else None


def is_adam(config: Mapping[str, Any]) -> bool | None:
    """Whether steps are divided by the root of a second moment; None if unknown."""
    optimizer = config.get("optimizer")
    return facts_of(optimizer).divides_by_root(config) if isinstance(optimizer, str) else None


def averages_squares(objective: Objective | None, config: Mapping[str, Any]) -> bool | None:
    """Whether steps are divided by the root of an average of g^2 with decay beta2; None if unknown."""
    optimizer = config.get("optimizer")
    if not isinstance(optimizer, str):
        return None
    return facts_of(optimizer).averages_squares({**config, "beta2": beta2_of(objective, config)})


def beta2_of(objective: Objective | None, config: Mapping[str, Any]) -> float | None:
    """The decay of the second moment, also if given as a half-life in tokens. None if unknown."""
    half_life = number_of(config, "beta2_half_life")
    if objective is not None and half_life is not None and half_life > 0:
        return 0.5 ** (objective.tokens_per_step(config) / half_life)
    beta2 = number_of(config, "beta2")
    return beta2 if beta2 is not None and 0 <= beta2 < 1 else None


def follows_from_norms(objective: Objective | None, config: Mapping[str, Any]) -> bool:
    """Whether the gradient norms determine v: plain Adam from v = 0 with at most global clipping, throughout."""
    if not facts_of(str(config.get("optimizer"))).v_follows_from_norms or beta2_of(objective, config) is None:
        return False
    if any(config.get(name) for name in _INTO_V) or sets(config, "beta2", "beta2_half_life", "clip", *_INTO_V):
        return False
    if any(
        entry.get("reset") in ("moments", "second_moment") or entry.get("rescale")
        for entry in config.get("interventions") or ()
    ):
        return False
    decays_gradient = config.get("weight_decay_kind") == "coupled" and config.get("weight_decay")
    return not decays_gradient and config.get("second_moment_start", "zero") == "zero"


def sets(config: Mapping[str, Any], *names: str) -> bool:
    """Whether an intervention sets one of the fields ``names``."""
    return any(name in entry.get("set", ()) for entry in config.get("interventions") or () for name in names)


def clip_factors(norm_N: np.ndarray, clip: float | None) -> np.ndarray:
    """The factors by which clipping to the global norm ``clip`` multiplies each gradient, (N,)."""
    if clip is None:
        return np.ones(len(norm_N))
    return np.minimum(1.0, clip / (norm_N + _CLIP_SLACK))


def second_moment_sums(norm_N: np.ndarray, beta2: float, clip: float | None) -> np.ndarray:
    """The sum of the debiased second moment over all coordinates after each step, (N,); v starts at zero.

    ``norm_N`` are the norms of all gradients from the first step, before clipping. A non-finite gradient changes
    nothing, and its own sum is NaN.
    """
    squares_N = _clipped_squares(norm_N, clip)
    sums_N = np.full(len(norm_N), np.nan)
    total, left = 0.0, 1.0  # the sum of v, and the remaining weight of its initial zero
    for i, square in enumerate(squares_N.tolist()):
        if not np.isfinite(square):
            continue
        total = beta2 * total + (1 - beta2) * square
        left *= beta2
        sums_N[i] = total / (1 - left)
    return sums_N


def v_lags(norm_N: np.ndarray, beta2: float, clip: float | None) -> np.ndarray:
    """|g|^2 / sum(vhat) of each step, (N,), with the clipped gradient; between 0 and 1 / (1 - beta2)."""
    sums_N = second_moment_sums(norm_N, beta2, clip)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _clipped_squares(norm_N, clip) / sums_N


def _clipped_squares(norm_N: np.ndarray, clip: float | None) -> np.ndarray:
    """The squared norms after clipping, (N,); NaN for an infinite norm, which clipping makes 0 times infinity."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.square(norm_N * clip_factors(norm_N, clip))
