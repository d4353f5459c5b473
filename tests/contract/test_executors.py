"""What every executor does with packs; one suite for all of them."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from custom_cases import SWEEP, TRAIN, sweep_in
from sweep_cases import QUADRATIC

from orchestrator.base.packs import Event, Pack, PackLost, PackStarted, Paused, Report
from orchestrator.base.processes import all_marked
from orchestrator.driver.packing import make_packs
from orchestrator.executors import Executor
from orchestrator.executors.inline import InlineExecutor
from orchestrator.executors.subprocess_executor import SubprocessExecutor
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document
from orchestrator.worker.run import run_pack

MakePacks = Callable[..., list[Pack]]
# A custom trainer that reports one loss and then runs until it is stopped.
WAITS = """
import os, sys, time
print("step 0 loss 3.0", flush=True)
open(f"runs-{sys.argv[3]}", "w").close()
time.sleep(1000)
"""
# The first attempt waits to be killed; the next one trains as TRAIN does.
WAITS_ONCE = (
    'import os, time\nif not os.path.exists("died"):\n    open("died", "w").close()\n'
    '    print("step 0 loss 3.0", flush=True)\n    time.sleep(1000)\n' + TRAIN
)
RAISES = 'raise RuntimeError("too short to train on: 21 bytes")\n'


def make_inline(folder: Path) -> Executor:
    return InlineExecutor()


def make_subprocess(folder: Path) -> Executor:
    return SubprocessExecutor("inline", "orchestrator.executors.inline", "InlineExecutor", {}, {})


def make_ray(folder: Path) -> Executor:
    """In a process of its own, as the command line has it: no process holds two clusters of Ray."""
    # Fewer at a time than this machine has cores: the limit is what is tested.
    needs = {"cpus": 1, "gpus": 0, "parallel": 1, "workers": 1, "address": None}
    module, factory = "orchestrator.executors.ray_tune", "RayTuneExecutor"
    return SubprocessExecutor("ray", module, factory, needs, {}, may_be_killed=True)


def make_slurm(folder: Path) -> Executor:
    """Jobs of submitit's own executor for one machine, which stands in for Slurm."""
    from orchestrator.executors.slurm import SlurmExecutor

    return SlurmExecutor(folder / "jobs", 1, 0.0, 1, 2, {"cluster": "local"})


@dataclass(frozen=True)
class Kind:
    """An executor, and what differs between executors by their nature."""

    make: Callable[[Path], Executor]
    takes_objectives: bool = True  # Slurm's jobs are for custom trainers
    looks_ahead: bool = False  # takes packs before there is a slot: they begin even after a pause, and end at once
    can_kill: bool = True  # where a pack hangs in the executor's own process, nobody is left to kill it


KINDS = {
    "inline": Kind(make_inline, can_kill=False),
    "subprocess": Kind(make_subprocess, can_kill=False),
    "ray": Kind(make_ray, looks_ahead=True),
    "slurm": Kind(make_slurm, takes_objectives=False),
}
PARAMS = [pytest.param(name, marks=[pytest.mark.services] * (name in ("ray", "slurm"))) for name in KINDS]


