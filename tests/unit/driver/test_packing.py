import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import sweep_of, sweep_with
from tiers import examples

import orchestrator
from orchestrator.api.results import SweepResults
from orchestrator.driver.packing import make_packs, plan_text, structure_of, trials_at_a_time
from orchestrator.driver.planning import check_same_axes
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor


@settings(max_examples=examples(40))
@given(
    cells=st.integers(1, 40),
    seeds=st.integers(1, 3),
    sizes=st.integers(1, 3),
    pack=st.sampled_from(["auto", 1, 3, 100]),
    workers=st.integers(1, 5),
)
def test_every_trial_is_in_one_pack_of_its_own_structure(cells, seeds, sizes, pack, workers) -> None:
    sweep = sweep_of(
        f"seeds: {list(range(seeds))}\nresources: {{pack: {pack}}}\n"
        f"axes:\n  lr: {{linear: [0.1, 1], num: {cells}}}\n  batch_size: {{values: {list(range(1, sizes + 1))}}}\n"
    )
    packs = make_packs(sweep, sweep.trials, workers)
    assert sorted(t for p in packs for t in p.trial_ids) == sorted(t.trial_id for t in sweep.trials)
    by_id = {trial.trial_id: trial for trial in sweep.trials}
    for p in packs:
        assert p.members
        assert len({structure_of(sweep, by_id[t]) for t in p.trial_ids}) == 1
        assert p.width == (None if pack == "auto" else pack)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("trials", [1, 7, 126, 1000])
def test_workers_end_together_when_each_takes_the_next_pack_as_it_gets_free(workers: int, trials: int) -> None:
    sweep = sweep_of(f"resources: {{pack: 10}}\naxes: {{lr: {{linear: [0.1, 1], num: {trials}}}}}\n")
    packs = make_packs(sweep, sweep.trials, workers)
    free_at = [0] * workers
    for pack in packs:
        free_at[free_at.index(min(free_at))] += len(pack.members)
    assert max(free_at) - min(free_at) <= 10, "at most one round of members"
    assert max(free_at) <= max(trials / workers + 10, 1)
    assert len(packs) <= 2 * workers * (2 + trials.bit_length()), "few starts, however many trials"


@pytest.mark.parametrize(
    ("axis", "splits"),
    [("lr: {values: [1, 2]}", False), ("clip: {values: [null, 1]}", False), ("beta1: {values: [0, 0.5]}", False),
     ("warmup: {values: [0, 5]}", False), ("curvature: {values: [1, 2]}", False),
     ("batch_size: {values: [1, 2]}", True), ("optimizer: {values: [sgd, adamw]}", True),
     ("schedule: {values: [cosine, linear]}", True), ("dimension: {values: [2, 3]}", True)],
)  # fmt: skip
def test_numbers_share_a_pack_and_structure_splits_it(axis: str, splits: bool) -> None:
    sweep = sweep_of(f"resources: {{pack: 16}}\naxes: {{{axis}}}\n")
    assert len(make_packs(sweep, sweep.trials, 1)) == (2 if splits else 1)


@pytest.mark.parametrize(
    ("trials", "batch", "slots", "together"),
    [
        (128, "null", 2, (8, 16)),
        (128, "null", 1, (16, 16)),
        (24, "null", 2, (4, 8)),
        (128, "null", 32, (1, 32)),
        (128, "32", 2, (20, 40)),
        (1024, "null", 2, (20, 40)),
    ],
)
def test_a_search_for_the_edge_has_few_trials_under_way_and_no_idle_worker(trials, batch, slots, together) -> None:
    body = f"resources: {{pack: 20}}\nsearch: {{method: edge, trials: {trials}, batch: {batch}}}\n"
    sweep = sweep_of(body + "axes: {lr: {log: [0.1, 1]}, beta1: {linear: [0, 0.9]}}\n")
    assert trials_at_a_time(sweep, slots) == together


def test_the_members_of_a_pack_have_as_many_steps_as_the_pack() -> None:
    axes = "axes: {lr: {values: [0.1, 0.2, 0.3]}, batch_size: {values: [4, 8, 16]}}\nfixed: {context: 32}\n"
    sweep = sweep_of(f"tokens: 4096\nresources: {{pack: 2}}\n{axes}", "name: case\nobjective: gpt\n")
    packs = make_packs(sweep, sweep.trials, 1)
    assert {pack.steps for pack in packs} == {32, 16, 8}
    assert all(member.config["steps"] == pack.steps for pack in packs for member in pack.members)


def test_what_is_said_of_how_packs_train_names_the_axes_that_set_them_apart_and_no_measurement() -> None:
    said = "4 at a time, 1.8 times as fast as 1: member-steps/s a worker, measured: 1 at a time: 396"
    size = "resources: {pack: 20}\n"
    axes = "lr: {values: [0.1, 0.2]}, batch_size: {values: [1, 8]}, dimension: {values: [3]}"
    sweep = sweep_of(f"{size}axes: {{{axes}}}\n")
    packs = make_packs(sweep, sweep.trials, 1)
    short = "4 at a time, 1.8 times as fast as 1"
    assert {plan_text(sweep, pack, said) for pack in packs} == {
        f"packs of batch_size 1, dimension 3: {short}",
        f"packs of batch_size 8, dimension 3: {short}",
    }
    alike = sweep_of(size + "axes: {lr: {values: [0.1, 0.2]}}\n")
    (pack,) = make_packs(alike, alike.trials, 1)
    assert plan_text(alike, pack, said) == f"packs: {short}"


