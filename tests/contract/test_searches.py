"""One suite for every search: what it proposes follows from what is known, stays within its limits, and ends."""

import itertools
import math
from collections.abc import Callable, Sequence

import pytest

from orchestrator.base.space import Axis, Cell, grid_cells
from orchestrator.search.by_optuna import SEARCHES, OptunaSearch
from orchestrator.search.edge import EdgeOptions, EdgeSearch
from orchestrator.search.margins import EdgeMargins
from orchestrator.search.protocol import (
    EDGE,
    CellResult,
    InBatches,
    ListedCells,
    Proposal,
    Search,
    SeedResult,
    SeedsWhereCellsDisagree,
)
from orchestrator.sweepfile.searches import have_learned, over_edge

LR = Axis("lr", "log", (), (1e-3, 1.0))
BETA2 = Axis("beta2", "log1m", (0.9, 0.97, 0.99, 0.997, 0.999), (0.9, 0.999))
AXES = (LR, BETA2)
LISTED_LR = Axis("lr", "log", (0.001, 0.01, 0.1, 1.0), (1e-3, 1.0))
CELLS = list(grid_cells((LISTED_LR, BETA2)))
TRIALS, SEEDS = 40, 2


def by_optuna(method: str) -> Callable[[], Search]:
    return lambda: OptunaSearch(method, AXES, ("final_loss",), TRIALS, SEEDS, None, 0)


def with_margin(method: str) -> Callable[[], Search]:
    margins = EdgeMargins(AXES, "lr", over_edge, have_learned)
    return lambda: OptunaSearch(method, AXES, ("final_loss", "margin"), TRIALS, SEEDS, None, 0, margins)


def edge() -> Search:
    return EdgeSearch(AXES, EdgeOptions("lr", TRIALS, SEEDS, 0), over_edge)


MAKERS: dict[str, Callable[[], Search]] = {
    **{method: by_optuna(method) for method in SEARCHES if method != EDGE},
    "nsga2 with margin": with_margin("nsga2"),
    "tpe with margin": with_margin("tpe"),
    EDGE: edge,
    "edge in batches": lambda: InBatches(edge(), 8),
    "listed": lambda: ListedCells(CELLS, SEEDS),
    "disagreement": lambda: SeedsWhereCellsDisagree(CELLS, (LISTED_LR, BETA2), 1, SEEDS, over_edge),
}
# A Gaussian process of Optuna takes a second for each proposal.
SLOW = [pytest.param(name, marks=pytest.mark.slow) if name == "gp" else name for name in MAKERS]


@pytest.fixture(params=SLOW)
def make(request) -> Callable[[], Search]:
    return MAKERS[request.param]


def trained(cell, seed: int) -> SeedResult:
    """Diverged beyond a learning rate that falls with beta2, and sometimes just below it."""
    distance = math.log10(cell["lr"]) + 1 + 0.3 * math.log10(1 - cell["beta2"])
    outcome = "diverged" if distance > 0.1 * seed - 0.1 else "stable"
    return SeedResult(seed, outcome, True, {"final_loss": 2.0 + distance**2, "initial_loss": 9.0})


class Known:
    """All that was proposed, with results for what ``finish`` was called for."""

    def __init__(self) -> None:
        self.results: dict[tuple, CellResult] = {}

    def add(self, proposals: Sequence[Proposal]) -> int:
        """Take proposals as under way; the number of their new trials."""
        new = 0
        for proposal in proposals:
            key = Cell(proposal.cell)
            seeds = self.results[key].seeds if key in self.results else ()
            new += max(0, proposal.num_seeds - len(seeds))
            more = (SeedResult(seed, None, False) for seed in range(len(seeds), proposal.num_seeds))
            self.results[key] = CellResult(proposal.cell, (*seeds, *more))
        return new

    def finish(self) -> None:
        for key, result in self.results.items():
            seeds = tuple(seed if seed.is_over else trained(result.cell, seed.seed) for seed in result.seeds)
            self.results[key] = CellResult(result.cell, seeds)

    @property
    def all(self) -> list[CellResult]:
        return list(self.results.values())


def run(search: Search, room: int = 8) -> Known:
    known = Known()
    for _ in itertools.count():
        proposals = search.propose(known.all, room)
        if not proposals:
            assert proposals is None, "with all results in there is nothing to wait for"
            return known
        assert known.add(proposals) > 0, "a proposal asks for a trial that is not there"
        known.finish()
    raise AssertionError


def test_it_ends_within_its_trials_and_its_seeds(make) -> None:
    known = run(make()).all
    assert 0 < sum(len(result.seeds) for result in known) <= TRIALS
    assert max(len(result.seeds) for result in known) <= SEEDS
    assert all(LR.has(result.cell["lr"]) and BETA2.has(result.cell["beta2"]) for result in known)
    assert make().propose(known, 100) is None, "also for another search of the same settings"


def test_the_same_results_give_the_same_proposals_whatever_it_was_asked_before(make) -> None:
    used, known = make(), Known()
    for _ in range(3):
        proposals = used.propose(known.all, 8)
        assert proposals == make().propose(known.all, 8)
        if not proposals:
            break
        known.add(proposals)
        known.finish()


def test_while_all_is_under_way_it_waits_or_proposes_other_trials(make) -> None:
    search, known = make(), Known()
    for _ in range(TRIALS):
        proposals = search.propose(known.all, 8)
        if not proposals:
            break
        assert known.add(proposals) > 0
    assert sum(len(result.seeds) for result in known.all) <= TRIALS


def test_trials_that_were_given_up_do_not_hold_it(make) -> None:
    search, known = make(), Known()
    for _ in range(2 * TRIALS):
        proposals = search.propose(known.all, 8)
        if not proposals:
            assert proposals is None
            return
        known.add(proposals)
        for key, result in known.results.items():
            seeds = tuple(SeedResult(seed.seed, None, True) for seed in result.seeds)
            known.results[key] = CellResult(result.cell, seeds)
    raise AssertionError("it never ends")
