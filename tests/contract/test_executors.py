"""What every executor does with packs; one suite for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from sweep_cases import QUADRATIC

from orchestrator.driver.packing import make_packs
from orchestrator.executors import Executor
from orchestrator.executors.inline import InlineExecutor
from orchestrator.messages import Event, PackStarted, Report
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document
from orchestrator.worker.run import run_pack


def make_ray() -> Executor:
    from orchestrator.executors.ray_tune import RayTuneExecutor

    return RayTuneExecutor(cpus=1, gpus=0, parallel=2, workers=1, address=None)


@pytest.fixture(scope="module", params=[InlineExecutor, make_ray], ids=["inline", "ray"])
def executor(request) -> Iterator[Executor]:
    made = request.param()
    yield made
    made.close()


def packs(*sets: str):
    sweep = build_sweep(parse_document(QUADRATIC, "edge.yaml"), Overrides(sets=("resources.pack=3", *sets)))
    return make_packs(sweep, sweep.trials, 1)


def events_until(executor: Executor, is_over: Callable[[list[Event]], bool]) -> list[Event]:
    events: list[Event] = []
    deadline = time.monotonic() + 120
    while not is_over(events):
        assert time.monotonic() < deadline, events
        events += executor.poll(0.2)
    return events


def last_reports(events: list[Event]) -> dict[str, Report]:
    return {event.pack_id: event for event in events if isinstance(event, Report) and event.is_last}


def test_every_pack_starts_reports_and_ends_with_the_numbers_of_the_worker(executor: Executor) -> None:
    submitted = packs()
    for pack in submitted:
        executor.submit(pack)
    events = events_until(executor, lambda events: len(last_reports(events)) == len(submitted))
    assert {e.pack_id for e in events if isinstance(e, PackStarted)} == {pack.pack_id for pack in submitted}
    for pack in submitted:
        mine = [event for event in events if event.pack_id == pack.pack_id]
        assert isinstance(mine[0], PackStarted)
        expected = [finished for report in run_pack(pack) for finished in report.finished]
        assert [f for event in mine[1:] for f in event.finished] == expected


def test_curves_arrive_with_what_is_not_finite_in_them(executor: Executor) -> None:
    (pack,) = packs("axes={lr: {values: [1.0e+200]}}", "seeds=[0]")
    executor.submit(pack)
    events = events_until(executor, lambda events: bool(last_reports(events)))
    curves = [trace["loss"] for event in events[1:] for trace in event.traces.values()]
    assert not np.isfinite(np.concatenate(curves)).all()
    assert [f.outcome for event in events[1:] for f in event.finished] == ["diverged"]


def test_a_trainer_that_raises_is_reported_and_the_next_pack_trains(executor: Executor, tmp_path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("too short to train on")
    broken = build_sweep(parse_document(f"name: a\nobjective: gpt\nsteps: 5\nfixed: {{text: ['{text}']}}\n", "a.yaml"))
    executor.submit(make_packs(broken, broken.trials, 1)[0])
    executor.submit(packs()[0])
    events = events_until(executor, lambda events: len(last_reports(events)) == 2)
    errors = [report.error for report in last_reports(events).values()]
    assert errors[1] is None or errors[0] is None
    assert "21 bytes" in (errors[0] or errors[1])
