import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.relative import (
    BEYOND_NOISE,
    LEAST_DIFFERENCE,
    LEAST_OF_ONE_SEED,
    LrHealth,
    Training,
    learned_shares,
    lr_health,
    step_noise,
    unseen_blow_ups,
)

Loss = float | str | None

# --- learned shares -------------------------------------------------------------------------------


def test_a_share_is_what_was_learned_of_what_the_best_trial_learned() -> None:
    runs = [("stable", 4.0, 2.0), ("stable", 4.0, 3.0), ("spiked", 4.0, 3.5), ("diverged", 4.0, 5.0)]
    assert learned_shares(runs) == [1.0, 0.5, 0.25, -0.5]


def test_a_network_that_ends_dead_has_learned_nothing_however_high_it_began() -> None:
    """A start-up at 9e12 or at 3.5 that ends at ln 10 is no learning; the trials of a published table of 64 runs."""
    dead = [("stable", 9e12, math.log(10)), ("stable", 3.5, math.log(10)), ("stable", 2.4, math.log(10))]
    alive = [("stable", 2.4, 0.1), ("stable", 2.4, 0.2), ("stable", 2.4, 0.3)]
    shares = learned_shares([*dead, *alive])
    assert max(shares[:3]) < 0.1
    assert min(shares[3:]) > 0.9


def test_a_lost_trial_does_not_set_what_could_be_learned() -> None:
    """A trial that was lost at a low loss has not shown that one can stay there."""
    assert learned_shares([("diverged", 4.0, 0.5), ("stable", 4.0, 2.0)]) == [1.75, 1.0]


def test_there_is_no_share_without_losses_or_if_no_trial_has_learned() -> None:
    runs = [("stable", 4.0, 2.0), ("diverged", 4.0, None), (None, None, None), ("unknown", 4.0, 1.0)]
    assert learned_shares(runs) == [1.0, None, None, None]
    assert learned_shares([("stalled", 4.0, 4.0), ("stable", 4.0, 3.99)]) == [None, None], "shares of noise"
    assert learned_shares([("diverged", 4.0, 9.0)]) == [None]
    assert learned_shares([]) == []


@given(st.lists(st.floats(1, 10), min_size=1, max_size=8), st.floats(0.1, 100.0), st.floats(-50, 50))
def test_a_share_is_the_same_in_other_units_of_the_loss_and_the_best_has_all(
    finals: list[float], factor: float, shift: float
) -> None:
    shares = learned_shares([("stable", 1000.0, final) for final in finals])
    scaled = learned_shares([("stable", factor * 1000.0 + shift, factor * final + shift) for final in finals])
    assert shares == pytest.approx(scaled)
    assert max(shares) == 1.0
    assert shares[finals.index(min(finals))] == 1.0


# --- learning rates -------------------------------------------------------------------------------


def trainings(cells: Mapping[float, Sequence[Loss]]) -> list[Training]:
    """The seeds of each learning rate by their final losses; a text is an outcome, which ends at 4."""
    return [
        Training(rate, seed, loss if isinstance(loss, str) else "stable", 4.0, 4.0 if isinstance(loss, str) else loss)
        for rate, losses in cells.items()
        for seed, loss in enumerate(losses)
    ]


def labels(cells: Mapping[float, Sequence[Loss]]) -> list[str | None]:
    """The label of each learning rate, by the first seed."""
    chosen = trainings(cells)
    return [health.label for training, health in zip(chosen, lr_health(chosen), strict=True) if not training.seed]


BOWL = {1e-4: (3.5, 3.6), 1e-3: (2.5, 2.55), 1e-2: (2.0, 2.05), 1e-1: (2.3, 2.4), 1.0: ("diverged", "diverged")}


def test_below_the_lowest_loss_is_too_slow_and_above_it_is_oscillating() -> None:
    assert labels(BOWL) == ["too slow", "too slow", "right", "oscillating", None]


def test_regret_is_the_loss_over_the_lowest_of_the_same_seed() -> None:
    assert [health.regret for health in lr_health(trainings(BOWL))] == pytest.approx(
        [1.5, 1.55, 0.5, 0.5, 0.0, 0.0, 0.3, 0.35, None, None], nan_ok=True
    )


def test_a_single_learning_rate_has_no_label() -> None:
    assert labels({1e-3: (2.0, 2.1)}) == [None]
    assert lr_health([]) == []


