"""A trial is what acts in it: its configuration and its id hold nothing else."""

import numpy as np
import pytest
from field_cases import VALUES, needs_of
from pack_cases import SMALL
from sweep_cases import BASE, ids, refusal, sweep_of
from tiers import one_of

from objectives.base import OBJECTIVES, ExecutionPlan, GptConfig, Objective, QuadraticConfig, TrainingConfig
from objectives.fields import acting, condition_of, inert_fields, is_feature, per_member, when
from objectives.optimizers.facts import OPTIMIZERS
from orchestrator.answers.plan import PlanQuery
from orchestrator.driver.packing import structure_of
from orchestrator.sweepfile.settings import settings_of

EVERY_OPTIMIZER = f"axes: {{optimizer: {{values: [{', '.join(OPTIMIZERS)}]}}}}\n"


def ids_by_optimizer(body: str = EVERY_OPTIMIZER) -> dict[str, str]:
    return {trial.config["optimizer"]: trial.trial_id for trial in sweep_of(body).trials}


class WithAnotherField(QuadraticConfig):
    """With a setting that SPAM has got since."""

    spam_patience: float = per_member(3.0, "steps", "between two spikes", acts=when("optimizer", "spam"))


class WithAnotherFeature(QuadraticConfig):
    """With a feature that all objectives have got since."""

    damping: float = per_member(0.0, "1", "of something", off=True)


def with_config(monkeypatch, config_class: type[TrainingConfig]) -> None:
    changed = Objective("quadratic", config_class, "objectives.models.quadratic", spike_rise=2.0, can_compile=False)
    monkeypatch.setitem(OBJECTIVES, "quadratic", changed)


def test_a_field_that_is_added_to_one_optimizer_makes_new_trials_of_that_one_alone(monkeypatch) -> None:
    before = ids_by_optimizer()
    with_config(monkeypatch, WithAnotherField)
    after = ids_by_optimizer()
    assert {name for name in before if before[name] != after[name]} == {"spam"}


def test_a_feature_that_is_added_and_off_makes_no_new_trials(monkeypatch) -> None:
    before = ids_by_optimizer()
    with_config(monkeypatch, WithAnotherFeature)
    assert ids_by_optimizer() == before
    assert ids(sweep_of("fixed: {damping: 0.0}\n")) == ids(sweep_of())
    assert ids(sweep_of("fixed: {damping: 0.5}\n")) != ids(sweep_of())


def test_a_trial_holds_its_own_optimizers_settings_and_no_others() -> None:
    for trial in sweep_of(EVERY_OPTIMIZER).trials:
        own = OPTIMIZERS[trial.config["optimizer"]].fields.model_fields
        others = {name for one in OPTIMIZERS.values() for name in one.fields.model_fields} - own.keys()
        assert own.keys() <= trial.config.keys()
        assert not others & trial.config.keys()


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_does_not_act_is_no_part_of_a_configuration(name: str, optimizer: str) -> None:
    config_class = OBJECTIVES[name].config_class
    base = config_class(steps=9, optimizer=optimizer)
    # A second moment that does not start at zero is refused where it cannot.
    inert = inert_fields(base) - {"second_moment_start"}
    changed = config_class(**{"steps": 9, "optimizer": optimizer, **changes(config_class, inert)})
    assert acting(changed) == acting(base)
    assert not inert & acting(base).keys()
    assert acting(config_class.model_validate(acting(base), strict=False)) == acting(base)


def changes(config_class: type[TrainingConfig], names: set[str]) -> dict[str, object]:
    """Other values than the defaults for ``names``."""
    defaults = {name: field.default for name, field in config_class.model_fields.items()}
    others = {name: next(value for value in VALUES[name] if value != defaults[name]) for name in sorted(names)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in others.items()}


@pytest.mark.parametrize("optimizer", one_of(3, OPTIMIZERS))
@pytest.mark.parametrize("name", ["quadratic", "gpt"])
def test_training_is_the_same_bit_for_bit_whatever_the_settings_are_that_do_not_act(name: str, optimizer: str) -> None:
    objective = OBJECTIVES[name]
    shared = {"steps": 9, "lr": 0.01, "warmup": 0, **SMALL[name], "optimizer": optimizer}
    base = objective.config_class(**shared)
    # A second moment that does not start at zero is refused where it cannot.
    inert = inert_fields(base) - {"second_moment_start"}
    config = objective.config_class(**{**shared, **changes(objective.config_class, inert)})

    def curve(one: TrainingConfig) -> np.ndarray:
        trainer = objective.start([one], [0], "cpu", ExecutionPlan(1))
        return np.array([[trainer.step()[metric].item() for metric in ("loss", "update_norm")] for _ in range(9)])

    np.testing.assert_array_equal(curve(config), curve(base))


def test_every_feature_that_is_off_by_default_acts_when_it_is_switched_on() -> None:
    features = {name for name, field in GptConfig.model_fields.items() if is_feature(field)}
    assert {"clip", "zclip", "adagc", "rollback", "z_loss", "dropout", "qk_norm", "beta2_half_life"} <= features
    for name in features:
        assert not {name} & acting(GptConfig(steps=9)).keys()
        assert condition_of(GptConfig.model_fields[name]).holds(
            GptConfig.model_validate({"steps": 9, **needs_of(name)}, strict=False).model_dump()
        )


