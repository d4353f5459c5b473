"""What a log alone says of a run that left its trend: the likely cause, what is not known, and what to do.

A log has losses, and often gradient norms, a learning rate and validations. That narrows the causes down, but without
curvature and second moment it proves none. Windows count points, since a log may leave out steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np

from orchestrator.base.query import hidden, reported
from orchestrator.base.words import count
from orchestrator.causes.mechanisms import limits as at
from orchestrator.causes.mechanisms.data import falls_back, jump_near
from orchestrator.causes.remedies.remedy import Remedy
from orchestrator.causes.remedies.saved import SavedRuns
from orchestrator.causes.remedies.snippets import snippet_of
from orchestrator.causes.series import Series, series
from orchestrator.detection.excursions import Episode
from orchestrator.maps.replay import Replayed

Shape = Literal["one jump", "single jumps", "jumps", "rise", "slow rise", "start", "not finite", "stall"]
_FULL = 0.9  # of the highest learning rate
_BEFORE, _NEAR = 50, 5  # points whose median is what was usual before, and those at the onset that are left out
_ROSE = 2.0  # times the usual norm
# Times the first loss and the usual norm. In sweeps/causes 6 runs with bad batches reach 1.6 and 8 times, 9 runs that
# overshoot 3.2 to 1e5 and 37 to 5e6 times. Chosen on these.
_OVERSHOT_LOSS, _OVERSHOT_NORM = 3.0, 20.0
_SEVERAL = 3  # episodes that make a pattern
_BACK_STEPS = 50  # to go back before the onset, if nothing says more
_YOUNG = 1.25  # times the step of _FULL: soon after the warmup


@dataclass(frozen=True, slots=True)
class Rate:
    """The learning rate at the onset: its value, the highest one, and when that was first near; ``phase`` in words."""

    value: float
    highest: float
    full_step: int
    phase: Literal["warmup", "full", "decay", "constant"]
    steps_since_full: int


@dataclass(frozen=True, slots=True)
class NormChange:
    """The gradient norm: usual before the onset, highest at it, and how many steps before it was first doubled."""

    before: float
    highest: float
    steps_ahead: int | None

    @property
    def factor(self) -> float:
        """How many times the usual norm the highest one is."""
        return self.highest / self.before if self.before > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that the log does not say, and the reading that would."""

    what: str
    reading: str


@dataclass(frozen=True, slots=True)
class Action:
    """Something to do: in words, from which checkpoint step, and as code if PyTorch has to do it."""

    what: str
    from_step: int | None = None
    remedy: str | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class LogExplanation:
    """Why the run of a log left its trend as far as the log says, what is missing, and what to do, the first first."""

    log: str
    onset_step: int
    shape: Shape
    likely: str
    rate: Rate | None
    norm: NormChange | None
    validation: tuple[float, float] | None
    facts: tuple[str, ...]
    missing: tuple[Missing, ...]
    actions: tuple[Action, ...]
    measured: tuple[str, ...] = hidden()  # the facts that are not about the loss
    checkpoint: int | None = hidden()  # the latest step to go back to

    @reported
    def norm_factor(self) -> float | None:
        """How many times its usual value the gradient norm reached."""
        return None if self.norm is None else self.norm.factor

    def lines(self) -> Iterator[tuple[str, int]]:
        """Yield lines and how far each is indented."""
        yield f"{self.log}: what it says of step {self.onset_step:,}", 0
        yield f"likely: {self.likely}", 1
        for fact in self.facts:
            yield fact, 1
        for each in self.missing:
            yield f"not known: {each.what} ({each.reading})", 1
        for number, action in enumerate(self.actions):
            yield f"{'do' if number == 0 else 'or'}: {action.what}", 1


