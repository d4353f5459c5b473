from __future__ import annotations

import math

import numpy as np
import pytest

from orchestrator.search.study import EVALUATORS, Parameter, importances

PARAMETERS = [
    Parameter("idle", 0.0, 1.0),
    Parameter("strong", -3.0, 0.0),
    Parameter("weak", choices=("a", "b")),
]


def planted(num: int = 120, seed: int = 0) -> tuple[list[dict], list[float]]:
    """A result that ``strong`` moves most, ``weak`` a little and ``idle`` not at all."""
    random = np.random.default_rng(seed)
    rows = [
        {"idle": random.uniform(0, 1), "strong": random.uniform(-3, 0), "weak": random.choice(["a", "b"])}
        for _ in range(num)
    ]
    return rows, [abs(row["strong"] + 1) + 0.6 * (row["weak"] == "b") for row in rows]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_idle_parameter_has_the_lowest_share_and_the_strongest_the_highest(seed: int) -> None:
    found = importances(PARAMETERS, *planted(seed=seed), best=0.2)
    assert tuple(found) == EVALUATORS
    for shares in found.values():
        assert shares is not None
        assert sorted(shares, key=shares.__getitem__) == ["idle", "weak", "strong"]
        assert sum(shares.values()) == pytest.approx(1)


def test_the_order_of_the_trials_changes_nothing() -> None:
    rows, results = planted(40)
    order = np.random.default_rng(1).permutation(40)
    shuffled = importances(PARAMETERS, [rows[i] for i in order], [results[i] for i in order], 0.2)
    assert shuffled == importances(PARAMETERS, rows, results, 0.2)


def test_ped_anova_sees_only_the_order_of_the_results() -> None:
    rows, results = planted(40)
    first = importances(PARAMETERS, rows, results, 0.2)["ped_anova"]
    assert importances(PARAMETERS, rows, [math.exp(5 * result) for result in results], 0.2)["ped_anova"] == first


def test_where_all_results_are_equal_nothing_moves_them() -> None:
    rows, _ = planted(20)
    assert importances(PARAMETERS, rows, [1.0] * 20, 0.2) == {"ped_anova": None, "fanova": None}


def test_where_only_one_cell_was_tried_its_seeds_say_nothing_about_the_parameters() -> None:
    rows = [{"idle": 0.5, "strong": -1.0, "weak": "a"}] * 6
    assert importances(PARAMETERS, rows, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.5)["fanova"] is None
