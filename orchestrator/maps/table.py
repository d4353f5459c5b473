"""The trials of a sweep over its axes, with what they say about each other: read once, for all answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from objectives.models.facts.feed import domain_readings
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.measure import FINAL_LOSS, Measure, column_measure, score_of
from orchestrator.base.space import Axis, Cell, format_value, to_hashable
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import STARTED_LATER, cell_state
from orchestrator.base.words import count, plural
from orchestrator.detection.relative import (
    step_noise,
)
from orchestrator.ledger.reader import LedgerReader, is_grid
from orchestrator.ledger.schema import damage_errors
from orchestrator.maps.axes import axis_values, value_label, value_meant
from orchestrator.maps.relative_results import with_relative_results
from orchestrator.sweepfile.settings import settings_of

# The noise of the loss from step to step, by the id of a trial and its attempt.
KnownNoise = dict[tuple[str, str | None], float]
_STARTED_LATER = re.compile(rf"from step ([\d,]+) on, {STARTED_LATER}")
_OWN_END, _WHOLE = ("command", "python"), 0.9  # objectives that end by themselves; the share of a whole run
_MOST_SLICES = 12  # values of an axis that are compared, each of which has a map of its own


@dataclass(frozen=True)
class SweepTable:
    """The trials of a sweep in its order, each with its learned share and the label of its learning rate.

    ``axes`` have the values of all trials. ``fixed`` are the values of axes to which ``where`` has limited the trials.
    ``along`` is the axis whose one value this is a ``slice`` of. The ``ledger`` is open for curves.
    """

    ledger: LedgerReader
    facts: Mapping[str, str]
    axes: tuple[Axis, ...]
    trials: tuple[TrialResult, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    along: str | None = None

    @property
    def name(self) -> str:
        """The name of the sweep."""
        return self.facts.get("name", "")

    @property
    def is_grid(self) -> bool:
        """Whether the cells make a grid; otherwise a sample or a search has scattered them."""
        return is_grid(self.facts)

    @property
    def ties(self) -> dict[str, str]:
        """The tied fields, with their expressions."""
        return ties_of(self.facts)

    @property
    def edge_axis(self) -> str | None:
        """The axis along which a search looked for the edge; None without one, and where the axis has one value."""
        name: str | None = json.loads(self.facts.get("edge_axis", "null"))
        return name if name in {axis.name for axis in self.axes} - self.fixed.keys() else None

    @property
    def num_initial(self) -> int | None:
        """Number of first cells that a search for an edge spread evenly, whatever their results; None without one."""
        num: int | None = json.loads(self.facts.get("num_spread", "null"))
        return num

    @cached_property
    def runs(self) -> tuple[TrialResult, ...]:
        """The trials, each run once: a seed that repeats the run of another is left out."""
        return tuple(distinct_runs(self.trials))

    @cached_property
    def measure(self) -> Measure:
        """What settings are compared by, see ``usual_measure``."""
        return usual_measure(self.trials, self.facts)

    def column_measure(self, metric: str) -> Measure:
        """The metric of a map with its direction; the sweep's score also by its own name."""
        return column_measure(metric, self.facts)

    @cached_property
    def printed_metrics(self) -> tuple[str, ...]:
        """The metrics that a custom trainer prints."""
        return printed_metrics(self.trials)

    def by_cell(self) -> dict[Cell, list[TrialResult]]:
        """The ``runs`` of each cell, in the order of the sweep."""
        return by_cell(self.runs)

    def states(self) -> dict[Cell, str]:
        """The state of each cell."""
        return {cell: cell_state([run.label for run in runs]) for cell, runs in self.by_cell().items()}

    def axis(self, name: str, option: str) -> Axis:
        """The axis ``name``. Raises InputError with the name of ``option`` if the sweep has no such axis."""
        return axis_named(name, self.axes, option)

    def where(self, option: str, conditions: Mapping[str, Any]) -> SweepTable:
        """The table of the trials whose cells have the values of ``conditions``, as read by ``value_meant``.

        The axes keep all their values. Raises InputError with the name of ``option`` for an unknown axis or value, and
        if no cell matches.
        """
        values = {name: value_meant(option, self.axis(name, option), wanted) for name, wanted in conditions.items()}
        kept = [trial for trial in self.trials if all(trial.cell[name] == value for name, value in values.items())]
        if conditions and not kept:
            written = ",".join(f"{name}={wanted}" for name, wanted in conditions.items())
            raise InputError(Problem(option, written, "the sweep has no such cell", "see `sweep status NAME`"))
        return replace(self, trials=tuple(kept), fixed={**self.fixed, **values})

    def fixed_notes(self) -> list[str]:
        """The values of ``fixed`` in words."""
        by_name = {axis.name: axis for axis in self.axes}
        return [f"{name} = {value_label(by_name[name], value)}" for name, value in self.fixed.items()]

    def slice(self, axis: Axis, value: Any) -> SweepTable:
        """One ``value`` of ``axis`` as a sweep over the other axes; axes that advance with it are dropped, too.

        What trials say about each other remains as it is in the whole sweep.
        """
        gone = {axis.name, *axis.zipped}
        here = [trial for trial in self.trials if trial.cell.get(axis.name) == value]
        trials = tuple(replace(trial, cell=trial.cell.without(gone)) for trial in here)
        values = axis_values([trial.cell for trial in trials])
        axes = tuple(
            replace(
                other, values=values.get(other.name, ()), when=tuple((n, v) for n, v in other.when if n not in gone)
            )
            for other in self.axes
            if other.name not in gone
        )
        facts = {**self.facts, "name": f"{axis.name}={format_value(value)}"}
        if self.num_initial is not None:
            first = list(dict.fromkeys(trial.cell for trial in self.trials))[: self.num_initial]
            facts["num_spread"] = str(sum(cell.get(axis.name) == value for cell in first))
        return replace(self, facts=facts, axes=axes, trials=trials, along=axis.name)


