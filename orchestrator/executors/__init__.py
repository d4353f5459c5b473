"""Where packs run. An executor trains packs and hands events back; it keeps no truth."""

from __future__ import annotations

from typing import Protocol

from orchestrator.messages import Event, Pack


class Executor(Protocol):
    """Trains packs somewhere; used by one thread, the driver's."""

    name: str

    @property
    def slots(self) -> int:
        """How many packs it trains at a time."""

    def submit(self, pack: Pack) -> None:
        """Queue ``pack``; a ``PackStarted`` follows when it begins."""

    def poll(self, timeout_s: float) -> list[Event]:
        """What has happened since; waits at most ``timeout_s`` (or one report) for something."""

    def pause(self) -> None:
        """Drop what is queued, and let what runs end with a checkpoint; its last reports follow."""

    def kill(self, pack_id: str) -> None:
        """End the process that trains a pack, which gives no sign of life."""

    def close(self) -> None:
        """Leave no process behind, within seconds, whatever runs. Called once, also after an error."""