REFUSED = [
    ("fixed:\n  spam_interval: 9\n", ["case.yaml:5", "fixed.spam_interval", "optimizer is spam", "remove"]),
    ("fixed: {optimizer: sgd, eps: 1e-6}\n", ["case.yaml:4", "fixed.eps", "optimizer is adamw, radam"]),
    ("fixed: {optimizer: adafactor, beta1: 0.5}\n", ["fixed.beta1", "optimizer is adamw, sgd"]),
    ("axes: {sophia_clip: {values: [0.1, 0.2]}}\n", ["case.yaml:4", "axes.sophia_clip", "optimizer is sophia"]),
    ("fixed: {beta2_half_life: 80.0, beta2: 0.9}\n", ["fixed.beta2", "beta2_half_life is null"]),
    ("fixed: {zclip_warmup: 9}\n", ["fixed.zclip_warmup", "zclip is not null"]),
    ("fixed: {rollback_every: 9}\n", ["fixed.rollback_every", "rollback is not null"]),
    ("fixed: {weight_decay_kind: coupled}\n", ["fixed.weight_decay_kind", "weight_decay is above 0"]),
    ("axes: {optimizer: {values: [adamw, sgd]}}\nfixed: {spam_grace: 9}\n", ["case.yaml:5", "fixed.spam_grace"]),
]


@pytest.mark.parametrize(("body", "words"), REFUSED, ids=[words[0] for _, words in REFUSED])
def test_a_field_that_acts_in_no_trial_is_refused_where_it_stands_with_what_it_acts_beside(body, words) -> None:
    message = refusal(body)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("fixed", "where"),
    [
        ("norm: none, norm_place: pre", "norm is not null"),
        ("norm: none, norm_lr: 0.5", "norm is not null or qk_norm is true"),
        ("init: he, init_deviation: 0.1", "init is gpt2"),
    ],
)
def test_a_field_of_norms_or_of_another_init_is_refused_where_there_is_none(fixed: str, where: str) -> None:
    message = refusal(f"fixed: {{{fixed}}}\n", BASE.replace("quadratic", "gpt"))
    name = fixed.split(", ")[1].split(":")[0]
    assert all(word in message for word in ("case.yaml:4", f"fixed.{name}", where, "remove")), message


def test_inits_are_one_pack_and_kinds_of_norm_are_packs_of_their_own() -> None:
    gpt = BASE.replace("quadratic", "gpt")
    inits, norms = (
        sweep_of(f"axes: {{{axis}}}\n", gpt)
        for axis in ("init: {values: [gpt2, fan_in, he, xavier]}", "norm: {values: [layer, rms, none]}")
    )
    assert len({structure_of(inits, trial) for trial in inits.trials}) == 1
    assert len({structure_of(norms, trial) for trial in norms.trials}) == 3
    assert [ids(inits)[0]] == [ids(norms)[0]] == ids(sweep_of("", gpt))
    assert norms.trials[2].config["norm"] is None


def test_a_field_may_be_fixed_that_acts_with_some_of_the_optimizers() -> None:
    body = "axes: {optimizer: {values: [adamw, spam]}}\n"
    with_field, without = ids_by_optimizer(f"{body}fixed: {{spam_interval: 9}}\n"), ids_by_optimizer(body)
    assert with_field["adamw"] == without["adamw"]
    assert with_field["spam"] != without["spam"]


def test_every_cell_that_was_asked_for_is_a_trial_though_its_run_repeats_another(tmp_path) -> None:
    body = "axes: {optimizer: {values: [adamw, spam]}, spam_interval: {values: [7, 9]}}\n"
    sweep = sweep_of(body)
    assert [(trial.cell["optimizer"], trial.cell["spam_interval"]) for trial in sweep.trials] == [
        ("adamw", 7), ("adamw", 9), ("spam", 7), ("spam", 9),
    ]  # fmt: skip
    assert len(set(ids(sweep))) == 4
    assert sweep.idle == {"spam_interval": 2}
    (said,) = [line for line in PlanQuery().ask((sweep, tmp_path)).lines() if "no effect" in line]
    assert "spam_interval has no effect in 2 of the cells" in said
    # The trials of an optimizer that reads the axis are those of a sweep of that optimizer alone.
    alone = sweep_of("axes: {spam_interval: {values: [7, 9]}}\nfixed: {optimizer: spam}\n")
    assert ids(alone) == ids(sweep)[2:]


def test_an_axis_that_switches_a_feature_keeps_the_trials_without_it() -> None:
    assert ids(sweep_of("axes: {clip: {values: [null, 1.0]}}\n"))[0] == ids(sweep_of())[0]


def test_the_settings_of_a_trial_have_the_features_that_are_off_and_the_values_of_its_cell() -> None:
    (trial,) = sweep_of("axes: {lr: {values: [0.5]}}\n", BASE.replace("quadratic", "gpt")).trials
    found = settings_of("gpt", trial.config, trial.cell)
    assert (found["clip"], found["z_loss"], found["qk_norm"], found["lr"]) == (None, 0.0, False, 0.5)
    assert not {"spam_interval", "loss_scale", "zclip_warmup"} & found.keys()
    assert settings_of("command", {"lr": 1}, {"lr": 1}) == {"lr": 1}
    assert "clip" in settings_of("mine", {"lr": 1.0, "optimizer": "adamw"})
