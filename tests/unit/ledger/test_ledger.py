import json
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
from sweep_cases import finished, ledger_at, record, sweep_of

from objectives.base import Objective, TrainingConfig, per_member, structural
from orchestrator.base.errors import StorageError
from orchestrator.base.packs import Checkpoint, Member, Pack, Report
from orchestrator.base.trial_result import MemberResult
from orchestrator.driver.packing import pack_of
from orchestrator.ledger.facts import PackedObjective, packed_fact, packed_from_fact
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter

THREE = "axes: {lr: {values: [0.1, 0.2, 0.3]}}\n"
SIX = "seeds: [0, 1]\naxes: {lr: {values: [0.1, 0.2, 0.3]}}\n"
LABELS = ["stable", "diverged", "spiked", "errored", "planned", "stable"]


def begin(ledger: LedgerWriter, sweep, trials=None):
    # One pack, whatever widths were measured on a busy machine.
    pack = pack_of(sweep, [Member(t.trial_id, t.config, t.seed) for t in trials or sweep.trials], sweep.steps)
    ledger.start_pack(pack, "test")
    return pack


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[LedgerWriter, Pack]]:
    """The ledger of one trial that trains, and its pack."""
    with ledger_at(tmp_path) as ledger:
        ledger.plan("quadratic", sweep_of("").trials, {})
        yield ledger, begin(ledger, sweep_of(""))


def report(pack, **changes) -> Report:
    return Report(**({"pack_id": pack.pack_id, "member_steps": 5, "steps_in_hand": 5, "seconds": 1.0} | changes))


def test_planning_twice_changes_nothing_and_a_removed_cell_stays_outside_the_map(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(THREE), ["stable", "diverged", "planned"])
        rows = ledger.trials()
        ledger.plan("quadratic", sweep_of(THREE).trials, {})
        assert ledger.trials() == rows
        fewer = sweep_of("axes: {lr: {values: [0.2, 0.4]}}\n")
        ledger.plan("quadratic", fewer.trials, {})
        assert [(row.cell["lr"], row.status) for row in ledger.trials()] == [(0.2, "finished"), (0.4, "planned")]
        assert len(ledger.trials(removed=True)) == 4


def test_curves_come_back_as_they_were_in_one_piece_with_what_is_not_finite(
    running: tuple[LedgerWriter, Pack],
) -> None:
    ledger, pack = running
    loss = np.array([1.0, np.inf, -np.inf, np.nan, 5e-324, 1 / 3])
    for low, high in ((0, 2), (2, 6)):
        piece = {"step": np.arange(low, high), "loss": loss[low:high]}
        ledger.record(report(pack, traces={pack.trial_ids[0]: piece}))
    found = ledger.trace(pack.trial_ids[0])
    np.testing.assert_array_equal(found["loss"], loss)
    np.testing.assert_array_equal(found["step"], np.arange(6))
    begin(ledger, sweep_of(""))
    assert ledger.trace(pack.trial_ids[0]) == {}, "a new attempt begins a new curve"


def test_some_columns_of_a_curve_are_those_of_the_whole(running: tuple[LedgerWriter, Pack]) -> None:
    ledger, pack = running
    for low, names in ((0, ["loss", "lr"]), (3, ["loss", "grad_norm"])):
        piece = {"step": np.arange(low, low + 3), **{name: np.full(3, low + len(name)) for name in names}}
        ledger.record(report(pack, traces={pack.trial_ids[0]: piece}))
    whole = ledger.trace(pack.trial_ids[0])
    for columns in ((), ("grad_norm",), ("lr", "loss"), ("other",)):
        kept = {name: values for name, values in whole.items() if name in ("step", *columns)}
        np.testing.assert_equal(ledger.trace(pack.trial_ids[0], columns), kept)


def test_every_field_of_a_result_comes_back(running: tuple[LedgerWriter, Pack]) -> None:
    lists = {"episodes": ((1, 2), (5, None)), "norm_rises": (4, 8), "fired": ({"step": 3},), "rung_losses": (1.5, 1.25)}
    samples = {"str": "text", "str | None": "text", "int | None": 3, "float | None": 0.25, "bool": True}
    values = {field.name: lists.get(field.name) or samples[str(field.type)] for field in fields(MemberResult)}
    ledger, pack = running
    result = MemberResult(**{**values, "trial_id": pack.trial_ids[0], "outcome": "spiked"})
    ledger.record(report(pack, finished=(result,)))
    (row,) = ledger.trials()
    assert {field.name: getattr(row, field.name) for field in fields(MemberResult)} == asdict(result)