def test_trainings_without_a_judged_result_have_no_label_and_count_for_nothing() -> None:
    cells = trainings({1e-3: (2.5, None), 1e-2: ("unknown", "pruned"), 1e-1: (2.0, 2.0)})
    assert [health.label for health in lr_health(cells)] == ["too slow", None, None, None, "unknown", "unknown"]
    assert lr_health([Training(1e-3, 0, "stable", 4.0, 2.0), Training(1e-2, 0, None, None, None)]) == [LrHealth()] * 2


def test_a_difference_within_the_noise_of_the_seeds_is_none() -> None:
    noisy = {1e-4: (3.0, 2.0), 1e-3: (2.5, 1.5), 1e-2: (2.0, 3.0)}
    assert labels(noisy) == ["right"] * 3, f"seeds scatter by 0.7, and it takes {BEYOND_NOISE} times that"
    least = 2.0 * (1 + LEAST_DIFFERENCE)
    assert labels({1e-4: (least, least), 1e-3: (2.0, 2.0), 1e-2: (2.0, 2.0)})[0] == "right"
    assert labels({1e-4: (least + 0.01,) * 2, 1e-3: (2.0, 2.0), 1e-2: (2.0, 2.0)})[0] == "too slow"


def test_noise_is_not_measured_where_little_is_learned() -> None:
    cells = {1e-4: (3.9, 2.9), 1e-3: (2.2, 2.2), 1e-2: (2.0, 2.0)}
    assert labels(cells)[1] == "too slow"
    only_degraded = [t._replace(is_degraded=t.rate > 1e-4) for t in trainings(cells)]
    assert lr_health(only_degraded)[2].label == "right", "now the noise is 0.7"


def test_a_single_seed_has_no_noise_and_needs_a_larger_difference() -> None:
    least = 2.0 * (1 + LEAST_OF_ONE_SEED)
    assert labels({1e-4: (least,), 1e-3: (2.0,), 1e-2: (2.0,)})[0] == "right"
    assert labels({1e-4: (least + 0.02,), 1e-3: (2.0,), 1e-2: (2.0,)})[0] == "too slow"


def test_where_all_is_learned_no_difference_matters() -> None:
    assert labels({1e-4: (1e-5,), 1e-3: (1e-9,), 1e-2: (1e-12,)}) == ["right"] * 3


def test_the_lowest_loss_at_an_end_of_what_was_tried_is_not_known_to_be_right() -> None:
    assert labels({1e-4: (3.0,), 1e-3: (2.5,), 1e-2: (2.0,)}) == ["too slow", "too slow", "unknown"]
    assert labels({1e-4: (2.0,), 1e-3: (2.5,), 1e-2: (3.0,)}) == ["unknown", "oscillating", "oscillating"]
    assert labels({1e-3: (2.5,), 1e-2: (2.0,), 1e-1: ("diverged",)})[1] == "right", "the edge ends the row there"
    assert labels({1e-3: (2.0,), 1e-2: (2.0,)}) == ["right", "right"], "the row is flat"


def test_only_cells_whose_seeds_are_all_stable_are_judged_and_judge_others() -> None:
    cells = {1e-3: (2.5, 2.5), 1e-2: (2.48, 2.5), 1e-1: (1.0, "spiked")}
    assert labels(cells) == ["right", "right", None]


def test_without_a_stable_neighbour_the_label_is_unknown() -> None:
    assert labels({1e-3: (2.5,), 1e-2: ("diverged",)}) == ["unknown", None]


def test_a_training_that_stalled_is_too_slow_only_below_one_that_learns() -> None:
    assert labels({1e-6: ("stalled",), 1e-3: (2.0,), 1e-2: (2.0,)}) == ["too slow", "right", "right"]
    assert labels({1e-3: (2.0,), 1e-2: (2.0,), 1e-1: ("stalled",)})[-1] == "unknown"


def test_curves_are_read_only_where_the_final_loss_leaves_the_label_open() -> None:
    asked: list[int] = []

    def noise_of(i: int) -> float:
        asked.append(i)
        return 1.0 if i == 3 else 0.1

    cells = trainings({1e-4: (2.5,), 1e-3: (2.0,), 1e-2: (2.0,), 1e-1: (2.0,), 1.0: (9.0,)})
    assert [health.label for health in lr_health(cells, noise_of)] == [
        "too slow", "right", "right", "oscillating", "oscillating",
    ]  # fmt: skip
    assert set(asked) == {1, 2, 3}, "the first is too slow, and the last oscillates by its final loss"


