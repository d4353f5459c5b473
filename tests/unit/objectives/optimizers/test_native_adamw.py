"""The C++ step of AdamW is the step of the rule in torch."""

import pytest
import torch

from objectives.base import TrainingConfig
from objectives.optimizers.rules import rule_of
from objectives.optimizers.rules.adamw import AdamW
from objectives.optimizers.rules.native_adamw import NativeAdamW
from objectives.stacking import Layout

K, N = 7, 1024
NUMBERS = {
    "first_weight": [0.1, 0.5, 0.9, 0.05, 0.0, 1.0, 0.3],
    "second_weight": [1e-3, 0.05, 0.6, 0.5, 0.0, 1.0, 0.1],
    "eps": [1e-10, 1e-8, 1e-6, 1e-5, 1e-3, 0.1, 1.0],
    "step_size": [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 0.0],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_its_moments_are_torchs_to_the_bit_and_its_steps_but_for_the_roots_last_bit(dtype) -> None:
    layout, config = Layout({"x": (N,)}), TrainingConfig(steps=1)
    rules = [AdamW(config, layout), NativeAdamW(config, layout)]
    states = [{name: torch.zeros(K, N, dtype=dtype) for name in AdamW.moments} for _ in rules]
    numbers = {name: torch.tensor(values, dtype=dtype)[:, None] for name, values in NUMBERS.items()}
    generator = torch.Generator().manual_seed(0)
    for step in range(20):
        grad = torch.randn(K, N, generator=generator, dtype=dtype) * torch.logspace(-15, 3, N, dtype=dtype)
        grad[2, 5] = float("inf") if step == 10 else 1.0
        grad[3, 6] = float("nan") if step == 15 else 1.0
        wanted, found = (
            rule.update(state, grad.clone(), grad, numbers) for rule, state in zip(rules, states, strict=True)
        )
        for name in AdamW.moments:
            assert torch.equal(states[0][name].nan_to_num(7.0), states[1][name].nan_to_num(7.0))
        torch.testing.assert_close(found, wanted, rtol=4 * torch.finfo(dtype).eps, atol=0, equal_nan=True)


def test_only_adamw_itself_has_it() -> None:
    assert rule_of("adamw", native=True) is NativeAdamW
    assert rule_of("adamw") is AdamW
    assert rule_of("radam", native=True) is rule_of("radam")
