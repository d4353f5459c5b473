"""The search for the edge: a pure function of what is known, within its room and budget."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tiers import thinned

from orchestrator.base.space import Axis, grid_cells
from orchestrator.search import edge
from orchestrator.search.edge import EdgeOptions, EdgeSearch
from orchestrator.search.gain import expected_share
from orchestrator.search.protocol import CellResult, InBatches, Proposal, Search, SeedResult
from orchestrator.surface.lattice import lattice_of

WARMUP = Axis("warmup", "linear", tuple(float(i) for i in range(8)), (0.0, 7.0))
LR = Axis("lr", "log", Axis("lr", "log", (), (1e-4, 1.0)).grid(17), (1e-4, 1.0))
LR_RANGE = Axis("lr", "log", (), (1e-4, 1.0))
OPTIMIZER = Axis("optimizer", "values", ("sgd", "adam", "lion"))
OPTIONS = EdgeOptions(along="lr", trials=40, num_seeds=2, seed=0)


def is_over_edge(outcome: str) -> bool | None:
    return None if outcome == "unknown" else outcome != "stable"


def search(axes: Sequence[Axis] = (WARMUP, LR), **changes: Any) -> EdgeSearch:
    return EdgeSearch(axes, dataclasses.replace(OPTIONS, **changes), is_over_edge)


def outcome_of(cell: Mapping[str, Any], seed: int) -> str:
    """Stable below an edge that rises with warmup, with a transition in which seeds disagree."""
    edge = -2.6 + 0.2 * cell.get("warmup", 3.0) + 0.3 * len(cell.get("optimizer", ""))
    return "stable" if math.log10(cell["lr"]) < edge + 0.03 * (seed - 0.5) else "diverged"


class Ledger:
    """What is known: cells in the order of their proposals, each with its seeds."""

    def __init__(self) -> None:
        self.cells: list[dict[str, Any]] = []
        self.outcomes: list[list[str | None]] = []

    def plan(self, proposals: Sequence[Proposal]) -> None:
        for proposal in proposals:
            if dict(proposal.cell) not in self.cells:
                self.cells.append(dict(proposal.cell))
                self.outcomes.append([])
            seeds = self.outcomes[self.cells.index(dict(proposal.cell))]
            assert proposal.num_seeds > len(seeds), "a proposal adds trials"
            seeds += [None] * (proposal.num_seeds - len(seeds))

    def train(self, most: int = 1000, outcome: Callable[[Mapping[str, Any], int], str] = outcome_of) -> None:
        """Give results to trials under way, the last first."""
        waiting = [(i, j) for i, seeds in enumerate(self.outcomes) for j, o in enumerate(seeds) if o is None]
        for i, j in waiting[::-1][:most]:
            self.outcomes[i][j] = outcome(self.cells[i], j)

    @property
    def num_trials(self) -> int:
        return sum(map(len, self.outcomes))

    def known(self) -> list[CellResult]:
        return [
            CellResult(cell, tuple(SeedResult(j, o, o is not None) for j, o in enumerate(seeds)))
            for cell, seeds in zip(self.cells, self.outcomes, strict=True)
        ]


def searched(engine: Search, room: int = 4, outcome: Callable = outcome_of) -> Ledger:
    """All trials of a search whose every proposal is trained before the next."""
    ledger = Ledger()
    while (proposals := engine.propose(ledger.known(), room)) is not None:
        assert proposals
        ledger.plan(proposals)
        ledger.train(outcome=outcome)
    return ledger


def test_it_finds_the_edge_in_fewer_trials_than_there_are_cells() -> None:
    engine = search()
    ledger = searched(engine)
    assert ledger.num_trials == 40 < 8 * 17
    for row, (crossing,) in engine.crossings(ledger.known()):
        edge = 10 ** (-2.6 + 0.2 * row["warmup"])
        assert LR.factor(LR.at(crossing.at), edge) < LR.factor(LR.values[0], LR.values[1])


def test_the_same_known_results_give_the_same_proposals() -> None:
    ledger = searched(search(trials=24))
    fresh, used = search(), search()
    used.propose(ledger.known()[:12], 4)
    assert fresh.propose(ledger.known(), 4) == fresh.propose(ledger.known(), 4) == used.propose(ledger.known(), 4)


def test_another_seed_gives_another_design() -> None:
    assert search(seed=1).propose([], 12) != search(seed=2).propose([], 12)


@pytest.mark.parametrize(("room", "at_once"), thinned([(1, 1), (3, 2), (7, 5)], lambda case: case == (3, 2)))
def test_in_batches_the_trials_do_not_depend_on_timing_nor_on_room(room: int, at_once: int) -> None:
    def in_batches() -> InBatches:
        return InBatches(search(trials=32), 4)

    whole = searched(in_batches())
    ledger, engine = Ledger(), in_batches()
    while (proposals := engine.propose(ledger.known(), room)) is not None:
        ledger.plan(proposals)
        ledger.train(at_once)
        engine = in_batches()  # a restart at any moment
    assert (ledger.cells, ledger.outcomes) == (whole.cells, whole.outcomes)


def test_room_and_budget_are_never_exceeded_and_seeds_neither() -> None:
    engine, ledger = search(trials=23, num_seeds=2), Ledger()
    for room in itertools.cycle((3, 1, 9, 2, 30)):
        before = ledger.num_trials
        proposals = engine.propose(ledger.known(), room)
        if proposals is None:
            break
        ledger.plan(proposals)
        assert ledger.num_trials - before <= room
        ledger.train()
    assert ledger.num_trials == 23
    assert max(map(len, ledger.outcomes)) <= 2


def test_no_room_means_no_proposals_and_not_the_end() -> None:
    assert search().propose([], 0) == []


def test_trials_under_way_are_not_proposed_again() -> None:
    engine, ledger = search(trials=60, num_seeds=1), Ledger()
    ledger.plan(engine.propose([], 12))
    ledger.train(8)
    for _ in range(6):
        ledger.plan(engine.propose(ledger.known(), 4))  # fails if a cell comes twice
    assert len(ledger.cells) == 36


def test_what_is_under_way_counts_as_known_so_a_second_batch_is_elsewhere() -> None:
    engine = search(num_seeds=5)
    ledger = searched(search(trials=20))
    together = [p.cell for p in engine.propose(ledger.known(), 8)]
    ledger.plan(engine.propose(ledger.known(), 4))
    second = [p.cell for p in engine.propose(ledger.known(), 4)]
    assert second[0] != together[0]
    assert second[0] in together


def test_cells_without_information_are_not_proposed_again() -> None:
    engine, ledger = search(trials=60, num_seeds=3), Ledger()
    ledger.plan(engine.propose([], 12))
    ledger.train(outcome=lambda cell, seed: "unknown")
    lost = [tuple(cell.items()) for cell in ledger.cells]
    for _ in range(4):
        proposals = engine.propose(ledger.known(), 8)
        assert not {tuple(p.cell.items()) for p in proposals} & set(lost)
        ledger.plan(proposals)
        ledger.train()


def test_a_trial_that_was_given_up_tells_nothing() -> None:
    ledger = searched(search(trials=20))
    known = ledger.known()
    given_up = CellResult({"warmup": 0.0, "lr": LR.values[-1]}, (SeedResult(0, None, True),))
    points = np.array([[0.5, 0.5], [0.1, 0.9]])
    engine = search()
    known = [one for one in known if one.cell != given_up.cell]
    with_it, without = (engine.surface(some).latent(points).mean_M for some in ([*known, given_up], known))
    np.testing.assert_array_equal(with_it, without)


def test_only_values_of_the_grid_are_proposed() -> None:
    ledger = searched(search())
    assert {cell["lr"] for cell in ledger.cells} <= set(LR.values)
    assert {cell["warmup"] for cell in ledger.cells} <= set(WARMUP.values)


def test_values_of_a_range_have_few_digits_and_stay_within_its_ends() -> None:
    ledger = searched(search((WARMUP, LR_RANGE)))
    for cell in ledger.cells:
        assert 1e-4 <= cell["lr"] <= 1
        assert float(f"{cell['lr']:.3g}") == cell["lr"]


def test_values_of_one_minus_beta_are_rounded_as_a_distance_to_one() -> None:
    beta2 = Axis("beta2", "log1m", (), (0.9, 0.9999))
    values = lattice_of((beta2,), "beta2", None).columns[0].values
    assert (values[0], values[-1]) == (0.9, 0.9999)
    assert all(float(f"{1 - value:.3g}") == pytest.approx(1 - value, rel=1e-9) for value in values)


def test_integers_stay_integers() -> None:
    steps = Axis("steps", "log", (), (1.0, 100.0), is_integer=True)
    values = lattice_of((steps,), "steps", None).columns[0].values
    assert all(isinstance(value, int) for value in values)
    assert len(set(values)) == len(values)


@pytest.mark.slow
def test_it_ends_once_every_row_is_precise() -> None:
    def sharp(cell: Mapping[str, Any], seed: int) -> str:
        return outcome_of(cell, 0)

    wide, narrow = (searched(search((WARMUP, LR_RANGE), trials=150, precision=p), 4, sharp) for p in (6.0, 2.0))
    assert wide.num_trials < narrow.num_trials < 150
    engine = search((WARMUP, LR_RANGE), trials=150, precision=2.0)
    for _, (crossing,) in engine.crossings(narrow.known()):
        assert LR.factor(LR.at(crossing.low), LR.at(crossing.high)) <= 2.0


def test_it_ends_once_all_cells_have_all_seeds() -> None:
    few = Axis("warmup", "linear", (0.0, 7.0), (0.0, 7.0))
    lr = Axis("lr", "log", (1e-3, 1e-2, 1e-1), (1e-3, 1e-1))
    ledger = searched(search((few, lr), trials=1000, num_seeds=2))
    assert ledger.num_trials == 2 * 3 * 2


def test_categories_are_fields_of_their_own() -> None:
    engine = search((OPTIMIZER, LR), trials=40)
    ledger = searched(engine)
    found = {row["optimizer"]: crossing.at for row, (crossing,) in engine.crossings(ledger.known())}
    for name, place in found.items():
        edge = 10 ** (-2.6 + 0.6 + 0.3 * len(name))
        assert LR.factor(LR.at(place), edge) < 2


def test_without_an_axis_along_it_finds_a_region_better_than_random_cells_do() -> None:
    def is_stable(cell: Mapping[str, Any]) -> bool:
        return math.hypot((cell["warmup"] - 3.5) / 7, (math.log10(cell["lr"]) + 2) / 4) < 0.32

    cells = list(grid_cells((WARMUP, LR)))
    random = np.random.default_rng(0).permutation(len(cells))[:60]
    by_chance = [
        CellResult(cells[i], (SeedResult(0, "stable" if is_stable(cells[i]) else "spiked", True),)) for i in random
    ]
    engine = search(along=None, trials=60, num_seeds=1)
    chosen = searched(engine, outcome=lambda cell, seed: "stable" if is_stable(cell) else "spiked").known()
    points = np.array([[WARMUP.unit(cell["warmup"]), LR.unit(cell["lr"])] for cell in cells])
    truth = np.array([is_stable(cell) for cell in cells])
    wrong = [int(((engine.surface(known).latent(points).mean_M > 0) != truth).sum()) for known in (chosen, by_chance)]
    assert wrong[0] < wrong[1]
    assert wrong[0] <= 3


def test_one_axis_is_enough() -> None:
    engine = search((LR_RANGE,), trials=20, precision=1.5)
    ledger = searched(engine)
    ((_, (crossing,)),) = engine.crossings(ledger.known())
    assert LR.factor(LR.at(crossing.at), 10**-2.0) < 1.5


def test_cells_of_a_denser_grid_still_tell() -> None:
    known = searched(search()).known()
    coarse = Axis("lr", "log", LR.values[::2], (1e-4, 1.0))
    engine = search((WARMUP, coarse), trials=80)
    proposals = engine.propose(known, 4)
    assert proposals
    assert all(p.cell["lr"] in coarse.values for p in proposals)


def test_an_axis_without_an_order_cannot_be_searched_along() -> None:
    with pytest.raises(ValueError, match="no order"):
        search((WARMUP, OPTIMIZER), along="optimizer")


STILL = np.zeros(1)


@pytest.mark.parametrize("moved", [0.5, 4.0, 30.0])
@pytest.mark.parametrize("mean", [0.0, 1.5, 4.0])
def test_a_share_is_the_mean_over_where_the_mean_may_have_moved_to(mean: float, moved: float) -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    means = mean + np.sqrt(moved) * nodes
    each = expected_share(means, np.full(60, 9.0), np.zeros(60))
    found = expected_share(np.array([mean]), np.array([9.0]), np.array([moved]))
    assert found[0] == pytest.approx(weights @ each / weights.sum(), rel=0.05)


def test_where_the_mean_may_move_a_trial_at_it_tells_less_and_one_far_from_it_more() -> None:
    for mean, is_more in ((0.0, False), (8.0, True)):
        still, moved = (
            expected_share(np.array([mean]), np.array([4.0]), np.array([variance])) for variance in (0.0, 9.0)
        )
        assert (moved[0] > still[0]) == is_more


def test_an_outcome_takes_at_most_what_a_surely_known_latent_value_would() -> None:
    variance = np.array([0.01, 1.0, 100.0])
    assert (expected_share(np.zeros(3), variance, np.zeros(3)) * variance < 1).all()


@pytest.mark.slow
def test_of_many_cells_fields_are_compared_anew_only_after_a_quarter_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """To compare the fields of a thousand cells takes seconds, in which no result is recorded."""
    monkeypatch.setattr(edge, "_MOST_ANEW", 16)
    compared: list[int] = []
    fit_surface = edge.fit_surface

    def counted(points_ND: np.ndarray, *rest: Any) -> Any:
        compared.append(len(points_ND))
        return fit_surface(points_ND, *rest)

    known = searched(search(num_seeds=1, trials=32)).known()
    monkeypatch.setattr(edge, "fit_surface", counted)
    engine = search(num_seeds=1, trials=60)
    proposals = [engine.propose(known[:num], 4) for num in (20, 22, 24, 26)]
    assert [num for num in compared if num > 12] == [20, 25]  # without the initial design, which has 12 cells
    fresh = search(num_seeds=1, trials=60)
    assert fresh.propose(known[:26], 4) == proposals[-1] != proposals[0], "a search that is resumed proposes the same"
    again = [dataclasses.replace(result, seeds=(*result.seeds, SeedResult(1, "stable", True))) for result in known[:26]]
    compared.clear()
    assert search(trials=90).propose(known[:26], 4)
    assert engine.propose(again, 4)
    assert compared.count(25) == 1, "further seeds of the first cells do not change the field"


@pytest.mark.slow
def test_a_search_of_many_cells_ends_precise_by_a_surface_that_compares_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "_MOST_ANEW", 16)
    ledger = searched(search((WARMUP, LR_RANGE), trials=150, precision=1.5))
    assert 16 < ledger.num_trials < 150
    for _, (row,) in search((WARMUP, LR_RANGE), precision=1.5).crossings(ledger.known()):
        assert LR.factor(LR.at(row.low), LR.at(row.high)) <= 1.5