def read_table(ledger: LedgerReader, known: KnownNoise | None = None) -> SweepTable:
    """Read the table of a sweep. Curves whose noise is ``known`` are not read again, and new noise is added there.

    Raises StorageError for a damaged ledger.
    """
    noise = {} if known is None else known

    def noise_of(trial: TrialResult) -> float:
        import numpy as np

        attempt = (trial.trial_id, trial.pack_id)
        if attempt not in noise:
            noise[attempt] = step_noise(ledger.trace(trial.trial_id, ("loss",)).get("loss", np.empty(0)))
        return noise[attempt]

    with damage_errors(ledger.path):
        facts = ledger.facts()
        trials = with_relative_results(ledger.trials(), facts, ledger.trace, noise_of)
        return SweepTable(ledger, facts, axes_of(facts, trials), tuple(trials))


def axes_of(facts: Mapping[str, str], trials: Sequence[TrialResult]) -> tuple[Axis, ...]:
    """The axes of a sweep, with the values of its ``trials``."""
    values = axis_values([trial.cell for trial in trials])
    return tuple(
        Axis(
            fact["name"],
            fact["scale"],
            values.get(fact["name"], ()),
            tuple(fact["ends"]) if fact["ends"] else None,
            zipped=tuple(fact.get("zipped", ())),
            when=tuple((name, tuple(map(to_hashable, given))) for name, given in fact.get("when", {}).items()),
            refined=tuple(fact.get("refined", ())),
        )
        for fact in json.loads(facts.get("axes", "[]"))
    )


def axis_named(name: str, axes: Iterable[Axis], option: str) -> Axis:
    """The axis ``name`` among ``axes``. Raises InputError with the name of ``option`` if there is no such axis."""
    by_name = {axis.name: axis for axis in axes}
    if name not in by_name:
        raise InputError(Problem(option, "", f"{name!r} is not an axis", f"axes: {', '.join(by_name) or 'none'}"))
    return by_name[name]


def by_cell(trials: Iterable[TrialResult]) -> dict[Cell, list[TrialResult]]:
    """Trials by their cells, in the order of the first trial of each."""
    cells: dict[Cell, list[TrialResult]] = {}
    for trial in trials:
        cells.setdefault(trial.cell, []).append(trial)
    return cells


def repeated_runs(trials: Sequence[TrialResult]) -> set[str]:
    """Ids of trials whose steps and losses equal those of an earlier seed of their cell to the last digit.

    A custom trainer that ignores its seed trains one run again and again.
    """
    first: dict[tuple[Cell, str], str] = {}
    for trial in trials:
        if trial.curve_digest is not None:
            first.setdefault((trial.cell, trial.curve_digest), trial.trial_id)
    return {trial.trial_id for trial in trials if trial.curve_digest is not None} - set(first.values())


def distinct_runs(trials: Sequence[TrialResult]) -> list[TrialResult]:
    """The trials without ``repeated_runs``."""
    repeats = repeated_runs(trials)
    return [trial for trial in trials if trial.trial_id not in repeats]


def repeats_text(num: int) -> str:
    """The note on ``num`` seeds that repeat the run of another."""
    seeds = count(num, "seed repeats", "seeds repeat")
    return f"{seeds} another's run to the last digit and {plural(num, 'is', 'are')} not counted"


