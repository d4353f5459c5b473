"""A mechanism: all facts about one way that training becomes unstable, its findings and its moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from orchestrator.base.query import hidden
from orchestrator.base.space import format_value
from orchestrator.base.words import count
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms.limits import FAR_OVER, MIN_OVER, OFTEN_FAR, WARMUP_RULE
from orchestrator.causes.mechanisms.removal import Remove, irremovable
from orchestrator.causes.moments import number_of
from orchestrator.maps.neighbours import Neighbour

NOT_MEASURED = "the curvature was not measured"
NOT_BOUNDED = "the curvature along the update stayed below its threshold, but others may not"
UNKNOWN_RATE = "it is not known when the learning rate was full; in the sweep file, `facts: {warmup: STEPS}` says so"
NO_ONSET = "the loss never rose off its trend"

Verdict = Literal["supported", "excluded", "unknown"]
Direction = Literal["lower", "raise", "switch"]
Values = Callable[[Evidence], Sequence[Any]]
# A setting, and values of it whose cells would decide.
Probe = tuple[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one mechanism in one trial; ``unknown`` if the evidence does not suffice.

    ``reason`` is a sentence without a full stop, ``numbers`` are the measurements in words. ``began_step`` is the step
    when the mechanism began to act, None if it never did. ``onset_step`` is the onset of the trial.
    """

    mechanism: str
    verdict: Verdict
    reason: str
    numbers: tuple[str, ...] = ()
    began_step: int | None = None
    onset_step: int | None = hidden(default=None)

    @property
    def when(self) -> str:
        """The step when it began, and its distance from the onset; empty if it never did."""
        if self.began_step is None:
            return ""
        if self.onset_step is None:
            return f"from step {self.began_step}"
        lead = self.onset_step - self.began_step
        relative = "at the onset" if lead == 0 else f"{steps(abs(lead))} {'before' if lead > 0 else 'after'} the onset"
        return f"from step {self.began_step}, {relative}"


class MakeFinding(Protocol):
    """Creates the findings of one mechanism about one trial."""

    def __call__(
        self, verdict: Verdict, reason: str, numbers: list[str] | None = None, began: int | None = None
    ) -> Finding:
        """Create a finding with its measurements and the step when the mechanism began to act."""


@dataclass(frozen=True, slots=True)
class Move:
    """A change of one setting that may help against a mechanism; ``values`` are candidates for a small sweep."""

    setting: str
    direction: Direction
    reason: str
    values: Values = hidden()


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One way that training becomes unstable.

    ``find`` judges the evidence. ``label`` and ``colour`` mark the cells of a map where the mechanism dominates; the
    label has to be short and readable without colour. ``moves`` may help, the best first. ``probe`` proposes cells that
    would decide where the evidence does not suffice. ``removal`` is the fork that takes the mechanism away. If
    ``is_companion``, the mechanism accompanies instabilities and is never their cause.
    """

    key: str
    title: str
    find: Callable[[Evidence, MakeFinding], Finding]
    label: str
    colour: str
    moves: tuple[Move, ...]
    probe: Callable[[Evidence], Probe | None]
    is_companion: bool
    removal: Remove

    def examine(self, evidence: Evidence) -> Finding:
        """Judge the evidence on one trial."""

        def make(verdict: Verdict, reason: str, numbers: list[str] | None = None, began: int | None = None) -> Finding:
            return Finding(self.key, verdict, reason, tuple(numbers or ()), began, evidence.onset)

        return self.find(evidence, make)


def mechanism(
    title: str,
    *,
    label: str,
    colour: str,
    moves: tuple[Move, ...],
    probe: Callable[[Evidence], Probe | None] = lambda evidence: None,
    is_companion: bool = False,
    removal: Remove = irremovable,
) -> Callable[[Callable[[Evidence, MakeFinding], Finding]], Mechanism]:
    """A decorator that makes a mechanism of the function which judges the evidence; its key is the function's name."""
    return lambda find: Mechanism(find.__name__, title, find, label, colour, moves, probe, is_companion, removal)


def settles_below(evidence: Evidence) -> str | None:
    """Why a curvature below 2 / lr excludes nothing in this trial; None if it does.

    With weight decay the sharpness of an MLP settles below 2 / lr (arXiv 2605.16622).
    """
    decay = number_of(evidence.config_in_force, "weight_decay")
    return f"with weight decay {format_value(decay)} the curvature settles below 2 / lr" if decay else None


