"""The trend of a run, the smallest rise that counts as leaving it, and what the run has learned."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from orchestrator.detection.config import StoppingConfig, falls_over_decades, rise_of
from orchestrator.detection.noise import (
    TAIL_FACTOR,
    UPPER_TAIL,
    middle,
    noise,
    noise_of_start,
    noise_ratio,
    noise_spread,
    relative_noise,
)


@dataclass(slots=True)
class Window:
    """The last ``size`` numbers, in order and sorted: medians and quantiles without sorting at each step."""

    size: int
    values: list[float] = field(default_factory=list)
    ordered: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        """Append ``value``. A full window drops its oldest number."""
        if len(self.values) == self.size:
            del self.ordered[bisect_left(self.ordered, self.values.pop(0))]
        self.values.append(value)
        insort(self.ordered, value)

    def reset(self, values: Sequence[float]) -> None:
        """Replace the content by the last of ``values``."""
        self.values = list(values[-self.size :])
        self.ordered = sorted(self.values)

    def median(self) -> float:
        """Return the median of a window that is not empty."""
        return middle(self.ordered)


def decimals(loss: float) -> int:
    """Return how many digits after the point ``loss`` has as it is printed."""
    _, digits, exponent = Decimal(repr(loss)).normalize().as_tuple()
    return max(0, -exponent) if isinstance(exponent, int) and digits != (0,) else 0


RECENT = 10  # losses in a reported level: enough to average out an odd batch
_SETTLED = 2  # windows of losses after which the noise is measured on a whole one
LOCAL = 8  # accepted losses in the local level: they follow a descent; one odd loss does not move their median
EARLY = 3  # losses in the trend of a start-up, where each is far below the one before
# The share of what was learned that a rise must reach to be an event.
LEAST_SHARE = 0.03
TINY = 1e-300  # smallest rise, for a loss that is exactly zero
# A loss below this share of the first one has fallen over decades, whatever its objective: its noise is proportional to
# its level, and it must rise by as many levels as a squared error.
DECADES, DECADES_RISE = 0.01, 2.0
# Digits after the point that a log is taken to have at least, and from which on its rounding is no noise.
FEWEST_DIGITS, MANY_DIGITS = 2, 8


class Trend:
    """The accepted losses of one run. A loss off the trend is never accepted, so it cannot hide the next one.

    The level is the lower of two medians, over the last LOCAL and the last ``window`` accepted losses: the first
    follows a descent, the second does not follow a slow rise. The noise is measured on residuals: accepted losses minus
    the level before them.
    """

    __slots__ = (
        "_ratio", "_rules", "_spread", "accepted", "digits", "level", "local", "num_accepted", "residuals",
    )  # fmt: skip

    def __init__(self, rules: StoppingConfig) -> None:
        self._rules = rules
        self.accepted, self.local = Window(rules.window), Window(LOCAL)
        self.residuals: list[float] = []  # one for each accepted loss, unsorted: rarely read
        self.num_accepted, self.level = 0, math.nan
        self.digits = FEWEST_DIGITS  # most digits after the point of an accepted loss
        self._spread: float | None = None  # the noise's part of the rise, measured on demand
        self._ratio: float | None = None  # the same for noise that is proportional to the level, relative to it

    def accept(self, loss: float) -> None:
        """Add a loss on the trend."""
        if self.num_accepted:
            if len(self.residuals) == self.accepted.size:
                self.residuals.pop(0)
            self.residuals.append(loss - self.level)
        self.accepted.add(loss)
        self.local.add(loss)
        self.num_accepted += 1
        if self.digits < MANY_DIGITS and round(loss, self.digits) != loss:
            self.digits = max(self.digits, decimals(loss))
        self._measure()

    def accept_all(self, accepted: list[float], residuals: list[float], num: int) -> None:
        """Add ``num`` losses on the trend at once, after which the windows are these; none has more digits."""
        self.accepted.reset(accepted)
        self.local.reset(accepted)
        self.residuals, self.num_accepted = residuals, self.num_accepted + num
        self._measure()

    def rebase(self, losses: Sequence[float]) -> None:
        """Continue from ``losses``, whether they were accepted or not."""
        self.accepted.reset(losses)
        self.local.reset(losses)
        self.num_accepted = max(self.num_accepted, len(losses))
        self._measure()

    @property
    def rules(self) -> StoppingConfig:
        """The settings of the detector."""
        return self._rules

    @property
    def is_full(self) -> bool:
        """Whether its windows are full, and the noise is measured on all of them."""
        size = self.accepted.size
        return len(self.residuals) == size == len(self.accepted.values) and self.num_accepted >= max(
            self._rules.min_history, _SETTLED * size
        )

    @property
    def is_early(self) -> bool:
        """Whether there are too few losses to measure the noise."""
        return self.num_accepted < self._rules.min_history

    def early_level(self) -> float:
        """Return the highest of the last accepted losses: a start-up falls too fast for a median."""
        return max(self.accepted.values[-EARLY:])

    @property
    def rounding(self) -> float:
        """Half of the last digit of the printed losses, 0 if they are not rounded."""
        return 0.0 if self.digits >= MANY_DIGITS else 0.5 * 10.0**-self.digits

    def least_noise(self) -> float:
        """Return the rise that is beyond the rounding of printed losses: their noise is half of the last digit."""
        return self._rules.spike_sigma * self.rounding

    def rise(self, learned: float, top: float) -> float:
        """Return the rise above the level that leaves the trend: beyond the noise, and noticeable.

        ``learned`` is by how much the loss has fallen, ``top`` its level before.
        """
        return max(self._noise(top), self.least_noise(), self.least_rise(learned, top))

    def relative_noise(self) -> float:
        """Return the deviation of the noise as a share of the level."""
        return relative_noise(self.accepted.values, self._rules)

    def noise_of_start(self, losses: Sequence[float]) -> float:
        """Return the same at the start, of whose ``losses`` some are on the trend."""
        return noise_of_start(self.accepted.values, losses, self._rules)

    def _noise(self, top: float) -> float:
        if has_fallen_over_decades(self.level, top, self._rules):
            if self._ratio is None:
                self._ratio = noise_ratio(self.accepted.values, self._rules)
            return self._ratio * self.level
        if self._spread is None:
            num = max(self._rules.min_history, self.num_accepted // _SETTLED)
            self._spread = noise_spread(self.residuals, self._rules, num)
        return self._spread

    def least_rise(self, learned: float, top: float) -> float:
        """Return the smallest noticeable rise: a fraction of the level, and a share of what was ``learned``."""
        return max(rise_at(self.level, top, self._rules) * abs(self.level), LEAST_SHARE * learned, TINY)

    def recent_median(self) -> float:
        """Return the median of the last RECENT accepted losses."""
        return middle(sorted(self.accepted.values[-RECENT:]))

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        windows = {"accepted": self.accepted.values.copy(), "local": self.local.values.copy()}
        return {
            **windows, "residuals": self.residuals.copy(), "num_accepted": self.num_accepted, "digits": self.digits,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        self.accepted.reset(state["accepted"])
        self.local.reset(state["local"])
        self.residuals, self.num_accepted = list(state["residuals"]), state["num_accepted"]
        self.digits = state.get("digits", MANY_DIGITS)  # checkpoints of earlier versions have none
        if self.num_accepted:
            self._measure()

    def _measure(self) -> None:
        self.level = min(self.local.median(), self.accepted.median())
        self._spread = self._ratio = None


def has_fallen_over_decades(level: float, top: float, rules: StoppingConfig) -> bool:
    """Return whether a loss of one decade, such as a cross-entropy, has fallen from ``top`` by decades all the same."""
    return 0 < level < DECADES * top and not falls_over_decades(rules)


def rise_at(level: float, top: float, rules: StoppingConfig) -> float:
    """Return the smallest rise that leaves the trend, as a fraction of ``level``."""
    return DECADES_RISE if has_fallen_over_decades(level, top, rules) else rise_of(rules)


# --- what was learned, against which rises are measured --------------------------------------------


# A start-up blow-up is above twice the initial loss, or 20 points above it. A loss that falls over decades must rise by
# three decades: momentum on a quadratic overshoots by a factor of some hundreds below the edge of stability.
BLOW_UP, BLOW_UP_POINTS, BLOW_UP_FACTOR = 1.0, 20.0, 1000.0


def blow_up_line(start: float, rules: StoppingConfig) -> float:
    """Return the loss above which a run that should have begun at ``start`` has blown up."""
    if falls_over_decades(rules):
        return start + BLOW_UP_FACTOR * abs(start)
    return start + min(BLOW_UP * abs(start), BLOW_UP_POINTS)


_STATE = ("initial", "start", "early", "best", "_around_best", "_steps_to_start", "blew_up", "top")


class Progress:
    """The initial loss of one run, the level after its start-up, and its best level.

    ``start`` is the initial loss or, after a start-up blow-up, the level that the run came back to: an initial
    blow-up is not what was learned.
    """

    __slots__ = (
        "_around_best", "_noise_at_best", "_rules", "_steps_to_start", "_trend", "best", "blew_up", "early", "initial",
        "learned", "learned_late", "lowest", "num_changes", "start", "top",
    )  # fmt: skip

    def __init__(self, rules: StoppingConfig, trend: Trend) -> None:
        self._rules, self._trend = rules, trend
        self.initial = self.start = math.nan
        self.early = math.inf  # median of the first ``min_history`` accepted losses, once there are as many
        self.best = math.inf  # lowest median of the last RECENT accepted losses, which one lucky batch does not set
        self._around_best: list[float] = []  # the accepted losses then
        self._noise_at_best: float | None = None  # measured on demand
        self.blew_up = False  # at the start
        self._steps_to_start = 0  # accepted losses until ``start`` is measured again
        self.num_changes = 0  # of the numbers below
        self.lowest = math.nan  # the best level, or the start of a run that was never below it
        self.learned = 0.0  # by how much the loss has fallen since the start
        # The same since the first ``min_history`` losses, which may fall by more than all later ones; the measure of
        # spikes.
        self.learned_late = 0.0
        self.top = math.nan  # median of the first EARLY accepted losses, once there are as many: above all decades

    def begin(self, loss: float) -> None:
        """Take the first loss."""
        self.initial = self.start = loss
        self._measure()

    def follow(self, loss: float) -> None:
        """Take a loss that the trend has just accepted."""
        trend = self._trend
        if trend.num_accepted == EARLY:
            self.top = trend.accepted.median()
        if trend.num_accepted == self._rules.min_history:
            self.early = trend.accepted.median()
            self._measure()
        if self._steps_to_start:
            self._steps_to_start -= 1
            if not self._steps_to_start:
                self.start = min(self.start, trend.recent_median())
                self._measure()
        # Only a loss below the best level can lower the median further.
        if loss < self.best and trend.num_accepted >= RECENT:
            level = trend.recent_median()
            if level < self.best:
                self.improve(level, trend.accepted.values.copy())

    def improve(self, best: float, around: list[float]) -> None:
        """Take the ``best`` level so far, and the accepted losses ``around`` it."""
        self.best, self._around_best, self._noise_at_best = best, around, None
        self._measure()

    def start_again(self) -> None:
        """Note the end of a start-up blow-up: what was learned counts from the level a window of losses later."""
        self.blew_up, self._steps_to_start = True, self._rules.window

    def take_blow_up_back(self) -> None:
        """Note that a start-up blow-up was noise, as is known once the noise is."""
        self.blew_up, self._steps_to_start, self.start = False, 0, self.initial
        self._measure()

    def noise_at_best(self) -> float:
        """Return the rise above the best level that is beyond the noise there."""
        if self._noise_at_best is None:
            around = itertools.pairwise(self._around_best)
            spread, tail = noise((after - before for before, after in around), UPPER_TAIL)
            self._noise_at_best = max(self._rules.spike_sigma * spread, TAIL_FACTOR * tail, self._trend.least_noise())
        return self._noise_at_best

    def has_learned(self, level: float, share: float) -> bool:
        """Return whether ``level`` is below the initial loss by more than this ``share``."""
        return self.initial - min(level, self.initial) > share * abs(self.initial)

    @property
    def came_back(self) -> bool:
        """Whether the run blew up at its start, and the level that it came back to is known."""
        return self.blew_up and not self._steps_to_start

    def rise_at(self, level: float) -> float:
        """Return the smallest rise that leaves a trend at ``level``, as a fraction of it."""
        return rise_at(level, self.top, self._rules)

    def blow_up_line(self) -> float:
        """Return the loss above which a start-up is a blow-up."""
        return blow_up_line(min(self.initial, self.start), self._rules)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        for name in _STATE:
            setattr(self, name, state.get(name, math.nan))  # checkpoints of earlier versions have no top
        self._noise_at_best = None
        self._measure()

    def _measure(self) -> None:
        """Update what follows from the levels."""
        self.num_changes += 1
        self.lowest, self.learned, self.learned_late = self.measured(self.best)

    def measured(self, best: float) -> tuple[float, float, float]:
        """Return what ``lowest``, ``learned`` and ``learned_late`` are with this ``best`` level."""
        lowest = min(best, self.start)
        # A share of what was learned means nothing for a loss that falls over decades.
        is_late = not falls_over_decades(self._rules) and self.early < math.inf
        late = max(0.0, min(self.start, self.early) - lowest) if is_late else self.learned_late
        return lowest, self.start - lowest, late

    @property
    def is_settled(self) -> bool:
        """Whether ``start`` is not to be measured again."""
        return not self._steps_to_start
