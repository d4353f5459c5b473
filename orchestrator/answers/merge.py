"""Weights of several trials merged into one model, and the loss on the way from one trial to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._merging import METHODS, Measured, PathLoss, merged
from orchestrator.answers._options import along_option
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.query import Query, Say, cell_conditions, option, silent
from orchestrator.base.words import count
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Caution, Figure, Line, Table, picture_of

if TYPE_CHECKING:
    from orchestrator.base.trial_result import TrialResult
    from orchestrator.maps.table import SweepTable


def _method(name: str) -> str:
    if name not in METHODS:
        raise InputError(Problem("--method", name, "is unknown", f"choose from {', '.join(METHODS)}"))
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeQuery(Query["SweepTable"]):
    """Merge the weights of trials with a common start, and compare them with the best single trial on held-out text.

    The sweep file must have kept states: `keep`. What has to be chosen is chosen on one half of the held-out text, and
    the losses are of the other half. For example `sweep merge fit --stable --along lr --method greedy`.
    """

    panel: ClassVar[str] = "choose"

    cells: tuple[str, ...] = option(
        (), "merge the trial of this cell; repeatable; by default all along an axis", metavar="AXIS=VALUE,..."
    )
    stable: bool = option(False, "only stable trials")
    along: str | None = along_option("the axis whose trials are merged, at the best trial's other values; the first")
    seed: int | None = option(None, "the seed of the trials; by default the best trial's")
    method: str = option("linear", f"{', '.join(METHODS[:-1])} or {METHODS[-1]}", read=_method)
    anyway: bool = option(False, "also merge trials without a common past, to see the barrier between them")

    def ask(self, subject: SweepTable, say: Say = silent) -> MergeAnswer:
        """Return the merge and its losses. Raises InputError."""
        trials = self._trials(subject)
        say(f"merging {count(len(trials), 'trial')}")
        found = merged(subject.ledger.path.parent, trials, _method(self.method), self.anyway)
        return MergeAnswer(
            sweep=subject.name,
            method=self.method,
            common_start=found.common_start,
            trials=found.trials,
            used=found.used,
            candidates=found.candidates,
            chosen=found.chosen,
            best_single=found.best_single,
            paths=found.paths,
        )

    def _trials(self, table: SweepTable) -> list[TrialResult]:
        """The trials to merge, along their axis."""
        done = [trial for trial in table.trials if trial.outcome == "stable" or (trial.outcome and not self.stable)]
        if self.seed is not None:
            known = sorted({trial.seed for trial in table.trials})
            if self.seed not in known:
                remedy = f"the seeds are {', '.join(map(str, known))}"
                raise InputError(Problem("--seed", table.name, f"no trial has the seed {self.seed}", remedy))
            done = [trial for trial in done if trial.seed == self.seed]
        if self.cells:
            cells = [cell_conditions(text, "--cells") for text in self.cells]
            wanted = [{trial.trial_id for trial in table.where("--cells", cell).trials} for cell in cells]
            chosen = [[trial for trial in done if trial.trial_id in ids] for ids in wanted]
            seeds = [{trial.seed for trial in of_cell} for of_cell in chosen]
            common = set.intersection(*seeds)
            if len(wanted) > 1 and common:  # of several seeds the first that all cells have
                chosen = [[trial for trial in of_cell if trial.seed == min(common)] for of_cell in chosen]
            found = list({trial.trial_id: trial for of_cell in chosen for trial in of_cell}.values())
        else:
            found = self._along(table, done)
        if len(found) < 2:
            message = f"{count(len(found), 'trial')} with a result cannot be merged"
            remedy = "name at least two trials: --cells, --along; `sweep status` lists outcomes"
            raise InputError(Problem("sweep merge", table.name, message, remedy))
        return found

    def _along(self, table: SweepTable, done: Sequence[TrialResult]) -> list[TrialResult]:
        """The trials along the axis with the seed and the other values of the best one."""
        if not table.axes:
            return []
        axis = table.axes[0] if self.along is None else table.axis(self.along, "--along")
        with_loss = [trial for trial in done if trial.validation_loss is not None]
        if not with_loss:
            return []
        best = min(with_loss, key=lambda trial: trial.validation_loss or 0.0)
        gone = {axis.name, *axis.zipped}
        others = best.cell.without(gone)
        row = [trial for trial in with_loss if trial.cell.without(gone) == others and trial.seed == best.seed]
        return sorted(row, key=lambda trial: axis.values.index(trial.cell[axis.name]))


@dataclass(frozen=True, slots=True)
class MergeAnswer(Answer):
    """A merge of trials and the best single trial; losses are in nats, of the half of the text that chose nothing."""

    sweep: str
    method: str
    common_start: str | None
    trials: tuple[Measured, ...]
    used: tuple[str, ...]
    candidates: tuple[Measured, ...]
    chosen: Measured
    best_single: Measured
    paths: tuple[PathLoss, ...]

    def frame(self) -> Any:
        """Return the losses along the paths."""
        import pandas as pd

        rows = [
            {"first": path.first, "second": path.second, "share": share, "loss": loss}
            for path in self.paths
            for share, loss in zip(path.shares, path.losses, strict=True)
        ]
        return pd.DataFrame(rows)

    def blocks(self) -> Iterator[Block]:
        """Yield the merge and the best trial, all losses, and the barriers with their picture."""
        merged, single = self.chosen, self.best_single
        yield Line(f"{self.sweep}: {merged.name} ({self.method}) has a loss of {_text(merged.held_out_loss)}")
        yield Line(f"the best single trial, {single.name}, has {_text(single.held_out_loss)}{self._gain()}")
        if self.common_start is None:
            yield Caution("these trials have no common past: a mean of unrelated weights is not a model")
        else:
            yield Line(f"common start: {self.common_start}")
        if set(self.used) != {trial.name for trial in self.trials}:
            yield Line(f"of {count(len(self.trials), 'trial')} it takes {', '.join(self.used)}")
        rows = tuple(
            (one.name, _text(one.choosing_loss), _text(one.held_out_loss)) for one in (*self.trials, *self.candidates)
        )
        yield Table(("weights", "loss that chooses", "loss on the other half"), rows, right=(1, 2))
        for path in self.paths:
            barrier = "a loss on the way is not finite" if path.barrier is None else f"a barrier of {path.barrier:.4f}"
            yield Line(f"from {path.first} to {path.second}: {barrier}")
        yield Figure(picture_of("merge_paths:merge_picture", self.paths), "the loss along the path between trials")

    def _gain(self) -> str:
        merged, single = self.chosen.held_out_loss, self.best_single.held_out_loss
        if merged is None or single is None:
            return ""
        return f": the merge is {abs(merged - single):.4f} {'lower' if merged < single else 'higher'}"


def _text(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.4f}"
