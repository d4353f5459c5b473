import contextlib
import io
import os
import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pack_cases import REPORT_EACH_UPDATE, assert_the_same, interrupted, pack_with, results, up_to, whole
from tiers import examples, thinned

from objectives.base import OBJECTIVES
from orchestrator.base.packs import Pack, Paused, Refused
from orchestrator.worker import run as worker
from orchestrator.worker.checkpoints import (
    BadCheckpoint,
    CheckpointWriter,
    from_bytes,
    random_states,
    set_random_states,
    to_bytes,
)

IDS = ["a", "b"]
STATE = {"rows": [[0, 1]], "ages": {0: 3}, "weights": torch.arange(6.0), "seen": np.array([True, False]), "why": None}


def a_pack(objective: str) -> Pack:
    """Members wait, diverge, and finish before and after checkpoints."""
    changes = [{"lr": lr, "clip": clip} for lr in (1e-3, 1e-2, 30.0) for clip in (None, 1e3, 0.5)]
    pack = pack_with(objective, changes, 4, [0, 1, 0, 1, 0, 1, 0, 1, 0], steps=40)
    return replace(pack, checkpoint_steps=7)


@pytest.mark.parametrize("num_reports", thinned([1, 5, 12], lambda num: num == 5))
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_pack_that_dies_goes_on_from_its_checkpoint_bit_for_bit(objective: str, num_reports: int) -> None:
    undisturbed = whole(list(worker.run_pack(a_pack(objective), pace=REPORT_EACH_UPDATE)))
    before, going_on = interrupted(a_pack(objective), num_reports)
    after = list(worker.run_pack(going_on, pace=REPORT_EACH_UPDATE))
    assert [report.error for report in after if report.error] == []
    assert_the_same(whole(before + after), undisturbed)


def test_a_pack_may_die_again_and_again() -> None:
    undisturbed = whole(list(worker.run_pack(a_pack("quadratic"), pace=REPORT_EACH_UPDATE)))
    reports, pack = interrupted(a_pack("quadratic"), 1)
    for _ in range(3):
        more, next_pack = interrupted(pack, 2)
        done, ends = pack.skip | next_pack.skip, next_pack.resume.ages
        reports = [
            replace(r, traces={t: up_to(v, np.inf if t in done else ends.get(t, 0)) for t, v in r.traces.items()})
            for r in reports
        ] + more
        pack = replace(next_pack, skip=done)
    assert_the_same(whole([*reports, *worker.run_pack(pack, pace=REPORT_EACH_UPDATE)]), undisturbed)


def test_a_pack_that_is_asked_to_pause_ends_with_a_checkpoint_and_goes_on_bit_for_bit() -> None:
    undisturbed = whole(list(worker.run_pack(a_pack("quadratic"), pace=REPORT_EACH_UPDATE)))
    asked = iter([False, False, True])
    before = list(worker.run_pack(a_pack("quadratic"), lambda: next(asked), pace=REPORT_EACH_UPDATE))
    assert before[-1].ending == Paused()
    done = frozenset(finished.trial_id for report in before for finished in report.finished)
    going_on = replace(a_pack("quadratic"), resume=before[-1].checkpoint, skip=done)
    assert_the_same(whole(before + list(worker.run_pack(going_on, pace=REPORT_EACH_UPDATE))), undisturbed)


def test_members_that_nobody_wants_any_more_are_not_trained_on() -> None:
    _, going_on = interrupted(a_pack("quadratic"), 1)
    unwanted = going_on.skip | {"trial1", "trial8"}
    after = list(worker.run_pack(replace(going_on, skip=unwanted), pace=REPORT_EACH_UPDATE))
    assert set(results(after)) == set(going_on.trial_ids) - unwanted


def test_checkpoints_of_every_objective_hold_nothing_that_torch_would_have_to_trust() -> None:
    for objective in OBJECTIVES:
        _, going_on = interrupted(a_pack(objective), 1)
        torch.load(io.BytesIO(going_on.resume.content), weights_only=True)


