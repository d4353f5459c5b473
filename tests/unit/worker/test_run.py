import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pack_cases import STOPPING, assert_the_same, curve, pack_with, results
from tiers import examples, thinned

from objectives.base import OBJECTIVES, Rounding
from objectives.models import quadratic
from objectives.training.packed import PackedTrainer
from orchestrator.base.packs import Completed, Member, Pack, StackedPack
from orchestrator.worker import run as worker
from orchestrator.worker.machine import Measurement, save_measurements
from orchestrator.worker.members import metrics_on_host
from orchestrator.worker.packed_run import Pace


def pack_of(lrs: Sequence[float], steps: int = 200, **fields) -> Pack:
    config_class = OBJECTIVES["quadratic"].config_class
    members = tuple(
        Member(
            f"trial{i}",
            config_class(lr=lr, steps=steps, **{"optimizer": "sgd", "beta1": 0.0, **fields}).model_dump(),
            i,
        )
        for i, lr in enumerate(lrs)
    )
    return StackedPack("pack", steps, members, STOPPING.model_dump(), objective="quadratic", width=len(members))


def alone(pack: Pack) -> list[Pack]:
    """Each member in a pack of its own."""
    return [replace(pack, members=(member,), width=1) for member in pack.members]


def all_of(packs: Sequence[Pack], pace: Pace = Pace()) -> tuple[dict, dict]:
    """Results and whole curves by trial."""
    reports = [report for pack in packs for report in worker.run_pack(pack, pace=pace)]
    assert not [report.error for report in reports if report.error]
    columns = ("step", "loss", "grad_norm", "update_norm", "lr")
    found = results(reports)
    return found, {t: np.stack([curve(reports, t, column) for column in columns]) for t in found}


@pytest.fixture
def rows_per_step(monkeypatch) -> list[int]:
    """How many rows the trainer had at each step of whatever is trained."""
    counts: list[int] = []
    step = PackedTrainer.step

    def counted(self):
        counts.append(self.num_members)
        return step(self)

    monkeypatch.setattr(PackedTrainer, "step", counted)
    return counts


def test_members_beyond_the_edge_diverge_and_the_others_do_not_notice() -> None:
    mixed = list(worker.run_pack(pack_of([0.5, 2.1, 1.5])))
    outcomes = {trial_id: finished.outcome for trial_id, finished in results(mixed).items()}
    assert outcomes == {"trial0": "stable", "trial1": "diverged", "trial2": "stable"}
    alone = list(worker.run_pack(replace(pack_of([0.5]), pack_id="alone")))
    np.testing.assert_array_equal(curve(mixed, "trial0"), curve(alone, "trial0"))


def test_the_curve_of_a_lost_member_ends_at_the_verdict_whenever_it_is_looked_at() -> None:
    ends = []
    for steps_per_update in (1, 7, 50):
        reports = list(worker.run_pack(pack_of([2.1, 0.5]), pace=Pace(update_steps=steps_per_update)))
        lost = results(reports)["trial0"]
        steps = curve(reports, "trial0", "step")
        assert steps[-1] + 1 == lost.steps_done == len(steps)
        ends.append((lost.steps_done, lost.onset_step, lost.final_loss, results(reports)["trial1"].final_loss))
    assert len(set(ends)) == 1


def test_lost_members_leave_the_pack_so_that_their_time_is_saved() -> None:
    last = list(worker.run_pack(pack_of([2.1, 0.5, 2.1, 2.1])))[-1]
    assert 200 < last.member_steps < 200 + 3 * 150


def test_without_early_stop_a_lost_member_trains_to_its_end_and_is_still_diverged() -> None:
    pack = replace(pack_of([2.1]), stopping=STOPPING.model_copy(update={"early_stop": False}).model_dump())
    finished = results(list(worker.run_pack(pack)))["trial0"]
    assert (finished.outcome, finished.steps_done) == ("diverged", 200)


def judged_by(pack: Pack, **stopping) -> Pack:
    return replace(pack, stopping=STOPPING.model_copy(update=stopping).model_dump())


