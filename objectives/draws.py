"""Random numbers as pure functions of e.g. (seed, purpose, step): those of torch's generators on the CPU, from NumPy.

A stream that is a function of seed and step needs no state on resume, and depends neither on the device nor on the
other members of the pack. A diagnosis draws what a trainer drew without importing torch, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_LARGEST_BOUND_OF_32_BITS = 2**28  # from here on torch takes 64 bits for an integer, so that all are equally likely
_MANTISSA = 53  # bits of a float64


def seed_of(*numbers: int) -> int:
    """Return a generator's seed, below 2^63, that is a pure function of ``numbers``."""
    mixed = 0
    for number in numbers:
        # The finaliser of splitmix64 spreads neighbouring seeds over all bits.
        mixed = (mixed + number + 0x9E3779B97F4A7C15) % 2**64
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
        mixed ^= mixed >> 31
    return mixed % 2**63


def integers(bound: int, size: Sequence[int], *numbers: int) -> np.ndarray:
    """Return uniform integers from 0 to ``bound`` - 1, int64 of shape ``size``."""
    count = int(np.prod(size))
    of_32_bits = bound < _LARGEST_BOUND_OF_32_BITS
    drawn = _words_of_32(count, numbers) if of_32_bits else _words_of_64(count, numbers)
    return (drawn % np.uint64(bound)).astype(np.int64).reshape(size)


def uniforms(count: int, *numbers: int) -> np.ndarray:
    """Return ``count`` uniform numbers on [0, 1), float64."""
    return (_words_of_64(count, numbers) & np.uint64(2**_MANTISSA - 1)) * 2.0**-_MANTISSA


def _words_of_32(count: int, numbers: Sequence[int]) -> np.ndarray:
    # As torch does, the Mersenne twister takes the lower 32 bits of the seed.
    twister = np.random.RandomState(seed_of(*numbers) % 2**32)
    return twister.randint(0, 2**32, count, dtype=np.uint32).astype(np.uint64)


def _words_of_64(count: int, numbers: Sequence[int]) -> np.ndarray:
    upper, lower = _words_of_32(2 * count, numbers).reshape(count, 2).T
    return (upper << np.uint64(32)) | lower