def length_notes(trials: Sequence[TrialResult]) -> Iterator[str]:
    """Yield notes on trials that began at a later step than others, or ended at an earlier one, of their own accord."""
    finished = [trial.reason or "" for trial in trials if trial.outcome is not None]
    later = [began[1] for reason in finished if (began := _STARTED_LATER.search(reason)) is not None]
    if later and (len(later) < len(finished) or len(set(later)) > 1):
        num, remedy = count(len(later), "trial"), "{folder} in its path separates them"
        yield f"{num} began at a later step than others: do they share a checkpoint? {remedy}"
    calm = [trial for trial in trials if trial.outcome in ("stable", "spiked") and trial.objective in _OWN_END]
    ran = [(trial.steps_done or 0) / trial.steps for trial in calm if trial.steps and not trial.saved_steps]
    short = [share for share in ran if share < _WHOLE]
    if short and len(short) < len(ran):
        num = count(len(short), "trial")
        yield f"{num} ended after {min(short):.0%} of the steps, unlike others: diverged? diverged_if can say so"


def printed_metrics(trials: Iterable[TrialResult]) -> tuple[str, ...]:
    """The metrics that trials report for themselves, in their order, whose last reading counts.

    Those that a custom trainer's section names under ``metrics: also``, and losses on each of several texts.
    """
    configs = [trial.config for trial in trials]
    also = (name for config in configs for name in (*_also(config), *domain_readings(config)))
    return tuple(dict.fromkeys(also))


def _also(config: Mapping[str, Any]) -> Iterable[str]:
    return tuple(config.get("metrics", {}).get("also", ()))


def usual_measure(trials: Iterable[TrialResult], facts: Mapping[str, str]) -> Measure:
    """What settings are compared by: the sweep's score, or the validation loss if every trial that ran on has one."""
    if (score := score_of(facts)) is not None:
        return score
    ran_to_their_end = [trial for trial in trials if trial.outcome in ("stable", "spiked")]
    has_validation = bool(ran_to_their_end) and all(trial.validation_loss is not None for trial in ran_to_their_end)
    return Measure("validation_loss", "validation_loss") if has_validation else FINAL_LOSS


def ties_of(facts: Mapping[str, str]) -> dict[str, str]:
    """The tied fields of a sweep with these ``facts``, with their expressions."""
    return dict(json.loads(facts.get("ties", "{}")))


def tied_settings(trial: TrialResult, ties: Mapping[str, str]) -> dict[str, Any]:
    """The values of tied fields that a trial trained with.

    A tied axis keeps its name for the value in the cell, and this value is called ``effective_NAME``.
    """
    settings = settings_of(trial.objective, trial.config)
    return {f"effective_{name}" if name in trial.cell else name: settings[name] for name in ties if name in settings}


def effective_values(trial: TrialResult) -> dict[str, Any]:
    """The values of tied axes that a trial trained with, if they differ from the values in its cell."""
    trained = {name: to_hashable(trial.config.get(name, value)) for name, value in trial.cell.items()}
    return {f"effective_{name}": value for name, value in trained.items() if value != to_hashable(trial.cell[name])}


def base_notes(axes: Iterable[str], ties: Mapping[str, str]) -> list[str]:
    """Notes on what the values of tied ``axes`` mean."""
    return [f"{name} is the base value of the tie {name} = {ties[name]}" for name in axes if name in ties]


def slices(table: SweepTable, name: str, base: Any) -> list[SweepTable]:
    """The values of the axis ``name`` as sweeps of their own, ``base`` first; without it in the order of the axis.

    Raises InputError for an unknown axis or value, a range over which cells are scattered, and an axis with too few or
    too many values to compare.
    """
    axis = table.axis(name, "--by")

    def problem(message: str, remedy: str) -> InputError:
        return InputError(Problem(f"--by {name}", "", message, remedy))

    if not table.is_grid and axis.ends is not None:
        raise problem("its cells are scattered over a range, and no two share a value", "choose an axis with values")
    if not {other.name for other in table.axes} - {name, *axis.zipped}:
        raise problem("there is no other axis to draw a map over", "`sweep boundary` reads the one axis")
    if not 2 <= len(axis.values) <= _MOST_SLICES:
        raise problem(f"it has {count(len(axis.values), 'value')}", f"choose an axis with 2 to {_MOST_SLICES}")
    values = list(axis.values)
    if base is not None:
        first = value_meant("--base", axis, to_hashable(base))
        values = [first, *(value for value in values if value is not first)]
    return [table.slice(axis, value) for value in values]
