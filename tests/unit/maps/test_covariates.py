import numpy as np
import pytest

from orchestrator.base.space import Axis, on_natural_scale
from orchestrator.maps.weibull import covariates_of, design


def axis(*values, name: str = "lr", scale: str = "values") -> Axis:
    return Axis(name, scale, values, (min(values), max(values)) if scale != "values" else None)


def test_numbers_are_their_place_on_the_scale_of_the_axis() -> None:
    axes = [axis(0.001, 0.1, scale="log"), axis(0.9, 0.999, name="beta2", scale="log1m"), axis(1, 2, name="depth")]
    found = design(covariates_of(axes), [{"lr": 0.01, "beta2": 0.99, "depth": 2}])
    assert found == pytest.approx(np.array([[-2.0, 2.0, 2.0]]))


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ((1e-8, 1e-4), "log"),
        ((0.9, 0.95, 0.999), "log1m"),
        ((1, 2, 4), "values"),
        ((0.1, None, 10.0), "log"),
        ((-1.0, 100.0), "values"),
        (("adamw", "sgd"), "values"),
    ],
)
def test_a_list_gets_the_scale_that_its_values_suggest(values: tuple, scale: str) -> None:
    assert on_natural_scale(axis(*values)).scale == scale


def test_words_are_levels_against_the_first_and_none_stands_in_the_middle_of_the_numbers() -> None:
    axes = [axis("cosine", "linear", name="schedule"), axis(1.0, 2.0, None, name="clip")]
    covariates = covariates_of(axes)
    rows = design(covariates, [{"schedule": "linear", "clip": None}, {"schedule": "cosine", "clip": 2.0}])
    assert rows.tolist() == [[1.0, 1.5, 1.0], [0.0, 2.0, 0.0]]
    assert [one.change for one in covariates] == [
        "schedule=linear against cosine",
        "clip from 1 to 2",
        "clip=none against 1",
    ]


def test_an_axis_of_one_value_says_nothing() -> None:
    assert covariates_of([axis(0.1), axis("adamw", name="optimizer")]) == []
    assert design([], [{"lr": 0.1}]).shape == (1, 0)
