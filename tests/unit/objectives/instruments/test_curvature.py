import math
from collections.abc import Callable

import pytest
import torch
from curvature_cases import (
    divisor_of,
    factor_of,
    graph_of,
    losses_of,
    quadratic_forms,
    shapes_of,
)
from pack_cases import trainer_of
from torch._subclasses.fake_tensor import FakeTensorMode

from objectives.base import FunctionFitConfig, GptConfig
from objectives.instruments.curvature import GradientGraph, measure_curvature, momentum_factor
from objectives.training.packed import PackedTrainer

# Shapes: R members, n parameters of one member, d of them that are no filling.

DOUBLE = torch.float64
ONE = torch.ones(1, dtype=DOUBLE)
MEMBERS = {
    "function_fit": {"width": 6, "num_points": 20, "lr": 0.03},
    "gpt": {"width": 12, "heads": 3, "context": 10, "batch_size": 4, "lr": 1e-2},
    "gpt_qk_norm": {"width": 12, "heads": 3, "context": 10, "batch_size": 4, "lr": 1e-2, "qk_norm": True},
}

# torch's forward mode, and a library of curvlinops, still call it.
OLD_TORCH_CALLS = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


def trained(kind: str, seeds: list[int], text: tuple[str, ...], steps: int = 5) -> PackedTrainer:
    """A pack that is away from its initial weights."""
    objective = kind.removesuffix("_qk_norm")
    common = {"steps": 100, **MEMBERS[kind]}
    config = GptConfig(text=text, **common) if objective == "gpt" else FunctionFitConfig(**common)
    trainer = trainer_of(objective, [config] * len(seeds), seeds)
    for _ in range(steps):
        trainer.step()
    return trainer


def gaussian(*size: int, dtype: torch.dtype = DOUBLE, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE).to(dtype)


def symmetric(num_members: int, size: int, dtype: torch.dtype = DOUBLE, seed: int = 0) -> torch.Tensor:
    matrix_Rnn = gaussian(num_members, size, size, seed=seed)
    return ((matrix_Rnn + matrix_Rnn.mT) / 2).to(dtype)


def dense(graph: GradientGraph, size: int) -> torch.Tensor:
    """The Hessians, (R, d, d), from a product with each unit vector."""
    num_members, n = graph.gradient_Rn.shape
    units = torch.eye(n, dtype=graph.gradient_Rn.dtype)[:size]
    return torch.stack([graph.hessian_product(unit_n.expand(num_members, n))[:, :size] for unit_n in units], dim=2)


def preconditioned(hessian_Rdd: torch.Tensor, divisor_Rn: torch.Tensor, factor_R: torch.Tensor) -> torch.Tensor:
    """Eigenvalues of c D^1/2 H D^1/2, (R, d), in ascending order."""
    scale_Rd = divisor_Rn[:, : hessian_Rdd.shape[1]].rsqrt()
    return torch.linalg.eigvalsh(factor_R[:, None, None] * scale_Rd[:, :, None] * hessian_Rdd * scale_Rd[:, None])


def alone(trainer: PackedTrainer, kind: str, member: int, text: tuple[str, ...]) -> Callable[..., torch.Tensor]:
    """The loss of one member of the pack as a function of its weights, from a trainer that has no other."""
    single = trained(kind, [trainer.seeds[member]], text, trainer.num_steps)
    losses = losses_of(single)
    return lambda *weights: losses({name: w[None] for name, w in zip(single.weights, weights, strict=True)})[0]


def rows_of(trainer: PackedTrainer, values_Rn: torch.Tensor, member: int) -> list[torch.Tensor]:
    """One member's row as tensors in the shapes of the weights."""
    shapes = shapes_of(trainer)
    sizes = [math.prod(shape) for shape in shapes.values()]
    pieces = values_Rn[member, : sum(sizes)].split(sizes)
    return [piece.view(shape) for piece, shape in zip(pieces, shapes.values(), strict=True)]


