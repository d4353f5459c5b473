"""What to change: the setting, the direction and the reason, checked against the cells that the sweep has."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.diagnosis.evidence import Evidence
from orchestrator.diagnosis.mechanisms.batches import BAD_BATCH
from orchestrator.diagnosis.mechanisms.decay import PRECONDITIONER_DECAY
from orchestrator.diagnosis.mechanisms.edge import OVER_THE_EDGE, WARMUP_TOO_SHORT
from orchestrator.diagnosis.mechanisms.logits import LOGIT_GROWTH
from orchestrator.diagnosis.mechanisms.memory import SHORT_MEMORY
from orchestrator.diagnosis.mechanisms.precision import HALF_PRECISION_OVERFLOW
from orchestrator.diagnosis.mechanisms.scales import (
    CLIPPING_INACTIVE,
    CLIPPING_SATURATED,
    EPSILON_FLOOR,
    LAYERS_OUT_OF_STEP,
)
from orchestrator.diagnosis.mechanisms.thresholds import WARMUP_RULE
from orchestrator.diagnosis.small_sweep import small_sweep
from orchestrator.maps.neighbours import Neighbour, above, below, neighbours
from orchestrator.space import format_value

_WIDTH = 106
Direction = Literal["lower", "raise", "switch"]
Values = Callable[[Evidence], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Move:
    """A change of one setting that may help against a mechanism; ``values`` are those that a small sweep would try."""

    setting: str
    direction: Direction
    reason: str
    values: Values


@dataclass(frozen=True, slots=True)
class Advice:
    """A move, and what the sweep's own cells say about it.

    ``here`` is the trial's own cell, ``nearest`` the next cell in the direction, ``stable`` the next one there that
    is stable, None where there is none. ``sweep_file`` is the small sweep that would tell where no cell does.
    """

    move: Move
    here: Neighbour | None
    nearest: Neighbour | None
    stable: Neighbour | None
    sweep_file: str | None


def _scaled(setting: str, *factors: float) -> Values:
    def values(evidence: Evidence) -> list[float]:
        own = evidence.number(setting)
        return [] if own is None else [float(f"{own * factor:.3g}") for factor in factors]

    return values


def _whole(setting: str, *factors: int) -> Values:
    return lambda evidence: [int(value) for value in _scaled(setting, *factors)(evidence)]


def _forgetting_faster(evidence: Evidence) -> list[float]:
    beta2 = evidence.beta2
    return [] if beta2 is None else [float(f"{1 - min(0.5, factor * (1 - beta2)):.6g}") for factor in (3, 10)]


def _remembering_longer(evidence: Evidence) -> list[float]:
    """For twice and four times as long as the momentum."""
    beta1 = evidence.beta1
    return [] if beta1 is None else [float(f"{1 - (1 - beta1**2) / factor:.12g}") for factor in (2, 4)]


def _less_momentum(evidence: Evidence) -> list[float]:
    """For nine tenths of what this v remembers for as long as, and half of it."""
    beta2 = evidence.beta2
    return [] if beta2 is None else [float(f"{factor * beta2**0.5:.3g}") for factor in (0.9, 0.5)]


def _warmups(evidence: Evidence) -> list[int]:
    needed, most = WARMUP_RULE * (evidence.memory or 50.0), int(evidence.trial["steps"]) // 2
    own = int(evidence.number("warmup") or 0)
    wanted = (round(needed / 2), round(needed)) if own < needed / 2 else (2 * own, 4 * own)
    return sorted({min(most, value) for value in wanted if min(most, value) > own})


def _about_the_norm(*factors: float) -> Values:
    def values(evidence: Evidence) -> list[float]:
        usual = evidence.grad_norm.between(0, evidence.until).median()
        return [] if not usual else [float(f"{usual * factor:.2g}") for factor in factors]

    return values


def _just(*values: Any) -> Values:
    return lambda evidence: values


_LOWER_LR = Move("lr", "lower", "a step of lr has to stay under 2 / lambda", _scaled("lr", 0.3, 0.1))
_LONGER_WARMUP = Move(
    "warmup", "raise", "steps stay small until v has seen 2 / (1 - beta2) gradients (Ma and Yarats)", _warmups
)
_SHORTER_MEMORY = Move("beta2", "lower", "v follows the gradient sooner, and lags behind it less", _forgetting_faster)
_SHORTER_HALF_LIFE = Move("beta2_half_life", "lower", _SHORTER_MEMORY.reason, _scaled("beta2_half_life", 0.3, 0.1))
_LOWER_EPS = Move(
    "eps",
    "lower",
    "epsilon then takes no part in the step; too low, and nothing bounds it where v is small",
    _scaled("eps", 0.1, 0.01),
)
_HIGHER_EPS = Move(
    "eps",
    "raise",
    "it bounds 1 / (sqrt(v) + eps), which papers disagree on: Bai et al. raise eps, Molybog et al. lower it, and the "
    "loss often pays for it",
    _scaled("eps", 1e2, 1e4),
)
_CLIP = Move("clip", "lower", "a jump of the gradient is cut to its usual size", _about_the_norm(1.0, 2.0))

MOVES: Mapping[str, tuple[Move, ...]] = {
    OVER_THE_EDGE: (
        _LOWER_LR,
        Move("warmup", "raise", "curvature often falls in the first steps, and a slow start waits for that", _warmups),
    ),
    WARMUP_TOO_SHORT: (
        _LONGER_WARMUP,
        Move(
            "beta2",
            "lower",
            "v is young for 1 / (1 - beta2) steps, so that a short warmup will do",
            _forgetting_faster,
        ),
        _LOWER_LR,
    ),
    PRECONDITIONER_DECAY: (_SHORTER_MEMORY, _SHORTER_HALF_LIFE, _LOWER_LR, _HIGHER_EPS, _LOWER_EPS),
    SHORT_MEMORY: (
        Move("beta2", "raise", "with beta2 above beta1^2 no step can grow without a bound", _remembering_longer),
        Move(
            "beta2_half_life",
            "raise",
            "with beta2 = (1/2)^(tokens of a step / half-life) above beta1^2 no step can grow without a bound",
            _scaled("beta2_half_life", 2, 4),
        ),
        Move("beta1", "lower", "momentum that fades before v does leaves no step to grow", _less_momentum),
        _HIGHER_EPS,
    ),
    EPSILON_FLOOR: (_LOWER_EPS,),
    LAYERS_OUT_OF_STEP: (
        _LOWER_EPS,
        Move("embedding_lr", "raise", "what stands still gets larger steps", _scaled("embedding_lr", 3, 10)),
        _SHORTER_MEMORY,
    ),
    LOGIT_GROWTH: (
        Move("qk_norm", "switch", "normed queries and keys bound the attention logits (Wortsman et al.)", _just(True)),
        Move("z_loss", "raise", "a penalty on log^2 Z holds the output logits (Wortsman et al.: 1e-4)", _just(1e-4)),
        _LOWER_LR,
    ),
    CLIPPING_SATURATED: (
        Move("clip", "raise", "a threshold above the usual norm cuts only what stands out", _about_the_norm(2.0, 10.0)),
    ),
    CLIPPING_INACTIVE: (_CLIP,),
    BAD_BATCH: (
        Move("corrupted", "lower", "fewer batches of the kind", _just(0.0)),
        _CLIP,
        Move("batch_size", "raise", "one bad sequence weighs less", _whole("batch_size", 2, 4)),
    ),
    HALF_PRECISION_OVERFLOW: (
        Move(
            "precision", "switch", "float16 ends at 65504, bfloat16 and float32 at 3e38", _just("bfloat16", "float32")
        ),
        _LOWER_LR,
    ),
}


def advise(evidence: Evidence, mechanism: str, folder: Path) -> list[Advice]:
    """What to change about a trial of the sweep in ``folder`` that ``mechanism`` has led off its trend.

    Settings that the trial does not have are left out, and those that are as they should be already.
    """
    return [
        advice
        for move in MOVES[mechanism]
        if _acts(evidence, move.setting) and (advice := check(evidence, move, folder)) is not None
    ]


def _acts(evidence: Evidence, setting: str) -> bool:
    """Whether the trial has the setting, and no other in its place."""
    if setting in ("beta2", "beta2_half_life") and setting != evidence.memory_setting:
        return False
    return setting in evidence.config


def check(evidence: Evidence, move: Move, folder: Path) -> Advice | None:
    """What the sweep's own cells, or a small sweep where there are none, say about a move; None where it is done."""
    own = evidence.config[move.setting]
    cells = neighbours(evidence.sisters, evidence.trial, move.setting)
    there = [cell for cell in cells if cell.value != own]
    if move.direction != "switch":
        there = below(cells, own) if move.direction == "lower" else above(cells, own)
    nearest = there[0] if there else None
    values = [] if nearest else _tried(own, move, evidence)
    if nearest is None and not values:
        return None
    return Advice(
        move=move,
        here=next((cell for cell in cells if cell.value == own), None),
        nearest=nearest,
        stable=next((cell for cell in there if cell.is_stable), None),
        sweep_file=small_sweep(folder, evidence.trial, move.direction, move.setting, values)
        if nearest is None
        else None,
    )