def test_an_audited_member_trains_as_without_early_stop_and_remembers_its_verdict() -> None:
    pack = pack_of([2.1, 0.5, 3.0])
    stopped, audited, to_the_end = (
        all_of([judged_by(pack, **changes)]) for changes in ({}, {"audit": 1.0}, {"early_stop": False})
    )
    for trial_id, finished in audited[0].items():
        assert replace(finished, is_audited=False) == to_the_end[0][trial_id]
        np.testing.assert_array_equal(audited[1][trial_id], to_the_end[1][trial_id])
        assert finished.verdict_step == stopped[0][trial_id].verdict_step
        assert finished.is_audited > stopped[0][trial_id].is_audited
    assert {f.steps_done for f in audited[0].values()} == {200}
    verdicts = {trial_id: f.verdict_step for trial_id, f in stopped[0].items()}
    assert [trial_id for trial_id, verdict in verdicts.items() if verdict is None] == ["trial1"]
    for trial_id in ("trial0", "trial2"):
        assert stopped[0][trial_id].steps_done == verdicts[trial_id] + 1 < 200


def test_an_audited_member_ends_when_it_is_not_finite_also_after_another_verdict() -> None:
    # Lost as it rises, and beyond all numbers some hundred steps later.
    pack = pack_of([30.0], steps=300)
    stopped, audited = (all_of([judged_by(pack, audit=share)])[0]["trial0"] for share in (0.0, 1.0))
    assert "not finite" not in stopped.reason
    assert audited.verdict_step == stopped.verdict_step
    assert stopped.steps_done < audited.steps_done < 300
    assert (audited.outcome, audited.final_loss, audited.validation_loss) == ("diverged", None, None)


# The second and third are lost at once and somewhat later, the fifth when it has taken a free place.
LRS = {
    "gpt": (1e-3, 1e300, 1e30, 3e-3, 1e300, 1e-2, 3e-2),
    "function_fit": (1e-3, 1e300, 1e200, 1e-2, 1e300, 3e-2, 1e-4),
    "quadratic": (0.1, 1e200, 30.0, 1.0, 8.0, 0.3, 5.0),
}
MEMBER_SEEDS = (0, 0, 1, 2, 0, 1, 2)


WAYS_TO_STOP = {"early stop": {}, "to the end": {"early_stop": False}, "half of them audited": {"audit": 0.5}}


@pytest.mark.parametrize(
    ("objective", "how"),
    thinned(
        [(objective, how) for objective in LRS for how in WAYS_TO_STOP],
        {("gpt", "early stop"), ("function_fit", "to the end"), ("quadratic", "half of them audited")}.__contains__,
    ),
)
def test_how_many_train_at_a_time_changes_not_a_bit_of_anyones_curve_or_result(objective: str, how: str) -> None:
    changes = [{"lr": lr, "warmup": 2 * i} for i, lr in enumerate(LRS[objective])]
    pack = pack_with(objective, changes, 7, MEMBER_SEEDS)
    stopping = WAYS_TO_STOP[how]
    pack = judged_by(pack, **stopping)
    expected = all_of(alone(pack))
    outcomes = [finished.outcome for finished in expected[0].values()]
    assert {"diverged"} < set(outcomes)
    lengths = {len(curve[0]) for curve in expected[1].values()}
    assert lengths == {40} if "early_stop" in stopping else len(lengths) > 1
    for width in (7, 3, 2, 1):
        assert_the_same(all_of([replace(pack, width=width)]), expected)


def test_those_who_wait_take_the_places_of_those_who_end(rows_per_step) -> None:
    pack = pack_with("quadratic", [{"lr": lr} for lr in LRS["quadratic"]], 3, MEMBER_SEEDS)
    found, curves = all_of([pack])
    assert len(found) == 7
    assert max(rows_per_step) == 3
    # Had each round waited for its last member, it would have taken three times 40 steps.
    assert len(rows_per_step) < 110
    assert sum(len(curve[0]) for curve in curves.values()) <= sum(rows_per_step)


def test_rounds_are_of_equal_size(rows_per_step) -> None:
    all_of([pack_with("quadratic", [{"lr": lr} for lr in np.linspace(0.1, 0.5, 9).tolist()], 8, range(9))])
    assert set(rows_per_step) == {5, 4}, "5 and 4 at a time, not 8 and 1"


