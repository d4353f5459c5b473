"""Trials whose batches several processes share, each beside the same trial of one process."""

import os
import signal
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import psutil
import pytest
from pack_cases import COLUMNS, interrupted, pack_with, whole

from orchestrator.base.packs import Failed, Lost, Pack, Paused, StackedPack
from orchestrator.base.resizes import resizes_in
from orchestrator.worker import launcher
from orchestrator.worker.packed_run import Pace
from orchestrator.worker.run import run_pack

LR = ({"lr": 0.003}, {"lr": 0.03})
CASES: dict[str, dict] = {
    "dropout, a z-loss and a curriculum": {"dropout": 0.2, "z_loss": 1e-4, "context_start": 4, "context_steps": 10},
    "micro-batches": {"accumulate": 2},
    "fewer micro-batches than there are": {"accumulate": 2, "micro_batches": 1},
    "a clip of queries and keys": {"qk_clip": 1.0},
    "products in bfloat16": {"precision": "bfloat16"},
}


def shared(workers: int, changes: Sequence[dict] = LR, kernels: str = "default", **fields) -> Pack:
    """Trials of a global batch of eight sequences, one at a time."""
    pack = pack_with("gpt", [{"batch_size": 8, **change, **fields} for change in changes], 1, [0] * len(changes), 20)
    assert isinstance(pack, StackedPack)
    return replace(pack, workers=workers, rounding=replace(pack.rounding, kernels=kernels))


def assert_equal_within_rounding(found: tuple[dict, dict], expected: tuple[dict, dict], rtol: float = 2e-4) -> None:
    assert found[1].keys() == expected[1].keys()
    for trial_id, curves in expected[1].items():
        np.testing.assert_allclose(found[1][trial_id], curves, rtol=rtol, err_msg=trial_id)
        assert found[0][trial_id].outcome == expected[0][trial_id].outcome
        assert found[0][trial_id].validation_loss == pytest.approx(expected[0][trial_id].validation_loss, rel=rtol)


@pytest.mark.parametrize("kernels", ["default", "native"])
def test_two_processes_train_what_one_trains(kernels: str) -> None:
    reports = list(run_pack(shared(2, kernels=kernels)))
    one = whole(list(run_pack(shared(1, kernels=kernels))))
    assert_equal_within_rounding(whole(reports), one)
    assert len(one[1]["trial0"][COLUMNS.index("loss")]) == 20
    (facts,) = [report.environment for report in reports if report.environment]
    assert facts["workers"] == "2"


@pytest.mark.parametrize("case", CASES)
def test_whatever_a_step_has_is_shared(case: str) -> None:
    found, one = (whole(list(run_pack(shared(workers, LR[:1], **CASES[case])))) for workers in (2, 1))
    assert_equal_within_rounding(found, one, 2.0**-8 if "precision" in CASES[case] else 2e-4)


def test_four_processes_train_what_two_train() -> None:
    found, two = (whole(list(run_pack(shared(workers, LR[:1])))) for workers in (4, 2))
    assert_equal_within_rounding(found, two)


def test_a_pack_goes_on_from_its_checkpoint_to_the_bit() -> None:
    pack = replace(shared(2), checkpoint_steps=5)
    before, rest = interrupted(pack, 2)
    found = whole([*before, *run_pack(rest)])
    expected = whole(list(run_pack(pack)))
    for trial_id, curves in expected[1].items():
        np.testing.assert_array_equal(found[1][trial_id], curves)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (4, 2)])
def test_an_elastic_trial_goes_on_with_another_number_of_processes(
    before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = before
    monkeypatch.setattr(launcher, "places_here", lambda cpus: places)
    pack = replace(shared(4, LR[:1]), sizes=(1, 2, 4), checkpoint_steps=5)
    first, rest = interrupted(pack, 2)
    places = after
    second = list(run_pack(rest))
    assert_equal_within_rounding(whole([*first, *second]), whole(list(run_pack(shared(1, LR[:1])))))
    facts = [report.environment for report in (*first, *second) if report.environment]
    assert [fact["workers"] for fact in facts] == [str(before), str(after)]
    (resize,) = resizes_in(facts, "trial0")
    assert (resize.before, resize.after) == (before, after)
    assert 0 < resize.step < 20


def test_an_elastic_trial_pauses_to_go_on_with_more_processes_when_they_have_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = 1
    monkeypatch.setattr(launcher, "places_here", lambda cpus: places)
    pack = replace(shared(4, LR[:1]), sizes=(1, 2, 4), checkpoint_steps=5, steps=10_000)
    first = []
    for report in run_pack(pack, pace=Pace(report_s=0.0)):
        first.append(report)
        places = 2 if report.member_steps >= 8 else 1
    assert isinstance(first[-1].ending, Paused)
    assert first[-1].ending.goes_on
    assert 8 <= first[-1].member_steps < 10_000
    assert [report.environment["workers"] for report in first if report.environment] == ["1"]


@pytest.mark.parametrize(
    ("number", "ending", "said"),
    [
        (signal.SIGKILL, Lost, "rank 2 was killed by SIGKILL (is memory short?)"),
        (signal.SIGSEGV, Failed, "rank 2 was killed by SIGSEGV"),
    ],
)
def test_how_a_process_ended_is_said(number: signal.Signals, ending: type, said: str) -> None:
    reports = run_pack(replace(shared(4, LR[:1]), steps=10_000), pace=Pace(report_s=0.0))
    next(reports)
    ranks = [child for child in psutil.Process().children() if "orchestrator.worker.rank" in child.cmdline()]
    (rank,) = [child for child in ranks if child.environ()["RANK"] == "2"]
    os.kill(rank.pid, number)
    *_, last = reports
    assert isinstance(last.ending, ending)
    assert last.error.splitlines()[-1] == said
    assert not [child for child in ranks if child.is_running()]