@OLD_TORCH_CALLS
@pytest.mark.parametrize("kind", MEMBERS)
def test_a_product_is_the_derivative_of_the_gradient_along_the_vector(kind: str, text) -> None:
    """Of each member, to 1e-10: torch's forward mode over reverse mode of the member alone, in double precision."""
    trainer = trained(kind, [0, 1, 2], text)
    graph = graph_of(trainer, DOUBLE)
    vector_Rn = gaussian(*graph.gradient_Rn.shape)
    product_Rn = graph.hessian_product(vector_Rn)
    for member in range(3):
        loss = alone(trainer, kind, member, text)
        weights = tuple(rows_of(trainer, trainer.optimizer.params_Kn.double(), member))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            gradient, product = torch.func.jvp(
                torch.func.grad(loss, argnums=tuple(range(len(weights)))),
                weights,
                tuple(rows_of(trainer, vector_Rn, member)),
            )
        for found_Rn, wanted in ((graph.gradient_Rn, gradient), (product_Rn, product)):
            scale = max(piece.abs().max().item() for piece in wanted)
            for found, expected in zip(rows_of(trainer, found_Rn, member), wanted, strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10 * scale)


@OLD_TORCH_CALLS
@pytest.mark.peers
@pytest.mark.parametrize("kind", MEMBERS)
def test_a_product_is_that_of_curvlinops(kind: str, text) -> None:
    """Of each member, to 1e-10: the Hessian of curvlinops 3, whose dependencies do not fit beside the others."""
    import curvlinops

    class Alone(torch.nn.Module):
        def __init__(self, member: int) -> None:
            super().__init__()
            self.loss = alone(trainer, kind, member, text)
            weights = rows_of(trainer, trainer.optimizer.params_Kn.double(), member)
            self.weights = torch.nn.ParameterList([weight.clone() for weight in weights])

        def forward(self, nothing: torch.Tensor) -> torch.Tensor:
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                return self.loss(*self.weights)[None]

    trainer = trained(kind, [0, 1], text)
    graph = graph_of(trainer, DOUBLE)
    vector_Rn = gaussian(*graph.gradient_Rn.shape)
    product_Rn = graph.hessian_product(vector_Rn)
    for member in range(2):
        model = Alone(member)
        nothing = torch.zeros(1, dtype=DOUBLE)
        # The mean of absolute values: the loss itself, as it is positive.
        hessian = curvlinops.HessianLinearOperator(
            model, torch.nn.L1Loss(), list(model.parameters()), [(nothing, nothing)]
        )
        size = sum(weight.numel() for weight in model.parameters())
        expected = hessian @ vector_Rn[member, :size]
        torch.testing.assert_close(
            product_Rn[member, :size], expected, rtol=1e-10, atol=1e-10 * expected.abs().max().item()
        )


@OLD_TORCH_CALLS
def test_products_make_the_dense_hessian() -> None:
    """To 1e-12: torch.func.hessian of a network of 19 numbers, and it is symmetric."""
    trainer = trained("function_fit", [0, 1], ())
    size = sum(math.prod(shape) for shape in shapes_of(trainer).values())
    hessian_Rdd = dense(graph_of(trainer), size)
    torch.testing.assert_close(hessian_Rdd, hessian_Rdd.mT, rtol=1e-12, atol=1e-13)
    for member in range(2):
        loss = alone(trainer, "function_fit", member, ())
        row_d = trainer.optimizer.params_Kn[member, :size]

        def of_row(row_d: torch.Tensor, loss=loss) -> torch.Tensor:
            return loss(*rows_of(trainer, row_d[None], 0))

        torch.testing.assert_close(hessian_Rdd[member], torch.func.hessian(of_row)(row_d), rtol=1e-12, atol=1e-12)