CLIPS = (None, 1000.0, 3.0, 0.5, 0.01)


@pytest.mark.parametrize(
    ("objective", "width"),
    thinned(itertools.product(LRS, (5, 10, 3)), lambda case: (case[1] == 3) != (case == ("quadratic", 10))),
)
def test_members_that_differ_in_clip_alone_train_together_as_each_would_alone(objective: str, width: int) -> None:
    lrs = {"gpt": (1e-2, 1e30), "function_fit": (3e-2, 1e200), "quadratic": (1.0, 8.0)}[objective]
    # AdamW does not notice a constant factor on its gradients, unless eps is in the way.
    changes = [{"lr": lr, "clip": clip, "eps": 1e-2} for lr in lrs for clip in CLIPS]
    pack = pack_with(objective, changes, width, [3] * 10)
    expected = all_of(alone(pack))
    # 1000 clips nobody who learns and 0.01 everybody.
    learns = [curve.tobytes() for curve in list(expected[1].values())[:5]]
    assert learns[0] == learns[1] != learns[4]
    assert_the_same(all_of([pack]), expected)


def test_thresholds_of_the_size_of_the_rounding_guard_are_told_apart() -> None:
    changes = [
        {"lr": 1.0, "curvature": 1e-6, "eps": 1e-6, "clip": clip, "optimizer": "adamw", "noise": 0.0}
        for clip in (None, 1.5e-6, 1e-6, 1e-7)
    ]
    pack = pack_with("quadratic", changes, 4, [0] * 4)
    expected = all_of(alone(pack))
    assert len({curve[1].tobytes() for curve in expected[1].values()}) == 4
    assert_the_same(all_of([pack]), expected)


RUNS = st.lists(
    st.tuples(
        st.sampled_from([0.3, 1.0, 5.0, 7.0, 1e200]),
        st.sampled_from([None, 1e300, 50.0, 2.0, 1.0, 0.1]),
        st.sampled_from([0.0, 0.1]),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(25))
@given(
    RUNS,
    st.integers(1, 8),
    st.sampled_from([1, 4, 10]),
    st.sampled_from([{}, {"early_stop": False}, {"audit": 0.5}]),
    st.randoms(),
)
def test_whoever_shares_a_pack_in_whatever_order_gets_what_it_would_get_alone(
    runs, width: int, steps_per_update: int, stopping: dict, random
) -> None:
    runs = sorted(runs, key=str) if random.random() < 0.5 else runs
    changes = [{"lr": lr, "clip": clip, "noise": noise} for lr, clip, noise, _ in runs]
    pack = pack_with("quadratic", changes, width, [r[3] for r in runs], steps=25)
    pack = judged_by(pack, patience=8, **stopping)
    expected = all_of(alone(pack))
    assert_the_same(all_of([pack], Pace(update_steps=steps_per_update)), expected)


def test_a_non_finite_loss_is_a_result_with_the_step_and_no_number() -> None:
    finished = results(list(worker.run_pack(pack_of([1e200], steps=50))))["trial0"]
    assert finished.outcome == "diverged"
    assert "not finite" in finished.reason
    assert finished.final_loss is None
    assert finished.steps_done < 10


class BrokenTrainer(quadratic.QuadraticTrainer):
    closed = 0

    def __init__(self, failure: BaseException, *arguments) -> None:
        super().__init__(*arguments)
        self.failure = failure

    def step(self):
        if self.num_steps == 25:
            raise self.failure
        return super().step()

    def close(self) -> None:
        BrokenTrainer.closed += 1


@pytest.mark.parametrize("failure", [RuntimeError("kaput"), SystemExit(0), MemoryError()])
def test_a_trainer_that_fails_is_reported_with_its_traceback_and_closed(monkeypatch, failure) -> None:
    monkeypatch.setattr(quadratic, "start", lambda *arguments: BrokenTrainer(failure, *arguments))
    BrokenTrainer.closed = 0
    reports = list(worker.run_pack(pack_of([0.5])))
    assert reports[-1].ending is not None
    assert type(failure).__name__ in reports[-1].error
    assert not results(reports)
    assert len(curve(reports, "trial0")) == 21, "updates before the failure are kept"
    assert BrokenTrainer.closed == 1


def test_who_waited_when_the_trainer_failed_is_named_and_not_taken_for_broken(monkeypatch) -> None:
    class BrokenByOne(quadratic.QuadraticTrainer):
        def step(self):
            if any(config.lr == 0.7 for config in self.configs):
                raise RuntimeError("kaput")
            return super().step()

    monkeypatch.setattr(quadratic, "start", BrokenByOne)
    # Two at a time, one of which goes at once: trial2 takes its place, trial3 the next and breaks it all.
    pack = pack_with("quadratic", [{"lr": lr} for lr in (1e200, 0.1, 1e200, 0.7, 0.2, 0.3)], 2, [0] * 6, steps=200)
    reports = list(worker.run_pack(pack))
    last = reports[-1]
    assert "kaput" in last.error
    assert set(results(reports)) == {"trial0", "trial2"}
    assert last.ending.waited == ("trial4", "trial5")
    assert not [trial_id for report in reports for trial_id in last.ending.waited if trial_id in report.traces]
    assert all(report.ending is None for report in reports[:-1])


def test_a_pack_that_ends_well_leaves_nobody_waiting() -> None:
    reports = list(worker.run_pack(pack_with("quadratic", [{"lr": 0.1}] * 5, 2, range(5))))
    assert reports[-1].ending == Completed()
    assert len(results(reports)) == 5
    assert reports[-1].steps_in_hand == 0
    assert reports[-1].member_steps == 5 * 40


def test_a_compiled_pack_only_ever_halves_so_that_few_shapes_are_compiled(monkeypatch, rows_per_step, tmp_path) -> None:
    import torch

    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path))
    changes = [{"lr": lr} for lr in (0.1, 0.2, 30.0, 0.3, 40.0, 1e200, 0.4)]
    pack = replace(pack_with("quadratic", changes, 8, range(7), steps=60), rounding=Rounding(compiled=True))
    expected = all_of(alone(pack))
    rows_per_step.clear()
    assert_the_same(all_of([pack]), expected)
    assert set(rows_per_step) == {8, 4}


