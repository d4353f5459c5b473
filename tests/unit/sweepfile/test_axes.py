import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import ids, refusal, sweep_of

from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis, grid_cells
from orchestrator.driver.facts import driver_facts
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

ZIPPED = """
axes:
  lr: {log: [0.01, 1.0], num: 3}
  beta1: {values: [0.0, 0.5]}
  batch_size: {values: [64, 32, 16]}
zip: [[lr, batch_size]]
"""
CONDITIONAL = """
axes:
  lr: {values: [0.1, 0.2]}
  beta2: {values: [0.9, 0.99, 0.999], when: {optimizer: [adamw, radam]}}
  optimizer: {values: [sgd, adamw, radam]}
"""


def cells(sweep: Sweep) -> list[tuple]:
    return [tuple(trial.cell.values()) for trial in sweep.trials]


def test_axes_that_are_zipped_advance_together_and_others_with_all_of_them() -> None:
    sweep = sweep_of(ZIPPED)
    pairs = [(0.01, 64), (0.1, 32), (1.0, 16)]
    assert cells(sweep) == [(lr, beta1, size) for lr, size in pairs for beta1 in (0.0, 0.5)]


def test_a_zipped_sweep_has_the_same_trials_as_the_part_of_the_grid_that_it_takes() -> None:
    part, whole = sweep_of(ZIPPED), sweep_of(ZIPPED.partition("zip")[0])
    assert {*ids(part)} < {*ids(whole)}


def test_an_axis_exists_only_where_its_condition_holds_and_is_null_elsewhere_once() -> None:
    sweep = sweep_of(CONDITIONAL)
    one = [(0.9, "adamw"), (0.9, "radam"), (0.99, "adamw"), (0.99, "radam"), (0.999, "adamw"), (0.999, "radam")]
    assert cells(sweep) == [(lr, *rest) for lr in (0.1, 0.2) for rest in [*one, (None, "sgd")]]


def test_a_field_is_not_set_where_its_axis_does_not_exist() -> None:
    without = sweep_of("axes: {lr: {values: [0.1, 0.2]}}\nfixed: {optimizer: sgd}\n")
    found = [trial for trial in sweep_of(CONDITIONAL).trials if trial.cell["optimizer"] == "sgd"]
    assert ids(found) == ids(without)
    assert sweep_of(CONDITIONAL).idle == {}, "no cell repeats a run"


def test_conditions_may_follow_from_each_other_and_all_must_hold() -> None:
    body = """
axes:
  beta1: {values: [0.5, 0.9], when: {clip: 1.0, warmup: [0, 5]}}
  clip: {values: [1.0, 2.0], when: {optimizer: sgd}}
  optimizer: {values: [sgd, adamw]}
  warmup: {values: [0, 5, 8]}
"""
    found = set(cells(sweep_of(body)))
    expected = {
        (beta1 if clip == 1.0 and warmup < 8 else None, clip if optimizer == "sgd" else None, optimizer, warmup)
        for beta1, clip, optimizer, warmup in itertools.product((0.5, 0.9), (1.0, 2.0), ("sgd", "adamw"), (0, 5, 8))
        for clip in [clip if optimizer == "sgd" else None]
    }
    assert found == expected


SIZES = st.integers(1, 4)