@settings(max_examples=examples(50))
@given(st.data())
def test_a_damaged_checkpoint_is_refused_or_read_whole(data) -> None:
    """The checksum comes first; this is what stands behind it."""
    content = to_bytes(STATE, IDS)
    at = data.draw(st.integers(0, len(content) - 1))
    change = data.draw(st.sampled_from(["cut", "flip", "zero tail"]))
    damaged = {
        "cut": content[:at],
        "flip": content[:at] + bytes([content[at] ^ 1 << data.draw(st.integers(0, 7))]) + content[at + 1 :],
        "zero tail": content[:at] + bytes(len(content) - at),
    }[change]
    with contextlib.suppress(BadCheckpoint):
        assert from_bytes(damaged, IDS).keys() == STATE.keys()


def test_a_letter_that_became_another_is_noticed_behind_the_checksum_too() -> None:
    content = to_bytes(STATE, IDS)
    place = content.index(b"weights")
    with pytest.raises(BadCheckpoint, match="damaged"):
        from_bytes(content[:place] + b"v" + content[place + 1 :], IDS)


class Canary:
    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_malicious_checkpoint_is_refused_and_nothing_is_executed(tmp_path) -> None:
    buffer = io.BytesIO()
    torch.save({"schema": 1, "trial_ids": IDS, "state": Canary(tmp_path / "canary")}, buffer)
    with pytest.raises(BadCheckpoint):
        from_bytes(buffer.getvalue(), IDS)
    with pytest.raises(BadCheckpoint):
        from_bytes(pickle.dumps(Canary(tmp_path / "canary")), IDS)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_other_trials_or_another_version_is_refused() -> None:
    content = to_bytes(STATE, IDS)
    with pytest.raises(BadCheckpoint, match="other trials"):
        from_bytes(content, ["b", "a"])
    with pytest.raises(BadCheckpoint, match="schema 99"):
        from_bytes(to_bytes(STATE, IDS, schema=99), IDS)


def test_a_worker_that_refuses_its_checkpoint_says_so() -> None:
    _, going_on = interrupted(a_pack("quadratic"), 1)
    spoilt = replace(going_on, resume=replace(going_on.resume, content=b"nothing"))
    (last,) = worker.run_pack(spoilt, pace=REPORT_EACH_UPDATE)
    assert last.ending is not None
    assert isinstance(last.ending, Refused)
    assert last.finished == ()


def test_every_generator_of_the_process_goes_on_where_it_was() -> None:
    def draws() -> tuple:
        return torch.rand(3).tolist(), random.random(), np.random.rand(3).tolist()

    state = from_bytes(to_bytes({"random": random_states()}, IDS), IDS)["random"]
    expected = draws()
    draws()
    set_random_states(state)
    assert draws() == expected


def test_the_first_checkpoints_come_early_and_none_takes_more_than_its_share() -> None:
    clock = [100.0]
    writer = CheckpointWriter(IDS, 30.0, None, lambda: clock[0])
    made = []
    for _ in range(2000):
        clock[0] += 0.1
        if writer.is_due(10):
            writer.begin(lambda: STATE, {})
            writer.take(wait=True)
            made.append(round(clock[0] - 100))
    assert made[:5] == [3, 6, 12, 25, 50]
    assert set(np.diff(made)[4:]) == {30}
    writer._cost_s = 1.0  # a checkpoint that took a second is next made after a hundred
    clock[0] += 99.0 - (clock[0] - writer._last)
    assert not writer.is_due(1)
    clock[0] += 2.0
    assert writer.is_due(1)
    writer.close()


def test_without_a_clock_there_are_no_checkpoints() -> None:
    pack = replace(a_pack("quadratic"), checkpoint_steps=None, checkpoint_s=None)
    assert not any(report.checkpoint for report in worker.run_pack(pack, pace=REPORT_EACH_UPDATE))
