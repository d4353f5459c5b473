"""What the warning would have said of the trials of a sweep."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sweep_cases import finished, ledger_at, sweep_of

from orchestrator.answers.warn import WarnAnswer
from orchestrator.base.errors import InputError
from orchestrator.base.packs import Completed, Report
from orchestrator.detection.warning.alarms import UnstableSpan
from orchestrator.detection.warning.monitor import model_for
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import make_packs
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps import warning

STEPS = 400
BASE = "name: case\nobjective: quadratic\nsteps: 400\nseeds: [0]\naxes: {lr: {values: [1.0, 2.0, 3.0]}}\n"


def telemetry(high_from: int | None) -> dict[str, np.ndarray]:
    """Readings every 5 steps; from a step on the curvature is eight times its threshold."""
    step_N = np.arange(0, STEPS, 5)
    ratio_N = np.full(len(step_N), 0.1)
    if high_from is not None:
        ratio_N[step_N >= high_from] = 8.0
    threshold_N = np.full(len(step_N), 2.0)
    return {
        "step": step_N,
        "grad_norm/all": np.ones(len(step_N)),
        "lambda_max": 2 * ratio_N,
        "lambda_grad": 2 * ratio_N,
        "curvature_threshold": threshold_N,
    }


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LedgerReader:
    """A stable trial, one that is warned of some 40 steps before its onset, and a stable one with a false alarm."""
    # The threshold is fitted to sweeps; here it separates the two curvatures.
    monkeypatch.setattr(warning, "model_for", lambda every: replace(model_for(5), threshold=0.1))
    sweep = sweep_of(base=BASE)
    with ledger_at(tmp_path / "case") as writer:
        writer.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
        for trial, high_from, onset in zip(sweep.trials, (None, 255, 200), (None, 300, None), strict=True):
            (pack,) = make_packs(sweep, [trial], 1)
            writer.start_pack(pack, "test")
            outcome = "stable" if onset is None else "diverged"
            episodes = () if onset is None else ((onset, None),)
            result = finished(trial.trial_id, outcome, onset_step=onset, episodes=episodes, steps_done=STEPS)
            curve = {"step": np.arange(STEPS), "loss": np.ones(STEPS)}
            readings = {trial.trial_id: telemetry(high_from)}
            report = Report(
                pack.pack_id, STEPS, 0, 0.5, {trial.trial_id: curve}, (result,), Completed(), telemetry=readings
            )
            writer.record(report)
            writer.end_pack(pack.pack_id, "done", "errored", "a bug")
    return LedgerReader(tmp_path / "case" / "ledger.db")


def test_each_instability_has_its_alarm_and_its_lead(ledger: LedgerReader) -> None:
    with ledger:
        found = warning.warn(ledger)
    (instability,) = found.instabilities
    assert instability.onset == 300
    assert instability.lead is not None
    assert 20 <= instability.lead <= 45
    assert instability.alarm is not None
    assert "curvature" in instability.alarm.reasons[0]


def test_an_alarm_on_a_stable_trial_is_false(ledger: LedgerReader) -> None:
    with ledger:
        found = warning.warn(ledger)
    assert [alarm.trial.cell["lr"] for alarm in found.false_alarms] == [3.0]
    assert found.quality.calm_steps == 2 * STEPS + 300
    assert found.quality.stable_steps == 2 * STEPS


def test_the_answer_in_words_and_as_json_has_both(ledger: LedgerReader) -> None:
    with ledger:
        found = warning.warn(ledger)
    lines = WarnAnswer(found).lines()
    assert lines[0] == "case: 3 runs, 1 instability"
    assert lines[1].startswith("model trend: the trend of the curvature")
    assert lines[2] == "  alarm if the risk of the next 50 steps is 10.0% or more"
    assert lines[3] == "warned of 1 of 1 (100%, 95 % interval 21% to 100%)"
    assert lines[4].startswith("  1 by 20 steps or more (100%, 95 % interval 21% to 100%); median lead ")
    assert any(line.startswith("1 false alarm in 1,100 calm steps: 0.91 per 1,000 steps") for line in lines)
    told = WarnAnswer(found).to_plain()
    assert (told["num_warned"], len(told["false_alarms"]), told["num_with_curvature"]) == (1, 1, 3)
    assert told["models"] == [{"name": "trend", "threshold": 0.1, "num_runs": 3}]
    assert told["intervals"]["num_warned"]["high"] == 1.0


def test_a_table_has_a_head_for_each_column_and_fits_a_terminal(ledger: LedgerReader) -> None:
    with ledger:
        found = warning.warn(ledger)
    long = {"lr": 0.0107721734502, "beta2": 0.999, "batch_size": 128, "warmup": 1000}
    instabilities = tuple(
        replace(one, trial=replace(one.trial, cell=long), alarm=one.alarm) for one in found.instabilities
    )
    lines = WarnAnswer(replace(found, instabilities=instabilities)).lines(80)
    assert max(len(line) for line in lines) <= 80
    (head,) = [line for line in lines if "onset" in line]
    assert head.split() == ["trial", "seed", "alarm", "onset", "lead", "risk", "why", "cell"]
    (row,) = [line for line in lines if line[head.index("onset") :].startswith("300")]
    letters = row[head.index("why") :].split()[0].split(",")
    legend = lines[lines.index("why: what raises the risk most") + 1 :]
    assert [line.split()[0] for line in legend][: len(letters)] == letters
    assert "curvature" in legend[0]


def test_a_run_that_drifted_away_without_an_episode_has_its_onset() -> None:
    from sweep_cases import trial_row

    assert warning.unstable(trial_row(onset_step=7, steps_done=20)) == (UnstableSpan(7, 20),)
    assert warning.unstable(trial_row(onset_step=7, steps_done=20, episodes=((7, 9),))) == (UnstableSpan(7, 9),)
    assert warning.unstable(trial_row(steps_done=20)) == ()


def test_a_sweep_without_telemetry_says_how_to_have_some(tmp_path: Path) -> None:
    sweep = sweep_of(base=BASE)
    with ledger_at(tmp_path / "bare") as writer:
        writer.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
    with (
        LedgerReader(tmp_path / "bare" / "ledger.db") as reader,
        pytest.raises(InputError, match="telemetry") as raised,
    ):
        warning.warn(reader)
    assert "curvature: 25" in raised.value.problems[0].remedy
