"""What every objective promises; the suite is objectives/conformance.py."""

from __future__ import annotations

import pytest

from objectives.base import OBJECTIVES
from objectives.conformance import ObjectiveConformance


class TestGpt(ObjectiveConformance):
    objective = OBJECTIVES["gpt"]
    small = {"width": 8, "heads": 2, "context": 8, "batch_size": 2, "validation_batches": 2}


class TestFunctionFit(ObjectiveConformance):
    objective = OBJECTIVES["function_fit"]
    small = {"width": 8, "num_points": 20}


class TestQuadratic(ObjectiveConformance):
    objective = OBJECTIVES["quadratic"]
    small = {"noise": 0.1}
    values = {"curvature": [0.5, 1.0, 4.0], "noise": [0.0, 0.1, 1.0]}
    learning = {"noise": 0.0}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_that_ships_is_tested_here(name: str) -> None:
    assert OBJECTIVES[name] in [case.objective for case in ObjectiveConformance.__subclasses__()]
