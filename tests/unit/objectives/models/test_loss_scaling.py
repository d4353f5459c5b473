import math

import pytest
import torch
from curve_cases import assert_same, curves
from gpt_cases import PlainGpt, is_transposed, name_in_pack, plain_model
from pack_cases import everyone, trainer_of
from tiers import one_of

from objectives.base import GptConfig, RowSpec
from objectives.models.batch_gradient import LossScaler
from objectives.models.gpt import GptTrainer

SHAPE = {"steps": 40, "width": 16, "heads": 2, "context": 16, "batch_size": 4, "depth": 1, "precision": "float16"}


def scaler_of(scales: list[float], growths: list[int]) -> LossScaler:
    """A scaler of members that begin."""
    configs = [GptConfig(steps=1, loss_scale=s, loss_scale_growth=g) for s, g in zip(scales, growths, strict=True)]
    return LossScaler(configs, {name: torch.zeros(len(scales)) for name in LossScaler.MEMORY})


def overflowing(flags: list[bool]) -> torch.Tensor:
    """Unscaled gradients of members, one of whose numbers is infinite where the flag is set."""
    return torch.tensor([[1.0, math.inf if flag else 2.0] for flag in flags])


class PlainRun:
    """One model, torch.amp.GradScaler and torch.optim.AdamW, as PyTorch's examples have it."""

    def __init__(self, trainer: GptTrainer, member: int) -> None:
        self.config, self.seed = trainer.configs[member], trainer.seeds[member]
        self.model: PlainGpt = plain_model(trainer, member)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.config.lr, weight_decay=0)
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=self.config.loss_scale, growth_interval=self.config.loss_scale_growth
        )
        self.num_skipped = 0

    def step(self, tokens_BS: torch.Tensor) -> dict[str, float]:
        """Train one step: the scale that it was taken at, and whether it was skipped."""
        self.optimizer.zero_grad()
        pieces = tokens_BS.chunk(self.config.accumulate)
        loss = 0.0
        for piece_BS in pieces:
            with torch.autocast("cpu", torch.float16):
                loss_of_piece = self.model(piece_BS) / len(pieces)
            self.scaler.scale(loss_of_piece).backward()
            loss += loss_of_piece.item()
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), math.inf)
        found = {"loss": loss, "loss_scale": self.scaler.get_scale(), "grad_norm": norm.item()}
        self.scaler.step(self.optimizer)
        self.scaler.update()
        is_skipped = self.scaler.get_scale() < found["loss_scale"]
        self.num_skipped += is_skipped
        return found | {"is_skipped": float(is_skipped)}


@pytest.mark.parametrize("accumulate", one_of(2, [1, 2]))
def test_members_are_scaled_and_skipped_as_grad_scaler_does(text, accumulate: int) -> None:
    configs = [
        GptConfig(text=text, lr=lr, loss_scale=2.0**scale, loss_scale_growth=growth, accumulate=accumulate, **SHAPE)
        for lr, scale, growth in [(3e-3, 24, 3), (1e-2, 10, 5), (3e-3, 16, 2000)]
    ]
    seeds = [0, 1, 0]
    trainer = trainer_of("gpt", configs, seeds)
    plain = [PlainRun(trainer, member) for member in everyone(trainer)]
    for step in range(SHAPE["steps"]):
        tokens_KBS = trainer.batches.batch(trainer.cohorts())[trainer.cohort_of_member_K]
        metrics = trainer.step()
        for member, run in enumerate(plain):
            expected = run.step(tokens_KBS[member])
            for name in ("loss_scale", "is_skipped"):
                assert metrics[name][member].item() == expected[name], f"{name} of member {member} at step {step}"
            assert metrics["loss"][member].item() == pytest.approx(expected["loss"], rel=2e-3)
            if not expected["is_skipped"]:
                assert metrics["grad_norm"][member].item() == pytest.approx(expected["grad_norm"], rel=2e-2)
    assert [run.num_skipped > 2 for run in plain] == [True, False, False]
    for member, run in enumerate(plain):
        for name, parameter in run.model.named_parameters():
            weight = trainer.weights[name_in_pack(name)][member].detach()
            error = ((weight.T if is_transposed(name) else weight) - parameter).norm() / parameter.norm()
            assert error < 2e-2, f"{name} of member {member}: off by {error:.1e} of its norm"


def test_a_gradient_that_overflows_halves_the_scale_and_skips_the_step() -> None:
    scaler = scaler_of([8.0, 8.0], [100, 100])
    assert scaler.update(torch.ones(2), overflowing([True, False])).tolist() == [True, False]
    assert scaler.scale_K.tolist() == [4.0, 8.0]
    assert scaler.used_K.tolist() == [8.0, 8.0]


def test_the_scale_doubles_after_steps_without_overflow_which_begins_the_count_anew() -> None:
    scaler = scaler_of([4.0], [3])
    scales = []
    for flag in (False, False, True, False, False, False, False, False, False, False):
        scaler.update(torch.ones(1), overflowing([flag]))
        scales.append(scaler.scale_K.item())
    assert scales == [4, 4, 2, 2, 2, 4, 4, 4, 8, 8]


