"""The sweeps of a results folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.query import Query, Say, Subject, hidden, silent
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Line, Table

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.maps.all_sweeps import ListedSweep


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery(Query["Path"]):
    """List the sweeps that were run: axes, outcomes, the stable share, the edge, and their age.

    For example `sweep list --results elsewhere`.
    """

    panel: ClassVar[str] = "look"
    subject: ClassVar[Subject] = "results"

    def ask(self, subject: Path, say: Say = silent) -> SweepList:
        """Return the sweeps in the folder ``subject``, the latest change first."""
        from orchestrator.maps.all_sweeps import all_sweeps

        if subject.exists() and not subject.is_dir():
            raise InputError(Problem("--results", str(subject), "is a file, not a folder", "name a folder of results"))
        return SweepList(tuple(all_sweeps(subject)), subject)


@dataclass(frozen=True, slots=True)
class SweepList(Answer):
    """The sweeps of a results folder, the latest first."""

    sweeps: tuple[ListedSweep, ...]
    results: Path = hidden()

    def blocks(self) -> Iterator[Block]:
        """Yield a row for each sweep."""
        if not self.sweeps:
            yield Line(f"no sweep in {self.results}/: `sweep run FILE` makes one")
            return
        yield Table(("sweep", "axes", "trials", "stable", "edge", "age"), tuple(map(_row, self.sweeps)))


def _row(sweep: ListedSweep) -> tuple[str, ...]:
    from orchestrator.base.words import age_text, outcomes_text

    age = "running" if sweep.is_running else age_text(time.time() - sweep.changed_at)
    if sweep.problem is not None:
        return sweep.sweep, sweep.problem, "", "", "", age
    share = "" if sweep.stable_share is None else f"{sweep.stable_share:.0%}"
    name = f"{sweep.sweep} (imported)" if sweep.is_imported else sweep.sweep
    trials = outcomes_text(sweep.outcomes, sweep.num_over, sweep.num_trials)
    return name, sweep.axes_text, trials, share, sweep.edge.text if sweep.edge else "", age
