"""The C++ part of a measurement of the curvature, over quadratic forms: it finds what torch's finds."""

import ctypes
import math
from pathlib import Path

import pytest
import torch
from curvature_cases import quadratic_forms
from tiers import one_of, thinned

from objectives.instruments.curvature import Curvature, measure_curvature
from objectives.models.gpt_native import address
from objectives.native import library

# Shapes: R members, n parameters of each.

DOUBLE, SINGLE = torch.float64, torch.float32
NUM_PRODUCTS = thinned([1, 2, 3, 6, 12], lambda num: num == 6)
FORMS = """
#include "curvature.hpp"
using sweep::real;

// Of members whose loss is x.(A x) / 2.
extern "C" void measure(
    int members, int n, const real* matrix, const real* at, int products, const real* divisor, real* warm,
    double* along_gradient, double* largest) {
    sweep::CurvatureMeter meter;
    meter.gradient.resize(n);
    for (int k = 0; k < members; ++k, matrix += n * n, at += n, divisor += n, warm += n) {
        const auto multiply = [&](const real* vector, real* to) {
            for (int i = 0; i < n; ++i) {
                double sum = 0;
                for (int j = 0; j < n; ++j) sum += static_cast<double>(matrix[i * n + j]) * vector[j];
                to[i] = static_cast<real>(sum);
            }
        };
        multiply(at, meter.gradient.data());
        meter.measure(products, divisor, warm, along_gradient + k, largest + k, multiply);
    }
}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[torch.dtype, ctypes.CDLL]:
    """By the type of their numbers."""
    folder = tmp_path_factory.mktemp("kernels")
    source = folder / "forms.cpp"
    source.write_text(FORMS)
    return {dtype: compiled(source, real) for dtype, real in ((DOUBLE, "double"), (SINGLE, "float"))}


def compiled(source: Path, real: str) -> ctypes.CDLL:
    target = source.with_name(f"{real}.so")
    flags = [*library._flags(), library.KERNELS["hessian"], f"-I{Path(library.__file__).parent}", f"-DREAL={real}"]
    library._call_compiler([*flags, str(source), "-o", str(target)])
    return ctypes.CDLL(str(target))


def gaussian(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


class Forms:
    """Five members of 64 numbers; a test changes what it is about."""

    def __init__(self, dtype: torch.dtype = DOUBLE) -> None:
        matrix_Rnn = gaussian(5, 64, 64)
        self.matrix_Rnn = ((matrix_Rnn + matrix_Rnn.mT) / 2).to(dtype)
        self.at_Rn, self.warm_Rn = gaussian(5, 64, seed=1).to(dtype), gaussian(5, 64, seed=2).to(dtype)
        self.divisor_Rn = (0.5 + gaussian(5, 64, seed=3).abs()).to(dtype)

    def by_kernel(self, kernels: dict[torch.dtype, ctypes.CDLL], num_products: int) -> Curvature:
        warm_Rn, found_2R = self.warm_Rn.clone(), torch.empty(2, len(self.at_Rn), dtype=DOUBLE)
        kernels[self.at_Rn.dtype].measure(
            *map(ctypes.c_int, self.at_Rn.shape), address(self.matrix_Rnn), address(self.at_Rn),
            ctypes.c_int(num_products), address(self.divisor_Rn), address(warm_Rn), *map(address, found_2R),
        )  # fmt: skip
        return Curvature(*found_2R, warm_Rn)

    def by_torch(self, num_products: int) -> Curvature:
        """In double precision."""
        forms = quadratic_forms(self.matrix_Rnn.double(), self.at_Rn.double())
        ones_R = torch.ones(len(self.at_Rn), dtype=DOUBLE)
        return measure_curvature(forms, self.divisor_Rn.double(), ones_R, self.warm_Rn.double(), num_products)


def assert_same(found: Curvature, expected: Curvature, tolerance: float, rows: slice = slice(None)) -> None:
    for name in ("lambda_max_R", "lambda_grad_R", "warm_Rn"):
        values = (getattr(measured, name)[rows].double() for measured in (found, expected))
        torch.testing.assert_close(*values, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("num_products", NUM_PRODUCTS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(SINGLE, 1e-4), (DOUBLE, 1e-11)], ids=["f32", "f64"])
def test_curvature_and_warm_vectors_are_torchs(kernels, dtype, tolerance: float, num_products: int) -> None:
    """Within 1e-11, in single precision within 1e-4, from a warm start and from none."""
    forms = Forms(dtype)
    forms.warm_Rn[:2] = 0
    assert_same(forms.by_kernel(kernels, num_products), forms.by_torch(num_products), tolerance)


def test_as_many_products_as_numbers_give_the_largest_eigenvalue(kernels) -> None:
    """To 1e-10, of forms whose eigenvalues have any sign, only positive or only negative ones."""
    for shift in (0.0, 20.0, -20.0):
        forms = Forms()
        forms.matrix_Rnn += shift * torch.eye(64, dtype=DOUBLE)
        scale_Rn = forms.divisor_Rn.rsqrt()
        expected_R = torch.linalg.eigvalsh(scale_Rn[:, :, None] * forms.matrix_Rnn * scale_Rn[:, None])[:, -1]
        found_R = forms.by_kernel(kernels, 64).lambda_max_R
        torch.testing.assert_close(found_R, expected_R, rtol=1e-10, atol=0)


def test_eigenvalues_that_lie_close_are_told_apart(kernels) -> None:
    """The largest one to 1e-12, where the second is smaller by 1e-2 to 1e-8."""
    forms = Forms()
    turn_nn = torch.linalg.qr(gaussian(64, 64)).Q
    for k, gap in enumerate([1e-2, 1e-3, 1e-4, 1e-6, 1e-8]):
        eigenvalues_n = torch.tensor([1, 1 - gap, *torch.linspace(-1, 0.5, 6).tolist() * 10, -1, -1], dtype=DOUBLE)
        forms.matrix_Rnn[k] = (turn_nn * eigenvalues_n) @ turn_nn.mT
    forms.divisor_Rn[:], forms.warm_Rn[:] = 1, 0
    found_R = forms.by_kernel(kernels, 12).lambda_max_R
    torch.testing.assert_close(found_R, torch.ones(5, dtype=DOUBLE), rtol=1e-12, atol=0)


@pytest.mark.parametrize("scale", one_of(2, [1e-30, 1e30]), ids=["tiny", "huge"])
def test_gradients_and_divisors_of_any_size_are_measured(kernels, scale: float) -> None:
    """In single precision, where their squares are 0 or infinite."""
    forms = Forms(SINGLE)
    forms.at_Rn *= scale
    forms.divisor_Rn *= scale
    expected, found = forms.by_torch(6), forms.by_kernel(kernels, 6)
    for name in ("lambda_max_R", "lambda_grad_R"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=0)


@pytest.mark.parametrize("num_products", NUM_PRODUCTS)
def test_a_warm_vector_along_the_gradient_adds_nothing(kernels, num_products: int) -> None:
    warm, cold = Forms(), Forms()
    warm.warm_Rn = -3 * (warm.matrix_Rnn @ warm.at_Rn[:, :, None])[:, :, 0] / warm.divisor_Rn.sqrt()
    cold.warm_Rn[:] = 0
    assert_same(warm.by_kernel(kernels, num_products), cold.by_kernel(kernels, num_products), 1e-11)


@pytest.mark.parametrize("num_products", NUM_PRODUCTS)
def test_a_member_without_a_gradient_has_what_its_warm_vector_supports(kernels, num_products: int) -> None:
    forms = Forms()
    forms.at_Rn[:2] = 0
    forms.warm_Rn[1] = 0
    found = forms.by_kernel(kernels, num_products)
    assert found.lambda_grad_R.isnan().tolist() == [True, True, False, False, False]
    assert found.lambda_max_R.isnan().tolist() == [num_products == 1, True, False, False, False]
    assert not found.warm_Rn[1].any()
    assert_same(found, forms.by_torch(num_products), 1e-11)


@pytest.mark.parametrize("poison", one_of(3, [math.nan, math.inf, -math.inf]))
@pytest.mark.parametrize("where", one_of(3, ["at_Rn", "divisor_Rn", "warm_Rn"]))
@pytest.mark.parametrize("num_products", one_of(2, [6, 1]))
def test_what_is_not_finite_in_one_member_changes_nobody_else(kernels, poison, where: str, num_products: int) -> None:
    """Bit for bit, and the member itself starts afresh at the next measurement."""
    clean, forms = Forms(), Forms()
    getattr(forms, where)[1, 13] = poison
    expected, found = clean.by_kernel(kernels, num_products), forms.by_kernel(kernels, num_products)
    for name in ("lambda_grad_R", "lambda_max_R", "warm_Rn"):
        others = [0, 2, 3, 4]
        assert torch.equal(getattr(found, name)[others], getattr(expected, name)[others])
    assert found.warm_Rn.isfinite().all()
    assert_same(found, forms.by_torch(num_products), 1e-11)
