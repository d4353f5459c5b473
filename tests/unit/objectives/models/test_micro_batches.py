"""Members that train on the first micro-batches of their batch: a batch size that is a number and may change."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from curve_cases import Curves, assert_resumes, assert_same, curves, trained_as_alone
from pack_cases import trainer_of
from tiers import one_of

from objectives.base import GptConfig
from objectives.entries import Intervention
from objectives.models.batch_gradient import MicroBatches, NoiseScale
from objectives.models.gpt_model import cross_entropy
from objectives.stacking import rows_of_blocks
from objectives.training.packed import PackedTrainer

STEPS = 24
SHAPE: dict[str, Any] = {
    "steps": STEPS, "width": 8, "heads": 2, "context": 8, "depth": 1, "batch_size": 8, "accumulate": 4, "lr": 5e-3,
    "validation_batches": 1,
}  # fmt: skip
NUMBERS = (1, 2, 3, None)  # of micro-batches in use


def config(**changes: Any) -> GptConfig:
    return GptConfig(**{**SHAPE, **changes})


def start(configs: Sequence[GptConfig], seeds: Sequence[int]) -> PackedTrainer:
    trainer = trainer_of("gpt", configs, seeds)
    assert isinstance(trainer, PackedTrainer)
    return trainer


def pack(*configs: GptConfig) -> PackedTrainer:
    return start(configs, [3] * len(configs))


def trained(*configs: GptConfig) -> Curves:
    return curves(pack(*configs), STEPS)


@pytest.mark.parametrize("changes", [{}, {"precision": "bfloat16"}, {"dropout": 0.2, "z_loss": 1e-2}])
@pytest.mark.parametrize("number", NUMBERS)
def test_loss_and_gradient_are_those_of_a_batch_of_the_first_sequences(number: int | None, changes: dict) -> None:
    trainer = pack(config(micro_batches=number, **changes))
    curves(trainer, 3)
    tokens_KBS, knobs = trainer._batch()
    used = 2 * (number or 4)
    loss_K = cross_entropy(trainer.structure, trainer.weights, tokens_KBS[:, :used], knobs.of_sequences(0, used))
    gradient = rows_of_blocks(torch.autograd.grad(loss_K.sum(), list(trainer.weights.values())))
    found_K, found_Kn = trainer.losses_and_gradient()
    # bfloat16 rounds the products of each micro-batch on its own.
    tolerance = {"rtol": 0.05, "atol": 5e-3} if "precision" in changes else {"rtol": 1e-5, "atol": 1e-7}
    torch.testing.assert_close(found_K, loss_K.detach(), **tolerance)
    torch.testing.assert_close(found_Kn, gradient, **tolerance)


def test_in_a_pack_each_member_has_its_own_number_and_trains_as_it_would_alone() -> None:
    configs = [config(micro_batches=number) for number in NUMBERS]
    trainer = trained_as_alone(start, configs, [3] * len(configs), STEPS - 1)
    assert len({*trainer.step()["loss"].tolist()}) == len(NUMBERS)


def test_all_of_them_written_out_change_no_bit() -> None:
    assert_same(trained(config(micro_batches=4)), trained(config()))


def test_a_number_is_rounded_down_so_that_a_ramp_rises_in_steps() -> None:
    assert_same(trained(config(micro_batches=2.9)), trained(config(micro_batches=2)))
    ramp = Intervention(at=4, set={"micro_batches": 4.0}, over=3)
    steps = [Intervention(at=at, set={"micro_batches": value}) for at, value in ((5, 2.0), (6, 3.0), (7, 4.0))]
    ramped, stepped = (config(micro_batches=1, interventions=tuple(changes)) for changes in ([ramp], steps))
    assert_same(trained(ramped), trained(stepped))


def test_a_number_that_changes_acts_from_its_step_on_and_not_before() -> None:
    change = Intervention(at=10, set={"micro_batches": "x2"}, lasts=6)
    found = trained(config(micro_batches=2, interventions=(change,)))
    fewer = trained(config(micro_batches=2))
    assert torch.equal(found["loss"][:10], fewer["loss"][:10])
    assert found["loss"][10] != fewer["loss"][10], "another batch"
    # At step 10 the weights are still those of before: the loss is that of the whole batch with them.
    other = pack(config(micro_batches=2))
    curves(other, 10)
    tokens_KBS, knobs = other._batch()
    whole = cross_entropy(other.structure, other.weights, tokens_KBS, knobs.of_sequences(0, 8))
    assert found["loss"][10] == pytest.approx(whole.detach().numpy(), rel=1e-6)


@pytest.mark.parametrize("stop", one_of(3, [0, 9, 10, 12, 18]))
def test_a_pack_goes_on_from_a_checkpoint_to_the_bit(stop: int, tmp_path: Path) -> None:
    rules = (
        {"on": "step", "above": 7, "do": {"micro_batches": "x2"}, "every": 3, "at_most": 2},
        {"on": "step", "above": 0, "do": {"lr_by_gain": True}, "every": 5, "at_most": 9},
    )
    configs = [config(micro_batches=1, control=rules), config(micro_batches=3), config()]
    assert_resumes(start, configs, [3] * len(configs), stop, STEPS, tmp_path)


def test_the_loss_whose_curvature_is_measured_is_that_of_the_micro_batches_in_use() -> None:
    trainer = pack(*(config(micro_batches=number, z_loss=1e-2) for number in NUMBERS))
    rows = torch.arange(len(NUMBERS))
    of_curvature_K = trainer.losses_of({name: weight.detach() for name, weight in trainer.weights.items()}, rows)
    torch.testing.assert_close(of_curvature_K, trainer.losses_and_gradient()[0])


def test_what_is_not_in_use_may_be_nan() -> None:
    configs = [config(micro_batches=number) for number in (2, 4)]
    parts = MicroBatches(configs, {name: torch.zeros(2) for name in NoiseScale.MEMORY}, torch.device("cpu"))

    def differentiate(first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        value = math.nan if first >= 4 else float(first)
        return torch.tensor([value, 1.0]), torch.tensor([[value, value], [1.0, 1.0]])

    loss_K, grad_Kn = parts.mean(differentiate)
    assert loss_K.tolist() == [1.0, 1.0]
    assert grad_Kn.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_a_pack_computes_no_more_micro_batches_than_one_of_its_members_uses() -> None:
    configs = [config(micro_batches=number) for number in (1, 2)]
    parts = MicroBatches(configs, {name: torch.zeros(2) for name in NoiseScale.MEMORY}, torch.device("cpu"))
    asked = []

    def differentiate(first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append((first, end))
        return torch.ones(2), torch.ones(2, 3)

    parts.mean(differentiate)
    assert asked == [(0, 2), (2, 4)]


def test_the_noise_scale_is_read_off_what_is_in_use_and_one_alone_tells_nothing() -> None:
    trainer = pack(*(config(micro_batches=number) for number in NUMBERS))
    scale_of = [
        NoiseScale({name: torch.zeros(1, dtype=torch.float64) for name in NoiseScale.MEMORY}, 2, [number or 4])
        for number in NUMBERS
    ]
    for _ in range(5):
        tokens_KBS, knobs = trainer._batch()
        pieces = [
            trainer._loss_and_gradient(tokens_KBS[:, i : i + 2], knobs.of_sequences(i, i + 2))[1] for i in (0, 2, 4, 6)
        ]
        for row, number in enumerate(NUMBERS):
            used_PKn = torch.stack([piece[row : row + 1].double() for piece in pieces[: number or 4]])
            scale_of[row].update(used_PKn.square().sum(2).mean(0), used_PKn.mean(0).square().sum(1))
        trainer.step()
    expected = torch.cat([scale.estimate() for scale in scale_of])
    found = trainer.own_readings(torch.arange(len(NUMBERS)))["noise_scale"]
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=0, equal_nan=True)
    assert torch.isnan(found[0])
    over_batch = trainer.signals()["noise_scale"].double()
    torch.testing.assert_close(over_batch, expected / torch.tensor([2, 4, 6, 8]), rtol=1e-4, atol=0, equal_nan=True)


def test_the_gain_is_that_of_adascale() -> None:
    """Its gain ratio, of the averages: (sigma^2 + mu^2) / (sigma^2 / S + mu^2)."""
    memory = {name: torch.tensor([2.0, 2.0, 1e9, 1e-9]) for name in NoiseScale.MEMORY}
    memory[NoiseScale.MEMORY[1]] = torch.tensor([6.0, 6.0, 1e-9, 1e9])
    parts = MicroBatches([config(micro_batches=n) for n in (4, 1, 4, 4)], memory, torch.device("cpu"))
    mu_squared, sigma_squared = 2.0, 6.0 / 2  # the variance of a micro-batch of two sequences
    gain = (sigma_squared + mu_squared) / (sigma_squared / 4 + mu_squared)
    assert parts.signals()["gain"].tolist() == pytest.approx([gain, 1.0, 1.0, 4.0])


def test_a_rule_grows_the_batch_where_it_is_all_noise_and_another_sets_the_learning_rate_by_the_gain() -> None:
    rules = (
        {"on": "noise_scale", "above": 0.05, "do": {"micro_batches": "x2"}, "every": 4, "after": 4},
        {"on": "gain", "above": 1, "do": {"lr_by_gain": True}, "every": 6, "after": 6, "at_most": 2},
    )
    own = config(micro_batches=2, control=rules)
    trainer = pack(own)
    found, gain_at = [], {}
    for step in range(STEPS):
        found.append(trainer.step())
        gain_at[step] = float(trainer.signals()["gain"][0])
    grown = [one for one in trainer.fired(0) if one["rule"] == 1]
    assert [one["did"]["set"] for one in grown] == [{"micro_batches": "x2"}]
    by_gain = [one for one in trainer.fired(0) if one["rule"] == 2]
    assert len(by_gain) == 2
    for one in by_gain:
        assert one["did"]["set"]["lr"] == own.lr * gain_at[one["step"]]
        assert 1 < gain_at[one["step"]] <= 4
        assert float(found[one["step"] + 1]["lr"][0]) == pytest.approx(one["did"]["set"]["lr"])
    by_hand = config(micro_batches=2, interventions=tuple(Intervention(**one["did"]) for one in trainer.fired(0)))
    expected = trained(by_hand)
    assert_same({name: torch.stack([row[name] for row in found]) for name in expected}, expected)


def test_a_gain_that_is_not_known_sets_nothing() -> None:
    rule = {"on": "step", "above": 0, "do": {"lr_by_gain": True}, "every": 2, "at_most": 9}
    trainer = pack(config(micro_batches=1, control=(rule,)))
    curves(trainer, STEPS)
    assert trainer.fired(0) == []


def test_steps_are_as_many_tokens_as_are_trained_on() -> None:
    assert [config(micro_batches=number).tokens_per_step for number in NUMBERS] == [16, 32, 48, 64]
    assert config(micro_batches=1, beta2_half_life=16.0).second_moment_decay == 0.5


def test_the_number_belongs_to_a_trial_where_batches_have_parts_and_is_no_more_than_there_are() -> None:
    assert "micro_batches" not in config().acting()
    assert config(micro_batches=2).acting()["micro_batches"] == 2
    assert "micro_batches" not in config(accumulate=1, micro_batches=1).acting()
    with pytest.raises(ValueError, match="micro_batches = 5 is more than accumulate = 4"):
        config(micro_batches=5)
    with pytest.raises(ValueError, match="factor on micro_batches, which is null"):
        config(interventions=(Intervention(at=1, set={"micro_batches": "x2"}),))
    with pytest.raises(ValueError, match="cannot set micro_batches"):
        config(accumulate=1, interventions=(Intervention(at=1, set={"micro_batches": 2.0}),))
