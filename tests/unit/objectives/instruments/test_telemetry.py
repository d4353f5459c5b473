"""What is read of a step equals what a plain computation beside torch's own optimizer finds."""

import math

import pytest
import torch
from pack_cases import trainer_of
from tiers import thinned

from objectives.base import OBJECTIVES, FunctionFitConfig, GptConfig, QuadraticConfig, RouterConfig
from objectives.instruments.native_sums import StepValues, native_sums
from objectives.instruments.telemetry import READINGS_OF_GROUPS, group_readings, sums_per_weight
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.stacking import Layout

LAYOUT = Layout({"a": (5, 3), "b": (4,), "c": (9,)}, {"a": "in", "b": "in", "c": "out"})
NUMBERS = [
    {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    {"lr": 1e-1, "beta1": 0.0, "beta2": 0.5, "eps": 3.0, "weight_decay": 0.3},
    {"lr": 3e-2, "beta1": 0.95, "beta2": 0.99, "eps": 1e-12, "clip": 0.5},
]


def expected_readings(config: QuadraticConfig, params: torch.Tensor, grads: torch.Tensor) -> dict[str, float]:
    """All readings of the last of ``grads``, (T, n), written for one member from torch.optim.AdamW's own state."""
    parameter = torch.nn.Parameter(params.clone())
    optimizer = torch.optim.AdamW(
        [parameter], config.lr, (config.beta1, config.beta2), config.eps, weight_decay=config.weight_decay
    )
    for grad in grads:
        before = parameter.detach().clone()
        parameter.grad = grad.clone()
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_([parameter], config.clip)
        optimizer.step()
    (state,) = optimizer.state.values()
    v = state["exp_avg_sq"] / (1 - config.beta2 ** len(grads))
    m = state["exp_avg"] / (1 - config.beta1 ** len(grads))
    update = config.lr * m / (v.sqrt() + config.eps)
    torch.testing.assert_close(before * (1 - config.lr * config.weight_decay) - update, parameter.detach())
    found = {}
    for group, columns in {"in": slice(0, 19), "out": slice(19, 28), "all": slice(0, 28)}.items():
        g, u, w, mm, vv = (x[columns] for x in (grads[-1], update, before, m, v))
        ratio = mm / vv.sqrt()
        values = (
            g.norm(), g.square().mean().sqrt() / config.eps, u.square().mean().sqrt(), u.norm() / w.norm(),
            (g.square() / vv.clamp(min=config.eps**2)).mean().sqrt(), g.square().sum() / vv.sum(),
            (vv.sqrt() < config.eps).double().mean(), ratio.square().mean().sqrt(), (ratio.abs() > 0.9).double().mean(),
        )  # fmt: skip
        found |= {f"{name}/{group}": float(value) for name, value in zip(READINGS_OF_GROUPS, values, strict=True)}
    return found


def test_readings_are_those_of_a_plain_computation() -> None:
    generator = torch.Generator().manual_seed(0)
    params = torch.zeros(3, LAYOUT.size, dtype=torch.float64)
    params[:, :28] = torch.randn(3, 28, generator=generator, dtype=torch.float64)
    grads = torch.zeros(6, 3, LAYOUT.size, dtype=torch.float64)
    grads[:, :, :28] = torch.randn(6, 3, 28, generator=generator, dtype=torch.float64)
    members = [QuadraticConfig(steps=6, **numbers) for numbers in NUMBERS]
    optimizer = PackedOptimizer(params.clone(), members, LAYOUT, compiled=False)
    for grad in grads[:-1]:
        optimizer.step(torch.ones(3), grad.clone())
    rows = torch.tensor([2, 0, 1])
    metrics, observed = optimizer.observed_step(torch.ones(3), grads[-1].clone(), rows)
    states, numbers, age_R = optimizer.of_rows(rows)
    rule = optimizer.rule
    moments = (rule.first_moment(states, numbers, age_R), rule.second_moment(states, numbers, age_R))
    found = group_readings(
        LAYOUT,
        StepValues(observed.grad_Rn, observed.update_Rn, observed.params_Rn, *moments, numbers["eps"]),
    )
    for position, k in enumerate(rows):
        expected = expected_readings(members[k], params[k, :28], grads[:, k, :28])
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert float(found[name][position]) == pytest.approx(value, rel=1e-9), name
    norm = float(grads[-1, 2].norm())
    torch.testing.assert_close(observed.clip_factor_R, torch.tensor([0.5 / (norm + 1e-6), 1.0, 1.0]).double())
    assert float(metrics["grad_norm"][2]) == pytest.approx(norm)


def test_without_moments_what_needs_them_is_not_a_number() -> None:
    values = torch.ones(2, LAYOUT.size)
    found = group_readings(LAYOUT, StepValues(values, values, values, None, None, torch.full((2,), math.nan)))
    read = {name for name, value in found.items() if bool(value.isfinite().all())}
    assert read == {f"{name}/{group}" for name in ("grad_norm", "update_rms", "update_to_weight")
                    for group in ("in", "out", "all")}  # fmt: skip


def test_a_coordinate_that_never_had_a_gradient_spoils_no_reading() -> None:
    zeros, ones = torch.zeros(1, LAYOUT.size), torch.ones(1, LAYOUT.size)
    found = group_readings(LAYOUT, StepValues(zeros, zeros, ones, zeros, zeros, torch.tensor([1e-8])))
    assert float(found["direction_rms/all"]) == 0.0
    assert float(found["rms_ratio/all"]) == 0.0
    assert float(found["share_below_eps/all"]) == 1.0


@pytest.mark.parametrize("num_moments", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sums_by_the_kernel_are_those_by_torch(num_moments, dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    layout = Layout({"in": (19,), "matrix": (16, 8), "out": (3, 3)})
    scale_n = torch.logspace(-12, 3, layout.size, dtype=dtype)
    grad, update, weight, first, second = torch.randn(5, 3, layout.size, generator=generator, dtype=dtype) * scale_n
    second, eps = second.square(), torch.tensor([1e-8, 1e-3, math.nan], dtype=dtype)
    second[0, 2] = first[0, 2] = 0
    second[1, 4] = math.nan
    moments = [(None, None), (None, second), (first, second)][num_moments]
    values = StepValues(grad, update, weight, *moments, eps)
    expected, found = (sum_up(layout, values) for sum_up in (sums_per_weight, native_sums))
    torch.testing.assert_close(found, expected, rtol=20 * torch.finfo(dtype).eps, atol=0, equal_nan=True)


def test_lambda_max_of_a_quadratic_is_its_curvature_over_the_divisor() -> None:
    config = QuadraticConfig(steps=10, curvature=3.0, dimension=1, lr=0.1, beta1=0.9, beta2=0.99, eps=1e-3)
    trainer = trainer_of("quadratic", [config], [0])
    for _ in range(4):
        trainer.step()
    _, readings = trainer.observed_step([0], [0], 2)
    v = trainer.optimizer.states["second_moment"][0, 0] / (1 - 0.99**5)
    factor = (1 - 0.9) / ((1 + 0.9) * (1 - 0.9**5))
    expected = factor * 3.0 / (v.sqrt() + 1e-3)
    for name in ("lambda_max", "lambda_grad"):
        torch.testing.assert_close(readings[name], expected[None], rtol=1e-9, atol=0)
    assert float(readings["curvature_threshold"]) == pytest.approx(20.0)


@pytest.mark.parametrize(
    "config",
    [GptConfig(steps=9, width=8, heads=2, context=8, batch_size=2), FunctionFitConfig(steps=9, width=8),
     QuadraticConfig(steps=9, noise=0.1),
     RouterConfig(steps=9)],
    ids=OBJECTIVES.keys(),
)  # fmt: skip
def test_a_step_that_is_read_is_the_step_that_would_have_been_taken(config) -> None:
    name = next(n for n, objective in OBJECTIVES.items() if objective.config_class is type(config))
    plain, read = (trainer_of(name, [config] * 3, [0, 1, 2]) for _ in range(2))
    for step in range(6):
        expected = plain.step()
        found, readings = read.observed_step([0, 2], [2], 2) if step % 2 else (read.step(), {})
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert all(value.shape == (2,) for value in readings.values())
        if readings:
            assert readings["lambda_max"].isnan().tolist() == [True, False]
    assert torch.equal(plain.state_dict()["params"], read.state_dict()["params"])


METRICS = ("loss", "grad_norm", "update_norm", "lr", "loss_scale", "is_skipped")  # of all members of a pack
CURVATURE = ("lambda_max", "lambda_grad", "lambda_crit", "curvature_threshold")
GPT = {"width": 8, "heads": 2, "context": 8, "batch_size": 2}
# Members that are neutral beside others that are not: what these need is computed for all.
BESIDE = ({}, {"residual_scale": 0.5}, {"dropout": 0.2}, {"z_loss": 1e-2}, {"context_start": 2, "context_steps": 9}, {})


SHARED = [
    ("gpt", GPT, [{}] * 6),
    ("gpt", GPT, BESIDE),
    ("gpt", GPT | {"norm": "rms", "norm_place": "output", "qk_norm": True}, BESIDE),
    ("gpt", GPT | {"norm_place": "post", "accumulate": 2, "recompute": True}, BESIDE),
    ("gpt", GPT | {"norm": None}, [{"init": "fan_in"}, *BESIDE[1:]]),
    ("gpt", GPT | {"precision": "bfloat16"}, BESIDE),
    ("gpt", GPT | {"precision": "float16", "optimizer": "sgd"}, BESIDE),
    ("gpt", GPT | {"optimizer": "sophia"}, BESIDE),
    ("function_fit", {"width": 8, "num_points": 20}, [{}] * 6),
    ("function_fit", {"width": 12, "num_points": 20, "batch_size": 4}, [{}] * 6),
    ("quadratic", {"noise": 0.1}, [{"curvature": 1.0 + k} for k in range(6)]),
]


def is_read_by_default(case: tuple[int, str, dict, list]) -> bool:
    """Small objectives and Sophia of gpt with products, and float16 without."""
    num_products, name, shared, _ = case
    if name != "gpt":
        return bool(num_products)
    return shared.get("optimizer") == "sophia" if num_products else "sgd" in shared.values()


@pytest.mark.parametrize(
    ("num_products", "name", "shared", "changes"),
    thinned([(num, *case) for num in (4, 0) for case in SHARED], is_read_by_default),
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_who_shares_a_pack_changes_no_bit_of_what_is_read_of_a_member(
    num_products: int, name: str, shared: dict, changes: list
) -> None:
    """Curvature included, whoever else it is read of, and of a member alone; nor of the run that Sophia makes of it."""
    config_class = OBJECTIVES[name].config_class
    configs = [config_class(steps=99, lr=1e-3 * (2 + k), **shared, **changes[k]) for k in range(6)]
    seeds = [0, 1, 0, 2, 1, 0]

    def read(members: list[int], observed: list[int], curved: list[int]) -> list[dict[str, torch.Tensor]]:
        trainer = trainer_of(name, [configs[k] for k in members], [seeds[k] for k in members])
        rows, curved = ([members.index(k) for k in some] for some in (observed, curved))
        return [
            metrics | found for metrics, found in (trainer.observed_step(rows, curved, num_products) for _ in range(6))
        ]

    everybody = list(range(6))
    together = read(everybody, everybody, everybody)
    for members in ([0], [1], [2], [3], [4], [5], [5, 2], [3, 0, 4], everybody):
        observed, curved = members[-2:], members[-1:]
        for step, (found, expected) in enumerate(zip(read(members, observed, curved), together, strict=True)):
            for reading, values in found.items():
                if reading in CURVATURE:
                    of_whom, values = curved, values[-1:]
                else:
                    of_whom = members if reading in METRICS else observed
                bits, wanted = values.nan_to_num(), expected[reading][of_whom].nan_to_num()
                assert torch.equal(bits, wanted), f"{reading} of {members} at step {step}"
