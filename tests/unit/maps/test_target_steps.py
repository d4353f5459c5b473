import numpy as np
import pytest

from orchestrator.maps.front import steps_to_target

STEP = np.arange(100, 200)
FALLING = np.linspace(2, 1, 100)


def test_the_lower_the_target_the_later_it_is_reached() -> None:
    steps = [steps_to_target(STEP, FALLING, target) for target in (1.9, 1.5, 1.1)]
    assert steps == sorted(steps)
    assert len(set(steps)) == 3


def test_the_last_of_ten_losses_whose_median_is_low_enough_is_the_step() -> None:
    loss = np.where(np.arange(100) < 50, 2.0, 1.0)
    assert steps_to_target(STEP, loss, 1.0) == 100 + 50 + 5, "six of ten are low"


def test_one_low_loss_reaches_nothing() -> None:
    loss = np.full(100, 2.0)
    loss[30] = 0.1
    assert steps_to_target(STEP, loss, 1.0) is None


@pytest.mark.parametrize("num", [0, 9])
def test_too_few_losses_have_no_level(num: int) -> None:
    assert steps_to_target(STEP[:num], np.zeros(num), 1.0) is None


def test_the_final_level_is_reached_at_the_end_at_the_latest() -> None:
    noise = 1 + 0.1 * np.random.default_rng(0).standard_normal(100)
    reached = steps_to_target(STEP, noise, float(np.median(noise[-10:])))
    assert reached is not None
    assert reached <= STEP[-1]
