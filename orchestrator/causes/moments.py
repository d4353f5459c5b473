"""How far Adam's second moment lags behind the gradient, from the gradient norms alone.

The sum of v over all coordinates follows |g|^2 by the recursion of v itself, so |g|^2 / sum(vhat) of every step is
known exactly where every step's norm was recorded. Bai et al. (arXiv 2506.04805): far below one v only decays, far
above one it lags behind a growing gradient.
"""

from __future__ import annotations

import numpy as np

# Shapes: N steps.

_CLIP_SLACK = 1e-6  # as in torch.nn.utils.clip_grad_norm_


def clip_factors(norm_N: np.ndarray, clip: float | None) -> np.ndarray:
    """The factor of clipping to the global norm ``clip`` on each gradient, (N,): 1 where it did nothing."""
    if clip is None:
        return np.ones(len(norm_N))
    return np.minimum(1.0, clip / (norm_N + _CLIP_SLACK))


def second_moment_sums(norm_N: np.ndarray, beta2: float, clip: float | None) -> np.ndarray:
    """The sum of the debiased second moment over all coordinates after each step, (N,); v starts at zero.

    ``norm_N`` are the norms of all gradients from the first step on, before clipping. A non-finite gradient changes
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
    """The squared norms after clipping, (N,); NaN for an infinite one, which clipping makes 0 times infinity."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.square(norm_N * clip_factors(norm_N, clip))
