import base64
import json
from pathlib import Path

import numpy as np
import pytest
from sweep_cases import finished, learning, ledger_at, peak_bytes, sweep_of
from tiers import one_of

from orchestrator.base.packs import Completed, Report
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import make_packs
from orchestrator.maps.curve_metrics import CURVE_METRICS, measured
from orchestrator.maps.table import read_table
from orchestrator.pages.data import as_script, report_data
from orchestrator.pages.packed import CURVE_BITS

BODY = "axes: {lr: {values: [0.1, 0.2, 0.3]}}\nstopping: {early_stop: false}\n"


def with_curves(folder: Path, losses: list[np.ndarray], body: str = BODY):
    sweep = sweep_of(body)
    ledger = ledger_at(folder)
    ledger.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
    for trial, loss in zip(sweep.trials, losses, strict=False):
        (pack,) = make_packs(sweep, [trial], 1)
        ledger.start_pack(pack, "test")
        curve = {"step": np.arange(len(loss)), "loss": loss, "grad_norm": np.ones(len(loss))}
        done = (finished(trial.trial_id, "stable", steps_done=len(loss), episodes=((3000, 3010), (3500, None))),)
        ledger.record(Report(pack.pack_id, len(loss), 0, 0.5, {trial.trial_id: curve}, done, Completed()))
    return ledger


def curve_of(data: dict, trial: int, name: str = "loss") -> tuple[np.ndarray, np.ndarray]:
    steps, values = data["curves"][trial][name]
    return np.frombuffer(base64.b64decode(steps), "<i4"), np.frombuffer(base64.b64decode(values), "<f4")


def test_curves_keep_their_peaks_and_mark_their_episodes(tmp_path: Path) -> None:
    loss = learning(4000, changes=[(3000, 3010, 2.0)])
    with with_curves(tmp_path, [loss]) as ledger:
        data = report_data(read_table(ledger))
    steps, values = curve_of(data, 0)
    assert len(steps) <= data["num_points"] + 2 < 4000
    assert values.max() == pytest.approx(loss.max(), rel=2**-CURVE_BITS)
    assert values[(steps >= 3000) & (steps < 3010)].max() == pytest.approx(loss[3000:3010].max(), rel=2**-CURVE_BITS)
    assert data["episodes"][:2] == [((3000, 3010), (3500, None)), ()]
    assert data["curves"][1] == {}, "a trial that has not run has no curve"


def test_what_is_not_finite_is_marked_and_left_out(tmp_path: Path) -> None:
    loss = learning(100)
    loss[60:] = np.nan
    huge = learning(100)
    huge[50] = 1e300
    with with_curves(tmp_path, [loss, huge]) as ledger:
        data = report_data(read_table(ledger))
    assert data["curves"][0]["loss_broken"] == 60
    assert curve_of(data, 0)[0].tolist() == list(range(60))
    assert np.isfinite(curve_of(data, 1)[1]).all()
    assert "loss_broken" not in data["curves"][1]


@pytest.mark.slow
def test_a_large_sweep_stays_below_ten_megabytes(tmp_path: Path) -> None:
    body = "axes: {lr: {log: [1e-4, 1], num: 32}, eps: {log: [1e-12, 1e-2], num: 32}}\n"
    with with_curves(tmp_path, [learning(1000, seed) for seed in range(1024)], body) as ledger:
        text = as_script(report_data(read_table(ledger)))
    assert 1_000_000 < len(text) < 10_000_000


def test_the_data_is_strict_json_that_cannot_end_its_element(tmp_path: Path) -> None:
    with with_curves(tmp_path, [learning(50)]) as ledger:
        ledger.give_up([ledger.trials()[1].trial_id], "</script><!-- & NaN")
        text = as_script(report_data(read_table(ledger)))
    assert not set("<>&") & set(text)
    assert json.loads(text)["trials"]["reason"][1] == "</script><!-- & NaN"
    json.loads(text, parse_constant=pytest.fail)


STEPS = 20_000
READERS = {
    "report": lambda ledger: report_data(read_table(ledger)),
    "metrics": lambda ledger: measured(read_table(ledger), CURVE_METRICS),
}


@pytest.mark.parametrize("read", one_of(2, READERS.values()), ids=READERS)
def test_the_curves_of_all_trials_are_never_in_memory_at_once(tmp_path: Path, read) -> None:
    peaks = []
    for num_trials in (2, 10):
        body = f"axes: {{lr: {{linear: [0.1, 1], num: {num_trials}}}}}\n"
        losses = [learning(STEPS, seed) for seed in range(num_trials)]
        with with_curves(tmp_path / str(num_trials), losses, body) as ledger:
            read(ledger)
            peaks.append(peak_bytes(lambda ledger=ledger: read(ledger)))
    assert peaks[1] - peaks[0] < STEPS * 8, "eight trials more are held as sixteen such curves and their steps"