@settings(max_examples=examples(30))
@given(lrs=st.integers(1, 6), changes=st.integers(1, 6), seeds=st.integers(1, 4), pack=st.integers(1, 20))
def test_trials_that_differ_by_interventions_alone_are_side_by_side_in_as_few_packs_as_may_be(
    lrs, changes, seeds, pack
) -> None:
    entries = "".join(f", [{{at: {i}, skip: 1}}]" for i in range(1, changes))
    sweep = sweep_of(
        f"seeds: {list(range(seeds))}\nresources: {{pack: {pack}}}\n"
        f"axes:\n  lr: {{linear: [0.1, 1], num: {lrs}}}\n  interventions: {{values: [[]{entries}]}}\n"
    )
    packs = make_packs(sweep, sweep.trials, 2)
    assert sorted(t for p in packs for t in p.trial_ids) == sorted(t.trial_id for t in sweep.trials)
    families = [(member.config["lr"], member.seed) for each in packs for member in each.members]
    assert sum(a != b for a, b in itertools.pairwise(families)) == lrs * seeds - 1
    for low, high in itertools.pairwise(packs):
        last, first = low.members[-1], high.members[0]
        is_cut = (last.config["lr"], last.seed) == (first.config["lr"], first.seed)
        assert not is_cut or changes > 1
        assert not (is_cut and changes < max(len(each.members) for each in packs) // 2)


def test_without_interventions_trials_are_packed_in_the_order_of_the_sweep() -> None:
    sweep = sweep_of("seeds: [0, 1]\nresources: {pack: 3}\naxes: {lr: {linear: [0.1, 1], num: 7}}\n")
    packs = make_packs(sweep, sweep.trials, 1)
    assert [t for p in packs for t in p.trial_ids] == [trial.trial_id for trial in sweep.trials]


BASE = "name: case\nobjective: quadratic\nsteps: 60\n"


def results(folder: Path, body: str) -> SweepResults:
    sweep = sweep_of(f"{body}tracking: {{enabled: false}}\n", BASE)
    assert run_sweep(sweep, folder, InlineExecutor).exit_code == 0
    return orchestrator.load(folder)


def brackets(found: SweepResults) -> list[list[tuple[float, float]]]:
    """The edges of each row."""
    return [[(edge["stable"], edge["not_stable"]) for edge in row["edges"]] for row in found.boundary().rows]


def test_tied_to_the_curvature_the_edge_of_gradient_descent_is_at_a_base_of_two_everywhere(tmp_path: Path) -> None:
    found = results(
        tmp_path,
        "axes: {lr: {values: [0.5, 1.5, 2.5, 5.0]}, curvature: {values: [0.1, 1.0, 30.0]}}\n"
        "fixed: {optimizer: sgd, beta1: 0.0}\n"
        "tie: {lr: lr / curvature}\n",
    )
    assert brackets(found) == [[(1.5, 2.5)]] * 3
    assert found.trials.effective_lr.tolist() == pytest.approx((found.trials.lr / found.trials.curvature).tolist())


def test_zipped_with_the_curvature_so_is_the_edge_of_their_product(tmp_path: Path) -> None:
    found = results(
        tmp_path,
        "axes: {lr: {values: [10, 1, 0.1]}, curvature: {values: [0.15, 1.5, 25]}}\n"
        "fixed: {optimizer: sgd, beta1: 0.0}\nzip: [[lr, curvature]]\n",
    )
    assert brackets(found) == [[(1.0, 0.1)]]
    assert len(found.trials) == 3


def test_momentum_exists_for_one_optimizer_only(tmp_path: Path) -> None:
    found = results(
        tmp_path,
        "axes:\n  lr: {log: [0.1, 10], num: 5}\n  optimizer: {values: [sgd, adamw]}\n"
        "  beta1: {values: [0.0, 0.5], when: {optimizer: sgd}}\n",
    )
    assert len(found.trials) == 15
    assert sorted(found.trials.groupby("optimizer").beta1.nunique(dropna=False).items()) == [("adamw", 1), ("sgd", 2)]
    rows = found.boundary("lr", "beta1", where={"optimizer": "sgd"}).rows
    (edges,) = [row["edges"] for row in rows if row["setting"] == {"beta1": 0.0}]
    assert [edge["stable"] for edge in edges] == [1.0]
    assert found.recommend(1.5).chosen.setting["optimizer"] == "sgd"


def test_a_ledger_that_another_driver_has_just_created_is_no_results_of_another_question(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").touch()
    check_same_axes(sweep_with(), tmp_path)
