"""A search that waits for whole batches, so that its proposals do not depend on which result comes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.search.protocol import CellResult, Proposal, Search


@dataclass(frozen=True)
class InBatches:
    """``search``, asked for ``size`` trials at a time, each time when all earlier ones have a result."""

    search: Search
    size: int

    def propose(self, known: Sequence[CellResult], room: int) -> list[Proposal] | None:
        """The next batch, whatever the room; nothing while a result is missing."""
        if any(not seed.is_over for result in known for seed in result.seeds):
            return []
        return self.search.propose(known, self.size)


def within(proposals: Sequence[Proposal], known: Sequence[CellResult], num_trials: int) -> list[Proposal]:
    """The first of ``proposals`` of new cells that make at most ``num_trials`` trials together with ``known``."""
    left = num_trials - sum(len(result.seeds) for result in known)
    kept = []
    for proposal in proposals:
        if proposal.num_seeds <= left:
            kept.append(proposal)
            left -= proposal.num_seeds
    return kept
