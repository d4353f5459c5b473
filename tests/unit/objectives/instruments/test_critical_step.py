"""The smallest step that raises the loss: of known functions, and of the built-in objectives at their edge."""

import math

import numpy as np
import pytest
import torch
from pack_cases import trainer_of
from tiers import one_of

from objectives.base import OBJECTIVES, FunctionFitConfig, GptConfig, QuadraticConfig, RouterConfig, RowSpec
from objectives.instruments.critical_step import PASSES, PASSES_AT_FIRST, critical_steps

GPT = {"width": 8, "heads": 2, "context": 8, "batch_size": 2}


def counted(function):
    """The function as losses, and the steps that were tried."""
    tried: list[torch.Tensor] = []

    def losses(step_R: torch.Tensor) -> torch.Tensor:
        tried.append(step_R)
        return function(step_R)

    return losses, tried


def test_on_a_quadratic_it_is_twice_the_slope_over_the_curvature() -> None:
    slope_R = torch.tensor([1.0, 1e-3, 40.0, 7.0], dtype=torch.float64)
    curved_R = torch.tensor([1.0, 1.0, 1e-2, 1e3], dtype=torch.float64)
    losses, tried = counted(lambda step_R: 5.0 - slope_R * step_R + curved_R * step_R.square() / 2)
    found_R = critical_steps(losses, torch.zeros(4))
    torch.testing.assert_close(found_R, 2 * slope_R / curved_R, rtol=1e-9, atol=0)
    assert len(tried) == PASSES_AT_FIRST


@pytest.mark.parametrize("factor", [1.0, 1.3, 0.7, 3.0, 0.2])
def test_a_search_that_starts_near_takes_half_the_passes(factor: float) -> None:
    """On a loss that is far from a quadratic it is found within a hundredth, by however much it moved meanwhile."""
    losses, tried = counted(lambda step_R: torch.cosh(step_R - 1.0))  # falls until 1 and is back at 2
    found_R = critical_steps(losses, torch.tensor([2.0 * factor]))
    assert float(found_R) == pytest.approx(2.0, rel=1e-2)
    assert len(tried) == PASSES


@pytest.mark.parametrize(
    "loss",
    [lambda step_R: step_R, lambda step_R: -step_R, lambda step_R: 0 * step_R, lambda step_R: step_R + math.nan],
    ids=["rises at once", "never rises", "is flat", "is not a number"],
)
def test_without_a_step_on_either_side_it_is_unknown(loss) -> None:
    assert critical_steps(loss, torch.ones(1)).isnan().all()


def test_a_loss_that_overflows_counts_as_raised() -> None:
    found_R = critical_steps(lambda step_R: torch.where(step_R > 3, math.inf, 1 - step_R), torch.zeros(1))
    assert float(found_R) == pytest.approx(3.0, rel=0.1)


def test_a_member_s_result_depends_on_its_own_losses_alone() -> None:
    """Bit for bit, although a member without an earlier search takes more passes than the others."""
    slope_R = torch.tensor([1.0, 0.3, 2.0])
    losses = lambda of: lambda step_R: torch.exp(step_R) - (1 + of) * step_R  # noqa: E731
    together_R = critical_steps(losses(slope_R), torch.tensor([0.0, 1.0, 0.5]))
    for k, start in enumerate((0.0, 1.0, 0.5)):
        alone = critical_steps(losses(slope_R[k : k + 1]), torch.tensor([start]))
        assert torch.equal(alone, together_R[k : k + 1])


def ratio(readings: dict[str, torch.Tensor]) -> float:
    return float(readings["lambda_crit"][0] / readings["curvature_threshold"][0])


@pytest.mark.parametrize(("beta1", "share"), one_of(4, [(0.0, 0.9), (0.0, 0.99), (0.9, 0.9999), (0.9, 1.0)]))
def test_on_the_quadratic_it_reaches_one_at_the_known_edge(beta1: float, share: float) -> None:
    """The edge of gradient descent with averaged momentum: lr = 2 (1 + beta1) / ((1 - beta1) curvature).

    Near it each step multiplies x by the root z of z^2 - (1 + beta1 - (1 - beta1) lr curvature) z + beta1 next to -1,
    and the ratio is (1 - z) / 2: the share of the edge without momentum, and 1 at the edge with any.
    """
    lr = share * 2 * (1 + beta1) / ((1 - beta1) * 5.0)
    half = (1 + beta1 - (1 - beta1) * lr * 5.0) / 2
    root = half - math.sqrt(half**2 - beta1)
    settings = {"optimizer": "sgd", "beta1": beta1, "warmup": 0, "weight_decay": 0.0}
    trainer = trainer_of("quadratic", [QuadraticConfig(steps=900, curvature=5.0, lr=lr, **settings)], [0])
    for _ in range(300):
        _, readings = trainer.observed_step([0], [0], 0)
    assert ratio(readings) == pytest.approx((1 - root) / 2, rel=1e-6)
    assert ratio(readings) == pytest.approx(1 if beta1 else share, rel=1e-2)


