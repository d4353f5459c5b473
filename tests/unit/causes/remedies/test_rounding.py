"""Forks are trained with the kernels of the trial that they repeat, whatever is fastest for their number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sweep_cases import sweep_of

from objectives.base import OBJECTIVES, ExecutionPlan, Rounding
from orchestrator.base.files import LEDGER
from orchestrator.causes.remedies.reading import forks_folder
from orchestrator.causes.remedies.training import Asked, find_remedies
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.spec import Sweep
from orchestrator.worker.autotune import save_measurements
from orchestrator.worker.machine import Measurement

# Two trials fill no wide pack, and alone the other kernels are faster; a dozen forks fill one.
SPEEDS = [
    Measurement(ExecutionPlan(1), 100.0, 0.0, 1),
    Measurement(ExecutionPlan(4), 200.0, 0.0, 1),
    Measurement(ExecutionPlan(16), 900.0, 0.0, 1),
    Measurement(ExecutionPlan(32), 900.0, 0.0, 1),
    Measurement(ExecutionPlan(64), 900.0, 0.0, 1),
    Measurement(ExecutionPlan(1, kernels="onednn"), 300.0, 0.0, 1),
]
HEAD = "name: night\nobjective: gpt\nsteps: 25\n"
NIGHT = """
axes: {lr: {values: [0.001, 30.0]}}
fixed: {width: 16, heads: 2, context: 16, batch_size: 2, depth: 1, warmup: 5}
tracking: {enabled: false}
"""


def remember_speeds(sweep: Sweep) -> None:
    objective = OBJECTIVES["gpt"]
    config = objective.config_class.model_validate(sweep.trials[0].config, strict=False)
    save_measurements(objective, config, "cpu", 1, SPEEDS)


def test_the_control_of_a_trial_from_a_narrow_pack_repeats_it_in_a_wide_one(
    train: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    sweep = sweep_of(NIGHT, HEAD)
    remember_speeds(sweep)
    train(sweep)
    found = find_remedies(tmp_path / "night", None, {}, Asked(("lr=x0.5,x0.1",), ("0",), 4, pairs=False))
    forks = forks_folder(tmp_path / "night", found.trial.trial_id)
    with LedgerReader(tmp_path / "night" / LEDGER) as ledger, LedgerReader(forks / LEDGER) as trained:
        assert found.control is not None
        of_trial, of_control = ledger.environment(found.trial.trial_id), trained.environment(found.control.trial_id)
    expected = Rounding(kernels="onednn")
    assert Rounding.of_facts(of_trial) == expected
    assert Rounding.of_facts(of_control) == expected
    assert of_trial["way"].startswith("1 at a time")
    assert of_control["way"].startswith("16 at a time")
    assert found.control_repeats is True


def test_a_rounding_is_read_back_as_it_was_recorded() -> None:
    plans = [
        ExecutionPlan(7),
        ExecutionPlan(7, True),
        ExecutionPlan(7, True, "onednn"),
        ExecutionPlan(1, kernels="onednn"),
        ExecutionPlan(1),
        ExecutionPlan(1, True),
    ]
    for plan in plans:
        assert Rounding.of_facts(plan.rounding.facts) == plan.rounding
        assert plan.rounding.plan(plan.width) == plan
    assert ExecutionPlan(1).rounding == ExecutionPlan(7).rounding
    assert ExecutionPlan(1, True).rounding.plan(16) == ExecutionPlan(1, True), (
        "what is compiled for one row rounds differently"
    )
    assert Rounding.of_facts({}) is None, "a ledger of before"
    assert Rounding.of_facts({"kernels": "other", "compiled": "true"}) is None
