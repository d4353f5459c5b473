"""Numbers of a member are rounded alike whoever stands beside it in a tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from objectives.stacking import autocast_product, in_blocks

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