def test_it_equals_the_second_order_formula_on_a_quadratic() -> None:
    """2 g.d / (d.H d) of each step, for its update d; NaN after the momentum has carried x beyond the minimum."""
    config = QuadraticConfig(steps=99, curvature=3.0, dimension=6, lr=0.1, beta1=0.9, beta2=0.99, eps=1e-3, warmup=0)
    trainer, found, expected = trainer_of("quadratic", [config], [0]), [], []
    for _ in range(12):
        before = trainer.optimizer.params_Kn.clone()
        _, readings = trainer.observed_step([0], [0], 0)
        update, gradient = trainer.optimizer.params_Kn - before, 3.0 * before
        steps = -2 * (gradient * update).sum() / (3.0 * update.square().sum())
        expected.append(float(1 / steps) if steps > 0 else math.nan)
        found.append(ratio(readings))
    assert found == pytest.approx(expected, rel=1e-9, nan_ok=True)
    assert 0 < sum(map(math.isnan, found)) < 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"optimizer": "adamw", "lr": 0.005, "beta2": 0.999}, 1200),
        pytest.param({"optimizer": "sgd", "lr": 0.05}, 3000, marks=pytest.mark.slow),
    ],
)
def test_on_function_fit_it_settles_at_the_edge_of_stability(settings: dict[str, object], steps: int) -> None:
    """Far below 1 at first, then the median of the last third of the run is 1 within 2 %."""
    trainer = trainer_of("function_fit", [FunctionFitConfig(steps=steps, beta1=0.0, warmup=0, **settings)], [0])
    ratios = []
    for step in range(steps):
        _, readings = trainer.observed_step([0], [0] if step % 20 == 0 else [], 0)
        if step % 20 == 0:
            ratios.append(ratio(readings))
    assert min(ratios[:5]) < 0.5
    assert float(np.median(ratios[len(ratios) * 2 // 3 :])) == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(
    "config",
    [
        GptConfig(steps=9, **GPT),
        FunctionFitConfig(steps=9, width=8),
        QuadraticConfig(steps=9, noise=0.1),
        RouterConfig(steps=9),
    ],
    ids=OBJECTIVES.keys(),
)
def test_a_step_that_is_read_is_the_step_that_would_have_been_taken(config) -> None:
    name = next(n for n, objective in OBJECTIVES.items() if objective.config_class is type(config))
    plain, read = (trainer_of(name, [config] * 3, [0, 1, 2]) for _ in range(2))
    for step in range(6):
        expected = plain.step()
        found, readings = read.observed_step([0, 2], [2], 0) if step % 2 else (read.step(), {})
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        if readings:
            assert readings["lambda_crit"].isnan().tolist() == [True, False]
            assert "lambda_max" not in readings
    assert torch.equal(plain.state_dict()["params"], read.state_dict()["params"])


def test_a_search_begins_from_the_last_one_also_after_a_resume_and_in_a_new_arrangement() -> None:
    config = FunctionFitConfig(steps=99, width=8)
    first, resumed = (trainer_of("function_fit", [config] * 2, [0, 1]) for _ in range(2))
    for _ in range(3):
        first.observed_step([0, 1], [0, 1], 0)
    resumed.load_state_dict(first.state_dict())
    expected = first.observed_step([0, 1], [0, 1], 0)[1]["lambda_crit"]
    assert torch.equal(resumed.observed_step([0, 1], [0, 1], 0)[1]["lambda_crit"], expected)
    for trainer in (first, resumed):
        trainer.arrange([RowSpec(config, 1, 1)])
    pair = (trainer.observed_step([0], [0], 0)[1]["lambda_crit"] for trainer in (first, resumed))
    assert torch.equal(*pair)
