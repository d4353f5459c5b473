"""One thing that was looked at, and what can be done about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.errors import SweepError

Level = Literal["ok", "note", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; ``repair`` is what --fix does about it.

    A *fault* must not be: a broken promise or something damaged. A *warning* is worth knowing before results are
    trusted. A *note* is what faults of the machine leave behind, and the next run or `sweep gc` clears up.
    """

    level: Level
    text: str
    repair: Callable[[], Any] | None = None
    remedy: str = ""


def repair(findings: Sequence[Finding]) -> list[str]:
    """Do what can be done about ``findings``; returns what was done or could not be."""
    done = []
    for finding in findings:
        if finding.repair is not None:
            try:
                finding.repair()
                done.append(f"repaired: {finding.text}")
            except (SweepError, OSError) as error:
                done.append(f"not repaired: {finding.text}: {error}")
    return done