def test_losses_written_for_one_member_have_products_too() -> None:
    def losses(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.vmap(lambda w: (w["x"] ** 3).sum() * w["scale"])(weights)

    params_Rn = gaussian(2, 32)
    params_Rn[:, 4:] = 0
    graph = GradientGraph(losses, params_Rn, {"x": (3,), "scale": ()})
    x, scale = params_Rn[:, :3], params_Rn[:, 3:4]
    v = gaussian(2, 32, seed=1)
    found = graph.hessian_product(v)
    torch.testing.assert_close(graph.loss_R, (x**3).sum(1) * scale[:, 0])
    torch.testing.assert_close(found[:, :3], 6 * x * scale * v[:, :3] + 3 * x**2 * v[:, 3:4])
    torch.testing.assert_close(found[:, 3], (3 * x**2 * v[:, :3]).sum(1))
    assert not found[:, 4:].any()


@pytest.mark.parametrize("unused", [False, True])
def test_a_loss_without_curvature_has_none(unused: bool) -> None:
    def losses(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return weights["x"].sum(1) if unused else weights["x"].sum(1) + weights["y"].sum(1)

    graph = GradientGraph(losses, gaussian(2, 32), {"x": (3,), "y": (2,)})
    found = measure_curvature(graph, torch.ones(2, 32, dtype=DOUBLE), ONE, torch.zeros(2, 32, dtype=DOUBLE), 3)
    assert found.lambda_grad_R.tolist() == found.lambda_max_R.tolist() == [0, 0]
    assert not found.warm_Rn.any()


def test_a_graph_whose_parameters_have_changed_is_refused() -> None:
    trainer = trained("function_fit", [0, 1], ())
    graph = GradientGraph(losses_of(trainer), trainer.optimizer.params_Kn, shapes_of(trainer))
    trainer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        graph.hessian_product(torch.ones_like(graph.gradient_Rn))


def test_momentum_divides_the_curvature_as_theory_says() -> None:
    beta1_R = torch.tensor([0.0, 0.5, 0.9, 0.95], dtype=DOUBLE)
    # 2 over the factor is the threshold of Cohen et al. 2022 times the learning rate.
    found = 2 / momentum_factor(beta1_R, torch.full((4,), 5000.0), debiased=True)
    torch.testing.assert_close(found, torch.tensor([2.0, 6.0, 38.0, 78.0], dtype=DOUBLE), rtol=1e-12, atol=0)
    nine_tenths, age_R = torch.tensor([0.9], dtype=DOUBLE), torch.tensor([3])
    assert momentum_factor(nine_tenths, age_R, debiased=False).item() == pytest.approx(0.1 / 1.9, rel=1e-14)
    found = momentum_factor(nine_tenths, age_R, debiased=True).item()
    assert found == pytest.approx(0.1 / (1.9 * (1 - 0.9**3)), rel=1e-14)


def test_enough_products_give_the_largest_eigenvalue_and_the_first_the_curvature_along_the_gradient() -> None:
    """``lambda_max`` within 1e-6 of the dense eigenvalue with 12 products, ``lambda_grad`` to 1e-10: 64 tanh units."""
    trainer = trainer_of("function_fit", [FunctionFitConfig(steps=200)] * 3, [0, 1, 2])
    for steps in (1, 30, 150):
        while trainer.num_steps < steps:
            trainer.step()
        graph, divisor_Rn, factor_R = graph_of(trainer), divisor_of(trainer), factor_of(trainer)
        hessian_Rdd = dense(graph, 193)
        found = measure_curvature(graph, divisor_Rn, factor_R, torch.zeros_like(divisor_Rn), 12)
        expected_R = preconditioned(hessian_Rdd, divisor_Rn, factor_R)[:, -1]
        torch.testing.assert_close(found.lambda_max_R, expected_R, rtol=1e-6, atol=0)
        g_Rd, moved_Rd = graph.gradient_Rn[:, :193], graph.gradient_Rn[:, :193] / divisor_Rn[:, :193]
        along_R = torch.einsum("rd,rde,re->r", g_Rd, hessian_Rdd, moved_Rd) / g_Rd.square().sum(1)
        torch.testing.assert_close(found.lambda_grad_R, factor_R * along_R, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (DOUBLE, 1e-9)], ids=["f32", "f64"])
@pytest.mark.parametrize("shift", [-5.0, 0.0, 5.0], ids=["negative", "indefinite", "positive"])
def test_the_eigenvalue_is_the_largest_not_that_of_the_largest_magnitude(dtype, tolerance, shift: float) -> None:
    matrix_Rnn = symmetric(4, 20, dtype) + shift * torch.eye(20, dtype=dtype)
    graph = quadratic_forms(matrix_Rnn, gaussian(4, 20, dtype=dtype, seed=1))
    divisor_Rn = 0.5 + gaussian(4, 32, dtype=dtype, seed=2).abs()
    factor_R = torch.full((4,), 0.1, dtype=dtype)
    found = measure_curvature(graph, divisor_Rn, factor_R, torch.zeros_like(divisor_Rn), 20)
    assert found.lambda_max_R.dtype == dtype
    expected_Rn = preconditioned(matrix_Rnn, divisor_Rn, factor_R)
    torch.testing.assert_close(found.lambda_max_R, expected_Rn[:, -1], rtol=tolerance, atol=tolerance)


def test_eigenvalues_that_lie_close_are_told_apart() -> None:
    """The largest one to 1e-12, where the second is smaller by 1e-2 to 1e-8."""
    gaps = [1e-2, 1e-3, 1e-4, 1e-6, 1e-8]
    turn_nn = torch.linalg.qr(gaussian(12, 12)).Q
    others = torch.linspace(-1, 0.5, 10).tolist()
    eigenvalues_Rn = torch.tensor([[1, 1 - gap, *others] for gap in gaps], dtype=DOUBLE)
    graph = quadratic_forms((turn_nn * eigenvalues_Rn[:, None]) @ turn_nn.mT, gaussian(5, 12, seed=1))
    ones_Rn = torch.ones(5, 32, dtype=DOUBLE)
    found = measure_curvature(graph, ones_Rn, ONE, torch.zeros_like(ones_Rn), 12)
    torch.testing.assert_close(found.lambda_max_R, torch.ones(5, dtype=DOUBLE), rtol=1e-12, atol=0)


def test_more_products_never_find_less_and_never_more_than_there_is() -> None:
    matrix_Rnn = symmetric(5, 40)
    graph = quadratic_forms(matrix_Rnn, gaussian(5, 40, seed=1))
    ones_Rn, warm_Rn = torch.ones(5, 64, dtype=DOUBLE), gaussian(5, 64, seed=2)
    warm_Rn[:, 40:] = 0
    found = torch.stack([measure_curvature(graph, ones_Rn, ONE, warm_Rn, p).lambda_max_R for p in range(1, 13)])
    assert (found.diff(dim=0) > 0).all()
    assert (found < torch.linalg.eigvalsh(matrix_Rnn)[:, -1]).all()


def test_two_products_at_a_time_converge_as_a_power_iteration() -> None:
    """Warm starts on a fixed matrix: within 1e-3 of the eigenvalue at the 13th call, within 1e-8 at the 32nd.

    64 tanh units after 30 steps, four seeds, whose second eigenvalue is at most 0.71 of the first: a call shrinks
    the error by the square of that.
    """
    trainer = trainer_of("function_fit", [FunctionFitConfig(steps=200)] * 4, [0, 1, 2, 3])
    for _ in range(30):
        trainer.step()
    graph, divisor_Rn, factor_R = graph_of(trainer), divisor_of(trainer), factor_of(trainer)
    eigenvalues_Rd = preconditioned(dense(graph, 193), divisor_Rn, factor_R)
    assert (eigenvalues_Rd[:, -2] / eigenvalues_Rd[:, -1]).max() < 0.71
    warm_Rn, errors = torch.zeros_like(divisor_Rn), []
    for _ in range(32):
        found = measure_curvature(graph, divisor_Rn, factor_R, warm_Rn, 2)
        warm_Rn = found.warm_Rn
        errors.append(1 - found.lambda_max_R / eigenvalues_Rd[:, -1])
    assert errors[0].max() > 0.1
    assert errors[12].max() < 1e-3
    assert errors[31].max() < 1e-8
    torch.testing.assert_close(warm_Rn.norm(dim=1), torch.ones(4, dtype=DOUBLE))


def test_filling_does_not_matter() -> None:
    matrix_Rnn = symmetric(3, 20)
    graph = quadratic_forms(matrix_Rnn, gaussian(3, 20, seed=1))
    expected = preconditioned(matrix_Rnn, torch.ones(3, 20, dtype=DOUBLE), torch.ones(3, dtype=DOUBLE))[:, -1]
    for filling in (1e-8, 1.0, 1e8):
        divisor_Rn = torch.ones(3, 32, dtype=DOUBLE)
        divisor_Rn[:, 20:] = filling
        found = measure_curvature(graph, divisor_Rn, ONE, torch.zeros_like(divisor_Rn), 20)
        torch.testing.assert_close(found.lambda_max_R, expected, rtol=1e-10, atol=0)
        assert not found.warm_Rn[:, 20:].any()


@pytest.mark.parametrize("scale", [1e-30, 1e30], ids=["tiny", "huge"])
def test_gradients_and_divisors_of_any_size_are_measured(scale: float) -> None:
    """In single precision, where their squares are 0 or infinite."""
    matrix_Rnn = symmetric(3, 8, torch.float32)
    graph = quadratic_forms(matrix_Rnn, gaussian(3, 8, seed=1).float() * scale)
    divisor_Rn = torch.full((3, 32), 1e-30 / scale**0.5 if scale < 1 else 1e12)
    factor_R = torch.full((3,), 1.0)
    found = measure_curvature(graph, divisor_Rn, factor_R, torch.zeros_like(divisor_Rn), 8)
    expected = preconditioned(matrix_Rnn.double(), divisor_Rn.double(), factor_R.double())[:, -1]
    torch.testing.assert_close(found.lambda_max_R.double(), expected, rtol=1e-4, atol=0)
    assert torch.isfinite(found.lambda_grad_R).all()


@pytest.mark.parametrize("num_products", [1, 2, 5])
def test_a_warm_vector_along_the_gradient_adds_nothing_and_costs_nothing(num_products: int) -> None:
    graph = quadratic_forms(symmetric(2, 20), gaussian(2, 20, seed=1))
    divisor_Rn = 0.5 + gaussian(2, 32, seed=2).abs()
    along_Rn = graph.gradient_Rn / divisor_Rn.sqrt()
    cold = measure_curvature(graph, divisor_Rn, ONE, torch.zeros_like(along_Rn), num_products)
    warm = measure_curvature(graph, divisor_Rn, ONE, -3 * along_Rn, num_products)
    torch.testing.assert_close(warm.lambda_max_R, cold.lambda_max_R, rtol=1e-12, atol=0)


def test_a_member_without_a_gradient_has_what_its_warm_vector_supports() -> None:
    matrix_Rnn = symmetric(3, 8)
    params_Rn = gaussian(3, 8, seed=1)
    params_Rn[:2] = 0
    graph = quadratic_forms(matrix_Rnn, params_Rn)
    ones_Rn, warm_Rn = torch.ones(3, 32, dtype=DOUBLE), torch.zeros(3, 32, dtype=DOUBLE)
    warm_Rn[0, :8] = gaussian(8, seed=2)
    found = measure_curvature(graph, ones_Rn, ONE, warm_Rn, 9)
    expected = torch.linalg.eigvalsh(matrix_Rnn)[:, -1]
    torch.testing.assert_close(found.lambda_max_R[[0, 2]], expected[[0, 2]], rtol=1e-9, atol=0)
    assert torch.isnan(found.lambda_max_R[1])
    assert torch.isnan(found.lambda_grad_R[:2]).all()
    assert torch.isfinite(found.lambda_grad_R[2])
    assert not found.warm_Rn[1].any()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["weights", "divisor", "warm", "factor"])
