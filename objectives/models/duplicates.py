"""Equal and near documents, the latter by MinHash (Broder 1997)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from objectives.models.noise import mixed
from objectives.models.words import Words, words_of

# Shapes: D documents, W words, S shingles, H hash functions.

THRESHOLD = 0.7  # of the Jaccard similarity of two documents' shingles
_SHINGLE = 5  # words
_BANDS, _ROWS = 32, 4  # a pair at the threshold shares a band with probability 1 - (1 - 0.7^4)^32 > 0.9998
_AT_ONCE = 1024  # shingles


def first_equal(documents: Iterable[bytes]) -> np.ndarray:
    """Return the first document that equals each one but for white space at its ends; an empty one is its own."""
    hashes, are_empty = bytearray(), bytearray()  # a dict would take more memory than a short document
    for content in documents:
        stripped = content.strip()
        hashes += hashlib.blake2b(stripped, digest_size=16).digest()
        are_empty.append(not stripped)
    _, first, place_D = np.unique(np.frombuffer(hashes, dtype="V16"), return_index=True, return_inverse=True)
    return np.where(np.frombuffer(are_empty, dtype=np.bool_), np.arange(len(are_empty)), first[place_D])


def first_near(documents: Iterable[bytes]) -> np.ndarray:
    """Return the first of the documents that each one is a near duplicate of, through others too."""
    signature_DH, is_empty_D = signatures(documents)
    first_D = np.arange(len(signature_DH))
    for one, other in near_pairs(signature_DH, is_empty_D).tolist():
        low, high = sorted((_root(first_D, one), _root(first_D, other)))
        first_D[high] = low
    while (first_D[first_D] != first_D).any():
        first_D = first_D[first_D]
    return first_D


def _root(first_D: np.ndarray, number: int) -> int:
    while first_D[number] != number:
        number = int(first_D[number])
    return number


def signatures(documents: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the MinHash of each document's shingles, uint32 of shape (D, H), and which have no words."""
    factors_H = (mixed(np.arange(_BANDS * _ROWS), 1) | np.uint64(1)).astype(np.uint32)
    found = [_signatures(words, factors_H) for words in words_of(documents)]
    if not found:
        return np.zeros((0, len(factors_H)), dtype=np.uint32), np.zeros(0, dtype=np.bool_)
    return np.concatenate([each for each, _ in found]), np.concatenate([each for _, each in found])


def _signatures(words: Words, factors_H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    num_words_D = np.bincount(words.document_W, minlength=words.num_documents)
    first_D = np.cumsum(num_words_D) - num_words_D
    place_W = np.arange(len(words.hash_W)) - first_D[words.document_W]
    left_W = num_words_D[words.document_W] - place_W
    padded = np.concatenate([words.hash_W, np.zeros(_SHINGLE, dtype=np.uint64)])
    shingle_W = np.zeros(len(words.hash_W), dtype=np.uint64)
    for ahead in range(_SHINGLE):
        own_W = np.where(ahead < left_W, padded[ahead : ahead + len(left_W)], np.uint64(0))
        shingle_W = mixed(shingle_W + own_W, ahead)
    # A document with fewer words than a shingle has one, of all its words.
    is_whole_W = (left_W >= _SHINGLE) | (place_W == 0)
    shingle_S, document_S = shingle_W[is_whole_W].astype(np.uint32), words.document_W[is_whole_W]
    signature_DH = np.full((words.num_documents, len(factors_H)), 2**32 - 1, dtype=np.uint32)
    for start in range(0, len(shingle_S), _AT_ONCE):
        document = document_S[start : start + _AT_ONCE]
        begins = np.flatnonzero(np.diff(document, prepend=-1))
        hash_SH = shingle_S[start : start + _AT_ONCE, None] * factors_H
        hash_SH ^= hash_SH >> np.uint32(16)
        lowest = np.minimum.reduceat(hash_SH, begins, axis=0)
        at = document[begins]
        signature_DH[at] = np.minimum(signature_DH[at], lowest)
    return signature_DH, num_words_D == 0


def near_pairs(signature_DH: np.ndarray, is_empty_D: np.ndarray) -> np.ndarray:
    """Return pairs of near duplicates, the earlier one first, of shape (P, 2).

    Within each band of the signature, documents that agree in it are compared with the first such document.
    """
    pairs = []
    number_D = np.flatnonzero(~is_empty_D)
    for band in range(_BANDS):
        key_D = np.zeros(len(number_D), dtype=np.uint64)
        for row in range(band * _ROWS, (band + 1) * _ROWS):
            key_D = mixed(key_D + signature_DH[number_D, row], row)
        _, first, inverse = np.unique(key_D, return_index=True, return_inverse=True)
        pair_D2 = np.stack([number_D[first[inverse]], number_D], axis=1)
        pairs.append(pair_D2[pair_D2[:, 0] != pair_D2[:, 1]])
    pair_P2 = np.unique(np.concatenate(pairs), axis=0)
    parts = [
        part[(signature_DH[part[:, 0]] == signature_DH[part[:, 1]]).mean(axis=1) >= THRESHOLD]
        for part in np.array_split(pair_P2, len(pair_P2) // _AT_ONCE + 1)
    ]
    return np.concatenate(parts)
