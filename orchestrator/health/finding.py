"""One result of a health check, and its repair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.base.errors import SweepError

Level = Literal["ok", "note", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a health check; ``repair`` is what --fix does about it.

    A *fault* is a broken invariant or damage. A *warning* is worth knowing before trusting results. A *note* is about
    leftovers of an interrupted run; the next run or `sweep gc` cleans them up.
    """

    level: Level
    text: str
    repair: Callable[[], Any] | None = None
    remedy: str = ""


def repair(findings: Sequence[Finding]) -> list[str]:
    """Repair ``findings`` where possible; returns what was done or could not be done."""
    done = []
    for finding in findings:
        if finding.repair is not None:
            try:
                finding.repair()
                done.append(f"repaired: {finding.text}")
            except (SweepError, OSError) as error:
                done.append(f"not repaired: {finding.text}: {error}")
    return done
