"""The picture of the loss along straight lines between the weights of trials."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Protocol

from matplotlib.figure import Figure

from orchestrator.render.labels import plain
from orchestrator.render.style import GREY, LINE, LOG_CURVES_FROM, picture

_LETTERS = 16  # of a line of a trial's name


class Path(Protocol):
    """Losses between two trials."""

    @property
    def first(self) -> str:
        """The trial at its start."""

    @property
    def second(self) -> str:
        """The trial at its end."""

    @property
    def shares(self) -> Sequence[float]:
        """Shares of the way."""

    @property
    def losses(self) -> Sequence[float | None]:
        """The loss at each."""


@picture("curves")
def merge_picture(paths: Sequence[Path]) -> Figure:
    """Draw the paths one after the other, with the straight line between the losses of the ends of each."""
    figure = Figure(figsize=(max(5.0, 1.2 * len(paths) + 3), 3.8), layout="constrained")
    axes = figure.subplots()
    shown: list[float] = []
    for number, path in enumerate(paths):
        losses = [math.nan if loss is None else loss for loss in path.losses]
        shown += [loss for loss in losses if math.isfinite(loss)]
        axes.plot([number + share for share in path.shares], losses, ".-", color=LINE, linewidth=1.0)
        axes.plot([number, number + 1], [losses[0], losses[-1]], "--", color=GREY, linewidth=0.8)
    if shown and min(shown) > 0 and max(shown) / min(shown) > LOG_CURVES_FROM:
        axes.set_yscale("log")
    names = [*(path.first for path in paths), *([paths[-1].second] if paths else [])]
    axes.set_xticks(range(len(names)), [plain(textwrap.fill(name, _LETTERS)) for name in names])
    axes.set_ylabel("loss on held-out text")
    axes.set_title("between trials; dashed: without a barrier", fontsize=10)
    axes.grid(alpha=0.25)
    return figure
