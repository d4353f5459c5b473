"""The picture of a trial's remedies: a square for each remedy and fork step, coloured by the fraction saved."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from orchestrator.base.space import trial_name
from orchestrator.causes.mechanisms.catalogue import title_of
from orchestrator.causes.remedies.results import Remedies
from orchestrator.causes.remedies.tally import Tally
from orchestrator.render.labels import legend_below, plain
from orchestrator.render.style import BLANK, HATCH, HATCH_COLOUR, fraction_colours, ink, picture

_COLOURS = fraction_colours()
_ROW, _COLUMN = 0.34, 1.0  # inches


@picture("map")
def remedies_figure(results: Remedies) -> Figure:
    """Draw remedies by fork step, with saved replicates and final loss, and a frame around the cheapest."""
    steps, names = results.fork_steps, results.names
    alone = {tally.fork_step: tally for tally in results.unchanged}
    rows: list[tuple[str, dict[int, Tally]]] = [(results.unchanged_name, alone)] if alone else []
    rows += [(name, {tally.fork_step: tally for tally in results.tallies if tally.name == name}) for name in names]
    longest = max((len(name) for name, _ in rows), default=10)
    size = (max(6.0, 1.9 + 0.07 * longest + _COLUMN * len(steps)), 2.2 + _ROW * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    best = results.cheapest
    for place, (name, by_step) in enumerate(rows):
        for column, step in enumerate(steps):
            _square(axes, column, place, by_step.get(step))
            if best is not None and (best.remedy.name, best.fork_step) == (name, step):
                frame = Rectangle(
                    (column - 0.5, place - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=2, zorder=3
                )
                axes.add_patch(frame)
    axes.set_xlim(-0.5, len(steps) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [plain(name) for name, _ in rows])
    axes.set_xticks(range(len(steps)), [_head(results, step) for step in steps])
    axes.set_xlabel("step of the fork" + ("" if results.onset is None else ", and from the onset"))
    axes.tick_params(length=0)
    figure.colorbar(ScalarMappable(Normalize(0, 1), _COLOURS), ax=axes, label="fraction of replicates saved")
    figure.suptitle(plain(_title(results)), fontsize=10)
    looks: dict[str, Any] = {"facecolor": BLANK, "edgecolor": HATCH_COLOUR, "hatch": HATCH}
    handles = [Patch(**looks, label="not tried")] if any(set(steps) - by_step.keys() for _, by_step in rows) else []
    if best is not None:
        handles.append(Patch(facecolor="none", edgecolor="black", linewidth=2, label="cheapest that saves all"))
    if any(tally.recovered for tally in results.all_tallies):
        handles.append(Patch(facecolor="none", edgecolor="none", label="+N: left the trend and came back"))
    legend_below(figure, handles)
    return figure


def _square(axes: Axes, column: int, place: int, tally: Tally | None) -> None:
    corner = (column - 0.5, place - 0.5)
    if tally is None:
        axes.add_patch(Rectangle(corner, 1, 1, facecolor=BLANK, edgecolor=HATCH_COLOUR, hatch=HATCH, linewidth=0))
        return
    colour = _COLOURS(tally.share)
    axes.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white", linewidth=0.8))
    text = f"{tally.counts}\n{tally.short_loss}".rstrip()
    axes.text(column, place, text, ha="center", va="center", fontsize=6.5, color=ink(colour), linespacing=0.95)


def _head(results: Remedies, step: int) -> str:
    return str(step) if results.onset is None else f"{step}\n({step - results.onset:+d})"


def _title(results: Remedies) -> str:
    trial = results.trial
    cause = "no cause" if results.cause is None else title_of(results.cause)
    outcome = trial.outcome if results.onset is None else f"{trial.outcome}, onset at step {results.onset}"
    return f"{results.sweep} {trial_name(trial.cell, trial.seed)}: {outcome}\n{cause}: what saves it"
