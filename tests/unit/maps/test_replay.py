import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import learning, ledger_at, noise, record, sweep_of, trial_row
from tiers import one_of

from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import TrialResult
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import MemberRecord, SpikeDetector
from orchestrator.detection.outcomes import judge
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log
from orchestrator.maps.replay import UNKNOWN, Curve, ReplayedTrial, detect, in_parts, replay_logs, replay_sweep
from orchestrator.render.answer import to_plain
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

CONFIG = StoppingConfig(patience=20)
BACK = [(300, 500, 3.5)]  # a rise that outlasts the patience, and ends


def log_of(loss_N: np.ndarray, name: str = "run.csv", stride: int = 1, norm_N: np.ndarray | None = None) -> Log:
    return Log(name, Columns("step", "loss"), stride * np.arange(len(loss_N)), np.asarray(loss_N, float), norm_N)


def curve_of(loss_N: np.ndarray, **options) -> Curve:
    log = log_of(loss_N)
    return Curve(log.step_N, {"loss": log.loss_N}, **options)


def streamed(curve: Curve) -> MemberRecord:
    """What the detector says of the curve alone, a step at a time, as in a loop of training."""
    detector = SpikeDetector(1, CONFIG)
    norm_N = curve.columns.get("grad_norm", np.ones(len(curve.step_N)))
    for step, loss, norm in zip(curve.step_N, curve.columns["loss"], norm_N, strict=True):
        if detector.update(loss, norm, step)[0] and not (curve.is_audited and detector.is_finite[0]):
            break
    return detector.record()