def _tried(own: Any, move: Move, evidence: Evidence) -> list[Any]:
    """The values of a small sweep that lie in the direction of the move."""
    values = list(dict.fromkeys(move.values(evidence)))
    if move.direction == "switch":
        return [value for value in values if value != own]
    is_lower = move.direction == "lower"
    return [value for value in values if own is None or (value < own if is_lower else value > own)]


def advice_lines(advice: Sequence[Advice], outcome: str) -> list[str]:
    """Advice in words, with the first small sweep that would tell where the sweep does not."""
    lines: list[str] = []
    shown_file = False
    for one in advice:
        lines += textwrap.wrap(f"{one.move.direction} {one.move.setting}: {one.move.reason}", _WIDTH)
        if one.nearest is not None:
            lines += [f"  {text}" for text in _checked(one, outcome)]
        elif one.sweep_file is None:
            lines.append("  no cell of this sweep tells, and its trainer takes no such setting from a sweep file")
        elif shown_file:
            lines.append("  no cell of this sweep tells; a small sweep of its own would")
        else:
            lines += ["  no cell of this sweep tells; this sweep would:", *indented(one.sweep_file)]
            shown_file = True
    return lines


def indented(sweep_file: str) -> list[str]:
    """A sweep file as a paragraph of its own."""
    return ["", *(f"    {line}" for line in sweep_file.splitlines()), ""]


def _checked(one: Advice, outcome: str) -> list[str]:
    assert one.nearest is not None
    lines = [_compared(one, one.nearest)]
    if one.stable is None:
        lines.append(f"no cell of this sweep is stable in this direction of {one.move.setting}")
    elif one.stable is not one.nearest:
        lines.append(_compared(one, one.stable))
    here = one.here.loss if one.here is not None else None
    if outcome == "spiked" and one.stable is not None and here is not None and here < (one.stable.loss or float("inf")):
        lines.append("a spike is not a failure: the cell that spikes has the lower final loss")
    return lines


def _compared(one: Advice, there: Neighbour) -> str:
    """beta2 0.999 -> 0.99 at these settings: 3 of 3 seeds stable here, final loss 2.41 -> 2.38."""
    own = one.here.value if one.here is not None else None
    change = f"{one.move.setting} {format_value(own)} -> {format_value(there.value)}"
    seeds = f"{there.num_stable} of {there.num_finished} seeds stable here"
    return f"{change} at these settings: {seeds}, final loss {_loss(one.here)} -> {_loss(there)}"


def _loss(cell: Neighbour | None) -> str:
    return "not finite" if cell is None or cell.loss is None else f"{cell.loss:.4g}"
