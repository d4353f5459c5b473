"""The noise of losses: robust deviations, and the tail above them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from orchestrator.detection.config import StoppingConfig

_TO_DEVIATION = 1.4826  # from the median absolute deviation to the standard deviation of a normal distribution
# A second measure of the noise, for losses with two levels, whose deviation collapses: a spike must be 2.6 times as
# high as the upper tenth of the noise. That is 3.3 deviations of normal noise and rarely decides.
UPPER_TAIL, TAIL_FACTOR = 0.9, 2.6
_LOWER_TAIL = 0.2  # if half of the losses are on the upper level, the lower ones show its height
_MOST_PRINTED = 8  # times that a logger may print one loss
_LARGEST_RATIO = 50.0  # logarithm of the largest factor that noise is given


def middle(ordered: Sequence[float]) -> float:
    """Return the median of sorted numbers."""
    size = len(ordered)
    if size % 2:
        return ordered[size // 2]
    below, above = ordered[size // 2 - 1], ordered[size // 2]
    return below if below == above else below / 2 + above / 2  # their sum may overflow


def deviation(ordered: Sequence[float]) -> float:
    """Return the scaled median absolute deviation of sorted numbers, a robust standard deviation."""
    center = middle(ordered)
    return _TO_DEVIATION * middle(sorted([abs(value - center) for value in ordered]))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the number below which a ``share`` of sorted numbers lies."""
    return ordered[int(share * (len(ordered) - 1))]


def noise(steps: Iterable[float], share: float) -> tuple[float, float]:
    """Return robust deviation, and the quantile below which a ``share`` lies, of a series' noise without slow rises.

    ``steps`` are the differences of successive numbers, whose deviation is root two times the noise.
    """
    steps = sorted(map(abs, steps))
    if not steps:
        return 0.0, 0.0
    return _TO_DEVIATION * middle(steps) / math.sqrt(2), quantile(steps, share)


def noise_spread(residuals: Sequence[float], rules: StoppingConfig, num_settled: int | None = None) -> float:
    """Return the rise that is beyond the noise of ``residuals``, the last ``num_settled`` of them after a descent."""
    ordered = sorted(residuals)
    settled = ordered if num_settled is None or num_settled >= len(residuals) else sorted(residuals[-num_settled:])
    # Noise with two levels may have its middle far above the lower of the two medians. A descent at the start, whose
    # residuals are below zero, looks like this.
    center = middle(ordered)
    tail = max(quantile(ordered, UPPER_TAIL) - min(center, 0.0), middle(settled) - quantile(settled, _LOWER_TAIL))
    return max(rules.spike_sigma * deviation(ordered), TAIL_FACTOR * tail)


def noise_ratio(accepted: Sequence[float], rules: StoppingConfig) -> float:
    """Return the same for noise that is proportional to the level of the ``accepted`` losses, relative to it."""
    return math.expm1(min(rules.spike_sigma * relative_noise(accepted, rules), _LARGEST_RATIO))


def relative_noise(accepted: Sequence[float], rules: StoppingConfig) -> float:
    """Return the deviation of the logarithms of the ``accepted`` losses."""
    losses = _printed_once(accepted)
    logs = (math.log(after / before) for before, after in itertools.pairwise(losses) if after / before > 0)
    spread, tail = noise(logs, UPPER_TAIL)
    return max(spread, TAIL_FACTOR * tail / math.sqrt(2) / rules.spike_sigma)


def noise_of_start(accepted: Sequence[float], losses: Sequence[float], rules: StoppingConfig) -> float:
    """Return the same by second differences, which a steep descent does not widen.

    The ``accepted`` losses leave out the tall ones, and so the middle of all ``losses`` counts too.
    """
    spread, tail = noise(_bends(accepted), UPPER_TAIL)
    of_all, _ = noise(_bends(losses), UPPER_TAIL)
    return max(spread, of_all, TAIL_FACTOR * tail / math.sqrt(2) / rules.spike_sigma) / math.sqrt(3)


def _bends(losses: Sequence[float]) -> Iterator[float]:
    logs = [math.log(loss) for loss in losses if loss > 0]
    return (before - 2 * here + after for before, here, after in zip(logs, logs[1:], logs[2:], strict=False))


def _printed_once(accepted: Sequence[float]) -> list[float]:
    """Return the losses above zero, one that is printed several times as one, unless the loss stands still."""
    losses = [loss for loss in accepted if loss > 0]
    once = [loss for loss, _ in itertools.groupby(losses)]
    return once if len(once) * _MOST_PRINTED >= len(losses) else losses
