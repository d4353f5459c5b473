import math
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sweep_cases import learning
from watch_cases import SWEEP_STOPPING, MakeTrial, sweeps_trial

from orchestrator.base.errors import InputError, StorageError
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.rows import read_rows
from orchestrator.detection.watch import TRIAL_VARIABLE, TrainingLost, Watch
from orchestrator.maps.replay import Curve, detect

LOST = learning(300, changes=[(150, 300, 4.0)])
SPIKED = learning(300, changes=[(150, 160, 3.0)])


trial = sweeps_trial


def feed(watch: Watch, losses: Iterable[float], first: int = 0) -> int | None:
    """Report until the watch says stop; the step at which it did."""
    for step, loss in enumerate(losses, first):
        if watch.report(step, loss):
            return step
    return None


@pytest.mark.parametrize("curve", [LOST, SPIKED], ids=["lost", "spiked"])
def test_a_watch_says_of_a_run_what_replay_says_of_its_log(curve: np.ndarray) -> None:
    config = StoppingConfig()
    watch = Watch()
    stopped_at = feed(watch, curve)
    (replayed,) = detect([Curve(np.arange(len(curve)), {"loss": curve})], config)
    assert watch.record() == replayed
    assert stopped_at == replayed.lost_step
    assert watch.verdict().outcome == ("diverged" if stopped_at else "spiked")


def summed(losses: np.ndarray, every: int = 100) -> list[tuple[int, float]]:
    """What a trainer reports that adds up losses, divides them by ``every`` and also reports after its first step."""
    means = [float(losses[at : at + every].mean()) for at in range(1, len(losses), every)]
    return [(0, losses[0] / every), *((every * (at + 1), mean) for at, mean in enumerate(means))]


def test_a_first_loss_that_may_be_a_partial_sum_does_not_stop_a_run() -> None:
    watch = Watch()
    assert not any(watch.report(step, loss) for step, loss in summed(learning(20000)))
    assert watch.verdict().outcome == "unknown"
    assert "may be a sum over fewer steps; without it: stable" in watch.verdict().reason


def test_a_run_that_begins_with_a_partial_sum_is_stopped_when_the_rest_is_lost() -> None:
    points = summed(learning(20000, changes=[(14000, 20000, 9.0)]))
    watch, resumed = Watch(), Watch()
    stops = [bool(watch.report(step, loss)) for step, loss in points]
    assert points[stops.index(True)][0] > 14000
    assert watch.verdict().outcome == "diverged"
    first = Watch()
    for step, loss in points[:5]:
        first.report(step, loss)
    resumed.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    assert [bool(resumed.report(step, loss)) for step, loss in points[5:]] == stops[5:]


def test_a_loss_that_is_not_finite_loses_the_run_at_its_step() -> None:
    watch = Watch()
    assert feed(watch, [3.0, 2.0, math.nan, 1.0]) == 2
    assert watch.is_lost
    assert watch.lost_reason == "the loss is not finite"
    assert watch.verdict().onset_step == 2


def test_a_lost_run_stays_lost() -> None:
    watch = Watch()
    feed(watch, [3.0, math.inf])
    assert watch.report(2, 1.0)
    assert watch.verdict().outcome == "diverged"


def test_a_gradient_that_is_not_finite_is_waited_for_as_in_a_log() -> None:
    watch = Watch()
    answers = [bool(watch.report(step, 1.0, math.inf)) for step in range(20)]
    assert answers == [False] * 19 + [True]


def test_a_norm_that_is_left_out_is_a_sound_one() -> None:
    watch = Watch(StoppingConfig(gradient_patience=2))
    norms = [math.nan, None, math.nan, None]
    assert not any(watch.report(step, 1.0, norm) for step, norm in enumerate(norms))


def test_steps_that_were_skipped_or_taken_back_lose_no_run_where_they_are_reported_as_such() -> None:
    watch = Watch(StoppingConfig(gradient_patience=2))
    assert not any(watch.report(step, 1.0, math.inf, is_skipped=True) for step in range(5))
    assert not any(watch.report(step, math.nan, math.nan, rolled_back=1) for step in range(5, 10))
    assert watch.report(10, math.nan, is_skipped=1)