@given(st.lists(st.floats(0.5, 3.5), min_size=2, max_size=6), st.floats(0.5, 100.0))
def test_labels_are_the_same_in_other_units_of_the_rate_and_the_lowest_loss_is_never_to_be_left(
    losses: list[float], factor: float
) -> None:
    rates = [10.0**i for i in range(len(losses))]
    found = labels(dict(zip(rates, [(loss,) for loss in losses], strict=True)))
    assert found[losses.index(min(losses))] in ("right", "unknown")
    assert labels({rate * factor: (loss,) for rate, loss in zip(rates, losses, strict=True)}) == found


def test_the_noise_of_steps_is_their_deviation_and_a_smooth_descent_has_hardly_any() -> None:
    noise = np.random.default_rng(0).normal(2.0, 0.1, 40_000)
    assert step_noise(noise) == pytest.approx(0.1, rel=0.05)
    assert step_noise(1 + 3 * np.exp(-np.arange(200) / 20)) < 1e-4
    assert step_noise(np.array([1.0, np.nan] * 10)) == 0.0


# --- blow-ups that nobody saw ----------------------------------------------------------------------


def drawn(random: np.random.Generator, place_Nd: np.ndarray, rate_N: np.ndarray, steep: float) -> list[Training]:
    """Healthy trainings whose first losses rise or fall along each other setting; low rates learn slowly."""
    base_N = np.exp(place_Nd @ random.normal(0, steep, place_Nd.shape[1]) + 0.05 * random.standard_normal(len(rate_N)))
    speed_N = np.clip(np.log10(rate_N / 1e-4) / 2, 0.02, 1)
    first_N = 4 * base_N * np.exp(-speed_N * random.uniform(0, 0.5, len(rate_N)))
    final_N = np.minimum(first_N, 4 * base_N * (0.15 + 0.85 * np.exp(-3 * speed_N)))
    columns = (column_N.tolist() for column_N in (rate_N, first_N, final_N))
    return [Training(rate, 0, "stable", first, final) for rate, first, final in zip(*columns, strict=True)]


def share_found(draws: Iterable[tuple[list[Training], dict]]) -> float:
    """The share of planted blow-ups that is found, among draws of healthy trainings, none of which is."""
    num_planted = num_found = 0
    for healthy, how in draws:
        assert unseen_blow_ups(healthy, StoppingConfig(), **how) == {}
        blown = [
            run._replace(initial_loss=10 * run.initial_loss, final_loss=9 * run.initial_loss) if run.rate > 0.1 else run
            for run in healthy
        ]
        found = unseen_blow_ups(blown, StoppingConfig(), **how)
        assert all(blown[i].rate > 0.1 for i in found)
        num_planted += sum(run.rate > 0.1 for run in blown)
        num_found += len(found)
    return num_found / num_planted


def scattered(num_others: int, steep: float) -> Iterator[tuple[list[Training], dict]]:
    for seed in range(20):
        random = np.random.default_rng(seed)
        place_Nd, rate_N = random.uniform(-1, 1, (60, num_others)), 10 ** random.uniform(-4, 0, 60)
        yield drawn(random, place_Nd, rate_N, steep), {"places": place_Nd.tolist()}


def zipped(steep: float) -> Iterator[tuple[list[Training], dict]]:
    for seed in range(100):
        place_Nd, rate_N = np.linspace(-1, 1, 8)[:, None], 10 ** np.linspace(-4, 0, 8)
        yield drawn(np.random.default_rng(seed), place_Nd, rate_N, steep), {"is_zipped": True}


@pytest.mark.parametrize(
    ("steep", "expected"), [(0.03, [0.95, 0.70, 0.22]), (1.0, [0.63, 0.30, 0.06]), (2.0, [0.39, 0.18, 0.02])]
)
def test_no_healthy_scattered_training_has_blown_up_unseen(steep: float, expected: list[float]) -> None:
    """The figures of docs/detection.md, with one, two and three other axes."""
    assert [share_found(scattered(num, steep)) for num in (1, 2, 3)] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(("steep", "expected"), [(0.03, 1.0), (1.0, 0.5), (2.0, 0.32)])
def test_no_healthy_training_has_blown_up_where_another_setting_advances_with_the_rate(
    steep: float, expected: float
) -> None:
    """The figures of docs/detection.md."""
    assert share_found(zipped(steep)) == pytest.approx(expected, abs=0.01)
