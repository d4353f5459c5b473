"""Trainers that end themselves since their training diverged: what their last lines and their losses say."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Losses:
    """What a run's losses say at its end: whether they have diverged, by the detector, and whether all were said."""

    first: float | None
    last: float | None
    have_diverged: bool
    are_complete: bool


# What trainers say when they give up, by the tools and libraries where it was seen; docs/custom-trainer.md lists them.
_SAYINGS = re.compile(
    "|".join(
        (
            # vision trainers (DETR, MAE, torchvision's references), and many that copied their line
            r"loss (?:is|was|became) (?:tensor\()?(?:nan|[+-]?inf|not finite|non-?finite)(?!.*\b(?:skip|ignor))",
            r"(?:error|exception|stop\w*|abort\w*|exit\w*)\b.*\b(?:nan|inf|non-?finite) (?:training )?loss",
            r"\b(?:nan|inf|non-?finite) (?:training )?loss\b.*\b(?:stop|abort|exit|terminat)",
            r"probably exploding",  # fairseq
            r"^FloatingPointError\b",  # fairseq, numpy
            r"\bassert .*(?:isnan|isinf|isfinite)\(",  # the line of a traceback
            r"returned nan values in its \d+th output",  # PyTorch's anomaly detection
            r"probability tensor contains either `inf`, `nan`",  # PyTorch's sampling
            r"found invalid values:\s*tensor\([\[\s]*nan",  # PyTorch's distributions
            r"found nan in local (?:forward loss|grad norm)",  # Megatron-LM
            r"invalid loss, terminating training",  # Keras
            r"loss contains a nan",  # Composer
            r"tensor had (?:nan|inf) values",  # TensorFlow
            r"loss scale already at minimum",  # DeepSpeed
            r"`training_step` is nan|detected nan and/or inf values",  # Lightning
            r"is not finite\b.* signaling trainer to stop",  # Lightning, which exits with 0
            r"\b(?:loss|training|model|run) (?:has )?(?:diverged|exploded)\b(?!\s*[:=?])",
        )
    ),
    re.IGNORECASE | re.MULTILINE,
)
# A step that was not made, since its loss or gradient was not finite; and so many of the last lines that say so.
_SKIPPED = re.compile(r"(?=.*\b(?:skip|ignor))(?=.*(?:\b(?:nan|inf)\b|not finite|non-?finite|overflow))", re.IGNORECASE)
_LAST_LINES, _MANY_SKIPPED = 12, 5
_OVERFLOW = re.compile(r"^OverflowError: (?:math range error|\(34,).*", re.MULTILINE)  # e.g. math.exp of a loss
# What gloo's threads that outlive Python say, and torchrun of a process that they ended.
_ABORT = re.compile(r"terminate called without an active exception|Signal 6 \(SIGABRT\) received")
_LOST_FACTOR = 10.0  # of its first loss
# Signals from outside that end a healthy process, so another attempt may succeed.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR2)


def first_to_fail(codes: Sequence[int | None]) -> int | None:
    """Return the rank whose end explains the end of a trial; None if none failed.

    It is one that was killed from outside, since the others fail when they miss it, or else the lowest one.
    """
    failed = [rank for rank, code in enumerate(codes) if code not in (None, 0)]
    return next((rank for rank in failed if signal_from_outside(codes[rank]) is not None), next(iter(failed), None))


def signal_from_outside(code: int | None) -> signal.Signals | None:
    """Return the signal that ended a process from outside; a shell reports 128 plus its number as exit code."""
    number = 0 if code is None else -code if code < 0 else code - 128
    return signal.Signals(number) if number in _FROM_OUTSIDE else None


def how_failed(code: int, lines: Sequence[str]) -> str:
    """Say how a process with these last ``lines`` failed: by which signal, or with which exit code and last line."""
    if (outside := signal_from_outside(code)) is not None:
        return f"was killed by {outside.name}{' (is memory short?)' if outside == signal.SIGKILL else ''}"
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return how + "".join(f": {line.strip()}" for line in lines[-1:] if line.strip())


def own_verdict(code: int | None, losses: Losses, lines: Sequence[str], pattern: str | None) -> str | None:
    """Return in words why a process that ended with ``code`` had diverged; None if neither words nor losses say so.

    ``lines`` are its last ones. ``pattern`` finds a line that says so, whatever the exit code.
    """
    text = "\n".join(lines)
    if signal_from_outside(code) is not None:
        return None
    if pattern is not None and (own := re.search(pattern, text, re.MULTILINE)):
        return f"it said that it diverged: {_line_at(text, own.start())}"
    if code == 0 and losses.are_complete:
        return None
    skipped = [line for line in lines[-_LAST_LINES:] if _SKIPPED.match(line)]
    if len(skipped) >= _MANY_SKIPPED:
        return f"until its end it skipped what was not finite: {skipped[-1].strip()}"
    if usual := _SAYINGS.search(text):
        return f"it stopped itself: {_line_at(text, usual.start())}"
    return _by_losses(losses, text) if code not in (None, 0) else None


def aborted(lines: Sequence[str]) -> bool:
    """Whether a process was ended by libraries of collectives, as they do after the training too."""
    return _ABORT.search("\n".join(lines)) is not None


def question_of(lines: Sequence[str]) -> str:
    """Return what to say after an error that may be a divergence without a loss before it; empty for others."""
    if _OVERFLOW.search("\n".join(lines)) is None:
        return ""
    return "; if its loss was too large, write under objective: diverged_if: OverflowError"


def _by_losses(losses: Losses, text: str) -> str | None:
    first, last = losses.first, losses.last
    if losses.have_diverged:
        return "it failed"
    if first is None or last is None or not last > first > 0:
        return None
    if overflow := _OVERFLOW.search(text):
        return f"{overflow.group().strip()}, after losses from {first:.4g} to {last:.4g}"
    return f"it failed, at {last / first:.3g} times its first loss" if last >= _LOST_FACTOR * first else None


def _line_at(text: str, place: int) -> str:
    begin = text.rfind("\n", 0, place) + 1
    return text[begin:].lstrip().split("\n", 1)[0].strip()
