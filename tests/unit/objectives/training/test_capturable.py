"""A step is one graph: its shapes are static, and no number on the device decides what the host does next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from pack_cases import small_pack
from tiers import thinned

from objectives.models.gpt import GptTrainer
from objectives.optimizers.facts import OPTIMIZERS
from objectives.training.packed import PackedTrainer

NO_DRAW = {"noise": 0.0}  # of a quadratic, which the host draws within the step
KNOBS: Sequence[Mapping[str, Any]] = (
    {},
    {"dropout": 0.1},
    {"context_start": 2, "context_steps": 50},
    {"z_loss": 0.1, "residual_scale": 0.5, "embedding_lr": 0.5, "embedding_grad": 0.5},
)


@pytest.fixture(autouse=True)
def _graphs_with_gradients() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        yield
    torch._dynamo.reset()


def started(objective: str, changes: Sequence[Mapping[str, Any]]) -> PackedTrainer[Any]:
    """A pack that takes the paths of a GPU, where reading a flag would make the host wait."""
    trainer = small_pack(objective, changes)
    trainer.optimizer._may_look = False
    return trainer


def graphs_of_steps(objective: str, changes: Sequence[Mapping[str, Any]], num_steps: int = 4) -> int:
    """The number of graphs of a pack's steps after the first, from the batch to the parameters; raises if one breaks.

    The losses are those of a pack that trains without graphs.
    """
    captured, plain = started(objective, changes), started(objective, changes)

    def step() -> Mapping[str, torch.Tensor]:
        loss_K, grad_Kn = captured.losses_and_gradient()
        metrics = captured.optimizer.step(loss_K, grad_Kn, held_K=captured.held_K)
        captured.after_update()
        return metrics

    captured.step(), plain.step()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(step, fullgraph=True, backend="eager", dynamic=False)
    for _ in range(num_steps):
        if isinstance(captured, GptTrainer):
            assert isinstance(plain, GptTrainer)
            captured._drawn = captured.num_steps, *plain._batch()  # the host draws it, before the step
        metrics, expected = compiled(), plain.step()
        torch.testing.assert_close(metrics["loss"], expected["loss"], rtol=0, atol=0)
        torch.testing.assert_close(captured.optimizer.params_Kn, plain.optimizer.params_Kn, rtol=0, atol=0)
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@pytest.mark.parametrize("optimizer", thinned(OPTIMIZERS, lambda name: name in ("adamw", "muon", "sophia")))
def test_a_step_of_each_optimizer_is_one_graph(optimizer: str) -> None:
    base = {"optimizer": optimizer, **NO_DRAW}
    assert graphs_of_steps("quadratic", [base, {**base, "clip": 1.0, "weight_decay": 0.1}]) == 1


def test_a_step_with_moments_in_8_bits_is_one_graph() -> None:
    assert graphs_of_steps("quadratic", [{"optimizer": "adam8bit", "dimension": 5000, **NO_DRAW}] * 2) == 1


def test_a_step_with_each_way_of_clipping_is_one_graph() -> None:
    assert graphs_of_steps("function_fit", [{"clip": 0.1}, {"zclip": 1.0}, {"adagc": 1.0}]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"accumulate": 2},
        {"qk_clip": 0.01},
        {"precision": "float16"},
        {"position": "rope", "mlp": "swiglu", "kv_heads": 1, "qk_norm": True, "bias": True, "norm": "rms"},
        {"attention_softcap": 1.0, "logit_softcap": 1.0, "tie_embeddings": True},
    ],
    ids=str,
)
def test_a_step_of_a_gpt_is_one_graph(change: Mapping[str, Any]) -> None:
    by_autograd = {"precision": "bfloat16"}  # with autocast also on a CPU, as on a GPU
    assert graphs_of_steps("gpt", [{**by_autograd, **change, **knobs} for knobs in KNOBS]) == 1
