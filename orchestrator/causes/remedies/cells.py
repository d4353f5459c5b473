"""The cheapest remedy of each unstable cell of a map, from forks of its most typical trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import is_known, is_over_edge
from orchestrator.causes.diagnosis import most_typical
from orchestrator.causes.remedies.remedy import KINDS
from orchestrator.causes.remedies.results import Remedies, Tally
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import by_cell, read_table


@dataclass(frozen=True, slots=True)
class Region:
    """The unstable region of a sweep's map: the most typical trial of each of its cells, in the order of the axes.

    ``num_known`` cells of the map have a state, ``num_unknown`` have none yet.
    """

    sweep: str
    trials: tuple[TrialResult, ...]
    num_known: int
    num_unknown: int


@dataclass(frozen=True, slots=True)
class CellRemedy:
    """What the forks of a cell's most typical trial came to.

    ``cheapest`` saves every replicate from the latest fork, and ``saving`` are all remedies that do so, by fork step.
    Without any, ``best_partial`` saved the largest share. ``alone_loss`` is the final loss of the control. ``cause`` is
    the mechanism of the diagnosis, and ``agrees`` says whether the remedies that it calls for helped. Of the forks,
    ``num_forks`` have a result and ``num_missing`` do not.
    """

    trial: TrialResult
    onset: int | None
    cause: str | None
    cheapest: Tally | None
    best_partial: Tally | None
    saving: tuple[Tally, ...]
    alone_loss: float | None
    control_repeats: bool | None
    agrees: bool | None
    fork_steps: tuple[int, ...]
    num_forks: int
    num_missing: int
    spent_steps: int

    @property
    def kind(self) -> str | None:
        """The kind of the cheapest remedy; None without one."""
        return None if self.cheapest is None else self.cheapest.remedy.kind

    @property
    def shown(self) -> Tally | None:
        """The cheapest remedy, or else the one that saved the largest share."""
        return self.cheapest or self.best_partial

    @property
    def from_onset(self) -> int | None:
        """Steps from the onset to the fork of the ``shown`` remedy, negative before it; None without an onset."""
        return None if self.shown is None or self.onset is None else self.shown.fork_step - self.onset

    @property
    def kinds_that_save(self) -> set[str]:
        """The kinds of the remedies that save every replicate."""
        return {tally.remedy.kind for tally in self.saving}

    @property
    def is_saved_by_lower_lr(self) -> bool:
        """Whether a lower learning rate alone saves every replicate."""
        remedies = [tally.remedy for tally in self.saving if tally.remedy.kind == "lr"]
        return any(("lr", "lower") in remedy.moves(self.trial.config) for remedy in remedies)

    @property
    def is_lower_alone(self) -> bool:
        """Whether a spiked trial ends lower if left alone than with its cheapest remedy."""
        if self.trial.outcome != "spiked" or self.cheapest is None or self.alone_loss is None:
            return False
        return self.alone_loss < self.cheapest.comparable_loss


@dataclass(frozen=True, slots=True)
class KindCount:
    """In how many cells a kind of remedy is the ``cheapest``, and in how many it ``saves`` every replicate."""

    cheapest: int
    saves: int


@dataclass(frozen=True, slots=True)
class CellRemedies:
    """The cheapest remedy of each unstable cell of a map; ``cells`` are the ones tried so far."""

    region: Region
    cells: tuple[CellRemedy, ...]

    @property
    def saved(self) -> list[CellRemedy]:
        """The cells that a remedy saves."""
        return [cell for cell in self.cells if cell.cheapest is not None]

    @property
    def by_kind(self) -> dict[str, KindCount]:
        """The counts of each kind, without kinds that save nowhere; the most frequent cheapest kind comes first."""
        counts = {
            kind: KindCount(
                sum(cell.kind == kind for cell in self.cells),
                sum(kind in cell.kinds_that_save for cell in self.cells),
            )
            for kind in KINDS
        }
        saving = [(kind, count) for kind, count in counts.items() if count.saves]
        return dict(sorted(saving, key=lambda pair: (-pair[1].cheapest, -pair[1].saves)))

    @property
    def spent_steps(self) -> int:
        """Steps trained after the forks of all cells."""
        return sum(cell.spent_steps for cell in self.cells)


def unstable_region(ledger: LedgerReader, where: Mapping[str, Any] | None = None) -> Region:
    """The cells over the edge of the map that match ``where``. Raises InputError for an unknown axis or value."""
    table = read_table(ledger).where("--cell", where or {})
    cells, states = by_cell(table.trials), table.states()
    ranks = {axis.name: {value: rank for rank, value in enumerate(axis.values)} for axis in table.axes}
    ordered = sorted(cells, key=lambda cell: [ranks[name][value] for name, value in cell.items()])
    num_known = sum(map(is_known, states.values()))
    typical = [most_typical(cells[cell]) for cell in ordered if is_over_edge(states[cell])]
    name = ledger.facts().get("name", ledger.path.parent.name)
    return Region(name, tuple(trial for trial in typical if trial is not None), num_known, len(cells) - num_known)


def cell_remedy(remedies: Remedies) -> CellRemedy:
    """Summarize the remedies of a cell's most typical trial."""
    return CellRemedy(
        trial=remedies.trial,
        onset=remedies.onset,
        cause=remedies.cause,
        cheapest=remedies.cheapest,
        best_partial=None if remedies.cheapest is not None else remedies.best_partial,
        saving=tuple(sorted(remedies.saving, key=lambda tally: tally.fork_step)),
        alone_loss=None if remedies.control is None else remedies.control.final_loss,
        control_repeats=remedies.control_repeats,
        agrees=remedies.agrees,
        fork_steps=tuple(remedies.fork_steps),
        num_forks=sum(tally.tried for tally in (*remedies.tallies, *remedies.unchanged)),
        num_missing=remedies.num_missing,
        spent_steps=remedies.spent_steps,
    )
