"""How often the interval of an edge contains the planted one; benchmarks/search.md has the figures."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom, qmc

from orchestrator.base.space import Axis
from orchestrator.search.edge import EdgeOptions, EdgeSearch
from orchestrator.search.protocol import CellResult, SeedResult
from orchestrator.surface.fitting import fit_surface
from orchestrator.surface.gaussian import Layout
from orchestrator.surface.surface import Crossing

AXES = (Axis("lr", "linear", (), (0.0, 1.0)), Axis("other", "linear", (), (0.0, 1.0)))
BATCH = 8
WIDTHS = [0.005, 0.02, 0.04, 0.1]
ROWS = {1: [0.0], 2: np.linspace(0, 1, 9).tolist()}  # by the number of axes
INDEPENDENT = {1: 1, 2: 3}  # rows of one edge that count as independent: errors of neighbouring rows are alike
FIRST_SEED = 7000
Edge = Callable[[float], float]
Cells = dict[tuple[float, ...], list[str]]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("spread", "num_axes", "num_trials", "num_edges"),
    [
        ("search", 1, 32, 100),
        ("search", 1, 64, 60),
        ("search", 1, 128, 60),
        ("search", 2, 32, 12),
        ("search", 2, 64, 12),
        ("search", 2, 128, 4),
        ("sobol", 1, 32, 100),
        ("sobol", 1, 128, 100),
    ],
)
def test_the_interval_contains_the_planted_edge(
    spread: str, num_axes: int, num_trials: int, num_edges: int, width: float
) -> None:
    """P(stable) is the logistic function of the distance to the edge in units of ``width``, a part of the axis."""
    seeds = range(FIRST_SEED, FIRST_SEED + num_edges)
    covered = np.mean([covered_rows(seed, width, num_trials, num_axes, SPREADS[spread]) for seed in seeds])
    num = num_edges * INDEPENDENT[num_axes]
    assert covered >= binom.ppf(0.001, num, 0.93) / num


def covered_rows(seed: int, width: float, num_trials: int, num_axes: int, spread: Callable[..., Cells]) -> list[bool]:
    """Whether the interval of each row contains the edge, after trials that ``spread`` chooses."""
    rng = np.random.default_rng((seed, int(width * 1e4), num_trials))
    edge = planted_edge(rng) if num_axes == 2 else constant_edge(rng)

    def outcome(at: tuple[float, ...]) -> str:
        return "over" if rng.random() > expit((edge(at[-1]) - at[0]) / width) else "stable"

    cells = spread(seed, num_trials, num_axes, outcome)
    points_ND = np.array(list(cells))
    stable_N = np.array([float(outcomes.count("stable")) for outcomes in cells.values()])
    trials_N = np.array([float(len(outcomes)) for outcomes in cells.values()])
    layout = Layout((False,) * num_axes, along=0)
    surface = fit_surface(points_ND, stable_N, trials_N, layout, 1 / 64, has_one_edge=True)
    rows_RD = np.array([[0.0, other][:num_axes] for other in ROWS[num_axes]])
    crossings = surface.crossings(rows_RD, np.linspace(0, 1, 257))
    return [contains(found, edge(other)) for found, other in zip(crossings, ROWS[num_axes], strict=True)]


def searched(seed: int, num_trials: int, num_axes: int, outcome: Callable[[tuple[float, ...]], str]) -> Cells:
    """The trials of a search for the edge."""
    axes, cells = AXES[:num_axes], Cells()
    search = EdgeSearch(axes, EdgeOptions("lr", num_trials, 4, seed), lambda outcome: outcome == "over")
    while proposals := search.propose([result_of(*item) for item in cells.items()], BATCH):
        for proposal in proposals:
            at = tuple(proposal.cell.values())
            outcomes = cells.setdefault(at, [])
            while len(outcomes) < proposal.num_seeds:
                outcomes.append(outcome(at))
    return cells


def spread_evenly(seed: int, num_trials: int, num_axes: int, outcome: Callable[[tuple[float, ...]], str]) -> Cells:
    """Trials at the points of a Sobol sequence."""
    points = map(tuple, qmc.Sobol(num_axes, rng=seed).random(num_trials).tolist())
    return {at: [outcome(at)] for at in points}


SPREADS = {"search": searched, "sobol": spread_evenly}


def planted_edge(rng: np.random.Generator) -> Edge:
    """A line with a wave on it."""
    at, slope, height = rng.uniform(0.3, 0.7), rng.uniform(-0.35, 0.35), rng.uniform(0, 0.1)
    frequency, phase = rng.uniform(0.5, 1.5), rng.uniform(0, 6.28)

    def edge(other: float) -> float:
        wave = height * math.sin(2 * math.pi * frequency * other + phase)
        return min(max(at + slope * (other - 0.5) + wave, 0.08), 0.92)

    return edge


def constant_edge(rng: np.random.Generator) -> Edge:
    at = rng.uniform(0.15, 0.85)
    return lambda _: at


def result_of(at: tuple[float, ...], outcomes: list[str]) -> CellResult:
    names = (axis.name for axis in AXES)
    results = tuple(SeedResult(i, outcome, True) for i, outcome in enumerate(outcomes))
    return CellResult(dict(zip(names, at, strict=False)), results)


def contains(found: tuple[Crossing, ...], edge: float) -> bool:
    """Whether the only crossing of a row, or the first at which trials become unstable, may be at the edge."""
    falling = found if len(found) == 1 else [crossing for crossing in found if not crossing.rises]
    return bool(falling) and falling[0].low <= edge <= falling[0].high
