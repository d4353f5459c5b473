"""Random numbers as functions of seed and purpose, independent of the device and the other members of the pack."""

from __future__ import annotations

import torch


def seeded_generator(*numbers: int) -> torch.Generator:
    """A CPU generator that is a pure function of ``numbers``, e.g. (seed, purpose, step).

    A stream that is a function of seed and step needs no state on resume, and does not depend on the device or on the
    other members of the pack.
    """
    mixed = 0
    for number in numbers:
        # The finaliser of splitmix64 spreads neighbouring seeds over all bits.
        mixed = (mixed + number + 0x9E3779B97F4A7C15) % 2**64
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
        mixed ^= mixed >> 31
    return torch.Generator().manual_seed(mixed % 2**63)
