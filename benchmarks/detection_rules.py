"""The rules in use today for detecting spikes and stopping runs, each as published.

A rule takes the losses and the gradient norms (or None) of a run and returns which points it flags and
at which point it would stop the run (None: never). Sources and exact constants stand with each rule.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev

Flags = list[bool]
Rule = Callable[[Sequence[float], Sequence[float] | None], tuple[Flags, int | None]]


def kill_loss_spike(losses: Sequence[float], norms: Sequence[float] | None) -> tuple[Flags, int | None]:
    """llm-foundry's KillLossSpike with its defaults.

    A loss of at least twice the mean of a window is an outlier; more than four in a row stop the run. From the second
    window on, so does a window with half of its losses above the loss cap (the highest loss of the first window, at
    most 10). The window is the larger of 100 batches and 5 % of the run.
    """
    size = max(100, round(0.05 * len(losses)))
    window: deque[float] = deque(maxlen=size)
    flags, in_a_row, stop, cap = [], 0, None, math.inf
    for i, loss in enumerate(losses):
        is_outlier = False
        if len(window) == size:
            if i == size:
                cap = min(10.0, max(window))
            is_outlier = loss >= 2 * fmean(window)
            in_a_row = in_a_row + 1 if is_outlier else 0
            is_high = i >= 2 * size and sum(value > cap for value in window) >= size / 2
            if stop is None and (in_a_row > 4 or is_high):
                stop = i
        flags.append(is_outlier)
        window.append(loss)
    return flags, stop


def six_sigma(losses: Sequence[float], norms: Sequence[float] | None) -> tuple[Flags, int | None]:
    """OLMo-core's StabilityMonitorCallback: over mean + 6 deviations of the last 128, loss or gradient norm.

    It never stops a run.
    """
    flags = [False] * len(losses)
    for series in (losses, norms):
        if series is None:
            continue
        window: deque[float] = deque(maxlen=128)
        for i, value in enumerate(series):
            if len(window) == 128:
                mean, deviation = _moments(window)
                flags[i] |= deviation > 1e-10 and value > mean + 6 * deviation
            window.append(value)
    return flags, None


def _moments(window: Sequence[float]) -> tuple[float, float]:
    """Mean and population deviation, NaN where the window has non-finite values."""
    if not all(map(math.isfinite, window)):
        return math.nan, math.nan
    return fmean(window), pstdev(window)


def loss_watchdog(losses: Sequence[float], norms: Sequence[float] | None) -> tuple[Flags, int | None]:
    """Axolotl's loss_watchdog with its suggested threshold: three losses in a row over twice the first."""
    flags = [loss > 2 * losses[0] for loss in losses]
    stops = [i for i in range(2, len(flags)) if all(flags[i - 2 : i + 1])]
    return flags, stops[0] if stops else None


def lightning_spike(losses: Sequence[float], norms: Sequence[float] | None) -> tuple[Flags, int | None]:
    """Lightning's SpikeDetection with its defaults; a spike raises, so the first one stops the run.

    A spike is not finite; or it does not improve on the last loss and differs from the running mean of
    10 by at least twice that mean. One loss of warm-up.
    """
    window: deque[float] = deque(maxlen=10)
    flags, last = [], math.inf
    for i, loss in enumerate(losses):
        is_spike = not math.isfinite(loss)
        if i >= 1 and not is_spike and loss > last:
            mean = fmean(window)
            is_spike = abs(loss - mean) >= 2.0 * abs(mean)
        flags.append(is_spike)
        if not is_spike:
            window.append(loss)
            last = loss
    return flags, flags.index(True) if any(flags) else None


def z_score_ema(losses: Sequence[float], norms: Sequence[float] | None) -> tuple[Flags, int | None]:
    """ZClip's statistic on the loss: z over 2.5 of moving averages, alpha 0.97, 25 of warm-up.

    The averages are updated with the clipped value. It clips, and never stops a run.
    """
    warm_up, alpha, limit = 25, 0.97, 2.5
    start = [loss for loss in losses[:warm_up] if math.isfinite(loss)]
    flags = [False] * len(losses)
    if len(start) < warm_up:
        return flags, None
    mean, variance = fmean(start), pstdev(start) ** 2
    for i in range(warm_up, len(losses)):
        loss = losses[i]
        if not math.isfinite(loss):
            flags[i] = True
            continue
        deviation = math.sqrt(variance)
        z = (loss - mean) / (deviation + 1e-6)
        flags[i] = z > limit
        fed = mean + limit * deviation / (z / limit) if flags[i] else loss
        mean = alpha * mean + (1 - alpha) * fed
        variance = alpha * variance + (1 - alpha) * (fed - mean) ** 2
    return flags, None


def threshold_pruner(losses: Sequence[float], norms: Sequence[float] | None) -> tuple[Flags, int | None]:
    """Optuna's ThresholdPruner: prunes at the first loss over a bound, or NaN. The bound is the first loss."""
    flags = [math.isnan(loss) or loss > losses[0] for loss in losses]
    return flags, flags.index(True) if any(flags) else None


def worse_than_best(losses: Sequence[float], norms: Sequence[float] | None) -> tuple[Flags, int | None]:
    """A pruner in the style of Optuna's MedianPruner: prunes at a loss of twice the best so far, or NaN.

    After 20 points of warm-up.
    """
    flags, best = [], math.inf
    for i, loss in enumerate(losses):
        flags.append(math.isnan(loss) or (i >= 20 and loss > 2 * best))
        best = min(best, loss) if math.isfinite(loss) else best
    return flags, flags.index(True) if any(flags) else None


RULES: Mapping[str, Rule] = {
    "llm-foundry KillLossSpike": kill_loss_spike,
    "OLMo-core 6 sigma over 128": six_sigma,
    "loss watchdog, 2x the first": loss_watchdog,
    "Lightning SpikeDetection": lightning_spike,
    "z-score of an EMA (ZClip)": z_score_ema,
    "Optuna ThresholdPruner": threshold_pruner,
    "twice the best (pruner)": worse_than_best,
}
