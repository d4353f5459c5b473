from __future__ import annotations

import pytest

from objectives.models.gpt_model import depth_of
from objectives.stacking.layer_names import longest_beginning, refuse_idle_beginnings, third_of_depth


def test_the_longest_beginning_counts_in_whatever_order_they_are_given() -> None:
    for beginnings in (("block1", "block10"), ("block10", "block1")):
        assert longest_beginning("block10.weight", beginnings) == "block10"
        assert longest_beginning("block1.weight", beginnings) == "block1"
        assert longest_beginning("head", beginnings) is None


@pytest.mark.parametrize("depth", range(1, 13))
def test_the_thirds_mirror_each_other_and_only_one_block_has_no_shallow_and_no_deep_part(depth: int) -> None:
    parts = [third_of_depth(block, depth) for block in range(depth)]
    mirrored = {"shallow": "deep", "middle": "middle", "deep": "shallow"}
    assert [mirrored[part] for part in reversed(parts)] == parts
    assert ("shallow" in parts) == (depth > 1)
    assert parts == [depth_of(f"{block}.mlp_in", depth) for block in range(depth)]


@pytest.mark.parametrize(("groups", "blocks"), [(["inn"], []), ([], ["block0", "blok1"])])
def test_a_beginning_that_fits_no_weight_is_refused_with_the_names_that_there_are(groups, blocks) -> None:
    refuse_idle_beginnings(["in"], ["block0"], ["in", "block0.weight"])
    with pytest.raises(ValueError, match=r"no weight begins with '(inn|blok1)'; there are in, block0.weight"):
        refuse_idle_beginnings(groups, blocks, ["in", "block0.weight"])
