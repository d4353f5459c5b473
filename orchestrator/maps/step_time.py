"""How long a step takes at a size: by the packs of a sweep, on whatever trained them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from statistics import median

import numpy as np

from orchestrator.maps.ladder import Ladder, log_size
from orchestrator.maps.lengths import STEPS
from orchestrator.maps.table import SweepTable

_FEWEST_SIZES = 3
_MOST_OFF = 0.3  # standard deviation of log seconds around a power law


def step_seconds(table: SweepTable, ladder: Ladder, target: Mapping[str, float]) -> tuple[float, float] | None:
    """Return between what a step of one run takes at the target, or None where the packs do not say.

    A run alone takes its share of a pack at least, and at most the whole. Beyond the sizes that were trained it goes on
    as a power of the size, if it was one so far.
    """
    names = [name for name in ladder.names if name != STEPS]
    places = {run.trial_id: tuple(log_size(size.setting, names)) for size in ladder.sizes for run in size.runs}
    times: dict[tuple[float, ...], list[tuple[float, float]]] = defaultdict(list)
    for pack in table.ledger.packs():
        if pack.ended == "done" and pack.member_steps and pack.seconds > 0:
            share = math.log(pack.seconds / pack.member_steps)
            for place in {places[trial_id] for trial_id in pack.trial_ids if trial_id in places}:
                times[place].append((share, share + math.log(len(pack.trial_ids))))
    at = tuple(log_size(target, names))
    known = {place: [median(ends) for ends in zip(*pairs, strict=True)] for place, pairs in times.items()}
    if at not in known:
        if len(known) < max(_FEWEST_SIZES, len(names) + 2):
            return None
        design = np.array([[1.0, *place] for place in known])
        ends = np.array(list(known.values()))
        weights, *_ = np.linalg.lstsq(design, ends, rcond=None)
        if (ends - design @ weights).std() > _MOST_OFF:
            return None
        known[at] = list(np.array([1.0, *at]) @ weights)
    low, high = known[at]
    return math.exp(low), math.exp(high)
