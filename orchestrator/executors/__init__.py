"""Where packs run. An executor trains packs and returns events; it stores no results."""

from __future__ import annotations

from typing import Protocol

from orchestrator.base.packs import Pack
from orchestrator.base.reports import Event

INLINE = "inline"  # the executor that trains in the driver's process


class Executor(Protocol):
    """Trains packs somewhere; used by one thread only, the driver's."""

    name: str

    @property
    def slots(self) -> int:
        """How many packs it trains at a time."""

    def submit(self, pack: Pack) -> None:
        """Queue ``pack``; a ``PackStarted`` follows when it starts."""

    def poll(self, timeout_s: float) -> list[Event]:
        """New events; waits at most ``timeout_s`` (or one report) for some."""

    def pause(self) -> None:
        """Drop queued packs, and let running ones end with a checkpoint; their last reports follow."""

    def kill(self, pack_id: str) -> None:
        """Kill the process that trains a pack, whose heartbeat has stopped."""

    def close(self) -> None:
        """Leave no process running, within seconds, whatever runs. Called once, also after an error."""
