"""The actor that gives Ray workers on any node their checkpoints and the request to pause.

This module imports neither Ray nor Tune: its process starts together with the workers and must not compete with them.
"""

from __future__ import annotations

from orchestrator.base.packs import Checkpoint


class PackRegistry:
    """Hands workers their checkpoints, which are too large for Tune's config, and the request to pause."""

    def __init__(self) -> None:
        self._resume: dict[str, Checkpoint] = {}
        self._worker_of: dict[str, tuple[str, int]] = {}
        self._is_pausing = False

    def store(self, pack_id: str, checkpoint: Checkpoint) -> None:
        """Store ``checkpoint`` for the worker that will train the pack."""
        self._resume[pack_id] = checkpoint

    def begin(self, pack_id: str, node_id: str, pid: int) -> Checkpoint | None:
        """Register a worker for a pack; returns the pack's checkpoint or None."""
        # A process trains one pack at a time.
        self._worker_of = {pack: worker for pack, worker in self._worker_of.items() if worker != (node_id, pid)}
        self._worker_of[pack_id] = (node_id, pid)
        return self._resume.pop(pack_id, None)

    def worker_of(self, pack_id: str) -> tuple[str, int] | None:
        """Return node and process id of the worker that trains a pack, or None."""
        return self._worker_of.get(pack_id)

    def pause(self) -> None:
        """Ask all workers to pause."""
        self._is_pausing = True

    def is_pausing(self) -> bool:
        """Whether workers must pause."""
        return self._is_pausing
