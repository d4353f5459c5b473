"""What a worker reads of its members, when, and how it becomes tables."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pack_cases import pack_with
from tiers import one_of

from objectives.base import OBJECTIVES, Objective
from orchestrator.base.packs import Pack, Telemetry, Trace
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import NEVER, SpikeDetector
from orchestrator.worker import run as worker
from orchestrator.worker.members import (
    CLOSE,
    CLOSE_EVERY,
    UPDATE_STEPS,
    as_table,
    closely_due,
    due,
    readings_of_row,
    readings_on_host,
)
from orchestrator.worker.packed_run import Pace

READ = Telemetry(every=10, curvature=20, products=2)


def tables(pack: Pack, pace: Pace | None = None) -> dict[str, Trace]:
    """Telemetry of every trial, joined over the reports."""
    pieces: dict[str, list[Trace]] = {}
    for report in worker.run_pack(pack, pace=pace or Pace()):
        assert report.error is None, report.error
        for trial_id, table in report.telemetry.items():
            pieces.setdefault(trial_id, []).append(table)
    names = {trial_id: dict.fromkeys(name for table in found for name in table) for trial_id, found in pieces.items()}
    return {
        trial_id: {
            name: np.concatenate([t.get(name, np.full(len(t["step"]), np.nan)) for t in found])
            for name in names[trial_id]
        }
        for trial_id, found in pieces.items()
    }


def curves(pack: Pack) -> dict[str, list[Trace]]:
    found: dict[str, list[Trace]] = {}
    for report in worker.run_pack(pack):
        for trial_id, trace in report.traces.items():
            found.setdefault(trial_id, []).append(trace)
    return found


def test_a_member_is_read_at_every_nth_of_its_own_steps() -> None:
    found = due(np.array([0, 3, 17]), 5, 4)
    assert [np.flatnonzero(column).tolist() for column in found.T] == [[0, 4], [1], [3]]
    assert not due(np.array([0, 3]), 5, None).any()


def test_the_first_steps_are_read_more_often() -> None:
    (column,) = closely_due(np.array([0]), np.array([NEVER]), 120, 20).T
    assert np.flatnonzero(column).tolist() == list(range(0, CLOSE, CLOSE_EVERY))
    assert not closely_due(np.array([0]), np.array([NEVER]), 120, 2).any(), "that is often enough"
    assert not closely_due(np.array([0]), np.array([NEVER]), 120, None).any()


def test_a_member_is_read_more_often_after_its_loss_has_left_its_trend() -> None:
    (column, other) = closely_due(np.array([100, 100]), np.array([103, NEVER]), 100, 20).T
    assert (100 + np.flatnonzero(column)).tolist() == list(range(115, 103 + UPDATE_STEPS + CLOSE, CLOSE_EVERY))
    assert not other.any()


def test_the_steps_of_the_readings_do_not_depend_on_how_often_a_pack_is_looked_at(tmp_path: Path) -> None:
    # A text of its own, easily learned: that of the standard library depends on the version of Python.
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {i}: the {i % 7}th of {i % 11}\n" for i in range(2000)))
    both = {"lr": 1e-2, "batch_size": 16, "text": (str(text),)}
    changes = [both, {**both, "burst_at": 120, "burst_length": 6}]
    pack = replace(pack_with("gpt", changes, 2, [0, 1], steps=220), telemetry=Telemetry(every=20))
    usual = {*range(0, CLOSE, CLOSE_EVERY), *range(0, 220, 20)}
    detector = SpikeDetector(config=StoppingConfig(**pack.stopping))
    for loss in np.concatenate([pieces["loss"] for pieces in curves(pack)["trial1"]]):
        detector.update(loss)
    (since,) = detector.left_step.tolist()
    assert 120 <= since < 130
    close = {step for step in range(since + UPDATE_STEPS, since + UPDATE_STEPS + CLOSE) if step % CLOSE_EVERY == 0}
    for update_steps in (1, UPDATE_STEPS):
        calm, left = tables(pack, Pace(update_steps=update_steps)).values()
        assert calm["step"].tolist() == sorted(usual)
        assert left["step"].tolist() == sorted(usual | close)


def test_points_of_a_member_become_columns_with_holes_where_nothing_was_read() -> None:
    table = as_table([(0, {"a": 1.0, "b": 2.0}), (5, {"a": 3.0})])
    assert table["step"].tolist() == [0, 5]
    np.testing.assert_array_equal(table["b"], np.array([2.0, np.nan], dtype=np.float32))


def test_readings_of_different_rows_and_names_come_over_together() -> None:
    readings = readings_on_host(
        [(0, [0, 2], {"a": np.array([1.0, 2.0])}), (3, [2], {"a": np.array([4.0]), "b": np.array([5.0])})]
    )
    assert readings_of_row(readings, 2) == [(0, {"a": 2.0}), (3, {"a": 4.0, "b": 5.0})]
    assert readings_of_row(readings, 1) == []


@pytest.mark.parametrize("objective", one_of(3, ["gpt", "function_fit", "quadratic"]))
def test_a_trial_is_read_alike_whoever_shares_its_pack_and_whenever_it_joins(objective: str) -> None:
    changes = [{"lr": 1e-3}, {"lr": 1e-2}, {"lr": 3e-2}, {"lr": 1e-2, "clip": 1e-2}]
    pack = replace(pack_with(objective, changes, 2, [0, 1, 2, 3]), telemetry=READ)
    together = tables(pack)
    for member in pack.members:
        (alone,) = tables(replace(pack, members=(member,), width=1)).values()
        found = together[member.trial_id]
        assert found["step"].tolist() == alone["step"].tolist() == list(range(0, 40, CLOSE_EVERY))
        assert found["step"][np.isfinite(found["lambda_max"])].tolist() == [0, 20]
        for name in alone:
            np.testing.assert_allclose(found[name], alone[name], rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("objective", ["gpt", "function_fit", "quadratic"])
def test_the_curvature_by_forward_passes_is_read_when_it_is_due(objective: str) -> None:
    pack = pack_with(objective, [{"lr": 1e-2}, {"lr": 3e-2}], 2, [0, 1])
    read = tables(replace(pack, telemetry=replace(READ, by="forwards")))
    for member in pack.members:
        found = read[member.trial_id]
        assert found["step"][np.isfinite(found["curvature_threshold"])].tolist() == [0, 20]
        assert np.isfinite(found["lambda_crit"]).any()
        assert "lambda_max" not in found


@pytest.mark.parametrize("objective", ["gpt", "function_fit", "quadratic"])
def test_reading_changes_no_bit_of_a_curve(objective: str) -> None:
    changes = [{"lr": 1e-2}, {"lr": 3e-2}, {"lr": 3e-2, "clip": 0.05}, {"lr": 3e-2, "clip": 50.0}]
    pack = pack_with(objective, changes, 3, [0, 1, 1, 1])
    plain, read = (curves(replace(pack, telemetry=telemetry)) for telemetry in (Telemetry(), READ))
    for trial_id, pieces in plain.items():
        for name in pieces[0]:
            expected, found = (np.concatenate([p[name] for p in c[trial_id]]) for c in (plain, read))
            np.testing.assert_array_equal(found, expected, err_msg=name)


def test_nothing_is_read_after_the_verdict() -> None:
    pack = pack_with("quadratic", [{"lr": 1e-2}, {"lr": 1e3, "beta1": 0.0, "noise": 0.0}], 2, [0, 0], steps=200)
    found = tables(replace(pack, telemetry=Telemetry(every=1)))
    curve = curves(pack)["trial1"]
    assert found["trial1"]["step"][-1] == curve[-1]["step"][-1] < 199
    assert found["trial0"]["step"][-1] == 199


def test_every_nth_step_of_a_curve_is_kept_and_the_last() -> None:
    pack = pack_with("quadratic", [{"lr": 1e-2}, {"lr": 1e3, "beta1": 0.0, "noise": 0.0}], 2, [0, 0], steps=100)
    whole, thin = (curves(replace(pack, telemetry=Telemetry(curves=n))) for n in (1, 7))
    for trial_id in whole:
        step, loss = (np.concatenate([piece[name] for piece in whole[trial_id]]) for name in ("step", "loss"))
        kept = sorted({*range(0, len(step), 7), len(step) - 1})
        np.testing.assert_array_equal(np.concatenate([p["step"] for p in thin[trial_id]]), step[kept])
        np.testing.assert_array_equal(np.concatenate([p["loss"] for p in thin[trial_id]]), loss[kept])


def test_a_trainer_that_reads_nothing_is_trained_all_the_same(monkeypatch) -> None:
    class Plain:
        """Everything of a trainer but observed_step."""

        def __init__(self, trainer) -> None:
            for name in ("step", "arrange", "validate", "describe", "state_dict", "load_state_dict", "close"):
                setattr(self, name, getattr(trainer, name))
            self.num_members = trainer.num_members

    start = Objective.start
    monkeypatch.setattr(
        Objective, "start", lambda self, *arguments, **options: Plain(start(self, *arguments, **options))
    )
    pack = replace(pack_with("quadratic", [{"lr": 1e-2}], 1, [0]), telemetry=READ)
    assert tables(pack) == {}
    assert OBJECTIVES["quadratic"].name == pack.objective