def test_a_compiled_pack_keeps_two_rows_for_its_last_member_since_one_rounds_differently(
    monkeypatch, rows_per_step, tmp_path
) -> None:
    import torch

    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path))
    changes = [{"lr": lr} for lr in (0.1, 30.0, 40.0, 1e200)]
    pack = replace(pack_with("quadratic", changes, None, range(4), steps=60), rounding=Rounding(compiled=True))
    objective = OBJECTIVES["quadratic"]
    config = objective.config_of(pack.members[0].config)
    save_measurements(objective, config, "cpu", pack.cpus, [Measurement(4, 100.0, 1)])
    all_of([pack])
    assert set(rows_per_step) == {4, 2}


def test_metrics_of_tensors_and_of_plain_lists_come_to_the_host_alike() -> None:
    import torch

    rows = [{"loss": [1.0, 2.0], "lr": [0.1, 0.2]}, {"loss": [3.0, float("nan")], "lr": [0.3, 0.4]}]
    tensors = [{name: torch.tensor(value, dtype=torch.float64) for name, value in row.items()} for row in rows]
    for found in (metrics_on_host(rows), metrics_on_host(tensors)):
        np.testing.assert_array_equal(found["loss"], [[1.0, 2.0], [3.0, np.nan]])
        np.testing.assert_array_equal(found["lr"], [[0.1, 0.2], [0.3, 0.4]])


def test_slow_steps_are_reported_one_by_one_so_that_nobody_takes_them_for_a_hang(monkeypatch) -> None:
    clock = [0.0]
    step = quadratic.QuadraticTrainer.step

    def slow(self):
        clock[0] += 3.0
        return step(self)

    monkeypatch.setattr(quadratic.QuadraticTrainer, "step", slow)
    reports = list(worker.run_pack(pack_of([0.5], steps=6), pace=Pace(clock=lambda: clock[0])))
    assert [report.member_steps for report in reports] == [1, 2, 3, 4, 5, 6, 6]
