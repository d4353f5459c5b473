"""On a GPU the host only launches work: no step waits for the device, and none sends it a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from pack_cases import small_pack
from pretend_device import DEVICE, Notes, on_host, pretended_device
from tiers import one_of, thinned

from objectives.optimizers.facts import OPTIMIZERS

# Knobs of gpt that act on the host's side of a step, or differ by member; each runs in a pack with a default member.
GPT_KNOBS: Sequence[Mapping[str, Any]] = (
    {"dropout": 0.1},
    {"context_start": 2, "context_steps": 50},
    {"z_loss": 0.1, "residual_scale": 0.5},
    {"corrupted": 0.4},
    {"burst_at": 6, "burst_length": 3},
    {"embedding_lr": 0.5, "embedding_grad": 0.5},
    {"mix_share": 0.5},
    {"ema": 0.9},
    # It keeps states from the third step on, and reads after the test.
    {"control": [{"on": "step", "above": 0, "after": 90, "do": {"mean": 44, "apart": 2}}]},
)
GPT_MODELS: Sequence[Mapping[str, Any]] = (
    {"accumulate": 2},
    {"qk_clip": 0.01},
    {"position": "rope", "mlp": "swiglu", "kv_heads": 1, "qk_norm": True, "bias": True, "norm": "rms"},
    {"attention_softcap": 1.0, "logit_softcap": 1.0, "recompute": True, "tie_embeddings": True},
    {"parametrisation": "mup", "base_width": 4},
    {"experts": 4, "top_k": 2, "balance": "loss_free", "capacity": 1.0, "router_noise": 0.1, "router_z_loss": 0.1},
    {"ema": 0.9, "merge_last": 2, "merge_every": 3},
)


def waits_of_ten_steps(objective: str, changes: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What waits for the device, or sends it a list, in ten steps of a pack that has trained two."""
    with pretended_device() as notes:
        trainer = small_pack(objective, changes, DEVICE)
        for _ in range(2):
            trainer.step()
        notes.take()
        losses = [trainer.step()["loss"] for _ in range(10)]
        waits = notes.take()
    assert all(torch.isfinite(on_host(loss_K)).all() for loss_K in losses)
    return waits


def test_what_waits_for_a_pretended_device_is_noted() -> None:
    """Otherwise the tests below would pass whatever a step does."""
    ways = (
        ("_local_scalar_dense", lambda x: x.sum().item()),
        ("_local_scalar_dense", lambda x: bool((x > 0).all())),
        ("nonzero", lambda x: x.nonzero()),
        ("copied to the host", lambda x: x.cpu()),
        ("copied to the host", lambda x: x.tolist()),
        ("index by a mask", lambda x: x[x > 1]),
        ("a list is sent", lambda x: torch.tensor([0, 1], device=DEVICE)),
        ("a list is sent", lambda x: x.new_tensor([0.0])),
        ("index sends a tensor", lambda x: x[[1, 0]]),
        ("a tensor is sent while the host waits", lambda x: torch.ones(3).to(DEVICE)),
        ("a tensor is sent while the host waits", lambda x: torch.ones(3).to(DEVICE, non_blocking=True)),
    )
    with pretended_device() as notes:
        x = torch.arange(3.0).to(DEVICE)
        notes.take()
        for what, way in ways:
            way(x)
            assert [note.split(",")[0] for note in notes.take()] == [what]
        (x + 1).mul_(2).masked_fill(x > 1, 0.0)[x.long()].sum()
        torch.ones(3).pin_memory().to(DEVICE, non_blocking=True)
        assert notes.take() == {}


def test_a_pretended_device_computes_what_the_cpu_does() -> None:
    changes = [{"lr": 1e-2}, {"lr": 1e-3, "optimizer": "adamw", "clip": 0.1}]
    with pretended_device():
        trainer = small_pack("function_fit", changes, DEVICE)
        elsewhere = [on_host(trainer.step()["loss"]) for _ in range(5)]
    trainer = small_pack("function_fit", changes)
    torch.testing.assert_close(torch.stack(elsewhere), torch.stack([trainer.step()["loss"] for _ in range(5)]))


