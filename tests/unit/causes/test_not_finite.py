from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from custom_cases import SWEEP as OWN_SWEEP
from custom_cases import TRAIN
from diagnosis_cases import Case, calm, diagnosed, risen, row_of, sweep_of_text

from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.base.space import Cell
from orchestrator.causes.advice import Reason, broken_step, reasons_not_finite
from orchestrator.causes.evidence import Evidence
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import read_document

NOWHERE = Path("nowhere")
BROKEN = 150


def broken(**config: Any) -> Case:
    """A run whose loss is not finite at step 150."""
    case = calm("diverged", BROKEN, config, steps_done=BROKEN + 1, final_loss=None)
    loss_N = case.trace["loss"].copy()
    loss_N[BROKEN] = np.nan
    return case.with_trace(loss=loss_N)


def sister(case: Case, number: int, seed: int = 0, steps_done: int = 400, loss: float | None = 2.6, **config) -> Case:
    """The same case beside a trial that broke after ``steps_done`` steps, or ended at ``loss``."""
    outcome, onset = ("diverged", steps_done - 1) if loss is None else ("stable", None)
    row = row_of(
        outcome, onset, {**case.row.config, **config}, seed=seed, steps_done=steps_done, final_loss=loss,
        trial_id=f"{number:016x}",
    )  # fmt: skip
    return replace(case, sisters=(*case.sisters, replace(row, objective=case.row.objective)))


def of(case: Case, key: str, folder: Path = NOWHERE) -> Reason:
    return next(one for one in reasons_not_finite(case.evidence(), folder) if one.key == key)


def test_a_trial_that_ended_on_finite_numbers_has_no_reasons() -> None:
    finite = risen(calm("diverged", 60, steps_done=120), 60, 9.0)
    assert reasons_not_finite(finite.evidence(), NOWHERE) == []
    assert "not finite from" not in str(diagnosed(finite.evidence()))
    assert broken_step(broken().evidence()) == BROKEN


def test_the_order_is_learning_rate_precision_data_and_eps() -> None:
    answer = diagnosed(broken().evidence())
    assert [reason.key for reason in answer.not_finite] == ["lr", "precision", "data", "eps"]
    lines = answer.lines()
    lines = lines[lines.index("not finite from step 150; possible reasons, in this order:") :]
    assert [line.split(".")[0].strip() for line in lines if line.startswith("  ") and line[2].isdigit()] == list("1234")
    assert [one["branch"] for one in answer.to_plain()["not_finite"]] == ["lr", "precision", "data", "eps"]


def test_a_stable_cell_at_a_lower_learning_rate_says_yes_and_one_that_breaks_too_says_no() -> None:
    assert of(sister(broken(), 1, lr=0.001), "lr").answer == "yes"
    assert of(sister(broken(), 1, steps_done=40, loss=None, lr=0.001), "lr").answer == "no"
    untold = of(broken(), "lr")
    assert untold.answer == "not known"
    assert sweep_of_text(untold.sweep).axes[0].values == (0.01, 0.005, 0.001)


@pytest.mark.parametrize(
    ("precision", "says"), [("float32", "no"), ("float16", "not known"), ("bfloat16", "not known"), (None, "not known")]
)
def test_sixteen_bits_may_be_too_few_until_a_cell_with_more_tells(precision: str | None, says: str) -> None:
    assert of(broken(precision=precision), "precision").answer == says


def test_a_cell_of_another_precision_tells() -> None:
    half = broken(precision="float16")
    assert of(sister(half, 1, precision="float32"), "precision").answer == "yes"
    assert of(sister(half, 1, steps_done=40, loss=None, precision="float32"), "precision").answer == "no"


def test_it_is_the_data_where_trials_of_the_seed_break_at_the_same_step() -> None:
    together = sister(sister(broken(), 1, steps_done=BROKEN + 1, loss=None, lr=1e-3), 2, seed=1, lr=1e-3)
    assert of(together, "data").answer == "yes"
    passed = sister(broken(), 1, lr=1e-3)
    assert of(passed, "data").answer == "no"
    earlier = sister(broken(), 1, steps_done=40, loss=None, lr=1e-3)
    assert of(earlier, "data").answer == "not known", "it never saw that batch"
    assert sweep_of_text(of(broken(), "data").sweep).seeds == (0, 1, 2)


@pytest.mark.parametrize(
    ("precision", "eps", "says", "words"),
    [
        ("float16", 1e-8, "not known", "is zero in float16"),
        ("float16", 1e-6, "not known", "has lost digits in float16"),
        ("float16", 1e-4, "no", "is above"),
        ("bfloat16", 1e-8, "no", "is above"),
        ("float32", 1e-8, "no", "is above"),
        ("float32", 1e-40, "not known", "has lost digits"),
        (None, 1e-8, "not known", "precision is not known"),
    ],
)
def test_eps_is_judged_by_what_the_precision_holds(precision: str | None, eps: float, says: str, words: str) -> None:
    found = of(broken(precision=precision, eps=eps), "eps")
    assert (found.answer, words in " ".join(found.evidence)) == (says, True)


def test_a_trainer_of_ones_own_has_every_reason_with_evidence_or_the_run_that_tells(tmp_path: Path) -> None:
    """NaN at lr 3, and no other field is known."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "mine.yaml").write_text(OWN_SWEEP)
    (tmp_path / FROZEN_SWEEP).write_text(build_sweep(read_document(tmp_path / "mine.yaml")).text)
    config = {"steps": 400, "lr": 3.0}
    case = broken()
    case = replace(case, row=replace(case.row, objective="command", cell=Cell(lr=3.0), config=config), telemetry={})
    found = reasons_not_finite(case.evidence(), tmp_path)
    assert [one.answer for one in found] == ["not known"] * 4
    assert all(one.evidence for one in found)
    assert sweep_of_text(found[0].sweep).axes[0].values == (3.0, 1.5, 0.3)
    assert sweep_of_text(found[2].sweep).seeds == (0, 1, 2)
    stable = replace(case.row, trial_id="1", outcome="stable", onset_step=None, final_loss=2.0, steps_done=400)
    stable = replace(stable, cell=Cell(lr=0.1), config={**config, "lr": 0.1})
    told = reasons_not_finite(replace(case, sisters=(stable,)).evidence(), tmp_path)
    assert [one.answer for one in told] == ["yes", "not known", "no", "not known"]
    text = str(diagnosed(replace(case, sisters=(stable,)).evidence(), folder=tmp_path))
    assert "lr 3 -> 0.1 at these settings: 1 of 1 seeds stable" in text


def test_without_any_curve_the_reasons_are_there_all_the_same() -> None:
    case = broken()
    empty: Evidence = replace(case, trace={"step": np.zeros(0), "loss": np.zeros(0)}, telemetry={}).evidence()
    assert broken_step(empty) == 0
    assert len(reasons_not_finite(empty, NOWHERE)) == 4
