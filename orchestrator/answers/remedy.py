"""What would have saved a run, by experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import cell_option, trial_option
from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import REMEDIES_PICTURE, check_no_links
from orchestrator.base.query import Query, Say, option, silent
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Figure, Line

if TYPE_CHECKING:
    from orchestrator.causes.remedies.results import Remedies
    from orchestrator.ledger.reader import LedgerReader


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyQuery(Query["LedgerReader"]):
    """Fork a run that became unstable, try remedies on the forks, and show which ones save it, and how late.

    Without --trial and --cell it takes the most typical trial that is not stable, as a diagnosis does; without --fork
    and --try the usual steps and remedies. The same command trains nothing twice, and continues where it was stopped.
    For example `sweep remedy lr_warmup --fork -50 --try lr=x0.5 --try skip=5`.
    """

    panel: ClassVar[str] = "explain"
    updates_mirrors: ClassVar[bool] = True

    trial: str | None = trial_option()
    cell: Mapping[str, Any] | None = cell_option()
    try_: tuple[str, ...] = option(
        (), "lr=x0.5,x0.25, lr=x0.25:50:20, skip=5, lr=x0.5+clip=1; repeatable", metavar="FIELD=VALUE,..."
    )
    fork: tuple[str, ...] = option(
        (), "fork before this step: 100, -50 (before the onset), onset; repeatable", metavar="STEP"
    )
    replicates: int = option(
        3, "forks of each remedy: the first has the trial's data, others have not", minimum=1, maximum=100
    )
    pairs: bool = option(True, "try two remedies at a time if no single one saves all", opposite="--no-pairs")
    executor: str = option("inline", "inline to train in this process, ray or slurm")
    allow_import: bool = option(False, "import the Python code that the sweep file names")

    def ask(self, subject: LedgerReader, say: Say = silent) -> RemedyAnswer:
        """Train the forks that are missing, and return what saved the run."""
        from orchestrator.answers._forks import ProgressLines, resources_of
        from orchestrator.base.environment import check_installed
        from orchestrator.base.words import format_seconds
        from orchestrator.causes.diagnosis_text import headline
        from orchestrator.causes.remedies.reading import current_remedies, forks_folder
        from orchestrator.causes.remedies.request import RemedyRequest
        from orchestrator.causes.remedies.training import diagnose_unstable, train_remedies
        from orchestrator.executors.catalogue import ExecutorOptions, executor_loader

        folder = subject.path.parent
        request = RemedyRequest(self.try_, self.fork, self.replicates, self.pairs, self.allow_import)
        diagnosis = diagnose_unstable(folder, self.trial, self.cell or {})
        there = forks_folder(folder, diagnosis.trial.trial_id)
        check_no_links(folder, there.parent, there)
        check_installed("training forks", "torch")
        say(headline(diagnosis))
        start, summary = executor_loader(self.executor, ExecutorOptions(there, resources_of(folder)))(), None
        for what, summary in train_remedies(folder, diagnosis, request, start, [ProgressLines(say)]):
            trained = f"trained in {format_seconds(summary.seconds)}" if summary.trained else "nothing to train"
            say(f"{what}: {trained}")
        is_stopped = summary is not None and summary.stopped_by is not None
        code = EXIT_OK if summary is None else summary.exit_code
        return RemedyAnswer(current_remedies(folder, diagnosis), there / REMEDIES_PICTURE, code, is_stopped)


@dataclass(frozen=True, slots=True)
class RemedyAnswer(Answer):
    """What was tried on the forks of one trial."""

    result: Remedies
    picture: Path
    code: int
    is_stopped: bool

    @property
    def exit_code(self) -> int:
        """The code with which the forks ended."""
        return self.code

    def to_plain(self) -> Any:
        """Return everything it knows, as JSON has it."""
        from orchestrator.causes.remedies.answer_text import remedies_json
        from orchestrator.render.json import to_plain

        return to_plain(remedies_json(self.result))

    def blocks(self) -> Iterator[Block]:
        """Yield the remedies that saved the run by the step of the fork, and the cheapest one."""
        from orchestrator.causes.remedies.answer_text import remedies_lines

        yield from map(Line, remedies_lines(self.result))
        if self.result.tallies:
            yield Figure(self._drawn, "remedies by fork step", self.picture)
        if self.is_stopped:
            yield Line("stopped; the same command goes on")

    def _drawn(self, file_format: str) -> bytes:
        from orchestrator.render.remedies import remedies_figure

        return remedies_figure(self.result, file_format)
