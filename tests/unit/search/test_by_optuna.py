import math
import sys
import warnings

import numpy as np
import optuna
import pytest
from tiers import one_of

from orchestrator.base.space import Axis
from orchestrator.search import study
from orchestrator.search.by_optuna import (
    GENERATIONS,
    METHODS,
    POPULATION,
    SAMPLERS,
    SPREADS,
    OptunaSearch,
    _distribution,
    sample_cells,
)
from orchestrator.search.protocol import CellResult, InBatches, ListedCells, Proposal, Search, SeedResult
from orchestrator.search.study import EVALUATORS, Parameter, importances

LR = Axis("lr", "log", (), (1e-4, 1.0))
BETA2 = Axis("beta2", "log1m", (), (0.9, 0.9999))
SEARCH_METHODS = [*SAMPLERS, *GENERATIONS, *SPREADS]
CHEAP = [method for method in SEARCH_METHODS if method != "gp"]


def search(method: str, axes=(LR, BETA2), metrics=("final_loss",), **changes) -> OptunaSearch:
    settings = {"num_trials": 64, "num_seeds": 1, "stable": None, "seed": 0} | changes
    return OptunaSearch(method, axes, metrics, **settings)


def bowl(cell) -> float:
    """A loss that is lowest at lr 0.01 and beta2 0.999."""
    return (math.log10(cell["lr"]) + 2) ** 2 + (math.log10(1 - cell["beta2"]) + 3) ** 2


def trained(proposal: Proposal, edge: float = math.inf) -> CellResult:
    outcome = "stable" if proposal.cell["lr"] < edge else "diverged"
    loss = bowl(proposal.cell) if outcome == "stable" else 0.0  # low, until it blew up
    results = [SeedResult(seed, outcome, True, {"final_loss": loss}) for seed in range(proposal.num_seeds)]
    return CellResult(proposal.cell, tuple(results))


def run(made: Search, room: int = 8, edge: float = math.inf) -> list[CellResult]:
    known: list[CellResult] = []
    while proposals := made.propose(known, room):
        known += [trained(proposal, edge) for proposal in proposals]
    assert proposals is None, "with all results in, it does not wait"
    return known


@pytest.mark.parametrize("method", CHEAP)
def test_a_search_depends_on_nothing_but_what_is_known(method: str) -> None:
    known = run(search(method, num_trials=40))
    assert len(known) == 40
    for num in (0, 8, 16, 24, 32):
        assert search(method).propose(known[:num], 8) == search(method).propose(known[:num], 8)
        assert search(method, seed=1).propose(known[:num], 8) != search(method).propose(known[:num], 8)


@pytest.mark.parametrize("method", CHEAP)
def test_cells_lie_on_the_axes_and_none_is_proposed_twice(method: str) -> None:
    known = run(search(method))
    assert all(LR.has(result.cell["lr"]) and BETA2.has(result.cell["beta2"]) for result in known)
    assert len({tuple(result.cell.items()) for result in known}) == len(known) == 64


@pytest.mark.parametrize("method", one_of(3, ["tpe", "nsga2", "cmaes"]))
def test_it_finds_lower_losses_than_chance(method: str) -> None:
    middle = sorted(bowl(result.cell) for result in run(search("random")))[32]
    later = [bowl(result.cell) for result in run(search(method, num_trials=112))[-16:]]
    assert sum(loss < middle for loss in later) >= 12


@pytest.mark.slow
def test_gaussian_processes_find_the_lowest_loss() -> None:
    known = run(search("gp", num_trials=24))
    assert min(bowl(result.cell) for result in known) < 0.01


@pytest.mark.parametrize("method", ["tpe", "nsga2", "cmaes"])
def test_a_diverged_trial_is_a_bad_result_however_low_its_last_loss(method: str) -> None:
    known = run(search(method), edge=0.003)
    beyond = [result.cell["lr"] >= 0.003 for result in known]
    assert sum(beyond[-16:]) < sum(beyond[:16]) * 0.7


@pytest.mark.parametrize("method", ["tpe", "nsga2"])
def test_a_share_of_stable_seeds_can_be_asked_for(method: str) -> None:
    """Where most of the low losses are spiked, a search that asks for stable seeds stays away from there."""

    def spiked(proposal: Proposal) -> CellResult:
        outcome = "spiked" if proposal.cell["lr"] > 0.003 else "stable"
        return CellResult(proposal.cell, (SeedResult(0, outcome, True, {"final_loss": bowl(proposal.cell)}),))

    spikes = {}
    for stable in (None, 1.0):
        known: list[CellResult] = []
        made = search(method, stable=stable)
        while proposals := made.propose(known, 8):
            known += [spiked(proposal) for proposal in proposals]
        spikes[stable] = sum(result.seeds[0].outcome == "spiked" for result in known[-24:])
    assert spikes[1.0] < spikes[None]


