"""Curves of single runs: thinned points, and figures of loss and gradient norm with shaded episodes."""

from __future__ import annotations

from pathlib import PurePath

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from orchestrator.maps.replay import Replayed
from orchestrator.render.labels import plain
from orchestrator.render.style import BROKEN, EPISODE, LIMIT, LINE, LOG_CURVES_FROM, MAX_POINTS, SECOND_LINE, picture


@picture("curves")
def trace_figure(replayed: Replayed) -> Figure:
    """Draw the run, with episodes shaded and a line where it would have been stopped."""
    log = replayed.log
    norms = log.grad_norm_N
    has_norms = norms is not None and bool(np.isfinite(norms).any())
    figure = Figure(figsize=(9, 5.2 if has_norms else 3.6), layout="constrained")
    panels = figure.subplots(2 if has_norms else 1, 1, sharex=True, squeeze=False)[:, 0]
    _curve(panels[0], log.step_N, log.loss_N, log.columns.loss or "loss")
    if norms is not None and has_norms:
        _curve(panels[1], log.step_N, norms, log.columns.grad_norm or "gradient norm")
        _norm_rises(panels[1], replayed)
    for panel in panels:
        _episodes(panel, replayed)
    panels[-1].set_xlabel("step")
    title = f"{PurePath(log.name).name}: {replayed.result.outcome}, {replayed.result.reason}"
    figure.suptitle(plain(title), fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        panels[0].legend(handles, labels, loc="best", fontsize=8, framealpha=0.8)
    return figure


def _curve(axes: Axes, step_N: np.ndarray, value_N: np.ndarray, label: str) -> None:
    finite_N = np.isfinite(value_N)
    kept = thinned(np.where(finite_N, value_N, np.nan), MAX_POINTS)
    axes.plot(step_N[kept], np.where(finite_N, value_N, np.nan)[kept], color=LINE, linewidth=0.8)
    low, high = np.min(value_N[finite_N], initial=np.inf), np.max(value_N[finite_N], initial=-np.inf)
    if 0 < low < high and high / low > LOG_CURVES_FROM:
        axes.set_yscale("log")
    if not finite_N.all():
        broken = step_N[~finite_N]
        axes.plot(
            broken, np.ones(len(broken)), "x", color=BROKEN, transform=axes.get_xaxis_transform(), clip_on=False,
            markersize=5, label="not finite",
        )  # fmt: skip
    axes.set_ylabel(plain(label))
    axes.grid(alpha=0.25)


def _norm_rises(axes: Axes, replayed: Replayed) -> None:
    steps = replayed.record.norm_rises
    if steps:
        axes.plot(
            steps, np.zeros(len(steps)), "^", color=SECOND_LINE, transform=axes.get_xaxis_transform(), clip_on=False,
            markersize=6, label="up by half against the last 128 points",
        )  # fmt: skip
        axes.legend(loc="best", fontsize=8, framealpha=0.8)


def _episodes(axes: Axes, replayed: Replayed) -> None:
    last_step = int(replayed.log.step_N[-1])
    record = replayed.record
    for label, episodes, alpha in (("episode", record.episodes, 0.35), ("faint episode", record.faint, 0.1)):
        for i, episode in enumerate(episodes):
            end = last_step if episode.recovery_step is None else episode.recovery_step
            shown = label if i == 0 else None
            axes.axvspan(episode.onset_step, end, color=EPISODE, alpha=alpha, linewidth=0.8, label=shown)
    onset = replayed.result.onset_step
    if replayed.result.outcome == "diverged" and onset is not None:
        axes.axvspan(
            onset, last_step, facecolor="none", edgecolor=LIMIT, hatch="///", alpha=0.3, label="never came back"
        )
    if replayed.record.lost_step is not None:
        wrong = ", wrongly" if replayed.is_wrong_stop else ""
        axes.axvline(
            replayed.record.lost_step, color=LIMIT, linestyle="--", linewidth=1.2, label=f"would stop here{wrong}"
        )


def thinned(value_N: np.ndarray, max_points: int) -> np.ndarray:
    """Which points to draw, at most about ``max_points``: the lowest and the highest of each interval.

    Returns ascending indices. Non-finite points are dropped where there are too many points.
    """
    return thinned_rows(value_N[None], max_points)[0]


def thinned_rows(value_RN: np.ndarray, max_points: int) -> list[np.ndarray]:
    """The same for each of R rows of N points."""
    num_rows, num = value_RN.shape
    if num <= max_points:
        return [np.arange(num)] * num_rows
    size = -(-num // max(1, max_points // 2))
    padded = np.full((num_rows, -(-num // size) * size), np.nan)
    padded[:, :num] = value_RN
    stretch_RBS = padded.reshape(num_rows, -1, size)
    is_finite_RBS = np.isfinite(stretch_RBS)
    start_B = np.arange(stretch_RBS.shape[1]) * size
    lowest_RB = start_B + np.where(is_finite_RBS, stretch_RBS, np.inf).argmin(axis=2)
    highest_RB = start_B + np.where(is_finite_RBS, stretch_RBS, -np.inf).argmax(axis=2)
    is_kept_RN = np.zeros((num_rows, num + 1), dtype=bool)
    row_R1, has_any_RB = np.arange(num_rows)[:, None], is_finite_RBS.any(axis=2)
    for found_RB in (lowest_RB, highest_RB):
        is_kept_RN[row_R1, np.where(has_any_RB, found_RB, num)] = True  # what an interval lacks goes beside the points
    is_kept_RN[:, [0, num - 1]] = True
    return [np.flatnonzero(is_kept_N[:num]) for is_kept_N in is_kept_RN]
