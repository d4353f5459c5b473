"""Shares of the rate that groups of layers have, as axes: the exponent of the edge says which groups bind."""

from pathlib import Path

import numpy as np
import pytest
from sweep_cases import table_with, trial_row

from orchestrator.answers.predict import PredictAnswer
from orchestrator.base.space import Axis
from orchestrator.maps.prediction import Prediction, predict

TARGET = {"width": 64.0, "mlp_lr": 1.0, "head_lr": 1.0}


def edge(width: float, mlp_lr: float, head_lr: float) -> float:
    """The edge of the MLP, whose rate breaks first, unless the head has more than 30 times its share."""
    return 0.4 / width * min(1 / mlp_lr, 30 / head_lr)


@pytest.fixture(scope="module")
def found() -> Prediction:
    rng = np.random.default_rng(0)
    trials = []
    for i in range(90):
        cell = {"lr": 10 ** rng.uniform(-3.5, -0.5), "width": float(rng.choice([8, 16, 32]))}
        cell |= {name: 10 ** rng.uniform(-0.7, 0.5) for name in ("mlp_lr", "head_lr")}
        is_stable = cell["lr"] < edge(cell["width"], cell["mlp_lr"], cell["head_lr"])
        outcome = "stable" if is_stable else "diverged"
        trials.append(trial_row(trial_id=str(i), cell=cell, status="finished", outcome=outcome))
    ranges = {"lr": (3e-4, 0.3), "mlp_lr": (0.2, 3.2), "head_lr": (0.2, 3.2)}
    axes = [Axis(name, "log", (), ends) for name, ends in ranges.items()]
    return predict(table_with(trials, [*axes, Axis("width", "values", (8.0, 16.0, 32.0))]), TARGET)


def test_the_group_whose_share_moves_the_edge_binds_and_the_other_does_not(found: Prediction) -> None:
    assert {name: exponent.binds for name, exponent in found.exponents.items()} == {
        "width": None,
        "mlp_lr": True,
        "head_lr": False,
    }
    assert found.exponents["mlp_lr"].low < -1 < found.exponents["mlp_lr"].high
    assert found.edge is not None
    assert found.edge.low < edge(64, 1, 1) < found.edge.high


def test_the_answer_names_both_kinds(found: Prediction) -> None:
    lines = PredictAnswer(found, (), Path("results"), "", "", False, (), None).lines()
    assert any(line.strip().startswith("mlp_lr binds") for line in lines)
    assert any(line.strip().startswith("head_lr:") for line in lines)
