"""What a value gains over the base, in cases that are counted by hand."""

import math

import pytest
from scipy.stats import ttest_1samp
from sweep_cases import trial_row

from orchestrator.base.space import Cell
from orchestrator.base.vocabulary import PRUNED
from orchestrator.maps.gains import Gains, LowestLoss, Trials, gains


def trials(*outcomes: str | None, losses: tuple[float | None, ...] = (), seeds: int = 1) -> Trials:
    """Trials of cells 0, 1, 2 ... with ``seeds`` each; ``degraded`` is stable and hardly learned, None has failed."""
    found = {}
    for i, outcome in enumerate(outcomes):
        share = {"learned_share": 0.1} if outcome == "degraded" else {}
        status = "errored" if outcome is None else "finished"
        loss = losses[i] if losses else 1.0
        label = "stable" if outcome == "degraded" else outcome
        cell = Cell(lr=i // seeds)
        row = trial_row(cell=cell, seed=i % seeds, outcome=label, status=status, final_loss=loss, **share)
        found[cell, i % seeds] = row
    return found


def told(base: Trials, new: Trials) -> Gains:
    found = gains(base, new)
    assert found is not None
    return found


def test_a_run_is_saved_or_harmed_where_only_one_of_its_pair_is_stable() -> None:
    base = trials("diverged", "spiked", "stalled", "diverged", "stable", "stable", "stable")
    new = trials("stable", "stable", "spiked", "diverged", "stable", "stalled", "diverged")
    found = told(base, new)
    assert (found.num_pairs, found.unstable, found.saved, found.stable, found.harmed) == (7, 4, 2, 3, 2)
    assert (found.saved_interval, found.harmed_interval) == (None, None), "one seed"


def test_the_same_trials_save_and_harm_none_and_change_no_loss() -> None:
    base = trials("stable", "diverged", losses=(0.5, None))
    found = told(base, base)
    assert (found.saved, found.unstable, found.harmed, found.stable) == (0, 1, 0, 1)
    assert (found.loss_change, found.num_losses, found.saved_loss) == (0.0, 1, None)
    assert found.best == found.best_of_base == LowestLoss(Cell(lr=0), 0.5)


def test_trials_without_a_partner_that_has_a_result_are_left_out() -> None:
    base = trials("diverged", "diverged", None, "stable", "stable")
    new = {**trials("stable", None, "stable", PRUNED), (Cell(lr=9), 0): trial_row(cell=Cell(lr=9), outcome="diverged")}
    found = told(base, new)
    assert (found.num_pairs, found.unstable, found.saved, found.stable, found.harmed) == (1, 1, 1, 0, 0)
    assert gains(trials(None), trials("stable")) is None
    assert gains({}, trials("stable")) is None


def test_where_all_runs_are_stable_none_can_be_saved() -> None:
    found = told(trials("stable", "stable"), trials("stable", "diverged"))
    assert (found.unstable, found.saved, found.saved_interval, found.saved_loss) == (0, 0, None, None)
    assert (found.harmed, found.stable, found.harmed_interval) == (1, 2, None)


def test_where_no_run_is_stable_none_can_be_harmed_and_no_loss_compared() -> None:
    found = told(trials("diverged", "spiked"), trials("diverged", "stable", losses=(None, 0.25)))
    assert (found.stable, found.harmed, found.harmed_interval) == (0, 0, None)
    assert (found.num_losses, found.loss_change, found.loss_change_interval) == (0, None, None)
    assert (found.best_of_base, found.best, found.saved_loss) == (None, LowestLoss(Cell(lr=1), 0.25), 0.25)


def test_the_change_of_loss_is_the_median_over_pairs_of_which_both_are_stable() -> None:
    base = trials(*["stable"] * 6, "spiked", "stable", losses=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0, 9.0))
    new = trials(*["stable"] * 7, "diverged", losses=(1.5, 1.0, 2.9, 4.0, 7.0, 5.75, 0.1, 100.0))
    found = told(base, new)
    assert found.num_losses == 6
    assert found.loss_change == pytest.approx((-0.1 + 0.0) / 2)  # of -1, -0.25, -0.1, 0, 0.5 and 2
    assert found.loss_change_interval is None


@pytest.mark.parametrize("num", [5, 6])
def test_intervals_are_over_seeds_from_six_on(num: int) -> None:
    base = trials(*["diverged"] * num, *["stable"] * num, seeds=num, losses=(*[0.0] * num, *range(num)))
    new = trials("stable", *["diverged"] * (num - 1), *["stable"] * num, seeds=num, losses=(0.0,) * (2 * num))
    found = told(base, new)
    saved, changes = [1] + [0] * (num - 1), [-float(i) for i in range(num)]
    if num < 6:
        assert (found.saved_interval, found.loss_change_interval) == (None, None)
        return
    ends = ttest_1samp(saved, 0).confidence_interval()
    assert found.saved_interval == pytest.approx((max(0, ends.low), ends.high))
    assert found.loss_change_interval == pytest.approx(tuple(ttest_1samp(changes, 0).confidence_interval()))
    assert found.harmed_interval is None, "no seed differs"


def test_losses_that_are_missing_or_not_finite_are_left_out() -> None:
    base = trials(*["stable"] * 4, "diverged", "diverged", losses=(1.0, math.nan, 1.0, math.inf, None, None))
    new = trials(*["stable"] * 6, losses=(0.5, 1.0, None, math.inf, math.nan, 0.75))
    found = told(base, new)
    assert (found.num_losses, found.loss_change, found.saved, found.saved_loss) == (1, -0.5, 2, 0.75)
    assert found.best == LowestLoss(Cell(lr=0), 0.5)


def test_a_degraded_run_is_not_saved_and_a_stable_one_that_becomes_degraded_is_harmed() -> None:
    found = told(trials("diverged", "diverged", "stable"), trials("degraded", "stable", "degraded"))
    assert (found.saved, found.harmed, found.best) == (1, 1, LowestLoss(Cell(lr=1), 1.0))


def test_the_best_cell_has_the_lowest_median_of_those_that_are_stable_on_every_seed() -> None:
    outcomes = ["stable"] * 6 + ["stable", "stable", "spiked"]
    losses = (1.0, 2.0, 9.0, 1.0, 1.5, 99.0, 0.1, 0.1, 0.1)
    found = told(trials(*outcomes, losses=losses, seeds=3), trials(*["diverged"] * 9, seeds=3))
    assert (found.best_of_base, found.best) == (LowestLoss(Cell(lr=1), 1.5), None)


def test_a_cell_with_a_seed_that_has_no_result_is_not_the_best() -> None:
    base = trials("stable", "stable", "stable", None, losses=(2.0, 2.0, 1.0, None), seeds=2)
    assert told(base, base).best == LowestLoss(Cell(lr=0), 2.0)
