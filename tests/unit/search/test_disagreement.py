from collections import Counter

from orchestrator.base.space import Axis, grid_cells
from orchestrator.search.protocol import CellResult, SeedResult, SeedsWhereCellsDisagree

LR = Axis("lr", "values", (0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
SCHEDULE = Axis("schedule", "values", ("cosine", "linear"))
AXES = (LR, SCHEDULE)
CELLS = list(grid_cells(AXES))


def over_edge(outcome: str) -> bool | None:
    return None if outcome == "unknown" else outcome != "stable"


def run(outcome_of, up_to: int = 5, start: int = 1, axes: tuple[Axis, ...] = AXES) -> tuple[dict, int]:
    """The number of seeds of each cell when nothing more is proposed, and the rounds that it took."""
    search = SeedsWhereCellsDisagree(list(grid_cells(axes)), axes, start, up_to, over_edge)
    known: dict[tuple, CellResult] = {}
    rounds = 0
    while proposals := search.propose(list(known.values()), 1):
        rounds += 1
        for proposal in proposals:
            seeds = [SeedResult(seed, outcome_of(proposal.cell, seed), True) for seed in range(proposal.num_seeds)]
            known[tuple(proposal.cell.items())] = CellResult(proposal.cell, tuple(seeds))
    assert proposals is None
    return {tuple(value for _, value in key): len(r.seeds) for key, r in known.items()}, rounds


def test_where_all_agree_every_cell_keeps_its_first_seeds() -> None:
    for start in (1, 2):
        seeds, rounds = run(lambda cell, seed: "stable", start=start)
        assert (set(seeds.values()), len(seeds), rounds) == ({start}, 12, 1)


def test_cells_beside_the_edge_get_all_seeds_and_words_have_no_neighbours() -> None:
    def outcome(cell, seed: int) -> str:
        return "diverged" if cell["schedule"] == "linear" and cell["lr"] > 0.35 else "stable"

    seeds, _ = run(outcome)
    assert {cell for cell, num in seeds.items() if num == 5} == {(0.3, "linear"), (0.4, "linear")}
    assert {num for cell, num in seeds.items() if cell not in ((0.3, "linear"), (0.4, "linear"))} == {1}


def test_a_cell_whose_seeds_disagree_gets_more_wherever_it_is() -> None:
    def outcome(cell, seed: int) -> str:
        return "spiked" if (cell["lr"], cell["schedule"]) == (0.2, "cosine") and seed == 1 else "stable"

    seeds, _ = run(outcome, start=2)
    assert Counter(seeds.values()) == {2: 11, 5: 1}
    assert seeds[0.2, "cosine"] == 5


def test_cells_that_cannot_be_judged_decide_nothing() -> None:
    assert set(run(lambda cell, seed: "unknown")[0].values()) == {1}


def test_it_waits_for_all_results_of_a_round() -> None:
    search = SeedsWhereCellsDisagree(CELLS, AXES, 1, 3, over_edge)
    known = [CellResult(cell, (SeedResult(0, None, False),)) for cell in CELLS]
    assert search.propose(known, 100) == []
    given_up = [CellResult(cell, (SeedResult(0, None, True),)) for cell in CELLS]
    assert search.propose(given_up, 100) is None


def test_neighbours_follow_where_axes_advance_together() -> None:
    together = ("lr", "width")
    axes = (
        Axis("lr", "values", (0.1, 0.2, 0.3, 0.4), zipped=together),
        Axis("width", "values", (64, 8, 16, 32), zipped=together),
    )
    seeds, _ = run(lambda cell, seed: "diverged" if cell["lr"] > 0.25 else "stable", axes=axes)
    assert {cell for cell, num in seeds.items() if num == 5} == {(0.2, 8), (0.3, 16)}


def test_a_cell_in_which_an_axis_does_not_exist_has_no_neighbours_along_it() -> None:
    axes = (*AXES, Axis("power", "values", (1, 2), when=(("schedule", ("linear",)),)))

    def outcome(cell, seed: int) -> str:
        return "diverged" if cell["power"] is None and cell["lr"] > 0.35 else "stable"

    seeds, _ = run(outcome, axes=axes)
    assert {cell for cell, num in seeds.items() if num == 5} == {(0.3, "cosine", None), (0.4, "cosine", None)}