def test_numbers_that_are_not_finite_become_null_with_a_reason(running: tuple[LedgerWriter, Pack]) -> None:
    ledger, pack = running
    bad = finished(pack.trial_ids[0], "diverged", final_loss=float("nan"), peak_loss=float("inf"))
    ledger.record(report(pack, finished=(bad,)))
    (row,) = ledger.trials()
    assert (row.final_loss, row.peak_loss, row.reason) == (None, None, "because")


def test_reports_of_a_pack_that_no_longer_owns_a_trial_are_ignored(running: tuple[LedgerWriter, Pack]) -> None:
    ledger, zombie = running
    ledger.end_pack(zombie.pack_id, "lost", "lost", "it was killed")
    heir = begin(ledger, sweep_of(""))
    curve = {"step": np.arange(2), "loss": np.ones(2)}
    late = report(zombie, finished=(finished(zombie.trial_ids[0], "stable"),), traces={zombie.trial_ids[0]: curve})
    ledger.record(late)
    (row,) = ledger.trials()
    assert (row.status, row.pack_id, row.num_attempts) == ("running", heir.pack_id, 2)
    assert ledger.trace(row.trial_id) == {}


def test_a_collapse_is_read_from_the_readings_of_all_reports_also_by_another_driver(tmp_path: Path) -> None:
    def readings(first: int, gini: float) -> dict[str, np.ndarray]:
        return {"step": np.arange(first, first + 5), "router_gini": np.full(5, gini)}

    with ledger_at(tmp_path) as ledger:
        ledger.plan("quadratic", sweep_of("").trials, {})
        pack = begin(ledger, sweep_of(""))
        (trial_id,) = pack.trial_ids
        ledger.record(report(pack, telemetry={trial_id: readings(0, 0.1)}))
        ledger.record(report(pack, telemetry={trial_id: readings(5, 0.7)}))
        last = {"step": np.array([10]), "validation_loss": np.array([1.0])}
        ledger.record(report(pack, telemetry={trial_id: last}))
    with ledger_at(tmp_path) as ledger:
        ledger.record(report(pack, finished=(finished(trial_id, "stable"),)))
        assert ledger.trial(trial_id).collapsed_step == 5
        assert ledger.endings() == {trial_id: "collapsed"}


def test_what_a_dead_driver_left_running_is_lost_and_results_stay(tmp_path: Path) -> None:
    sweep = sweep_of(THREE)
    with ledger_at(tmp_path) as ledger:
        ledger.plan("quadratic", sweep.trials, {})
        pack = begin(ledger, sweep)
        ledger.record(report(pack, finished=(finished(pack.trial_ids[0], "stable"),)))
        assert ledger.release_abandoned() == 2
        assert [row.status for row in ledger.trials()] == ["finished", "lost", "lost"]
        assert ledger.packs()[0].ended == "lost"


