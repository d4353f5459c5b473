"""The remedies of the unstable cells of a map, and how many cells each kind of remedy saves."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies.remedy import KINDS
from orchestrator.causes.remedies.results import Remedies


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
class KindCount:
    """In how many cells a kind of remedy is the ``cheapest``, and in how many it ``saves`` every replicate."""

    cheapest: int
    saves: int


@dataclass(frozen=True, slots=True)
class CellRemedies:
    """The remedies of the most typical trial of each unstable cell of a map; ``cells`` are the ones tried so far."""

    region: Region
    cells: tuple[Remedies, ...]

    @property
    def saved(self) -> list[Remedies]:
        """The cells that a remedy saves."""
        return [cell for cell in self.cells if cell.cheapest is not None]

    @property
    def by_kind(self) -> dict[str, KindCount]:
        """The counts of each kind, without kinds that save nowhere; the most frequent cheapest kind comes first."""
        counts = {
            kind: KindCount(
                sum(cell.kind == kind for cell in self.cells),
                sum(any(tally.remedy.kind == kind for tally in cell.saving) for cell in self.cells),
            )
            for kind in KINDS
        }
        saving = [(kind, count) for kind, count in counts.items() if count.saves]
        return dict(sorted(saving, key=lambda pair: (-pair[1].cheapest, -pair[1].saves)))

    @property
    def spent_steps(self) -> int:
        """Steps trained after the forks of all cells."""
        return sum(cell.spent_steps for cell in self.cells)
