"""Interventions and rules of control in a sweep file: of all trials, as an axis, with shares; refusals, and words."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import ids
from sweep_cases import sweep_with_keys as sweep_of

from objectives.base import QuadraticConfig
from objectives.control import SIGNALS, Rule
from objectives.entries import changes_in_words
from objectives.rule_words import firing_in_words, policy_in_words
from orchestrator.base.errors import InputError
from orchestrator.base.query import cell_conditions
from orchestrator.base.space import Axis, Trial, canonical_text, format_value, to_hashable, to_plain
from orchestrator.maps.axes import value_labels, value_meant
from orchestrator.sweepfile.entries import fork_step, forked_values, is_of_fork, without_fork
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

HALVED = [{"at": 100, "set": {"lr": "x0.5"}, "over": 20}]
HALVE = [{"on": "loss", "above": 1.5, "do": {"lr": "x0.5"}, "every": 5, "at_most": 4}]
WRITTEN = {"interventions": HALVED, "control": HALVE}


def rule(**changes: Any) -> list[dict[str, Any]]:
    return [{**HALVE[0], **changes}]


def trials_of(**changes: Any) -> list[Trial]:
    return list(sweep_of(**changes).trials)


def test_a_trial_has_the_entries_as_they_are_written_without_defaults() -> None:
    assert trials_of(interventions=HALVED)[0].config["interventions"] == HALVED
    assert trials_of(control=HALVE)[0].config["control"] == [
        {"on": "loss", "above": 1.5, "do": [{"lr": "x0.5"}], "every": 5, "at_most": 4}
    ]


@pytest.mark.parametrize("key", WRITTEN)
def test_without_entries_a_trial_is_what_it_was_and_with_them_they_are_part_of_it(key: str) -> None:
    plain, some = trials_of(), WRITTEN[key]
    assert key not in plain[0].config
    assert ids(trials_of(**{key: []})) == ids(plain)
    of_axis = trials_of(axes={key: {"values": [[], some]}})
    assert ids(of_axis) == [*ids(plain), *ids(trials_of(**{key: some}))]
    assert ids(trials_of(fixed={key: some})) == ids(trials_of(**{key: some}))


@pytest.mark.parametrize(
    ("key", "same"),
    [
        ("interventions", [{"at": 100, "set": {"lr": "x.50"}, "over": 20, "skip": 0}]),
        ("interventions", [{"set": {"lr": "x5e-1"}, "over": 20, "at": 100}]),
        ("interventions", [{"at": "50%", "set": {"lr": "x0.5"}, "over": "10%"}]),
        ("control", rule(do=[{"lr": "x.50"}], readings=1, over=0)),
        ("control", rule(do={"lr": "x5e-1"}, every="2.5%", cool_down="0%")),
    ],
)
def test_lists_that_mean_the_same_give_the_same_trial(key: str, same: list[Any]) -> None:
    written = WRITTEN[key]
    assert ids(trials_of(**{key: same})) == ids(trials_of(**{key: written}))
    (trial,) = trials_of(axes={key: {"values": [same]}})
    assert ids([trial]) == ids(trials_of(axes={key: {"values": [written]}}))
    if key == "interventions":
        assert trial.cell == {key: to_hashable(written)}
    with pytest.raises(InputError, match=r"repeats a value|both"):
        sweep_of(axes={key: {"values": [written, same]}})


def test_entries_act_in_the_order_of_their_steps_however_they_are_written() -> None:
    later = {"at": 150, "reset": "moments"}
    assert ids(trials_of(interventions=[later, *HALVED])) == ids(trials_of(interventions=[*HALVED, later]))


def test_shares_are_of_the_steps_of_each_trial() -> None:
    sweep = sweep_of(
        objective="gpt", steps=None, tokens=64_000, fixed={"context": 32},
        axes={"batch_size": {"values": [8, 16]}, "interventions": {"values": [[{"at": "50%", "set": {"lr": "x2"}}]]}},
    )  # fmt: skip
    assert [(trial.steps, trial.config["interventions"][0]["at"]) for trial in sweep.trials] == [(250, 125), (125, 62)]


REFUSED: list[tuple[Any, list[str]]] = [
    (3, ["s.yaml:4: interventions", "list"]),
    ([3], ["entry 1", "not a mapping"]),
    ([{"set": {"lr": 1.0}}], ["entry 1, at", "required"]),
    ([{"at": -1, "skip": 1}], ["entry 1, at", "greater than or equal to 0"]),
    ([{"at": "-5%", "skip": 1}], ["entry 1, at", "not a share"]),
    ([{"at": 1, "skip": 1}, {"at": 2, "sett": {}}], ["entry 2 has no key sett", "did you mean `set`?"]),
    ([{"at": 1}], ["entry 1", "changes nothing"]),
    ([{"at": 1, "set": {"lr": "half"}}], ["entry 1, set", "'half' is not a number"]),
    ([{"at": 1, "set": {"lr": True}}], ["entry 1, set.lr", "valid number"]),
    ([{"at": 1, "skip": 1, "over": 3}], ["sets no field"]),
    ([{"at": 1, "set": {"lr": 1.0}, "over": 5, "lasts": 5}], ["must outlast its ramp"]),
    ([{"at": 200, "skip": 1}], ["s.yaml:4: interventions", "too late", "the last step is 199"]),
    ([{"at": 1, "set": {"warmup": 5}}], ["cannot set warmup", "only at the start", "beta1, beta2"]),
    ([{"at": 1, "set": {"second_moment_scale": 5}}], ["only at the start"]),
    ([{"at": 1, "set": {"batch_size": 5}}], ["structural"]),
    ([{"at": 1, "set": {"lrr": 5}}], ["no such field"]),
    ([{"at": 1, "set": {"sophia_clip": 5}}], ["adamw does not read it"]),
    ([{"at": 1, "set": {"clip": "x0.5"}}], ["a factor on clip, which is null"]),
    ([{"at": 1, "set": {"clip": 1.0}, "over": 5}], ["a ramp between null and a number"]),
    ([{"at": 1, "set": {"beta2": "x2"}}], ["beta2 1.998 at step 1", "less than 1"]),
]  # fmt: skip


def test_with_a_half_life_beta2_is_not_changed_but_the_half_life_is() -> None:
    fixed = {"beta2_half_life": 1e3}
    with pytest.raises(InputError, match="beta2_half_life replaces it"):
        sweep_of(fixed=fixed, interventions=[{"at": 1, "set": {"beta2": 0.9}}])
    (trial,) = trials_of(fixed=fixed, interventions=[{"at": 1, "set": {"beta2_half_life": "x0.5"}}])
    assert QuadraticConfig.model_validate(trial.config, strict=False).beta2_half_life == 1e3


def test_the_key_beside_the_field_elsewhere_and_a_custom_trainer_are_refused() -> None:
    with pytest.raises(InputError, match="is also given under fixed"):
        sweep_of(interventions=HALVED, fixed={"interventions": []})
    with pytest.raises(InputError, match="is also given under axes"):
        sweep_of(interventions=HALVED, axes={"interventions": {"values": [[]]}})
    with pytest.raises(InputError, match="a custom trainer itself decides"):
        sweep_of(objective={"command": "train {seed}"}, interventions=HALVED)
    with pytest.raises(InputError, match="is also given under fixed"):
        sweep_of(control=HALVE, fixed={"control": []})


CUSTOM: dict[str, Any] = {"objective": {"command": "train {seed} {lr}"}, "axes": {"lr": {"values": [0.1]}}, "fixed": {}}


def test_a_custom_trainer_gets_rules_at_the_top_fixed_or_on_an_axis_and_is_another_trial_with_them() -> None:
    (plain,) = trials_of(**CUSTOM)
    assert "control" not in plain.config
    (ruled,) = trials_of(**CUSTOM, control=rule(every="10%"))
    assert ruled.config["control"] == to_hashable([{**HALVE[0], "do": [{"lr": "x0.5"}], "every": 20}])
    assert ids(trials_of(**{**CUSTOM, "fixed": {"control": rule(every=20)}})) == ids([ruled])
    axes = {**CUSTOM["axes"], "control": {"values": [[], rule(every=20)]}}
    none, again = trials_of(**{**CUSTOM, "axes": axes})
    assert ids([again]) == ids([ruled])
    assert none.config["control"] == ()  # unlike without the key, where the script's own rules act
    assert none.trial_id != plain.trial_id


def test_a_value_of_a_custom_trainer_may_be_called_control_unless_it_is_a_list() -> None:
    objective = {"command": "train {seed} {control}"}
    (trial,) = trials_of(**{**CUSTOM, "objective": objective, "axes": {}, "fixed": {"control": "pid"}})
    assert trial.config["control"] == "pid"
    with pytest.raises(InputError, match="no part of the command uses"):
        trials_of(**{**CUSTOM, "fixed": {"control": "pid"}})
    with pytest.raises(InputError, match="rules are for the trainer's Watch, and a command cannot use"):
        trials_of(**{**CUSTOM, "objective": {"command": "train {seed} {lr} {control}"}, "control": HALVE})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (rule(do={"beta2": 0.9}), "control rule 1, change 1: it cannot set beta2"),
        (rule(do={"lr": 0.1}), "lr must be a factor such as x0.5"),
        (rule(on="noise_scale"), "a training loop of your own does not have this signal"),
        (rule(reading=2), "entry 1 has no key reading"),
        (rule(every="-5%"), "not a share"),
    ],
)
def test_rules_that_cannot_act_on_a_custom_trainer_are_refused_with_their_place(value: Any, words: str) -> None:
    for place, changes in {
        r"s\.yaml:10: control: ": {"control": value},
        r"s\.yaml:\d+: axes\.control: ": {"axes": {**CUSTOM["axes"], "control": {"values": [[], value]}}},
    }.items():
        with pytest.raises(InputError, match=place) as refused:
            sweep_of(**{**CUSTOM, **changes})
        assert words in str(refused.value)


@pytest.mark.parametrize(
    "entries",
    [
        {"interventions": [{"at": 9, "weight_decay": 0.1}]},
        {"interventions": [{"at": 9, "set": {"weight_decay": 0.1}}]},
        {"control": rule(do={"weight_decay": 0.1})},
    ],
    ids=["group", "intervention", "rule"],
)
def test_a_field_that_an_entry_may_bring_into_play_belongs_to_the_trial(entries: dict[str, Any]) -> None:
    """The kind of weight decay matters where an entry sets a decay above zero."""
    trials = [trials_of(fixed={"weight_decay_kind": kind}, **entries) for kind in ("coupled", "decoupled")]
    assert trials[0][0].config["weight_decay_kind"] == "coupled"
    assert ids(trials[0]) != ids(trials[1])
    with pytest.raises(InputError, match="acts only where weight_decay is above 0"):
        sweep_of(fixed={"weight_decay_kind": "coupled"})


@pytest.mark.parametrize(
    "changes",
    [
        {"interventions": [{"at": "50%", "set": {"lr": "x0.5"}}]},
        {"fixed": {"interventions": HALVED}},
        {"axes": {"interventions": {"values": [[], HALVED]}}},
        {"control": rule(every="5%")},
        {"fixed": {"control": HALVE}},
        {"axes": {"control": {"values": [[], HALVE]}}},
    ],
)
def test_the_sweep_as_a_file_gives_the_same_trials(changes: dict[str, Any]) -> None:
    sweep = sweep_of(**changes)
    assert ids(build_sweep(parse_document(sweep.text, "again.yaml"))) == ids(sweep)


WORDS = {
    "none": [],
    "lr x0.5 at 100 over 20": HALVED,
    "beta2 0.95 + lr 1e-5 at 3 for 50": [{"at": 3, "set": {"beta2": 0.95, "lr": 1e-5}, "lasts": 50}],
    "clip none at 3": [{"at": 3, "set": {"clip": None}}],
    "reset moments at 3, skip 5 at 4": [{"at": 3, "reset": "moments"}, {"at": 4, "skip": 5}],
    "second moment x4 + data 1 at 3": [{"at": 3, "rescale": 4.0, "data": 1}],
    "reset second moment at 0": [{"at": 0, "reset": "second_moment"}],
}


def test_long_lists_are_cut_but_stay_distinct() -> None:
    one, other = ([{"at": at, "set": {"lr": "x0.5"}} for at in (100, 200, end)] for end in (300, 301))
    labels = [format_value(to_hashable(value)) for value in (one, other)]
    assert len({*labels}) == 2
    assert all(len(label) <= 40 and label.startswith("lr x0.5 at 100") for label in labels)


def test_a_frozen_value_is_a_key_and_json_and_comes_back_as_it_was() -> None:
    value = to_hashable(HALVED)
    assert {value: 1}[to_hashable(json.loads(canonical_text(value)))] == 1
    assert to_plain(value) == HALVED


def test_a_long_list_is_called_by_its_first_entries_and_the_number_of_the_others() -> None:
    entries = [{"at": at, "skip": 1} for at in range(10, 60, 10)]
    label = format_value(to_hashable(entries))
    assert re.fullmatch(r"skip 1 at 10 and 4 more [0-9a-f]{6}", label), label
    assert len(label) <= 40
    assert format_value(to_hashable([*entries[:4], {"at": 51, "skip": 1}])) != label
    long = [{"at": 1234567, "set": {"beta2_half_life": 123456.789}}, *entries]
    assert len(format_value(to_hashable(long))) <= 40


def test_a_cell_is_chosen_by_values_with_commas() -> None:
    words = "reset moments at 3, skip 5 at 4"
    assert cell_conditions(f"lr=0.1,interventions={words}, beta1=0") == {
        "lr": "0.1",
        "interventions": words,
        "beta1": "0",
    }
    for wrong in ("", "lr", "lr,beta1=0"):
        with pytest.raises(InputError, match="is not AXIS=VALUE"):
            cell_conditions(wrong)


OWN = {"lr": 0.003, "layers": 4, "optimizer": "adam", "clip": None, "data_seed": 7, "fused": True}


def changed(**entry: Any) -> dict[str, Any]:
    return forked_values(OWN, [{"at": 30, **entry}])


@given(st.dictionaries(st.sampled_from(sorted(OWN)), st.floats(allow_nan=False), max_size=3), st.integers(0, 10**9))
def test_without_changes_a_fork_gets_the_values_of_the_trial(values: dict[str, float], step: int) -> None:
    assert forked_values(values, [{"at": step}]) == values
    assert forked_values(values, []) == values


def test_a_change_replaces_its_value_and_no_other() -> None:
    assert changed(set={"lr": 0.5}) == {**OWN, "lr": 0.5}
    assert changed(set={"clip": 1.0}) == {**OWN, "clip": 1.0}
    assert forked_values(OWN, [{"at": 3, "set": {"lr": 0.1}}, {"at": 3, "set": {"layers": 2.0}}]) == {
        **OWN, "lr": 0.1, "layers": 2,
    }  # fmt: skip


def test_a_factor_multiplies_as_on_paper() -> None:
    assert changed(set={"lr": "x0.1"})["lr"] == 0.0003  # not 0.00030000000000000003
    assert 0.003 * 0.1 != 0.0003


def test_whole_numbers_stay_whole() -> None:
    value = changed(set={"layers": "x0.5"})["layers"]
    assert (value, type(value)) == (2, int)
    assert type(changed(set={"layers": 8.0})["layers"]) is int


def test_other_data_is_another_seed_of_the_data() -> None:
    assert [changed(data=k)["data_seed"] for k in (0, 1, 2)] == [7, 8, 9]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            {"set": {"rate": 1.0}},
            "rate is not a value of the trial, which has clip, data_seed, fused, layers, lr, optimizer",
        ),
        ({"set": {"optimizer": "x0.5"}}, "'adam', which cannot be multiplied"),
        ({"set": {"clip": "x0.5"}}, "None, which cannot be multiplied"),
        ({"set": {"fused": "x2"}}, "True, which cannot be multiplied"),
        ({"set": {"layers": "x0.3"}}, "the integer 4 in this trial, and would become 1.2"),
        ({"skip": 5}, "not change 'skip'"),
        ({"reset": "moments"}, "not change 'reset'"),
        ({"set": {"lr": "x0.5"}, "lasts": 20}, "not change 'lasts'"),
        ({"set": {"lr": "x0.5"}, "over": 20}, "not change 'over'"),
    ],
)
def test_what_a_trainer_that_is_resumed_cannot_do_is_refused(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        changed(**entry)


def test_a_way_back_is_refused_since_a_fork_is_resumed_once() -> None:
    with pytest.raises(ValueError, match="resumed once"):
        forked_values(OWN, [{"at": 30, "set": {"lr": "x0.5"}}, {"at": 50, "set": {"lr": "x2"}}])


def test_other_data_needs_a_seed_of_the_data() -> None:
    with pytest.raises(ValueError, match=r"needs a placeholder \{data_seed\}"):
        forked_values({"lr": 0.1}, [{"at": 30, "data": 1}])


def test_a_user_s_own_value_of_that_name_makes_no_fork() -> None:
    assert not is_of_fork({"interventions": "mine"})
    assert not is_of_fork({"lr": 0.1})
    assert is_of_fork({"interventions": []})
    assert without_fork({"lr": 0.1, "interventions": [], "checkpoints_for": [3]}) == {"lr": 0.1}
    assert (fork_step([]), fork_step([{"at": 30}])) == (0, 30)


def test_the_order_of_rules_is_kept_as_it_is_written() -> None:
    other = {"on": "grad_norm", "above": 2, "do": {"skip": 1}}
    assert ids(trials_of(control=[other, *HALVE])) != ids(trials_of(control=[*HALVE, other]))


REFUSED_RULES: list[tuple[Any, list[str]]] = [
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
    (rule(calm=9), ["entry 1", "calm returns to the first of several changes"]),
    (rule(calm=0, do=[{"skip": 1}, {"lr": 1}]), ["entry 1, calm", "greater than or equal to 1"]),
    (rule(do={"back": 0}), ["back = 0 is not a positive number of steps"]),
    (rule(do={"stop": 1}), ["stop = 1 is not true"]),
    (rule(do=[{"skip": 1}, {"back": 9}]), ["rule 1, change 2: back acts in a training loop of your own", "rollback"]),
    (rule(on="not_finite"), ["control rule 1 cannot read not_finite"]),
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


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [*(("interventions", *case) for case in REFUSED), *(("control", *case) for case in REFUSED_RULES)],
)
def test_what_cannot_act_is_refused_with_its_place_and_what_would(key: str, value: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        sweep_of(**{key: value})
    message = str(refused.value)
    assert message.startswith(f"s.yaml:4: {key}: ")
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


RULES: dict[str, list[dict[str, Any]]] = {
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


@pytest.mark.parametrize(
    ("key", "words"), [("interventions", name) for name in WORDS] + [("control", name) for name in RULES]
)
def test_entries_are_a_few_words_on_maps_and_those_words_mean_them(key: str, words: str) -> None:
    named, in_words = (RULES, policy_in_words) if key == "control" else (WORDS, changes_in_words)
    values = list(map(to_hashable, named.values()))
    value = to_hashable(named[words])
    assert format_value(value) == in_words(named[words]) == words
    assert words in value_labels(values)
    assert value_meant("--where", Axis(key, "values", tuple(values)), words) == value


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


@pytest.mark.parametrize(
    ("key", "value"),
    [("interventions", [{"at": 9, "set": {"head_lr": "x0.5"}}]), ("control", rule(do={"head_lr": "x0.5"}))],
)
def test_the_rate_of_a_head_that_is_tied_to_the_embeddings_cannot_be_set(key: str, value: Any) -> None:
    model = {"width": 8, "heads": 2}
    with pytest.raises(InputError, match="cannot set head_lr: it acts only where tie_embeddings is false"):
        sweep_of(objective="gpt", fixed={**model, "tie_embeddings": True}, **{key: value})
    assert sweep_of(objective="gpt", fixed=model, **{key: value})
