"""What `sweep watch` says once a minute about a run that is going on: where it is, how fast, and how it fares."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.base.consumption import fullest_device
from orchestrator.base.words import format_seconds
from orchestrator.logs.columns import LR_NAMES, first_usual, plain_name
from orchestrator.maps.followed import FollowedRun

LATEST = 100  # points whose share of values that are not finite is reported
_RATE_OVER_S = 300.0  # seconds that the rate of steps is a mean over, at most
_MEMORY = re.compile(
    r"(?:gpu|cuda|vram|device)\w*mem|mem\w*(?:gpu|cuda|alloc|reserved|_g?i?b$)|(?:max|peak)_mem|^mem(?:ory)?$"
)


@dataclass(frozen=True, slots=True)
class RunReport:
    """The state of a run; None for what is not known. Shares are of the last LATEST points."""

    step: int | None
    steps: int | None
    loss: float | None
    grad_norm: float | None
    lr: float | None
    steps_per_s: float | None
    seconds_left: float | None
    num_episodes: int
    last_onset_step: int | None
    is_off_trend: bool
    lost_step: int | None
    share_not_finite: float
    validation_loss: float | None
    gpu_memory: str | None

    def line(self) -> str:
        """Return the report as one line; what is not known is left out."""
        if self.step is None:
            return "no losses so far"
        of = "" if self.steps is None else f" of {self.steps:,}"
        last = "" if self.last_onset_step is None else f", last at {self.last_onset_step:,}"
        now = " and off its trend now" if self.is_off_trend else ""
        parts = [
            f"step {self.step:,}{of}",
            _number("loss", self.loss),
            _number("norm", self.grad_norm),
            _number("lr", self.lr),
            _number("", self.steps_per_s, " steps/s"),
            "" if self.seconds_left is None else f"{format_seconds(self.seconds_left)} left",
            f"episodes {self.num_episodes}{last}{now}",
            "" if self.lost_step is None else f"LOST at {self.lost_step:,}",
            f"not finite {self.share_not_finite:.0%}" if self.share_not_finite else "",
            _number("validation", self.validation_loss),
            "" if self.gpu_memory is None else f"memory {self.gpu_memory}",
        ]
        return "  ".join(filter(None, parts))


def _number(name: str, value: float | None, unit: str = "") -> str:
    return "" if value is None else f"{name} {value:.4g}{unit}".strip()


class Reporter:
    """Make reports, and measure the rate of steps between them."""

    def __init__(self, steps: int | None) -> None:
        self._steps = steps
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, now: float, step: int | None) -> None:
        """Note that the run was at ``step`` at the time ``now``."""
        if step is None:
            return
        if self._seen and step < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, step))
        while len(self._seen) > 2 and now - self._seen[0][0] > _RATE_OVER_S:
            self._seen.popleft()

    @property
    def has_any(self) -> bool:
        """Whether the run was seen at any step."""
        return bool(self._seen)

    @property
    def steps_per_s(self) -> float | None:
        """The rate of steps; None while the log has not grown under the eyes of the watch."""
        if len(self._seen) < 2 or self._seen[-1][1] == self._seen[0][1]:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended > began else None

    def report(self, run: FollowedRun, others: Mapping[str, float], validation_loss: float | None) -> RunReport:
        """Return the report on ``run``, whose last line has the ``others``."""
        record, step, rate = run.record, run.last_step, self.steps_per_s
        left = None if self._steps is None or step is None else max(0, self._steps - step)
        lr = first_usual(LR_NAMES, list(others))
        norm = run.last_norm
        last = record.episodes[-1] if record.episodes else None
        return RunReport(
            step=step,
            steps=self._steps,
            loss=run.last_loss,
            grad_norm=norm,
            lr=None if lr is None else others[lr],
            steps_per_s=rate,
            seconds_left=None if left is None or rate is None else left / rate,
            num_episodes=record.num_episodes,
            last_onset_step=None if last is None else last.onset_step,
            is_off_trend=last is not None and last.recovery_step is None,
            lost_step=record.lost_step,
            share_not_finite=run.share_not_finite(LATEST),
            validation_loss=validation_loss,
            gpu_memory=_memory_in(others) or _memory_of_devices(),
        )


def _memory_in(others: Mapping[str, float]) -> str | None:
    """Return the memory that a line of the log has, under its own name since that says the unit."""
    names = (name for name, value in others.items() if _MEMORY.search(plain_name(name)) and math.isfinite(value))
    name = next(names, None)
    return None if name is None else f"{others[name]:.4g} ({name})"


def _memory_of_devices() -> str | None:
    """Return the memory in use on the fullest GPU of this machine; None if it cannot be read."""
    fullest = fullest_device()
    return None if fullest is None else f"{fullest[0] / 1024:.1f} of {fullest[1] / 1024:.1f} GiB"