def test_without_early_stop_no_run_is_lost_but_its_verdict_is_known() -> None:
    watch = Watch(StoppingConfig(early_stop=False))
    assert feed(watch, [3.0, math.nan, 2.0]) is None
    assert not watch.is_lost
    assert watch.lost_reason is None
    assert watch.verdict().outcome == "diverged"


def test_a_watch_that_raises_ends_the_loop() -> None:
    watch = Watch(raises=True)
    watch.report(0, 3.0)
    for step in (1, 2):
        with pytest.raises(TrainingLost, match="the run is lost: the loss is not finite"):
            watch.report(step, math.nan)


def test_outside_of_a_sweep_there_is_no_trial() -> None:
    watch = Watch()
    assert (watch.is_run_by_sweep, watch.config, watch.folder, watch.seed, watch.steps) == (
        False, {}, None, None, None,
    )  # fmt: skip


def test_a_run_without_a_report_has_no_outcome() -> None:
    with pytest.raises(ValueError, match="without a reported step"):
        Watch().verdict()


@pytest.mark.parametrize(
    "loss",
    [
        2,
        2.0,
        np.float32(2),
        np.array([2.0]),
        torch.tensor(2.0, requires_grad=True),
        torch.tensor([[2]]),
        SimpleNamespace(full_tensor=lambda: torch.tensor(2.0)),
    ],
    ids=["int", "float", "numpy scalar", "numpy array", "tensor with a gradient", "tensor of one", "spread tensor"],
)
def test_a_loss_is_any_one_number(loss: Any) -> None:
    watch = Watch()
    watch.report(np.int64(0), loss, loss, other=loss)
    assert watch.record().initial_loss == 2.0


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ({"step": 1.0, "loss": 1.0}, "step must be a whole number, not 1.0"),
        ({"step": 0, "loss": "1.0"}, "loss must be a number, not '1.0'"),
        ({"step": 0, "loss": None}, "loss must be a number, not None"),
        ({"step": 0, "loss": torch.ones(2)}, r"loss must be one number, not an array of shape \(2,\)"),
        ({"step": 0, "loss": 1.0, "grad_norm": np.ones((2, 1))}, r"grad_norm must be one number.*\(2, 1\)"),
        ({"step": 0, "loss": 1.0, "lr": "high"}, "lr must be a number, not 'high'"),
    ],
)
def test_what_is_no_number_is_refused(report: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Watch().report(**report)


def test_a_metric_cannot_take_the_name_of_what_is_always_there() -> None:
    with pytest.raises(TypeError, match="multiple values for argument 'loss'"):
        Watch().report(0, 1.0, **{"loss": 2.0})


@pytest.mark.parametrize("step", [4, 5])
def test_steps_must_increase(step: int) -> None:
    watch = Watch()
    watch.report(5, 1.0)
    with pytest.raises(ValueError, match=f"step {step} was reported after step 5: steps must increase"):
        watch.report(step, 1.0)


def test_a_sweep_says_what_to_train_and_how_to_stop(trial: MakeTrial, tmp_path: Path) -> None:
    trial()
    watch = Watch(StoppingConfig(early_stop=False))
    assert (watch.is_run_by_sweep, watch.config, watch.folder, watch.seed, watch.steps) == (
        True, {"lr": 0.1}, tmp_path, 3, 300,
    )  # fmt: skip
    sweeps_own = Watch(SWEEP_STOPPING)
    assert feed(watch, LOST) == feed(sweeps_own, LOST) is not None


def test_each_report_is_a_row_for_the_sweep(trial: MakeTrial) -> None:
    path = trial()
    watch = Watch()
    watch.report(0, 3.0, 0.5, lr=torch.tensor(0.25))
    watch.report(1, 2.0)
    watch.report(2, math.nan, math.inf)
    assert path.read_text() == (
        '{"step": 0, "loss": 3.0, "grad_norm": 0.5, "lr": 0.25}\n'
        '{"step": 1, "loss": 2.0}\n'
        '{"step": 2, "loss": NaN, "grad_norm": Infinity}\n'
    )


def test_a_row_is_one_write_at_the_end_of_the_file(trial: MakeTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trial()
    watch = Watch()
    flags, written = [], []
    real_open, real_write = os.open, os.write
    monkeypatch.setattr(os, "open", lambda name, flag, mode: flags.append(flag) or real_open(name, flag, mode))
    monkeypatch.setattr(os, "write", lambda handle, line: written.append(line) or real_write(handle, line))
    watch.report(0, 3.0)
    path.write_text(path.read_text() + '{"step": 1, "loss": 2.0}\n')
    watch.report(2, 1.0)
    assert all(flag & os.O_APPEND and flag & os.O_CREAT for flag in flags)
    assert len(written) == 2
    assert [row["step"] for row in read_rows(path)] == [0, 1, 2]


@pytest.mark.parametrize("stop", [80, 170, 295])
def test_a_later_attempt_goes_on_as_if_there_had_been_one(trial: MakeTrial, stop: int) -> None:
    path = trial()
    whole = Watch(SWEEP_STOPPING)
    stopped_at = feed(whole, SPIKED)
    path.unlink()

    feed(Watch(), SPIKED[:stop])
    resumed = Watch()
    assert resumed.record().num_steps == stop
    assert feed(resumed, SPIKED[stop - 30 :], first=stop - 30) == stopped_at
    assert resumed.record() == whole.record()
    assert [row["step"] for row in read_rows(path)] == list(range(300))


def test_an_attempt_that_goes_on_must_report_steps_that_increase_after_the_earlier_ones(trial: MakeTrial) -> None:
    trial()
    feed(Watch(), [3.0, 2.0])
    watch = Watch()
    for step in (1, 0, 1, 2):
        watch.report(step, 1.0)
    with pytest.raises(ValueError, match="after step 2"):
        watch.report(2, 1.0)


def test_a_run_that_an_earlier_attempt_lost_is_lost_from_the_start(trial: MakeTrial) -> None:
    trial()
    feed(Watch(), [3.0, math.nan])
    watch = Watch()
    assert watch.is_lost
    assert watch.report(0, 3.0)


def test_an_audited_run_is_lost_only_where_it_is_not_finite(trial: MakeTrial) -> None:
    trial(is_audited=True, stopping={"patience": 5})
    watch, losses = Watch(), learning(300, changes=[(100, 300, 5.0)])
    assert feed(watch, losses) is None
    assert watch.record().lost == "far"
    assert watch.report(300, math.nan)
    assert watch.is_lost


def test_a_row_that_a_crash_cut_short_is_written_again(trial: MakeTrial) -> None:
    path = trial()
    path.write_text('{"step": 0, "loss": 3.0}\n{"step": 1, "lo')
    watch = Watch()
    assert watch.record().num_steps == 1
    watch.report(1, 2.0)
    watch.report(2, 1.0)
    assert [(row["step"], row["loss"]) for row in read_rows(path)] == [(0, 3.0), (1, 2.0), (2, 1.0)]


def test_rows_that_cannot_be_written_are_an_error(trial: MakeTrial, tmp_path: Path) -> None:
    trial(rows=str(tmp_path / "gone" / "rows.jsonl"))
    with pytest.raises(StorageError, match=r"gone/rows\.jsonl: No such file"):
        Watch().report(0, 1.0)


def test_a_disk_that_takes_half_a_row_is_an_error(trial: MakeTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trial()
    watch, real_write = Watch(), os.write
    monkeypatch.setattr(os, "write", lambda handle, line: real_write(handle, line[:5]))
    with pytest.raises(StorageError, match="no room for a row"):
        watch.report(0, 1.0)
    monkeypatch.undo()
    assert read_rows(path) == []


def test_only_rank_0_writes(trial: MakeTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trial()
    monkeypatch.setenv("RANK", "1")
    assert feed(Watch(), [3.0, math.nan]) == 1
    assert not path.exists()
    monkeypatch.setenv("RANK", "0")
    feed(Watch(), [3.0])
    assert len(read_rows(path)) == 1


def test_a_watch_can_be_sent_to_another_process(trial: MakeTrial) -> None:
    path = trial()
    watch = Watch()
    watch.report(0, 3.0)
    copy = pickle.loads(pickle.dumps(watch))
    copy.report(1, 2.0)
    assert copy.record().num_steps == len(read_rows(path)) == 2


def test_a_trial_that_is_not_one_is_told_with_its_file(
    trial: MakeTrial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial(stopping={"patience": -1})
    with pytest.raises(InputError, match=r"trial\.json: stopping\.patience: .*greater than or equal to 1"):
        Watch()
    (tmp_path / "trial.json").write_text("{")
    with pytest.raises(InputError, match="Invalid JSON"):
        Watch()
    monkeypatch.setenv(TRIAL_VARIABLE, str(tmp_path / "none.json"))
    with pytest.raises(InputError, match=r"none\.json: SWEEP_TRIAL: No such file[^$]*unset it for a run of your own"):
        Watch()


def test_a_rising_gradient_norm_is_a_note_at_its_step_and_no_verdict() -> None:
    watch, quiet = Watch(), Watch(norm_rises=False)
    notes = {}
    for step, loss in enumerate(learning(400)):
        norm = 1.0 if step < 200 else 2.0
        assert not watch.report(step, loss, norm)
        quiet.report(step, loss, norm)
        assert quiet.note is None
        if watch.note is not None:
            notes[step] = watch.note
    assert notes == {209: "the gradient norm has risen by half against its last 128 steps, at step 209"}
    assert watch.record().norm_rises == (209,)
    assert watch.verdict().outcome == "stable"


@pytest.fixture
def loop():
    """A regression, its optimizer, and its loss."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    x = torch.linspace(-math.pi, math.pi, 64)[:, None]

    def loss() -> torch.Tensor:
        return (model(x) - torch.sin(x)).square().mean()

    return model, torch.optim.Adam(model.parameters(), lr=1e-2), loss


def train(watch: Watch, loop, num_steps: int) -> None:
    _, optimizer, loss = loop
    for step in range(num_steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        watch.report(step, value)


def test_two_lines_give_the_risk_of_a_run_with_its_curvature(loop) -> None:
    model, optimizer, loss = loop
    watch = Watch()
    watch.telemetry(model, optimizer, loss, every=5, curvature=25)
    train(watch, loop, 60)
    assert watch.risk is not None
    assert watch.risk.step == 55
    assert 0 < watch.risk.risk < 1
    assert "lambda_max" not in watch.readings  # step 55 is none of the 25th
    assert watch.readings["grad_norm/all"] > 0


def test_the_curvature_is_measured_when_it_is_due(loop) -> None:
    model, optimizer, loss = loop
    watch = Watch()
    watch.telemetry(model, optimizer, loss, every=5, curvature=25)
    train(watch, loop, 51)
    assert watch.readings["lambda_max"] > 0


def test_forward_passes_give_the_risk_and_readings_have_what_any_monitor_has(loop) -> None:
    model, optimizer, loss = loop
    watch = Watch()
    watch.telemetry(model, optimizer, loss, every=5, curvature=25, by="forwards")
    train(watch, loop, 51)
    assert watch.readings["lambda_crit"] > 0
    assert watch.readings["nonfinite_share"] == 0
    assert watch.readings["peak_memory"] > 1
    assert 0 < watch.risk.risk < 1


def test_an_unknown_way_to_measure_is_refused(loop) -> None:
    model, optimizer, loss = loop
    with pytest.raises(ValueError, match="'products' or 'forwards'"):
        Watch().telemetry(model, optimizer, loss, by="guesses")


def test_without_a_closure_the_risk_comes_from_the_cheap_readings(loop) -> None:
    model, optimizer, _ = loop
    watch = Watch()
    watch.telemetry(model, optimizer)
    train(watch, loop, 60)
    assert watch.risk is not None
    assert not [name for name in watch.readings if name.startswith("lambda")]


def test_a_warning_stands_while_its_alarm_does(loop, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from orchestrator.detection.warning import monitor

    always = replace(monitor.model_for(None), threshold=0.0)
    monkeypatch.setattr(monitor, "model_for", lambda every, has_largest: always)
    model, optimizer, _ = loop
    watch = Watch()
    watch.telemetry(model, optimizer)
    assert watch.warning is None
    train(watch, loop, 3)
    assert watch.warning is not None
    assert "of an instability within 50 steps" in watch.warning


def test_a_watch_without_telemetry_has_no_risk() -> None:
    watch = Watch()
    watch.report(0, 1.0)
    assert (watch.risk, watch.warning, watch.readings) == (None, None, {})


def test_a_second_call_replaces_the_first(loop) -> None:
    model, optimizer, loss = loop
    watch = Watch()
    watch.telemetry(model, optimizer, loss)
    watch.telemetry(model, optimizer)
    train(watch, loop, 11)
    assert not [name for name in watch.readings if name.startswith("lambda")]
