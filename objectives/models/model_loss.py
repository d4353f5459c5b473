"""The loss of a text's documents by a small transformer that is trained on the text itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch

from objectives.base import ExecutionPlan, GptConfig
from objectives.models.gpt_model import byte_losses, cross_entropy, initial_weights, with_init
from objectives.stacking import seeded_generator
from objectives.training.packed import PackedTrainer, Weights

# Shapes: D documents, N sequences, S bytes of a sequence.

_PLACES_PURPOSE = 16  # of a stream, among a seed's streams: where the sequences begin that are trained on
_SEED = 0
STEPS = 400
_BATCH, _CONTEXT = 32, 64
_MOST_SEQUENCES = 4  # of a document that are scored
_MOST_SCORED = 2**24  # bytes; of a longer text a document has fewer sequences, one at least
_AT_ONCE = 256  # sequences

Documents = Callable[[], Iterable[bytes]]  # to be read as often as needed


def reference_config() -> GptConfig:
    """Return the model and its training: a default `gpt` near its best learning rate, with a longer context."""
    return GptConfig(
        steps=STEPS,
        batch_size=_BATCH,
        context=_CONTEXT,
        lr=1e-2,
        beta2=0.95,
        warmup=STEPS // 20,
        clip=1.0,
        schedule="linear",
    )


class _Reference(PackedTrainer[GptConfig]):
    """A trial of `gpt` whose batches are given."""

    def __init__(self, tokens_TBS: torch.Tensor) -> None:
        self._tokens_TBS = tokens_TBS
        super().__init__([reference_config()], [_SEED], "cpu", ExecutionPlan(1))

    def initial_weights(self, seed: int) -> Weights:
        return initial_weights(self.structure, seed)

    def own_weights(self, drawn: Weights, config: GptConfig) -> Weights:
        return with_init(drawn, config)

    def losses(self) -> torch.Tensor:
        return cross_entropy(self.structure, self.weights, self._tokens_TBS[self.num_steps][None])


def model_loss(documents: Documents) -> np.ndarray:
    """Return the mean loss of each document's bytes, in nats, by a model that is trained on all of them.

    Of a long document some sequences are scored, evenly spaced. A document of a single byte, or none, has the mean loss
    of all. The result is a function of the documents alone: nothing in it depends on time, or on how many threads there
    are.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        size_D = np.fromiter(map(len, documents()), dtype=np.int64)
        if size_D.sum() <= _CONTEXT:
            return np.zeros(len(size_D))
        trainer = _Reference(_batches(documents(), int(size_D.sum())))
        for _ in range(STEPS):
            trainer.step()
        return _scored(trainer, documents(), size_D)
    finally:
        torch.set_num_threads(threads)


def _batches(documents: Iterable[bytes], num_bytes: int) -> torch.Tensor:
    """Return sequences from random places of the joined documents, (T, B, S)."""
    generator = seeded_generator(_SEED, _PLACES_PURPOSE, 0)
    start_N = torch.randint(num_bytes - _CONTEXT, (STEPS * _BATCH,), generator=generator).numpy()
    order = np.argsort(start_N, kind="stable")
    found = np.empty((len(start_N), _CONTEXT + 1), dtype=np.uint8)
    first, kept, at = 0, b"", 0
    for content in documents:
        kept += content
        while at < len(order) and start_N[order[at]] + _CONTEXT + 1 <= first + len(kept):
            begin = int(start_N[order[at]]) - first
            found[order[at]] = np.frombuffer(kept, np.uint8, _CONTEXT + 1, begin)
            at += 1
        if at == len(order):
            break
        gone = max(min(int(start_N[order[at]]) - first, len(kept)), 0)
        first, kept = first + gone, kept[gone:]
    return torch.from_numpy(found).long().view(STEPS, _BATCH, _CONTEXT + 1)


def _scored(trainer: _Reference, documents: Iterable[bytes], size_D: np.ndarray) -> np.ndarray:
    most = int(np.clip(_MOST_SCORED // max(_CONTEXT * len(size_D), 1), 1, _MOST_SEQUENCES))
    total_D, count_D = np.zeros(len(size_D)), np.zeros(len(size_D))
    for tokens_NS, is_there_NT, document_N in _portions(documents, most):
        loss_NT = byte_losses(trainer.structure, trainer.weights, torch.from_numpy(tokens_NS).long()[None])[0].numpy()
        np.add.at(total_D, document_N, np.where(is_there_NT, loss_NT, 0.0).sum(1))
        np.add.at(count_D, document_N, is_there_NT.sum(1))
    mean = total_D.sum() / max(count_D.sum(), 1)
    return np.where(count_D > 0, total_D / np.maximum(count_D, 1), mean)


def _portions(documents: Iterable[bytes], most: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield sequences of documents, (N, S), which of their targets are there, and the numbers of the documents."""
    tokens_NS = np.zeros((_AT_ONCE, _CONTEXT + 1), dtype=np.uint8)
    length_N, document_N, num = np.zeros(_AT_ONCE, dtype=np.int64), np.zeros(_AT_ONCE, dtype=np.int64), 0

    def portion() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return tokens_NS[:num].copy(), np.arange(_CONTEXT) < length_N[:num, None] - 1, document_N[:num].copy()

    for number, content in enumerate(documents):
        if len(content) < 2:
            continue
        wanted = min(most, math.ceil(len(content) / (_CONTEXT + 1)))
        for start in np.linspace(0, max(len(content) - _CONTEXT - 1, 0), wanted).astype(int).tolist():
            piece = content[start : start + _CONTEXT + 1]
            tokens_NS[num, : len(piece)] = np.frombuffer(piece, np.uint8)
            length_N[num], document_N[num] = len(piece), number
            num += 1
            if num == _AT_ONCE:
                yield portion()
                num = 0
    if num:
        yield portion()