def varied_curves(num: int) -> list[Curve]:
    """Curves of every kind and many lengths, with and without gradient norms, some that are audited."""
    generator = np.random.default_rng(0)
    curves = []
    for seed in range(num):
        num_steps = int(generator.integers(1, 200))
        start, rise = int(generator.integers(0, 180)), float(generator.choice([0, 0, 3, 50]))
        loss_N = learning(num_steps, seed, [(start, start + int(generator.integers(1, 90)), rise)])
        norm_N = generator.lognormal(size=num_steps) if seed % 2 or seed % 7 == 1 else None
        if seed % 5 == 0:
            loss_N[num_steps // 2 :: 40] = generator.choice([math.nan, math.inf])
        if seed % 7 == 1:
            norm_N[num_steps // 3 : num_steps // 3 + 30] = math.inf
        columns = {"loss": loss_N} | ({} if norm_N is None else {"grad_norm": norm_N})
        curves.append(Curve(np.cumsum(generator.integers(1, 5, num_steps)), columns, is_audited=seed % 3 != 0))
    return curves


@pytest.mark.slow
def test_many_curves_are_judged_as_each_one_alone() -> None:
    curves = varied_curves(80)  # more than are judged at once
    records = detect(curves, CONFIG)
    assert [replace(record, norm_rises=()) for record in records] == [streamed(curve) for curve in curves]
    assert {judge(record, CONFIG).outcome for record in records} == {"stable", "spiked", "diverged", "unknown"}
    assert sum(record.num_steps < len(curve.step_N) for record, curve in zip(records, curves, strict=True)) > 10


def test_a_curve_that_stops_is_its_beginning_up_to_the_verdict() -> None:
    loss_N = learning(900, changes=BACK)
    whole, stopped = detect([curve_of(loss_N, is_audited=True), curve_of(loss_N)], CONFIG)
    assert (whole.lost, whole.num_steps) == ("far", 900)
    assert stopped == detect([curve_of(loss_N[: whole.lost_step + 1])], CONFIG)[0]


def test_nothing_is_judged_of_no_curves() -> None:
    assert detect([], CONFIG) == []
    assert replay_logs([], CONFIG) == []


# --- logs


def test_a_log_is_judged_by_all_of_it_and_says_where_it_would_have_stopped() -> None:
    logs = {
        "calm": log_of(learning(900)),
        "back": log_of(learning(900, changes=BACK)),
        "lost": log_of(learning(900, changes=[(300, 900, 3.5)])),
        "broken": log_of(np.where(np.arange(900) == 600, math.nan, learning(900))),
        "flat": log_of(noise(900)),
    }
    found = dict(zip(logs, replay_logs(list(logs.values()), CONFIG), strict=True))
    outcomes = {name: one.result.outcome for name, one in found.items()}
    assert outcomes == {
        "calm": "stable", "back": "spiked", "lost": "diverged", "broken": "diverged", "flat": "stalled",
    }  # fmt: skip
    assert {name for name, one in found.items() if one.is_wrong_stop} == {"back"}
    assert 300 < found["back"].record.lost_step == found["lost"].record.lost_step < 400
    assert found["broken"].record.lost_step == 600
    for one in found.values():
        stop = one.record.lost_step
        assert one.share_saved == (0 if stop is None else (899 - stop) / 899)


def test_steps_are_those_of_the_log() -> None:
    near, far = replay_logs([log_of(learning(900, changes=BACK), stride=n) for n in (1, 25)], CONFIG)
    assert far.record.lost_step == 25 * near.record.lost_step
    assert far.result.onset_step == 25 * near.result.onset_step
    assert [e.recovery_step for e in far.record.episodes] == [25 * e.recovery_step for e in near.record.episodes]
    assert far.share_saved == near.share_saved


def test_of_a_log_of_one_point_nothing_could_be_saved() -> None:
    (one,) = replay_logs([log_of(np.array([math.nan]))], CONFIG)
    assert (one.result.outcome, one.record.lost_step, one.share_saved) == ("diverged", 0, 0.0)


@pytest.mark.parametrize(
    "loss_N",
    [learning(300), np.full(50, math.nan), np.full(50, math.inf), learning(300, changes=[(200, 230, 1e99)]),
     np.array([math.nan]), np.where(np.arange(300) > 250, -math.inf, learning(300))],
)  # fmt: skip
def test_the_json_of_a_log_has_finite_numbers_or_null(loss_N: np.ndarray) -> None:
    (one,) = replay_logs([log_of(loss_N, norm_N=np.full(len(loss_N), math.inf))], CONFIG)
    shown = to_plain(one.summary())
    assert shown["num_points"] == len(loss_N)
    assert shown["outcome"] == one.result.outcome
    assert shown["columns"] == {"step": "step", "loss": "loss", "grad_norm": None}


# --- sweeps

Key = tuple[float, float, int]
JUDGED = """
name: judged
objective: quadratic
steps: 120
seeds: [0, 1, 2]
axes:
  lr: {values: [0.03, 0.3, 1.9, 2.05, 2.3, 5.0, 1.0e+6]}
  beta1: {values: [0.0, 0.5]}
fixed: {optimizer: sgd}
stopping: {audit: 0.5, patience: 20}
tracking: {enabled: false}
"""


def judged_sweep(*sets: str) -> Sweep:
    return build_sweep(parse_document(JUDGED, "judged.yaml"), Overrides(sets=sets))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    """The ledger's file of the sweep under some settings; each is trained once."""
    files: dict[tuple[str, ...], Path] = {}

    def train(*sets: str) -> Path:
        if sets not in files:
            folder = tmp_path_factory.mktemp("judged")
            run_sweep(judged_sweep(*sets), folder, InlineExecutor, ())
            files[sets] = folder / LEDGER
        return files[sets]

    return train


def key_of(cell: Mapping[str, Any], seed: int) -> Key:
    return (cell["lr"], cell["beta1"], seed)  # a trial's id changes with the settings


def replayed(file: Path, *sets: str) -> dict[Key, ReplayedTrial]:
    with LedgerReader(file) as ledger:
        trials = replay_sweep(ledger, judged_sweep(*sets).stopping)
    return {key_of(trial.cell, trial.seed): trial for trial in trials}


def rows_of(file: Path) -> dict[Key, TrialResult]:
    with LedgerReader(file) as ledger:
        return {key_of(row.cell, row.seed): row for row in ledger.trials()}


def has_finite_curve(row: TrialResult, file: Path) -> bool:
    with LedgerReader(file) as ledger:
        return math.isfinite(ledger.trace(row.trial_id)["loss"][-1])


def test_a_finished_sweep_is_what_its_curves_say(trained) -> None:
    rows, trials = rows_of(trained()), replayed(trained())
    assert trials.keys() == rows.keys()
    for key, trial in trials.items():
        row = rows[key]
        assert (trial.outcome, trial.steps_done) == (row.outcome, row.steps_done)
        assert (trial.new_outcome, trial.new_steps_done, trial.reason) == (
            row.outcome, row.steps_done, row.reason,
        )  # fmt: skip
        assert not trial.is_changed
        assert trial.trial_id == row.trial_id
    # All kinds are there: stopped by the verdict, audited after it to the end, audited until not finite.
    lost = [row for row in rows.values() if row.verdict_step is not None]
    kinds = {(bool(row.is_audited), row.steps_done < row.steps) for row in lost}
    assert kinds == {(False, True), (True, False), (True, True)}


CHANGED = ("stopping.patience=5", "stopping.patience=2000", "stopping.stall_drop=0.999", "stopping.min_history=60")


@pytest.mark.parametrize("change", one_of(2, CHANGED))
def test_a_sweep_that_was_never_stopped_replays_as_it_would_have_trained(trained, change: str) -> None:
    rows = rows_of(trained(change, "stopping.audit=0"))
    trials = replayed(trained("stopping.early_stop=false", "stopping.audit=0"), change)
    assert {key: (trial.new_outcome, trial.new_steps_done, trial.reason) for key, trial in trials.items()} == {
        key: (row.outcome, row.steps_done, row.reason) for key, row in rows.items()
    }


@pytest.mark.parametrize("change", one_of(2, [*CHANGED, "stopping.early_stop=false"]))
def test_what_is_told_of_a_sweep_that_was_stopped_is_true_or_unknown(trained, change: str) -> None:
    before, trials = rows_of(trained()), replayed(trained(), change)
    stopped = rows_of(trained(*dict.fromkeys((change, "stopping.audit=0"))))
    audited = rows_of(trained(*dict.fromkeys((change, "stopping.early_stop=false", "stopping.audit=0"))))
    num_known = 0
    for key, row in before.items():
        true = (audited if row.is_audited else stopped)[key]
        is_enough = row.steps_done >= true.steps_done or not has_finite_curve(row, trained())
        assert trials[key].new_outcome == (true.outcome if is_enough else UNKNOWN), (row, true)
        num_known += is_enough
    assert 0 < num_known <= len(before)


@pytest.mark.parametrize("change", ["stopping.patience=2000", "stopping.early_stop=false"])
def test_a_trial_that_would_not_have_been_stopped_there_is_unknown(trained, change: str) -> None:
    before, after = rows_of(trained()), replayed(trained(), change)
    unknown = {key for key, trial in after.items() if trial.new_outcome == UNKNOWN}
    was_stopped = {key for key, row in before.items() if row.steps_done < 120 and has_finite_curve(row, trained())}
    assert unknown == was_stopped != set()
    for key in unknown:
        assert after[key].is_changed
        assert after[key].reason.endswith(f"by step {after[key].steps_done - 1}, where its training was stopped")


def test_less_patience_needs_fewer_steps_and_changes_no_outcome(trained) -> None:
    before, after = replayed(trained()), replayed(trained(), "stopping.patience=5")
    assert not any(trial.is_changed for trial in after.values())
    assert sum(t.new_steps_done for t in after.values()) < sum(t.new_steps_done for t in before.values())


def test_trials_that_never_finished_are_left_out(tmp_path: Path) -> None:
    sweep = sweep_of("seeds: [0, 1, 2]\naxes: {lr: {values: [0.1]}}\n")
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep, ["stable", "planned", "errored"])
        trials = replay_sweep(ledger, sweep.stopping)
    assert [trial.trial_id for trial in trials] == [sweep.trials[0].trial_id]


@settings(derandomize=True, database=None)
@given(st.lists(st.integers(1, 50), max_size=200), st.integers(1, 200))
def test_trials_are_judged_in_parts_that_fit_into_memory(lengths: list[int], most: int) -> None:
    rows = [trial_row(trial_id=str(number), steps_done=length) for number, length in enumerate(lengths)]
    parts = list(in_parts(rows, most))
    assert [row for part in parts for row in part] == rows
    assert all(len(part) == 1 or sum(row.steps_done for row in part) <= most for part in parts)
    assert sum(len(part) < 64 and sum(row.steps_done for row in part) <= most / 2 for part in parts) <= (
        len(parts) / 2 + 1
    ), "parts are not smaller than they need to be"


def test_a_resumed_log_without_its_partial_lines_keeps_a_rate_for_each_step() -> None:
    losses = np.concatenate([[0.4], learning(500, changes=[(300, 500, 40.0)])])
    steps = 10 * np.arange(100, 100 + len(losses))
    log = Log("run.csv", Columns("step", "loss"), steps, losses, None, lr_N=np.full(len(losses), 1e-3))
    (judged,) = replay_logs([log], CONFIG)
    assert judged.result.outcome == "diverged"
    assert len(judged.log.step_N) == len(judged.log.lr_N) == 500
