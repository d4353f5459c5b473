"""How typical a document is of its text: by compression ratio and by unigram perplexity."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from objectives.models.facts.text import Quality
from objectives.models.words import words_of

# Shapes: D documents, W words.

_NUM_BUCKETS = 2**22  # of word counts: words that share one count as one
_ALIKE = 50  # documents of similar length that are compared
_LEVEL = 6  # of zlib

Documents = Callable[[], Iterable[bytes]]  # to be read as often as needed


def compression_ratio(documents: Documents) -> np.ndarray:
    """Return the compressed length over the length of each document; 1 for an empty one."""
    return np.array([len(zlib.compress(each, _LEVEL)) / len(each) if each else 1.0 for each in documents()])


def unigram_perplexity(documents: Documents) -> np.ndarray:
    """Return the perplexity of each document's words by how often they are in the other documents.

    A document without words has a perplexity of 1.
    """
    count_B = np.zeros(_NUM_BUCKETS, dtype=np.int64)
    for words in words_of(documents()):
        np.add.at(count_B, _bucket(words.hash_W), 1)
    total, vocabulary = int(count_B.sum()), int((count_B > 0).sum())
    found = []
    for words in words_of(documents()):
        bucket_W = _bucket(words.hash_W)
        key_W = words.document_W * _NUM_BUCKETS + bucket_W
        _, inverse_W, number = np.unique(key_W, return_inverse=True, return_counts=True)
        num_words_D = np.bincount(words.document_W, minlength=words.num_documents)
        others_W = count_B[bucket_W] - number[inverse_W]
        chance_W = (others_W + 1) / (total - num_words_D[words.document_W] + vocabulary)
        surprise_D = np.bincount(words.document_W, weights=-np.log(chance_W), minlength=words.num_documents)
        found.append(np.exp(surprise_D / np.maximum(num_words_D, 1)))
    return np.concatenate(found)


def _bucket(hash_W: np.ndarray) -> np.ndarray:
    return (hash_W % np.uint64(_NUM_BUCKETS)).astype(np.int64)


def untypical(score_D: np.ndarray, size_D: np.ndarray) -> np.ndarray:
    """Return how far a document's score is from the median of documents of similar length, over their deviation.

    Both are of logarithms. Far above and far below are alike: a text that is random does not compress, and one that
    repeats itself compresses too well.
    """
    log_D, order = np.log(np.maximum(score_D, 1e-9)), np.argsort(size_D, kind="stable")
    distance_D = np.zeros(len(score_D))
    for alike in np.array_split(order, max(len(order) // _ALIKE, 1)):
        away = np.abs(log_D[alike] - np.median(log_D[alike]))
        distance_D[alike] = away / max(float(np.median(away)), 1e-3)
    return distance_D


SCORES: Mapping[Quality, Callable[[Documents], np.ndarray]] = {
    "compression": compression_ratio,
    "perplexity": unigram_perplexity,
}
