import math

import numpy as np
import pytest
import torch
from pack_cases import trainer_of

from objectives.base import RouterConfig
from objectives.instruments.router_loads import load_readings

B, BETA = 2.0, 3.0
THRESHOLD = 2 * B / BETA  # of a, where the balance of two experts ends


def trained(members: list[dict], num_steps: int, **common):
    configs = [RouterConfig(steps=num_steps, **common, **member) for member in members]
    trainer = trainer_of("router", configs, list(range(len(members))))
    rows = list(range(len(members)))
    for _ in range(num_steps - 1):
        trainer.step()
    return trainer, trainer.observed_step(rows, [], 0)[1]


@pytest.mark.parametrize("lr", [0.2, 0.5])
def test_two_experts_stay_balanced_below_the_threshold_and_split_above_it_as_theory_says(lr: float) -> None:
    shares = (0.9, 0.98, 1.1, 1.5)
    members = [{"a": share * THRESHOLD} for share in shares]
    _, readings = trained(members, round(150 / lr), b=B, beta=BETA, lr=lr)
    # Published for 1.1 and 1.5 times the threshold (arXiv 2605.29121).
    np.testing.assert_allclose(readings["imbalance"], [0, 0, 0.503, 0.859], atol=6e-4)
    for share, imbalance in zip(shares[2:], readings["imbalance"][2:].tolist(), strict=True):
        # The difference d of the scores has d' = a tanh(beta d / 2) - b d = 0.
        d = 2 * math.atanh(imbalance) / BETA
        assert share * THRESHOLD * math.tanh(BETA * d / 2) == pytest.approx(B * d, rel=1e-6)


def test_a_step_is_the_published_one() -> None:
    trainer, readings = trained([{"spread": 1.0}], 1, a=1.5, b=0.7, beta=2.0, lr=0.1, experts=3)
    expected = trainer_of("router", [RouterConfig(steps=1, spread=1.0, experts=3)], [0]).weights["s"][0].detach()
    shares = torch.softmax(2 * expected, 0)
    torch.testing.assert_close(trainer.weights["s"][0].detach(), (1 - 0.1 * 0.7) * expected + 0.1 * 1.5 * shares)
    assert readings["router_load"][0].item() == pytest.approx(3 * shares.max().item())


def test_sampled_tokens_move_the_scores_as_their_expectation_does_on_average() -> None:
    members = [{"batch_size": 4096}, {"batch_size": None}]
    tokens, mean_field = (
        trainer_of("router", [RouterConfig(steps=2, spread=1.0, beta=2.0, **member)], [5]) for member in members
    )
    start = mean_field.weights["s"].detach().clone()
    tokens.step()
    mean_field.step()
    moved, expected = ((pack.weights["s"].detach() - start)[0] for pack in (tokens, mean_field))
    assert not torch.equal(moved, expected)
    # A share of 4,096 tokens deviates by at most 1 / 128; four deviations, times lr = 0.1.
    assert (moved - expected).abs().max() < 4 * 0.1 / 128
    # Each token chooses one expert, so the sum of the scores moves as without sampling.
    assert moved.sum().item() == pytest.approx(expected.sum().item(), abs=1e-12)


def test_the_loss_falls_calmly_while_a_router_collapses() -> None:
    config = RouterConfig(steps=600, a=6.0, b=1.0, beta=2.0)
    trainer = trainer_of("router", [config], [0])
    loss = torch.stack([trainer.step()["loss"][0] for _ in range(600)])
    _, readings = trainer.observed_step([0], [], 0)
    assert readings["router_dead"].item() == 1
    assert (loss.diff() <= 1e-12).all()
    assert loss.min() > 0


def test_readings_of_loads_are_those_of_plain_formulas() -> None:
    shares = torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0], [0.5, 0.3, 0.18, 0.02]], dtype=torch.float64)
    found = load_readings(shares)
    gini = [
        sum(abs(x - y) for x in row for y in row) / (2 * len(row) ** 2 * (sum(row) / len(row)))
        for row in shares.tolist()
    ]
    np.testing.assert_allclose(found["router_gini"], gini, atol=1e-15)
    assert found["router_gini"][1].item() == 0.75
    assert found["router_dead"].tolist() == [0, 3, 1]
    np.testing.assert_allclose(found["router_load"], [1, 4, 2])
    entropy = [-sum(x * math.log(x, 4) for x in row if x > 0) for row in shares.tolist()]
    np.testing.assert_allclose(found["router_entropy"], entropy, rtol=1e-12)


def test_a_rule_reads_the_gini_coefficient_and_its_change_of_b_restores_the_balance() -> None:
    rule = {"on": "router_gini", "above": 0.2, "do": {"b": "x4"}, "every": 10}
    config = {"steps": 600, "a": 1.5, "b": 1.0, "beta": 2.0, "lr": 0.3}
    configs = [RouterConfig.model_validate({**config, "control": control}, strict=False) for control in ((rule,), ())]
    trainer = trainer_of("router", configs, [0, 0])
    for _ in range(600):
        trainer.step()
    _, readings = trainer.observed_step([0, 1], [], 0)
    (fired,) = trainer.fired(0)
    assert (fired["on"], fired["did"]["set"]) == ("router_gini", {"b": "x4"})
    assert readings["imbalance"][0] < 0.01 < 0.5 < readings["imbalance"][1]


def test_an_intervention_changes_a_b_and_beta_as_a_run_that_begins_with_them() -> None:
    plain = {"steps": 9, "a": 1.5, "b": 0.7, "beta": 2.0, "spread": 1.0}
    changed = {"a": 0.5, "b": 2.0, "beta": 1.0}
    entry = {"at": 0, "set": changed}
    configs = [
        RouterConfig.model_validate({**plain, "interventions": [entry]}, strict=False),
        RouterConfig(**{**plain, **changed}),
    ]
    trainer = trainer_of("router", configs, [0, 0])
    for _ in range(9):
        loss = trainer.step()["loss"]
    assert loss[0] == loss[1]
