"""The cheapest remedy of each unstable cell: a line for each, a summary, a table, and JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import pandas as pd

from orchestrator.base.space import format_value
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies.answer_text import WIDTH, short_loss
from orchestrator.causes.remedies.cells import CellRemedies, CellRemedy, Region
from orchestrator.causes.remedies.results import Tally

_MOST_NAMED = 6  # cells that nothing saves


def cell_remedies_lines(found: CellRemedies) -> Iterator[str]:
    """What is answered, a line for each cell, and the summary."""
    yield from head_lines(found.region)
    for cell in found.cells:
        yield cell_line(found.region, cell)
    yield from summary_lines(found)


def head_lines(region: Region) -> Iterator[str]:
    """How many cells are not stable, and the heads of the columns of ``cell_line``."""
    unknown = f", {region.num_unknown} more not known" if region.num_unknown else ""
    yield f"{region.sweep}: {len(region.trials)} of {region.num_known} known cells are not stable{unknown}"
    yield "replicates saved by the cheapest remedy, the step of its fork from the onset, and final loss:"
    yield ""
    yield f"{'cell':<{_width(region)}}  {'outcome':<8}  {'onset':>6}  {'saved':>5}  {'fork':>5}  {'loss':>6}  remedy"


def cell_text(trial: TrialResult) -> str:
    """The cell of a trial, as `--cell` takes it."""
    return ",".join(f"{name}={format_value(value)}" for name, value in trial.cell.items())


def _width(region: Region) -> int:
    return max(len("cell"), *(len(cell_text(trial)) for trial in region.trials))


def cell_line(region: Region, cell: CellRemedy) -> str:
    """One cell: outcome and onset of its trial, and the cheapest remedy, or that nothing saves it."""
    trial, shown = cell.trial, cell.shown
    onset = "-" if cell.onset is None else str(cell.onset)
    words = f"{cell_text(trial):<{_width(region)}}  {trial.outcome or '':<8}  {onset:>6}"
    numbers = f"{_saved(cell):>5}  {_fork(cell):>5}  {_loss(shown):>6}"
    missing = f" ({cell.num_missing} forks have no result yet)" if cell.num_missing else ""
    return f"{words}  {numbers}  {_remedy(cell)}{missing}"


def _remedy(cell: CellRemedy) -> str:
    if cell.cheapest is not None:
        return cell.cheapest.remedy.name
    if not cell.fork_steps:
        return "not tried: no such step or remedy in this run"
    return "none" if cell.best_partial is None else f"none; at most {cell.best_partial.remedy.name}"


def _saved(cell: CellRemedy) -> str:
    if cell.shown is not None:
        return f"{cell.shown.saved}/{cell.shown.tried}"
    return "-" if not cell.fork_steps else "0"


def _fork(cell: CellRemedy) -> str:
    if cell.shown is None:
        return "-"
    return str(cell.shown.fork_step) if cell.from_onset is None else f"{cell.from_onset:+d}"


def _loss(tally: Tally | None) -> str:
    return "-" if tally is None or tally.final_loss is None else short_loss(tally.final_loss)


def summary_lines(found: CellRemedies) -> Iterator[str]:
    """Which kind of remedy saves how many cells, what nothing saves, and what it cost."""
    yield ""
    for line in _summary(found):
        yield from textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _summary(found: CellRemedies) -> Iterator[str]:
    num, num_saved = len(found.cells), len(found.saved)
    if num < len(found.region.trials):
        yield f"{num} of {len(found.region.trials)} cells have been tried"
    yield f"a remedy saves every replicate in {num_saved} of {num} cells"
    if found.by_kind:
        counts = found.by_kind.items()
        yield "the cheapest one is of this kind, in cells: " + ", ".join(
            f"{kind} {first}" for kind, (first, _) in counts if first
        )
        saving = sorted(((kind, both[1]) for kind, both in counts), key=lambda pair: -pair[1])
        yield "saves every replicate from the same step: " + ", ".join(f"{kind} {of_all}" for kind, of_all in saving)
        lower = sum(one.is_saved_by_lower_lr for one in found.cells)
        yield f"a lower learning rate saves {lower} of {num} cells from the step of their cheapest remedy"
    if unsaved := [one for one in found.cells if one.cheapest is None]:
        names = [cell_text(one.trial) for one in unsaved[:_MOST_NAMED]]
        more = f" and {len(unsaved) - _MOST_NAMED} more" if len(unsaved) > _MOST_NAMED else ""
        yield f"nothing saves {len(unsaved)} of them: {' '.join(names)}{more}"
    spiked = [one for one in found.saved if one.trial.outcome == "spiked"]
    if lower := sum(one.is_lower_alone for one in spiked):
        yield f"in {lower} of the {len(spiked)} spiked cells that are saved the run ends lower if left alone"
    if others := sum(one.control_repeats is False for one in found.cells):
        yield f"in {others} cells the control does NOT repeat the trial; `--trial ID` says why"
    yield f"steps trained after the forks: {found.spent_steps:,}"


def cell_remedies_json(found: CellRemedies) -> dict[str, Any]:
    """The answer as plain data."""
    return {
        "sweep": found.region.sweep,
        "num_known": found.region.num_known,
        "num_unstable": len(found.region.trials),
        "num_saved": len(found.saved),
        "num_saved_by_lower_lr": sum(one.is_saved_by_lower_lr for one in found.cells),
        "spent_steps": found.spent_steps,
        "by_remedy": {
            kind: {"cheapest": cheapest, "saves": saves} for kind, (cheapest, saves) in found.by_kind.items()
        },
        "cells": [{"cell": dict(one.trial.cell), **_row(one), "saves": _saves(one)} for one in found.cells],
    }


def cell_remedies_table(found: CellRemedies) -> pd.DataFrame:
    """A row for each unstable cell."""
    return pd.DataFrame([{**one.trial.cell, **_row(one), "saves": "; ".join(_saves(one))} for one in found.cells])


def _saves(cell: CellRemedy) -> list[str]:
    return list(dict.fromkeys(one.remedy.name for one in cell.saving))


def _row(cell: CellRemedy) -> dict[str, Any]:
    cheapest, most, shown = cell.cheapest, cell.best_partial, cell.shown
    return {
        "trial_id": cell.trial.trial_id,
        "seed": cell.trial.seed,
        "outcome": cell.trial.outcome,
        "onset_step": cell.onset,
        "cause": cell.cause,
        "cheapest": None if cheapest is None else cheapest.remedy.name,
        "kind": None if cheapest is None else cheapest.remedy.kind,
        "cheapest_step": None if cheapest is None else cheapest.fork_step,
        "most": None if most is None else most.remedy.name,
        "most_step": None if most is None else most.fork_step,
        "from_onset": cell.from_onset,
        "saved": 0 if shown is None else shown.saved,
        "tried": 0 if shown is None else shown.tried,
        "final_loss": None if shown is None else shown.final_loss,
        "alone_loss": cell.alone_loss,
        "agrees_with_diagnosis": cell.agrees,
        "control_repeats": cell.control_repeats,
        "num_forks": cell.num_forks,
        "num_missing": cell.num_missing,
        "spent_steps": cell.spent_steps,
    }
