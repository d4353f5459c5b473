"""How far Adam's second moment lags behind the gradient, from the gradient norms alone.

The sum of v over all coordinates follows the square of the gradient's norm by the recursion of v itself, so that
every step's |g|^2 / sum(vhat) is known exactly wherever every step's norm was kept. Bai et al. (arXiv 2506.04805):
far below one v decays on its own, and far above one it lags behind a gradient that grows.
"""

from __future__ import annotations

import numpy as np

# Shapes: N steps.

_CLIP_SLACK = 1e-6  # as in torch.nn.utils.clip_grad_norm_


def clip_factors(norm_N: np.ndarray, clip: float | None) -> np.ndarray:
    """What clipping to the global norm ``clip`` multiplied each gradient by, (N,): 1 where it did nothing."""
    if clip is None:
        return np.ones(len(norm_N))
    return np.minimum(1.0, clip / (norm_N + _CLIP_SLACK))


def second_moment_sums(norm_N: np.ndarray, beta2: float, clip: float | None) -> np.ndarray:
    """The sum of the debiased second moment over all coordinates after each step, (N,); v starts at zero.

    ``norm_N`` are the norms of all gradients from the first step on, before clipping. A gradient that is not
    finite changes nothing, and has no sum of its own: NaN.
    """
    squares_N = np.square(norm_N * clip_factors(norm_N, clip))
    sums_N = np.full(len(norm_N), np.nan)
    total, left = 0.0, 1.0  # the sum of v, and the share of it that is still the zero it began with
    for i, square in enumerate(squares_N.tolist()):
        if not np.isfinite(square):
            continue
        total = beta2 * total + (1 - beta2) * square
        left *= beta2
        sums_N[i] = total / (1 - left)
    return sums_N


def v_lags(norm_N: np.ndarray, beta2: float, clip: float | None) -> np.ndarray:
    """|g|^2 / sum(vhat) of each step, (N,), the gradient as it was clipped; between 0 and 1 / (1 - beta2)."""
    sums_N = second_moment_sums(norm_N, beta2, clip)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.square(norm_N * clip_factors(norm_N, clip)) / sums_N
