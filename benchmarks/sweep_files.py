"""The compared sweeps, written as sweep files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

SEEDS = (0, 1, 2)
# 48 cells and three seeds, as many trials as in the shipped main sweep. All are stable, so that no arm saves work.
STABLE_LR = (1e-4, 1e-3)
STABLE_BETA2 = (0.95, 0.999)


def grid_text(name: str, fixed: dict[str, Any], steps: int, cells: tuple[int, int], seeds: Sequence[int]) -> str:
    """A sweep file: a stable grid of ``cells`` learning rates and beta2, nothing stopped early, two workers."""
    num_lr, num_beta2 = cells
    return yaml.safe_dump(
        {
            "name": name,
            "objective": "gpt",
            "steps": steps,
            "seeds": list(seeds),
            "axes": {
                "lr": {"log": list(STABLE_LR), "num": num_lr},
                "beta2": {"log1m": list(STABLE_BETA2), "num": num_beta2},
            },
            "fixed": {"warmup": 10, **fixed},
            "stopping": {"early_stop": False},
            "resources": {"parallel": 2},
        },
        sort_keys=False,
    )


def thinned_text(document: dict[str, Any], values: dict[str, Sequence[float]], num_trials: int) -> str:
    """The sweep ``document`` with at most ``num_trials`` trials, by thinning its two axes.

    ``values`` are the axes' values. Both axes are thinned equally and keep at least one value; seeds are unchanged.
    """
    (first, second), num_seeds = values, len(document["seeds"])
    share = min(1.0, (num_trials / (num_seeds * len(values[first]) * len(values[second]))) ** 0.5)
    num_first = max(1, round(share * len(values[first])))
    num_second = max(1, min(len(values[second]), num_trials // (num_seeds * num_first)))
    axes = {
        first: {"values": evenly_spaced(values[first], num_first)},
        second: {"values": evenly_spaced(values[second], num_second)},
    }
    return yaml.safe_dump({**document, "axes": axes}, sort_keys=False)


def evenly_spaced(values: Sequence[float], num: int) -> list[float]:
    """``num`` evenly spaced ones of ``values``, including the first."""
    return [values[i * len(values) // num] for i in range(num)]
