from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from objectives.models.gpt_model import depth_of
from objectives.stacking import ALL, BLOCK, Layout, check_prefixes, longest_prefix, third_of_depth

SHAPES = {"embedding": (5, 3), "gain": (3,), "matrix": (3, 4), "offset": (), "last": (2, 2)}
GROUP_OF = {"embedding": "embedding", "gain": "norm", "matrix": "mlp", "offset": "norm", "last": "mlp"}
LAYOUT = Layout(SHAPES, GROUP_OF)
SIZES = st.lists(st.integers(1, 90), min_size=1, max_size=5)


def numbers(num_members: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_members, size, generator=torch.Generator().manual_seed(seed))


def test_weights_stand_side_by_side_in_order_and_zeros_fill_the_last_block() -> None:
    assert [(p.name, p.start, p.end, p.size) for p in LAYOUT.pieces] == [
        ("embedding", 0, 15, 15),
        ("gain", 15, 18, 3),
        ("matrix", 18, 30, 12),
        ("offset", 30, 31, 1),
        ("last", 31, 35, 4),
    ]
    assert LAYOUT.size == 2 * BLOCK
    assert Layout({"x": (BLOCK,)}).size == BLOCK


def test_groups_come_in_the_order_of_their_first_weights() -> None:
    assert LAYOUT.groups == ["embedding", "norm", "mlp"]
    assert LAYOUT.weights_of_groups() == {"embedding": [0], "norm": [1, 3], "mlp": [2, 4], ALL: [0, 1, 2, 3, 4]}
    assert Layout(SHAPES).groups == [ALL], "without groups there is one"


@pytest.mark.parametrize("num_members", [1, 4])
def test_sums_norms_and_factors_of_weights_are_those_of_each_ones_columns(num_members: int) -> None:
    value_Kn, factor_KT = numbers(num_members, LAYOUT.size), numbers(num_members, 5, 1)
    sums_KT, norms_KT = LAYOUT.sums_per_weight(value_Kn), LAYOUT.norms_per_weight(value_Kn)
    scaled_Kn, spread_Kn = value_Kn.clone(), LAYOUT.spread(factor_KT)
    LAYOUT.scale(scaled_Kn, factor_KT)
    for t, piece in enumerate(LAYOUT.pieces):
        columns = slice(piece.start, piece.end)
        torch.testing.assert_close(sums_KT[:, t], value_Kn[:, columns].sum(1))
        torch.testing.assert_close(norms_KT[:, t], value_Kn[:, columns].norm(dim=1))
        assert torch.equal(scaled_Kn[:, columns], value_Kn[:, columns] * factor_KT[:, [t]])
        assert (spread_Kn[:, columns] == factor_KT[:, [t]]).all()
    filling = slice(LAYOUT.pieces[-1].end, None)
    assert torch.equal(scaled_Kn[:, filling], value_Kn[:, filling])
    assert (spread_Kn[:, filling] == factor_KT[:, [-1]]).all()


@given(sizes=SIZES, num_members=st.integers(2, 9), first=st.integers(0, 8), double=st.booleans())
def test_norms_and_factors_of_a_member_do_not_depend_on_who_shares_the_pack(sizes, num_members, first, double) -> None:
    layout = Layout({f"weight {t}": (size,) for t, size in enumerate(sizes)})
    dtype, row = (torch.float64 if double else torch.float32), first % num_members
    value_Kn = numbers(num_members, layout.size).to(dtype)
    norms_KT = layout.norms_per_weight(value_Kn)
    assert torch.equal(layout.norms_per_weight(value_Kn[[row]]), norms_KT[[row]])
    assert torch.equal(layout.norms_per_weight(value_Kn[row:]), norms_KT[row:])
    alone = value_Kn[[row]]
    layout.scale(alone, norms_KT[[row]])
    layout.scale(value_Kn, norms_KT)
    assert torch.equal(alone, value_Kn[[row]])


def test_the_longest_prefix_counts_in_whatever_order_they_are_given() -> None:
    for prefixes in (("block1", "block10"), ("block10", "block1")):
        assert longest_prefix("block10.weight", prefixes) == "block10"
        assert longest_prefix("block1.weight", prefixes) == "block1"
        assert longest_prefix("head", prefixes) is None


@pytest.mark.parametrize("depth", range(1, 13))
def test_the_thirds_mirror_each_other_and_only_one_block_has_no_shallow_and_no_deep_part(depth: int) -> None:
    parts = [third_of_depth(block, depth) for block in range(depth)]
    mirrored = {"shallow": "deep", "middle": "middle", "deep": "shallow"}
    assert [mirrored[part] for part in reversed(parts)] == parts
    assert ("shallow" in parts) == (depth > 1)
    assert parts == [depth_of(f"{block}.mlp_in", depth) for block in range(depth)]


@pytest.mark.parametrize(("groups", "blocks"), [(["inn"], []), ([], ["block0", "blok1"])])
def test_a_prefix_without_a_weight_is_refused_with_the_names_that_there_are(groups, blocks) -> None:
    check_prefixes(["in"], ["block0"], ["in", "block0.weight"])
    with pytest.raises(ValueError, match=r"no weight starts with '(inn|blok1)'; there are in, block0.weight"):
        check_prefixes(groups, blocks, ["in", "block0.weight"])
