"""How sweeps differ in words: on the cells that they share, or on fitted surfaces where cells are scattered."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.comparison import compare
from orchestrator.maps.comparison_text import comparison_lines


def are_scattered(ledgers: Sequence[LedgerReader]) -> bool:
    """Whether the cells of one of the sweeps are scattered, so that two sweeps hardly share any."""
    return any(ledger.is_sampled for ledger in ledgers)


def compared_lines(ledgers: Sequence[LedgerReader]) -> list[str]:
    """What `sweep compare` says of the sweeps, the first of which is the base. Raises InputError as it does."""
    if not are_scattered(ledgers):
        return list(comparison_lines(compare(ledgers)))
    from orchestrator.maps.fitted_comparison import compare_fitted
    from orchestrator.maps.fitted_comparison_text import fitted_comparison_lines

    return list(fitted_comparison_lines(compare_fitted(ledgers)))
