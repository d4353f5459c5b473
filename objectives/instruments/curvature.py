"""The curvature that decides whether training is stable: the Hessian preconditioned as in the optimizer's step.

An update of lr * D m, with a diagonal D and an averaged gradient m of decay beta1, is stable along a direction while
the eigenvalue of c D H there is below 2 / lr. H is the Hessian and c = (1 - beta1) / (1 + beta1). Cohen et al. (arXiv
2207.14484) leave c out and put it into the threshold, 38 / lr at beta1 = 0.9. With the bias correction of Bai et al.
(arXiv 2506.04805), c belongs to the matrix and the threshold is 2 / lr. It is the same law: never apply both. D H has
the eigenvalues of the symmetric D^1/2 H D^1/2, which is measured here. D is 1 / (sqrt(vhat) + eps) for Adam and 1 for
SGD.

Training can become unstable if ``lambda_max``, the largest eigenvalue, exceeds the threshold. It does become unstable
if ``lambda_grad`` (Bai et al.), the curvature along the gradient, exceeds it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from objectives.stacking import alike, rows_of_blocks

# Shapes: R members, n parameters per member, zero-padded to whole blocks, P Hessian-vector products.


Losses = Callable[[dict[str, torch.Tensor]], torch.Tensor]

# A vector within this many roundings of the span of others is not a new direction.
_ROUNDINGS = 1000
# Small matrices are raised to the power 16 ** 10 = 1e12; eigenvalues that this cannot separate count as one.
_ROUNDS, _POWER = 10, 16


class Hessian(Protocol):
    """The gradient of R members at one point, and products with their Hessians."""

    @property
    def gradient_Rn(self) -> torch.Tensor:
        """The gradient of each member, (R, n)."""

    def hessian_product(self, vector_Rn: torch.Tensor) -> torch.Tensor:
        """Return the Hessian of each member times its row of ``vector_Rn``, (R, n)."""

    def curvature(
        self, divisor_Rn: torch.Tensor, factor_R: torch.Tensor, warm_Rn: torch.Tensor, num_products: int
    ) -> Curvature:
        """Return what ``measure_curvature`` does, up to rounding."""


class Graph:
    """The gradient of R members, (R, n), with the graph for Hessian-vector products.

    The graph keeps the activations of both passes for the lifetime of this object. Its weights must not change
    meanwhile, or a product raises RuntimeError.
    """

    def __init__(self, loss: Callable[[], torch.Tensor], weights: Sequence[torch.Tensor], num_members: int = 1) -> None:
        """``loss()`` mixes no members; ``weights`` have the members as their first axis, unless there is only one."""
        # Fused attention is differentiable only once, on a CPU and on a GPU.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            loss_R = loss()
        self._weights, self._num_members, self.loss_R = list(weights), num_members, loss_R.detach()
        self._gradient = torch.autograd.grad(
            loss_R.sum(), self._weights, create_graph=True, allow_unused=True, materialize_grads=True
        )
        self.gradient_Rn = self._rows(self._gradient)

    def hessian_product(self, vector_Rn: torch.Tensor) -> torch.Tensor:
        """Return the Hessian of each member times its row of ``vector_Rn``, (R, n), in one backward pass."""
        sizes = [weight.numel() // self._num_members for weight in self._weights]
        pieces = vector_Rn.split([*sizes, vector_Rn.shape[1] - sum(sizes)], dim=1)
        # A loss that is linear in a weight has a constant gradient, without a graph.
        curved = [
            (slope, piece.reshape(slope.shape))
            for slope, piece in zip(self._gradient, pieces, strict=False)
            if slope.requires_grad
        ]
        if not curved:
            return torch.zeros_like(self.gradient_Rn)
        gradients, directions = zip(*curved, strict=True)
        return self._rows(
            torch.autograd.grad(
                gradients, self._weights, directions, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        )

    def curvature(
        self, divisor_Rn: torch.Tensor, factor_R: torch.Tensor, warm_Rn: torch.Tensor, num_products: int
    ) -> Curvature:
        """Return what ``measure_curvature`` does."""
        return measure_curvature(self, divisor_Rn, factor_R, warm_Rn, num_products)

    def _rows(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        return rows_of_blocks(value.detach().reshape(self._num_members, -1) for value in values)


class GradientGraph(Graph):
    """The graph of R members of a pack."""

    def __init__(self, losses: Losses, params_Rn: torch.Tensor, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """``losses(weights)`` has shape (R,), mixes no members, and is eager: compiled code differentiates only once.

        Row r of ``params_Rn`` holds the weights of member r in the order of ``shapes``, zero-padded.
        """
        weights = {name: weight.detach().requires_grad_() for name, weight in weights_of(params_Rn, shapes).items()}
        super().__init__(lambda: losses(weights), list(weights.values()), len(params_Rn))


def weights_of(params_Rn: torch.Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Return views of R members' weights, in the order of ``shapes``."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    pieces = params_Rn.split([*sizes, params_Rn.shape[1] - sum(sizes)], dim=1)
    return {name: piece.view(-1, *shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=False)}


def momentum_factor(beta1_R: torch.Tensor, age_R: torch.Tensor, *, debiased: bool) -> torch.Tensor:
    """Return the factor of averaged momentum on curvature, for the threshold 2 / lr; float64, shape (R,).

    (1 - beta1) / (1 + beta1) for SGD. Adam's bias correction of the first moment (``debiased``) divides it by 1 -
    beta1^t (Bai et al., arXiv 2506.04805). The age t >= 1 counts updates, including this one.
    """
    beta1_R, age_R = beta1_R.to(torch.float64), age_R.to(torch.float64)
    factor_R = (1 - beta1_R) / (1 + beta1_R)
    return factor_R / (1 - alike(torch.pow, beta1_R, age_R)) if debiased else factor_R


@dataclass(frozen=True, slots=True)
class Curvature:
    """Curvature of R members in units of 1 / lr; above 2 / lr a member is beyond the threshold of stability.

    ``lambda_grad_R`` = c g.(H D g) / |g|^2 takes one product and is exact, NaN for a zero gradient. As D H is not
    symmetric, it may exceed the largest eigenvalue. ``lambda_max_R`` is a lower bound of that eigenvalue, NaN without a
    direction to measure. ``warm_Rn`` starts the next measurement: unit vectors, zeros for a fresh start.
    """

    lambda_grad_R: torch.Tensor
    lambda_max_R: torch.Tensor
    warm_Rn: torch.Tensor


def measure_curvature(
    hessian: Hessian, divisor_Rn: torch.Tensor, factor_R: torch.Tensor, warm_Rn: torch.Tensor, num_products: int
) -> Curvature:
    """Measure the curvature along the gradient and the largest eigenvalue with ``num_products`` Hessian products.

    ``divisor_Rn`` is the optimizer's divisor, sqrt(vhat) + eps > 0, and ``factor_R`` the ``momentum_factor``, both for
    the update that uses this gradient. ``warm_Rn`` comes from the last measurement, or is zeros. The eigenvalue is
    estimated by Rayleigh-Ritz on the span of the vectors multiplied so far: the gradient, the warm vector, then
    repeatedly the Hessian's image of the best vector so far. Without a warm vector this is Lanczos' method.

    The number of products needed depends on how much the Hessian changes between measurements. On a full batch
    (``function_fit``, every 20 steps) two find 0.999 of the eigenvalue in the median. On new batches (``gpt``, lr 1e-2)
    two find 0.2, four 0.9 and six 1.00. Two also need an eigenvalue that is the largest in magnitude.

    A member without a gradient, with a warm vector that adds nothing, or with non-finite numbers gets the result of its
    remaining subspace, or NaN, and leaves the others unchanged. Its numbers depend on the other members only if its
    gradient or the products do. Never waits for a GPU. Raises ValueError if ``num_products`` is 0.
    """
    if num_products < 1:
        raise ValueError(f"num_products = {num_products}: the curvature along the gradient alone takes one")
    scale_Rn = divisor_Rn.rsqrt()
    direction_Rn, _ = _unit(hessian.gradient_Rn)
    vector_Rn, stretch_R = _unit(scale_Rn * direction_Rn)
    span = _Span(vector_Rn, num_products)

    def multiply(vector_Rn: torch.Tensor) -> torch.Tensor:
        curved_Rn = hessian.hessian_product(scale_Rn * vector_Rn)
        span.add(vector_Rn, scale_Rn * curved_Rn)
        return curved_Rn

    lambda_grad_R = stretch_R * (direction_Rn * multiply(vector_Rn)).sum(1)
    for product in range(1, num_products):
        vector_Rn = _new_direction(span.ritz()[1], span.basis_RPn)
        if product == 1:
            warm_Rn = _new_direction(_finite(warm_Rn), span.basis_RPn)
            is_cold_R = torch.linalg.vector_norm(warm_Rn, dim=1) == 0
            vector_Rn = torch.where(is_cold_R[:, None], vector_Rn, warm_Rn)
        multiply(vector_Rn)
    lambda_max_R, best_image_Rn = span.ritz()
    factor_R = factor_R.to(lambda_max_R.dtype)
    return Curvature(
        lambda_grad_R=(factor_R * lambda_grad_R.masked_fill(stretch_R == 0, math.nan)).to(scale_Rn.dtype),
        lambda_max_R=(factor_R * lambda_max_R).to(scale_Rn.dtype),
        warm_Rn=_finite(_unit(best_image_Rn)[0]),
    )


class _Span:
    """Orthonormal vectors of R members, their images by a symmetric A, and the products of both."""

    def __init__(self, like_Rn: torch.Tensor, most: int) -> None:
        num_members, size = like_Rn.shape
        self._basis_RPn = like_Rn.new_empty(num_members, most, size)
        self._image_RPn = torch.empty_like(self._basis_RPn)
        self._matrix_RPP = like_Rn.new_empty(num_members, most, most)
        self._length_RP = like_Rn.new_empty(num_members, most)
        self._count = 0

    @property
    def basis_RPn(self) -> torch.Tensor:
        """The vectors so far."""
        return self._basis_RPn[:, : self._count]

    def add(self, vector_Rn: torch.Tensor, image_Rn: torch.Tensor) -> None:
        """Add a vector, of length 1, or 0 if it adds nothing."""
        new, image_RPn = self._count, self._image_RPn[:, : self._count]
        self._basis_RPn[:, new], self._image_RPn[:, new] = vector_Rn, image_Rn
        self._count += 1
        self._matrix_RPP[:, new, :new] = _dots(vector_Rn, image_RPn)
        self._matrix_RPP[:, : new + 1, new] = _dots(image_Rn, self.basis_RPn)
        self._length_RP[:, new] = torch.linalg.vector_norm(vector_Rn, dim=1)

    def ritz(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the largest eigenvalue of A in the span, (R,), and A's image of its eigenvector, (R, n).

        The small matrix, shifted to be positive, is squared repeatedly until only the projection on its largest
        eigenvalue is left: ``torch.linalg.eigh`` would wait for a GPU, and raise for a member with non-finite numbers.
        """
        matrix_RPP = self._matrix_RPP[:, : self._count, : self._count].to(torch.float64)
        matrix_RPP = (matrix_RPP + matrix_RPP.mT) / 2
        # Adding twice the matrix's norm makes the eigenvalues of the vectors of length 1 positive; others stay zero.
        length_RP = self._length_RP[:, : self._count].to(torch.float64)
        size_R = torch.linalg.matrix_norm(matrix_RPP)
        power_RPP = matrix_RPP / size_R.masked_fill(size_R == 0, 1.0)[:, None, None] + torch.diag_embed(2 * length_RP)
        for _ in range(_ROUNDS):
            power_RPP = torch.linalg.matrix_power(power_RPP / torch.linalg.matrix_norm(power_RPP, keepdim=True), _POWER)
        strongest_R = power_RPP.diagonal(dim1=1, dim2=2).argmax(1)
        vector_RP = torch.nn.functional.normalize(
            power_RPP[torch.arange(len(power_RPP), device=power_RPP.device), strongest_R], dim=1
        )
        value_R = (vector_RP[:, :, None] * matrix_RPP * vector_RP[:, None]).sum((1, 2))
        image_RPn = self._image_RPn[:, : self._count]
        return value_R, _combined(vector_RP.to(image_RPn.dtype), image_RPn)


