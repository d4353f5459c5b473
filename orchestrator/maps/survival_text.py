"""Survival in words and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.base.cell import Cell
from orchestrator.base.space import format_value, is_number
from orchestrator.base.words import columns, count
from orchestrator.maps.survival import Group, Share, Survival

_MOST_ROWS = 40
_FAILS = 0.5  # predicted P(stable) below which a cell is named as one that would fail


def survival_lines(found: Survival) -> Iterator[str]:
    """Survival as a table, what its cells do not know, and the fit with its doubts."""
    left_out = f"; {found.num_left_out} without an outcome that tells are left out" if found.num_left_out else ""
    yield f"{found.name}: {found.num} runs of up to {found.longest} steps, {found.num_onsets} with an onset{left_out}"
    yield "P(stable to a step) with 95 % intervals (Kaplan-Meier); in the last column what the fit below predicts:"
    yield from _table(found)
    yield from _unknown(found)
    if found.shape is not None:
        yield from _fit_lines(found)
    for doubt in found.doubts:
        yield f"{'no prediction' if found.shape is None else 'do not trust the prediction'}: {doubt}"
    if found.shape is not None:
        yield from _failing(found)


def _table(found: Survival) -> Iterator[str]:
    shown = found.groups[:_MOST_ROWS]
    names = [_name(group) for group in shown]
    rows = [["", *(f"to {step}" for step in found.steps), f"to {found.until}"]]
    for name, group in zip(names, shown, strict=True):
        predicted = "-" if group.predicted is None else f"{group.predicted.share:.2f}"
        rows.append([name, *map(_share, group.shares), predicted])
    yield from columns(rows, indent=2)
    if len(found.groups) > len(shown):
        yield f"  and {len(found.groups) - len(shown)} more: --axis NAME pools cells, --json FILE has all of them"


def _name(group: Group) -> str:
    return Cell(group.setting).name or "all"


def _share(share: Share | None) -> str:
    return "-" if share is None else f"{share.share:.2f} ({share.low:.2f}-{share.high:.2f})"


def _unknown(found: Survival) -> Iterator[str]:
    """What groups without an onset leave open; they differ in how many runs they have and how long those are."""
    kinds: dict[tuple[int, int], list[float]] = {}
    for group in found.groups:
        if group.hazard_bound is not None:
            kinds.setdefault((group.num, group.watched), []).append(group.hazard_bound)
    for (num, watched), bounds in kinds.items():
        bound, until = max(bounds), found.until
        runs, rows = count(num, "run"), count(len(bounds), "row has", "rows have")
        yield (
            f"{rows} no onset in {runs} to step {watched}. Up to {1000 * bound:.3g} onsets in 1000 steps do not"
            f" contradict that (95 %, if as likely at every step): P(stable to {watched}) may be as low as"
            f" {math.exp(-bound * watched):.2g}, P(stable to {until}) as low as {math.exp(-bound * until):.2g}"
        )


def _fit_lines(found: Survival) -> Iterator[str]:
    at_start = found.num_failed_at_start
    without = f"; {at_start} that failed at the start are left out" if at_start else ""
    yield f"Weibull regression of the time to an onset, shape {found.shape:.2g}{without}:"
    for effect in found.effects:
        interval = f"95 % {effect.low:.2g} to {effect.high:.2g}"
        yield f"  {effect.change}: the time is multiplied by {effect.factor:.2g} ({interval})"
    if (test := found.backtest) is not None:
        yield (
            f"tried on this sweep: its first {test.seen} steps predict which of {test.num} runs that were stable so far"
            f" last to step {test.until} with a Brier score of {test.fit:.3f} ({test.stays:.3f} for `what is stable"
            f" stays so`, {test.base_rate:.3f} for the share of them that lasts; lower is better)"
        )


def _failing(found: Survival) -> Iterator[str]:
    """The groups that are stable so far and would fail by the step asked for."""
    stable = [group for group in found.groups if group.num_onsets == 0 and group.predicted is not None]
    failing = [group for group in stable if group.predicted is not None and group.predicted.share < _FAILS]
    kind = "cells" if found.axis is None else f"values of {found.axis}"
    colon = ":" if failing else ""
    yield f"of {len(stable)} {kind} without an onset, {len(failing)} are predicted to fail by step {found.until}{colon}"
    for group in failing[:_MOST_ROWS]:
        share = group.predicted
        assert share is not None
        yield f"  {_name(group)}: P(stable) {share.share:.2f} ({share.low:.2f}-{share.high:.2f})"


def survival_json(found: Survival) -> dict[str, Any]:
    """Everything that is known, as plain values."""
    return {
        "sweep": found.name,
        "axis": found.axis,
        "num_runs": found.num,
        "num_onsets": found.num_onsets,
        "num_failed_at_start": found.num_failed_at_start,
        "num_left_out": found.num_left_out,
        "longest": found.longest,
        "until": found.until,
        "groups": [_group_json(group) for group in found.groups],
        "fit": {"shape": found.shape, "effects": [asdict(effect) for effect in found.effects]},
        "backtest": asdict(found.backtest) if found.backtest is not None else None,
        "doubts": list(found.doubts),
    }


def _group_json(group: Group) -> dict[str, Any]:
    return {
        "setting": {name: _plain(value) for name, value in group.setting.items()},
        "num_runs": group.num,
        "num_onsets": group.num_onsets,
        "watched": group.watched,
        "shares": _shares_json(group.shares),
        "curve": _shares_json(group.curve),
        "hazard_bound_per_step": group.hazard_bound,
        "predicted": asdict(group.predicted) if group.predicted is not None else None,
    }


def _plain(value: Any) -> Any:
    return value if value is None or is_number(value) or isinstance(value, bool | str) else format_value(value)


def _shares_json(shares: Sequence[Share | None]) -> list[dict[str, float]]:
    return [asdict(share) for share in shares if share is not None]
