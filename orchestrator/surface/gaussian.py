"""A Gaussian process over the unit cube: the prior of a surface of stability, whose values are logits of P(stable).

Letters of shapes: N points, M points, D columns of a point, C of them numeric.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

_MIDDLE = 0.5
_CATEGORY_CORRELATION = 0.5  # of two categories at the same point
# The variance of a field's constant in units of the variance around it: for the position of an edge, and for a field
# without an axis along.
_EDGE_CONSTANT, _PLAIN_CONSTANT = 4.0, 0.25
_ROOT_FIVE = 5**0.5


@cache
def _linear_algebra() -> ThreadpoolController:
    return ThreadpoolController()  # looks for the libraries, which takes a millisecond


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with small matrices in one thread: several gain nothing, and wait for each other on a busy machine."""
    with _linear_algebra().limit(limits=1, user_api="blas"):
        yield


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of points: coordinates in [0, 1] of an axis, or indices of a category.

    ``along`` is the column along which training turns from stable to unstable, or back; None if there is none.
    """

    is_categorical: tuple[bool, ...]
    along: int | None = None

    @property
    def numeric(self) -> list[int]:
        """The columns that are coordinates."""
        return [i for i, is_category in enumerate(self.is_categorical) if not is_category]

    @property
    def categorical(self) -> list[int]:
        """The columns that are indices of categories."""
        return [i for i, is_category in enumerate(self.is_categorical) if is_category]

    def with_category(self) -> Layout:
        """Append a column of categories."""
        return replace(self, is_categorical=(*self.is_categorical, True))


@dataclass(frozen=True, slots=True)
class Shape:
    """How a field varies. ``lengths`` are correlation lengths of the numeric columns.

    With a column ``along``, the latent value is ``steepness`` (logits per axis) times the distance to an edge whose
    position varies with standard deviation ``spread`` over the other columns, plus a free field of standard deviation
    ``roughness`` (logits). Without it, ``steepness`` is 1, ``roughness`` 0, and ``spread`` is in logits.
    """

    lengths: tuple[float, ...]
    steepness: float
    spread: float
    roughness: float


@dataclass(frozen=True, slots=True)
class Correlations:
    """Prior correlations of points, each (N, M): of the edge, of the free field, and due to categories, if any."""

    edge: np.ndarray
    rough: np.ndarray | None
    kin: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Field:
    """A Gaussian process over points. ``sign`` is -1 if stability falls along the axis, 1 if it rises."""

    layout: Layout
    shape: Shape
    sign: int

    def mean(self, points_ND: np.ndarray) -> np.ndarray:
        """Return the prior mean, (N,): zero in the middle of the axis ``along``."""
        if self.layout.along is None:
            return np.zeros(len(points_ND))
        return self.sign * self.shape.steepness * (points_ND[:, self.layout.along] - _MIDDLE)

    def variance(self) -> float:
        """Return the prior variance, which is the same at all points."""
        return self._edge_variance * (1 + self._constant) + self.shape.roughness**2

    def kernel(self, points_ND: np.ndarray, others_MD: np.ndarray) -> np.ndarray:
        """Return the prior covariance of points, (N, M)."""
        return self.kernel_of(self.correlations(points_ND, others_MD))

    def correlations(self, points_ND: np.ndarray, others_MD: np.ndarray) -> Correlations:
        """Return the correlations of points, which fields with the same layout and lengths share."""
        columns, lengths = self.layout.numeric, np.array(self.shape.lengths)
        units_NC, others_MC = points_ND[:, columns] / lengths, others_MD[:, columns] / lengths
        edge, _ = _matern(_square_distances(units_NC[:, self._across], others_MC[:, self._across]))
        rough = None if self.layout.along is None else _matern(_square_distances(units_NC, others_MC))[0]
        kin = self._category_correlation(points_ND, others_MD) if self.layout.categorical else None
        return Correlations(edge, rough, kin)

    def kernel_of(self, correlations: Correlations) -> np.ndarray:
        """Return the prior covariance of points with these ``correlations``, (N, M)."""
        kernel = correlations.edge + self._constant
        kernel *= self._edge_variance
        if correlations.rough is not None:
            kernel += correlations.rough * self.shape.roughness**2
        return kernel if correlations.kin is None else kernel * correlations.kin

    def kernel_with_derivatives(self, points_ND: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the covariance of points with each other, and its derivative for each of ``logs``."""
        kin = self._category_correlation(points_ND, points_ND)
        squares = self._squares(points_ND, points_ND)
        edge, decay = _matern(_sum([squares[i] for i in self._across], kin.shape))
        edge_fall = _fall(_sum([squares[i] for i in self._across], kin.shape), decay)
        edge_kernel = self._edge_variance * (self._constant + edge) * kin
        falls = [np.zeros_like(kin) for _ in squares]
        for i in self._across:
            falls[i] += self._edge_variance * edge_fall * squares[i] * kin
        if self.layout.along is None:
            return edge_kernel, [*falls, 2 * edge_kernel]
        rough, decay = _matern(_sum(squares, kin.shape))
        rough_fall = _fall(_sum(squares, kin.shape), decay)
        rough_kernel = self.shape.roughness**2 * rough * kin
        for fall, square in zip(falls, squares, strict=True):
            fall += self.shape.roughness**2 * rough_fall * square * kin
        return edge_kernel + rough_kernel, [*falls, 2 * edge_kernel, 2 * edge_kernel, 2 * rough_kernel]

    def logs(self) -> np.ndarray:
        """Return the logarithms of lengths and spread and, with an axis along, of steepness and roughness."""
        shape = self.shape
        return np.log([*shape.lengths, shape.spread, *self._of_edge(shape.steepness, shape.roughness)])

    def with_logs(self, logs: np.ndarray) -> Field:
        """Return the field with other ``logs``."""
        num = len(self.shape.lengths)
        values = [float(value) for value in np.exp(logs)]
        steepness, roughness = values[num + 1 :] or (self.shape.steepness, self.shape.roughness)
        return replace(self, shape=Shape(tuple(values[:num]), steepness, values[num], roughness))

    @property
    def _edge_variance(self) -> float:
        return (self.shape.steepness * self.shape.spread) ** 2

    @property
    def _constant(self) -> float:
        return _PLAIN_CONSTANT if self.layout.along is None else _EDGE_CONSTANT

    @property
    def _across(self) -> list[int]:
        """The indices, among the numeric columns, of all but ``along``."""
        return [i for i, column in enumerate(self.layout.numeric) if column != self.layout.along]

    def _of_edge(self, *values: float) -> tuple[float, ...]:
        return values if self.layout.along is not None else ()

    def _squares(self, points_ND: np.ndarray, others_MD: np.ndarray) -> list[np.ndarray]:
        """Return squared distances in units of the lengths, (N, M) for each numeric column."""
        return [
            ((points_ND[:, column][:, None] - others_MD[:, column]) / length) ** 2
            for column, length in zip(self.layout.numeric, self.shape.lengths, strict=True)
        ]

    def _category_correlation(self, points_ND: np.ndarray, others_MD: np.ndarray) -> np.ndarray:
        """Return the correlation of points due to their categories, (N, M)."""
        kin = np.ones((len(points_ND), len(others_MD)))
        for column in self.layout.categorical:
            kin *= np.where(points_ND[:, column][:, None] == others_MD[:, column], 1.0, _CATEGORY_CORRELATION)
        return kin


def _square_distances(points_NC: np.ndarray, others_MC: np.ndarray) -> np.ndarray:
    """Return the squared distance of each point to each other, (N, M), by a product of matrices: no column apart."""
    square = points_NC @ (-2 * others_MC).T
    square += np.einsum("nc,nc->n", points_NC, points_NC)[:, None]
    square += np.einsum("mc,mc->m", others_MC, others_MC)
    return np.maximum(square, 0, out=square)


def _sum(squares: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    total = np.zeros(shape)
    for square in squares:
        total += square
    return total


def _matern(square: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the Matern correlation with nu = 5/2 at squared distances in units of the lengths, and its exponential.

    ``square`` is overwritten: large arrays are written as seldom as possible.
    """
    distance = np.sqrt(square, out=square)
    distance *= _ROOT_FIVE
    decay = np.exp(-distance)
    correlation = distance * distance
    correlation /= 3
    distance += 1
    correlation += distance
    correlation *= decay
    return correlation, decay


def _fall(square: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """Return what times the squared distance in one column is the derivative for the logarithm of its length."""
    return (5 / 3) * (1 + _ROOT_FIVE * np.sqrt(square)) * decay
