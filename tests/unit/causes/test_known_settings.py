"""What a diagnosis knows of trainers of somebody's own: the fields that their sweep files set, and their layers."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosis_cases import Case, bad_batch, calm, logit_growth, record_cases, risen, row_of, shallow_stall

from orchestrator.base.files import FROZEN_SWEEP, LEDGER
from orchestrator.base.space import Cell
from orchestrator.causes.advice import Advice, advise, check
from orchestrator.causes.diagnosis import examine
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.mechanisms.mechanism import Move, just
from orchestrator.ledger.facts import PackedObjective, packed_fact, packed_from_fact
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.spec import Sweep, load_sweep

MODULE = '''
from objectives.base import Objective
from objectives.base import TrainingConfig
from objectives.base import per_member, structural


class Config(TrainingConfig):
    """A model of somebody's."""

    batch_size: int = structural(2, "points", "points per step", ge=1)
    qk_norm: bool = structural(False, "switch", "normed queries and keys", off=True)
    penalty: float = per_member(0.0, "1", "a penalty", off=True, ge=0)


OWN = Objective("own", Config, "own_objective", spike_rise=0.1, can_compile=False, has_logits=True)
'''
KINDS = {
    "command": 'command: [python, train.py, "{config}"]',
    "python": 'python: "fit:run"',
    "packed": 'packed: "own_objective:OWN"',
}
SWEEP = """
name: mine
objective: {{{kind}}}
steps: 400
seeds: [0]
axes:
  lr: {{values: [0.1]}}
  qk_norm: {{values: [false, true]}}
fixed: {{eps: 1.0e-8, warmup: 0, clip: null, penalty: 0.0, z_loss: 0.0}}
tracking: {{enabled: false}}
"""
NOT_OF_THE_PACKED = "z_loss: 0.0"


@pytest.fixture
def sweep_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes the sweep of a kind of trainer, in a folder that also has its frozen file."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_objective", raising=False)

    def make(kind: str) -> Sweep:
        (tmp_path / "train.py").write_text("")
        (tmp_path / "fit.py").write_text("def run(config, report): ...\n")
        (tmp_path / "own_objective.py").write_text(MODULE)
        text = SWEEP.format(kind=KINDS[kind])
        text = text if kind != "packed" else text.replace(f", {NOT_OF_THE_PACKED}", "")
        (tmp_path / "mine.yaml").write_text(text)
        sweep = load_sweep(tmp_path / "mine.yaml", allow_import=True)
        (tmp_path / FROZEN_SWEEP).write_text(sweep.text)
        return sweep

    return make


def case_of(sweep: Sweep, case: Case, number: int = 0) -> Case:
    """The case as a trial of ``sweep``."""
    trial = sweep.trials[number]
    row = replace(
        case.row, trial_id=trial.trial_id, objective=sweep.objective.name, cell=trial.cell, config=trial.config
    )
    return replace(case, row=row)


def packed_of(sweep: Sweep, kind: str) -> PackedObjective | None:
    return packed_from_fact(packed_fact(sweep.objective)) if kind == "packed" else None


def advice_on(sweep: Sweep, kind: str, setting: str, value: Any, folder: Path) -> Advice | None:
    evidence = case_of(sweep, calm("diverged", 300)).evidence(packed=packed_of(sweep, kind))
    return check(evidence, Move(setting, "switch", "because", just(value)), folder)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_that_the_sweep_file_sets_is_known_even_where_its_value_is_off(kind: str, sweep_of) -> None:
    sweep = sweep_of(kind)
    settings = case_of(sweep, calm("diverged", 300)).evidence(packed=packed_of(sweep, kind)).config
    given = {**sweep.fixed, "lr": 0.1, "qk_norm": False}
    assert {name: settings.get(name, "unknown") for name in given} == given


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("setting", "value"), [("qk_norm", True), ("penalty", 0.1), ("clip", 1.0), ("warmup", 50)])
def test_advice_on_a_field_that_the_sweep_file_sets_comes_with_a_small_sweep_of_it(
    kind: str, setting: str, value: Any, sweep_of, tmp_path: Path
) -> None:
    sweep = sweep_of(kind)
    advice = advice_on(sweep, kind, setting, value, tmp_path)
    assert advice is not None
    assert advice.refusal == ""
    assert advice.sweep_file is not None
    (tmp_path / "small.yaml").write_text(advice.sweep_file)
    small = load_sweep(tmp_path / "small.yaml", allow_import=True)
    own = {**sweep.fixed, "lr": 0.1, "qk_norm": False}[setting]
    assert [(axis.name, axis.values) for axis in small.axes] == [(setting, (own, value))]


def test_the_cell_beside_a_field_that_is_off_is_found_in_a_sweep_of_a_packed_objective(sweep_of, tmp_path) -> None:
    sweep = sweep_of("packed")
    off, on = (case_of(sweep, logit_growth(), number) for number in (0, 1))
    on = replace(on, row=replace(on.row, outcome="stable", onset_step=None, episodes=()))
    evidence = replace(off, sisters=(on.row,)).evidence(packed=packed_of(sweep, "packed"))
    first = advise(evidence, "logit_growth", tmp_path)[0]
    assert (first.move.setting, first.stable and first.stable.value) == ("qk_norm", True)


def test_what_was_recorded_of_a_packed_objective_is_in_its_diagnosis(sweep_of, tmp_path: Path) -> None:
    sweep = sweep_of("packed")
    folder = record_cases(tmp_path / "results", sweep, [case_of(sweep, logit_growth()), None])
    with LedgerReader(folder / LEDGER) as ledger:
        rows = ledger.trials()
        trial = next(row for row in rows if row.outcome is not None)
        found = examine(ledger, trial, "it was asked for", rows)
        assert ledger.packed_objective() == packed_of(sweep, "packed")
    assert found.evidence.config["qk_norm"] is False
    assert found.cause is not None
    assert found.cause.mechanism == "logit_growth"


def own_case(case: Case, **packed: Any) -> tuple[Case, PackedObjective]:
    """The case as a trial of a custom packed objective with two layer groups."""
    readings = {name: values for name, values in case.telemetry.items() if "/" not in name}
    readings |= {f"update_to_weight/{group}": np.full(len(readings["step"]), 0.01) for group in ("a", "b", "all")}
    facts = {"layer_groups": (), "has_logits": False, "data_fields": (), "features": {}, **packed}
    return replace(case, row=replace(case.row, objective="own"), telemetry=readings), PackedObjective(**facts)


@pytest.mark.parametrize(("declared", "expected"), [((), ("a", "b")), (("b", "a"), ("b", "a"))])
def test_layers_of_a_packed_objective_are_in_the_order_of_its_weights_unless_it_says_otherwise(
    declared: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    case, packed = own_case(calm("diverged", 300), layer_groups=declared)
    evidence = case.reading(update_to_weight__a=1e-5).evidence(packed=packed)
    assert evidence.layer_groups == expected
    verdict = MECHANISMS["layers_out_of_step"].examine(evidence).verdict
    assert verdict == ("supported" if expected[0] == "a" else "excluded")


def test_growth_of_logits_is_excluded_where_a_packed_objective_has_none_and_looked_for_where_they_were_read() -> None:
    case, without = own_case(calm("diverged", 300))
    bare = replace(case, telemetry={k: v for k, v in case.telemetry.items() if k not in ("attention_logit", "log_z")})
    examine = MECHANISMS["logit_growth"].examine
    assert examine(bare.evidence(packed=without)).reason == "the model has no logits"
    assert examine(bare.evidence(packed=replace(without, has_logits=True))).verdict == "unknown"
    assert examine(case.reading(attention_logit=2e4).evidence(packed=without)).verdict == "supported"


def test_no_batch_is_bad_where_every_step_of_a_packed_objective_sees_the_same_data() -> None:
    jump = bad_batch()
    for is_full_batch, reasons in (
        (True, {"every step sees the same data"}),
        (False, {"the loss jumped at step 200 alone"}),
    ):
        case, packed = own_case(jump, is_full_batch=is_full_batch)
        assert {MECHANISMS["bad_batch"].examine(case.evidence(packed=packed)).reason} == reasons


def test_a_loss_that_rounding_takes_away_needs_logits() -> None:
    low = risen(calm("spiked", 300), 300, 5.0)
    case, without = own_case(low.with_trace(loss=np.where(low.trace["step"] < 300, 1e-6, low.trace["loss"])))
    examine = MECHANISMS["absorption"].examine
    assert examine(case.evidence(packed=without)).verdict == "excluded"
    assert examine(case.evidence(packed=replace(without, has_logits=True))).verdict == "supported"
    assert examine(case.evidence()).verdict == "unknown"


def test_a_shallow_stall_is_found_in_any_trainer_with_readings_by_depth() -> None:
    case = shallow_stall()
    evidence = replace(case, row=replace(case.row, objective="own")).evidence()
    assert MECHANISMS["shallow_stall"].examine(evidence).verdict == "supported"


def test_a_script_whose_settings_have_other_names_is_known_by_none_of_them() -> None:
    row = replace(row_of("diverged", 3), objective="command", config={"steps": 60, "rate": 3.0}, cell=Cell(rate=3.0))
    assert advise(replace(calm("diverged", 3), row=row).evidence(), "over_the_threshold", Path("nowhere")) == []