@pytest.fixture(scope="module", params=PARAMS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def executor(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """One for all tests that leave it as it was."""
    made = kind.make(tmp_path_factory.mktemp("executor"))
    yield made
    made.close()


@pytest.fixture
def own_executor(kind: Kind, tmp_path: Path) -> Iterator[Executor]:
    """One for a test that pauses it."""
    made = kind.make(tmp_path)
    yield made
    made.close()


@pytest.fixture
def packs(kind: Kind, tmp_path: Path) -> MakePacks:
    """Packs of an objective, or of a custom trainer where the executor is for those."""

    def objectives(lrs: Sequence[float], seeds: Sequence[int]) -> list[Pack]:
        sets = ("resources.pack=3", f"seeds={list(seeds)}", f"axes.lr={{values: {list(lrs)}}}")
        sweep = build_sweep(parse_document(QUADRATIC, "edge.yaml"), Overrides(sets=sets))
        return make_packs(sweep, sweep.trials, 1)

    def scripts(lrs: Sequence[float], seeds: Sequence[int]) -> list[Pack]:
        return script_packs(tmp_path, TRAIN, lrs, seeds)

    return objectives if kind.takes_objectives else scripts


def script_packs(folder: Path, script: str, lrs: Sequence[float] = (0.1,), seeds: Sequence[int] = (0,)) -> list[Pack]:
    """Packs of a custom trainer, whose logs and files are below ``folder``."""
    text = SWEEP.replace("[0.1, 1.0, 3.0]", str(list(lrs))).replace("[0, 1]", str(list(seeds)))
    sweep = sweep_in(folder, script, text)
    launched = [(pack, pack.launch) for pack in make_packs(sweep, sweep.trials, 1)]
    return [replace(pack, launch=replace(launch, trials_folder=str(folder / "trials"))) for pack, launch in launched]


def events_until(executor: Executor, is_over: Callable[[list[Event]], object]) -> list[Event]:
    events: list[Event] = []
    deadline = time.monotonic() + 1200
    while not is_over(events):
        assert time.monotonic() < deadline, events
        events += executor.poll(0.2)
    return events


def last_reports(events: Sequence[Event]) -> dict[str, Report]:
    return {event.pack_id: event for event in events if isinstance(event, Report) and event.ending is not None}


def started(events: Sequence[Event]) -> set[str]:
    return {event.pack_id for event in events if isinstance(event, PackStarted)}


def test_every_pack_starts_reports_and_ends_with_the_numbers_of_the_worker(
    executor: Executor, packs: MakePacks
) -> None:
    submitted = packs([0.1, 1.0, 3.0], [0, 1])
    for pack in submitted:
        executor.submit(pack)
    events = events_until(executor, lambda events: len(last_reports(events)) == len(submitted))
    assert started(events) == {pack.pack_id for pack in submitted}
    for pack in submitted:
        mine = [event for event in events if event.pack_id == pack.pack_id]
        assert isinstance(mine[0], PackStarted)
        expected = [finished for report in run_pack(pack) for finished in report.finished]
        assert [f for event in mine[1:] for f in event.finished] == expected


def test_at_most_as_many_packs_train_at_a_time_as_there_are_slots(executor: Executor, packs: MakePacks) -> None:
    submitted = packs([0.1, 1.0, 3.0], [0, 1])
    assert len(submitted) > executor.slots >= 1
    for pack in submitted:
        executor.submit(pack)
    events = events_until(executor, lambda events: len(last_reports(events)) == len(submitted))
    training = 0
    for event in events:
        training += isinstance(event, PackStarted)
        training -= isinstance(event, Report) and event.ending is not None
        assert training <= executor.slots


def test_curves_arrive_with_what_is_not_finite_in_them(executor: Executor, packs: MakePacks) -> None:
    (pack,) = packs([1e200], [0])[:1]
    executor.submit(pack)
    events = events_until(executor, lambda events: bool(last_reports(events)))
    curves = [trace["loss"] for event in events[1:] for trace in event.traces.values()]
    assert not np.isfinite(np.concatenate(curves)).all()
    assert {f.outcome for event in events[1:] for f in event.finished} == {"diverged"}


def test_a_trainer_that_raises_is_reported_and_the_next_pack_trains(
    kind: Kind, executor: Executor, packs: MakePacks, tmp_path: Path
) -> None:
    if kind.takes_objectives:
        text = tmp_path / "short.txt"
        text.write_text("too short to train on")
        fields = f"name: a\nobjective: gpt\nsteps: 5\nfixed: {{text: ['{text}']}}\n"
        broken = build_sweep(parse_document(fields, "a.yaml"))
        bad = make_packs(broken, broken.trials, 1)[0]
    else:
        (tmp_path / "bad").mkdir()
        (bad,) = script_packs(tmp_path / "bad", RAISES)
    good = packs([0.1], [0])[0]
    executor.submit(bad)
    executor.submit(good)
    reports = last_reports(events_until(executor, lambda events: len(last_reports(events)) == 2))
    assert "21 bytes" in reports[bad.pack_id].error
    assert reports[good.pack_id].error is None


def test_a_pause_drops_what_is_queued_and_lets_what_runs_report_its_end(
    kind: Kind, own_executor: Executor, tmp_path: Path
) -> None:
    submitted = script_packs(tmp_path, WAITS, seeds=range(own_executor.slots + 3))
    for pack in submitted:
        own_executor.submit(pack)
    events = events_until(own_executor, lambda events: len(started(events)) == own_executor.slots)
    if kind.can_kill:  # elsewhere the pack runs while one polls
        deadline = time.monotonic() + 600
        while len(list(tmp_path.glob("runs-*"))) < own_executor.slots:
            assert time.monotonic() < deadline
            events += own_executor.poll(0.1)
    own_executor.pause()
    events += events_until(own_executor, lambda later: set(last_reports(events + later)) == started(events + later))
    assert len(started(events)) <= own_executor.slots or kind.looks_ahead
    assert all(report.ending == Paused() for report in last_reports(events).values())
    assert own_executor.poll(1.0) == [], "what was queued is forgotten"


def test_a_pack_that_is_killed_says_no_more_and_its_trials_train_in_another(
    kind: Kind, executor: Executor, tmp_path: Path
) -> None:
    if not kind.can_kill:
        (pack,) = script_packs(tmp_path, TRAIN)
        executor.submit(pack)
        executor.kill(pack.pack_id)
        (last,) = last_reports(events_until(executor, lambda events: last_reports(events))).values()
        assert [finished.outcome for finished in last.finished] == ["stable"]
        return
    (pack,) = script_packs(tmp_path, WAITS_ONCE)
    executor.submit(pack)
    events_until(executor, lambda events: (tmp_path / "died").exists() and started(events))
    executor.kill(pack.pack_id)
    again = replace(pack, pack_id="again")
    executor.submit(again)
    events = events_until(executor, lambda events: last_reports(events))
    assert {event.pack_id for event in events if isinstance(event, PackLost)} <= {pack.pack_id}
    assert list(last_reports(events)) == ["again"], "the one that was killed has no result"
    assert [f.outcome for event in events if isinstance(event, Report) for f in event.finished] == ["stable"]


def test_closing_leaves_no_process_within_seconds_whatever_runs(kind: Kind, tmp_path: Path) -> None:
    before = set(all_marked())
    made = kind.make(tmp_path)
    try:
        (pack,) = script_packs(tmp_path, WAITS)
        made.submit(pack)
        events_until(made, started)
    finally:
        began = time.monotonic()
        made.close()
        seconds = time.monotonic() - began
    assert seconds < 20
    deadline = time.monotonic() + 600
    while (left := {pid for pid in set(all_marked()) - before if _is_ours(pid)}) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == set()


def _is_ours(pid: int) -> bool:
    """Whether a process stands below this one, or has lost its parents; other tests' drivers have their own."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return False
    return parent in (1, os.getpid())
