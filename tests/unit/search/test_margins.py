"""The metric margin of a search: distances to a planted edge, and what they do to the cells that are proposed."""

import math

import pytest

from orchestrator.base.space import Axis
from orchestrator.search.by_optuna import OptunaSearch, sample_cells
from orchestrator.search.margins import OPEN, EdgeMargins, _surface
from orchestrator.search.protocol import CellResult, Proposal, SeedResult
from orchestrator.sweepfile.searches import have_learned, over_edge

LR = Axis("lr", "log", (), (1e-3, 1.0))
BETA1 = Axis("beta1", "linear", (), (0.0, 0.9))
MARGINS = EdgeMargins((LR, BETA1), "lr", over_edge, have_learned)
CELLS = sample_cells([LR, BETA1], "sobol", 32, 0)


def edge_at(cell) -> float:
    """Where the planted edge is, as a part of the axis: between 0.5 and 0.7."""
    return 0.5 + 0.2 * cell["beta1"]


def trained(cell, seeds: int = 1, loss: float = 1.0) -> CellResult:
    outcome = "stable" if LR.unit(cell["lr"]) < edge_at(cell) else "diverged"
    metrics = {"initial_loss": 9.0, "final_loss": loss}
    return CellResult(cell, tuple(SeedResult(seed, outcome, True, metrics) for seed in range(seeds)))


KNOWN = [trained(cell) for cell in CELLS]


def test_a_margin_is_the_distance_to_the_edge_and_negative_beyond_it() -> None:
    true = [edge_at(cell) - LR.unit(cell["lr"]) for cell in CELLS]
    assert MARGINS.of(KNOWN) == pytest.approx(true, abs=0.08)


def test_a_cell_over_the_edge_or_one_that_hardly_learned_has_no_positive_margin() -> None:
    cell = {"lr": 0.002, "beta1": 0.5}
    for outcomes, loss in ((("stable", "spiked"), 1.0), (("stable", "stable"), 8.0)):
        seeds = [
            SeedResult(i, outcome, True, {"initial_loss": 9.0, "final_loss": loss})
            for i, outcome in enumerate(outcomes)
        ]
        assert MARGINS.of([*KNOWN, CellResult(cell, tuple(seeds))])[-1] <= 0
    assert MARGINS.of([*KNOWN, trained(cell, seeds=2)])[-1] > 0.3


@pytest.mark.parametrize(("is_stable", "margin"), [(True, OPEN), (False, -OPEN)])
def test_without_an_edge_in_sight_margins_are_the_whole_axis(is_stable: bool, margin: float) -> None:
    known = [one for one in KNOWN if (one.seeds[0].outcome == "stable") == is_stable]
    assert MARGINS.of(known) == [margin] * len(known)
    assert MARGINS.of([]) == []


def test_margins_do_not_depend_on_the_order_of_results_or_on_cells_without_one() -> None:
    waiting = CellResult({"lr": 0.5, "beta1": 0.1}, (SeedResult(0, None, False),))
    unknown = CellResult({"lr": 0.01, "beta1": 0.1}, (SeedResult(0, "unknown", True),))
    found = MARGINS.of([waiting, *reversed(KNOWN), unknown, KNOWN[0]])
    assert found[1:-2] == pytest.approx(MARGINS.of(KNOWN)[::-1]), "nor on a cell that is there twice"


def proposed(method: str, metrics: tuple[str, ...], num: int) -> list[CellResult]:
    """The cells of a search whose loss falls up to the edge and beyond."""
    search = OptunaSearch(method, (LR, BETA1), metrics, num, 1, None, 0, MARGINS if "margin" in metrics else None)
    known: list[CellResult] = []
    while proposals := search.propose(known, 16):
        known += [result(proposal) for proposal in proposals]
    return known


def result(proposal: Proposal) -> CellResult:
    return trained(proposal.cell, loss=1 - math.log10(proposal.cell["lr"]))


@pytest.mark.slow
def test_with_margins_cells_spread_over_the_stable_side_instead_of_crowding_at_the_edge() -> None:
    def within(known: list[CellResult], least: float) -> int:
        distances = [edge_at(one.cell) - LR.unit(one.cell["lr"]) for one in known[-32:]]
        return sum(distance >= least for distance in distances)

    with_margins = within(proposed("nsga2", ("final_loss", "margin"), 96), 0.15)
    assert with_margins > within(proposed("nsga2", ("final_loss",), 96), 0.15)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["nsga2", "tpe"])
def test_a_search_with_margins_depends_on_nothing_but_what_is_known(method: str) -> None:
    known = proposed(method, ("final_loss", "margin"), 48)
    for num in (16, 32):
        proposals = []
        for _ in range(2):
            search = OptunaSearch(method, (LR, BETA1), ("final_loss", "margin"), 48, 1, None, 0, MARGINS)
            _surface.cache_clear()
            proposals.append(search.propose(known[:num], 16))
        assert proposals[0] == proposals[1]
        assert [p.cell for p in proposals[0]] == [one.cell for one in known[num : num + len(proposals[0])]]