def test_a_pruned_trial_is_told_with_its_loss_and_does_not_count_against_stability() -> None:
    made = search("tpe", stable=1.0)

    def told(*outcomes: str):
        seeds = tuple(SeedResult(i, outcome, True, {"final_loss": 3.0}) for i, outcome in enumerate(outcomes))
        cell = CellResult({"lr": 0.01, "beta2": 0.99}, seeds)
        return made._optuna_trial(cell, {axis.name: _distribution(axis) for axis in made.axes}, [9.0], 0.0)

    assert told("stable", "pruned").values == [3.0]
    lacking = [told(*outcomes).constraints for outcomes in (("stable", "pruned"), ("pruned",), ("spiked", "pruned"))]
    assert [found["stable"] for found in lacking] == [0.0, 0.0, 0.5]


def test_two_metrics_are_weighed_against_each_other() -> None:
    known: list[CellResult] = []
    made = search("nsga2", metrics=("final_loss", "steps_done"), num_trials=96)
    while proposals := made.propose(known, 8):
        for proposal in proposals:
            lr = math.log10(proposal.cell["lr"])
            metrics = {"final_loss": (lr + 3) ** 2, "steps_done": (lr + 1) ** 2}
            known.append(CellResult(proposal.cell, (SeedResult(0, "stable", True, metrics),)))
    late = [math.log10(result.cell["lr"]) for result in known[-POPULATION:]]
    assert sum(-3.2 < lr < -0.8 for lr in late) >= 0.7 * POPULATION, "between the two optima"


@pytest.mark.parametrize("method", CHEAP)
def test_cells_that_wait_are_not_proposed_again_and_at_the_end_it_waits_for_them(method: str) -> None:
    made, known = search(method, num_trials=32), []
    while len(known) < 32:
        proposals = made.propose(known, 4)
        if not proposals:
            assert method in GENERATIONS, "the next generation needs the results of this one"
            known = [trained(Proposal(result.cell, 1)) for result in known]
            continue
        known += [CellResult(proposal.cell, (SeedResult(0, None, False),)) for proposal in proposals]
    assert len({tuple(result.cell.items()) for result in known}) == 32
    assert made.propose(known, 4) in ([], None)


@pytest.mark.parametrize("method", CHEAP)
def test_trials_that_were_given_up_do_not_end_a_search(method: str) -> None:
    made, known = search(method, num_trials=40), []
    while proposals := made.propose(known, 8):
        for number, proposal in enumerate(proposals):
            lost = CellResult(proposal.cell, (SeedResult(0, None, True),))
            known.append(lost if number % 3 == 0 else trained(proposal))
    assert len(known) == 40


def test_all_seeds_of_a_cell_count_towards_the_trials() -> None:
    known = run(search("tpe", num_seeds=3, num_trials=32))
    assert [len(result.seeds) for result in known] == [3] * 10


def test_listed_numbers_and_words_are_kept_as_they_are() -> None:
    axes = (Axis("clip", "values", (0.1, 0.3, 1.0)), Axis("schedule", "values", ("cosine", "linear")), LR)
    known: list[CellResult] = []
    made = search("tpe", axes=axes)
    while proposals := made.propose(known, 8):
        known += [CellResult(p.cell, (SeedResult(0, "stable", True, {"final_loss": p.cell["lr"]}),)) for p in proposals]
    assert {result.cell["clip"] for result in known} == {0.1, 0.3, 1.0}
    assert {result.cell["schedule"] for result in known} == {"cosine", "linear"}


def test_in_batches_what_is_tried_does_not_depend_on_the_order_of_results() -> None:
    made = InBatches(search("tpe"), 8)
    first = made.propose((), 1)
    assert first is not None
    assert len(first) == 8, "whatever the room"
    waiting = [CellResult(p.cell, (SeedResult(0, None, False),)) for p in first[:1]]
    assert made.propose([*waiting, *map(trained, first[1:])], 8) == []
    assert made.propose([trained(p) for p in first], 3) == made.propose([trained(p) for p in first], 100)


