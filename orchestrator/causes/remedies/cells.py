"""The cheapest remedy of each unstable cell of a map: the trial that stands for it, and what its forks say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.diagnosis import most_typical
from orchestrator.causes.remedies.answer import Remedies, loss_of
from orchestrator.causes.remedies.kinds import KINDS, kind_of
from orchestrator.causes.remedies.tallies import Tally
from orchestrator.detection.outcomes import is_known, is_over_edge
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.lr_curves import judged_trials
from orchestrator.maps.stability import map_cell, sweep_axes, trials_where


@dataclass(frozen=True, slots=True)
class Region:
    """The unstable region of a sweep's map: the most typical trial of each of its cells, in the order of the axes.

    ``num_known`` cells have a state, ``num_unknown`` none yet.
    """

    sweep: str
    trials: tuple[TrialResult, ...]
    num_known: int
    num_unknown: int


@dataclass(frozen=True, slots=True)
class CellRemedy:
    """What the forks of a cell's most typical trial say.

    ``cheapest`` saves every replicate from the latest fork on, ``saving`` is all that does so from some fork on, each
    in ascending order of its step. Where none does, ``most`` saved the largest share. ``alone_loss`` is the final loss
    of the trial that is left alone. ``cause`` is the mechanism that the diagnosis names, ``agrees`` whether what it
    calls for helped. ``num_forks`` have a result, ``num_missing`` none.
    """

    trial: TrialResult
    onset: int | None
    cause: str | None
    cheapest: Tally | None
    most: Tally | None
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
        return None if self.cheapest is None else kind_of(self.cheapest.remedy)

    @property
    def shown(self) -> Tally | None:
        """The cheapest remedy, or else that which saved the most."""
        return self.cheapest or self.most

    @property
    def from_onset(self) -> int | None:
        """Steps from the onset to the fork of what is ``shown``, below zero before it; None without an onset."""
        return None if self.shown is None or self.onset is None else self.shown.fork_step - self.onset

    @property
    def kinds_that_save(self) -> set[str]:
        """The kinds of which a remedy saves every replicate."""
        return {kind_of(one.remedy) for one in self.saving}

    @property
    def is_saved_by_lower_lr(self) -> bool:
        """Whether a lower learning rate alone saves every replicate."""
        lower = ("lr", "lower")
        return any(
            kind_of(one.remedy) == "lr" and lower in one.remedy.stands_for(self.trial.config) for one in self.saving
        )

    @property
    def is_lower_alone(self) -> bool:
        """Whether a spiked trial that is left alone ends lower than with its cheapest remedy."""
        if self.trial.outcome != "spiked" or self.cheapest is None or self.alone_loss is None:
            return False
        return self.alone_loss < loss_of(self.cheapest)


@dataclass(frozen=True, slots=True)
class CellRemedies:
    """The cheapest remedy of each unstable cell of a map, as far as ``cells`` have been tried."""

    region: Region
    cells: tuple[CellRemedy, ...]

    @property
    def saved(self) -> list[CellRemedy]:
        """The cells that some remedy saves."""
        return [one for one in self.cells if one.cheapest is not None]

    @property
    def by_kind(self) -> dict[str, tuple[int, int]]:
        """For each kind: in how many cells it is the cheapest, and in how many it saves every replicate.

        Without kinds that save nowhere, the commonest cheapest first.
        """
        counts = {
            kind: (sum(one.kind == kind for one in self.cells), sum(kind in one.kinds_that_save for one in self.cells))
            for kind in KINDS
        }
        found = [(kind, both) for kind, both in counts.items() if any(both)]
        return dict(sorted(found, key=lambda pair: (-pair[1][0], -pair[1][1])))

    @property
    def spent_steps(self) -> int:
        """Steps trained after the forks of all cells."""
        return sum(one.spent_steps for one in self.cells)


def unstable_region(ledger: LedgerReader, where: Mapping[str, Any] | None = None) -> Region:
    """The cells that the map has over its edge, of those with the values of ``where``.

    Raises InputError for an unknown axis or value.
    """
    axes = {axis.name: axis for axis in sweep_axes(ledger)}
    rows, _ = trials_where("--cell", judged_trials(ledger), axes, where or {})
    grouped: dict[tuple[Any, ...], list[TrialResult]] = {}
    for row in rows:
        grouped.setdefault(tuple(row.cell[name] for name in axes), []).append(row)
    ranks = {name: {value: place for place, value in enumerate(axis.values)} for name, axis in axes.items()}
    keys = sorted(grouped, key=lambda key: [ranks[name][value] for name, value in zip(axes, key, strict=True)])
    states = {key: map_cell(None, None, grouped[key], "final_loss", {}).state for key in keys}
    num_known = sum(map(is_known, states.values()))
    typical = [most_typical(grouped[key]) for key in keys if is_over_edge(states[key])]
    name = ledger.facts().get("name", ledger.path.parent.name)
    return Region(name, tuple(trial for trial in typical if trial is not None), num_known, len(keys) - num_known)


def cell_remedy(found: Remedies) -> CellRemedy:
    """What an answer says of its cell."""
    return CellRemedy(
        trial=found.trial,
        onset=found.onset,
        cause=found.cause,
        cheapest=found.cheapest,
        most=None if found.cheapest is not None else found.most_saving,
        saving=tuple(sorted(found.saving, key=lambda one: one.fork_step)),
        alone_loss=None if found.control is None else found.control.final_loss,
        control_repeats=found.control_repeats,
        agrees=found.agrees,
        fork_steps=tuple(found.fork_steps),
        num_forks=sum(one.tried for one in (*found.tallies, *found.unchanged)),
        num_missing=found.num_missing,
        spent_steps=found.spent_steps,
    )
