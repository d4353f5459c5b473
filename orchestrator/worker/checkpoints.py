"""Checkpoints of a running pack as bytes: their format, their schedule, and writing them without pausing training.

A checkpoint is tensors, numbers and strings in torch's format. It is read with ``weights_only=True`` after its checksum
is verified, so a foreign checkpoint cannot execute code.
"""

from __future__ import annotations

import io
import random
import time
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from orchestrator.base.packs import Checkpoint
from orchestrator.worker.machine import is_out_of_memory

_SCHEMA = 8
# The first checkpoints come early, so that even a run that is killed every minute makes progress.
_FIRST_S = 3.0
# Checkpoints may take this share of the time.
_LARGEST_SHARE = 0.01


class BadCheckpoint(ValueError):
    """A checkpoint cannot be read, or belongs to other trials."""


def to_bytes(state: Mapping[str, Any], trial_ids: list[str], schema: int = _SCHEMA) -> bytes:
    """Serialize the ``state`` of a pack of ``trial_ids``: dictionaries, lists, tensors, arrays, numbers and strings."""
    import torch

    buffer = io.BytesIO()
    torch.save({"schema": schema, "trial_ids": list(trial_ids), "state": _map(state, _as_tensor)}, buffer)
    return buffer.getvalue()


def from_bytes(content: bytes, trial_ids: list[str]) -> dict[str, Any]:
    """Return the state in ``content``, with tensors for arrays.

    Raises BadCheckpoint if it is damaged, has another version, or does not match ``trial_ids`` in this order.
    """
    import torch

    try:
        # torch does not verify the archive's checksums, so a changed byte would go unnoticed.
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if (damaged := archive.testzip()) is not None:
                raise BadCheckpoint(f"{damaged} is damaged")
        stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        schema, owners, state = stored["schema"], stored["trial_ids"], stored["state"]
    except Exception as error:  # torch's reader may raise anything
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadCheckpoint(f"the checkpoint cannot be read: {cause}") from error
    if schema != _SCHEMA:
        raise BadCheckpoint(f"the checkpoint has schema {schema!r}, this version reads {_SCHEMA}")
    if owners != list(trial_ids):
        raise BadCheckpoint("the checkpoint belongs to other trials")
    return state


def random_states() -> dict[str, Any]:
    """Return the states of the global random generators, which the built-in objectives do not use."""
    import torch

    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    kind, keys, *rest = np.random.get_state()
    states["numpy"] = [kind, np.asarray(keys).astype(np.int64), *rest]
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """Restore the generators to ``random_states``."""
    import torch

    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


class CheckpointWriter:
    """Writes a pack's checkpoints while it trains: the trainer waits only for a copy of its tensors."""

    def __init__(
        self,
        trial_ids: list[str],
        every_s: float | None,
        every_steps: int | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Write a checkpoint at least every ``every_s`` seconds and ``every_steps`` steps; None sets no limit."""
        self._clock = clock
        self._trial_ids, self._every_s, self._every_steps = trial_ids, every_s, every_steps
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[tuple[Checkpoint, float]] | None = None
        self._began = self._last = self._clock()
        self._steps, self._cost_s = 0, 0.0

    def is_due(self, num_steps: int) -> bool:
        """Whether to ``begin`` a checkpoint now, after ``num_steps`` more steps."""
        self._steps += num_steps
        if self._pending is not None:
            return False
        if self._every_steps is not None and self._steps >= self._every_steps:
            return True
        if self._every_s is None:
            return False
        now = self._clock()
        wait_s = min(self._every_s, max(_FIRST_S, (now - self._began) / 2))
        return now - self._last >= max(wait_s, self._cost_s / _LARGEST_SHARE)

    def begin(self, make_state: Callable[[], Mapping[str, Any]], ages: Mapping[str, int]) -> None:
        """Copy the state now, and write it while training continues; does nothing if memory is short."""
        began = self._clock()
        self._steps, self._last = 0, began
        try:
            state = make_state()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return
        copied = _recorded(state)
        self._last = self._clock()
        self._pending = self._thread.submit(self._write, state, copied, dict(ages), self._last - began)

    @property
    def is_ready(self) -> bool:
        """Whether ``take`` returns a checkpoint now."""
        return self._pending is not None and self._pending.done()

    def take(self, *, wait: bool = False) -> Checkpoint | None:
        """Return the checkpoint that was begun if it is complete, or after waiting for it; else None."""
        if self._pending is None or not (wait or self.is_ready):
            return None
        pending, self._pending = self._pending, None
        try:
            checkpoint, self._cost_s = pending.result()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return None
        return checkpoint

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _write(
        self, state: Mapping[str, Any], copied: Any, ages: Mapping[str, int], copy_s: float
    ) -> tuple[Checkpoint, float]:
        began = self._clock()
        content = to_bytes(_on_host(state, copied), self._trial_ids)
        return Checkpoint(content, ages), copy_s + self._clock() - began


def _recorded(state: Any) -> Any:
    """Return an event after the copies on a GPU, since training goes on meanwhile, or None without a GPU."""
    import torch

    leaves: list[Any] = []
    _map(state, leaves.append)
    if not any(isinstance(leaf, torch.Tensor) and leaf.is_cuda for leaf in leaves):
        return None
    event = torch.cuda.Event()
    event.record()
    return event


def _on_host(state: Any, copied: Any) -> Any:
    """Return ``state`` with its tensors in host memory, copied on a separate stream while training continues."""
    import torch

    if copied is None:
        return state
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        stream.wait_event(copied)
        moved = _map(state, lambda leaf: leaf.to("cpu", non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf)
        stream.synchronize()
    return moved


def _as_tensor(leaf: Any) -> Any:
    import torch

    if isinstance(leaf, np.ndarray):
        return torch.from_numpy(leaf)
    return leaf.item() if isinstance(leaf, np.generic) else leaf


def _map(state: Any, change: Callable[[Any], Any]) -> Any:
    """Change everything in ``state`` that is not a container."""
    if isinstance(state, Mapping):
        return {key: _map(inner, change) for key, inner in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_map(inner, change) for inner in state)
    return change(state)
