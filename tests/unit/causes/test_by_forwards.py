"""A diagnosis of runs whose curvature was read by forward passes, along the update alone."""

from dataclasses import replace

import numpy as np
import pytest
from diagnosis_cases import Case, bad_batch, calm, over_the_threshold, preconditioner_decay, ratios, risen

from orchestrator.causes.mechanisms.catalogue import MECHANISMS


def by_forwards(case: Case) -> Case:
    """The case as if the highest curvature had been found along the update, and no other was read."""
    others = {name: values for name, values in case.telemetry.items() if not name.startswith("lambda")}
    return replace(case, telemetry={**others, "lambda_crit": case.telemetry["lambda_max"]})


def verdict(case: Case, mechanism: str) -> str:
    return MECHANISMS[mechanism].examine(case.evidence()).verdict


def trained_long(ratio: float) -> Case:
    case = risen(calm("diverged", 300, steps_done=360), 300, 5.0, growth=1.3)
    return ratios(case, np.full(len(case.telemetry["step"]), ratio))


@pytest.mark.parametrize(
    ("case", "mechanism"),
    [
        (replace(over_the_threshold(), sisters=()), "over_the_threshold"),
        (trained_long(1.5), "sharpening"),
        (preconditioner_decay(), "preconditioner_decay"),
    ],
    ids=["over", "sharpening", "decay"],
)
def test_a_step_that_overshoots_along_the_update_supports_what_products_support(case: Case, mechanism: str) -> None:
    assert verdict(case, mechanism) == verdict(by_forwards(case), mechanism) == "supported"


@pytest.mark.parametrize(
    ("case", "mechanism"),
    [
        (risen(calm("diverged", 60, steps_done=120), 60, 9.0), "over_the_threshold"),
        (trained_long(0.3), "sharpening"),
    ],
    ids=["over", "sharpening"],
)
def test_a_low_curvature_along_the_update_excludes_nothing_as_others_may_be_higher(case: Case, mechanism: str) -> None:
    assert (verdict(case, mechanism), verdict(by_forwards(case), mechanism)) == ("excluded", "unknown")


def test_a_bad_batch_needs_a_low_curvature_in_all_directions() -> None:
    assert verdict(bad_batch(), "bad_batch") == "supported"
    assert verdict(by_forwards(bad_batch()), "bad_batch") == "unknown"


def test_decay_names_the_curvature_that_was_read_and_no_other() -> None:
    numbers = MECHANISMS["preconditioner_decay"].examine(by_forwards(preconditioner_decay()).evidence()).numbers
    (crossed,) = [number for number in numbers if "first over it" in number]
    assert crossed == "lambda_crit first over it at step 220"