def test_listed_cells_are_proposed_all_at_once_and_then_it_is_over() -> None:
    cells = [{"lr": 0.1}, {"lr": 0.2}]
    made = ListedCells(cells, 2)
    assert made.propose((), 1) == [Proposal(cell, 2) for cell in cells]
    one_seed = CellResult({"lr": 0.1}, (SeedResult(0, "stable", True),))
    assert made.propose([one_seed], 1) == [Proposal(cell, 2) for cell in cells]
    full = [CellResult(cell, (SeedResult(0, None, False), SeedResult(1, None, False))) for cell in cells]
    assert made.propose(full, 1) is None


AXES = [
    Axis("lr", "log", (), (1e-6, 1.0)),
    Axis("beta2", "log1m", (), (0.0, 0.9999)),
    Axis("warmup", "linear", (), (0, 100), is_integer=True),
    Axis("schedule", "values", ("cosine", "linear")),
]


@pytest.mark.parametrize("method", METHODS)
def test_a_larger_number_begins_with_the_same_cells(method: str) -> None:
    large = sample_cells(AXES, method, 40, seed=3)
    assert sample_cells(AXES, method, 11, seed=3) == large[:11]
    assert sample_cells(AXES, method, 11, seed=4) != large[:11]


@pytest.mark.parametrize("method", METHODS)
def test_cells_are_even_on_each_axis_own_scale(method: str) -> None:
    cells = sample_cells(AXES, method, 256, seed=0)
    lr, beta2 = (np.array([cell[name] for cell in cells]) for name in ("lr", "beta2"))
    assert np.mean(lr < 1e-3) == pytest.approx(0.5, abs=0.12)
    assert np.mean(beta2 < 0.99) == pytest.approx(0.5, abs=0.12)
    assert all(isinstance(cell["warmup"], int) for cell in cells)
    assert {cell["schedule"] for cell in cells} == {"cosine", "linear"}


def test_sobol_covers_more_evenly_than_chance() -> None:
    def largest_gap(method: str) -> float:
        lr = np.sort([np.log10(cell["lr"]) for cell in sample_cells(AXES, method, 128, seed=0)])
        return float(np.diff(lr).max())

    assert largest_gap("sobol") < 0.6 * largest_gap("random")


def test_optuna_proposes_the_same_when_it_is_asked_one_trial_after_the_other() -> None:
    # The trial in the middle stands for those from which Optuna's sampler learns the search space.
    cube = {axis.name: optuna.distributions.FloatDistribution(0.0, 1.0) for axis in AXES}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(sampler=optuna.samplers.QMCSampler(qmc_type="sobol", scramble=True, seed=5))
    study.add_trial(optuna.trial.create_trial(params=dict.fromkeys(cube, 0.5), distributions=cube, value=0.0))
    cells = []
    for _ in range(30):
        proposed = study.ask(fixed_distributions=cube)
        cells.append({axis.name: axis.at(proposed.params[axis.name]) for axis in AXES})
        study.tell(proposed, 0.0)
    assert sample_cells(AXES, "sobol", 30, seed=5) == cells


@pytest.mark.parametrize("method", METHODS)
def test_the_work_for_a_cell_does_not_grow_with_their_number(method: str) -> None:
    def num_calls(num: int) -> int:
        calls = 0

        def count(*_) -> None:
            nonlocal calls
            calls += 1

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            sample_cells(AXES[:2], method, num, seed=0)
        finally:
            sys.setprofile(before)
        return calls

    num_calls(10)  # imports
    few, more, most = (num_calls(num) for num in (100, 200, 300))
    assert (most - more) - (more - few) < 0.01 * most


PARAMETERS = [
    Parameter("idle", 0.0, 1.0),
    Parameter("strong", -3.0, 0.0),
    Parameter("weak", choices=("a", "b")),
]


def planted(num: int = 120, seed: int = 0) -> tuple[list[dict], list[float]]:
    """A result that ``strong`` moves most, ``weak`` a little and ``idle`` not at all."""
    random = np.random.default_rng(seed)
    rows = [
        {"idle": random.uniform(0, 1), "strong": random.uniform(-3, 0), "weak": random.choice(["a", "b"])}
        for _ in range(num)
    ]
    return rows, [abs(row["strong"] + 1) + 0.6 * (row["weak"] == "b") for row in rows]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_idle_parameter_has_the_lowest_share_and_the_strongest_the_highest(seed: int) -> None:
    found = importances(PARAMETERS, *planted(seed=seed), best=0.2)
    assert tuple(found) == EVALUATORS
    for shares in found.values():
        assert shares is not None
        assert sorted(shares, key=shares.__getitem__) == ["idle", "weak", "strong"]
        assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("kinds", [("idle", "strong"), ("weak",), ("idle", "many", "strong", "weak")])
