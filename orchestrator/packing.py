"""Trials -> packs: the same structure together, in sizes that keep every worker busy."""

from __future__ import annotations

import itertools
import math
import uuid
from collections.abc import Sequence
from typing import Any

from orchestrator.reports import Member, Pack
from orchestrator.space import Trial, canonical_json
from orchestrator.spec import Sweep

# Stacking gains most of what it can by K = 16 at the sizes of the built-in objectives on a CPU, and a
# pack of that size fills its cells of the map while one watches.
_LARGEST_AUTO_PACK = 16


def make_packs(sweep: Sweep, trials: Sequence[Trial], workers: int) -> list[Pack]:
    """Packs of ``trials``, in the order of the trials; equal structure never splits needlessly."""
    by_structure: dict[str, list[Trial]] = {}
    for trial in trials:
        by_structure.setdefault(structure_of(sweep, trial), []).append(trial)
    return [
        _pack(sweep, members)
        for alike in by_structure.values()
        for members in _split(alike, sweep.resources.pack, workers)
    ]


def structure_of(sweep: Sweep, trial: Trial) -> str:
    """What all members of a pack share, spelt canonically."""
    numbers = sweep.objective.per_member_fields
    return canonical_json({name: value for name, value in trial.config.items() if name not in numbers})


def _split(trials: Sequence[Trial], size: Any, workers: int) -> list[Sequence[Trial]]:
    """Cut into packs that differ by one member at most, their number a multiple of the workers."""
    if size == "auto":
        num_packs = math.ceil(len(trials) / _LARGEST_AUTO_PACK)
        num_packs = min(math.ceil(num_packs / workers) * workers, len(trials))
    else:
        num_packs = math.ceil(len(trials) / size)
    edges = [round(i * len(trials) / num_packs) for i in range(num_packs + 1)]
    return [trials[low:high] for low, high in itertools.pairwise(edges)]


def _pack(sweep: Sweep, trials: Sequence[Trial]) -> Pack:
    return Pack(
        pack_id=uuid.uuid4().hex[:12],
        objective=sweep.objective.name,
        steps=sweep.steps,
        members=tuple(Member(trial.trial_id, trial.config, trial.seed) for trial in trials),
        stopping=sweep.stopping.model_dump(),
        cpus=sweep.resources.cpus,
        gpus=sweep.resources.gpus,
    )