@given(st.lists(SIZES, min_size=2, max_size=4), st.data())
def test_a_grid_of_related_axes_is_the_whole_grid_without_repetitions(sizes: list[int], data) -> None:
    axes = [Axis(name, "values", tuple(range(size))) for name, size in zip("abcd", sizes, strict=False)]
    conditions = {}
    for i, axis in enumerate(axes[1:], 1):
        if data.draw(st.booleans()):
            other = axes[data.draw(st.integers(0, i - 1))]
            kept = tuple(data.draw(st.lists(st.sampled_from(other.values), min_size=1, unique=True)))
            conditions[axis.name] = (other.name, kept)
    related = [
        Axis(axis.name, "values", axis.values, when=(conditions[axis.name],) if axis.name in conditions else ())
        for axis in axes
    ]
    order = data.draw(st.permutations(related))
    expected = dict.fromkeys(tuple(_with_conditions(cell, axes, conditions).items()) for cell in grid_cells(axes))
    found = [tuple((axis.name, cell[axis.name]) for axis in axes) for cell in grid_cells(order)]
    assert len(found) == len(set(found))
    assert set(found) == set(expected)
    places = [
        [axis.values.index(v) if (v := dict(cell)[axis.name]) is not None else 9 for axis in order] for cell in found
    ]
    assert places == sorted(places), "the first axis is the slowest"


def _with_conditions(cell: dict, axes: list[Axis], conditions: dict) -> dict:
    for axis in axes:
        if axis.name in conditions:
            other, kept = conditions[axis.name]
            cell = {**cell, axis.name: cell[axis.name] if cell[other] in kept else None}
    return cell


@given(st.integers(1, 5), st.integers(1, 3), st.permutations(range(3)))
def test_zipped_axes_have_one_cell_for_each_place_whatever_their_order(num: int, others: int, order) -> None:
    group = ("a", "b")
    axes = [
        Axis("a", "values", tuple(range(num)), zipped=group),
        Axis("b", "values", tuple(range(10, 10 + num)), zipped=group),
        Axis("c", "values", tuple(range(others))),
    ]
    found = [(cell["a"], cell["b"], cell["c"]) for cell in grid_cells([axes[i] for i in order])]
    assert sorted(found) == [(i, 10 + i, c) for i in range(num) for c in range(others)]


@pytest.mark.parametrize("body", [ZIPPED, CONDITIONAL])
def test_the_frozen_file_makes_the_same_trials(body: str) -> None:
    sweep = sweep_of(body)
    assert sweep_of(sweep.text, "").trials == sweep.trials


def test_an_axis_of_files_keeps_its_condition_in_the_frozen_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("word " * 3000)
    body = (
        "axes:\n  optimizer: {values: [sgd, adamw]}\n"
        f"  text: {{values: [[], ['{tmp_path}/a.txt']], when: {{optimizer: sgd}}}}\n"
    )
    sweep = sweep_of(body, "name: a\nobjective: gpt\nsteps: 20\n")
    assert len(sweep.trials) == 3
    assert sweep_of(sweep.text, "").trials == sweep.trials


def test_the_ledger_is_told_how_axes_are_related() -> None:
    facts = [json.loads(driver_facts(sweep_of(body))["axes"]) for body in (ZIPPED, CONDITIONAL)]
    assert [axis.get("zipped") for axis in facts[0]] == [["lr", "batch_size"], None, ["lr", "batch_size"]]
    assert [axis.get("when") for axis in facts[1]] == [None, {"optimizer": ["adamw", "radam"]}, None]


def test_an_axis_of_the_command_line_replaces_one_with_a_condition() -> None:
    document = parse_document(f"name: a\nobjective: quadratic\nsteps: 20\n{CONDITIONAL}", "a.yaml")
    sweep = build_sweep(document, Overrides(axes=("beta2=values:0.9,0.99",)))
    assert len(sweep.trials) == 2 * 2 * 3


TWO = "axes: {lr: {values: [0.1, 0.2]}, batch_size: {values: [8, 16, 32]}, beta1: {values: [0.5, 0.9]}}\n"
RANGES = "axes: {lr: {log: [0.1, 1]}, beta1: {linear: [0, 0.5]}}\n"
CLIP = "axes: {clip: {values: [1.0], when: {lr: 0.1}}, lr: {values: [0.1]}, beta1: {values: [0.1]}}\n"
BETA2 = "axes: {{lr: {{values: [0.1, 0.2]}}, optimizer: {{values: [sgd, adamw]}}, beta2: {}}}\n"


