"""Text corpora, the batches that members draw from them, and the origin of a batch."""

from __future__ import annotations

import bisect
import functools
import glob
import hashlib
import itertools
import os
import platform
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from objectives.base import GptConfig
from objectives.models.ahead import STEPS_PER_DRAW, Ahead, Cohorts
from objectives.stacking import seeded_generator, sent

# Shapes: K members, S cohorts, N steps, B sequences, T context length.

_HELD_OUT = 0.1
_POSITIONS_PER_CHUNK = 256
# A seed's streams, which must not overlap: for the text, the corrupted steps, and their random bytes.
_BATCH_PURPOSE, _CORRUPTION_PURPOSE, _RANDOM_BYTES_PURPOSE = 1, 8, 9
# Tests contain invalid bytes on purpose; site-packages differ between machines.
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
# For the origin of a batch: bytes quoted per sequence, and sequences listed in one line.
_EXCERPT_BYTES, _MOST_SEQUENCES = 60, 4


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file of a corpus: ``size`` bytes of the text, beginning at byte ``start`` and followed by a line break."""

    name: str
    start: int
    size: int


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on and held-out bytes, both 1-D uint8 tensors on the CPU.

    ``files`` are in the order of the text, the training part first.
    """

    training: torch.Tensor
    held_out: torch.Tensor
    source: str
    sha256: str
    files: tuple[TextFile, ...] = ()


@functools.lru_cache(maxsize=4)
def load_corpus(text: tuple[str, ...]) -> Corpus:
    """Read ``text`` (files, folders or globs), or the source of Python's standard library if empty.

    The last tenth of the bytes is held out. Raises ValueError if a pattern matches no file or there is too little text.
    """
    if text:
        named, source = [(str(path), path) for pattern in text for path in _matching_files(pattern)], ", ".join(text)
    else:
        named, source = _standard_library(), f"Python {platform.python_version()} standard library"
    contents = [path.read_bytes() for _, path in named]
    content = b"\n".join(contents)
    if len(content) < 10_000:
        raise ValueError(f"text {source} has {len(content)} bytes: training needs at least 10000")
    # torch warns about a read-only buffer; bytearray makes a writable copy.
    tokens = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    split = int(len(tokens) * (1 - _HELD_OUT))
    sizes = [len(file_content) for file_content in contents]
    starts = itertools.accumulate((size + 1 for size in sizes), initial=0)
    files = tuple(TextFile(name, start, size) for (name, _), start, size in zip(named, starts, sizes, strict=False))
    return Corpus(tokens[:split], tokens[split:], source, hashlib.sha256(content).hexdigest(), files)


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


def _standard_library() -> list[tuple[str, Path]]:
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = []
    for folder, subfolders, names in os.walk(library):
        subfolders[:] = [name for name in subfolders if name not in _NOT_LIBRARY]  # not searched: they have thousands
        paths += [Path(folder, name) for name in names if name.endswith(".py") and name not in _NOT_LIBRARY]
    return [(path.relative_to(library).as_posix(), path) for path in sorted(paths)]


