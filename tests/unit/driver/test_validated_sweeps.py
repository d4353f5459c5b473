"""A sweep that is validated during training, from its file to its columns, its page, its tracker and its audit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sweep_cases import sweep_of

from orchestrator.api.results import load
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.health import examine_sweep
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.audit import PlateauAudit, audit
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.replay import replay_sweep
from orchestrator.maps.table import read_table
from orchestrator.mirrors.records import trial_record
from orchestrator.pages.data import report_data
from orchestrator.pages.report import export_all
from orchestrator.sweepfile.spec import load_sweep

# With few points to fit, those in between are soon fitted worse.
FIT = """
name: held_out
objective: function_fit
steps: 400
seeds: [0, 1]
axes:
  lr: {values: [1.0e-3, 3.0e-3]}
fixed: {num_points: 8, width: 64}
resources: {pack: 2}
tracking: {enabled: false}
"""
EVERY = "validate: {every: 10}\n"


def trained(folder: Path, body: str = "") -> Path:
    sweep = sweep_of(body, FIT)
    run_sweep(sweep, folder, InlineExecutor)
    (folder / "sweep.yaml").write_text(sweep.text)
    return folder


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("validated"), EVERY)


def test_the_curve_is_in_the_ledger_beside_the_readings_under_the_update_before_it(validated: Path) -> None:
    results = load(validated)
    row = results.trials.iloc[0]
    curve = results.telemetry(row.trial_id).dropna(subset=["validation_loss"])
    assert curve["step"].tolist() == list(range(9, 400, 10))
    assert curve["validation_loss"].iloc[-1] == np.float32(row.validation_loss)
    assert row.best_validation_loss == pytest.approx(curve["validation_loss"].min(), rel=1e-6)
    assert row.best_validation_step == curve["step"].iloc[curve["validation_loss"].to_numpy().argmin()]
    assert not [finding for finding in examine_sweep(validated) if finding.level == "fault"]


def test_maps_the_page_and_trackers_have_it(validated: Path) -> None:
    export_all(validated)
    table = pd.read_csv(validated / "map.csv")
    trials = load(validated).trials
    for name in ("validation_loss", "best_validation_loss", "best_validation_step"):
        assert table[f"median_{name}"].tolist() == pytest.approx(trials.groupby("lr")[name].median().tolist())
    with LedgerReader(validated / LEDGER) as ledger:
        assert cell_map(read_table(ledger), metric="best_validation_step").metric == "best_validation_step"
        data = report_data(read_table(ledger))
        axes = {axis.name: axis for axis in read_table(ledger).axes}
        points = trial_record(ledger, ledger.trials()[0], "auto", axes, "held_out").points
    assert data["curve_titles"]["validation_loss"] == "validation loss"
    assert all("validation_loss" in curve for curve in data["curves"])
    assert len([point for point in points if point.name == "validation_loss"]) == 40 + 1
    assert {"best_validation_loss", "best_validation_step"} <= {point.name for point in points}


def test_a_sweep_that_is_validated_at_its_end_alone_has_no_such_curve(tmp_path: Path, validated: Path) -> None:
    folder = trained(tmp_path)
    with LedgerReader(folder / LEDGER) as ledger:
        assert "validation_loss" not in report_data(read_table(ledger))["curve_titles"]
    columns = ["trial_id", "outcome", "final_loss", "validation_loss", "steps_done"]
    assert load(folder).trials[columns].equals(load(validated).trials[columns]), "validating changes nothing"


def test_trials_that_have_stopped_improving_end_and_keep_their_outcome(tmp_path: Path, validated: Path) -> None:
    folder = trained(tmp_path, EVERY + "stopping: {validation_patience: 5}\n")
    with LedgerReader(folder / LEDGER) as ledger:
        rows, replayed = ledger.trials(), replay_sweep(ledger, load_sweep(folder / "sweep.yaml").stopping)
        plateaus = audit(rows, None).plateaus
    ended = [row for row in rows if row.plateau_step is not None]
    assert ended
    for row in ended:
        assert (row.outcome, row.steps_done) == ("stable", (row.plateau_step or 0) + 1)
        assert row.saved_steps == 400 - row.steps_done
        assert "ended at step" in (row.reason or "")
    assert not [one for one in replayed if one.is_changed]
    assert not [finding for finding in examine_sweep(folder) if finding.level == "fault"]
    assert plateaus == PlateauAudit(len(ended), 0, 0, None, None)


def test_the_audit_counts_those_that_would_have_improved_later(tmp_path: Path) -> None:
    folder = trained(tmp_path, EVERY + "stopping: {validation_patience: 1, audit: 1.0}\n")
    with LedgerReader(folder / LEDGER) as ledger:
        rows = ledger.trials()
        plateaus = audit(rows, None).plateaus
    met = [row for row in rows if row.plateau_step is not None]
    better = [row for row in met if (row.best_validation_step or 0) > (row.plateau_step or 0)]
    assert met
    assert all(row.steps_done == 400 for row in met)
    assert plateaus is not None
    assert (plateaus.num_ended, plateaus.num_judged, plateaus.num_wrong) == (0, len(met), len(better))


def test_when_trials_are_validated_is_part_of_what_they_are_only_where_that_may_end_them() -> None:
    def ids(body: str) -> list[str]:
        return [trial.trial_id for trial in sweep_of(body, FIT).trials]

    assert ids(EVERY) == ids("") == ids("stopping: {validation_patience: null}\n")
    patient = "stopping: {validation_patience: 5}\n"
    assert len({ids(EVERY)[0], ids(EVERY + patient)[0], ids("validate: {every: 20}\n" + patient)[0]}) == 3


QUADRATIC = "name: case\nobjective: quadratic\nsteps: 20\n"
CUSTOM = "name: case\nobjective: {command: [train]}\nsteps: 20\n"
REFUSED = {
    (FIT, "validate: {each: 10}\n"): ("case.yaml:11", "validate.each", "known keys: every"),
    (FIT, "validate: {every: 0}\n"): ("validate.every", "0"),
    (FIT, "stopping: {validation_patience: 5}\n"): ("stopping.validation_patience", "say validate: {every: STEPS}"),
    (QUADRATIC, EVERY): ("case.yaml:4", "validate.every", "quadratic has no held-out data", "remove it"),
    (CUSTOM, EVERY): ("case.yaml:4", "validate.every", "validates by itself", "metrics.validation_loss"),
    (CUSTOM, "stopping: {validation_patience: 5}\n"): ("stopping.validation_patience", "decides when it ends"),
}


@pytest.mark.parametrize(("base", "body"), REFUSED)
def test_settings_that_do_not_fit_are_refused_where_they_stand(base: str, body: str) -> None:
    with pytest.raises(InputError) as refused:
        sweep_of(body, base)
    assert all(word in str(refused.value) for word in REFUSED[base, body]), str(refused.value)


def test_a_replay_refuses_a_rule_about_validations(command_line: Callable[..., tuple[int, str]]) -> None:
    code, said = command_line("replay", "log.csv", "--set", "stopping.validation_patience=5")
    assert code == 2
    assert "stopping.validation_patience" in said