def is_far_over(evidence: Evidence) -> bool:
    """Whether the curvature was far over its threshold often enough before the onset that no decay of v explains it."""
    readings = evidence.threshold_ratio.between((evidence.full_rate_step or 0) + 1, evidence.until)
    share = readings.share(lambda ratio_N: ratio_N > FAR_OVER)
    return share is not None and share >= OFTEN_FAR and len(readings) >= MIN_OVER


# --- words ---


def results_with(setting: str, cell: Neighbour) -> str:
    """The outcomes of a neighbouring cell in words: ``with lr 0.1: 2 of 3 seeds stable``."""
    return f"with {setting} {format_value(cell.value)}: {cell.seeds_text}"


def steps(number: float) -> str:
    """A number of steps in words."""
    return count(round(number), "step")


# --- values for small sweeps ---


def scaled(setting: str, *factors: float) -> Values:
    """Multiples of the trial's value, to three digits."""

    def values(evidence: Evidence) -> list[float]:
        own = evidence.number(setting)
        return [] if own is None else [float(f"{own * factor:.3g}") for factor in factors]

    return values


def whole(setting: str, *factors: int) -> Values:
    """Multiples of the trial's value as integers."""
    return lambda evidence: [int(value) for value in scaled(setting, *factors)(evidence)]


def just(*values: Any) -> Values:
    """The same values for every trial."""
    return lambda evidence: values


def times_usual_norm(*factors: float) -> Values:
    """Multiples of the median gradient norm before the onset."""

    def values(evidence: Evidence) -> list[float]:
        usual = evidence.grad_norm.between(0, evidence.until).median()
        return [] if not usual else [float(f"{usual * factor:.2g}") for factor in factors]

    return values


def shorter_memories(evidence: Evidence) -> list[float]:
    """Values of beta2 with a third and a tenth of the memory."""
    beta2 = evidence.beta2
    return [] if beta2 is None else [float(f"{1 - min(0.5, factor * (1 - beta2)):.6g}") for factor in (3, 10)]


def longer_warmups(evidence: Evidence) -> list[int]:
    """Half and all of the warmup that Ma and Yarats advise, or two and four times the trial's own."""
    needed, longest = WARMUP_RULE * (evidence.memory or 50.0), int(evidence.trial.steps) // 2
    own = int(evidence.number("warmup") or 0)
    wanted = (round(needed / 2), round(needed)) if own < needed / 2 else (2 * own, 4 * own)
    return sorted({min(longest, value) for value in wanted if min(longest, value) > own})


def longer_memories(evidence: Evidence) -> list[float]:
    """Values of beta2 with two and four times the memory of the momentum."""
    beta1 = evidence.beta1
    return [] if beta1 is None else [float(f"{1 - (1 - beta1**2) / factor:.12g}") for factor in (2, 4)]


def lower_momentum(evidence: Evidence) -> list[float]:
    """Nine tenths and half of the largest beta1 that this v supports, sqrt(beta2)."""
    beta2 = evidence.beta2
    return [] if beta2 is None else [float(f"{factor * beta2**0.5:.3g}") for factor in (0.9, 0.5)]


def warmup_by_the_rule(evidence: Evidence) -> Probe | None:
    """A probe with the warmup that Ma and Yarats advise."""
    memory = evidence.memory
    if memory is None or evidence.number("warmup") is None:
        return None
    return "warmup", [min(int(evidence.trial.steps) // 2, round(WARMUP_RULE * memory))]


def probe_of(move: Move) -> Callable[[Evidence], Probe | None]:
    """A probe with the values of ``move``, for mechanisms that its cells would decide."""

    def probe(evidence: Evidence) -> Probe | None:
        values = move.values(evidence)
        return (move.setting, values) if values else None

    return probe


# --- moves that help against several mechanisms ---

LOWER_LR = Move("lr", "lower", "keeps the step below 2 / lambda", scaled("lr", 0.3, 0.1))
HIGHER_LR = Move("lr", "raise", "larger steps learn more in the same time", scaled("lr", 10, 100))
SHORTER_MEMORY = Move("beta2", "lower", "lets v follow the gradient sooner and lag less", shorter_memories)
LOWER_EPS = Move(
    "eps",
    "lower",
    "takes epsilon out of the step; if too low, nothing bounds the step where v is small",
    scaled("eps", 0.1, 0.01),
)
HIGHER_EPS = Move(
    "eps",
    "raise",
    "bounds 1 / (sqrt(v) + eps), often at a cost in loss; papers disagree: Bai et al. raise eps, Molybog et al. "
    "lower it",
    scaled("eps", 1e2, 1e4),
)
CLIP = Move("clip", "lower", "cuts a jump of the gradient to its usual size", times_usual_norm(1.0, 2.0))
