"""What would have saved a run, by experiment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import (
    allow_import_option,
    cell_option,
    executor_option,
    fork_option,
    replicates_option,
    trial_option,
    try_option,
)
from orchestrator.base.errors import EXIT_OK
from orchestrator.base.files import REMEDIES_PICTURE, check_no_links
from orchestrator.base.query import Query, Say, flat, hidden, option, silent
from orchestrator.base.space import format_value
from orchestrator.base.words import count, listed
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Caution, Figure, Line, Table, picture_of

if TYPE_CHECKING:
    from orchestrator.causes.remedies.results import Cost, Remedies
    from orchestrator.causes.remedies.tally import Tally
    from orchestrator.maps.table import SweepTable

_MAX_STEPS = 5  # fork steps of a table
_MAX_COSTS = 6  # lines
_MAX_CELLS = 4  # stable cells in the text
_MAX_NAMED = 3  # remedies in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyQuery(Query["SweepTable"]):
    """Find what would have saved a run: fork it, try remedies, and show which ones save it, and how late.

    Without --trial and --cell it takes the unstable trial that a diagnosis takes; without --fork and --try the usual
    steps and remedies. The same command trains nothing twice, and continues where it was stopped. For example
    `sweep remedy lr_warmup --fork -50 --try lr=x0.5 --try skip=5`.
    """

    panel: ClassVar[str] = "explain"
    updates_mirrors: ClassVar[bool] = True

    trial: str | None = trial_option()
    cell: Mapping[str, Any] | None = cell_option()
    try_: tuple[str, ...] = try_option()
    fork: tuple[str, ...] = fork_option()
    replicates: int = replicates_option()
    pairs: bool = option(True, "try two remedies at a time if no single one saves all", opposite="--no-pairs")
    executor: str = executor_option()
    allow_import: bool = allow_import_option()

    def ask(self, subject: SweepTable, say: Say = silent) -> RemedyAnswer:
        """Train the missing forks, and read what saved the run."""
        from orchestrator.answers._forks import ProgressLines, resources_of
        from orchestrator.base.environment import check_installed
        from orchestrator.base.words import format_seconds
        from orchestrator.causes.remedies.reading import current_remedies, forks_folder
        from orchestrator.causes.remedies.request import RemedyRequest
        from orchestrator.causes.remedies.training import diagnose_unstable, train_remedies
        from orchestrator.executors.catalogue import ExecutorOptions, executor_loader

        folder = subject.ledger.path.parent
        request = RemedyRequest(self.try_, self.fork, self.replicates, self.pairs, self.allow_import)
        diagnosis = diagnose_unstable(folder, self.trial, self.cell or {})
        forks = forks_folder(folder, diagnosis.trial.trial_id)
        check_no_links(folder, forks.parent, forks)
        check_installed("training forks", "torch")
        say(diagnosis.headline)
        make_executor, summary = executor_loader(self.executor, ExecutorOptions(forks, resources_of(folder)))(), None
        for part, summary in train_remedies(folder, diagnosis, request, make_executor, [ProgressLines(say)]):
            trained = f"trained in {format_seconds(summary.seconds)}" if summary.trained else "nothing to train"
            say(f"{part}: {trained}")
        return RemedyAnswer.of(
            current_remedies(folder, diagnosis),
            forks / REMEDIES_PICTURE,
            EXIT_OK if summary is None else summary.exit_code,
            is_stopped=summary is not None and summary.stopped_by is not None,
        )


@dataclass(frozen=True, slots=True)
class TriedRemedy:
    """A remedy from a fork step; ``called_for`` if the diagnosis calls for it. ``p_value`` covers all its steps.

    ``snippet`` does it in a loop of PyTorch.
    """

    helped: bool
    p_value: float | None
    called_for: bool
    snippet: str | None
    tally: Tally = flat()


@dataclass(frozen=True, slots=True)
class ControlRun:
    """The trial trained again and left alone."""

    outcome: str | None
    onset_step: int | None
    final_loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyAnswer(Answer):
    """What the forks of one trial came to; each field is explained in docs/json.md."""

    result: Remedies = flat()
    trial_id: str
    onset_step: int | None
    control: ControlRun | None
    remedies: tuple[TriedRemedy, ...]
    other_data: tuple[TriedRemedy, ...]
    cheapest: str | None
    cheapest_step: int | None
    best: str | None
    best_step: int | None
    agrees_with_diagnosis: bool | None
    neighbour: str | None
    snippet: str | None
    picture: Path | None = hidden(default=None)
    code: int = hidden(default=EXIT_OK)
    is_stopped: bool = hidden(default=False)

    @classmethod
    def of(
        cls, results: Remedies, picture: Path | None = None, code: int = EXIT_OK, *, is_stopped: bool = False
    ) -> RemedyAnswer:
        """The answer with these results of forks."""
        from orchestrator.causes.remedies.snippets import snippet_of

        control, cheapest, best = results.control, results.cheapest, results.best

        p_values = results.p_values

        def tried(tallies: Sequence[Tally]) -> tuple[TriedRemedy, ...]:
            return tuple(
                TriedRemedy(
                    results.helped(tally),
                    p_values.get(tally.name),
                    results.is_called_for(tally),
                    snippet_of(tally.remedy, tally.fork_step),
                    tally,
                )
                for tally in tallies
            )

        return cls(
            result=results,
            trial_id=results.trial.trial_id,
            onset_step=results.onset,
            control=None if control is None else ControlRun(control.ending, control.ending_step, control.final_loss),
            remedies=tried(results.tallies),
            other_data=tried(results.unchanged),
            cheapest=getattr(cheapest, "name", None),
            cheapest_step=getattr(cheapest, "fork_step", None),
            best=getattr(best, "name", None),
            best_step=getattr(best, "fork_step", None),
            agrees_with_diagnosis=results.agrees,
            neighbour=results.neighbours[0].trial_id if results.neighbours else None,
            snippet=None if results.shown is None else snippet_of(results.shown.remedy, results.shown.fork_step),
            picture=picture,
            code=code,
            is_stopped=is_stopped,
        )

    @property
    def title(self) -> str:
        """The sweep and the trial."""
        return f"{self.result.sweep}: remedies of {self.trial_id}"

    @property
    def exit_code(self) -> int:
        """The exit code of the training."""
        return self.code

    def blocks(self) -> Iterator[Block]:
        """Yield the cheapest remedy, the table of all, how far to trust it, the costs, and the cause."""
        from orchestrator.answers._forks import repeats

        results = self.result
        if results.tallies:
            yield from map(Line, _verdict(results))
            yield from _tables(results)
        else:
            yield Line("no remedy was tried")
        yield from repeats(results)
        if results.num_missing:
            yield Caution(
                f"{count(results.num_missing, 'fork has', 'forks have')} no result yet; the same command trains them",
                "incomplete",
            )
        if self.control is not None and results.control is not None:
            yield Line(f"left alone: {results.control.label}, final loss {_loss(self.control.final_loss)}")
        if results.stable_cells:
            cells = [
                f"{cell.setting} {format_value(cell.value)}: {_loss(cell.final_loss)}" for cell in results.stable_cells
            ]
            yield Line(f"nearest stable cells: final loss with {', '.join(cells[:_MAX_CELLS])}")
        if results.tallies:
            yield from _costs(results)
            yield Line(_diagnosis(results))
            if self.snippet is not None and results.shown is not None:
                yield Line(f"{results.shown.name} in PyTorch, before `optimizer.step()`:")
                yield from (Line(line, 1) for line in self.snippet.splitlines())
            yield Line(f"steps trained after the forks: {results.spent_steps:,}")
            if self.picture is not None:
                yield Figure(picture_of("remedies:remedies_figure", self.result), "remedies by fork step", self.picture)
        if self.is_stopped:
            yield Line("stopped; the same command continues")


def _tables(results: Remedies) -> Iterator[Table]:
    """Saved replicates and median final loss, by remedy and fork step."""
    from orchestrator.causes.remedies.remedy import NO_CHANGE

    recovered = any(tally.recovered for tally in results.all_tallies)
    title = f"replicates saved{' (+N: left the trend and came back)' if recovered else ''}, and median final loss:"
    names = {results.unchanged_name: NO_CHANGE, **{name: name for name in results.names}}
    for first in range(0, len(results.fork_steps), _MAX_STEPS):
        steps = results.fork_steps[first : first + _MAX_STEPS]
        rows = []
        if results.onset is not None:
            rows.append(("from the onset", *(f"{step - results.onset:+d}" for step in steps)))
        for title_of_row, name in names.items():
            tallies = [results.at(name, step) for step in steps]
            if any(tallies):
                rows.append((title_of_row, *map(_counts, tallies)))
        head = ("fork at step", *map(str, steps))
        yield Table(head, tuple(rows), tuple(range(1, len(head))), title="" if first else title)


def _counts(tally: Tally | None) -> str:
    return "-" if tally is None else f"{tally.counts} {tally.short_loss}".rstrip()


def _verdict(results: Remedies) -> Iterator[str]:
    """The cheapest remedy, the one with the lowest loss, and the last fork step known to help."""
    cheapest, lowest, partial = results.cheapest, results.best, results.best_partial
    if cheapest is not None:
        yield f"cheapest: {cheapest.name} from {_step(results, cheapest)}: {_saved(results, cheapest)}"
        if lowest is not None and lowest != cheapest:
            yield f"lowest loss: {lowest.name} from {_step(results, lowest)}: {_saved(results, lowest)}"
        if results.replicates_differ:
            yield f"chosen among {_tried(results)}, and counted by replicates that chose nothing"
        if results.is_lower_alone(lowest):
            yield "left alone, it ends lower than with any remedy that saves it: a spike is not a failure"
    elif partial is not None:
        best = f"{partial.name} from {_step(results, partial)}"
        yield f"no remedy saved every replicate; the best is {best}: {_saved(results, partial)}"
    elif results.is_stable_alone:
        yield "no remedy is named: left alone, the run is stable now"
    elif results.fresh_p_values:
        yield "no remedy is named: fresh data does not repeat what seemed to help"
        for tally in results.fresh:
            if (alone := results.fresh_alone(tally)) is not None:
                good = [f"{results.ended_well(each)} of {each.tried}" for each in (tally, alone)]
                where = f"{tally.name} from {_step(results, tally)}"
                yield f"{where}: with fresh data {good[0]} end well, with that data alone {good[1]}"
    elif any(tally.saved for tally in results.tallies):
        lowest_p = min(results.p_values.values())
        single = results.is_custom and all(tally.tried == 1 for tally in results.tallies)
        more = "a trainer that takes data_seed gets" if single else "see --replicates for"
        yield (
            f"no remedy is named: none of {results.num_tried} did better than {_alone(results)} alone by more than "
            f"chance (the lowest p is {lowest_p:.2g}); {more} more replicates, which can tell more"
        )
    else:
        yield "no remedy saved any replicate"
    passed = [tally for tally in results.tallies if tally.own_passed]
    if cheapest is None and passed:
        last = max(tally.fork_step for tally in passed)
        names = _some([tally.name for tally in passed if tally.fork_step == last])
        yield f"got past this spike, though others follow: with the trial's own data {names} from step {last}"
    if (last_helpful := results.last_helpful_step) is None:
        return
    if (late := results.too_late_step) is None:
        yield f"no step was too late: this helped even from the last fork, at step {last_helpful}"
    else:
        yield f"a remedy is known to help from step {last_helpful}; from step {late} on it may be too late"


def _tried(results: Remedies) -> str:
    """How many remedies were tried on the trial, and from how many steps."""
    return f"{count(results.num_tried, 'remedy', 'remedies')} from {count(len(results.fork_steps), 'step')}"


def _alone(results: Remedies) -> str:
    """What a fork without a remedy still undergoes."""
    return "being resumed" if results.is_custom else "other data"


def _costs(results: Remedies) -> Iterator[Line]:
    """What the remedies do to stable trials beside this one."""
    if not results.costs:
        unknown = "not known: no neighbouring stable cell has this seed"
        if results.cheapest is not None:
            yield Line(f"cost in a stable run: {'not measured yet' if results.neighbours else unknown}")
        return
    cheapest = None if results.cheapest is None else (results.cheapest.name, results.cheapest.fork_step)

    def order(cost: Cost) -> tuple[bool, float]:
        return (cost.name, cost.fork_step) != cheapest, math.inf if cost.final_loss is None else cost.final_loss

    for neighbour in results.neighbours:
        costs = sorted((cost for cost in results.costs if cost.neighbour == neighbour.trial_id), key=order)
        if not costs:
            continue
        yield Line(f"cost in the stable run {neighbour.cell.name} (final loss {_loss(costs[0].own_loss)}):")
        for cost in costs[:_MAX_COSTS]:
            yield Line(f"{cost.name} from step {cost.fork_step}: {_cost(cost)}", 1)
        if (more := len(costs) - _MAX_COSTS) > 0:
            yield Line(f"and {more} more, see --json", 1)


def _cost(cost: Cost) -> str:
    bad = "" if cost.outcome == "stable" else f", and it is {cost.outcome}"
    share = "" if cost.change is None else f" ({cost.change:+.1%})"
    return f"final loss {_loss(cost.final_loss)}{share}{bad}"


def _diagnosis(results: Remedies) -> str:
    """Whether the remedies confirm the diagnosis."""
    from orchestrator.causes.mechanisms.catalogue import title_of

    if results.cause is None:
        return "diagnosis: no cause, so the remedies cannot contradict it"
    title = title_of(results.cause)
    called_for = [tally for tally in results.tallies if results.is_called_for(tally)]
    if not called_for:
        return f"diagnosis: {title}; no remedy against it was tried"
    if results.agrees is None:
        return f"diagnosis: {title}; nothing helped, so the forks neither confirm nor contradict it"
    if results.agrees:
        helped = [tally.name for tally in called_for if results.helped(tally)]
        return f"diagnosis: {title}; remedies against it helped: {_some(helped)}"
    tried, others = [tally.name for tally in called_for], [t.name for t in results.tallies if results.helped(t)]
    return (
        f"the remedies do NOT support the diagnosis: against {title}, {_some(tried)} helped no more than chance, "
        f"while {_some(others)} did"
    )


def _some(names: Sequence[str]) -> str:
    return listed(list(dict.fromkeys(names)), _MAX_NAMED)


def _saved(results: Remedies, tally: Tally) -> str:
    """How many fresh replicates the remedy saved; if they are all alike, that it saved the run."""
    measured = results.measured(tally)
    if measured is None:
        return "not trained with fresh data"
    counts = "saved the one run, without a test against chance"
    if results.replicates_differ:
        interval = f"(95 % interval {measured.low:.0%} to {measured.high:.0%})"
        alone = results.fresh_alone(measured)
        beside = "" if alone is None else f", {_alone(results)} alone {alone.saved} of {alone.tried}"
        counts = f"saved {measured.saved} of {measured.tried} with fresh data {interval}{beside}"
    return f"{counts}, final loss {_loss(measured.final_loss)}"


def _step(results: Remedies, tally: Tally) -> str:
    if results.onset is None:
        return f"step {tally.fork_step}"
    before = results.onset - tally.fork_step
    where = "at the onset" if before == 0 else f"{abs(before)} {'before' if before > 0 else 'after'} the onset"
    return f"step {tally.fork_step} ({where})"


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
