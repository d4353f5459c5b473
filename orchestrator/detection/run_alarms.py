"""Alarms about a run that is going on, each raised once: a spike, a lost run, NaN, a warning, a log that stands still.

Alarms of one kind within ``APART`` steps are one: a trainer that is restarted meets the same spike again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from orchestrator.base.words import format_seconds
from orchestrator.detection.detector import APART, MemberRecord
from orchestrator.detection.excursions import Episode
from orchestrator.detection.run_monitor import NOTE

AlarmKind = Literal["spike", "lost", "warning", "stalled", "nan"]
ALARM_KINDS: tuple[AlarmKind, ...] = get_args(AlarmKind)
_BROKEN = 2  # gradient norms in a row: a single one may be a step that a loss scaler skips
_MOST_KEPT = 1000  # alarms that are remembered


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that a person wants to know at once; ``step`` is None for a log that has no step so far."""

    kind: AlarmKind
    step: int | None
    text: str


class RunAlarms:
    """Raise what is new about one run. A log that does not grow for ``stalled_s`` seconds has stalled."""

    def __init__(self, stalled_s: float, now: float) -> None:
        self._stalled_s, self._grown_at, self._has_stalled = stalled_s, now, False
        self._raised: list[tuple[AlarmKind, int]] = []

    def pass_over(self, record: MemberRecord) -> None:
        """Take spikes that are over and warnings in ``record`` for known: they are older than the watch."""
        self._raised += [("spike", each.onset_step) for each in record.episodes if each.recovery_step is not None]
        self._raised += [(alarm.kind, alarm.step or 0) for alarm in _warnings(record)]

    def take(self, record: MemberRecord, last_step: int | None, now: float, *, has_grown: bool) -> list[Alarm]:
        """Return the alarms that are new at the time ``now``."""
        alarms = [alarm for alarm in _of_record(record) if self._is_new(alarm)]
        if has_grown:
            self._grown_at, self._has_stalled = now, False
        elif not self._has_stalled and now - self._grown_at >= self._stalled_s:
            self._has_stalled = True
            since = format_seconds(self._stalled_s)
            at = "" if last_step is None else f"; its last step is {last_step:,}"
            alarms.append(Alarm("stalled", last_step, f"the log has not grown for {since}{at}"))
        return alarms

    def _is_new(self, alarm: Alarm) -> bool:
        step = alarm.step or 0
        if any(kind == alarm.kind and abs(step - at) < APART for kind, at in self._raised):
            return False
        self._raised = [*self._raised[-_MOST_KEPT:], (alarm.kind, step)]
        return True


def _of_record(record: MemberRecord) -> Iterator[Alarm]:
    for episode in record.episodes:
        yield Alarm("spike", episode.onset_step, _spike_text(episode))
    if record.lost == "not_finite":
        yield Alarm("nan", record.lost_onset_step, f"{record.lost_reason}, at step {record.lost_onset_step:,}")
    elif record.not_finite_step is not None:
        since = f"since step {record.not_finite_step:,}, after it was lost"
        yield Alarm("nan", record.not_finite_step, f"the loss or the gradient norm is not finite {since}")
    elif record.num_broken >= _BROKEN:
        since = f"since step {record.broken_since_step:,}"
        yield Alarm("nan", record.broken_since_step, f"the gradient norm is not finite {since}")
    if record.lost is not None:
        yield Alarm("lost", record.lost_step, f"the run is lost at step {record.lost_step:,}: {record.lost_reason}")
    yield from _warnings(record)


def _warnings(record: MemberRecord) -> Iterator[Alarm]:
    for step in record.norm_rises:
        if not any(_lasts_at(episode, step) for episode in record.episodes):
            yield Alarm("warning", step, f"{NOTE}, at step {step:,}")
    is_off = any(episode.recovery_step is None for episode in record.episodes)
    if record.risen_share is not None and not is_off:
        what = f"it has given up {record.risen_share:.0%} of what it had learned"
        yield Alarm("warning", record.risen_since_step, f"since step {record.risen_since_step:,} {what}")


def _lasts_at(episode: Episode, step: int) -> bool:
    """Whether the run is off its trend at ``step``, which the alarm of the spike has said."""
    return episode.onset_step <= step and (episode.recovery_step is None or step <= episode.recovery_step)


def _spike_text(episode: Episode) -> str:
    before = "" if math.isnan(episode.level) else f" against {episode.level:.4g} before"
    back = "" if episode.recovery_step is None else f"; back on its trend at step {episode.recovery_step:,}"
    return f"the loss left its trend at step {episode.onset_step:,}: up to {episode.peak_loss:.4g}{before}{back}"
