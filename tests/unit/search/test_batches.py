from __future__ import annotations

from collections.abc import Sequence

from orchestrator.search.batches import FewUnderWay
from orchestrator.search.protocol import CellResult, Proposal, SeedResult


class AsManyAsAsked:
    def propose(self, known: Sequence[CellResult], room: int) -> list[Proposal] | None:
        return None if len(known) > 5 else [Proposal({"lr": float(i)}, 1) for i in range(room)]


def cell(*is_over: bool) -> CellResult:
    seeds = (SeedResult(seed, "stable" if over else None, over) for seed, over in enumerate(is_over))
    return CellResult({"lr": 9.0}, tuple(seeds))


def num_proposed(known: Sequence[CellResult], room: int) -> int | None:
    proposals = FewUnderWay(AsManyAsAsked(), 4).propose(known, room)
    return None if proposals is None else len(proposals)


def test_few_under_way_means_those_without_a_result_and_new_ones_together() -> None:
    assert num_proposed([], 100) == 4
    assert num_proposed([cell(True, False), cell(False)], 100) == 2
    assert num_proposed([cell(True, False), cell(False, False)], 100) == 0, "more than half have no result"
    assert num_proposed([cell(True, True)], 100) == 4
    assert num_proposed([cell(False)] * 5, 100) == 0, "more than it would have proposed itself"


def test_less_room_than_may_be_under_way_is_not_exceeded() -> None:
    assert num_proposed([], 3) == 3


def test_the_end_of_the_search_is_the_end() -> None:
    assert num_proposed([cell(True)] * 6, 100) is None
