"""Words of many documents at once, as hashes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from objectives.models.noise import mixed

# Shapes: D documents, W words, N bytes.

_GROUP = 2**20  # bytes of documents that are looked at together
_SPACE, _LETTER, _SIGN = 0, 1, 2
_BASE = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))


def _kinds() -> np.ndarray:
    kinds = np.full(256, _SIGN, dtype=np.uint8)
    for byte in range(256):
        if bytes([byte]).isspace():
            kinds[byte] = _SPACE
        elif bytes([byte]).isalnum() or byte == ord("_") or byte >= 128:
            kinds[byte] = _LETTER
    return kinds


_KIND = _kinds()
_CODE = mixed(np.frombuffer(bytes(range(256)).lower(), dtype=np.uint8))


@dataclass(frozen=True)
class Words:
    """The words of documents that follow each other: runs of letters and digits, and each other sign."""

    hash_W: np.ndarray
    document_W: np.ndarray
    num_documents: int


def words_of(documents: Iterable[bytes]) -> Iterator[Words]:
    """Yield the words of ``documents`` in lower case, some documents at a time."""
    for group in _groups(documents):
        # A line break after each document ends its last word.
        content = np.frombuffer(b"\n".join([*group, b""]), dtype=np.uint8)
        kind = _KIND[content]
        changes = kind[1:] != kind[:-1]
        is_first = (kind == _SIGN) | ((kind == _LETTER) & np.concatenate([[True], changes]))
        is_last = (kind == _SIGN) | ((kind == _LETTER) & np.concatenate([changes, [True]]))
        first_W, end_W = np.flatnonzero(is_first), np.flatnonzero(is_last) + 1
        # Polynomial hashes of all spans, by sums that wrap around; the base is odd and has an inverse.
        power_N, inverse_N = _powers(1 << len(content).bit_length())
        sums = np.concatenate([[np.uint64(0)], np.cumsum(_CODE[content] * power_N[: len(content)], dtype=np.uint64)])
        hash_W = mixed((sums[end_W] - sums[first_W]) * inverse_N[first_W])
        ends_D = np.cumsum([len(document) + 1 for document in group])
        yield Words(hash_W, np.searchsorted(ends_D, first_W, side="right"), len(group))


@functools.lru_cache(maxsize=4)
def _powers(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the powers 0, 1, ... of the base and of its inverse, modulo 2^64."""
    factors = np.full((2, count), [[_BASE], [_INVERSE]], dtype=np.uint64)
    factors[:, 0] = 1
    power_N, inverse_N = np.cumprod(factors, axis=1, dtype=np.uint64)
    return power_N, inverse_N


def _groups(documents: Iterable[bytes]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for document in documents:
        group.append(document)
        size += len(document)
        if size >= _GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group
