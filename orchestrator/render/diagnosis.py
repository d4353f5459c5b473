"""The picture of a diagnosis: loss, gradient norm, v-lag, curvature against its threshold, and the effective step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from orchestrator.base.space import trial_name
from orchestrator.causes.diagnosis import Diagnosis
from orchestrator.causes.evidence import BY_FORWARDS, BY_PRODUCTS, Evidence
from orchestrator.causes.mechanisms.catalogue import title_of
from orchestrator.causes.mechanisms.limits import DECAYED, LAGGING
from orchestrator.causes.series import Series, known
from orchestrator.causes.small_sweeps import CURVATURE_EVERY
from orchestrator.render.labels import legend_below, plain
from orchestrator.render.style import BROKEN, EPISODE, LIMIT, LINE, LOG_CURVES_FROM, MAX_POINTS, SECOND_LINE, picture
from orchestrator.render.traces import thinned

_BEFORE, _AFTER = 120, 60  # steps around the onset that are drawn next to the whole run
_FAR = 2  # factor by which a run must be longer
_DOTS_BELOW = 60  # with fewer readings each has a dot

Window = tuple[int, int]  # of steps: first, and last + 1


@picture("curves")
def diagnosis_figure(diagnosis: Diagnosis) -> Figure:
    """Draw the five curves one below the other, again for the steps around the onset if these are a small part."""
    evidence = diagnosis.evidence
    windows = [(0, max(2, evidence.end))]
    if evidence.onset is not None and evidence.end > _FAR * _BEFORE:
        windows.append((max(0, evidence.onset - _BEFORE), min(evidence.end, evidence.onset + _AFTER)))
    figure = Figure(figsize=(9 if len(windows) == 1 else 13, 11), layout="constrained")
    grid = figure.subplots(len(_PANELS), len(windows), sharex="col", squeeze=False, width_ratios=(3, 2)[: len(windows)])
    for column, window in enumerate(windows):
        for axes, draw in zip(grid[:, column], _PANELS, strict=True):
            draw(axes, evidence, window)
            axes.grid(alpha=0.25)
            _mark(axes, diagnosis, window)
        grid[0, column].set_xlim(window[0], window[1] - 1)
        grid[-1, column].set_xlabel("step" if column == 0 else "step, around the onset")
    figure.suptitle(plain(_title(diagnosis)), fontsize=10)
    handles, _ = grid[0, 0].get_legend_handles_labels()
    legend_below(figure, handles, most_columns=4)
    return figure


def _title(diagnosis: Diagnosis) -> str:
    trial, cause = diagnosis.trial, "not enough evidence"
    if diagnosis.cause is not None:
        cause = f"{title_of(diagnosis.cause.mechanism)}, {diagnosis.cause.when}"
    outcome = "stable" if diagnosis.evidence.outcome == "stable" else f"{trial.ending}: {cause}"
    return f"{diagnosis.sweep} {trial_name(trial.cell, trial.seed)}\n{outcome}"


def _loss(axes: Axes, evidence: Evidence, window: Window) -> None:
    _curve(axes, evidence.loss, window, "loss")


def _gradient(axes: Axes, evidence: Evidence, window: Window) -> None:
    _curve(axes, evidence.grad_norm, window, "gradient norm")
    clip = evidence.number("clip")
    if clip is not None and len(evidence.grad_norm):
        _limit(axes, clip, "clip")


def _v_lag(axes: Axes, evidence: Evidence, window: Window) -> None:
    _curve(axes, evidence.v_lag, window, "v-lag: |g|^2 / sum v", none="no second moment, or unknown")
    if len(evidence.v_lag):
        _limit(axes, LAGGING, "above: v lags behind g")
        _limit(axes, DECAYED, "below: v decays on its own", linestyle=":")


def _curvature(axes: Axes, evidence: Evidence, window: Window) -> None:
    axes.set_ylabel("curvature")
    threshold = evidence.column("curvature_threshold").between(*window)
    if not len(threshold):
        elsewhere = len(evidence.column("curvature_threshold")) > 0
        remedy = f"not measured: telemetry: {{curvature: {CURVATURE_EVERY}}}"
        _nothing(axes, "not measured here" if elsewhere else remedy)
        return
    for name, colour in ((BY_PRODUCTS[0], LINE), (BY_PRODUCTS[1], SECOND_LINE), (BY_FORWARDS, SECOND_LINE)):
        if not len(evidence.column(name)):
            continue
        readings = evidence.column(name).between(*window)
        # Negative values are gaps on a log scale.
        shown_N = np.where(readings.value_N > 0, readings.value_N, np.nan)
        axes.plot(readings.step_N, shown_N, ".-", color=colour, linewidth=0.8, markersize=3, label=name)
    looks: dict[str, Any] = {"color": LIMIT, "linewidth": 1.0, "markersize": 1}
    axes.plot(threshold.step_N, threshold.value_N, ".--", label="threshold 2 / lr", **looks)
    _logarithmic(axes)
    axes.legend(loc="best", fontsize=7, framealpha=0.8)


def _effective_step(axes: Axes, evidence: Evidence, window: Window) -> None:
    label = "effective step:\nlr" if evidence.is_adam is False else "effective step:\nlr / root of sum v"
    _curve(axes, evidence.effective_step, window, label, none="unknown without the second moment")


_PANELS: tuple[Callable[[Axes, Evidence, Window], None], ...] = (_loss, _gradient, _v_lag, _curvature, _effective_step)


def _curve(axes: Axes, values: Series, window: Window, label: str, none: str = "not recorded") -> None:
    axes.set_ylabel(label)
    values = values.between(*window)
    if not len(values):
        _nothing(axes, none)
        return
    kept = thinned(values.value_N, MAX_POINTS)
    mark = "." if len(values) < _DOTS_BELOW else ""
    axes.plot(values.step_N[kept], values.value_N[kept], f"{mark}-", color=LINE, linewidth=0.8, markersize=3)
    low, high = known(values.smallest()), known(values.largest())
    if 0 < low < high and high / low > LOG_CURVES_FROM:
        _logarithmic(axes)


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.minorticks_off()  # over ten decades they merge into a grey edge, and dominate the drawing time


def _limit(axes: Axes, value: float, text: str, linestyle: str = "--") -> None:
    axes.axhline(value, color=LIMIT, linewidth=0.8, linestyle=linestyle)
    axes.annotate(
        text, (0.01, value), xycoords=axes.get_yaxis_transform(), va="bottom", fontsize=7, color=LIMIT,
        bbox={"facecolor": "white", "alpha": 0.7, "pad": 0.5, "linewidth": 0},
    )  # fmt: skip


def _nothing(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#666666")
    axes.set_yticks([])


def _mark(axes: Axes, diagnosis: Diagnosis, window: Window) -> None:
    """Shade the episodes, and mark the onset, the start of the cause, and a non-finite end of the loss."""
    evidence, (first, end) = diagnosis.evidence, window

    def line(step: int | None, label: str, **looks: Any) -> None:
        if step is not None and first <= step < end:
            axes.axvline(step, linewidth=1.0, label=label, **looks)

    shaded = [
        (onset, evidence.end - 1 if recovery is None else recovery) for onset, recovery in evidence.trial.episodes
    ]
    for i, (onset, recovery) in enumerate((a, b) for a, b in shaded if a < end and b >= first):
        axes.axvspan(onset, recovery, color=EPISODE, alpha=0.35, linewidth=0.8, label="episode" if i == 0 else None)
    line(evidence.onset, "onset", color=LIMIT)
    for i, firing in enumerate(diagnosis.trial.fired):
        line(firing["did"]["at"], "a rule acted" if i == 0 else "_", color=SECOND_LINE, linestyle="-.")
    if diagnosis.cause is not None:
        line(diagnosis.cause.began_step, "the cause began", color=BROKEN, linestyle=":")
    last = int(evidence.loss.step_N[-1]) if len(evidence.loss) else evidence.end
    if first <= last + 1 < min(end, evidence.end):
        axes.plot(
            [last + 1], [1], "x", color=BROKEN, transform=axes.get_xaxis_transform(), clip_on=False, markersize=5,
            label="not finite",
        )  # fmt: skip
