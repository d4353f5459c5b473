"""What recurs in a log belongs to it: episodes on a schedule, and excursions that are a second mode of the noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

# Episodes are on a schedule, such as restarts of the learning rate or epochs, if they begin at multiples of an
# interval, at three of them or more; or at four that begin anywhere. So do most of these times, and of the episodes.
_BEATS, _BEATS_FROM_ANYWHERE, _MOST = 3, 4, 0.7
_SHORTEST, _LATE = 30, 1.5  # losses in an interval; losses by which an onset may be late
_OFF, _AFTER = 0.015, 0.25  # share of the interval by which one may be off, and within which parts of it follow
# Excursions are a mode of the noise if there are so many, one in so many losses, and they came as often at the start.
# An odd batch is one loss, or two by chance; an instability takes longer to come back.
_NUM, _LOSSES, _AS_OFTEN = 20, 50, 1.5
SHORT, _SHORT_SHARE = 2, 0.6
FIRST = 5  # of them show how often they came at the start
# An episode stands out if it is stronger, by a fifth, than the strongest of them would be by an exponential tail.
_ABOVE, _ALMOST_ALL = 1.2, 0.9


@lru_cache(maxsize=16)  # the same ones are asked about until the next episode
def scheduled(onsets: tuple[int, ...]) -> frozenset[int]:
    """Return which of these numbers of losses, which ascend, are on a schedule, or soon after one that is."""
    best: frozenset[int] = frozenset()
    if len(onsets) < _BEATS:
        return best
    for gap in sorted({after - before for before, after in itertools.pairwise((0, *onsets))}):
        if gap < _SHORTEST:
            continue
        for phase, least in ((0, _BEATS), (onsets[0], _BEATS_FROM_ANYWHERE)):
            found = _on_beats([onset - phase for onset in onsets], gap, least)
            best = max(best, frozenset(onset + phase for onset in found), key=len)
    return best


def _on_beats(onsets: Sequence[int], gap: int, least: int) -> set[int]:
    """Return the ``onsets`` at multiples of about ``gap``, and soon after these, or none if these are too few."""
    last = next((onset for onset in reversed(onsets) if onset > gap / 2 and _distance(onset, gap) <= _OFF * gap), None)
    interval = float(gap) if last is None else last / round(last / gap)
    late = max(_LATE, _OFF * interval)
    beats = {round(onset / interval) for onset in onsets if _distance(onset, interval) <= late}
    if len(beats) < least or len(beats) < _MOST * (max(beats) - min(beats) + 1):
        return set()
    found = {
        onset
        for onset in onsets
        for at in (onset // interval, onset // interval + 1)
        if at in beats and -late <= onset - at * interval <= _AFTER * interval
    }
    num_others = len(onsets) - len(found)
    return found if len(beats) >= _MOST * (len(beats) + num_others) else set()


def _distance(onset: int, interval: float) -> float:
    return abs(onset - round(onset / interval) * interval)


def strength_of_mode(strengths: Sequence[float], first_at: int, num: int, num_short: int, num_losses: int) -> float:
    """Return the strength above which an episode stands out of a second mode of the noise, 0 if there is none.

    ``num`` excursions with these ``strengths``, maybe of the first ones only, came in ``num_losses``, and the FIRST of
    them in ``first_at``; ``num_short`` were at most SHORT losses long.
    """
    are_common = num >= _NUM and num * _LOSSES >= num_losses and num_short >= _SHORT_SHARE * num
    if not are_common or first_at * num > _AS_OFTEN * FIRST * num_losses:
        return 0.0
    almost_all = sorted(strengths)[int(_ALMOST_ALL * (len(strengths) - 1))]
    return _ABOVE * almost_all * math.log(num) / -math.log(1 - _ALMOST_ALL)
