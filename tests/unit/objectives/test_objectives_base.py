import json

import pytest
from pydantic import ValidationError

from objectives.base import OBJECTIVES, GptConfig, Objective, TrainingConfig

SHARED = {
    "lr", "warmup", "beta1", "beta2", "beta2_half_life", "eps", "second_moment_scale", "weight_decay", "clip", "ema",
    "adagc", "adagc_warmup", "zclip", "zclip_warmup", "radam_threshold", "adabelief_eps", "adafactor_decay",
    "adafactor_clip", "adafactor_eps", "adafactor_smallest", "stableadamw_clip", "spam_threshold", "spam_interval",
    "spam_warmup", "spam_grace", "sophia_clip", "sophia_eps", "muon_momentum",
    "lcm_adam_period", "lcm_adam_least", "lcm_adam_change",
    "rollback", "interventions", "control",
}  # fmt: skip
OWN = {
    "gpt": {
        "loss_scale", "loss_scale_growth", "residual_scale", "residual_depth", "init", "init_deviation", "dropout",
        "z_loss",
        "embedding_grad", "embedding_lr", "attention_lr", "mlp_lr", "norm_lr", "head_lr", "micro_batches", "corrupted",
        "context_start", "context_steps", "burst_at", "burst_length", "shift_at", "mix_share", "balance",
        "domain_temperature", "curriculum_from", "curriculum_to", "curriculum_steps",
        "balance_weight", "balance_step", "router_z_loss", "router_noise", "router_lr", "router_init", "capacity",
    },
    "function_fit": set(),
    "quadratic": {"curvature", "noise"},
    "router": {"a", "b", "beta", "spread"},
}  # fmt: skip


@pytest.fixture(params=OBJECTIVES.values(), ids=OBJECTIVES.keys())
def objective(request) -> Objective:
    return request.param


def test_the_table_files_each_objective_under_its_own_name() -> None:
    assert {name: objective.name for name, objective in OBJECTIVES.items()} == {name: name for name in OBJECTIVES}


def test_numbers_may_differ_inside_a_pack_and_nothing_else_may(objective: Objective) -> None:
    assert objective.per_member_fields == SHARED | OWN.get(objective.name, set())


def test_every_field_says_its_unit_and_what_it_is(objective: Objective) -> None:
    for name, field in objective.config_class.model_fields.items():
        assert field.description, name
        assert field.json_schema_extra["unit"], name


def test_the_summary_is_one_sentence(objective: Objective) -> None:
    assert objective.summary.endswith(".")
    assert "\n" not in objective.summary


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": 0.0},
        {"lr": float("inf")},
        {"lr": float("nan")},
        {"lr": "0.1"},
        {"lr": True},
        {"beta1": 1.0},
        {"beta1": -0.1},
        {"beta2": 1.0},
        {"eps": 0.0},
        {"clip": 0.0},
        {"weight_decay": -0.1},
        {"warmup": 1.0},
        {"warmup": -1},
        {"steps": 0},
        {"batch_size": 0},
        {"optimizer": "adam"},
        {"schedule": "step"},
        {"final_lr_fraction": 1.5},
        {"learning_rate": 0.1},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_under_the_name_of_its_field(objective: Objective, wrong: dict) -> None:
    objective.config_class(steps=10)  # without the wrong value there is nothing to refuse
    with pytest.raises(ValidationError) as refused:
        objective.config_class(**{"steps": 10, **wrong})
    assert [error["loc"] for error in refused.value.errors()] == [tuple(wrong)]


def test_warmup_may_fill_the_run_but_not_outlast_it(objective: Objective) -> None:
    objective.config_class(steps=10, warmup=10)
    with pytest.raises(ValueError, match="warmup = 11 is longer than steps = 10"):
        objective.config_class(steps=10, warmup=11)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    GptConfig(steps=1, width=12, heads=3)
    with pytest.raises(ValueError, match="width = 12 is not a multiple of heads = 5"):
        GptConfig(steps=1, width=12, heads=5)


def test_a_configuration_cannot_change_under_a_running_trial() -> None:
    config = TrainingConfig(steps=10)
    with pytest.raises(ValidationError, match="frozen"):
        config.lr = 1.0


def test_a_configuration_survives_the_way_through_json(objective: Objective) -> None:
    changes = {"lr": 0.1 + 0.2, "eps": 1e-12, "beta2": 0.9999, "clip": None}
    changes |= {"text": ("a.txt", "b/*.py")} if objective.name == "gpt" else {}
    config = objective.config_class(steps=10, **changes)
    sent = json.loads(json.dumps(config.model_dump(mode="json")))
    # As the worker reads it: JSON has no tuples, so not strictly.
    assert objective.config_class.model_validate(sent, strict=False) == config
