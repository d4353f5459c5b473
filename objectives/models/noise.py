"""Noise in place of a document: of the same length, and the same whenever it is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from objectives.models.facts.text import NoiseKind

_CYRILLIC = {
    ord(first) + place: cyrillic + place for first, cyrillic in (("a", 0x430), ("A", 0x410)) for place in range(26)
}
_TAGS = (
    b'<div class="c%d"><a href="/%s">%s</a></div>\n',
    b'<td width="%d"><span id="%s">%s</span></td>\n',
    b'<li data-n="%d"><img alt="%s" src="/i/%s.gif"></li>\n',
)


def mixed(values: np.ndarray, key: int = 0) -> np.ndarray:
    """Return a hash of integers, uint64: the finaliser of splitmix64 (Steele et al. 2014)."""
    x = np.asarray(values).astype(np.uint64) + np.uint64((key * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def noisy(kind: NoiseKind, content: bytes, number: int) -> bytes:
    """Return noise as long as ``content``, which depends on that and on the ``number`` of the document."""
    return _KINDS[kind](content, number)[: len(content)] if content else b""


def _shuffled(content: bytes, number: int) -> bytes:
    order = np.argsort(mixed(np.arange(len(content)), number + 1), kind="stable")
    return np.frombuffer(content, dtype=np.uint8)[order].tobytes()


def _foreign(content: bytes, number: int) -> bytes:
    return content.decode("latin-1").translate(_CYRILLIC).encode()


def _marked_up(content: bytes, number: int) -> bytes:
    words = _words(content[: len(content) // 8 + 100])
    parts, length = [], 0
    for draw in mixed(np.arange(len(content) // 30 + 1), number + 1).tolist():
        word = words[draw % len(words)]
        parts.append(_TAGS[draw // 2**32 % len(_TAGS)] % (draw % 40, word, word))
        length += len(parts[-1])
        if length >= len(content):
            break
    return b"".join(parts)


def _repeated(content: bytes, number: int) -> bytes:
    words = _words(content[:10_000])
    word = words[int(mixed(np.array([number]))[0]) % len(words)] + b" "
    return word * (len(content) // len(word) + 1)


def _words(content: bytes) -> list[bytes]:
    return re.findall(rb"\w+", content) or [b"the"]


_KINDS: Mapping[NoiseKind, Callable[[bytes, int], bytes]] = {
    "shuffled": _shuffled,
    "foreign": _foreign,
    "markup": _marked_up,
    "repeated": _repeated,
}
