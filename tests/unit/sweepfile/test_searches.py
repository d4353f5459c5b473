import pytest
from sweep_cases import search_with

from orchestrator.base.errors import InputError
from orchestrator.search.by_optuna import OptunaSearch
from orchestrator.search.protocol import CellResult, SeedResult
from orchestrator.sweepfile.searches import have_learned

GRID = ["axes={lr: {values: [0.1, 1.0]}}"]


@pytest.mark.parametrize(
    ("sets", "message", "remedy"),
    [
        (["search.method=simulated_annealing"], "'simulated_annealing' is refused", ""),
        (["search.precision=1.2"], "does not apply to tpe", "choose edge"),
        (["search.method=random", "search.stable=0.5"], "does not apply to random", "choose tpe or gp or nsga2"),
        (["search.method=cmaes", "search.stable=0.5"], "does not apply to cmaes", "choose tpe or gp or nsga2"),
        (["search.metric=[final_loss, final_loss]"], "names a metric twice", ""),
        (["search.metric=final_los"], "'final_los' is unknown", "final_loss"),
        (["search.along=lr"], "search.along: applies to the metric margin only", "add margin to search.metric"),
        (["search.metric=[final_loss, margn]"], "'margn' is unknown", "margin"),
        (
            ["search.metric=[final_loss, margin]", "search.along=depth"],
            "'depth' is not an axis",
            "ascending numbers: lr, beta1",
        ),
        (
            ["search.metric=[final_loss, margin]", "axes={optimizer: {values: [sgd, adamw]}}", "fixed={}"],
            "search.along: 'optimizer' has words",
            "none is left",
        ),
        (
            ["search={method: edge, trials: 24}", "axes.lr={values: [1.0, 0.1]}"],
            "'lr' has words or unordered values",
            "ascending numbers: beta1",
        ),
        (
            [
                "search.metric=margin",
                *(f"axes.{name}={{log: [1e-9, 1e-3]}}" for name in ("eps", "clip", "weight_decay")),
            ],
            "at most 4 axes, and there are 5",
            "fix some",
        ),
        (["search.method=cmaes", "search.metric=[final_loss, steps_done]"], "cmaes takes one metric", "nsga2 or tpe"),
        (["search.method=cmaes", "axes.beta1=null", "axes={lr: {log: [0.1, 1.0]}}"], "needs two axes", "tpe"),
        (["search.trials=2", "seeds=[0, 1, 2]"], "2 trials are fewer than one cell has seeds (3)", "fewer seeds"),
        (["search.trials=20000"], "more than max_trials = 10000", "max_trials: 20000"),
        (["sample={method: random, num: 3}"], "does not apply to a search", "remove one"),
        (["axes={}"], "the file has no axis to search over", "axes: {lr:"),
        (["seeds={start: 1, up_to: 3, where: disagreement}"], "a search itself decides", "seeds: [0, 1, 2]"),
        (["search=null", "seeds={start: 3, up_to: 3, where: disagreement}", *GRID], "is not more than start", "raise"),
        (["search=null", "seeds={start: 1, up_to: 3, where: everywhere}", *GRID], "'everywhere' is refused", ""),
        (["search=null", "seeds={start: 1, upto: 3}", *GRID], "unknown key", "up_to"),
        (
            ["search=null", "seeds={start: 1, up_to: 3, where: disagreement}", "sample={method: random, num: 3}"],
            "have no neighbours",
            "seeds: [0, 1, 2]",
        ),
        (["search.batch=0"], "'0' is refused", ""),
        (["budget.until=tomorrow"], "should be a time such as 2026-12-24T08:00", ""),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_a_remedy(sets: list[str], message: str, remedy: str) -> None:
    with pytest.raises(InputError) as refused:
        search_with(*sets)
    assert message.replace("'0'", "0") in str(refused.value).replace("'0'", "0")
    assert remedy in str(refused.value)


def test_values_that_do_not_fit_together_are_found_at_the_corners_of_the_axes() -> None:
    with pytest.raises(InputError, match=r"(?s)width.*heads|heads.*width"):
        search_with("objective=gpt", "axes={width: {values: [8, 10]}, heads: {values: [2, 4]}}", "fixed={depth: 1}")


def test_a_search_is_not_a_grid_and_its_first_trials_are_what_it_would_propose() -> None:
    sweep = search_with()
    assert sweep.is_open
    assert (sweep.max_trials, len(sweep.trials)) == (24, 4)
    assert [trial.cell for trial in sweep.trials] == [p.cell for p in sweep.search.propose((), 4) or []]


def test_margins_are_along_the_first_axis_or_the_one_that_is_named() -> None:
    for sets, along in (([], "lr"), (["search.along=beta1"], "beta1")):
        search = search_with("search.metric=[final_loss, margin]", "search.batch=null", *sets).search
        assert isinstance(search, OptunaSearch)
        assert search.margins.along == along


def test_half_of_what_the_best_cell_learned_is_enough_whatever_it_is_worth_later() -> None:
    def cell(*losses: float) -> CellResult:
        seeds = (SeedResult(0, "stable", True, {"initial_loss": 9.0, "final_loss": loss}) for loss in losses)
        return CellResult({"lr": losses[0]}, tuple(seeds))

    known = [cell(4.0), cell(7.0), cell(4.0, 7.0), CellResult({"lr": 0.0}, (SeedResult(0, None, False),))]
    assert have_learned(known) == [True, False, False, True]
    assert have_learned([*known, cell(-8.0)]) == [False, False, False, True, True]


def test_axes_with_and_without_num_may_be_mixed() -> None:
    sweep = search_with("axes.beta1={linear: [0.0, 0.9], num: 4}")
    assert [axis.values for axis in sweep.axes] == [(), (0.0, 0.3, 0.6, 0.9)]
    assert {trial.cell["beta1"] for trial in sweep.trials} <= {0.0, 0.3, 0.6, 0.9}