@pytest.mark.parametrize("optimizer", one_of(3, OPTIMIZERS))
def test_no_optimizer_waits(optimizer: str) -> None:
    changes = [{"optimizer": optimizer}, {"optimizer": optimizer, "clip": 1.0, "weight_decay": 0.1, "noise": 0.1}]
    assert waits_of_ten_steps("quadratic", changes) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"zclip": 1.0},
        {"adagc": 1.0},
        {"second_moment_start": "data"},
        {"schedule": "cosine", "warmup": 8, "warmup_shape": "cosine"},
        {"schedule": "wsd", "weight_decay_kind": "coupled", "weight_decay": 0.1},
        {"batch_size": 4},
    ],
    ids=str,
)
def test_no_clipping_schedule_or_draw_waits(change: Mapping[str, Any]) -> None:
    assert waits_of_ten_steps("function_fit", [change, {**change, "lr": 1e-4}]) == {}


@pytest.fixture
def mix_text(texts: tuple[str, str]) -> list[str]:
    return [texts[1]]


def test_no_knob_of_a_gpt_that_members_may_share_waits(mix_text: list[str]) -> None:
    assert waits_of_ten_steps("gpt", [{"mix_text": mix_text, **knobs} for knobs in ({}, *GPT_KNOBS)]) == {}


@pytest.mark.parametrize("kind", ["noise", "domains"])
def test_no_order_and_no_weight_of_texts_waits(texts: tuple[str, str], kind: str) -> None:
    own = {"text": texts[:1], "separator": "\x61", "noise_share": 0.5} if kind == "noise" else {}
    shared = {**(own or {"domains": dict.fromkeys(texts, 1.0)}), "curriculum": kind}
    assert waits_of_ten_steps("gpt", [shared, {**shared, "curriculum_steps": 4}]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("change", GPT_MODELS, ids=str)
def test_no_structure_of_a_gpt_waits(change: Mapping[str, Any]) -> None:
    assert waits_of_ten_steps("gpt", [change, {**change, "lr": 1e-4}]) == {}


def test_rules_and_interventions_wait_only_when_they_act() -> None:
    rule = {"on": "loss", "above": 2.0, "every": 50, "do": {"lr": "x0.5"}}
    changes = [{}, {"control": [rule]}, {"interventions": [{"at": 30, "set": {"lr": 1e-4}}]}]
    assert waits_of_ten_steps("gpt", changes) == {}


@pytest.mark.parametrize("batch_size", [None, 8])
def test_no_router_waits(batch_size: int | None) -> None:
    assert waits_of_ten_steps("router", [{"batch_size": batch_size}, {"batch_size": batch_size, "a": 3.0}]) == {}


@pytest.mark.parametrize(
    "entry",
    one_of(
        3,
        [
            {"norm": "hold"},
            {"optimizer": "sgd_like"},
            {"weight_decay": 0.1, "group": "mlp"},
            {"freeze": "mlp", "moments": "stop"},
            {"attention": "capped"},
            {"data": "same"},
        ],
    ),
    ids=str,
)
def test_what_is_held_waits_for_nothing(entry: Mapping[str, Any]) -> None:
    assert waits_of_ten_steps("gpt", [{}, {"interventions": [{"at": 1, **entry}]}]) == {}


WITH_EXPERTS = {"experts": 4, "top_k": 2, "balance": "loss_free"}


@pytest.mark.parametrize(
    ("objective", "change"), [("function_fit", {}), ("gpt", {}), ("gpt", WITH_EXPERTS), ("gpt", {"mix_share": 0.5})]
)
@pytest.mark.parametrize("rows", thinned([[0, 1, 2], [0, 2]], [0, 2].__eq__), ids=["all", "some"])
def test_a_step_with_readings_and_curvature_and_validation_wait_for_nothing(
    objective: str, change: Mapping[str, Any], rows: list[int], mix_text: list[str]
) -> None:
    if "mix_share" in change:
        change = {**change, "mix_text": mix_text}

    def observe(notes: Notes) -> dict[str, int]:
        notes.take()
        trainer.observed_step(rows, rows[1:], 3)
        trainer.validate(rows)
        return notes.take()

    with pretended_device() as notes:
        trainer = small_pack(objective, [change, {**change, "lr": 1e-4}, {**change, "lr": 1e-5}], DEVICE)
        observe(notes)  # the first sends which rows and weights it reads
        assert observe(notes) == {}
