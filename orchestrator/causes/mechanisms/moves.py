"""Moves: changes of one setting that may help against a mechanism, with values for a small sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms.thresholds import WARMUP_RULE

Direction = Literal["lower", "raise", "switch"]
Values = Callable[[Evidence], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Move:
    """A change of one setting that may help against a mechanism; ``values`` are those for a small sweep."""

    setting: str
    direction: Direction
    reason: str
    values: Values


def scaled(setting: str, *factors: float) -> Values:
    """Multiples of the trial's value, to three digits."""

    def values(evidence: Evidence) -> list[float]:
        own = evidence.number(setting)
        return [] if own is None else [float(f"{own * factor:.3g}") for factor in factors]

    return values


def whole(setting: str, *factors: int) -> Values:
    """Whole multiples of the trial's value."""
    return lambda evidence: [int(value) for value in scaled(setting, *factors)(evidence)]


def just(*values: Any) -> Values:
    """These values, whatever the trial's is."""
    return lambda evidence: values


def about_the_norm(*factors: float) -> Values:
    """Multiples of the usual gradient norm before the onset."""

    def values(evidence: Evidence) -> list[float]:
        usual = evidence.grad_norm.between(0, evidence.until).median()
        return [] if not usual else [float(f"{usual * factor:.2g}") for factor in factors]

    return values


def forgetting_faster(evidence: Evidence) -> list[float]:
    """Values of beta2 with a third and a tenth of the memory."""
    beta2 = evidence.beta2
    return [] if beta2 is None else [float(f"{1 - min(0.5, factor * (1 - beta2)):.6g}") for factor in (3, 10)]


def warmups(evidence: Evidence) -> list[int]:
    """Half and all of the warmup by the rule of Ma and Yarats, or two and four times the trial's warmup."""
    needed, most = WARMUP_RULE * (evidence.memory or 50.0), int(evidence.trial.steps) // 2
    own = int(evidence.number("warmup") or 0)
    wanted = (round(needed / 2), round(needed)) if own < needed / 2 else (2 * own, 4 * own)
    return sorted({min(most, value) for value in wanted if min(most, value) > own})


# --- moves that help against several mechanisms --------------------------------------------------

LOWER_LR = Move("lr", "lower", "a step of lr has to stay under 2 / lambda", scaled("lr", 0.3, 0.1))
HIGHER_LR = Move("lr", "raise", "larger steps learn more in the same time", scaled("lr", 10, 100))
SHORTER_MEMORY = Move("beta2", "lower", "v follows the gradient sooner, and lags behind it less", forgetting_faster)
LOWER_EPS = Move(
    "eps",
    "lower",
    "epsilon then takes no part in the step; too low, and nothing bounds it where v is small",
    scaled("eps", 0.1, 0.01),
)
HIGHER_EPS = Move(
    "eps",
    "raise",
    "it bounds 1 / (sqrt(v) + eps), which papers disagree on: Bai et al. raise eps, Molybog et al. lower it, and the "
    "loss often pays for it",
    scaled("eps", 1e2, 1e4),
)
CLIP = Move("clip", "lower", "a jump of the gradient is cut to its usual size", about_the_norm(1.0, 2.0))
