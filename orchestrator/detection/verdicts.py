"""The verdict that a run is lost: not finite, far above its past for long, or without any progress."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from orchestrator.detection.config import LOG_GRADIENT_PATIENCE, StoppingConfig, falls_over_decades
from orchestrator.detection.episodes import Episodes
from orchestrator.detection.handled import Undone, Zeros
from orchestrator.detection.noise import middle
from orchestrator.detection.trend import RECENT, Progress

Lost = Literal["not_finite", "far", "no_progress"]

# A run that learned nothing and rose slowly has settled if its excess grew by at most this factor in half a patience: a
# loss that begins low may grow, as an agent's does, while a diverging one goes on growing.
_SETTLED = 1.1
_COMING_BACK = 0.75  # a recovering run has at most this share of its excess left after half a patience
# The progress that a run must have made before it can lose it, as a fraction of its initial loss; and the smallest rise
# above its best that loses the run, in units of a spike's rise. Less is a drift.
LEARNED, _LEAST_RISE = 0.15, 4.0
# A doubled cross-entropy loses the run only if it also gave up this share of what was learned: near zero, losses double
# all the time.
_LEAST_SHARE = 0.05
# A run that has sunk (given up this share of its progress) gets twice the patience of a lost one. If no episode
# separates this from a drift, it must also have risen by two spikes' rises, or by half a rise if the run began with a
# blow-up, after which it has learned little.
_SUNK_SHARE, _SUNK_PATIENCE = 0.4, 2
# A run this many times as high as its first loss, or flat after a blow-up, is lost after a third of all its steps.
_TEN_TIMES, _THIRD = 10.0, 1 / 3
_SUNK_RISE, _SUNK_RISE_AFTER_BLOW_UP = 2.0, 0.5
# A run is back only at half of the height at which it counts as high.
_BACK = 0.5
# A slow rise is reported if it gave up this share of what was learned for so many losses.
RISEN_SHARE, _RISEN_LOSSES = 0.25, 50
_NOISE_OF_LEVEL = 0.4  # noise of a median of ten losses, relative to a single one
# A run has got worse if it gave up this share of what was learned, and was above its best, by more than _AT_BEST of
# that, for a third of its losses.
_WORSE_SHARE, _AT_BEST = 0.1, 0.03
_ABRUPT, _STEEP = 2 * RECENT, 0.5  # losses within which a level that shifts rises by most of its height

_STATE = (
    "lost", "lost_step", "lost_onset", "reason", "is_finite", "is_far", "is_sunk", "is_up", "up_since", "is_signed",
    "risen_since", "_risen_losses", "has_grown", "broken_gradients", "gradient_since", "_high_losses", "_patience",
    "_excess_before", "_has_fallen",
)  # fmt: skip


@dataclass(slots=True)
class _SinceBest:
    """A run since its best level."""

    best: float = math.inf
    num: int = 0  # losses since it was last there
    highest: float = -math.inf  # level
    steepest: float = 0.0  # rise within _ABRUPT losses
    low_step: int = -1  # the last one at the best level
    levels: list[float] = field(default_factory=list)  # the last _ABRUPT ones

    def follow(self, level: float, step: int, progress: Progress) -> None:
        if progress.best < self.best:
            self.best, self.num, self.highest, self.steepest = progress.best, 0, -math.inf, 0.0
            self.levels.clear()
        self.num += 1
        if len(self.levels) == _ABRUPT:
            self.levels.pop(0)
        self.levels.append(level)
        self.highest = max(self.highest, level)
        self.steepest = max(self.steepest, level - self.levels[0])
        if level <= self.best + _AT_BEST * progress.learned:
            self.num, self.low_step = 0, step

    def follow_all(self, level_N: np.ndarray, step_N: np.ndarray, best_N: np.ndarray, learned_N: np.ndarray) -> None:
        """Follow several levels at once, with the best level and what was learned at each."""
        begins = np.flatnonzero(best_N < np.append(self.best, best_N[:-1]))
        begin, num = (int(begins[-1]) if len(begins) else 0), len(level_N)
        if len(begins):
            self.best, self.num, self.highest, self.steepest = float(best_N[begin]), 0, -math.inf, 0.0
            self.levels.clear()
        levels = np.append(self.levels, level_N[begin:])
        ends = np.arange(len(self.levels), len(levels))
        self.num += len(ends)
        self.highest = max(self.highest, float(levels[ends].max()))
        self.steepest = max(self.steepest, float((levels[ends] - levels[np.maximum(ends - _ABRUPT + 1, 0)]).max()))
        self.levels = levels[-_ABRUPT:].tolist()
        low = np.flatnonzero(level_N <= best_N + _AT_BEST * learned_N)
        if len(low):
            self.low_step = int(step_N[low[-1]])
            self.num = num - 1 - int(low[-1]) if low[-1] >= begin else self.num


class Verdicts:
    """Verdict on one run, by its ``progress`` and its ``episodes``."""

    __slots__ = (
        "_episodes",
        "_far",
        "_gradient_patience",
        "_half_way",
        "_num_changes",
        "_progress",
        "_rules",
        "_since_best",
        "_sunk",
        "not_finite_step",
        *_STATE,
    )

    def __init__(self, rules: StoppingConfig, progress: Progress, episodes: Episodes) -> None:
        self._rules, self._progress, self._episodes = rules, progress, episodes
        self._gradient_patience = rules.gradient_patience or LOG_GRADIENT_PATIENCE
        self.lost: Lost | None = None
        self.lost_step = self.lost_onset = -1
        self.reason: str | None = None
        self.is_finite, self.is_far, self.is_sunk = True, False, False
        self.is_up, self.up_since = False, -1  # above half of the height at which it counts as high
        self.is_signed = False  # a loss below zero: how far it has risen is unknown
        self.risen_since, self._risen_losses = -1, 0  # the step at which a slow rise began, and the losses since
        self.has_grown = False  # slowly, from a low start, to a plateau
        self.broken_gradients, self.gradient_since = 0, -1
        self._high_losses, self._patience, self._excess_before = 0, 1, math.inf
        self._has_fallen = False
        self.not_finite_step: int | None = None  # also of a run that was lost before
        self._num_changes, self._far, self._sunk, self._half_way = -1, math.inf, math.inf, math.inf
        self._since_best = _SinceBest()

    def guard(self, is_finite: bool, has_finite_gradient: bool, step: int) -> None:
        """Judge non-finite values: a loss loses the run at once, gradients after ``gradient_patience`` steps."""
        if has_finite_gradient and is_finite:
            self.broken_gradients = 0
            return
        if not is_finite:
            self.broken_gradients = 0
        else:
            if not self.broken_gradients:
                self.gradient_since = step
            self.broken_gradients += 1
            if self.broken_gradients >= self._gradient_patience:
                self._lose("not_finite", step, self.gradient_since, "the gradient norm is not finite")
                self.is_finite, self.not_finite_step = False, self.gradient_since
        if self.is_finite and not is_finite:
            self._lose("not_finite", step, step, "the loss is not finite")
            self.is_finite, self.not_finite_step = False, step

    def guard_zeros(self, zeros: Zeros, step: int, num_steps: int) -> None:
        """Judge whether losses of exactly 0 stand for ones that are not finite, for longer than the patience."""
        are_enough = zeros.num >= self.patience_after(num_steps - zeros.num) and not zeros.has_norm
        if are_enough and zeros.are_told(self._progress.initial) and not falls_over_decades(self._rules):
            self._lose("no_progress", step, zeros.since, f"{zeros.num} losses in a row were exactly 0")

    def guard_undone(self, undone: Undone, step: int) -> None:
        """Judge whether a run trains no more, as each of its steps is skipped or rolled back."""
        reason, since = undone.verdict(step)
        if undone.are_all and reason is not None and since is not None:
            self._lose("no_progress", step, since, reason)

    def noise_of_level(self) -> float:
        """Return the rise above the best level that is beyond the noise of a median of ten losses there."""
        return _NOISE_OF_LEVEL * self._progress.noise_at_best()

    def judge(self, loss: float, level: float, step: int, num_steps: int, num_seen: int, passed: float) -> None:
        """Judge whether the run stays far above its past, or makes no progress.

        ``level`` is the median of the last ten losses, ``num_steps`` the number of steps before this one, ``passed``
        the share of all steps that is over, 0 if unknown.
        """
        # Nor has a loss that begins at exactly 0 a level to compare with.
        self.is_signed = self.is_signed or loss < 0 or (loss > 0 and self._progress.initial == 0)
        self._compare(loss, level, step)
        self._since_best.follow(level, step, self._progress)
        self._judge_far(level, step, num_steps, num_seen, passed)
        if self._progress.came_back and passed >= _THIRD and self._has_frozen() and not self.is_signed:
            self._lose("no_progress", step, step, "it stayed flat for a third of its steps")
        if num_seen <= self._rules.stall_steps:
            self._has_fallen = self._has_fallen or loss < self._progress.initial
            if num_seen == self._rules.stall_steps and not self._has_fallen and not self.is_signed:
                reason = f"not one of {self._rules.stall_steps} losses was below the first"
                self._lose("no_progress", step, step, reason)

    def is_passive(self, num_seen: int) -> bool:
        """Return whether losses below half of the height that counts as high can lose the run no more."""
        if self._num_changes != self._progress.num_changes:
            self._measure()
        has_begun = self._has_fallen or num_seen >= self._rules.stall_steps
        return has_begun and (self._has_learned() or not self._progress.came_back)

    def pass_over(
        self,
        loss_N: np.ndarray,
        level_N: np.ndarray,
        step_N: np.ndarray,
        best_N: np.ndarray,
        learned_N: np.ndarray,
        half_way_N: np.ndarray,
        is_risen_N: np.ndarray,
    ) -> None:
        """Judge several finite losses at once whose levels are not high, with what was learned at each.

        ``is_risen_N`` says where a share of it was given up all the same, as by a run that learned next to nothing.
        """
        if self._num_changes != self._progress.num_changes:
            self._measure()
        is_up_N = loss_N > half_way_N
        if len(rises := np.flatnonzero(is_up_N & ~np.append(self.is_up, is_up_N[:-1]))):
            self.up_since = int(step_N[rises[-1]])
        if len(rises := np.flatnonzero(is_risen_N & ~np.append(self._risen_losses > 0, is_risen_N[:-1]))):
            self.risen_since = int(step_N[rises[-1]])
        last_low = np.flatnonzero(~is_risen_N)[-1:].tolist()
        num_risen = len(is_risen_N) - 1 - last_low[0] if last_low else self._risen_losses + len(is_risen_N)
        self.is_up, self._risen_losses = bool(is_up_N[-1]), num_risen
        self.is_far = self.is_sunk = self.has_grown = False
        self.broken_gradients = self._high_losses = 0
        self._since_best.follow_all(level_N, step_N, best_N, learned_N)

    def is_still_high(self, latest: Sequence[float]) -> bool:
        """Return whether a run that was as high as a lost one is still above half of that height.

        ``latest`` are its last losses. Losses within the noise at its best level are back. A run that learned nothing
        has no level to come back to.
        """
        if not self._high_losses or not self._has_learned():
            return False
        level = middle(sorted(latest[-self._rules.recovery_steps :]))
        line = max(_BACK * min(self._far, self._sunk), self._progress.noise_at_best())
        return level > self._progress.best + line

    def is_away(self, latest: Sequence[float], num_steps: int) -> bool:
        """Return whether a run that ends now is off its trend, or has sunk, and is not coming back.

        It ends after ``num_steps`` steps; ``latest`` are its last losses.
        """
        if self.is_sunk and self._high_losses >= self._patience:
            return True
        this, num_steps_back = self._episodes.current, self._rules.recovery_steps
        if this is None or this.age < num_steps_back:
            return False
        clear, _ = self._episodes.clear_and_faint()
        if all(episode.recovery_step is not None for episode in clear):
            return False
        excess = middle(sorted(latest[-num_steps_back:])) - this.level
        comes_back = excess <= _COMING_BACK * (this.peak - this.level)
        return not comes_back or this.age >= self.patience_after(num_steps - this.age)

    def risen_share(self, level: float) -> float | None:
        """Return the share of what was learned that a run at ``level`` has given up, or None if it is not reported."""
        share = self._share_given_up(level)
        if self._risen_losses < _RISEN_LOSSES or share <= RISEN_SHARE:
            return None
        return share if level - self._progress.best > self.noise_of_level() else None

    def worse(self, level: float, num_seen: int) -> tuple[float | None, int]:
        """Return the share of what was learned that a run at ``level`` slowly lost, and since which step it was worse.

        None unless it has been worse for a third of its losses, beyond the noise, and is not coming back.
        """
        since, share = self._since_best, self._share_given_up(level)
        excess = level - since.best
        is_worse = (
            since.num > _THIRD * num_seen
            and share > _WORSE_SHARE
            and since.steepest < _STEEP * excess  # else its level has shifted
            and not falls_over_decades(self._rules)
            and excess > _COMING_BACK * (since.highest - since.best)
            and excess > self._progress.noise_at_best()
        )
        return share if is_worse else None, since.low_step

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        own = {"since_best": asdict(self._since_best), "not_finite_step": self.not_finite_step}
        return {**own, **{name: getattr(self, name) for name in _STATE}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        for name in _STATE:
            setattr(self, name, state[name])
        self._since_best = _SinceBest(**state.get("since_best", {}))  # checkpoints of earlier versions have none
        self.not_finite_step = state.get("not_finite_step")
        self._measure()  # the next loss may ask for it before it is judged

    def _compare(self, loss: float, level: float, step: int) -> None:
        """Update whether the run is far above its best level or has sunk, and since when."""
        progress = self._progress
        if progress.num_changes != self._num_changes:
            self._measure()
        is_up = loss > self._half_way
        if is_up and not self.is_up:
            self.up_since = step
        self.is_up = is_up
        if level <= self._half_way and level <= progress.initial:  # most losses of most runs end here
            self.is_far = self.is_sunk = self.has_grown = False
            self._high_losses = self._risen_losses = 0
            return
        best, far, sunk = progress.best, self._far, self._sunk
        if not self._episodes.is_spike() and best < math.inf:
            # Outside an episode, a rise must be distinguished from a drift and from the noise at the best level.
            rise, noise = progress.rise_at(best) * abs(best), progress.noise_at_best()
            sunk_rise = _SUNK_RISE_AFTER_BLOW_UP if progress.blew_up else _SUNK_RISE
            far, sunk = max(far, _LEAST_RISE * rise, noise), max(sunk, sunk_rise * rise, noise)
        if self._has_learned():
            self.is_far, self.is_sunk = level > best + far, level > best + sunk
            is_back = level <= best + _BACK * min(far, sunk)
        else:
            noise = progress.noise_at_best() if best < math.inf else 0.0
            above = max(self._rules.lost_fraction * abs(progress.initial), noise)
            self.is_far, self.is_sunk = level > progress.initial + above, False
            is_back = not self.is_far
        if not (self.is_far or self.is_sunk) and is_back:
            self._high_losses = 0
            self.has_grown = False
        share = self._share_given_up(level)
        self._risen_losses = self._risen_losses + 1 if share > RISEN_SHARE else 0
        if self._risen_losses == 1:
            self.risen_since = step

    def _measure(self) -> None:
        """Update the heights above the best level that count as far and as sunk, and half of the lower one."""
        progress = self._progress
        self._num_changes = progress.num_changes
        self._far, self._sunk, self._half_way = self.heights(
            progress.best, progress.lowest, progress.learned, progress.learned_late
        )

    def heights(self, best: float, lowest: float, learned: float, learned_late: float) -> tuple[float, float, float]:
        """Return the heights above the ``best`` level that count as far and as sunk, and the level half-way there."""
        far = sunk = math.inf
        if best < math.inf:
            rise = self._rules.lost_rise * self._progress.rise_at(best) * abs(best)
            far = min(self._rules.lost_fraction * learned, max(rise, _LEAST_SHARE * learned_late))
            sunk = _SUNK_SHARE * learned
        return far, sunk, lowest + min(far, _SUNK_SHARE * learned) / 2

    def _has_learned(self) -> bool:
        """Return whether the run has made progress that it can lose."""
        best = self._progress.best
        return best < math.inf and self._progress.has_learned(best, LEARNED)

    def _has_frozen(self) -> bool:
        """Return whether a run that came back from a blow-up at its start has not fallen since."""
        start = self._progress.start
        return not self._has_learned() and start - self._progress.best <= self._rules.stall_drop * abs(start)

    def _share_given_up(self, level: float) -> float:
        """Return the share of what was learned that the run has given up, on the scale of its loss."""
        best, start = self._progress.best, self._progress.start
        if not best < start or self.is_signed:
            return 0.0
        if falls_over_decades(self._rules):
            return math.log(level / best) / math.log(start / best) if 0 < best < level else 0.0
        return (level - best) / (start - best)

    def _judge_far(self, level: float, step: int, num_steps: int, num_seen: int, passed: float) -> None:
        """Judge whether the run stays far above its past for longer than its patience."""
        is_high = self.is_far or self.is_sunk
        if not is_high and not self._high_losses:
            return
        if not self._high_losses:
            self._patience, self._excess_before = self.patience_after(num_steps), math.inf
        self._high_losses += 1
        patience, progress = self._patience, self._progress
        is_tenfold = level > max(progress.initial + (_TEN_TIMES - 1) * abs(progress.initial), progress.blow_up_line())
        if is_tenfold and passed:
            patience = min(patience, max(RECENT, int(_THIRD * num_steps / passed)))
        half, over = max(1, patience // 2), self._high_losses - patience
        if self._high_losses != half and (over < 0 or over % half):
            return
        excess = level - progress.lowest
        comes_back = excess <= _COMING_BACK * self._excess_before
        if progress.best == math.inf and not is_tenfold:
            # The first losses are too few for a past; a descent from what followed is no divergence.
            descent = self._rules.stall_drop * (progress.lowest + self._excess_before)
            comes_back = comes_back or self._excess_before - excess > descent
        is_settled = excess <= _SETTLED * self._excess_before
        self._excess_before = excess
        if self.is_far and not (self._has_learned() or progress.blew_up or self._episodes.current):
            self.has_grown = is_settled
            if is_settled:
                return
        enough = patience * (1 if self.is_far else _SUNK_PATIENCE)
        if is_high and not comes_back and self._high_losses >= enough and not self.is_signed:
            reason = f"the loss stayed far above its past for {self._high_losses} losses in a row"
            self._lose("far", step, self.up_since, reason)

    def patience_after(self, num_steps: int) -> int:
        """Return the number of steps that a run may stay high after ``num_steps`` earlier steps."""
        return max(50, num_steps // 4) if self._rules.patience is None else self._rules.patience

    def _lose(self, kind: Lost, step: int, onset: int, reason: str) -> None:
        """Record the first verdict. A run lost in an episode has the onset of that episode."""
        if self.lost is not None:
            return
        this = self._episodes.current
        self.lost, self.lost_step, self.reason = kind, step, reason
        self.lost_onset = onset if this is None else min(onset, this.onset)
