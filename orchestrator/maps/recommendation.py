"""The setting with the lowest loss that is stable on every seed and far enough from the edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.in_words import InWords
from orchestrator.base.space import Axis, is_ordered
from orchestrator.base.words import listed, shortened
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.axis_values import value_labels
from orchestrator.maps.boundary import Margin, margin_json
from orchestrator.maps.candidates import Candidate, candidates, margins_by, tried_cells
from orchestrator.maps.fitted import Fit
from orchestrator.maps.fitted_margins import fitted_margin_text

_SHOWN = 3  # rejected candidates, and values without a result, that are listed


@dataclass(frozen=True, slots=True)
class Recommendation(InWords):
    """The recommended setting or None, and what it was chosen from: stable candidates by ascending loss."""

    chosen: Candidate | None
    candidates: tuple[Candidate, ...]
    num_cells: int
    metric: str
    at_least: float
    without_order: tuple[str, ...]
    axes: tuple[Axis, ...]
    fitted: Fit | None  # the surface that margins are from, where cells are scattered

    def lines(self) -> list[str]:
        """What `sweep recommend` prints."""
        return recommendation_lines(self)


def recommend(
    ledger: LedgerReader, at_least: float = 2.0, metric: str | None = None, counts_degraded: bool = False
) -> Recommendation:
    """The stable cell of lowest median ``metric`` around which every cell within a factor ``at_least`` is stable.

    Without a ``metric`` it is the `usual_loss`.

    A direction in which every cell up to the axis's end is stable is open, and passes. Cells that are not known
    (``cell_state``) do not count as stable: an unseen cell is no margin. A degraded cell is never chosen, and with
    ``counts_degraded`` it is over the edge. Scattered cells have margins by a fitted surface. Raises InputError for a
    metric that is not a loss, a factor below 1, and too few scattered cells to fit a surface to.
    """
    if not at_least >= 1:
        raise InputError(Problem("--margin", "", f"{at_least:g} is no factor", "write a number from 1 up, such as 2"))
    tried = tried_cells(ledger, metric)
    way = margins_by(ledger, tried, counts_degraded)
    found = sorted(candidates(tried, way.margins_of), key=lambda candidate: candidate.loss)
    chosen = next((candidate for candidate in found if candidate.margin >= at_least), None)
    axes = tried.axes
    without_order = tuple(axis.name for axis in axes if len(axis.values) > 1 and not is_ordered(axis.values))
    return Recommendation(
        chosen, tuple(found), len(tried.trials), tried.metric, at_least, without_order, axes, way.fitted
    )


def recommendation_json(found: Recommendation) -> dict[str, Any]:
    """The whole answer; a margin that is infinite is not finite JSON, and left to the writer."""
    return {
        "metric": found.metric,
        "margin": found.at_least,
        "is_fitted": found.fitted is not None,
        "num_cells": found.num_cells,
        "chosen": None if found.chosen is None else _candidate_json(found.chosen),
        "candidates": [_candidate_json(candidate) for candidate in found.candidates],
        "without_order": list(found.without_order),
    }


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    return {
        "setting": dict(candidate.setting),
        "tied": dict(candidate.tied),
        "loss": candidate.loss,
        "num_seeds": candidate.num_seeds,
        "margin": candidate.margin,
        "margins": [margin_json(margin) for margin in candidate.margins],
    }


def recommendation_lines(found: Recommendation) -> list[str]:
    """The answer and its evidence in words."""
    loss_name = found.metric.replace("_", " ")
    if found.chosen is None:
        return _none_lines(found, loss_name)
    chosen = found.chosen
    lines = [
        f"{chosen.name}: median {loss_name} {chosen.loss:.4g}, {chosen.num_seeds} of {chosen.num_seeds} seeds stable",
        *(f"  {_margin_text(margin, found)}" for margin in chosen.margins),
    ]
    lines += [f"  {name}: its values have no order, so it has no margin" for name in found.without_order]
    if any(margin.is_open for margin in chosen.margins):
        lines.append("  open directions pass, but nothing is known beyond them: more values on the axis would tell")
    nearer = found.candidates[: found.candidates.index(chosen)]
    if nearer:
        lines.append(f"lower loss, but with an edge or a cell that is not known within a factor {found.at_least:g}:")
        lines += shortened([_nearer_text(candidate, loss_name) for candidate in nearer], _SHOWN)
    if found.fitted is not None:
        lines.append(
            f"margins by a surface fitted to {found.fitted.num_trials} trials; surely: within its 95 % interval"
        )
    lines.append(f"chosen from {len(found.candidates)} cells of {found.num_cells} that are stable on all seeds")
    return lines


def _none_lines(found: Recommendation, loss_name: str) -> list[str]:
    if not found.candidates:
        return [f"none: no cell of {found.num_cells} is stable on all the seeds that were asked for"]
    num = len(found.candidates)
    whose = f"each of the {num} cells that are" if num > 1 else "the one cell that is"
    widest = max(found.candidates, key=lambda candidate: (candidate.margin, -candidate.loss))
    return [
        f"none: {whose} stable on all seeds has an edge or a cell that is not known within a factor {found.at_least:g}",
        "the farthest:",
        _nearer_text(widest, loss_name),
        *(f"    {_margin_text(margin, found)}" for margin in widest.margins),
        f"--margin {widest.margin:.3g} would take it; a finer grid may show more room",
    ]


def _nearer_text(candidate: Candidate, loss_name: str) -> str:
    return f"  {candidate.name}: median {loss_name} {candidate.loss:.4g}, margin {candidate.margin:.3g}"


def _margin_text(margin: Margin, found: Recommendation) -> str:
    return margin_text(margin, found.axes) if found.fitted is None else fitted_margin_text(margin, found.fitted)


def margin_text(margin: Margin, axes: Sequence[Axis]) -> str:
    """One direction of one of ``axes``: how far it is known to be stable, where it learns little, and the edge."""
    (values,) = (axis.values for axis in axes if axis.name == margin.axis)
    labels = dict(zip(values, value_labels(values), strict=True))
    way = f"{margin.axis} {'up' if margin.is_upwards else 'down'}"
    stable = f"stable to {labels[margin.last_stable]} (factor {margin.known:.3g})"
    if margin.first_degraded is not None:
        stable += f", degraded from {labels[margin.first_degraded]}"
    if margin.is_open:
        return f"{way}: open: " + (
            "it is the axis's end" if margin.known == 1 else f"{stable}, where what was tried ends"
        )
    parts = [stable]
    if margin.missing:
        parts.append(f"not known at {listed([labels[value] for value in margin.missing], _SHOWN)}")
    if margin.edge is not None:
        parts.append(f"not at {labels[margin.first_not_stable]} (factor {margin.edge:.3g})")
    return f"{way}: {', '.join(parts)}"
