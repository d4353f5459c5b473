"""Text corpora and the batches that members draw from them."""

from __future__ import annotations

import functools
import glob
import hashlib
import platform
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from objectives.packed import seeded_generator

# Shapes: S cohorts, N steps, B sequences, T context length.

_HELD_OUT = 0.1
_POSITIONS_PER_CHUNK = 256
_STEPS_PER_DRAW = 32
_BATCH_PURPOSE = 1
# Tests quote broken bytes on purpose, and site-packages differ between machines.
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on and bytes held out; both 1-D uint8 tensors on the CPU."""

    training: torch.Tensor
    held_out: torch.Tensor
    source: str
    sha256: str


@functools.lru_cache(maxsize=4)
def load_corpus(text: tuple[str, ...]) -> Corpus:
    """Read ``text`` (files, folders or globs); the Python standard library's source when empty.

    The last tenth of the bytes is held out.
    Raises ValueError when a pattern matches no file or there is too little text.
    """
    if text:
        files, source = [file for pattern in text for file in _matching_files(pattern)], ", ".join(text)
    else:
        files, source = _standard_library(), f"Python {platform.python_version()} standard library"
    content = b"\n".join(file.read_bytes() for file in files)
    if len(content) < 10_000:
        raise ValueError(f"text {source} holds {len(content)} bytes: at least 10000 are needed to train")
    # A read-only buffer makes torch warn; bytearray is the writable copy it wants.
    tokens = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    split = int(len(tokens) * (1 - _HELD_OUT))
    return Corpus(tokens[:split], tokens[split:], source, hashlib.sha256(content).hexdigest())


def _matching_files(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
    elif path.is_file():
        files = [path]
    else:
        files = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
    if not files:
        raise ValueError(f"text: {pattern!r} matches no file")
    return files


def _standard_library() -> list[Path]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    return sorted(
        file for file in folder.rglob("*.py") if not _NOT_LIBRARY.intersection(file.relative_to(folder).parts)
    )


class BatchStream:
    """Random sequences for cohorts; what a cohort gets depends on its seed and step alone."""

    def __init__(self, corpus: Corpus, batch_size: int, context: int, device: torch.device):
        self.batch_size, self.context = batch_size, context
        self._tokens = corpus.training.to(device)
        if len(self._tokens) <= context + 1 or len(corpus.held_out) <= context + 1:
            raise ValueError(f"text {corpus.source} is too short for context = {context}")
        self._span_T = torch.arange(context + 1, device=device)
        self._chunk_of: dict[tuple[int, int], torch.Tensor] = {}
        self._drawn_for: list[tuple[int, int]] = []

    def batch(self, cohorts: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Bytes for each (seed, step), int64 of shape (S, B, T + 1): inputs and, shifted by one, targets."""
        first = cohorts[0][1] - self._drawn_for[0][1] if self._drawn_for else -1
        expected = [(seed, step + first) for seed, step in self._drawn_for]
        if not 0 <= first < _STEPS_PER_DRAW or expected != list(cohorts):
            self._draw(cohorts)
            first = 0
        positions_SB = self._positions_SNB[:, first]
        return self._tokens[positions_SB[..., None] + self._span_T].long()

    def _draw(self, cohorts: Sequence[tuple[int, int]]) -> None:
        """Positions of the next steps of all cohorts, moved to the device in one piece."""
        drawn = [self._positions(seed, step) for seed, step in cohorts]
        self._positions_SNB = torch.stack(drawn).to(self._tokens.device, non_blocking=True)
        self._drawn_for = list(cohorts)
        current = {(seed, step // _POSITIONS_PER_CHUNK) for seed, step in cohorts}
        self._chunk_of = {key: chunk for key, chunk in self._chunk_of.items() if key in current}

    def _positions(self, seed: int, step: int) -> torch.Tensor:
        """Start of each sequence in the steps from ``step`` on, (N, B)."""
        chunk, offset = divmod(step, _POSITIONS_PER_CHUNK)
        pieces = [self._chunk(seed, chunk)[offset : offset + _STEPS_PER_DRAW]]
        if len(pieces[0]) < _STEPS_PER_DRAW:
            pieces.append(self._chunk(seed, chunk + 1)[: _STEPS_PER_DRAW - len(pieces[0])])
        return torch.cat(pieces)

    def _chunk(self, seed: int, chunk: int) -> torch.Tensor:
        if (seed, chunk) not in self._chunk_of:
            last = len(self._tokens) - self.context - 1
            generator = seeded_generator(seed, _BATCH_PURPOSE, chunk)
            size = (_POSITIONS_PER_CHUNK, self.batch_size)
            self._chunk_of[seed, chunk] = torch.randint(last + 1, size, generator=generator)
        return self._chunk_of[seed, chunk]


def held_out_batches(corpus: Corpus, num_batches: int, batch_size: int, context: int) -> torch.Tensor:
    """Evenly spaced held-out sequences, the same for everyone: int64 (num_batches, B, T + 1)."""
    starts = torch.linspace(0, len(corpus.held_out) - context - 1, num_batches * batch_size).long()
    tokens = corpus.held_out[starts[:, None] + torch.arange(context + 1)].long()
    return tokens.view(num_batches, batch_size, context + 1)
