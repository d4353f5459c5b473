"""Episodes: when the loss of a run leaves its trend and comes back. They never stop a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.detection.config import StoppingConfig, rise_of
from orchestrator.detection.excursions import CLEAR, Episode, Excursion, strength_at_start, weakened
from orchestrator.detection.falls import Falls
from orchestrator.detection.noise import middle
from orchestrator.detection.recurring import FIRST, SHORT, scheduled, strength_of_mode
from orchestrator.detection.trend import TINY, Progress, Trend

_EARLY_RISE = 1.0  # rise that leaves the trend of a start-up, as a fraction of it
_MASS_LIMIT = 1000.0  # cap on one loss, in units of the rise
_AFTER_ONE = 2  # losses after a single high one in which a second must follow
# One loss is a spike if it is this high, in rises that leave the trend; or, for a cross-entropy, if it is three rises
# high and has doubled: ten times a rise of a tenth.
_EXTREME, _DOUBLED = 10.0, 10.0
# A jump is too short or too low to be a spike: at most three steps, and three rises high or half as high again as the
# level (five times a rise of a tenth). Four in 200 losses are a regime, where each one counts.
JUMP_STEPS, _JUMP_RISES, _JUMP_HEIGHT = 3, 3.0, 5.0
_REGIME_JUMPS, _REGIME_LOSSES = 4, 200
# If single outlying losses are common, two in a row are not a spike.
_ODD_MEMORY, _ODD_COMMON, _ODD_FACTOR, _ODD_MORE = 200, 0.005, 2.0, 100.0
# Excursions per loss that make them a second mode of the noise: low ones in the last 200, jumps in the last 50.
_LOW_MODE, _JUMP_MODE, _JUMP_MEMORY = 0.04, 0.15, 50
_SHIFT_SHARE = 0.2  # a level shift gives up less than this share of what was learned
MOST_EPISODES = 1000  # kept in the record
# Heavy tails bring stronger episodes the longer a log is. Where so many are faint, a clear one is this many times as
# strong as all of them; where so many excursions were no episodes, it is as strong as each of them.
_FAINT_COMMON, _ABOVE_FAINT = 5, 1.5
# An excursion is on a schedule, such as a new target network, and has no strength, if each of the last four times at
# one interval brought one too, and there were at most twice as many in all. Shorter intervals are met by chance.
_BEATS, _MOST_BETWEEN, _SHORTEST_BEAT, _ONSETS = 4, 8, 30, 32


class Episodes:
    """The episodes of one run, and excursions too short or too low for one."""

    __slots__ = (
        "_begun", "_first_at", "_in_regime", "_jump_rate", "_low_rate", "_num", "_num_seen", "_num_short", "_odd",
        "_odd_mass", "_odd_rate", "_onsets", "_progress", "_recent", "_rise", "_rules", "_trend", "closed", "current",
        "faint", "falls", "num_closed", "num_off",
    )  # fmt: skip

    def __init__(self, rules: StoppingConfig, trend: Trend, progress: Progress) -> None:
        self._rules, self._trend, self._progress, self._rise = rules, trend, progress, rise_of(rules)
        self.closed: list[Episode] = []  # the clear ones
        self.faint: list[Episode] = []
        self.num_closed = 0
        self.num_off = 0  # steps off the trend, of closed episodes
        self.current: Excursion | None = None
        # Excursions that were too short or low: their usual mass and their number per step.
        self._odd_mass = self._odd_rate = self._low_rate = self._jump_rate = 0.0
        self._odd: list[float] = []  # the strengths of the first of them
        # The latest short excursions: number of losses at the end, and whether it was a spike.
        self._recent: list[tuple[int, Episode, bool]] = []
        self._in_regime = False
        self._onsets: list[int] = []  # of the latest excursions, as numbers of losses
        # Excursions beyond the start, the short ones, the losses at the last of the first few, and all losses.
        self._num = self._num_short = self._first_at = self._num_seen = 0
        self.falls = Falls()
        self._begun: dict[int, int] = {}  # the number of losses at the onset of each of the first excursions

    def excess(self, loss: float) -> float:
        """Return the height of ``loss`` above the trend, in rises that leave it: off the trend above 1."""
        if not self._trend.num_accepted:
            return 0.0  # the very first loss has no trend yet
        if self._trend.is_early:
            level = self._trend.early_level()
            above = (loss - level) / max(_EARLY_RISE * abs(level), self._trend.least_noise(), TINY)
            return max(above, 2.0) if loss > self._progress.blow_up_line() else above
        above, learned, top = loss - self._trend.level, self._progress.learned_late, self._progress.top
        if self.current is None and above <= self._trend.least_rise(learned, top):
            return 0.0  # on the trend, however small the noise is: not measured
        return above / self._trend.rise(learned, top)

    def follow(
        self, loss: float, excess: float, step: int, num_seen: int, latest: Sequence[float], is_high: bool
    ) -> None:
        """Begin an excursion if a loss leaves its trend, and end it after ``recovery_steps`` losses back on it.

        ``latest`` are the last losses, with this one. A spike does not end while the run ``is_high``: a slow rise
        before it may widen the noise of the trend so much that a multiple of the level would count as a return.
        """
        if self.current is None and excess <= 1:
            self.pass_over(1, num_seen)
            return
        self._forget(1)
        self._num_seen = num_seen
        if self.current is None:
            if len(self._begun) < 2 * MOST_EPISODES:
                self._begun[step] = num_seen
            is_early = self._trend.is_early
            level = self._trend.early_level() if is_early else self._trend.level
            is_start_up = is_early and not self._progress.has_learned(level, self._rules.stall_drop)
            self.current = Excursion(step, level, is_early, is_start_up)
            if is_early:
                self.current.first = self._progress.initial
            else:
                self.current.is_scheduled = self._is_on_the_beat(num_seen)
                self.current.noise = self._trend.relative_noise()
                self.current.learned = self._progress.learned_late
        this = self.current
        this.age += 1
        if this.age <= self._rules.window:
            this.tallest_of_three = max(this.tallest_of_three, middle(sorted(latest[-3:])))
        if excess > 0.5:
            this.num_off += 1
            this.mass += min(excess, _MASS_LIMIT)
        if excess > 1:
            this.calm = 0
            this.highest = max(this.highest, excess)
            if loss > this.peak:
                this.peak, this.peak_step = loss, step
        else:
            if not this.calm:
                this.calm_since = step
            this.calm += 1
        is_over = this.calm >= self._rules.recovery_steps
        if is_over and is_high and self.is_spike():
            this.calm_since, is_over = step, False
        if is_over and self._has_shifted(this, middle(sorted(latest[-self._rules.recovery_steps :]))):
            this.calm_since, is_over = step, False
        if is_over or (this.num_off < self._rules.spike_steps and this.calm >= _AFTER_ONE):
            self._end(this, this.calm_since, num_seen)

    def pass_over(self, num: int, num_seen: int) -> None:
        """Follow ``num`` losses on the trend, outside an excursion, to the loss number ``num_seen``."""
        self._forget(num)
        self._num_seen = num_seen
        if self._recent and num_seen - self._recent[-1][0] > _REGIME_LOSSES:
            self._recent, self._in_regime = [], False

    def _forget(self, num: int) -> None:
        """Let the rates of excursions decay over ``num`` losses."""
        if self._odd_rate or self._jump_rate:
            for _ in range(num):
                self._odd_rate *= 1 - 1 / _ODD_MEMORY
                self._low_rate *= 1 - 1 / _ODD_MEMORY
                self._jump_rate *= 1 - 1 / _JUMP_MEMORY

    @property
    def are_excursions_common(self) -> bool:
        """Whether short or low excursions are a second mode of the noise."""
        return self._low_rate > _LOW_MODE or self._jump_rate > _JUMP_MODE

    def settle(self, latest: Sequence[float], is_high: bool, step: int, num_seen: int) -> None:
        """Make a plateau after an excursion the new baseline.

        The run has settled if its losses are flat a window of steps into the excursion, and not as high as in a lost
        run. If it settled about as high as it rose, the level has shifted, as after a restart of the learning rate, and
        the excursion was not a spike. If outlying losses are common, they belong to the noise and enter the baseline.
        """
        this, window = self.current, self._rules.window
        if this is None:
            if self.are_excursions_common and num_seen >= window:
                self._trend.rebase(latest)
            return
        if this.age < window or is_high or (this.is_start_up and this.peak > self._progress.blow_up_line()):
            return
        older, newer = middle(sorted(latest[: window // 2])), middle(sorted(latest[window // 2 :]))
        if abs(newer - older) > 0.5 * self._progress.rise_at(newer) * abs(newer):
            return
        height = this.tallest_of_three - this.level
        doubled = self._rules.lost_rise * self._progress.rise_at(this.level) * abs(this.level)
        is_too_much = newer - this.level >= _SHIFT_SHARE * self._learned
        if is_too_much or (height >= doubled and newer - this.level >= doubled / 2):
            return  # too much was given up to call this the new normal
        if self._has_shifted(this, newer):
            self.current = None
        else:
            self._end(this, step, num_seen)
        self._trend.rebase(latest)

    @property
    def _learned(self) -> float:
        return self._progress.initial - min(self._progress.best, self._progress.initial)

    def _has_shifted(self, this: Excursion, level: float) -> bool:
        """Return whether an excursion that has come to a ``level`` about as high as it rose is a shift of the level."""
        height = this.tallest_of_three - this.level
        return level - this.level >= 0.5 * height and height < _SHIFT_SHARE * self._learned

    def weigh_start(self, latest: Sequence[float]) -> None:
        """Take the strength of episodes at the start from the noise of the first ``min_history`` losses, now known."""
        early, self.closed = self.closed, []
        self.num_closed = self.num_off = 0
        noise, rounding = self._trend.noise_of_start(latest), self._trend.rounding
        if self.current is not None:
            self.current.noise = noise
        for one in early:
            level = min(one.level, self._progress.initial)
            one.strength = strength_at_start(one.peak_loss, level, noise, rounding, one.num_steps)
            self._add(one)
        if early and not any(one.peak_loss > self._progress.blow_up_line() for one in self.closed):
            self._progress.take_blow_up_back()

    def open_episode(self) -> Episode | None:
        """Return the record of the current excursion if it counts as an episode."""
        return self.current.as_episode(None, self._trend.rounding) if self.current and self.is_spike() else None

    def clear_and_faint(self) -> tuple[list[Episode], list[Episode]]:
        """Return all episodes so far, with the current one, by whether they stand out of what recurs."""
        this = self.open_episode()
        episodes = [*self.closed, *self.faint, *([] if this is None else [this])]
        episodes.sort(key=lambda episode: episode.onset_step)
        weak = [episode.strength for episode in episodes if not episode.is_clear]
        least = _ABOVE_FAINT * max(weak) if len(weak) >= _FAINT_COMMON else 0.0
        least = max(least, *self._odd) if len(self._odd) >= _FAINT_COMMON else least
        strengths = [*self._odd, *(episode.strength for episode in episodes)]
        least = max(least, strength_of_mode(strengths, self._first_at, self._num, self._num_short, self._num_seen))
        clear = [episode for episode in episodes if episode.strength >= max(CLEAR, least)]
        begun = [self._begun[episode.onset_step] for episode in clear if episode.onset_step in self._begun]
        on_schedule = scheduled(tuple(sorted(begun)))
        clear = [episode for episode in clear if self._begun.get(episode.onset_step) not in on_schedule]
        clear = [episode for episode in clear if self._is_taller_than_falls(episode)]
        stand_out = set(map(id, clear))
        faint = [weakened(episode, least) for episode in episodes if id(episode) not in stand_out]
        return clear, faint

    def follow_falls(self, num_seen: int) -> None:
        """Follow the abrupt falls of the loss outside of excursions."""
        if self.current is None:
            self.falls.follow(self._trend, self._progress, num_seen)
        else:
            self.falls.off_at = num_seen

    def _is_taller_than_falls(self, episode: Episode) -> bool:
        """Return whether a rise beyond the start is not of one kind with the falls of the loss."""
        least = self.falls.least_height(self._num_seen)
        is_early = self._begun.get(episode.onset_step, 0) <= self._rules.min_history
        return not least or is_early or not 0 < episode.peak_loss < episode.level * math.exp(least)

    def is_spike(self) -> bool:
        """Return whether the current excursion counts as an episode."""
        this = self.current
        if this is None:
            return False
        if this.is_start_up:
            return this.peak > self._progress.blow_up_line()
        least, rise = self._least_mass(), self._progress.rise_at(this.level)
        if this.highest >= _EXTREME and this.mass >= least:
            return True
        if rise < 1 and this.highest >= _JUMP_RISES and this.peak - this.level >= _DOUBLED * rise * abs(this.level):
            return True
        return this.num_off >= self._rules.spike_steps and this.mass >= max(self._rules.spike_mass, least)

    def _is_on_the_beat(self, onset: int) -> bool:
        """Note the onset of an excursion, and return whether it comes on a schedule."""
        past = self._onsets
        near = {there + shift for there in past for shift in (-1, 0, 1)}
        intervals = [onset - there for there in past if onset - there >= _SHORTEST_BEAT]
        self._onsets = [*past, onset][-_ONSETS:]
        return any(
            all(onset - beat * interval in near for beat in range(1, _BEATS + 1))
            and sum(onset - there <= _BEATS * interval for there in past) <= _MOST_BETWEEN
            for interval in intervals
        )

    def _least_mass(self) -> float:
        """Return the mass that lets an excursion stand out, if outlying losses are common."""
        if self._odd_rate <= _ODD_COMMON:
            return 0.0
        return (_ODD_FACTOR + _ODD_MORE * self._odd_rate) * self._odd_mass

    def _end(self, this: Excursion, recovery_step: int, num_seen: int) -> None:
        is_spike = self.is_spike()
        self.current = None
        episode = this.as_episode(recovery_step, self._trend.rounding)
        if not this.is_early:
            self._num, self._num_short = self._num + 1, self._num_short + (this.num_off <= SHORT)
            self._first_at = num_seen if self._num <= FIRST else self._first_at
        if is_spike:
            self._add(episode)
            if this.is_early and this.peak > self._progress.blow_up_line() and episode.is_clear:
                self._progress.start_again()
        elif not this.is_start_up:
            if not this.is_early and len(self._odd) < MOST_EPISODES:
                self._odd.append(episode.strength)
            self._odd_mass = 0.8 * self._odd_mass + 0.2 * this.mass if self._odd_mass > 0 else this.mass
            self._odd_rate += 1 / _ODD_MEMORY
        rise = self._progress.rise_at(this.level) * abs(this.level)
        is_tall = this.highest >= _JUMP_RISES or this.peak - this.level >= _JUMP_HEIGHT * rise
        if is_tall and this.num_off <= JUMP_STEPS and not this.is_early:
            self._jump_rate += 1 / _JUMP_MEMORY
            self._jump(episode, is_spike, num_seen)
        elif not is_spike and not this.is_start_up:
            self._low_rate += 1 / _ODD_MEMORY

    def _jump(self, episode: Episode, is_spike: bool, num_seen: int) -> None:
        """Note a short excursion. Several in a short time make a regime, where each one counts."""
        self._recent = [entry for entry in self._recent if num_seen - entry[0] <= _REGIME_LOSSES]
        self._recent.append((num_seen, episode, is_spike))
        if self._in_regime:
            new = [] if is_spike else [episode]
        elif len(self._recent) >= _REGIME_JUMPS and not all(was_spike for _, _, was_spike in self._recent):
            self._in_regime = True
            new = [jump for _, jump, was_spike in self._recent if not was_spike]
        else:
            return
        counted = {jump.strength for jump in new}
        self._odd = [strength for strength in self._odd if strength not in counted]
        for jump in new:
            jump.is_jump = True
            self._add(jump)
        for episodes in (self.closed, self.faint):
            episodes.sort(key=lambda episode: episode.onset_step)

    def _add(self, episode: Episode) -> None:
        if not episode.is_clear:
            if len(self.faint) < MOST_EPISODES:
                self.faint.append(episode)
            return
        self.num_closed += 1
        self.num_off += episode.num_steps
        if len(self.closed) < MOST_EPISODES:
            self.closed.append(episode)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {
            "closed": [asdict(episode) for episode in self.closed],
            "faint": [asdict(episode) for episode in self.faint],
            "counts": [self.num_closed, self.num_off],
            "current": None if self.current is None else asdict(self.current),
            "odd": [self._odd_mass, self._odd_rate, self._low_rate, self._jump_rate],
            "recent": [(num_seen, asdict(episode), is_spike) for num_seen, episode, is_spike in self._recent],
            "in_regime": self._in_regime,
            "onsets": self._onsets.copy(),
            "odd_strengths": self._odd.copy(),
            "recurring": [self._num, self._num_short, self._first_at, self._num_seen],
            "begun": list(self._begun.items()),
            "falls": asdict(self.falls),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        self.closed = [Episode(**episode) for episode in state["closed"]]
        self.faint = [Episode(**episode) for episode in state.get("faint", ())]  # earlier versions have none
        self.num_closed, self.num_off = state["counts"]
        self.current = None if state["current"] is None else Excursion(**state["current"])
        self._odd_mass, self._odd_rate, self._low_rate, self._jump_rate = state["odd"]
        self._recent = [(num_seen, Episode(**episode), is_spike) for num_seen, episode, is_spike in state["recent"]]
        self._in_regime = state["in_regime"]
        self._onsets = list(state.get("onsets", ()))
        self._odd = list(state.get("odd_strengths", ()))
        self._num, self._num_short, self._first_at, self._num_seen = state.get("recurring", (0, 0, 0, 0))
        self._begun = dict(state.get("begun", ()))
        self.falls = Falls(**state.get("falls", {}))
