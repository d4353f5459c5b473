"""What is known of curvature at the edge of stability, found again by the product's own packs.

Numbers of Cohen et al. (arXiv 2207.14484) and Bai et al. (arXiv 2506.04805); tolerances are in the docstrings.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch
from curvature_cases import divisor_of, factor_of, graph_of, measured_step
from pack_cases import trainer_of

from objectives.base import FunctionFitConfig, QuadraticConfig
from objectives.instruments.curvature import measure_curvature

# Shapes: R members, T steps.

CURVATURE = 3.0
NUM_LRS, NUM_STEPS = 64, 600
FIT = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "width": 64, "num_points": 200}


def quadratics(lrs: np.ndarray, **common):
    configs = [QuadraticConfig(steps=NUM_STEPS, curvature=CURVATURE, lr=lr, **common) for lr in lrs.tolist()]
    return trainer_of("quadratic", configs, [0] * len(configs))


def largest_stable_lr(eps: float, **common) -> float:
    """By packs of 64 learning rates, each between the two neighbours where the last pack turned unstable."""
    low, high = 0.5 * eps / CURVATURE, 200 * eps / CURVATURE
    for _ in range(3):
        lrs = np.geomspace(low, high, NUM_LRS)
        trainer = quadratics(lrs, eps=eps, **common)
        loss_TR = np.stack([trainer.step()["loss"].numpy() for _ in range(NUM_STEPS)])
        # What is no longer finite compares as not smaller. Adam stops growing where gradients are as large as eps.
        is_stable_R = (loss_TR[-1] <= loss_TR[NUM_STEPS // 2]) & (loss_TR[-1] < 1e100)
        last = int(np.flatnonzero(is_stable_R).max())
        assert is_stable_R[: last + 1].all(), "stable below the edge, unstable above"
        low, high = lrs[last], lrs[last + 1]
    return low


@pytest.mark.parametrize(
    ("optimizer", "beta1", "expected"),
    [
        ("sgd", 0.0, 2),
        pytest.param("adamw", 0.9, 38, marks=pytest.mark.slow),
        pytest.param("sgd", 0.5, 6, marks=pytest.mark.slow),
        pytest.param("sgd", 0.9, 38, marks=pytest.mark.slow),
        pytest.param("sgd", 0.95, 78, marks=pytest.mark.slow),
        pytest.param("adamw", 0.5, 6, marks=pytest.mark.slow),
    ],
)
def test_training_diverges_where_the_largest_eigenvalue_crosses_2_over_the_lr(optimizer, beta1, expected) -> None:
    """The largest stable lr times curvature is 2, 6, 38, 78 within 1e-4, and ``lambda_max`` there is 2 / lr.

    Momentum is folded into ``lambda_max``, so the threshold is 2 / lr for every beta1. Adam's preconditioner is held
    still at 1 / eps, by an eps far above the gradients.
    """
    eps = 1e120 if optimizer == "adamw" else 1.0
    common = {"optimizer": optimizer, "beta1": beta1, "beta2": 0.999}
    lr = largest_stable_lr(eps, **common)
    assert lr * CURVATURE / eps == pytest.approx(expected, rel=1e-4)
    trainer = quadratics(np.array([0.999 * lr, lr, 1.001 * lr]), eps=eps, **common)
    for _ in range(NUM_STEPS // 2):
        trainer.step()
    divisor_Rn = divisor_of(trainer)
    found = measure_curvature(graph_of(trainer), divisor_Rn, factor_of(trainer), torch.zeros_like(divisor_Rn), 2)
    over_threshold_R = found.lambda_max_R * trainer.optimizer.numbers["lr"] / 2
    assert over_threshold_R.tolist() == pytest.approx([0.999, 1.0, 1.001], abs=1e-4)
    # Every direction of this loss is the steepest.
    torch.testing.assert_close(found.lambda_grad_R, found.lambda_max_R)


@pytest.mark.slow
@pytest.mark.parametrize("lr", [0.01, pytest.param(0.005, marks=pytest.mark.slow)])
def test_full_batch_training_settles_at_the_edge_of_stability(lr: float) -> None:
    """Over the last third of 3000 steps ``lambda_max`` * lr / 2 has a median of 1 within 5 %, in each run within 8 %.

    64 tanh units, Adam with (0.9, 0.999), three seeds, measured every 10 steps with three products and a warm start.
    """
    trainer = trainer_of("function_fit", [FunctionFitConfig(steps=3000, lr=lr, **FIT)] * 3, [0, 1, 2])
    warm_Rn, over_threshold = torch.zeros_like(trainer.optimizer.params_Kn), []
    for step in range(3000):
        if step < 1900 or step % 10:
            trainer.step()
            continue
        metrics, found = measured_step(trainer, warm_Rn, 3)
        warm_Rn = found.warm_Rn
        over_threshold.append(found.lambda_max_R * metrics["lr"] / 2)
    late_TR = torch.stack(over_threshold[10:])
    assert late_TR.median().item() == pytest.approx(1, rel=0.05)
    assert late_TR.median(0).values.tolist() == pytest.approx([1] * 3, rel=0.08)


def spikes(loss_T: np.ndarray) -> list[int]:
    """Peaks of at least 3 times the least loss of the 50 steps before; of those within 30 steps the highest one."""
    peaks: list[int] = []
    for step in range(80, len(loss_T) - 1):
        is_peak = loss_T[step - 1] <= loss_T[step] > loss_T[step + 1]
        if not is_peak or loss_T[step] <= 3 * loss_T[step - 50 : step].min():
            continue
        if peaks and step - peaks[-1] <= 30:
            peaks[-1] = max(peaks[-1], step, key=lambda s: loss_T[s])
        else:
            peaks.append(step)
    return peaks


def steps_from_crossing_to_peak(above_T: np.ndarray, peak: int, previous: int) -> int | None:
    """From the first step above the threshold, of the 80 before the peak and after the previous one, or None."""
    first = max(peak - 80, previous)
    above = np.flatnonzero(above_T[first:peak])
    return peak - first - int(above[0]) if len(above) else None


def crossings_before_spikes(seeds: list[int], first: int, last: int) -> list[tuple[int | None, int | None]]:
    """Of each spike between the two steps, how long before its peak ``lambda_max`` and ``lambda_grad`` crossed 2 / lr.

    64 tanh units, Adam with lr 0.01 and (0.9, 0.999), every step measured with two products and a warm start.
    """
    config = FunctionFitConfig(steps=last, lr=0.01, **FIT)
    trainer = trainer_of("function_fit", [config] * len(seeds), seeds)
    for _ in range(first):
        trainer.step()
    warm_Rn, series = torch.zeros_like(trainer.optimizer.params_Kn), []
    for _ in range(first, last):
        metrics, found = measured_step(trainer, warm_Rn, 2)
        warm_Rn = found.warm_Rn
        threshold_R = 2 / metrics["lr"]
        series.append((metrics["loss"], found.lambda_max_R > threshold_R, found.lambda_grad_R > threshold_R))
    loss_TR, max_TR, grad_TR = (torch.stack(values).numpy() for values in zip(*series, strict=True))
    peaks = [(r, previous, peak) for r in range(len(seeds)) for previous, peak in pairwise([0, *spikes(loss_TR[:, r])])]
    return [
        tuple(steps_from_crossing_to_peak(above_TR[:, r], peak, previous) for above_TR in (max_TR, grad_TR))
        for r, previous, peak in peaks
    ]


def are_told_in_order(before: list[tuple[int | None, int | None]]) -> bool:
    """First ``lambda_max`` crosses, then ``lambda_grad``, then the loss peaks."""
    return all(of_max is not None and of_grad is not None and of_max > of_grad for of_max, of_grad in before)


def share_told_in_time(before: list[tuple[int | None, int | None]]) -> float:
    """Of the peaks those before which ``lambda_max`` crosses by 30 to 70 steps and ``lambda_grad`` by 12 to 35."""
    return float(np.mean([30 <= of_max <= 70 and 12 <= of_grad <= 35 for of_max, of_grad in before]))


@pytest.mark.slow
def test_before_a_spike_the_largest_eigenvalue_crosses_then_the_curvature_along_the_gradient() -> None:
    """The first spikes of eight runs: found are 34 to 46 and 15 to 17 steps before, asked for 30 to 70 and 12 to 35.

    The runs are chaotic: six of them had between two and five spikes in these steps, by the order of rounding.
    """
    before = crossings_before_spikes(list(range(8)), 1200, 1500)
    assert before
    assert are_told_in_order(before)
    assert share_told_in_time(before) >= 0.8


@pytest.mark.slow
def test_every_spike_is_told_by_the_largest_eigenvalue_first_and_then_by_the_gradient() -> None:
    """Some 40 spikes of eight runs of 2500 steps: found are 31 to 72 and 12 to 33 steps before their peaks.

    Asked for are 30 to 70 and 12 to 35 of nine tenths of them. The runs are chaotic: between four orders of rounding
    there were 37 to 41 spikes, of which at most one came later than that.
    """
    before = crossings_before_spikes(list(range(8)), 900, 2500)
    assert len(before) >= 30
    assert are_told_in_order(before)
    assert share_told_in_time(before) >= 0.9
