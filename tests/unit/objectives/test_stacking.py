"""Columns of weights, rounding that ignores who shares a tensor, and compilation."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from pack_cases import cannot_compile

from objectives.fields import third_of_depth
from objectives.models.gpt_model import depth_of
from objectives.stacking import (
    ALL,
    BLOCK,
    Compiled,
    Layout,
    autocast_product,
    check_prefixes,
    in_blocks,
    longest_prefix,
)

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


# Shapes: K members, N rows, I and O columns.

HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
# Alone and together below and above the sizes at which torch changes libraries; rows fill whole blocks of 16 bytes.
SIZES = [(2, 4, 8), (3, 16, 12), (8, 12, 24), (16, 8, 24), (16, 16, 16), (5, 36, 20), (24, 24, 8), (40, 20, 60)]


def normal(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def alone_and_together(function: Callable[..., list[torch.Tensor]], *values: torch.Tensor) -> None:
    """Members of packs of every size from 1 on have the bits that they have in the pack of all."""
    together, num_members = function(*values), len(values[0])
    for first in range(num_members):
        size = 1 + first % 3
        found = function(*(value[first : first + size].clone() for value in values))
        for name, (of_some, of_all) in enumerate(zip(found, together, strict=True)):
            assert torch.equal(of_some, of_all[first : first + size]), f"result {name} of {size} from {first} on"


def product_and_gradients(
    product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> Callable[..., list[torch.Tensor]]:
    def of(a_KNI: torch.Tensor, b_KIO: torch.Tensor, d_KNO: torch.Tensor) -> list[torch.Tensor]:
        a_KNI, b_KIO = (value.detach().requires_grad_() for value in (a_KNI, b_KIO))
        with torch.autocast("cpu", dtype):
            out_KNO = product(a_KNI, b_KIO)
        out_KNO.backward(d_KNO.to(out_KNO.dtype))
        return [out_KNO.detach(), a_KNI.grad, b_KIO.grad]

    return of


def cancelling(K: int, N: int, inner: int, outer: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Factors whose products are sums that nearly cancel, so that their order shows in few bits."""
    a_KNI, b_KIO, d_KNO = (
        normal(K, N, inner, seed=seed),
        normal(K, inner, outer, seed=seed + 1),
        normal(K, N, outer, seed=seed),
    )
    half = inner // 2
    a_KNI[..., half : 2 * half] = a_KNI[..., :half]
    b_KIO[:, half : 2 * half] = -b_KIO[:, :half] * (1 + normal(K, half, outer, seed=seed + 2) / 100)
    return a_KNI, b_KIO, d_KNO


@HALVES
@pytest.mark.parametrize(("N", "inner", "outer"), SIZES, ids=str)
def test_a_product_under_autocast_has_the_same_bits_whoever_shares_the_pack(
    dtype, N: int, inner: int, outer: int
) -> None:
    for seed in range(4):
        values = cancelling(17, N, inner, outer, seed)
        alone_and_together(product_and_gradients(autocast_product, dtype), *values)


@HALVES
@pytest.mark.parametrize(("N", "inner", "outer"), SIZES, ids=str)
def test_a_product_under_autocast_is_the_exact_one_of_rounded_operands_rounded_once(dtype, N, inner, outer) -> None:
    """To one unit in the last place, and what float32 loses where sums cancel; so are its gradients, as torch's are."""
    a_KNI, b_KIO, d_KNO = (normal(3, *size, seed=N) for size in ((N, inner), (inner, outer), (N, outer)))
    a, b, d = (value.to(dtype).double() for value in (a_KNI, b_KIO, d_KNO))
    exact = [torch.bmm(a, b), torch.bmm(d, b.mT), torch.bmm(a.mT, d)]
    eps, largest = torch.finfo(dtype).eps, 1e-5
    for product in (autocast_product, torch.bmm):
        found = product_and_gradients(product, dtype)(a_KNI, b_KIO, d_KNO)
        assert [value.dtype for value in found] == [dtype, torch.float32, torch.float32]
        for value, expected in zip(found, exact, strict=True):
            torch.testing.assert_close(value.double(), expected, rtol=eps, atol=largest)
            assert torch.equal(value, value.to(dtype).to(value.dtype)), "gradients are rounded too"


def test_without_autocast_a_product_is_the_plain_one() -> None:
    a_KNI, b_KIO = normal(3, 5, 8), normal(3, 8, 4, seed=1)
    assert torch.equal(autocast_product(a_KNI, b_KIO), torch.bmm(a_KNI, b_KIO))
    assert autocast_product(a_KNI.double(), b_KIO.double()).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("size", [(3, 8), (6, 12), (5, 20), (1, 4), (7, 7), (16, 64)], ids=str)
def test_a_function_in_blocks_has_the_same_bits_whoever_shares_the_pack(dtype: torch.dtype, size) -> None:
    def gelu(value: torch.Tensor, d_out: torch.Tensor) -> list[torch.Tensor]:
        value = value.detach().requires_grad_()
        out = in_blocks(F.gelu, value)
        out.backward(d_out)
        return [out.detach(), value.grad]

    values = tuple((3 * normal(17, *size, seed=seed)).to(dtype) for seed in range(2))
    alone_and_together(gelu, *values)
    found, plain = gelu(*values)[0], F.gelu(values[0])
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found, plain, rtol=2 * eps, atol=2 * eps)


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@pytest.mark.parametrize("error", [RuntimeError("\nno C++ compiler\nat all"), OSError("no C++ compiler"),
                                   ImportError("no C++ compiler")], ids=lambda e: type(e).__name__)  # fmt: skip
def test_what_cannot_be_compiled_is_an_error_of_one_line_with_a_remedy(monkeypatch, error) -> None:
    monkeypatch.setattr(torch, "compile", cannot_compile(error))
    with pytest.raises(
        RuntimeError, match=r"^compilation failed: no C\+\+ compiler \(resources.compile: false "
    ) as found:
        Compiled(double)(torch.tensor(1.0))
    assert "\n" not in str(found.value)


def test_where_torch_refuses_to_compile_at_all_the_error_says_so(monkeypatch) -> None:
    def refuse(*_, **__):
        raise RuntimeError("torch.compile is not supported on this Python")

    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.raises(RuntimeError, match="not supported on this Python"):
        Compiled(double)(torch.tensor(1.0))


def test_an_error_of_the_function_itself_is_not_taken_for_one_of_the_compiler(monkeypatch) -> None:
    monkeypatch.setattr(torch, "compile", cannot_compile(ValueError("x is too small")))
    with pytest.raises(ValueError, match="too small"):
        Compiled(double)(torch.tensor(1.0))


def test_once_it_has_run_compiled_an_error_is_an_error(monkeypatch) -> None:
    def compile_(function, **options):
        def compiled(x):
            if x > 1:
                raise RuntimeError("out of memory")
            return function(x)

        return compiled

    monkeypatch.setattr(torch, "compile", compile_)
    function = Compiled(double)
    assert float(function(torch.tensor(1.0))) == 2.0
    with pytest.raises(RuntimeError, match="memory"):
        function(torch.tensor(2.0))
