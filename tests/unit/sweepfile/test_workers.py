"""Trials of a built-in objective whose batches several workers share."""

import json
import math
from pathlib import Path

import pytest
from sweep_cases import refusal, sweep_of

from orchestrator.answers.plan import PlanQuery
from orchestrator.base.resizes import Resize, facts_of, resizes_in
from orchestrator.driver.packing import lookahead, make_packs
from orchestrator.worker.elastic_run import with_workers
from orchestrator.worker.torchrun import largest_that_fits

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
    ("fixed", "fewest", "most", "sizes"),
    [
        ({"batch_size": 8}, 1, 8, (1, 2, 4, 8)),
        ({"batch_size": 12}, 2, 6, (2, 3, 4, 6)),
        ({"batch_size": 12, "accumulate": 2}, 1, 6, (1, 2, 3, 6)),
        ({"batch_size": 8}, 2, 2, (2,)),
    ],
)
def test_an_elastic_trial_has_each_number_of_workers_that_holds_its_global_batch(
    fixed: dict, fewest: int, most: int, sizes: tuple[int, ...]
) -> None:
    body = f"fixed: {json.dumps(fixed)}\nresources: {{workers: {{min: {fewest}, max: {most}}}}}\n"
    sweep = sweep_of(body, GPT)
    (pack,) = make_packs(sweep, sweep.trials, 1)
    assert (pack.sizes, pack.workers, pack.width) == (sizes, most, 1)
    assert lookahead(sweep) == 0


def test_a_fixed_number_of_workers_has_no_other_size() -> None:
    sweep = sweep_of(f"{AXES}resources: {{workers: 2}}\n", GPT)
    assert {pack.sizes for pack in make_packs(sweep, sweep.trials, 1)} == {()}


OWN = """name: case
objective:
  command: "true {global_batch} {lr}"
  resume: {checkpoint: "{folder}/x"}
steps: 20
axes: {lr: {values: [0.1, 1.0]}}
"""


@pytest.mark.parametrize(
    ("batch", "fewest", "most", "sizes"),
    [
        ("{global: 64, micro: 8}", 1, 8, (1, 2, 4, 8)),
        ("{global: 24, micro: 4}", 1, 6, (1, 2, 3, 6)),
        ("{global: 24, accumulation: 2}", 2, 6, (2, 3, 4, 6)),
        ("{global: 64, micro: 8}", 2, 2, (2,)),
    ],
)
def test_an_elastic_trainer_has_each_number_of_workers_that_holds_its_global_batch(
    batch: str, fewest: int, most: int, sizes: tuple[int, ...]
) -> None:
    sweep = sweep_of(f"batch: {batch}\nresources: {{workers: {{min: {fewest}, max: {most}}}}}\n", OWN)
    packs = make_packs(sweep, sweep.trials, 1)
    assert {pack.launch.sizes for pack in packs} == {sizes}
    for size in sizes:
        (member,) = with_workers(packs[0], size).members
        parts = [member.config[name] for name in ("micro_batch", "accumulation", "workers")]
        assert math.prod(parts) == member.config["global_batch"]
        assert parts[2] == size


def test_an_elastic_trial_is_the_same_with_another_range_of_workers() -> None:
    def trials(most: int) -> list[str]:
        sweep = sweep_of(f"batch: {{global: 64, micro: 8}}\nresources: {{workers: {{min: 1, max: {most}}}}}\n", OWN)
        return [trial.trial_id for trial in sweep.trials]

    assert trials(2) == trials(8)


def test_plan_says_the_part_of_the_batch_that_follows_from_the_workers(tmp_path: Path) -> None:
    sweep = sweep_of("batch: {global: 64, micro: 8}\nresources: {workers: {min: 1, max: 4}}\n", OWN)
    lines = PlanQuery().ask((sweep, tmp_path)).lines()
    assert "batch:    accumulation = global_batch / (micro_batch x 1 to 4 workers): 2 .. 8" in lines


@pytest.mark.parametrize(
    ("base", "body", "message"),
    [
        (
            OWN.replace("{global_batch}", ""),
            "resources: {workers: {min: 1, max: 4}}\n",
            "resources.workers: the global batch, which each number",
        ),
        (OWN, "batch: {micro: 8, accumulation: 1}\nresources: {workers: {min: 1, max: 4}}\n", "batch: would change"),
        (OWN, "batch: {global: 64, micro: 8}\nresources: {workers: {min: 3, max: 4}}\n", "global_batch = 64 is not"),
        (OWN, "batch: {global: 64, micro: 8}\nresources: {workers: {min: 4, max: 2}}\n", "min = 4 is more than max"),
        (
            OWN.replace("{global_batch}", ""),
            "batch: {global: 64, micro: 8}\nresources: {workers: {min: 1, max: 4}}\n",
            "resources.workers: the command takes no size of the batch",
        ),
        (
            OWN.replace('  resume: {checkpoint: "{folder}/x"}\n', ""),
            "batch: {global: 64, micro: 8}\nresources: {workers: {min: 1, max: 4}}\n",
            "resources.workers: a trial goes on from its checkpoint",
        ),
    ],
)
def test_an_elastic_trainer_that_could_not_hold_its_batch_is_refused(base: str, body: str, message: str) -> None:
    refused = refusal(body, base)
    assert message in refused
    assert len(refused.splitlines()) == 2, "one problem and its remedy"


def test_restarts_that_a_trial_has_kept_itself_are_events_of_the_curve() -> None:
    restarts = [Resize("a", 20, 4, 2), Resize("a", 30, 2, 2), Resize("a", 60, 2, 4)]
    assert resizes_in([facts_of(restarts)], "a") == [restarts[0], restarts[2]]
    assert resizes_in([facts_of(restarts[:1]), facts_of(restarts)], "a") == [restarts[0], restarts[2]]


@pytest.mark.parametrize(("places", "size"), [(9, 4), (4, 4), (3, 2), (1, 1), (0, 1)])
def test_as_many_workers_as_find_a_place(places: int, size: int) -> None:
    assert largest_that_fits((1, 2, 4), places) == size


def test_a_number_of_workers_that_changes_is_an_event_of_the_curve() -> None:
    steps = [(20, 4, 2), (20, 4, 1), (30, 1, 1), (60, 1, 4)]  # the second attempt trained nothing that was kept
    attempts = [{}, *(Resize("a", *numbers).facts for numbers in steps), Resize("b", 5, 1, 2).facts]
    assert resizes_in(attempts, "a") == [Resize("a", 20, 4, 1), Resize("a", 60, 1, 4)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"{AXES}resources: {{workers: {{min: 1, max: 3}}}}\n", "axes.batch_size: batch_size = 8 is not a multiple of"),
        ("fixed: {batch_size: 8}\nresources: {workers: {min: 3, max: 4}}\n", "fixed.batch_size: batch_size = 8 is not"),
        ("resources: {workers: {min: 4, max: 2}}\n", "resources.workers.min: min = 4 is more than max = 2"),
        ("resources: {workers: {min: 1}}\n", "resources.workers.max: is missing"),
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
