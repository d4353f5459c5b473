"""What the detector says of healthy runs whose losses rise, and of runs with spikes, simulated.

    python benchmarks/detection_simulated.py [--logs N] [--first-seed S] [--json FILE]

Of each kind: outcomes, runs stopped, and clear episodes a log, with and without the rule for data in blocks; and what a
rule for sustained rises would stop, that a run is slowly worse (as at its end) for as long as its patience.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from orchestrator.detection import falls
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import SpikeDetector
from orchestrator.detection.outcomes import judge

_CONFIG = StoppingConfig(early_stop=False)
_NEVER = 10**9  # falls that would be common


def descent(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A loss that learns at a rate that falls, and the share of the run that is over at each."""
    num = int(random.integers(1000, 4000))
    over = np.arange(num) / num
    return random.uniform(1.5, 3) + random.uniform(2, 6) * np.exp(-over * random.uniform(5, 20)), over


def noisy(random: np.random.Generator, losses: np.ndarray, most: float = 0.03) -> np.ndarray:
    """The ``losses`` with noise in proportion to them."""
    return losses * np.exp(random.uniform(0.005, most) * random.standard_normal(len(losses)))


def blocks(random: np.random.Generator) -> np.ndarray:
    """Texts that were not shuffled: each 10 to 150 losses have another difficulty."""
    losses, _ = descent(random)
    lengths = random.integers(10, 150, len(losses) // 10)
    spread = random.uniform(0.05, 0.25)
    return noisy(
        random, losses * np.repeat(np.exp(spread * random.standard_normal(len(lengths))), lengths)[: len(losses)]
    )


def harder_data(random: np.random.Generator) -> np.ndarray:
    """A harder mixture is faded in, over 3 to 30 % of the run."""
    losses, over = descent(random)
    at, part, rise = random.uniform(0.15, 0.6), random.uniform(0.03, 0.3), random.uniform(0.05, 0.3)
    return noisy(random, losses + rise * (losses[0] - losses[-1]) * np.clip((over - at) / part, 0, 1))


def second_warmup(random: np.random.Generator) -> np.ndarray:
    """After a decay the learning rate is warmed up again, and the loss rises and falls with it."""
    losses, over = descent(random)
    at, part, rise = random.uniform(0.15, 0.5), random.uniform(0.02, 0.15), random.uniform(0.05, 0.3)
    since = over - at
    again = np.where(since < part, since / part, 0.5 + 0.5 * np.cos(np.pi * (since - part) / (1 - at - part)))
    rate = np.where(since < 0, 0.5 + 0.5 * np.cos(np.pi * over / at), again)
    return noisy(random, losses + rise * (losses[0] - losses[-1]) * rate)


def critic(random: np.random.Generator) -> np.ndarray:
    """The loss of an agent's value: it falls while the critic learns, and grows with the return."""
    over = np.linspace(0, 1, int(random.integers(200, 1200)))
    low, grown = random.uniform(0.1, 0.7), random.uniform(2, 5)
    gained = 1 / (1 + np.exp(-(over - random.uniform(0.2, 0.6)) / random.uniform(0.03, 0.12)))
    losses = (low + (1 - low) * np.exp(-over / random.uniform(0.005, 0.05))) * (1 + (grown - 1) * gained)
    return noisy(random, losses, 0.3)


def spikes(random: np.random.Generator) -> np.ndarray:
    """Two to six spikes that come back slowly, and two to four steps of the learning rate, where the loss falls."""
    losses, over = descent(random)
    for _ in range(int(random.integers(2, 5))):
        losses = losses * np.where(over > random.uniform(0.3, 0.9), np.exp(-random.uniform(0.1, 0.4)), 1)
    for _ in range(int(random.integers(2, 7))):
        since = (over - random.uniform(0.1, 0.95)) * len(over)
        tall, long = random.uniform(0.5, 2), random.uniform(5, 30)
        losses = losses * (1 + tall * np.where(since >= 0, np.exp(-since.clip(0) / long), 0))
    return noisy(random, losses)


KINDS: Mapping[str, Callable[[np.random.Generator], np.ndarray]] = {
    "blocks": blocks, "harder data": harder_data, "second warmup": second_warmup, "critic": critic, "spikes": spikes,
}  # fmt: skip


def judged(losses: np.ndarray) -> tuple[str, bool, int, bool]:
    """Return outcome, whether the run would be stopped, clear episodes, and whether the rule above would stop it."""
    detector = SpikeDetector(1, _CONFIG, len(losses))
    (member,), num_worse, is_sustained = vars(detector)["_members"], 0, False
    for step, loss in enumerate(losses.tolist()):
        member.update(loss, None, step, 0)
        share, _ = member.verdicts.worse(member.level.median(), member.num_seen)
        num_worse = 0 if share is None else num_worse + 1
        is_sustained |= num_worse >= member.verdicts.patience_after(step + 1 - num_worse)
    record = detector.record()
    return judge(record, _CONFIG).outcome, record.lost is not None, len(record.episodes), is_sustained


def figures(kind: str, seeds: Sequence[int]) -> dict[str, object]:
    """The results on the logs of one ``kind``."""
    logs = [KINDS[kind](np.random.default_rng(seed)) for seed in seeds]
    outcomes, stopped, episodes, sustained = zip(*map(judged, logs), strict=True)
    with patch.object(falls, "_COMMON", _NEVER):
        _, _, without, _ = zip(*map(judged, logs), strict=True)
    return {
        "outcomes": dict(Counter(outcomes).most_common()),
        "stopped": sum(stopped),
        "episodes_a_log": sum(episodes) / len(logs),
        "episodes_without_blocks": sum(without) / len(logs),
        "stopped_if_sustained": sum(sustained),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the results of each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args(arguments)
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.logs)
    found = {kind: figures(kind, seeds) for kind in KINDS}
    for kind, of_kind in found.items():
        print(kind, *(f"{name}={value}" for name, value in of_kind.items()), sep="  ")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
