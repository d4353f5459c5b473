"""An axis may saturate: the best rate grows with the batch up to the critical batch, which grows with the tokens."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from orchestrator.maps.law import Law, fit_centres

BATCH, TOKENS = 0, 1


@dataclass(frozen=True)
class Truth:
    """Log rates of optima over log batch and log tokens, as they were measured, and where the batch saturates."""

    size_RK: np.ndarray
    centre_R: np.ndarray
    spread_R: np.ndarray
    saturates_at: float
    at_top: float

    @property
    def top(self) -> np.ndarray:
        """The largest batch with the most tokens."""
        return np.asarray(self.size_RK.max(axis=0))

    def law(self) -> Law:
        return fit_centres(
            self.size_RK, self.centre_R, self.spread_R, np.zeros(len(self.centre_R)), bent=(BATCH, TOKENS)
        )


def grid(num_batches: int, num_tokens: int, span: float) -> np.ndarray:
    batch, tokens = np.meshgrid(np.linspace(0, np.log(64), num_batches), np.linspace(0, np.log(span), num_tokens))
    return np.column_stack([batch.ravel(), tokens.ravel()]) + np.log([32, 1e9])


def drawn(kind: str, draw: np.random.Generator) -> Truth:
    size_RK = grid(int(draw.integers(5, 11)), int(draw.integers(3, 6)), draw.choice([8, 25]))
    slope, moves, of_tokens = draw.uniform(0.3, 1), draw.uniform(0, 1), draw.uniform(-0.2, 0.3)
    place, bend = draw.uniform(-1, 1.1), draw.uniform(0.02, 0.15)
    scatter, spread = draw.choice([0.03, 0.1, 0.2]), draw.choice([0.1, 0.25])
    shapes: dict[str, Callable[[float], float]] = {
        "straight": lambda ahead: slope * ahead,
        "bent": lambda ahead: slope / 2 * ahead - bend * ahead**2,
        "saturating": lambda ahead: slope * min(ahead, 0),
    }
    shift = {"straight": 0, "bent": moves, "saturating": moves}[kind]
    origin_K = size_RK.mean(axis=0)
    at_R = np.array(
        [
            shapes[kind](batch - shift * tokens - (place if kind == "saturating" else 0)) + of_tokens * tokens
            for batch, tokens in size_RK - origin_K
        ]
    )
    centre_R = at_R + draw.normal(0, scatter, len(at_R)) + draw.normal(0, spread, len(at_R))
    saturates_at = origin_K[BATCH] + place + moves * (size_RK.max(axis=0) - origin_K)[TOKENS]
    return Truth(size_RK, centre_R, np.full(len(at_R), spread), saturates_at, at_R[-1] + draw.normal(0, scatter))


def test_the_place_where_the_batch_saturates_and_both_slopes_are_found() -> None:
    size_RK = grid(9, 4, 25)
    ahead_RK = size_RK - size_RK.mean(axis=0)
    centre_R = 0.7 * np.minimum(ahead_RK[:, BATCH] - 0.6 * ahead_RK[:, TOKENS], 0) + 0.2 * ahead_RK[:, TOKENS]
    truth = Truth(size_RK, centre_R, np.full(len(size_RK), 0.05), 0.0, 0.0)
    law = truth.law()
    for tokens in (size_RK[0, TOKENS], size_RK[-1, TOKENS]):
        critical = size_RK[:, BATCH].mean() + 0.6 * (tokens - size_RK[:, TOKENS].mean())
        found = law.saturates_at(BATCH, np.array([0.0, tokens]))
        assert found is not None
        assert found[0] == pytest.approx(critical, abs=0.15)
        assert found[1] < critical < found[2]
        below, above = np.array([critical - 1, tokens]), np.array([critical + 1, tokens])
        assert law.exponent(BATCH, below)[0] == pytest.approx(0.7, abs=0.05)
        assert law.exponent(BATCH, above) == pytest.approx((0, 0, 0))
        assert law.exponent(TOKENS, above)[0] == pytest.approx(0.2, abs=0.05)
    assert law.saturates_at(TOKENS, truth.top) is None


@pytest.mark.parametrize("kind", ["straight", "bent"])
def test_a_law_without_a_kink_is_not_said_to_saturate(kind: str) -> None:
    laws = [drawn(kind, np.random.default_rng(seed)) for seed in range(2)]
    assert all(truth.law().saturates_at(axis, truth.top) is None for truth in laws for axis in (BATCH, TOKENS))


@pytest.mark.slow
def test_of_300_laws_that_saturate_the_intervals_hold_the_place_and_the_rate() -> None:
    """0.98 of the places that are said, and 0.97 of the rates at the largest sizes."""
    draw = np.random.default_rng(1)
    holds_place, holds_rate = [], []
    for _ in range(300):
        truth = drawn("saturating", draw)
        law = truth.law()
        _, low, high = law.interval(truth.top)
        holds_rate.append(low <= truth.at_top <= high)
        if (place := law.saturates_at(BATCH, truth.top)) is not None:
            holds_place.append(place[1] <= truth.saturates_at <= place[2])
    assert len(holds_place) > 60
    assert np.mean(holds_place) >= 0.93
    assert 0.93 <= np.mean(holds_rate) <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["straight", "bent"])
def test_of_200_laws_that_do_not_saturate_at_most_5_percent_are_said_to(kind: str) -> None:
    draw = np.random.default_rng(2)
    found = []
    for _ in range(200):
        truth = drawn(kind, draw)
        law = truth.law()
        found.append(any(law.saturates_at(axis, truth.top) is not None for axis in (BATCH, TOKENS)))
    assert np.mean(found) <= 0.05
