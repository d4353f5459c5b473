"""Whether sweeps are compared on the cells that they share, or on fitted surfaces."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.ledger.reader import LedgerReader


def are_scattered(ledgers: Sequence[LedgerReader]) -> bool:
    """Whether the cells of one of the sweeps are scattered, so that two sweeps hardly share any."""
    return any(ledger.is_sampled for ledger in ledgers)
