"""Presets, and how init, learning rate, eps and decay follow from the size of the model."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from curve_cases import assert_goes_on_as_alone, assert_resumes, trained_as_alone
from gpt_cases import is_transposed, name_in_pack, plain_model
from pack_cases import trainer_of
from pydantic import ValidationError
from sweep_cases import sweep_of
from tiers import one_of
from torch import nn

from objectives.base import GptConfig, QuadraticConfig
from objectives.control import Rule
from objectives.interventions import Intervention
from objectives.models.gpt import GptTrainer
from objectives.optimizers.facts import OPTIMIZERS
from orchestrator.base.errors import InputError

SMALL = {"steps": 10, "width": 12, "heads": 3, "context": 8, "batch_size": 4, "depth": 2, "lr": 3e-3}
GPT = "name: case\nobjective: gpt\nsteps: 20\n"
MUP = {"parametrisation": "mup", "base_width": 8}
COMPLETEP = {"parametrisation": "completep", "base_width": 8, "base_depth": 2}


# Presets.


def test_a_preset_fills_what_is_not_given_and_is_gone_from_the_configuration() -> None:
    by_preset = GptConfig(steps=1, preset="llama", mlp="gelu")
    by_hand = GptConfig(steps=1, norm="rms", position="rope")
    assert by_preset == by_hand
    assert by_preset.acting() == by_hand.acting()


def test_the_preset_gpt2_has_its_offsets_and_its_tie_and_small_is_the_default() -> None:
    assert GptConfig(steps=1, preset="gpt2") == GptConfig(steps=1, bias=True, tie_embeddings=True)
    assert GptConfig(steps=1, preset="small") == GptConfig(steps=1)


def test_muonclip_is_muon_with_a_largest_logit_and_needs_one() -> None:
    assert GptConfig(steps=1, optimizer="muonclip") == GptConfig(steps=1, optimizer="muon", qk_clip=100.0)
    assert GptConfig(steps=1, optimizer="muonclip", qk_clip=30.0) == GptConfig(steps=1, optimizer="muon", qk_clip=30.0)
    with pytest.raises(ValidationError, match="write muon"):
        GptConfig(steps=1, optimizer="muonclip", qk_clip=None)
    with pytest.raises(ValidationError, match="a field of gpt: here write muon"):
        QuadraticConfig(steps=1, optimizer="muonclip")


def test_an_unknown_optimizer_is_refused_with_every_name_that_the_objective_takes() -> None:
    for config_class, takes_muonclip in ((GptConfig, True), (QuadraticConfig, False)):
        with pytest.raises(ValidationError) as caught:
            config_class(steps=1, optimizer="moon")
        (error,) = caught.value.errors()
        listed = error["msg"].partition("choose from ")[2].split(", ")
        assert ("muonclip" in listed) == takes_muonclip
        for name in listed[:-1]:
            assert config_class(steps=1, optimizer=name).optimizer in OPTIMIZERS


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ValidationError, match="preset"):
        GptConfig(steps=1, preset="bert")


def test_presets_that_train_the_same_model_are_refused_as_values_of_an_axis() -> None:
    with pytest.raises(InputError) as refused:
        sweep_of("axes: {preset: {values: [null, small]}}\n", base=GPT)
    assert [problem.key for problem in refused.value.problems] == ["axes.preset"]


def test_a_model_without_positions_is_written_none_as_one_without_norms_is() -> None:
    sweep = sweep_of("axes: {position: {values: [none, rope]}}\n", base=GPT)
    assert {trial.config.get("position", "learned") for trial in sweep.trials} == {None, "rope"}


# The parametrisation.


@pytest.mark.parametrize(
    ("fields", "word"),
    [({"parametrisation": "mup"}, "base_width"),
     ({"parametrisation": "completep", "base_width": 8}, "base_depth"),
     (MUP | {"optimizer": "sgd"}, "optimizer"),
     (MUP | {"init": "fan_in"}, "init"),
     (MUP | {"weight_decay": 0.1, "weight_decay_kind": "coupled"}, "weight_decay_kind")],
)  # fmt: skip
def test_where_the_table_does_not_hold_it_is_refused_with_the_field_to_change(fields: dict, word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        GptConfig(steps=1, **fields)


def factors_by_table(config: GptConfig, name: str) -> tuple[float, float, float]:
    """Learning rate, eps and decay of a weight over those of the base."""
    m = config.width / config.base_width
    depth = config.depth / config.base_depth if config.parametrisation == "completep" else 1
    if name.startswith(("embedding", "position", "final_norm", "head")):
        return 1, 1 / m, 1
    if "norm" in name or name.endswith("bias"):
        return 1, 1 / (m * depth), 1
    return 1 / m, 1 / (m * depth), m


def groups_of(model: nn.Module, config: GptConfig) -> list[dict]:
    """Parameter groups of torch's optimizer."""
    found = []
    for name, parameter in model.named_parameters():
        lr, eps, decay = factors_by_table(config, name_in_pack(name))
        found.append({"params": [parameter], "lr": config.lr * lr, "eps": config.eps * eps,
                      "weight_decay": config.weight_decay * decay})  # fmt: skip
    return found


