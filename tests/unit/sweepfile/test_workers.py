"""Trials of a built-in objective whose batches several workers share."""

from pathlib import Path

import pytest
from sweep_cases import refusal, sweep_of

from orchestrator.answers.plan import PlanQuery
from orchestrator.driver.packing import make_packs

GPT = "name: case\nobjective: gpt\nsteps: 20\n"
AXES = "axes: {batch_size: {values: [8, 16]}}\n"


def test_the_global_batch_is_micro_batch_times_accumulate_times_workers(tmp_path: Path) -> None:
    sweep = sweep_of(f"{AXES}fixed: {{accumulate: 2}}\nresources: {{workers: 2}}\n", GPT)
    lines = PlanQuery().ask((sweep, tmp_path)).lines()
    assert "batch:    batch_size = micro_batch x accumulate x 2 workers; micro_batch: 2 .. 4" in lines


def test_a_trial_of_several_workers_trains_alone_and_is_the_same_trial() -> None:
    many, one = (sweep_of(f"{AXES}seeds: [0, 1]\nresources: {{workers: {n}}}\n", GPT) for n in (2, 1))
    packs = make_packs(many, many.trials, 1)
    assert {(pack.workers, pack.width) for pack in packs} == {(2, 1)}
    assert {(pack.workers, pack.width) for pack in make_packs(one, one.trials, 1)} == {(1, None)}
    assert [trial.trial_id for trial in many.trials] == [trial.trial_id for trial in one.trials]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"{AXES}resources: {{workers: 3}}\n", "axes.batch_size: batch_size = 8 is not a multiple of"),
        ("fixed: {accumulate: 8}\nresources: {workers: 2}\n", "accumulate x workers = 8 x 2 = 16"),
        ("resources: {workers: 2, pack: 4}\n", "resources.pack: 4 members at a time, and 2 workers share"),
        ("resources: {workers: 2, compile: true}\n", "resources.compile: gpt is not compiled"),
        ("resources: {workers: 2, gpus: 1}\n", "resources.gpus: several workers of gpt train on CPUs"),
        ("resources: {workers: 2, gpus_per_worker: 1}\n", "resources.gpus_per_worker: several workers"),
        ("resources: {gpus_per_worker: 1}\n", "resources.workers: gpt trains in one process"),
        ("fixed: {experts: 4}\nresources: {workers: 2}\n", "fixed.experts: experts = 4 needs one process"),
        ("fixed: {precision: float16}\nresources: {workers: 2}\n", "precision = float16 needs one process"),
        (
            "interventions: [{at: 5, precision: float64}]\nresources: {workers: 2}\n",
            "interventions: interventions on precision need one process",
        ),
    ],
)
def test_what_workers_cannot_share_is_refused_in_one_line(body: str, message: str) -> None:
    refused = refusal(body, GPT)
    assert message in refused
    assert len(refused.splitlines()) == 2, "one problem and its remedy"