@pytest.mark.parametrize("num_products", [1, 2, 6])
def test_what_is_not_finite_in_one_member_changes_nobody_else(poison: float, where: str, num_products: int) -> None:
    """Bit for bit, and the member itself starts afresh at the next measurement."""

    def measured(poison: float | None):
        trainer = trained("function_fit", [0, 1, 2], ())
        divisor_Rn, factor_R = divisor_of(trainer), factor_of(trainer)
        warm_Rn = gaussian(*divisor_Rn.shape)
        values = {"weights": trainer.optimizer.params_Kn, "divisor": divisor_Rn, "warm": warm_Rn}
        if poison is not None and where == "factor":
            factor_R[1] = poison
        elif poison is not None:
            values[where][1, 13] = poison  # of the weights behind the tanh
        return measure_curvature(graph_of(trainer), divisor_Rn, factor_R, warm_Rn, num_products)

    clean, found = measured(None), measured(poison)
    for name in ("lambda_grad_R", "lambda_max_R", "warm_Rn"):
        assert torch.equal(getattr(found, name)[[0, 2]], getattr(clean, name)[[0, 2]]), name
    assert torch.isfinite(found.warm_Rn).all()
    if where == "weights":
        assert torch.isnan(found.lambda_grad_R[1])
        assert torch.isnan(found.lambda_max_R[1])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (DOUBLE, 1e-10)], ids=["f32", "f64"])