def test_at_a_scale_of_one_or_without_a_finite_loss_nothing_is_skipped() -> None:
    scaler = scaler_of([1.5, 4.0, 4.0], [100, 100, 100])
    loss_K = torch.tensor([1.0, math.nan, math.inf])
    assert scaler.update(loss_K, overflowing([True, True, True])).tolist() == [True, False, False]
    assert scaler.scale_K.tolist() == [1.0, 2.0, 2.0]
    assert scaler.update(loss_K, overflowing([True, True, False])).tolist() == [False, False, False]
    assert scaler.scale_K[0] == 1.0


def test_a_scale_never_doubles_to_infinity() -> None:
    scaler = scaler_of([2.0**99], [1])
    for _ in range(40):
        assert not scaler.update(torch.ones(1), overflowing([False]))
    assert scaler.scale_K.item() == 2.0**127


def test_the_gradient_of_the_scaled_loss_is_divided_again() -> None:
    scaler = scaler_of([8.0, 1024.0], [1, 1])
    x_K1 = torch.tensor([[3.0], [5.0]], requires_grad=True)
    loss_K = x_K1.square().sum(1)
    (grad_K1,) = torch.autograd.grad(scaler.scaled(loss_K).sum(), x_K1)
    assert grad_K1.tolist() == [[48.0], [10240.0]]
    scaler.unscale(grad_K1)
    assert grad_K1.tolist() == [[6.0], [10.0]]


# In a pack.


def pack(text, configs: list[dict], seeds: list[int]) -> GptTrainer:
    return trainer_of("gpt", [GptConfig(text=text, **(SHAPE | config)) for config in configs], seeds)


def test_a_skipped_step_is_reported_as_it_was_and_the_member_stays_and_goes_on(text) -> None:
    trainer = pack(text, [{"loss_scale": 2.0**20}, {"loss_scale": 2.0**8}], [0, 0])
    before = trainer._params_Kn.clone()
    found = trainer.step()
    assert found["is_skipped"].tolist() == [1.0, 0.0]
    assert found["loss_scale"].tolist() == [2.0**20, 2.0**8]
    assert not math.isfinite(found["grad_norm"][0])
    assert found["update_norm"][0] == 0
    assert torch.equal(trainer._params_Kn[0], before[0])
    assert not torch.equal(trainer._params_Kn[1], before[1])
    later = curves(trainer, 8)
    assert later["is_skipped"][-1].tolist() == [0.0, 0.0]
    assert torch.isfinite(later["loss"]).all()
    assert (later["update_norm"][-1] > 0).all()


def test_a_member_that_no_scale_can_help_is_lost_as_in_any_precision(text) -> None:
    trainer = pack(text, [{"loss_scale": 4.0}, {"loss_scale": 4.0}], [0, 0])
    with torch.no_grad():
        # A tiny residual stream and a huge head: the loss is finite, its gradient overflows at any scale.
        for name in ("embedding", "position", "0.attention_out", "0.mlp_out"):
            trainer.weights[name][1] *= 1e-3
        trainer.weights["head"][1] = trainer.weights["head"][1].sign() * 5e4
    found = curves(trainer, 5)
    assert found["is_skipped"][:, 0].tolist() == [0] * 5
    assert found["is_skipped"][:2, 1].tolist() == [1, 1]
    assert found["loss_scale"][:3, 1].tolist() == [4, 2, 1]
    assert torch.isnan(found["loss"][3:, 1]).all()
    assert torch.isnan(found["is_skipped"][3:, 1]).all()
    assert torch.isfinite(found["loss"][:, 0]).all()


def test_scales_go_with_their_members_into_other_packs_and_onto_the_disk(text) -> None:
    configs = [{"loss_scale": 2.0**scale, "loss_scale_growth": 3} for scale in (20, 10, 24)]
    straight = pack(text, configs, [0, 1, 0])
    curves(straight, 4)
    resumed = pack(text, configs, [0, 1, 0])
    resumed.load_state_dict(straight.state_dict())
    arranged = pack(text, configs, [0, 1, 0])
    curves(arranged, 4)
    places = [
        RowSpec(arranged.configs[2], 0, 2),
        RowSpec(arranged.configs[1], 5, None),
        RowSpec(arranged.configs[0], 0, 0),
    ]
    arranged.arrange(places)
    expected = curves(straight, 6)
    assert_same(curves(resumed, 6), expected)
    found = curves(arranged, 6)
    for name in expected:
        torch.testing.assert_close(found[name][:, [2, 0]], expected[name][:, [0, 2]], rtol=0, atol=0, equal_nan=True)
    assert found["loss_scale"][0, 1] == 2.0**10


def test_metrics_of_other_precisions_are_the_usual_ones(text) -> None:
    for precision in ("float32", "bfloat16"):
        trainer = pack(text, [{"precision": precision}], [0])
        assert set(trainer.step()) == {"loss", "grad_norm", "update_norm", "lr"}
