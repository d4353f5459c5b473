from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import sweep_of

from orchestrator.packing import make_packs, structure_of


@settings(max_examples=40, deadline=None)
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
        assert len(p.members) <= (16 if pack == "auto" else pack)


def test_automatic_packs_are_balanced_over_the_workers() -> None:
    sweep = sweep_of("axes: {lr: {linear: [0.1, 1], num: 126}}\n")
    sizes = [len(pack.members) for pack in make_packs(sweep, sweep.trials, 3)]
    assert len(sizes) % 3 == 0
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("axis", "splits"),
    [("lr: {values: [1, 2]}", False), ("clip: {values: [null, 1]}", False), ("beta1: {values: [0, 0.5]}", False),
     ("warmup: {values: [0, 5]}", False), ("curvature: {values: [1, 2]}", False),
     ("batch_size: {values: [1, 2]}", True), ("optimizer: {values: [sgd, adamw]}", True),
     ("schedule: {values: [cosine, linear]}", True), ("dimension: {values: [2, 3]}", True)],
)  # fmt: skip
def test_numbers_share_a_pack_and_structure_splits_it(axis: str, splits: bool) -> None:
    sweep = sweep_of(f"axes: {{{axis}}}\n")
    assert len(make_packs(sweep, sweep.trials, 1)) == (2 if splits else 1)
