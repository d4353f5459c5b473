import copy
import json
import math
import pickle
from dataclasses import asdict
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sweep_cases import sweep_of
from tiers import examples

from orchestrator.base.space import Axis, Cell, FrozenMap, Trial, format_value, trial_id


def ids(body: str) -> list[str]:
    return [trial.trial_id for trial in sweep_of(body).trials]


def test_the_identity_of_a_trial_is_pinned() -> None:
    # A change here makes every user's finished trials new ones: think twice, say so in CHANGELOG.md, and give
    # orchestrator.base.space.IDENTITY_SCHEMA the next number.
    assert trial_id("quadratic", {"lr": 0.1, "clip": None}, 3, {"window": 50}) == "6ece3c3ee0d6bff3"


def test_the_same_settings_are_the_same_trial_however_they_are_written() -> None:
    written = [
        "fixed: {lr: 1.0, clip: null}\n",
        "fixed: {lr: 1}\n",
        "fixed: {lr: 1e0}\nresources: {pack: 3}\ntracking: {every: 5}\n",
        "axes: {lr: {values: [1]}}\n",
        "axes: {lr: {values: [1.0]}, beta1: {values: [0.9]}}\n",
        "axes: {beta1: {values: [0.9]}, lr: {values: [1.0]}}\n",
    ]
    assert len({tuple(ids(body)) for body in written}) == 1


@pytest.mark.parametrize(
    "body", ["fixed: {lr: 0.2}\n", "seeds: [1]\n", "stopping: {window: 60}\n", "fixed: {clip: 9}\n"]
)
def test_whatever_can_change_a_result_makes_another_trial(body: str) -> None:
    assert ids(body) != ids("")


def test_names_are_what_a_person_would_call_them() -> None:
    trial = sweep_of("axes: {beta2: {values: [0.999]}, eps: {values: [1e-8]}, clip: {values: [null]}}\n").trials[0]
    assert trial.name == "beta2=0.999 eps=1e-8 clip=none seed=0"
    assert [format_value(value) for value in (True, "cosine", 3)] == ["true", "cosine", "3"]


def test_lists_of_files_are_called_by_their_ends_and_told_apart() -> None:
    assert format_value(("/home/me/en/a.txt",)) == "en/a.txt"
    assert format_value(("/home/me/en/*.txt", "fr.txt")) == "en/*.txt+fr.txt"
    assert format_value(()) == "none"
    assert format_value(FrozenMap({"python": 2.0, "/home/me/en/a.txt": 0.5})) == "python:2+en/a.txt:0.5"
    many = [tuple(f"/data/{n}/{i}.txt" for i in range(20)) for n in range(50)]
    names = [format_value(value) for value in many]
    assert len(set(names)) == 50
    assert max(map(len, names)) <= 40


@pytest.mark.parametrize(
    ("axis", "middle"),
    [
        (Axis("x", "linear", (), (0.0, 10.0)), 5.0),
        (Axis("x", "log", (), (1e-4, 1e-2)), 1e-3),
        (Axis("x", "log1m", (), (0.9, 0.999)), 0.99),
        (Axis("x", "values", ("a", "b", "c")), "b"),
        (Axis("x", "log", (), (1, 100), is_integer=True), 10),
    ],
)
def test_the_middle_of_an_axis_is_the_middle_of_its_scale(axis: Axis, middle) -> None:
    assert axis.at(0.5) == (pytest.approx(middle) if isinstance(middle, float) else middle)


@given(st.floats(0, 1))
@pytest.mark.parametrize(
    "axis",
    [
        Axis("lr", "log", (), (1e-4, 1.0)),
        Axis("beta2", "log1m", (), (0.9, 0.99999)),
        Axis("momentum", "linear", (), (-1.0, 1.0)),
    ],
    ids=lambda axis: axis.name,
)
def test_the_place_of_a_value_on_its_axis_gives_the_value_back(axis: Axis, unit: float) -> None:
    assert axis.unit(axis.at(unit)) == pytest.approx(unit, abs=1e-9)


def test_the_places_of_listed_values_give_them_back() -> None:
    axis = Axis("clip", "values", (0.1, 1.0, None))
    assert [axis.at(axis.unit(value)) for value in axis.values] == [0.1, 1.0, None]


def test_places_on_an_axis_are_even_where_its_values_are() -> None:
    for axis in (
        Axis("x", "log", (), (1e-6, 1.0)),
        Axis("x", "log1m", (), (0.5, 0.999)),
        Axis("x", "linear", (), (0, 1)),
    ):
        places = [axis.position(value) for value in axis.grid(5)]
        gaps = [high - low for low, high in pairwise(places)]
        assert max(gaps) == pytest.approx(min(gaps))


@pytest.mark.parametrize(
    ("axis", "num", "values"),
    [
        (Axis("x", "log1m", (), (0.9, 0.99999)), 5, (0.9, 0.99, 0.999, 0.9999, 0.99999)),
        (Axis("x", "log1m", (), (0.0, 0.9999999)), 8, (0, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999, 0.9999999)),
        (Axis("x", "log1m", (), (0.5, 0.9999)), 3, (0.5, 0.99292893218813, 0.9999)),
        (Axis("x", "log", (), (1e-8, 1e-3)), 6, (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)),
        (Axis("x", "linear", (), (0.1, 0.7)), 7, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)),
    ],
)
def test_round_places_are_round_numbers(axis: Axis, num: int, values: tuple[float, ...]) -> None:
    assert axis.grid(num) == values