def test_a_member_of_a_stack_is_the_member_alone(dtype, tolerance, text) -> None:
    """Within rounding: to 1e-10 in double precision, to 1e-3 in single precision, of a small transformer."""
    trainer = trained("gpt", [0, 1, 2], text)
    divisor_Rn, factor_R = divisor_of(trainer).to(dtype), factor_of(trainer)
    together = measure_curvature(graph_of(trainer, dtype), divisor_Rn, factor_R, torch.zeros_like(divisor_Rn), 6)
    for member in range(3):
        single, row = trained("gpt", [member], text), slice(member, member + 1)
        single.optimizer.params_Kn.copy_(trainer.optimizer.params_Kn[row])
        cold_Rn = torch.zeros_like(divisor_Rn[row])
        found = measure_curvature(graph_of(single, dtype), divisor_Rn[row], factor_R[row], cold_Rn, 6)
        for name in ("lambda_grad_R", "lambda_max_R"):
            torch.testing.assert_close(getattr(found, name), getattr(together, name)[row], rtol=tolerance, atol=0)


def test_a_measurement_never_waits_for_numbers() -> None:
    """Tensors without numbers: who asks for one, as a GPU that is waited for is asked, is told that there is none."""
    with FakeTensorMode():
        matrix_Rnn, params_Rn = torch.empty(3, 20, 20), torch.empty(3, 20)
        graph = quadratic_forms(matrix_Rnn, params_Rn)
        found = measure_curvature(graph, torch.empty(3, 32), torch.empty(3), torch.empty(3, 32), 4)
        assert found.lambda_max_R.shape == found.lambda_grad_R.shape == (3,)
        assert found.warm_Rn.shape == (3, 32)


def test_no_product_is_refused() -> None:
    graph = quadratic_forms(symmetric(1, 4), gaussian(1, 4))
    with pytest.raises(ValueError, match="num_products = 0"):
        measure_curvature(graph, torch.ones(1, 32), ONE, torch.zeros(1, 32), 0)
