"""Why a trial became unstable, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import cell_option, trial_option
from orchestrator.base.files import DIAGNOSES
from orchestrator.base.query import Query, Say, silent
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Figure, File, Line

if TYPE_CHECKING:
    from orchestrator.causes.diagnosis import Diagnosis
    from orchestrator.ledger.reader import LedgerReader


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseQuery(Query["LedgerReader"]):
    """Show why a trial became unstable, with the numbers, the excluded causes, and what to change.

    Without --trial and --cell it diagnoses the most typical trial that is not stable: the one with the earliest onset
    of the most common outcome. If no cell shows whether a change would help, a small sweep that tests it is written
    next to the picture. For example `sweep diagnose lr_warmup --cell lr=0.3,warmup=0`.
    """

    panel: ClassVar[str] = "explain"

    trial: str | None = trial_option()
    cell: Mapping[str, Any] | None = cell_option()

    def ask(self, subject: LedgerReader, say: Say = silent) -> DiagnoseAnswer:
        """Return the diagnosis of a trial."""
        from orchestrator.causes.diagnosis import diagnose
        from orchestrator.causes.remedies.answer_text import remedy_lines

        found = diagnose(subject, self.trial, self.cell)
        tried = () if found is None else tuple(remedy_lines(subject, found))
        return DiagnoseAnswer(found, subject.path.parent, tried)


@dataclass(frozen=True, slots=True)
class DiagnoseAnswer(Answer):
    """The diagnosis of one trial, None if all trials are stable."""

    result: Diagnosis | None
    folder: Path
    tried: tuple[str, ...]

    def to_plain(self) -> Any:
        """Return everything it knows, as JSON has it."""
        from orchestrator.causes.diagnosis_text import advised, diagnosis_json
        from orchestrator.render.json import to_plain

        if self.result is None:
            return {"sweep": self.folder.name, "trial_id": None}
        return to_plain(diagnosis_json(self.result, *advised(self.result, self.folder)))

    def blocks(self) -> Iterator[Block]:
        """Yield the cause with its numbers, the advice, and small sweeps that test it."""
        from orchestrator.causes.diagnosis_text import advised, diagnosis_lines

        if self.result is None:
            yield Line(f"{self.folder.name}: all its trials are stable, there is nothing to diagnose")
            yield Line("`--trial ID` diagnoses a stable trial anyway")
            return
        advice, reasons = advised(self.result, self.folder)
        yield from map(Line, diagnosis_lines(self.result, advice, self.folder, reasons))
        trial_id, pictures = self.result.trial.trial_id, self.folder / DIAGNOSES
        yield Figure(self._drawn, "the run up to its onset", pictures / f"{trial_id}.png")
        files = {f"{item.move.direction}_{item.move.setting}": item.sweep_file for item in advice}
        files |= {f"not_finite_{item.key}": item.deciding_sweep for item in reasons if item.answer != "no"}
        small = {
            pictures / f"{trial_id}_{name}.yaml": content for name, content in files.items() if content is not None
        }
        if small:
            yield Line("small sweeps that test the advice, for `sweep run`:")
        for path, content in small.items():
            yield Line(str(path), 1)
            yield File(path, content)
        yield from map(Line, self.tried)

    def _drawn(self, file_format: str) -> bytes:
        from orchestrator.render.diagnosis import diagnosis_figure

        assert self.result is not None
        return diagnosis_figure(self.result, file_format)