# A grid by the first of its values, or by its distance to one, and by its step, which is a factor on scales of logs.
BEGINS = st.decimals("0.0001", "0.9999", places=4)
STEPS = {
    "linear": st.decimals("0.001", "3", places=3),
    "log": st.sampled_from(["1.1", "1.25", "1.5", "2", "3", "10"]).map(Decimal),
    "log1m": st.sampled_from(["0.1", "0.2", "0.25", "0.5", "0.8"]).map(Decimal),
}


def place(scale: str, begin: Decimal, step: Decimal, i: int) -> Decimal:
    """The exact value ``i`` steps from ``begin``."""
    if scale == "linear":
        return begin + i * step
    return begin * step**i if scale == "log" else 1 - begin * step**i


@settings(max_examples=examples(400))
@given(st.sampled_from(sorted(STEPS)), BEGINS, st.data(), st.tuples(*[st.integers(0, 4)] * 3))
def test_a_range_that_grows_by_steps_of_its_grid_keeps_every_value(scale, begin, data, steps) -> None:
    step, (before, inner, after) = data.draw(STEPS[scale]), steps
    last = before + inner + 1 + after
    values = [float(place(scale, begin, step, i)) for i in range(last + 1)]
    # Only a value that a sweep file can say exactly can be its end.
    ends = (0, before, before + inner + 1, last)
    assume(all(Decimal(repr(values[i])) == place(scale, begin, step, i) for i in ends))
    old = Axis("x", scale, (), (values[before], values[before + inner + 1])).grid(inner + 2)
    new = Axis("x", scale, (), (values[0], values[last])).grid(last + 1)
    assert old == new[before : before + inner + 2]


@settings(max_examples=examples(200))
@given(
    st.sampled_from(["linear", "log", "log1m"]),
    st.lists(st.decimals("0.0001", "0.9999", places=4), min_size=2, max_size=2, unique=True).map(sorted),
    st.integers(2, 9),
    st.integers(2, 4),
)
def test_a_finer_grid_over_the_same_range_has_every_value_of_the_coarse_one(scale, ends, num, finer) -> None:
    axis = Axis("x", scale, (), (float(ends[0]), float(ends[1])))
    assert axis.grid(num) == axis.grid((num - 1) * finer + 1)[::finer]


def test_a_cell_is_a_key_whatever_the_order_of_its_axes() -> None:
    cell = Cell(lr=0.1, clip=None, files=("a.txt", "b.txt"))
    assert {cell: "found"}[Cell(files=("a.txt", "b.txt"), lr=0.1, clip=None)] == "found"
    assert cell != cell.moved("lr", 0.2)
    assert cell.moved("lr", 0.2).moved("lr", 0.1) == cell


def test_a_cell_is_called_by_its_values() -> None:
    assert Cell(lr=1e-3, beta2=0.99999, clip=None).name == "lr=0.001 beta2=0.99999 clip=none"
    assert Trial("t", Cell(lr=0.5), 3, {"steps": 8}).name == "lr=0.5 seed=3"
    assert Trial("t", Cell(), 0, {}).name == "seed=0"


def test_a_cell_has_parts() -> None:
    cell = Cell(lr=0.1, beta1=0.9, beta2=0.99)
    assert list(cell.only(["beta2", "lr"]).items()) == [("beta2", 0.99), ("lr", 0.1)]
    assert cell.without({"lr"}) == Cell(beta1=0.9, beta2=0.99)


def test_a_cell_cannot_be_changed() -> None:
    cell = Cell(lr=0.1)
    for change in (
        lambda: cell.update(lr=1),
        lambda: cell.__setitem__("lr", 1),
        lambda: cell.pop("lr"),
        lambda: cell.setdefault("b", 2),
    ):
        with pytest.raises(TypeError, match="a Cell cannot be changed"):
            change()
    assert cell == {"lr": 0.1}


def test_a_cell_survives_copies_and_is_json_like_any_mapping() -> None:
    cell = Cell(lr=0.1, clip=None)
    for same in (pickle.loads(pickle.dumps(cell)), copy.deepcopy(cell), asdict(Trial("t", cell, 0, {}))["cell"]):
        assert (type(same), same) == (Cell, cell)
    assert json.loads(json.dumps(cell)) == cell


@pytest.mark.parametrize(
    ("values", "low", "high", "factor"),
    [
        ((0.9, 0.95, 0.99), 0.9, 0.99, 10.0),
        ((0.0, 0.9, 0.99), 0.0, 0.99, 100.0),
        ((0.1, 0.2, 0.4), 0.1, 0.4, 4.0),
        ((0.0, 0.1, 0.2), 0.0, 0.1, math.inf),
    ],
)
def test_listed_values_near_one_differ_by_a_factor_of_their_distances_to_one(values, low, high, factor: float) -> None:
    assert Axis("beta2", "values", values).factor(low, high) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("values", "low", "high", "middle"),
    [((0.2, 2.0, 200.0), 2.0, 200.0, 20.0), ((0.9, 0.99, 0.999), 0.9, 0.999, 0.99), ((1, 2, 3), 1, 3, 2)],
)
def test_the_middle_of_listed_values_is_on_the_scale_that_they_suggest(values, low, high, middle: float) -> None:
    assert Axis("lr", "values", values).between(low, high) == pytest.approx(middle)
