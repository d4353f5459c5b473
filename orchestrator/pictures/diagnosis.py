"""The picture of a diagnosis: loss, gradient norm, v-lag, curvature against its threshold, and the effective step."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from orchestrator.diagnosis.diagnosis import Diagnosis
from orchestrator.diagnosis.evidence import Evidence
from orchestrator.diagnosis.mechanisms.catalogue import title_of
from orchestrator.diagnosis.mechanisms.thresholds import DECAYED, LAGGING
from orchestrator.diagnosis.series import Series
from orchestrator.diagnosis.small_sweep import CURVATURE_EVERY
from orchestrator.errors import printable
from orchestrator.pictures.thinning import thinned
from orchestrator.space import format_value

_MAX_POINTS = 4000  # of a drawn line; more cannot be seen
_LOG_FROM = 20.0  # ratio of values from which an axis is logarithmic
# The colours of the pictures of single runs, from Okabe and Ito's colour-blind safe set.
_LINE, _SECOND, _SHADE, _LIMIT, _BROKEN = "#0072B2", "#009E73", "#E69F00", "#D55E00", "#000000"
_SAVE_OPTIONS = {
    "png": {"dpi": 120, "metadata": {"Software": None}},
    "svg": {"metadata": {"Date": None}},
    "pdf": {"metadata": {"CreationDate": None}},
}
_BEFORE, _AFTER = 120, 60  # steps about the onset that are drawn beside the whole run
_FAR = 2  # times as long as that a run must be
_DOTS_BELOW = 60  # readings that are drawn as dots too

Window = tuple[int, int]  # of steps: the first, and one more than the last


def diagnosis_figure(found: Diagnosis, file_format: str) -> bytes:
    """The five curves under each other, episodes shaded, the onset and where the cause began as lines.

    The same ledger gives the same bytes. Raises ValueError for an unknown format.
    """
    if file_format not in _SAVE_OPTIONS:
        raise ValueError(f"format {file_format!r} is unknown: use one of {', '.join(_SAVE_OPTIONS)}")
    with matplotlib.rc_context({"svg.hashsalt": "sweep", "font.size": 9}):
        buffer = io.BytesIO()
        _draw(found).savefig(buffer, format=file_format, **_SAVE_OPTIONS[file_format])
    return buffer.getvalue()


def _draw(found: Diagnosis) -> Figure:
    """The whole run, and beside it what happened about the onset where that is a small part of it."""
    evidence = found.evidence
    windows = [(0, max(2, evidence.end))]
    if evidence.onset is not None and evidence.end > _FAR * _BEFORE:
        windows.append((max(0, evidence.onset - _BEFORE), min(evidence.end, evidence.onset + _AFTER)))
    figure = Figure(figsize=(9 if len(windows) == 1 else 13, 11), layout="constrained")
    grid = figure.subplots(len(_PANELS), len(windows), sharex="col", squeeze=False, width_ratios=(3, 2)[: len(windows)])
    for column, window in enumerate(windows):
        for axes, draw in zip(grid[:, column], _PANELS, strict=True):
            draw(axes, evidence, window)
            axes.grid(alpha=0.25)
            _mark(axes, found, window)
        grid[0, column].set_xlim(window[0], window[1] - 1)
        grid[-1, column].set_xlabel("step" if column == 0 else "step, about the onset")
    figure.suptitle(_plain(_title(found)), fontsize=10)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _title(found: Diagnosis) -> str:
    trial = found.trial
    setting = " ".join(f"{name}={format_value(value)}" for name, value in trial["cell"].items())
    cause = (
        f"{title_of(found.cause.mechanism)}, {found.cause.when}" if found.cause is not None else "not enough evidence"
    )
    said = "stable" if found.evidence.outcome == "stable" else f"{trial['outcome']}: {cause}"
    return f"{found.sweep} {setting} seed={trial['seed']}\n{said}"


def _loss(axes: Axes, evidence: Evidence, window: Window) -> None:
    _curve(axes, evidence.loss, window, "loss")


def _gradient(axes: Axes, evidence: Evidence, window: Window) -> None:
    _curve(axes, evidence.grad_norm, window, "gradient norm")
    clip = evidence.number("clip")
    if clip is not None and len(evidence.grad_norm):
        _limit(axes, clip, "clip")


def _v_lag(axes: Axes, evidence: Evidence, window: Window) -> None:
    _curve(axes, evidence.v_lag, window, "v-lag: |g|^2 / sum v", none="no second moment, or not known")
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
    for name, colour in (("lambda_max", _LINE), ("lambda_grad", _SECOND)):
        readings = evidence.column(name).between(*window)
        # What is negative has no place on this scale: a gap.
        shown_N = np.where(readings.value_N > 0, readings.value_N, np.nan)
        axes.plot(readings.step_N, shown_N, ".-", color=colour, linewidth=0.8, markersize=3, label=name)
    looks = {"color": _LIMIT, "linewidth": 1.0, "markersize": 1}
    axes.plot(threshold.step_N, threshold.value_N, ".--", label="threshold 2 / lr", **looks)
    _logarithmic(axes)
    axes.legend(loc="best", fontsize=7, framealpha=0.8)


def _effective_step(axes: Axes, evidence: Evidence, window: Window) -> None:
    label = "effective step:\nlr" if evidence.is_adam is False else "effective step:\nlr / root of sum v"
    _curve(axes, evidence.effective_step, window, label, none="not known without the second moment")


_PANELS: tuple[Callable[[Axes, Evidence, Window], None], ...] = (_loss, _gradient, _v_lag, _curvature, _effective_step)


def _curve(axes: Axes, values: Series, window: Window, label: str, none: str = "not recorded") -> None:
    axes.set_ylabel(label)
    values = values.between(*window)
    if not len(values):
        _nothing(axes, none)
        return
    kept = thinned(values.value_N, _MAX_POINTS)
    mark = "." if len(values) < _DOTS_BELOW else ""
    axes.plot(values.step_N[kept], values.value_N[kept], f"{mark}-", color=_LINE, linewidth=0.8, markersize=3)
    low, high = values.smallest(), values.largest()
    if 0 < low < high and high / low > _LOG_FROM:
        _logarithmic(axes)


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.minorticks_off()  # over ten decades they are a grey edge, and take longer than all the rest


def _limit(axes: Axes, value: float, text: str, linestyle: str = "--") -> None:
    axes.axhline(value, color=_LIMIT, linewidth=0.8, linestyle=linestyle)
    axes.annotate(
        text, (0.01, value), xycoords=axes.get_yaxis_transform(), va="bottom", fontsize=7, color=_LIMIT,
        bbox={"facecolor": "white", "alpha": 0.7, "pad": 0.5, "linewidth": 0},
    )  # fmt: skip


def _nothing(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#666666")
    axes.set_yticks([])


def _mark(axes: Axes, found: Diagnosis, window: Window) -> None:
    """Shade the episodes, and draw where the onset is, where the cause began and where the loss broke off."""
    evidence, (first, end) = found.evidence, window

    def line(step: int | None, label: str, **looks: Any) -> None:
        if step is not None and first <= step < end:
            axes.axvline(step, linewidth=1.0, label=label, **looks)

    shaded = [(onset, evidence.end - 1 if recovery is None else recovery) for onset, recovery in evidence.episodes]
    for i, (onset, recovery) in enumerate((a, b) for a, b in shaded if a < end and b >= first):
        axes.axvspan(onset, recovery, color=_SHADE, alpha=0.35, linewidth=0.8, label="episode" if i == 0 else None)
    line(evidence.onset, "onset", color=_LIMIT)
    if found.cause is not None:
        line(found.cause.began_step, "the cause began", color=_BROKEN, linestyle=":")
    last = int(evidence.loss.step_N[-1]) if len(evidence.loss) else evidence.end
    if first <= last + 1 < min(end, evidence.end):
        axes.plot(
            [last + 1], [1], "x", color=_BROKEN, transform=axes.get_xaxis_transform(), clip_on=False, markersize=5,
            label="not finite",
        )  # fmt: skip


def _plain(text: str) -> str:
    """``text`` that matplotlib takes as it is: no formulas, no characters that its font lacks."""
    shown = "".join(c if c.isascii() else "?" for c in printable(text))
    return shown.replace("$", r"\$")
