"""Mixtures of experts against a transformer that a user would write for one run."""

import math
from functools import partial

import pytest
import torch
from curve_cases import assert_resumes, assert_same, curves, of_member, trained_as_alone
from expert_cases import MEMBERS, MODELS, SEEDS, SHAPE, plain_noise
from gpt_cases import plain_keys, plain_model
from pack_cases import everyone, trainer_of
from pydantic import ValidationError

from objectives.base import ExecutionPlan, GptConfig, RowSpec
from objectives.models.gpt import GptTrainer

BIAS = "router_bias"


def experts_pack(text, num_steps: int = 0, members=MEMBERS, **fields) -> GptTrainer:
    """A pack of members that differ in their routers, some steps away from initial weights and biases."""
    configs = [GptConfig(text=text, **(SHAPE | fields | own)) for own in members]
    trainer = trainer_of("gpt", configs, list(SEEDS[: len(members)]))
    for _ in range(num_steps):
        trainer.step()
    return trainer


def tokens_of(trainer: GptTrainer) -> torch.Tensor:
    return trainer.batches.batch(trainer.cohorts())[trainer.cohort_of_member_K]


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_each_member_is_a_transformer_whose_experts_compute_only_their_own_tokens(text, model: dict) -> None:
    trainer = experts_pack(text, num_steps=3, **model)
    trainer.weights = {name: w.detach().double().requires_grad_() for name, w in trainer.weights.items()}
    tokens_KBS = tokens_of(trainer)
    loss_K, grad_Kn = trainer.losses_and_gradient()
    for member, (config, seed) in enumerate(zip(trainer.configs, SEEDS, strict=True)):
        plain = plain_model(trainer, member, torch.float64)
        for layer, block in enumerate(plain.blocks):
            block.mixture.bias_E = trainer.memory[BIAS][member, layer].double()
            block.mixture.noise_NE = plain_noise(config, seed, 3, layer) if config.router_noise else None
        loss = plain(tokens_KBS[member], step=3, keys=plain_keys(seed, 3, SHAPE["batch_size"]))
        loss = loss + sum(block.mixture.added_loss() for block in plain.blocks)
        loss.backward()
        expected = plain.gradients()
        assert set(trainer.weights) == set(expected)
        torch.testing.assert_close(loss_K[member], loss.detach(), rtol=1e-10, atol=0)
        for piece in trainer.layout.pieces:
            found, wanted = grad_Kn[member, piece.start : piece.end], expected[piece.name].flatten()
            assert (found - wanted).norm() <= 1e-9 * wanted.norm(), f"gradient of {piece.name} of member {member}"
