"""Two remedies at a time, where no single one is enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.causes.remedies.answer import Remedies, loss_of
from orchestrator.causes.remedies.remedy import Remedy
from orchestrator.causes.remedies.tallies import Tally

_MOST = 3  # pairs of a fork step


def pairs(found: Remedies) -> Iterator[tuple[Remedy, int]]:
    """Pairs of the best single remedies, and the step to fork at, for steps at which none saves every replicate.

    Only at steps before the onset: from there on every fork has left its trend already.
    """
    for step in found.fork_steps:
        here = [one for one in found.tallies if one.fork_step == step]
        is_too_late = found.onset is not None and step >= found.onset
        if not is_too_late and not any(one.saves_all for one in here):
            ranked = sorted(here, key=lambda one: (-one.share, -one.recovered, loss_of(one)))
            yield from ((pair, step) for pair in _best(ranked))


def _best(ranked: Sequence[Tally]) -> list[Remedy]:
    """The first few pairs that change different things, those of the best remedies first."""
    found = []
    for second in range(1, len(ranked)):
        for first in range(second):
            pair = ranked[first].remedy.beside(ranked[second].remedy)
            if pair is not None:
                found.append(pair)
            if len(found) == _MOST:
                return found
    return found
