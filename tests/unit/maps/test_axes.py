import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis, format_value
from orchestrator.maps.axes import label_between, value_label, value_labels, value_meant
from orchestrator.render.labels import short_number, tick_labels

near_one = st.integers(1, 16).flatmap(lambda power: st.floats(1, 9).map(lambda digits: 1 - digits * 10**-power))
numbers = st.one_of(st.floats(-1e300, 1e300, allow_nan=False), near_one, st.integers(-(10**9), 10**9))
several_numbers = st.lists(numbers, min_size=1, max_size=8, unique=True)


@given(several_numbers)
def test_no_two_values_share_a_label_and_every_label_finds_its_value(values: list) -> None:
    axis, labels = Axis("x", "values", tuple(values)), value_labels(values)
    assert len(set(labels)) == len(values)
    for value, label in zip(values, labels, strict=True):
        assert value_label(axis, value) == label
        assert value_meant("--where", axis, label) == value
        assert value_meant("--where", axis, value) == value
        assert value_meant("--where", axis, repr(value)) == value


@given(st.lists(near_one.filter(lambda value: value < 1), min_size=2, max_size=8, unique=True))
def test_the_ticks_of_a_figure_tell_values_apart_and_find_them(values: list[float]) -> None:
    axis = Axis("beta2", "log1m", tuple(values))
    ticks = tick_labels(axis, values)
    assert len(set(ticks)) == len(values)
    for value, tick in zip(values, ticks, strict=True):
        exact = [other for other in values if other == float(tick)]
        assert value_meant("--cell", axis, tick) == (exact or [value])[0]


@pytest.mark.parametrize("power", [4, 5, 6, 9, 14])
def test_a_value_next_to_one_is_never_taken_for_another(power: int) -> None:
    values = tuple(1 - 10.0**-p for p in range(4, 15))
    axis = Axis("beta2", "log1m", values)
    value = 1 - 10.0**-power
    assert value_meant("--where", axis, format_value(value)) == value
    assert value_meant("--where", axis, value) == value


@pytest.mark.parametrize(
    ("values", "wanted", "found"),
    [
        ((0.1, 0.66274, 0.8766), "0.66", 0.66274),
        ((0.1, 0.66274, 0.8766), "0.663", 0.66274),
        ((0.99684, 0.999), "0.9968", 0.99684),
        ((1e-8, 3.16228e-5), "3.2e-05", 3.16228e-5),
        ((1e-8, 3.16228e-5), "1e-8", 1e-8),
        ((0.5, None), "none", None),
        ((0.5, None), "null", None),
        ((0.5, None), None, None),
        ((True, False), "true", True),
        (("cosine", "linear"), "cosine", "cosine"),
        ((1, 2), "1.0", 1),
        ((0.999, 0.99904), "0.999", 0.999),
        ((0.58125, 0.5796875), "0.58", 0.5796875),  # which is how a figure tells it from 0.581
    ],
)
def test_a_value_is_found_as_figures_and_tables_print_it(values: tuple, wanted, found) -> None:
    assert value_meant("--where", Axis("x", "values", values), wanted) == found


@pytest.mark.parametrize(
    ("values", "wanted", "says"),
    [
        ((0.5, 0.9), "0.51", "values: 0.5, 0.9"),
        ((0.5, 0.99996), "1", "values: 0.5, 0.99996"),
        ((0.121, 0.123), "0.12", "0.12 may be any of 0.121, 0.123"),
        ((0.121, 0.123), "nan", "no cell has nan"),
        (("cosine",), "linear", "values: cosine"),
        ((1.0, 2.0), True, "no cell has True"),
    ],
)
def test_what_means_no_value_or_several_is_refused_with_the_values(values: tuple, wanted, says: str) -> None:
    with pytest.raises(InputError, match=f"--cell[\\s\\S]*{says}"):
        value_meant("--cell", Axis("x", "values", values), wanted)


@given(st.floats(1e-12, 0.999), st.floats(1e-9, 0.9))
def test_a_number_between_two_others_is_written_so_that_it_lies_between_them(low: float, part: float) -> None:
    high = low + (1 - low) * part
    middle = (low + high) / 2
    if low < middle < high:
        assert low < float(label_between(low, high, middle)) < high


def test_the_middle_of_a_bracket_next_to_one_has_the_digits_that_tell_it_from_both_ends() -> None:
    axis = Axis("beta2", "log1m", (0.9999, 0.99999))
    assert label_between(0.9999, 0.99999, axis.between(0.9999, 0.99999)) == "0.9999684"
    assert label_between(0.1, 0.2, math.sqrt(0.02)) == "0.141"
    assert label_between(0.1, 10.0, 0.999999999999263) == "1"


def test_a_short_number_of_a_heatmap_finds_its_cell() -> None:
    values = tuple(Axis("lr", "log", (), (1e-4, 3.0)).grid(9))
    axis = Axis("lr", "log", values)
    assert [value_meant("--where", axis, short_number(value)) for value in values] == list(values)


def test_a_value_that_misses_one_by_rounding_is_written_as_one_where_the_axis_goes_beyond() -> None:
    axis = Axis("lr", "values", (0.1, 0.999999999999263, 10.0))
    assert value_labels(axis.values) == ["0.1", "1", "10"]
    assert value_meant("--where", axis, "1") == 0.999999999999263
    assert value_labels((0.99999, 0.9999999)) == ["0.99999", "0.9999999"], "of a decay all digits matter"
    assert value_labels((0.999999999999263, 1.0, 10.0))[:2] == ["0.999999999999", "1"]
    assert format_value(0.999999999999263) == "0.999999999999263", "no digits that the number does not have"