@pytest.mark.parametrize("kind", [MUP, COMPLETEP | {"depth": 4, "bias": True}], ids=["mup", "completep"])
def test_a_member_trains_as_with_torchs_parameter_groups(text, kind: dict) -> None:
    fields = SMALL | kind | {"text": text, "eps": 1e-3, "weight_decay": 0.3}
    configs = [GptConfig(**(fields | {"lr": lr})) for lr in (1e-3, 1e-2)]
    trainer = trainer_of("gpt", configs, [0, 1])
    models = [plain_model(trainer, k, torch.float64) for k in range(2)]
    optimizers = [
        torch.optim.AdamW(groups_of(model, config), betas=(0.9, 0.999))
        for model, config in zip(models, configs, strict=True)
    ]
    for _ in range(5):
        tokens = trainer.batches.batch(trainer.cohorts())[trainer.cohort_of_member_K]
        trainer.step()
        for model, optimizer, tokens_BS in zip(models, optimizers, tokens, strict=True):
            optimizer.zero_grad()
            model(tokens_BS).backward()
            optimizer.step()
    for k, model in enumerate(models):
        for name, parameter in model.named_parameters():
            found = trainer.weights[name_in_pack(name)][k].detach().double()
            wanted = parameter.detach().T if is_transposed(name) else parameter.detach()
            error = (found - wanted).norm() / wanted.norm()
            assert error < 1e-4, f"{name} of member {k}: off by {error:.1e}"


@pytest.mark.parametrize(
    "kind",
    one_of(
        4,
        [
            MUP,
            COMPLETEP | {"depth": 4},
            {"position": None, "tie_embeddings": True},
            {"preset": "gpt2", "qk_clip": 0.02},
        ],
    ),
    ids=str,
)
def test_members_share_a_pack_resume_fork_and_change_in_mid_run_to_the_bit(text, kind: dict, tmp_path: Path) -> None:
    later = (Intervention(at=3, set={"lr": "x0.1"}, lasts=2), Intervention(at=4, freeze="attention", lasts=3))
    rule = Rule(on="step", above=4, do=({"reset": "moments"},), every=1)
    own = ({}, {"interventions": later}, {"control": (rule,)}, {"lr": 0.03, "eps": 1e-3, "weight_decay": 0.3})
    shared = SMALL | {"text": text, "width": 16, "heads": 2} | kind
    configs = [GptConfig(**(shared | one)) for one in own]
    start, seeds = partial(trainer_of, "gpt"), [0, 1, 0, 1]
    trainer = trained_as_alone(start, configs, seeds, 8)
    assert [len(trainer.fired(k)) > 0 for k in range(4)] == [False, False, True, False]
    assert_resumes(start, configs, seeds, 5, 8, tmp_path)
    assert_goes_on_as_alone(start, configs, seeds, [3, 1], 8)


def change_of_the_stream(text, **fields) -> float:
    """Root mean square of what the blocks have added to the stream after five steps."""
    config = GptConfig(**(SMALL | {"text": text, "heads": 2} | fields))
    trainer: GptTrainer = trainer_of("gpt", [config], [0])
    for _ in range(5):
        trainer.step()
    model, seen = plain_model(trainer, 0), []
    for block in model.blocks:
        block.register_forward_hook(lambda _, given, out: seen.append((given[0], out)))
    with torch.no_grad():
        model(trainer.batches.batch(trainer.cohorts())[0])
    return (seen[-1][1] - seen[0][0]).square().mean().sqrt().item()


def growth(text, axis: str, values: tuple[int, ...], **fields) -> float:
    """The exponent of the change of activations over a size."""
    sizes = [math.log(change_of_the_stream(text, **fields, **{axis: value})) for value in values]
    return (sizes[-1] - sizes[0]) / math.log(values[-1] / values[0])


def test_the_coordinate_check_over_width_is_flat_with_mup_alone(text) -> None:
    widths = (16, 64, 256)
    assert abs(growth(text, "width", widths, parametrisation="mup", base_width=16, lr=1e-2)) < 0.15
    assert growth(text, "width", widths, lr=1e-2) > 0.4


def test_the_coordinate_check_over_depth_is_flat_with_completep_alone(text) -> None:
    depths = (2, 8, 32)
    fields = {"base_width": 16, "width": 16, "lr": 1e-2}
    assert abs(growth(text, "depth", depths, parametrisation="completep", base_depth=2, **fields)) < 0.15
    assert growth(text, "depth", depths, parametrisation="mup", **fields) > 0.4
