"""Interventions in a sweep file: of all trials, as an axis, with shares of the steps; refusals, and their words."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from sweep_cases import ids
from sweep_cases import sweep_with_keys as sweep_of

from objectives.base import QuadraticConfig
from objectives.interventions import changes_in_words
from orchestrator.base.errors import InputError
from orchestrator.base.query import cell_conditions
from orchestrator.base.space import Axis, Trial, canonical_text, format_value, to_hashable, to_plain
from orchestrator.maps.axes import value_labels, value_meant
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

HALVED = [{"at": 100, "set": {"lr": "x0.5"}, "over": 20}]


def trials_of(**changes: Any) -> list[Trial]:
    return list(sweep_of(**changes).trials)


def test_the_key_of_all_trials_is_the_same_as_the_fixed_field() -> None:
    at_top, fixed = trials_of(interventions=HALVED), trials_of(fixed={"interventions": HALVED})
    assert ids(at_top) == ids(fixed)
    assert at_top[0].config["interventions"] == HALVED


def test_without_interventions_a_trial_is_what_it_was() -> None:
    plain = trials_of()
    assert "interventions" not in plain[0].config
    assert ids(trials_of(interventions=[])) == ids(plain)
    of_axis = trials_of(axes={"interventions": {"values": [[], HALVED]}})
    assert ids(of_axis)[0] == ids(plain)[0]
    assert ids(of_axis)[1] == ids(trials_of(interventions=HALVED))[0]


@pytest.mark.parametrize(
    "same",
    [
        [{"at": 100, "set": {"lr": "x.50"}, "over": 20, "skip": 0}],
        [{"set": {"lr": "x5e-1"}, "over": 20, "at": 100}],
        [{"at": "50%", "set": {"lr": "x0.5"}, "over": "10%"}],
    ],
)
def test_lists_that_mean_the_same_give_the_same_trial(same: list[Any]) -> None:
    assert ids(trials_of(interventions=same)) == ids(trials_of(interventions=HALVED))
    (trial,) = trials_of(axes={"interventions": {"values": [same]}})
    assert trial.cell == {"interventions": to_hashable(HALVED)}
    with pytest.raises(InputError, match=r"repeats a value|both"):
        sweep_of(axes={"interventions": {"values": [HALVED, same]}})


def test_entries_act_in_the_order_of_their_steps_however_they_are_written() -> None:
    later = {"at": 150, "reset": "moments"}
    assert ids(trials_of(interventions=[later, *HALVED])) == ids(trials_of(interventions=[*HALVED, later]))


def test_shares_are_of_the_steps_of_each_trial() -> None:
    sweep = sweep_of(
        objective="gpt", steps=None, tokens=64_000, fixed={"context": 32},
        axes={"batch_size": {"values": [8, 16]}, "interventions": {"values": [[{"at": "50%", "set": {"lr": "x2"}}]]}},
    )  # fmt: skip
    assert [(trial.steps, trial.config["interventions"][0]["at"]) for trial in sweep.trials] == [(250, 125), (125, 62)]


@pytest.mark.parametrize(
    ("value", "words"),
    [
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
    ],
)  # fmt: skip
def test_what_cannot_act_is_refused_with_its_place_and_what_would(value: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        sweep_of(interventions=value)
    message = str(refused.value)
    assert message.startswith("s.yaml:4: interventions: ")
    for word in words:
        assert word in message, message


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


def test_a_field_that_an_intervention_brings_into_play_belongs_to_the_trial() -> None:
    """The kind of weight decay matters where an intervention sets a decay above zero."""
    decay = [{"at": 9, "set": {"weight_decay": 0.1}}]
    trials = [trials_of(fixed={"weight_decay_kind": kind}, interventions=decay) for kind in ("coupled", "decoupled")]
    assert trials[0][0].config["weight_decay_kind"] == "coupled"
    assert ids(trials[0]) != ids(trials[1])
    with pytest.raises(InputError, match="acts only where weight_decay is above 0"):
        sweep_of(fixed={"weight_decay_kind": "coupled"})


def test_the_sweep_as_a_file_gives_the_same_trials() -> None:
    for changes in (
        {"interventions": [{"at": "50%", "set": {"lr": "x0.5"}}]},
        {"fixed": {"interventions": HALVED}},
        {"axes": {"interventions": {"values": [[], HALVED]}}},
    ):
        sweep = sweep_of(**changes)
        again = build_sweep(parse_document(sweep.text, "again.yaml"))
        assert ids(list(again.trials)) == ids(list(sweep.trials))


WORDS = {
    "none": [],
    "lr x0.5 at 100 over 20": HALVED,
    "beta2 0.95 + lr 1e-5 at 3 for 50": [{"at": 3, "set": {"beta2": 0.95, "lr": 1e-5}, "lasts": 50}],
    "clip none at 3": [{"at": 3, "set": {"clip": None}}],
    "reset moments at 3, skip 5 at 4": [{"at": 3, "reset": "moments"}, {"at": 4, "skip": 5}],
    "second moment x4 + data 1 at 3": [{"at": 3, "rescale": 4.0, "data": 1}],
    "reset second moment at 0": [{"at": 0, "reset": "second_moment"}],
}


@pytest.mark.parametrize("words", WORDS)
def test_interventions_are_a_few_words_on_maps_and_those_words_mean_them(words: str) -> None:
    values = list(map(to_hashable, WORDS.values()))
    axis = Axis("interventions", "values", tuple(values))
    value = to_hashable(WORDS[words])
    assert format_value(value) == changes_in_words(WORDS[words]) == words
    assert words in value_labels(values)
    assert value_meant("--where", axis, words) == value


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
