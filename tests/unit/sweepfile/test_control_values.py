"""Rules of control in a sweep file: of all trials, as an axis, with shares of the steps; refusals, and their words."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sweep_cases import ids
from sweep_cases import sweep_with_keys as sweep_of

from objectives.control import SIGNALS, Rule, firing_in_words, policy_in_words
from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis, Trial, format_value, to_hashable
from orchestrator.maps.axes import value_labels, value_meant
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

HALVE = [{"on": "loss", "above": 1.5, "do": {"lr": "x0.5"}, "every": 5, "at_most": 4}]


def trials_of(**changes: Any) -> list[Trial]:
    return list(sweep_of(**changes).trials)


def test_without_rules_a_trial_is_what_it_was_and_with_them_they_are_part_of_it() -> None:
    plain = trials_of()
    assert "control" not in plain[0].config
    assert ids(trials_of(control=[])) == ids(plain)
    of_axis = trials_of(axes={"control": {"values": [[], HALVE]}})
    assert ids(of_axis) == [*ids(plain), *ids(trials_of(control=HALVE))]
    assert ids(trials_of(fixed={"control": HALVE})) == ids(trials_of(control=HALVE))
    assert trials_of(control=HALVE)[0].config["control"] == [
        {"on": "loss", "above": 1.5, "do": [{"lr": "x0.5"}], "every": 5, "at_most": 4}
    ]


@pytest.mark.parametrize(
    "same",
    [
        [{"on": "loss", "above": 1.5, "do": [{"lr": "x.50"}], "every": 5, "at_most": 4, "readings": 1, "over": 0}],
        [{"at_most": 4, "do": {"lr": "x5e-1"}, "every": "2.5%", "above": 1.5, "on": "loss", "cool_down": "0%"}],
    ],
)
def test_lists_that_mean_the_same_give_the_same_trial(same: list[Any]) -> None:
    assert ids(trials_of(control=same)) == ids(trials_of(control=HALVE))
    with pytest.raises(InputError, match=r"repeats a value|both"):
        sweep_of(axes={"control": {"values": [HALVE, same]}})


def test_the_order_of_rules_is_kept_as_it_is_written() -> None:
    other = {"on": "grad_norm", "above": 2, "do": {"skip": 1}}
    assert ids(trials_of(control=[other, *HALVE])) != ids(trials_of(control=[*HALVE, other]))


def rule(**changes: Any) -> list[dict[str, Any]]:
    return [{**HALVE[0], **changes}]


REFUSED: list[tuple[Any, list[str]]] = [
    (3, ["valid list"]),
    ([3], ["entry 1", "not a mapping"]),
    (rule(on="los"), ["entry 1, on", "'loss', 'grad_norm', 'curvature'"]),
    ([{"on": "loss", "do": {"lr": 1.0}}], ["entry 1, above", "required"]),
    (rule(above=-1), ["entry 1, above", "greater than or equal to 0"]),
    (rule(above=float("inf")), ["entry 1, above", "finite"]),
    ([*HALVE, *rule(reading=2)], ["entry 2 has no key reading", "did you mean `readings`?"]),
    (rule(do={}), ["entry 1, do", "a change is empty"]),
    (rule(do=[]), ["entry 1, do", "at least 1"]),
    (rule(do=3), ["entry 1, do"]),
    (rule(do={"lr": "half"}), ["entry 1, do", "'half' is not a number"]),
    (rule(do={"lr": True}), ["entry 1, do", "valid number"]),
    (rule(do={"reset": "all"}), ["entry 1, do", "'moments', 'first_moment' or 'second_moment'"]),
    (rule(do={"clip_to_quantile": 1.5}), ["clip_to_quantile = 1.5 is not a number above 0"]),
    (rule(do={"clip_to_quantile": 0.5, "clip": 1}), ["set the same field"]),
    (rule(do={"clip_to_quantile": 0.5}, over=3), ["cannot be reached by a ramp"]),
    (rule(do={"lr_by_gain": 2}), ["lr_by_gain = 2 is not true"]),
    (rule(do={"lr_by_gain": True, "lr": 1}), ["lr and lr_by_gain set the same field"]),
    (rule(do={"lr_by_gain": True}), ["rule 1, change 1: lr_by_gain needs the gain", "gpt with accumulate above 1"]),
    (rule(do=[{"skip": 1}] * 5), ["5 changes and fires at most 4 times"]),
    (rule(do={"skip": 1}, over=3), ["it sets none"]),
    (rule(over=5, lasts=5), ["must outlast its ramp"]),
    (rule(every=0), ["entry 1, every", "greater than or equal to 1"]),
    (rule(every="-5%"), ["entry 1, every", "not a share"]),
    (rule(at_most=1001), ["entry 1, at_most", "less than or equal to 1000"]),
    (rule(name="a=b"), ["entry 1, name"]),
    (rule(after=199), ["control rule 1 first reads step 199, which is too late: steps = 200"]),
    (rule(on="noise_scale"), ["control rule 1 cannot read noise_scale", "step, loss, grad_norm, curvature"]),
    (rule(do={"warmup": 5}), ["rule 1, change 1: it cannot set warmup", "only at the start", "beta1, beta2"]),
    (rule(do={"batch_size": 5}), ["structural"]),
    (rule(do={"sophia_clip": 5}), ["adamw does not read it"]),
    (rule(do=[{"skip": 1}, {"clip": "x0.5"}]), ["rule 1, change 2: it has a factor on clip, which is null"]),
    ([*rule(do={"clip": 2}), *rule(do={"clip": "x0.5"})], ["rule 2, change 1: it has a factor on clip"]),
    (rule(do={"clip": 1}, over=5), ["a ramp between null and a number"]),
    (rule(do={"beta2": "x1.0005"}), ["control may make beta2 1.001", "less than 1"]),
    (rule(do={"lr": "x1e-100"}), ["control may make lr 0", "greater than 0"]),
    (rule(do={"lr": "x1e300"}), ["control may make lr inf", "finite"]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "words"), REFUSED)
def test_what_cannot_act_is_refused_with_its_place_and_what_would(value: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        sweep_of(control=value)
    message = str(refused.value)
    assert message.startswith("s.yaml:4: control: ")
    for word in words:
        assert word in message, message


def test_a_factor_or_a_ramp_on_what_something_else_makes_null_is_refused() -> None:
    fixed = {"clip": 1.0, "interventions": [{"at": 9, "set": {"clip": None}}]}
    with pytest.raises(InputError, match="rule 1 has a factor on clip, which may be null"):
        sweep_of(fixed=fixed, control=rule(do={"clip": "x0.5"}))
    with pytest.raises(InputError, match="rule 1 has a ramp on clip, which may be null"):
        sweep_of(fixed=fixed, control=rule(do={"clip": 0.5}, over=3))
    assert trials_of(fixed={"clip": 1.0}, control=rule(do={"clip": "x0.5"}, over=3))


@pytest.mark.parametrize(
    ("optimizer", "refused"), [("sgd", ["v_lag"]), ("sophia", ["v_lag"]), ("lion", ["v_lag", "curvature"])]
)
def test_a_signal_that_an_optimizer_does_not_give_is_refused(optimizer: str, refused: list[str]) -> None:
    for signal in SIGNALS[:6]:
        if signal in refused or (signal == "curvature_along_gradient" and "curvature" in refused):
            with pytest.raises(InputError, match=f"cannot read {signal}"):
                sweep_of(fixed={"optimizer": optimizer}, control=rule(on=signal))
        else:
            assert trials_of(fixed={"optimizer": optimizer}, control=rule(on=signal))


def test_signals_of_gpt_come_with_micro_batches_and_float16() -> None:
    with pytest.raises(InputError, match="cannot read noise_scale"):
        sweep_of(objective="gpt", control=rule(on="noise_scale"))
    assert trials_of(objective="gpt", fixed={"accumulate": 2}, control=rule(on="noise_scale"))
    by_gain = rule(on="gain", do={"lr_by_gain": True, "micro_batches": 2.0})
    assert trials_of(objective="gpt", fixed={"accumulate": 2}, control=by_gain)
    with pytest.raises(InputError, match="cannot read loss_scale_falls"):
        sweep_of(objective="gpt", control=rule(on="loss_scale_falls"))
    assert trials_of(objective="gpt", fixed={"precision": "float16"}, control=rule(on="loss_scale_falls"))


def test_the_key_beside_the_field_elsewhere_and_a_custom_trainer_are_refused() -> None:
    with pytest.raises(InputError, match="is also given under fixed"):
        sweep_of(control=HALVE, fixed={"control": []})
    with pytest.raises(InputError, match="a custom trainer, which is not read"):
        sweep_of(objective={"command": "train {seed}"}, control=HALVE)


def test_a_field_that_a_rule_may_bring_into_play_belongs_to_the_trial() -> None:
    decay = rule(do={"weight_decay": 0.1})
    trials = [trials_of(fixed={"weight_decay_kind": kind}, control=decay) for kind in ("coupled", "decoupled")]
    assert trials[0][0].config["weight_decay_kind"] == "coupled"
    assert ids(trials[0]) != ids(trials[1])


def test_the_sweep_as_a_file_gives_the_same_trials() -> None:
    for changes in (
        {"control": rule(every="5%")},
        {"fixed": {"control": HALVE}},
        {"axes": {"control": {"values": [[], HALVE]}}},
    ):
        sweep = sweep_of(**changes)
        assert ids(list(build_sweep(parse_document(sweep.text, "again.yaml")).trials)) == ids(list(sweep.trials))


WORDS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "loss > 1.5: lr x0.5": [{"on": "loss", "above": 1.5, "do": [{"lr": "x0.5"}]}],
    "v_lag > 4: beta2 0.9, over 5, 3 times": [
        {"on": "v_lag", "above": 4.0, "do": [{"beta2": 0.9}], "over": 5, "at_most": 3}
    ],
    "step > 0: lr by gain": [{"on": "step", "above": 0.0, "do": [{"lr_by_gain": True}]}],
    "grad_norm > 2: clip to quantile 0.9": [{"on": "grad_norm", "above": 2.0, "do": [{"clip_to_quantile": 0.9}]}],
    "loss > 2: skip 5, then lr x0.5, 2 times": [
        {"on": "loss", "above": 2.0, "do": [{"skip": 5}, {"lr": "x0.5"}], "at_most": 2}
    ],
    "halve": [{"name": "halve", **HALVE[0]}],
    "halve + loss > 3: skip 1": [{"name": "halve", **HALVE[0]}, {"on": "loss", "above": 3.0, "do": [{"skip": 1}]}],
}


@pytest.mark.parametrize("words", WORDS)
def test_rules_are_a_few_words_on_maps_and_those_words_mean_them(words: str) -> None:
    values = list(map(to_hashable, WORDS.values()))
    value = to_hashable(WORDS[words])
    assert format_value(value) == policy_in_words(WORDS[words]) == words
    assert words in value_labels(values)
    assert value_meant("--where", Axis("control", "values", tuple(values)), words) == value


def test_long_rules_are_called_by_what_they_do_and_stay_distinct() -> None:
    labels = [format_value(to_hashable(rule(cool_down=cool_down, over=10, lasts=100))) for cool_down in (50, 60)]
    for label in labels:
        assert re.fullmatch(r"loss > 1\.5: lr x0\.5 [0-9a-f]{6}", label), label
    assert len({*labels}) == 2
    (one,) = rule(cool_down=50, over=10, lasts=100)
    assert format_value(to_hashable([dict(reversed(one.items()))])) == labels[0], "in whatever order the keys stand"
    many = [{"on": "loss", "above": number, "do": [{"lr": "x0.5"}]} for number in range(5)]
    assert len(format_value(to_hashable(many))) <= 40


def test_no_rule_has_the_name_of_an_empty_list() -> None:
    with pytest.raises(ValueError, match="the name of an empty list"):
        Rule.model_validate({"name": "none", **HALVE[0]})


def test_a_firing_is_told_with_its_reason() -> None:
    did = {"at": 106, "set": {"lr": "x0.5"}, "over": 10}
    fired = {"step": 105, "rule": 1, "on": "curvature", "value": 1.2345, "above": 1.0, "did": did}
    assert firing_in_words(fired) == "lr x0.5 at 106 over 10 (curvature 1.23 > 1 at step 105)"