def _new_direction(vector_Rn: torch.Tensor, basis_RPn: torch.Tensor) -> torch.Tensor:
    """Return the part of each vector that is orthogonal to the basis, as a unit vector; zeros if nothing is left."""
    rest_Rn, _ = _unit(vector_Rn)
    for _ in range(2):  # the second pass removes the rounding error of the first
        rest_Rn = rest_Rn - _combined(_dots(rest_Rn, basis_RPn), basis_RPn)
    rest_Rn, size_R = _unit(rest_Rn)
    is_new_R = size_R > _ROUNDINGS * torch.finfo(size_R.dtype).eps
    return rest_Rn * is_new_R[:, None]


def _dots(vector_Rn: torch.Tensor, basis_RPn: torch.Tensor) -> torch.Tensor:
    """Return the scalar products with each vector of the basis, (R, P).

    This is not a matrix product: its kernel, and so the order of its sums, would depend on the other members.
    """
    return (basis_RPn * vector_Rn[:, None]).sum(2)


def _combined(share_RP: torch.Tensor, basis_RPn: torch.Tensor) -> torch.Tensor:
    """Return the sum of the basis vectors, each times its share, (R, n); in sequence for the reason in ``_dots``."""
    scaled = (share_R[:, None] * vector_Rn for share_R, vector_Rn in zip(share_RP.T, basis_RPn.unbind(1), strict=True))
    return functools.reduce(torch.add, scaled)


def _unit(vector_Rn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the vectors scaled to length 1, and their former lengths; a zero vector stays zero."""
    # Squares of very small or large numbers would underflow or overflow.
    largest_R = torch.maximum(vector_Rn.amax(1), -vector_Rn.amin(1))
    unit_Rn = vector_Rn / torch.where(largest_R == 0, 1.0, largest_R)[:, None]
    size_R = torch.linalg.vector_norm(unit_Rn, dim=1)
    return unit_Rn.div_(torch.where(largest_R == 0, 1.0, size_R)[:, None]), largest_R * size_R


def _finite(vector_Rn: torch.Tensor) -> torch.Tensor:
    """Return the vectors, with non-finite ones replaced by zeros."""
    is_finite_R = torch.isfinite(vector_Rn.amax(1) - vector_Rn.amin(1))
    return torch.where(is_finite_R[:, None], vector_Rn, 0.0)
