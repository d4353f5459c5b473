from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from pack_cases import everyone, trainer_of

from objectives.base import GptConfig
from objectives.gpt import GptTrainer

SHAPE = {"steps": 10, "width": 12, "heads": 3, "context": 10, "batch_size": 4, "depth": 2}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {i}: the {i % 7}th of {i % 11}\n" for i in range(2000)))
    return (str(path),)


def plain_loss(trainer: GptTrainer, member: int, tokens_BT: torch.Tensor) -> tuple[torch.Tensor, dict]:
    """One member as an ordinary, unstacked transformer: its loss and its weights."""
    weights = {name: w[member].detach().clone().requires_grad_() for name, w in trainer.weights.items()}
    shape = trainer.shape
    D, heads, T = shape.width, shape.heads, shape.context

    def norm(x, gain):
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(variance + 1e-5) * gain

    x = weights["embedding"][tokens_BT[:, :-1]] + weights["position"][:T]
    mask = torch.full((T, T), -math.inf, dtype=x.dtype).triu(1)
    for i in range(shape.depth):
        q, k, v = (norm(x, weights[f"{i}.attention_norm"]) @ weights[f"{i}.qkv"]).split(D, dim=-1)
        q, k, v = (z.view(*z.shape[:2], heads, D // heads).transpose(1, 2) for z in (q, k, v))
        if shape.qk_norm:
            q, k = norm(q, weights[f"{i}.q_norm"]), norm(k, weights[f"{i}.k_norm"])
        scores = q @ k.transpose(-1, -2) / math.sqrt(D // heads) + mask
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        x = x + mixed @ weights[f"{i}.attention_out"]
        x = x + F.gelu(norm(x, weights[f"{i}.mlp_norm"]) @ weights[f"{i}.mlp_in"]) @ weights[f"{i}.mlp_out"]
    logits = norm(x, weights["final_norm"]) @ weights["head"]
    return F.cross_entropy(logits.reshape(-1, 256), tokens_BT[:, 1:].reshape(-1)), weights


# Double precision is not how it trains, but there the two must agree to the last digits.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["f32", "f64"])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_each_member_is_an_ordinary_transformer(text, qk_norm: bool, dtype, tolerance) -> None:
    config = GptConfig(text=text, qk_norm=qk_norm, lr=1e-2, **SHAPE)
    trainer = trainer_of("gpt", [config, config], [0, 1])
    for _ in range(3):  # away from the tiny initial weights
        trainer.step()
    assert (f"{SHAPE['depth'] - 1}.q_norm" in trainer.weights) == qk_norm
    trainer.weights = {name: w.detach().to(dtype).requires_grad_() for name, w in trainer.weights.items()}
    tokens_KBT = trainer.batches.batch(trainer.cohorts())
    losses = trainer.losses()
    grads = torch.autograd.grad(losses.sum(), list(trainer.weights.values()))
    for member in range(2):
        loss, weights = plain_loss(trainer, member, tokens_KBT[member])
        expected = torch.autograd.grad(loss, list(weights.values()))
        torch.testing.assert_close(losses[member], loss, rtol=tolerance, atol=0)
        for name, found, wanted in zip(weights, grads, expected, strict=True):
            error = (found[member] - wanted).norm() / wanted.norm()
            assert error < tolerance, f"gradient of {name}: off by {error:.1e} of its norm"


def test_before_training_every_byte_is_about_as_likely(text) -> None:
    trainer = trainer_of("gpt", [GptConfig(text=text, **SHAPE)], [0])
    assert float(trainer.step()["loss"]) == pytest.approx(math.log(256), abs=0.05)


def test_the_loss_falls_on_the_default_text() -> None:
    config = GptConfig(steps=60, lr=1e-2, width=16, context=16, batch_size=8)
    trainer = trainer_of("gpt", [config], [0])
    loss = torch.cat([trainer.step()["loss"] for _ in range(60)])
    # From ln 256 = 5.5 to below ln 64 = 4.2: it has learned which bytes there are at all.
    assert loss[:5].mean() > 5
    assert loss[-10:].mean() < math.log(64)
    assert trainer.validate(everyone(trainer)).item() < math.log(64)


def test_training_and_validation_read_the_text_that_the_record_names(text) -> None:
    trainer = trainer_of("gpt", [GptConfig(text=text, **SHAPE)], [0])
    content = Path(text[0]).read_bytes()
    assert trainer.describe() == {
        "text": text[0],
        "text_sha256": hashlib.sha256(content).hexdigest(),
        "text_bytes": str(len(content)),
    }


def test_validation_is_the_loss_on_held_out_text(text) -> None:
    config = GptConfig(text=text, validation_batches=3, **SHAPE)
    trainer = trainer_of("gpt", [config], [0])
    content = Path(text[0]).read_bytes()
    held_out = torch.tensor(list(content[int(0.9 * len(content)) :]))
    starts = torch.linspace(0, len(held_out) - config.context - 1, 3 * config.batch_size).long()
    tokens = torch.stack([held_out[i : i + config.context + 1] for i in starts])
    expected, _ = plain_loss(trainer, 0, tokens)
    assert trainer.validate(everyone(trainer)).item() == pytest.approx(expected.item(), rel=1e-6)


def test_bfloat16_rounds_products_and_keeps_weights_in_single_precision(text) -> None:
    changes = {"text": text, "lr": 1e-2, "width": 32, "context": 16, "steps": 5}
    exact, rounded = (
        trainer_of("gpt", [GptConfig(precision=precision, **changes)] * 2, [0, 1])
        for precision in ("float32", "bfloat16")
    )
    for _ in range(5):
        found, wanted = rounded.step(), exact.step()
        for name, tolerance in (("loss", 1e-2), ("grad_norm", 0.1)):
            assert not torch.equal(found[name], wanted[name]), "bfloat16 changes nothing"
            torch.testing.assert_close(found[name], wanted[name], rtol=tolerance, atol=0)
    assert {weight.dtype for weight in rounded.weights.values()} == {torch.float32}


def test_validation_does_not_depend_on_the_seed_of_the_data(text) -> None:
    trainer = trainer_of("gpt", [GptConfig(text=text, **SHAPE)] * 2, [0, 1])
    with torch.no_grad():
        for weight in trainer.weights.values():
            weight[1] = weight[0]
    first, second = trainer.validate(everyone(trainer)).tolist()
    assert first == pytest.approx(second, rel=1e-6)


GOLDEN = {"loss": 5.541652, "grad_norm": 1.085077, "update_norm": 0.8286704, "lr": 0.01}


def test_one_golden_step(text) -> None:
    config = GptConfig(text=text, lr=1e-2, clip=1.0, weight_decay=0.1, **SHAPE)
    metrics = {name: float(value) for name, value in trainer_of("gpt", [config], [0]).step().items()}
    assert metrics == pytest.approx(GOLDEN, rel=1e-4), (
        "One step of the built-in transformer no longer gives the numbers that it gave. If you changed the\n"
        "model, its initial weights, the batches or the optimizer on purpose, every result in users'\n"
        "ledgers was made by another trainer: say so in CHANGELOG.md, change the pinned numbers here to\n"
        f"{metrics}, and make the reference map of the README again with `make run`. If not, this is a bug."
    )
