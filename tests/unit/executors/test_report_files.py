"""Reports as files of JSON."""

import contextlib
import dataclasses
import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from orchestrator.base.errors import InputError
from orchestrator.base.packs import Checkpoint, Completed, Failed, Lost, OutOfMemory, Paused, Refused, Report
from orchestrator.base.trial_result import MemberResult
from orchestrator.executors.slurm_cluster import read_options
from orchestrator.executors.slurm_worker import report_as_text, report_from_text

words = st.text(max_size=8)
numbers = st.floats(width=64)
maybe = st.none() | st.floats(allow_nan=False)
counts = st.integers(0, 2**40)


@st.composite
def curves(draw) -> dict[str, np.ndarray]:
    steps = draw(st.lists(st.integers(0, 2**50), max_size=4))
    columns = {
        name: np.array(draw(st.lists(numbers, min_size=len(steps), max_size=len(steps))), dtype=float)
        for name in draw(st.lists(words.filter(lambda name: name != "step"), max_size=3, unique=True))
    }
    return {"step": np.array(steps, dtype=np.int64), **columns}


changes = st.fixed_dictionaries({"at": counts}, optional={"set": st.dictionaries(words, maybe | words, max_size=2)})


def results() -> st.SearchStrategy[MemberResult]:
    return st.builds(
        MemberResult, trial_id=words, outcome=words, onset_step=st.none() | counts, num_spikes=counts,
        steps_done=counts, initial_loss=maybe, best_loss=maybe, final_loss=maybe, peak_loss=maybe,
        validation_loss=maybe, reason=words, verdict_step=st.none() | counts, is_audited=st.booleans(),
        episodes=st.lists(st.tuples(counts, st.none() | counts), max_size=3).map(tuple),
        fired=st.lists(st.fixed_dictionaries({"step": counts, "value": maybe, "did": changes}), max_size=2).map(tuple),
    )  # fmt: skip


waited = st.lists(words, max_size=2).map(tuple)
endings = st.one_of(
    st.builds(Completed), st.builds(Paused, words, st.booleans()), st.builds(Failed, words, waited, st.booleans()),
    st.builds(OutOfMemory, words, counts, waited), st.builds(Refused, words), st.builds(Lost, words, st.booleans()),
)  # fmt: skip
reports = st.builds(
    Report, words, counts, counts, st.floats(0, 1e9),
    traces=st.dictionaries(words, curves(), max_size=2),
    finished=st.lists(results(), max_size=2).map(tuple),
    ending=st.none() | endings,
    environment=st.dictionaries(words, words, max_size=2),
    checkpoint=st.none() | st.builds(Checkpoint, st.binary(max_size=20), st.dictionaries(words, counts, max_size=2)),
    at_a_time=counts, is_from_start=st.booleans(),
)  # fmt: skip


def assert_equal_reports(report: Report, other: Report) -> None:
    assert replace(report, traces={}) == replace(other, traces={})
    assert report.traces.keys() == other.traces.keys()
    for trial_id, curve in report.traces.items():
        assert list(curve) == list(other.traces[trial_id])
        for name, values in curve.items():
            found = other.traces[trial_id][name]
            assert values.dtype == found.dtype
            np.testing.assert_array_equal(values, found)


@settings(max_examples=examples(60))
@given(reports)
def test_a_report_comes_back_from_its_file_as_it_was(report: Report) -> None:
    assert_equal_reports(report_from_text(report_as_text(report)), report)


@settings(max_examples=examples(60))
@given(reports, st.data())
def test_a_damaged_report_is_a_value_error_or_a_report(report: Report, data: st.DataObject) -> None:
    text = report_as_text(report)
    start = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:start] + data.draw(st.sampled_from(["", "7", "null", '"', "[", "{}"])) + text[start + 1 :]
    with contextlib.suppress(ValueError):
        assert isinstance(report_from_text(damaged), Report)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.pop("ending"),
        lambda r: r.update(more=1),
        lambda r: r.update(member_steps="3"),
        lambda r: r.update(member_steps=True),
        lambda r: r.update(seconds=10**400),
        lambda r: r.update(finished={}),
        lambda r: r["traces"]["t"].update(step=[1.5]),
        lambda r: r["traces"]["t"].update(step=[2**70]),
        lambda r: r["traces"]["t"].update(loss=[1.0, 2.0]),
        lambda r: r["traces"]["t"].update(loss=["nan"]),
        lambda r: r["traces"]["t"].pop("step"),
        lambda r: r["checkpoint"].update(content="?"),
        lambda r: r.update(ending={}),
        lambda r: r.update(ending="Completed"),
        lambda r: r.update(ending={"kind": "Report"}),
        lambda r: r.update(ending={"kind": ["Lost"], "error": "?"}),
        lambda r: r.update(ending={"kind": "Completed", "error": "?"}),
        lambda r: r.update(ending={"kind": "Lost", "error": None}),
    ],
)
def test_what_is_not_whole_is_refused(change: Callable) -> None:
    trace = {"step": np.array([1]), "loss": np.array([np.nan])}
    plain = json.loads(report_as_text(Report("p", 1, 1, 1.0, traces={"t": trace}, checkpoint=Checkpoint(b"a", {}))))
    change(plain)
    with pytest.raises(ValueError, match="report"):
        report_from_text(json.dumps(plain))
    with pytest.raises(ValueError, match="nested"):
        report_from_text("[" * 100_000)


def test_lists_in_what_rules_did_are_refused() -> None:
    done = MemberResult(trial_id="t", outcome="stable", fired=({"step": 1, "did": {"at": 2}},))
    plain = json.loads(report_as_text(Report("p", 1, 1, 1.0, finished=(done,))))
    assert report_from_text(json.dumps(plain)).finished == (done,)
    plain["finished"][0]["fired"][0]["did"]["at"] = [2]
    with pytest.raises(ValueError, match=r"report.finished.0.fired.0.did: .* is not valid here"):
        report_from_text(json.dumps(plain))


def test_every_field_of_a_report_is_in_its_file() -> None:
    names = {field.name for field in dataclasses.fields(Report)}
    assert json.loads(report_as_text(Report("p", 0, 0, 0.0))).keys() == names


def test_options_are_read_from_the_command_line() -> None:
    assert read_options(["partition=gpu", "mem-gb=4", "comment=a=b"]) == {
        "partition": "gpu", "mem_gb": "4", "comment": "a=b",
    }  # fmt: skip
    with pytest.raises(InputError, match="'partition' is not KEY=VALUE"):
        read_options(["partition"])


def test_without_submitit_what_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    monkeypatch.delitem(sys.modules, "orchestrator.executors.slurm", raising=False)
    with pytest.raises(InputError, match=r"pip install '?submitit"):
        importlib.import_module("orchestrator.executors.slurm")