class BatchStream:
    """Random sequences for cohorts. A cohort's batch depends only on its seed and step."""

    def __init__(self, corpus: Corpus, batch_size: int, context: int, device: torch.device):
        self.batch_size, self.context = batch_size, context
        self._tokens = corpus.training.to(device)
        if len(self._tokens) <= context + 1 or len(corpus.held_out) <= context + 1:
            raise ValueError(f"text {corpus.source} is too short for context = {context}")
        self._span_T = torch.arange(context + 1, device=device)
        self._chunk_of: dict[tuple[int, int], torch.Tensor] = {}
        self._positions_ahead = Ahead(self._positions, device, self._forget_chunks)

    def batch(self, cohorts: Cohorts) -> torch.Tensor:
        """Return the bytes for each (seed, step), int64 of shape (S, B, T + 1): inputs, and targets shifted by one."""
        return self.batches(cohorts, 1)[0]

    def batches(self, cohorts: Cohorts, count: int) -> torch.Tensor:
        """Return the bytes for each (seed, step) and the steps after it, int64 of shape (``count``, S, B, T + 1)."""
        positions_NSB = self._positions_ahead.take(cohorts, count)
        return self._tokens[positions_NSB[..., None] + self._span_T].long()

    def _forget_chunks(self, cohorts: Cohorts) -> None:
        current = {(seed, step // _POSITIONS_PER_CHUNK) for seed, step in cohorts}
        self._chunk_of = {key: chunk for key, chunk in self._chunk_of.items() if key in current}

    def _positions(self, seed: int, step: int) -> torch.Tensor:
        """Return the start of each sequence for ``step`` and the steps after it, (N, B)."""
        chunk, offset = divmod(step, _POSITIONS_PER_CHUNK)
        pieces = [self._chunk(seed, chunk)[offset : offset + STEPS_PER_DRAW]]
        if len(pieces[0]) < STEPS_PER_DRAW:
            pieces.append(self._chunk(seed, chunk + 1)[: STEPS_PER_DRAW - len(pieces[0])])
        return torch.cat(pieces)

    def _chunk(self, seed: int, chunk: int) -> torch.Tensor:
        if (seed, chunk) not in self._chunk_of:
            num_starts = len(self._tokens) - self.context
            self._chunk_of[seed, chunk] = _positions_of_chunk(seed, chunk, num_starts, self.batch_size)
        return self._chunk_of[seed, chunk]


def _positions_of_chunk(seed: int, chunk: int, num_starts: int, batch_size: int) -> torch.Tensor:
    """Return the start of each sequence for the steps of one chunk, (_POSITIONS_PER_CHUNK, B)."""
    generator = seeded_generator(seed, _BATCH_PURPOSE, chunk)
    return torch.randint(num_starts, (_POSITIONS_PER_CHUNK, batch_size), generator=generator)


class Corruption:
    """Replace a share of each member's batches, or a burst of batches, by random bytes, both inputs and targets.

    A whole batch is corrupted if u(seed, step) < share, with u uniform on [0, 1), and during a burst. Of two members
    with one seed, the one with the smaller share gets a subset of the other's corrupted batches, at the same steps and
    with the same bytes. Except by chance, a model cannot predict random bytes with a mean loss below log 256, so a
    trained model shows a spike of known cause. Does nothing at a step without a corrupted batch, and never waits for
    the device.
    """

    def __init__(self, shares: Sequence[float], device: torch.device, bursts: Sequence[range] = ()) -> None:
        """``shares`` are the fractions of each member's batches to corrupt; ``bursts`` are the steps of its burst."""
        self._largest_share = max(shares)
        self._share_K = torch.tensor(shares, dtype=torch.float64, device=device)
        bursts = bursts or [range(0)] * len(shares)
        self._bursts = [burst for burst in dict.fromkeys(bursts) if len(burst)]
        self.is_possible = self._largest_share > 0 or bool(self._bursts)
        ends = [(burst.start, burst.stop) for burst in bursts]
        self._burst_K2 = torch.tensor(ends, dtype=torch.int64, device=device)
        self._draws = Ahead(_draws_and_steps, device)

    def apply(self, tokens_KBS: torch.Tensor, cohorts: Cohorts, cohort_of_member_K: torch.Tensor) -> torch.Tensor:
        """Return the bytes that each member trains on, with S = T + 1 per sequence; ``cohorts`` are (seed, step)."""
        in_burst = [any(step in burst for burst in self._bursts) for _, step in cohorts]
        if self._largest_share == 0 and not any(in_burst):
            return tokens_KBS
        draws = [corruption_draw(seed, step) for seed, step in cohorts]
        may_be = [draw < self._largest_share or is_in for draw, is_in in zip(draws, in_burst, strict=True)]
        if not any(may_be):
            return tokens_KBS
        size, device = tokens_KBS.shape[1:], tokens_KBS.device
        nothing_BS = torch.zeros(size, dtype=torch.uint8)
        random_SBS = torch.stack(
            [
                random_bytes(seed, step, size) if is_possible else nothing_BS
                for (seed, step), is_possible in zip(cohorts, may_be, strict=True)
            ]
        )
        random_SBS, (draw_K, step_K) = sent(random_SBS, device), self._draws.take(cohorts)[0, cohort_of_member_K].T
        is_in_burst_K = (step_K >= self._burst_K2[:, 0]) & (step_K < self._burst_K2[:, 1])
        is_corrupted_K11 = ((draw_K < self._share_K) | is_in_burst_K)[:, None, None]
        return torch.where(is_corrupted_K11, random_SBS[cohort_of_member_K].to(tokens_KBS.dtype), tokens_KBS)


def burst_of(config: GptConfig) -> range:
    """Return the steps of a member's burst of corrupted batches; empty without one."""
    return range(0) if config.burst_at is None else range(config.burst_at, config.burst_at + config.burst_length)


def text_at(config: GptConfig, step: int) -> tuple[str, ...]:
    """Return the text that a member trains on at a data step: ``shift_text`` once ``shift_at`` is reached."""
    return config.text if config.shift_at is None or step < config.shift_at else config.shift_text


def corruption_draw(seed: int, step: int) -> float:
    """Return u(seed, step), uniform on [0, 1): a member's batch is corrupted if this is below its share."""
    chunk, offset = divmod(step, _POSITIONS_PER_CHUNK)
    return _corruption_draws(seed, chunk)[offset]


@functools.lru_cache(maxsize=4096)
def _corruption_draws(seed: int, chunk: int) -> tuple[float, ...]:
    generator = seeded_generator(seed, _CORRUPTION_PURPOSE, chunk)
    return tuple(torch.rand(_POSITIONS_PER_CHUNK, generator=generator, dtype=torch.float64).tolist())


def _draws_and_steps(seed: int, step: int) -> torch.Tensor:
    """Return u(seed, t) and t for a data step and the steps after it, float64 (STEPS_PER_DRAW, 2)."""
    steps = range(step, step + STEPS_PER_DRAW)
    return torch.tensor([(corruption_draw(seed, later), later) for later in steps], dtype=torch.float64)


def random_bytes(seed: int, step: int, size: Sequence[int]) -> torch.Tensor:
    """Return the bytes of a corrupted batch, uint8 of shape ``size``."""
    generator = seeded_generator(seed, _RANDOM_BYTES_PURPOSE, step)
    return torch.randint(256, tuple(size), generator=generator, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class SequenceOrigin:
    """The origin of a sequence in a batch: ``length`` bytes of the training text, starting at byte ``start``.

    This is byte ``offset`` of ``file``, whose trailing line break counts as part of the file. A sequence with
    ``is_cut_short`` crosses the end of the file and continues in the next one. ``excerpt`` is its beginning, on one
    line. If ``is_corrupted``, random bytes replaced the whole sequence.
    """

    start: int
    length: int
    file: str
    offset: int
    excerpt: str
    is_cut_short: bool
    is_corrupted: bool


def batch_origin(config: GptConfig, seed: int, step: int) -> list[SequenceOrigin]:
    """Return the origin of each sequence in a batch, found without training.

    ``step`` counts batches of data; after a rollback it is ahead of the member's own step
    (``objectives.base.data_step``). Raises ValueError as ``load_corpus`` does.
    """
    corpus = load_corpus(text_at(config, step))
    chunk, row = divmod(step, _POSITIONS_PER_CHUNK)
    starts_NB = _positions_of_chunk(seed, chunk, len(corpus.training) - config.context, config.batch_size)
    is_corrupted = corruption_draw(seed, step) < config.corrupted or step in burst_of(config)
    return [_origin(corpus, start, config.context + 1, is_corrupted) for start in starts_NB[row].tolist()]


def _origin(corpus: Corpus, start: int, length: int, is_corrupted: bool) -> SequenceOrigin:
    file = corpus.files[bisect.bisect_right(corpus.files, start, key=lambda file: file.start) - 1]
    offset = start - file.start
    excerpt = bytes(corpus.training[start : start + min(length, _EXCERPT_BYTES)].tolist()).decode(errors="replace")
    is_cut_short = offset + length > file.size
    return SequenceOrigin(start, length, file.name, offset, " ".join(excerpt.split()), is_cut_short, is_corrupted)


def batch_text(config: GptConfig, seed: int, step: int) -> str:
    """Return the origin of a batch in one line: "bytes 10,231-10,263 of json/decoder.py, ... and 4 more sequences".

    The bytes are the context and the last target. Raises as ``batch_origin`` does.
    """
    origins = batch_origin(config, seed, step)
    spans = ", ".join(_span(origin) for origin in origins[:_MOST_SEQUENCES])
    num_more = len(origins) - _MOST_SEQUENCES
    more = f" and {num_more} more sequence{'s' if num_more > 1 else ''}" if num_more > 0 else ""
    return spans + more + (", replaced by random bytes" if origins[0].is_corrupted else "")


def _span(origin: SequenceOrigin) -> str:
    if origin.is_cut_short:
        return f"bytes {origin.offset:,} to the end of {origin.file} and on"
    return f"bytes {origin.offset:,}-{origin.offset + origin.length - 1:,} of {origin.file}"


def held_out_batches(corpus: Corpus, num_batches: int, batch_size: int, context: int) -> torch.Tensor:
    """Return evenly spaced held-out sequences, the same for all members: int64 (num_batches, B, T + 1)."""
    starts = torch.linspace(0, len(corpus.held_out) - context - 1, num_batches * batch_size).long()
    tokens = corpus.held_out[starts[:, None] + torch.arange(context + 1)].long()
    return tokens.view(num_batches, batch_size, context + 1)