def test_shares_of_the_variance_are_those_of_optuna(kinds: tuple[str, ...]) -> None:
    rows, results = planted(80)
    parameters = [*PARAMETERS, Parameter("many", choices=tuple(f"choice {i}" for i in range(4)))]
    used = [each for each in parameters if each.name in kinds]
    rows = [{**row, "many": f"choice {i % 4}"} for i, row in enumerate(rows)]
    rows = [{each.name: row[each.name] for each in used} for row in rows]
    distributions = {each.name: study.distribution(each) for each in used}
    theirs = optuna.create_study()
    for row, result in sorted(zip(rows, results, strict=True), key=lambda pair: (*map(str, pair[0].values()), pair[1])):
        theirs.add_trial(optuna.trial.create_trial(params=row, distributions=distributions, value=result))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    expected = optuna.importance.get_param_importances(theirs, evaluator=evaluator)
    assert importances(used, rows, results, 0.2)["fanova"] == pytest.approx(expected, rel=1e-4)


def test_a_choice_among_a_hundred_is_read_without_the_combinations_of_its_columns() -> None:
    names = tuple(f"optimizer {i}" for i in range(100))
    parameters = [Parameter("many", choices=names), Parameter("idle", 0.0, 1.0)]
    rows = [{"many": name, "idle": seed / 2} for name in names for seed in range(3)]
    found = importances(parameters, rows, [math.sin(names.index(row["many"])) for row in rows], 0.2)["fanova"]
    assert found is not None
    assert found["many"] > 0.9


def test_the_order_of_the_trials_changes_nothing() -> None:
    rows, results = planted(40)
    order = np.random.default_rng(1).permutation(40)
    shuffled = importances(PARAMETERS, [rows[i] for i in order], [results[i] for i in order], 0.2)
    assert shuffled == importances(PARAMETERS, rows, results, 0.2)


@pytest.mark.parametrize(("limited", "other"), [("fanova", "ped_anova"), ("ped_anova", "fanova")])
def test_some_of_many_trials_are_looked_at_with_the_best_and_the_worst(
    limited: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, results = planted(seed=0)
    monkeypatch.setattr(study, "MOST_FANOVA", len(rows) // 4)
    whole = importances(PARAMETERS, rows, results, 0.2)
    monkeypatch.setattr(study, f"MOST_{limited.upper()}", len(rows) // 2)
    some = importances(PARAMETERS, rows, results, 0.2)
    assert some[limited] == pytest.approx(whole[limited], abs=0.2)
    assert some[limited] != whole[limited]
    assert (some[other] == whole[other]) == (limited == "fanova")
    monkeypatch.setattr(study, "MOST_FANOVA", 20)
    ends = importances(PARAMETERS, rows, [float(i == 3) for i in range(len(rows))], 0.2)
    assert ends["fanova"] is not None, "one result of all differs"


def test_ped_anova_sees_only_the_order_of_the_results() -> None:
    rows, results = planted(40)
    first = importances(PARAMETERS, rows, results, 0.2)["ped_anova"]
    assert importances(PARAMETERS, rows, [math.exp(5 * result) for result in results], 0.2)["ped_anova"] == first


def test_where_all_results_are_equal_nothing_moves_them() -> None:
    rows, _ = planted(20)
    assert importances(PARAMETERS, rows, [1.0] * 20, 0.2) == {"ped_anova": None, "fanova": None}


def test_where_only_one_cell_was_tried_its_seeds_say_nothing_about_the_parameters() -> None:
    rows = [{"idle": 0.5, "strong": -1.0, "weak": "a"}] * 6
    assert importances(PARAMETERS, rows, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.5)["fanova"] is None


@pytest.mark.parametrize("best", [0.2, 0.6])
def test_the_good_trials_differ_as_those_of_a_study_of_optuna_do(best: float) -> None:
    rows, results = planted(60)
    rows, results = [*rows, *rows[:20]], [*results, *results[20:40]]
    distributions = {each.name: study.distribution(each) for each in PARAMETERS}
    theirs = optuna.create_study()
    for row, result in zip(rows, results, strict=True):
        theirs.add_trial(optuna.trial.create_trial(params=row, distributions=distributions, value=result))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=best)
    expected = optuna.importance.get_param_importances(theirs, evaluator=evaluator)
    assert importances(PARAMETERS, rows, results, best)["ped_anova"] == pytest.approx(expected, rel=1e-12)