def test_speed_is_that_of_one_worker_over_all_packs(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        assert ledger.member_steps_per_second() is None
        record(ledger, sweep_of(THREE), ["stable"] * 3)
        assert ledger.member_steps_per_second() == 40.0


def test_a_file_that_is_no_ledger_is_a_storage_fault_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database at all" * 50)
    with pytest.raises(StorageError, match=r"ledger\.db"):
        ledger_at(tmp_path)
    with pytest.raises(StorageError, match=r"missing\.db"):
        LedgerReader(tmp_path / "missing.db")


def test_what_happens_to_a_pack_never_reads_all_trials(tmp_path: Path) -> None:
    sweep = sweep_of(THREE)
    statements: list[str] = []
    with ledger_at(tmp_path) as ledger:
        ledger.plan("quadratic", sweep.trials, {})
        ledger._db.set_trace_callback(statements.append)
        pack = begin(ledger, sweep)
        done = finished(pack.trial_ids[0], "stable")
        curve = {"step": np.arange(2), "loss": np.ones(2)}
        checkpoint = Checkpoint(b"", dict.fromkeys(pack.trial_ids, 2))
        told = report(pack, finished=(done,), traces={pack.trial_ids[0]: curve}, checkpoint=checkpoint)
        ledger.record(told, ("a.pt", "0" * 64))
        ledger.end_pack(pack.pack_id, "lost", "lost", "it was killed", waited=[pack.trial_ids[1]])
        ledger._db.set_trace_callback(None)
        asked = [text for text in statements if text.split()[0] in ("SELECT", "UPDATE", "DELETE", "INSERT")]
        steps = [(row[3], text) for text in asked for row in ledger._db.execute(f"EXPLAIN QUERY PLAN {text}")]
        assert ledger.checkpoint_names() == {"a.pt"}
    assert len(asked) > 10
    assert [step for step in steps if step[0].startswith("SCAN trials")] == []


def test_statuses_and_outcomes_are_those_of_the_rows(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(SIX), LABELS)
        rows = ledger.trials()
        assert ledger.endings() == {row.trial_id: row.outcome for row in rows if row.outcome}
        assert list(ledger.statuses()) == [row.trial_id for row in rows]
        ledger.plan("quadratic", sweep_of(SIX).trials[2:], {})
        for removed in (False, True):
            rows = ledger.trials(removed=removed)
            expected = {row.trial_id: (row.status, row.num_attempts) for row in rows}
            assert ledger.statuses(removed=removed) == expected
            assert len(rows) == 6 - 2 * (not removed)


class OwnConfig(TrainingConfig):
    """A model of somebody's."""

    batch_size: int = structural(2, "points", "points per step", ge=1)
    qk_norm: bool = structural(False, "switch", "normed queries and keys", off=True)
    penalty: float = per_member(0.0, "1", "a penalty", off=True, ge=0)
    shape: tuple[str, ...] = structural((), "words", "a shape", off=True)


OWN = Objective("own", OwnConfig, "own", spike_rise=0.1, can_compile=False, layer_groups=("a", "b"), has_logits=True)


def test_the_facts_of_an_objective_survive_the_ledger_with_the_fields_that_are_off() -> None:
    known = packed_from_fact(packed_fact(OWN))
    assert (known.layer_groups, known.has_logits, known.data_fields) == (("a", "b"), True, ("batch_size",))
    assert {name: known.features[name] for name in ("qk_norm", "penalty", "shape")} == {
        "qk_norm": False, "penalty": 0.0, "shape": (),
    }  # fmt: skip
    assert "batch_size" not in known.features
    assert not known.is_full_batch
    assert packed_from_fact(packed_fact(replace(OWN, is_full_batch=lambda settings: True))).is_full_batch
    assert packed_from_fact(json.dumps({**json.loads(packed_fact(OWN)), "features": {}})) == PackedObjective(
        ("a", "b"), True, ("batch_size",), {}
    )


@pytest.mark.parametrize("text", ["", "[", "{}", "[]", "null", '{"layer_groups": 1}'])
def test_facts_that_are_damaged_raise_what_a_reader_reports_as_damage(text: str) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        packed_from_fact(text)


def test_texts_that_all_trials_have_are_in_memory_once(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(SIX), LABELS)
        first, second, *_ = ledger.trials()
    assert first.objective is second.objective
    assert first.status is second.status
    assert all(one is other for one, other in zip(first.cell, second.cell, strict=True))
    assert all(one is other for one, other in zip(first.config, second.config, strict=True))


def test_a_reader_sees_one_state_while_a_run_writes(tmp_path: Path) -> None:
    sweep = sweep_of("axes: {lr: {values: [0.1]}}\n")
    with ledger_at(tmp_path) as ledger:
        with LedgerReader(ledger.path) as reader:
            assert reader.statuses() == {}
            record(ledger, sweep, ["stable"])
            assert reader.trials() == []
        with LedgerReader(ledger.path) as reader:
            assert len(reader.trials()) == 1


def test_what_is_recorded_together_is_committed_at_once_or_not_at_all(tmp_path: Path) -> None:
    """The disk is waited for at each commit: a hundred workers report faster than that."""
    sweep = sweep_of(THREE)

    def committed() -> set[str]:
        with LedgerReader(ledger.path) as reader:
            return {status for status, _ in reader.statuses().values()}

    def fail_after_planning() -> None:
        with ledger.together():
            ledger.plan("quadratic", sweep_of(SIX).trials, {})
            raise RuntimeError

    with ledger_at(tmp_path) as ledger:
        ledger.plan("quadratic", sweep.trials, {})
        with ledger.together():
            pack = begin(ledger, sweep)
            for trial_id in pack.trial_ids:
                ledger.record(report(pack, finished=(finished(trial_id, "stable"),)))
            assert committed() == {"planned"}
            assert {status for status, _ in ledger.statuses().values()} == {"finished"}
        assert committed() == {"finished"}
        with pytest.raises(RuntimeError):
            fail_after_planning()
        assert len(ledger.statuses()) == 3
        ledger.plan("quadratic", sweep_of(SIX).trials, {})
        assert committed() == {"finished", "planned"}
