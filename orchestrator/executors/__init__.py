"""Executors: they train packs somewhere and return events; they store no results."""

from __future__ import annotations

from typing import Protocol

from orchestrator.base.packs import Event, Pack

INLINE = "inline"  # name of the executor that trains in the driver's process


class Executor(Protocol):
    """Trains packs somewhere; used only by the driver's thread."""

    name: str

    @property
    def slots(self) -> int:
        """Number of packs that it trains at a time."""

    def submit(self, pack: Pack) -> None:
        """Queue ``pack``; a ``PackStarted`` follows when it starts."""

    def poll(self, timeout_s: float) -> list[Event]:
        """Return new events, waiting at most ``timeout_s`` or one report for the first."""

    def pause(self) -> None:
        """Drop queued packs and let running ones end with a checkpoint; their last reports follow."""

    def kill(self, pack_id: str) -> None:
        """Kill the process of a pack whose heartbeat has stopped."""

    def close(self) -> None:
        """End all processes within seconds. Called once, also after an error."""