@pytest.mark.parametrize(
    ("body", "message", "remedy"),
    [
        (f"{TWO}zip: [[lr, batch_size]]\n", "case.yaml:5: zip.0: numbers of values differ: lr has 2, batch_size has 3",
         "equal numbers"),
        (f"{TWO}zip: [[lr, clip]]\n", "case.yaml:5: zip.0: 'clip' is not an axis", "axes: lr, batch_size, beta1"),
        (f"{TWO}zip: [[lr, beta1], [beta1, lr]]\n", "zip.1: beta1 advances with other axes already", "one list"),
        (f"{TWO}zip: [[lr, lr]]\n", "zip.0: .*'lr' is listed twice", ""),
        (f"{TWO}zip: [[lr]]\n", "zip.0", ""),
        (f"{TWO}zip: [lr, beta1]\n", "zip.0", ""),
        (f"{RANGES}zip: [[lr, beta1]]\nsample: {{method: random, num: 3}}\n",
         "zip: does not apply when cells are sampled", "tie: {beta1: ...}"),
        (f"{RANGES}zip: [[lr, beta1]]\nsearch: {{method: tpe, trials: 3}}\n",
         "zip: does not apply when cells are chosen by a search", "remove search"),
        (BETA2.format("{values: [0.9], when: {optimizer: adamw}}") + "search: {method: tpe, trials: 3}\n",
         "axes.beta2.when: does not apply when cells are chosen by a search", "one sweep for each value of optimizer"),
        (BETA2.format("{values: [0.9], when: {optimiser: adamw}}"),
         "axes.beta2.when.optimiser: 'optimiser' is not an axis", "optimizer"),
        (BETA2.format("{values: [0.9], when: {beta2: 0.9}}"), "cannot depend on itself", "another axis"),
        (BETA2.format("{values: [0.9], when: {optimizer: spam}}"), "spam is not a value of optimizer", "sgd, adamw"),
        (BETA2.format("{values: [0.9], when: {optimizer: []}}"), "lists no value", "sgd, adamw"),
        (BETA2.format("{values: [0.9], when: {}}"), "axes.beta2.when", ""),
        (BETA2.format("{values: [0.9], when: adamw}"), "axes.beta2.when", ""),
        (BETA2.format("{values: [0.9, null], when: {optimizer: adamw}}"), "axes.beta2", ""),
        ("axes: {clip: {values: [1.0, null], when: {lr: 0.1}}, lr: {values: [0.1, 0.2]}}\n",
         "null is a value of clip and would also stand for its absence", "take null out"),
        ("axes: {clip: {values: [1.0], when: {lr: 0.1}}, lr: {values: [0.1, 0.2], when: {clip: 1.0}}}\n",
         "depend on each other in a circle: (clip, lr, clip|lr, clip, lr)", "take out one"),
        (f"{CLIP}zip: [[clip, beta1]]\n",
         "zip.0: clip exists in some cells only", "take it out"),
        (BETA2.format("{values: [0.9], when: {optimizer: sgd}}"), "beta2: acts only where optimizer is", "remove it"),
        (BETA2.format("{log1m: [0.1, 0.9], num: 60, when: {optimizer: adamw}}") + "max_trials: 100\n",
         "axes: more than max_trials = 100 trials", "shorten an axis"),
    ],
)  # fmt: skip
def test_relations_that_do_not_work_are_refused_with_their_place_and_a_remedy(
    body: str, message: str, remedy: str
) -> None:
    found = refusal(body)
    assert re.search(message, found, re.DOTALL), found
    assert remedy in found


def test_a_number_of_cells_is_counted_without_the_cells_that_do_not_exist() -> None:
    assert len(sweep_of(f"{CONDITIONAL}max_trials: 14\n").trials) == 14
    with pytest.raises(InputError, match="more than max_trials = 13"):
        sweep_of(f"{CONDITIONAL}max_trials: 13\n")
