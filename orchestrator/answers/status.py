"""The state of a sweep: its sentence, outcomes, the map as text, and what failed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.base.errors import EXIT_OK, EXIT_SOME_FAILED
from orchestrator.base.query import Query, Say, hidden, option, reported, silent
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Drawing, Line
from orchestrator.render.text import block_lines

if TYPE_CHECKING:
    from pathlib import Path

    from rich.text import Text

    from orchestrator.base.resizes import Resize
    from orchestrator.base.trial_result import TrialResult
    from orchestrator.ledger.facts import Imported
    from orchestrator.maps.energy import Energy
    from orchestrator.maps.table import SweepTable

_FAILED_SHOWN = 5
_RESIZES_SHOWN = 5
_FRAME_S = 2.0  # of a state that is watched
_LINES_OF_ERROR = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusQuery(Query["SweepTable"]):
    """Show the state of a sweep: edge and setting in a sentence, outcomes, failures, the map as text.

    For example `sweep status lr_warmup --watch`.
    """

    panel: ClassVar[str] = "look"
    says_origin: ClassVar[bool] = True

    watch: bool = option(False, "draw it again every two seconds until the run ends")

    def ask(self, subject: SweepTable, say: Say = silent) -> Status:
        """Return the state of the sweep; with ``watch`` after its run has ended, drawing it on a terminal meanwhile."""
        if self.watch:
            _watch(subject.ledger.path)
        return _state(subject)


def _watch(path: Path) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from orchestrator.base.files import is_locked
    from orchestrator.ledger.reader import LedgerReader
    from orchestrator.maps.table import read_table

    with Live(auto_refresh=False, transient=True) as live:
        while is_locked(path.parent):
            with LedgerReader(path) as ledger:
                blocks = list(_state(read_table(ledger), fits=False).blocks())
            texts = (
                each.text if isinstance(each, Drawing) else Text("\n".join(block_lines(each, live.console.width)))
                for each in blocks
            )
            live.update(Group(*texts), refresh=True)
            time.sleep(_FRAME_S)


def _state(table: SweepTable, *, fits: bool = True) -> Status:
    """Return the state; unless it ``fits``, without the sentence on scattered cells, whose surface takes seconds."""
    from orchestrator.base.files import is_locked
    from orchestrator.ledger.facts import imported_of, long_note
    from orchestrator.maps.axes import led
    from orchestrator.maps.energy import energy_of
    from orchestrator.maps.sentence import sentence_of
    from orchestrator.render.text_map import text_map

    facts, rows, folder = table.facts, table.trials, table.ledger.path.parent
    is_running = is_locked(folder)
    return Status(
        sweep=facts.get("name", folder.name),
        sentence=sentence_of(table, is_running=is_running).text if fits or table.is_grid else "",
        objective=facts.get("objective", ""),
        imported=imported_of(facts),
        is_running=is_running,
        num_trials=len(rows),
        statuses=Counter(row.status for row in rows),
        outcomes=Counter(row.label for row in rows if row.outcome is not None),
        labels=Counter(row.label for row in rows),
        energy=energy_of(rows, facts),
        failures=tuple(row for row in rows if row.status in ("errored", "lost")),
        resizes=tuple(table.ledger.resizes()),
        origin=long_note(facts) or "",
        drawing=text_map(rows, led(table.axes)),
    )


@dataclass(frozen=True, slots=True)
class Status(Answer):
    """How many trials have each status and outcome, and which ones failed."""

    sweep: str
    sentence: str
    objective: str
    imported: Imported | None
    is_running: bool
    num_trials: int
    statuses: Mapping[str, int]
    outcomes: Mapping[str, int]
    energy: Energy | None
    resizes: tuple[Resize, ...]
    labels: Mapping[str, int] = hidden()
    failures: tuple[TrialResult, ...] = hidden()
    origin: str = hidden()
    drawing: Text | None = hidden()

    @reported
    def failed(self) -> list[dict[str, Any]]:
        """The trials that errored or were lost."""
        names = ("trial_id", "status", "cell", "seed", "reason", "error")
        return [{name: getattr(row, name) for name in names} for row in self.failures]

    @property
    def exit_code(self) -> int:
        """The code for trials that failed, if there are any."""
        return EXIT_SOME_FAILED if self.failures else EXIT_OK

    def blocks(self) -> Iterator[Block]:
        """Yield the sentence, the outcomes, the map, and the first failures with the end of their errors."""
        from orchestrator.base.words import count, counts_line, plural

        if self.sentence:
            yield Line(self.sentence)
        yield Line(f"{self.sweep}: {count(self.num_trials, 'trial')} of {self.objective}")
        if self.origin:
            yield Line(self.origin)
        yield Line(counts_line(self.labels))
        if self.energy is not None:
            yield Line(f"energy: {self.energy.text(self.energy.joules)}{self.energy.coverage}")
        if self.drawing is not None:
            yield Drawing(self.drawing)
        if not self.is_running and (left := self.statuses.get("running", 0)):
            what = f"{count(left, 'trial was', 'trials were')} in training when their driver died"
            yield Line(f"{what}; `sweep run` resumes {plural(left, 'it', 'them')}")
        for resize in self.resizes[-_RESIZES_SHOWN:]:
            yield Line(f"resized {resize.trial_id} after step {resize.step}: {resize.change}")
        if len(self.resizes) > _RESIZES_SHOWN:
            yield Line(f"... and {len(self.resizes) - _RESIZES_SHOWN} resizes before")
        for row in self.failures[:_FAILED_SHOWN]:
            yield Line(f"{row.status} {row.trial_id} ({row.name}): {row.reason}")
            for line in row.error.splitlines()[-_LINES_OF_ERROR:] if row.error else ():
                yield Line(line, 2)
        if len(self.failures) > _FAILED_SHOWN:
            yield Line(f"... and {len(self.failures) - _FAILED_SHOWN} more")
