"""What `sweep run` would train, without training it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.base.query import Query, Say, Subject, flat, hidden, silent
from orchestrator.base.space import Axis, format_value
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Line

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.driver.planning import Plan
    from orchestrator.sweepfile.spec import Sweep

_STRUCTURES_SHOWN = 4
_UNKNOWN_TIME = "known once the first pack has been timed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuery(Query["tuple[Sweep, Path]"]):
    """Show what `run` would train: cells, packs, existing results, estimated time.

    A speed that is unknown is measured in about two seconds, once on a machine. For example `sweep plan mine.yaml --set
    resources.pack=8`.
    """

    panel: ClassVar[str] = "train"
    subject: ClassVar[Subject] = "file"

    def ask(self, subject: tuple[Sweep, Path], say: Say = silent) -> PlanAnswer:
        """Return the plan of a sweep whose results would be in a folder."""
        from orchestrator.driver.planning import plan_of

        return PlanAnswer(plan_of(*subject, measures=True), subject[0])


@dataclass(frozen=True, slots=True)
class PlanAnswer(Answer):
    """What a sweep would train, and for how long."""

    result: Plan = flat()
    file: Sweep = hidden()

    def blocks(self) -> Iterator[Block]:
        """Yield the question, what exists, and what is left to train."""
        yield from map(Line, self._question())
        yield from map(Line, self._work())

    def _question(self) -> Iterator[str]:
        from orchestrator.base.words import count, length_text
        from orchestrator.sweepfile.custom_trainer import CustomTrainer

        sweep = self.file
        num_cells = len({tuple(trial.cell.items()) for trial in sweep.trials})
        yield f"sweep:    {sweep.name} ({sweep.objective.name}, {length_text(sweep.steps, sweep.tokens)})"
        if sweep.tokens is not None:
            steps = f"at most {sweep.steps:,}" if sweep.is_open else _extent([t.steps for t in sweep.trials])[2:]
            yield f"steps:    {steps}, the tokens over batch times context, to the nearest step"
        for axis in sweep.axes:
            shown = ", ".join(map(format_value, axis.values)) if axis.values else f"{axis.ends}"
            yield f"axis:     {axis.name} [{axis.scale}] {shown}{_relation(axis)}"
        known = () if sweep.is_open else sweep.trials  # the cells of a search are not known yet
        for name, tie in sweep.maker.ties.items():
            yield f"tie:      {name} = {tie.text}{_extent([trial.config.get(name) for trial in known])}"
        yield from self._batch()
        if sweep.is_open:
            yield f"trials:   at most {sweep.max_trials}, chosen while results come in; {num_cells} cells come first"
        else:
            yield f"trials:   {count(num_cells, 'cell')} x {count(len(sweep.seeds), 'seed')} = {len(sweep.trials)}"
        if limits := sweep.budget.model_dump(exclude_none=True):
            yield f"budget:   {', '.join(f'{key} {value}' for key, value in limits.items())}, over all runs"
        own = sweep.objective
        if isinstance(own, CustomTrainer) and sweep.stopping.slow and (score := own.section.metrics.score):
            yield f"slow:     a trial is compared by its training loss, although settings are by {score.title}"
        if isinstance(own, CustomTrainer) and len(sweep.seeds) > 1 and not own.uses("seed"):
            yield f"          no {{seed}} in the command: the {len(sweep.seeds)} seeds of a cell train the same run,"
            yield "          unless the script takes its seed from Watch; pass {seed} on, or train one seed"
        if isinstance(own, CustomTrainer):
            yield "          `sweep check FILE` runs one trial for a moment and shows what would be read"
        for name, number in sweep.idle.items():
            yield f"          {name} has no effect in {number} of the cells: they repeat runs, and are trained anyway"
        yield from self._short_merges()

    def _short_merges(self) -> Iterator[str]:
        """Where trials are too short for the states that ``merge_last`` asks for."""
        from orchestrator.base.words import count

        short: Counter[tuple[int, int, int]] = Counter()
        for trial in () if self.file.is_open else self.file.trials:
            last, every = trial.config.get("merge_last"), trial.config.get("merge_every")
            if isinstance(last, int) and isinstance(every, int) and trial.steps // every < last:
                short[last, every, trial.steps] += 1
        for (last, every, steps), number in list(short.items())[:_STRUCTURES_SHOWN]:
            have = f"{count(steps, 'step')} have {count(steps // every, 'state')}, one every {every} (merge_every)"
            yield f"merge:    merge_last = {last}, but {have}, in {count(number, 'trial')}"

    def _batch(self) -> Iterator[str]:
        """What follows from the parts of a global batch."""
        from orchestrator.driver.packing import world_sizes
        from orchestrator.sweepfile.custom_trainer import CustomTrainer, formula, sized

        sweep, own = self.file, self.file.objective
        if isinstance(own, CustomTrainer) and own.batch_workers is not None:
            given = {*sweep.fixed, *sweep.axis_names, *sweep.maker.ties}
            known = [] if sweep.is_open else [trial.config for trial in sweep.trials]
            workers = f"{own.batch_workers}"
            if sweep.resources.is_elastic:
                ends = {sweep.resources.fewest_workers, sweep.resources.most_workers}
                workers, known = sweep.resources.workers_text, [sized(config, end) for config in known for end in ends]
            name, text = formula(given, workers)
            yield f"batch:    {name} = {text}{_extent([config[name] for config in known])}"
        elif not isinstance(own, CustomTrainer) and sweep.resources.most_workers > 1:
            configs = [] if sweep.is_open else [own.config_of(trial.config) for trial in sweep.trials]
            numbers = [world_sizes(own, config, sweep.resources) for config in configs]
            sizes = [
                config.batch_size // (config.accumulate * number)  # type: ignore[attr-defined]
                for config, allowed in zip(configs, numbers, strict=True)
                for number in allowed
            ]
            parts = f"{sweep.resources.workers_text} workers"
            yield f"batch:    batch_size = micro_batch x accumulate x {parts}; micro_batch{_extent(sizes)}"

    def _work(self) -> Iterator[str]:
        from orchestrator.base.words import count, plural
        from orchestrator.driver.planning import library_optimizers

        plan, sweep = self.result, self.file
        there = ", ".join(f"{num} {status}" for status, num in plan.existing.items()) or "nothing yet"
        yield f"exists:   {there}"
        if plan.num_removed:
            trials, are = count(plan.num_removed, "trial"), plural(plan.num_removed, "is", "are")
            yield f"removed:  {trials} in the ledger {are} no longer in the sweep, and left out of the map"
        sizes = sorted(Counter(plan.packs).items(), reverse=True)
        shown = f" ({', '.join(f'{num} of {size}' for size, num in sizes)} members)" if sizes else ""
        yield f"to train: {count(plan.to_train, 'trial')} in {count(len(plan.packs), 'pack')}{shown}"
        unknown = "measured when the first pack starts, in a second or two"
        reasons = [choice.reason if choice else unknown for choice in plan.choices]
        ways = Counter(reasons)  # in the order of structures
        for way, number in list(ways.items())[:_STRUCTURES_SHOWN]:
            first = plan.structures[reasons.index(way)] if len(ways) > 1 else ""
            of = f"{first}: " if first and number == 1 else ""
            yield f"way:      {of}{way}" + (f" ({number} structures)" if number > 1 else "")
        if more := sum(list(ways.values())[_STRUCTURES_SHOWN:]):
            yield f"          ... and {more} more structures"
        if plan.note:
            yield f"          {plan.note}"
        for name in library_optimizers(sweep, plan.missing):
            yield f"          {name} comes from a library, and trains one member at a time"
        gpus = f" and {sweep.resources.gpus:g} GPU" if sweep.resources.gpus else ""
        resources = sweep.resources
        processes = f" for each of {resources.workers_text} processes" if resources.most_workers > 1 else " each"
        yield f"workers:  {count(plan.workers, 'pack')} at a time, {sweep.resources.cpus} CPU{gpus}{processes}"
        yield f"time:     {self._time()}"

    def _time(self) -> str:
        from orchestrator.base.words import format_seconds
        from orchestrator.sweepfile.custom_trainer import CustomTrainer

        plan, speed = self.result, self.result.member_steps_per_second
        is_custom = isinstance(self.file.objective, CustomTrainer)
        if not plan.to_train:
            return "none, there is nothing to train"
        if plan.seconds is None:
            return "`sweep check FILE` estimates it from one trial" if is_custom else _UNKNOWN_TIME
        most = "at most " if plan.is_bound else ""
        about = f"{most}about {format_seconds(plan.seconds)} once workers have started, without early ends"
        off = "" if plan.seconds_within is None else f", within a factor of {plan.seconds_within:.1f}"
        if speed is None:
            return f"{about}{off}, as `sweep check` measured one trial"
        how = "as in the last run" if plan.has_run else "measured with one alone"
        return f"{about}{off} ({speed:,.0f} member-steps/s a worker, {how})"


def _relation(axis: Axis) -> str:
    """How an axis depends on others, in words."""
    if axis.zipped:
        return f", together with {', '.join(name for name in axis.zipped if name != axis.name)}"
    conditions = [f"{name} is {' or '.join(map(format_value, values))}" for name, values in axis.when]
    return f", where {' and '.join(conditions)}" if conditions else ""


def _extent(values: Sequence[Any]) -> str:
    """The lowest and the highest of ``values``; empty without a number."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return ""
    low, high = format_value(min(numbers)), format_value(max(numbers))
    return f": {low}" if low == high else f": {low} .. {high}"