def explain_log(judged: Replayed, runs: SavedRuns | None = None) -> LogExplanation | None:
    """Explain the run of a log; None if it stayed on its trend, or its outcome is unknown.

    ``runs`` are what became of such runs in a sweep.
    """
    result, record = judged.result, judged.record
    if result.outcome in ("stable", "unknown", "pruned") or result.onset_step is None:
        return None
    tallest = max(record.episodes, key=lambda each: each.peak_loss, default=None)
    lost = result.outcome == "diverged"
    if not record.is_finite and tallest is not None and tallest.recovery_step is not None:
        tallest = None  # over before the loss was not finite
    episode = next((each for each in record.episodes if each.onset_step == result.onset_step), tallest)
    onset = result.onset_step if lost or episode is None else episode.onset_step
    case = _Case(judged, onset, episode, runs)
    return LogExplanation(
        log=judged.log.name,
        onset_step=onset,
        shape=case.shape,
        likely=case.likely(),
        rate=case.rate,
        norm=case.norm,
        validation=case.validation,
        facts=(*case.of_loss(), *case.measured()),
        measured=tuple(case.measured()),
        checkpoint=None if case.shape == "stall" else case.checkpoint(),
        missing=tuple(case.missing()),
        actions=tuple(case.actions()),
    )


class _Case:
    """One onset in a log, and what is measured around it."""

    def __init__(self, judged: Replayed, onset: int, episode: Episode | None, runs: SavedRuns | None) -> None:
        self.judged, self.log, self.onset, self.episode, self.runs = judged, judged.log, onset, episode, runs
        self.place = int(np.searchsorted(self.log.step_N, onset))  # of the onset among the points
        strides = np.diff(self.log.step_N)
        self.every = max(1, round(float(np.median(strides)))) if len(strides) else 1
        has_onset = self.outcome != "stalled"  # which lasts from the first step
        self.rate, self.norm = (self._rate(), self._norm()) if has_onset else (None, None)
        self.validation = self._validation()
        self.shape = self._shape()

    @property
    def outcome(self) -> str:
        return self.judged.result.outcome

    @property
    def came_back(self) -> bool:
        return self.outcome == "spiked" and self.judged.record.episodes[-1].recovery_step is not None

    def _rate(self) -> Rate | None:
        if self.log.lr_N is None or not np.isfinite(self.log.lr_N[: self.place + 1]).any():
            return None
        rates = series(self.log.step_N, self.log.lr_N)
        value, highest = rates.at(self.onset), rates.between(-math.inf, self.onset + 1).largest()
        if value is None or not highest:
            return None
        full = rates.first(lambda rate_N: rate_N >= _FULL * highest) or 0
        later = rates.largest() or highest
        is_warmup = highest < _FULL * later or (full == self.onset and value > float(rates.value_N[0]))
        is_constant = float(rates.value_N[0]) >= _FULL * highest and value >= _FULL * highest
        phase: Literal["warmup", "full", "decay", "constant"] = (
            "warmup" if is_warmup else "constant" if is_constant else "full" if value >= _FULL * highest else "decay"
        )
        return Rate(value, highest, full, phase, max(0, self.onset - full))

    def _norm(self) -> NormChange | None:
        if self.log.grad_norm_N is None:
            return None
        norm_N = self.log.grad_norm_N
        before_N = norm_N[max(0, self.place - _BEFORE) : max(1, self.place - _NEAR)]
        before_N = before_N[np.isfinite(before_N)]
        end = self.place + max(1, 0 if self.episode is None else self.episode.num_steps)
        at_N = norm_N[max(0, self.place - _NEAR) : min(end + 1, self.place + _BEFORE)]
        if not len(before_N) or not len(at_N):
            return None
        usual = float(np.median(before_N))
        first = max(0, self.place - _BEFORE)
        high = np.flatnonzero(norm_N[first : self.place] > _ROSE * usual)
        # The last stretch of high norms that reaches the onset, not a single one long before.
        while len(high) > 1 and high[-1] - high[0] > 2 * (len(high) - 1):
            high = high[1:]
        reaches = len(high) and first + high[-1] >= self.place - 2
        ahead = int(self.onset - self.log.step_N[first + high[0]]) if reaches else None
        highest = float(np.nanmax(at_N)) if not np.isnan(at_N).all() else math.inf
        return NormChange(usual, highest, ahead)

    def _validation(self) -> tuple[float, float] | None:
        if self.log.validation is None:
            return None
        steps, losses = self.log.validation
        before, after = losses[steps < self.onset], losses[steps >= self.onset]
        return (float(before[-1]), float(after[0])) if len(before) and len(after) else None

    def _shape(self) -> Shape:
        record, losses = self.judged.record, self.log.loss_N
        if self.outcome == "stalled":
            return "stall"
        if not record.is_finite and self.episode is None:
            return "not finite"
        if self.place <= at.MIN_HISTORY:
            return "start"
        if len(record.episodes) >= _SEVERAL or any(each.is_jump for each in record.episodes):
            # A step that was too long disturbs the weights, so that later losses are high too; a bad batch does not.
            is_single = median(each.num_steps for each in record.episodes) <= 1 and self.came_back
            return "single jumps" if is_single and not self.overshoots else "jumps"
        if self.episode is None:
            return "slow rise"
        points = Series(np.arange(len(losses)), np.nan_to_num(losses, nan=np.inf, posinf=np.inf))
        jump = jump_near(points, self.place)
        is_single = jump is not None and falls_back(points, jump) and self.came_back
        return "one jump" if is_single and not self.overshoots else "rise"

    @property
    def overshoots(self) -> bool:
        """Whether the loss or the gradient grew more than a bad batch makes them, or the gradient before the loss."""
        initial, episode, norm = self.judged.record.initial_loss, self.episode, self.norm
        is_high = initial is not None and episode is not None and episode.peak_loss > _OVERSHOT_LOSS * abs(initial)
        return is_high or (norm is not None and (norm.factor >= _OVERSHOT_NORM or norm.steps_ahead is not None))

    @property
    def is_young(self) -> bool:
        """Whether the rate was still rising at the onset, or had just come to its height."""
        rate = self.rate
        if rate is None or rate.phase == "constant":
            return False
        return rate.phase == "warmup" or (rate.full_step > 0 and self.onset <= _YOUNG * rate.full_step)

    def likely(self) -> str:
        """The cause that the log makes most likely, as a sentence."""
        norm = self.norm
        if self.shape == "stall":
            return "steps too short to learn (rate too low, eps above the gradients), or far too long from the start"
        if self.shape == "not finite":
            return "a number out of range: the loss was on its trend, and then not finite at once"
        if self.shape == "single jumps":
            num = self.judged.record.num_episodes
            return f"bad batches: {num} times the loss jumped at one point and was back at the next"
        if self.shape == "start" or (self.is_young and self.shape != "one jump"):
            when = "during the warmup" if self.rate and self.rate.phase == "warmup" else "at its start"
            when = "as soon as the rate was full" if self.is_young and when == "at its start" else when
            return f"the learning rate is too high for so young a run: it left its trend {when}"
        if self.shape == "jumps":
            num = self.judged.record.num_episodes
            return f"a regime and no single batch: {num} departures; steps are at the edge, or v forgets too slowly"
        if self.shape == "one jump":
            with_norm = norm is not None and norm.factor >= _ROSE
            return "one bad batch: the loss jumped within one point and fell back" + (
                ", and the gradient with it" if with_norm else ""
            )
        if self.shape == "slow rise":
            return "a slow rise: steps too long for where the run is now, or data that have changed"
        if norm is not None and norm.steps_ahead:
            return "steps that grew too long: the gradient norm rose first, then the loss, over several points"
        if self.overshoots:
            return "steps that overshot: the loss or its gradient grew more than a bad batch makes them"
        return "steps too long at this learning rate, or several bad batches: the loss rose over several points"

    def of_loss(self) -> Iterator[str]:
        """How the loss rose, and whether it came back."""
        episode = self.episode
        if episode is not None:
            back = "it did not come back"
            if episode.recovery_step is not None:
                back = f"back after {count(episode.recovery_step - episode.onset_step, 'step')}"
            level = "" if math.isnan(episode.level) else f" from {episode.level:.4g}"
            yield f"loss{level} up to {episode.peak_loss:.4g}, {back}"

    def measured(self) -> Iterator[str]:
        """The learning rate, the gradient norm and the validation loss around the onset."""
        rate, norm = self.rate, self.norm
        if rate is not None:
            since = f"full since step {rate.full_step:,}, {count(rate.steps_since_full, 'step')} before"
            words = {
                "warmup": "still rising: the warmup was not over",
                "constant": "its highest from the first point: no warmup in this log",
                "full": since,
                "decay": f"{rate.value / rate.highest:.0%} of its highest, which was {since}",
            }
            yield f"learning rate {rate.value:.3g}, {words[rate.phase]}"
        if norm is not None:
            ahead = "" if norm.steps_ahead is None else f", doubled {count(norm.steps_ahead, 'step')} before the loss"
            rise = f"up to {norm.highest:.3g} then ({norm.factor:.3g} times)"
            yield f"gradient norm {norm.before:.3g} before, {rise}{ahead}"
        if self.validation is not None:
            before, after = self.validation
            yield f"validation loss {before:.4g} before, {after:.4g} at the next one"

    def missing(self) -> Iterator[Missing]:
        """What the log does not say."""
        if self.log.lr_N is None:
            yield Missing("the learning rate at the onset", "print it in each line")
        if self.log.grad_norm_N is None:
            yield Missing("whether the gradient rose first", "print its norm before clipping")
        if self.every > 1 and self.shape in ("one jump", "single jumps", "rise"):
            yield Missing("whether it was one batch or several", f"a loss of each step; it has one in {self.every:,}")
        if self.shape not in ("not finite", "one jump", "single jumps"):
            yield Missing("whether the step overshot, lr above 2 / curvature", "`Watch.telemetry` with a closure")
            yield Missing("whether the second moment lagged behind the gradient", "`v_lag` of `Watch.telemetry`")
        if self.shape in ("one jump", "single jumps"):
            yield Missing("which batch it was, and whether it does that again", "train it again from a checkpoint")
        if self.shape == "not finite":
            yield Missing("which layer had it first", "`torch.autograd.detect_anomaly`, or float32 from a checkpoint")
        if self.shape in ("rise", "slow rise"):
            yield Missing("whether the data changed there", "the order of the data")
        if self.validation is None and self.came_back:
            yield Missing("whether it cost anything on other data", "a validation loss before and after")

    def actions(self) -> Iterator[Action]:
        """What to do, the first first."""
        if self.came_back:
            returns = f"; {self.runs.returns()}" if self.runs is not None else ""
            rare = "nothing, while it stays rare: it came back without help"
            often = "nothing yet: each time it came back, but it recurs"
            recurs = self.shape in ("jumps", "single jumps")
            yield Action(f"{often if recurs else rare}{returns}")
        if self.shape == "stall":
            yield Action(
                "start again with a third of the learning rate, with three times as much, and with a smaller eps"
            )
            return
        step = self.checkpoint()
        back = f"go back to a checkpoint of step {step:,} or before"
        if self.shape == "single jumps":
            yield Action("look at the batches of these steps, and clip the gradient to its usual norm")
        elif self.shape == "start" or (self.is_young and self.shape != "one jump"):
            yield Action("start again with a longer warmup, or half the learning rate")
            if self.shape == "start":
                return
        if self.runs is not None and self.runs.remedy is not None and not self.came_back:
            yield Action(f"{back}, then {self.runs.remedy}: it saved most cells of {self.runs.sweep}", step)
        for remedy, why in self._remedies():
            code = snippet_of(remedy, step)
            yield Action(f"{back}, then {remedy.name}: {why}", step, remedy.name, code)

    def _remedies(self) -> Iterator[tuple[Remedy, str]]:
        halved = Remedy(({"at": 0, "set": {"lr": "x0.5"}},)), "halves the step, which helps against most causes"
        skipped = Remedy(({"at": 0, "skip": self._batches()},)), "leaves out the batches around it"
        eps = Remedy(({"at": 0, "set": {"eps": "x100"}},)), "bounds the step where v has become small"
        if self.shape in ("one jump", "single jumps"):
            yield from (skipped, halved)
        elif self.shape == "jumps":
            yield from (halved, eps)
        elif self.shape == "not finite":
            yield from (skipped, halved)
        else:
            yield from (halved, skipped)

    def _batches(self) -> int:
        """Batches to skip: those from the checkpoint to the peak, if that is near."""
        peak = self.onset if self.episode is None else self.episode.peak_step
        return min(peak, self.onset + _NEAR * self.every) - self.checkpoint() + self.every

    def checkpoint(self) -> int:
        """The latest step from which the run is likely to be saved."""
        ahead = self.norm.steps_ahead if self.norm is not None and self.norm.steps_ahead else 0
        own = self.runs.steps_before if self.runs is not None and self.runs.remedy is not None else _BACK_STEPS
        return max(0, self.onset - max(ahead, own, self.every))
