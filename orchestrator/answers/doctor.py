"""Health checks of the environment, and of a sweep's ledger and files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from orchestrator.base.errors import EXIT_OK, EXIT_SOME_FAILED
from orchestrator.base.query import Query, Say, Subject, hidden, option, silent
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Line

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.health import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorQuery(Query["tuple[Path | None, Path]"]):
    """Check the environment, and a sweep's ledger and files.

    For example `sweep doctor lr_warmup --strict`.
    """

    panel: ClassVar[str] = "upkeep"
    subject: ClassVar[Subject] = "machine"

    strict: bool = option(False, "exit with 3 on warnings too, not only on faults")
    fix: bool = option(False, "repair what can be repaired")

    def ask(self, subject: tuple[Path | None, Path], say: Say = silent) -> DoctorAnswer:
        """Return what was found about the environment and the sweep, if one is named."""
        from orchestrator.health import examine_environment, examine_sweep, repair

        folder, results = subject
        findings = list(examine_environment(results))
        findings += examine_sweep(folder) if folder is not None else []
        return DoctorAnswer(tuple(findings), tuple(repair(findings)) if self.fix else None, self.strict)


@dataclass(frozen=True, slots=True)
class DoctorAnswer(Answer):
    """What is well and what is not."""

    findings: tuple[Finding, ...]
    repaired: tuple[str, ...] | None = hidden()
    is_strict: bool = hidden()

    @property
    def exit_code(self) -> int:
        """The code for failures if there are faults, or warnings that count as such."""
        bad = ("fault", "warning") if self.is_strict else ("fault",)
        return EXIT_SOME_FAILED if any(finding.level in bad for finding in self.findings) else EXIT_OK

    def blocks(self) -> Iterator[Block]:
        """Yield the findings with their remedies."""
        for finding in self.findings:
            yield Line(f"{finding.level:>7}: {finding.text}")
            if finding.remedy:
                yield Line(f"         remedy: {finding.remedy}")
        if self.repaired is not None:
            yield from map(Line, self.repaired)
        elif any(finding.repair for finding in self.findings):
            yield Line("`sweep doctor --fix` repairs what can be repaired")
