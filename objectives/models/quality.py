"""How typical a document is of its text: by compression ratio, unigram perplexity, and losses of its bytes."""

from __future__ import annotations

import contextlib
import hashlib
import math
import zlib
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from objectives.models.facts.text import Quality
from objectives.models.noise import mixed
from objectives.models.text_cache import hold, new_file, text_cache
from objectives.models.words import words_of

# Shapes: D documents, W words, N bytes.

_NUM_BUCKETS = 2**22  # of word counts: words that share one count as one
_ALIKE = 50  # documents of similar length that are compared
_LEVEL = 6  # of zlib
_PIECE, _PIECES = 256, 128  # of a sample: bytes of a document, and documents
_OVERHEAD = len(zlib.compressobj(_LEVEL, zdict=b"sample").flush())  # of an empty document

Documents = Callable[[], Iterable[bytes]]  # to be read as often as needed


def compression_ratio(documents: Documents) -> np.ndarray:
    """Return the length of each document over its own, compressed after a sample of the text; 1 for an empty one.

    The sample makes short documents compress as well as their text does. It is taken from the odd documents for the
    even ones, and from the even documents for the odd ones.
    """
    samples = _samples(documents())
    found = []
    for number, content in enumerate(documents()):
        compressor = zlib.compressobj(_LEVEL, zdict=samples[1 - number % 2])
        length = len(compressor.compress(content)) + len(compressor.flush()) - _OVERHEAD
        found.append(max(length, 1) / len(content) if content else 1.0)
    return np.array(found)


def _samples(documents: Iterable[bytes]) -> tuple[bytes, bytes]:
    """Return the beginnings of some even and of some odd documents, as much as a compressor looks back."""
    kept: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
    for number, content in enumerate(documents):
        of_parity = kept[number % 2]
        of_parity[int(mixed(np.array([number]))[0])] = content[:_PIECE]
        if len(of_parity) > 2 * _PIECES:
            for key in sorted(of_parity)[_PIECES:]:
                del of_parity[key]
    even, odd = (b"".join(each[key] for key in sorted(each)[:_PIECES]) for each in kept)
    return even, odd


def unigram_perplexity(documents: Documents) -> np.ndarray:
    """Return the perplexity of each document's words by how often they are in the other documents; 1 without words."""
    count_B = np.zeros(_NUM_BUCKETS, dtype=np.int64)
    for words in words_of(documents()):
        np.add.at(count_B, _bucket(words.hash_W), 1)
    total = max(int(count_B.sum()), 1)
    found = []
    for words in words_of(documents()):
        bucket_W = _bucket(words.hash_W)
        _, same_W, own_W = np.unique(
            words.document_W * _NUM_BUCKETS + bucket_W, return_inverse=True, return_counts=True
        )
        surprise_W = math.log(total) - np.log(count_B[bucket_W] - own_W[same_W] + 1)
        num_words_D = np.bincount(words.document_W, minlength=words.num_documents)
        sum_D = np.bincount(words.document_W, weights=surprise_W, minlength=words.num_documents)
        found.append(np.exp(sum_D / np.maximum(num_words_D, 1)))
    return np.concatenate(found) if found else np.zeros(0)


def _bucket(hash_W: np.ndarray) -> np.ndarray:
    return (hash_W % np.uint64(_NUM_BUCKETS)).astype(np.int64)


def byte_loss(documents: Documents) -> np.ndarray:
    """Return the mean loss of each document's bytes, in nats, by how often they follow two others elsewhere.

    The chance of a byte is its count after these two in the other documents, plus its share of the text, over the sum.
    A document of less than three bytes has the mean loss of all.
    """
    pairs, triples = np.zeros(2**16, dtype=np.int32), np.zeros(2**24, dtype=np.int32)
    single = np.ones(256)
    for triple_N in map(_triples, documents()):
        np.add.at(triples, triple_N, 1)
        np.add.at(pairs, triple_N >> 8, 1)
        single += np.bincount(triple_N & 255, minlength=256)
    single /= single.sum()
    found = np.array([_mean_loss(_triples(content), triples, pairs, single) for content in documents()])
    return np.nan_to_num(found, nan=float(np.nanmean(found)) if np.isfinite(found).any() else 0.0)


def _triples(content: bytes) -> np.ndarray:
    """Return the three bytes up to each one but the first two, as numbers."""
    byte_N = np.frombuffer(content, dtype=np.uint8).astype(np.int32)
    return (byte_N[:-2] << 16) + (byte_N[1:-1] << 8) + byte_N[2:]


def _mean_loss(triple_N: np.ndarray, triples: np.ndarray, pairs: np.ndarray, single: np.ndarray) -> float:
    if not len(triple_N):
        return math.nan
    own, count = np.unique(triple_N, return_counts=True)
    _, pair_of, of_pair = np.unique(own >> 8, return_index=True, return_inverse=True)
    own_pairs = np.add.reduceat(count, pair_of)[of_pair]
    chance = (triples[own] - count + single[own & 255]) / (pairs[own >> 8] - own_pairs + 1)
    return float(-(count * np.log(chance)).sum() / len(triple_N))


def stored_model_loss(documents: Documents) -> np.ndarray:
    """Return each document's loss by a small trained transformer, from the cache where it has that of equal documents.

    Training takes seconds, so all texts with these documents, wherever they are, share one file.
    """
    from objectives.models.model_loss import model_loss, reference_config  # with torch, which the other scores need not

    digest = hashlib.sha256(reference_config().model_dump_json().encode())
    for content in documents():
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    path = text_cache() / f"{digest.hexdigest()[:32]}.npy"
    if hold(path):
        with contextlib.suppress(OSError, ValueError):  # a damaged file is written anew
            stored: np.ndarray = np.load(path)
            return stored
    loss_D = model_loss(documents)
    with contextlib.suppress(OSError, ValueError), new_file(path) as file:  # without a cache it costs time alone
        np.save(file, loss_D)
    return loss_D


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
    "model": stored_model_loss,
}
