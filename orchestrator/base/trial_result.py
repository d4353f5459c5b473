"""The result of a trial: as a worker reports it, and as the ledger records it.

Each field states its meaning, its unit and where it is shown. The ledger's table of trials, `trials.csv`, metrics of
maps, JSON, the tables of docs/maps.md and what trackers get follow from the fields. A new number of a trial is one
field of ``TrainingResult``, ``since`` the next schema of the ledger, and its computation in
`orchestrator.detection.outcomes.member_result`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from types import NoneType
from typing import Any, get_args, get_type_hints

from objectives.entries import change_in_words
from objectives.rule_words import firing_in_words
from orchestrator.base.space import Cell, trial_name
from orchestrator.base.vocabulary import (
    COLLAPSED,
    CUSTOM_KINDS,
    DEGRADED,
    LEARNED_ENOUGH,
    OUTCOMES,
    PRUNED,
    STATUSES,
    TOO_SLOW,
    UNKNOWN,
)

_KEY = "column"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its name on disk, its unit ("" for text and plain numbers) and its meaning.

    ``title`` names the median over a cell's seeds, for columns that a map can show. ``is_tracked`` marks what a trial's
    run in a tracker has: numbers as metrics, texts as tags.

    The rest describes fields of a ``TrialResult``. ``in_tables`` says whether `trials.csv` and the like have it, and
    ``after`` which column it follows there if not the field before it. ``is_stored`` says whether the ledger has it,
    ``since`` which schema, and ``values`` which texts it accepts. ``of_losses`` marks what follows from losses and
    gradient norms alone, so that a replay of a log knows it.
    """

    name: str
    unit: str
    meaning: str
    title: str = ""
    is_tracked: bool = False
    type: Any = float
    is_optional: bool = True
    default: Any = None
    in_tables: bool = True
    after: str = ""
    is_stored: bool = True
    since: int = 1
    values: tuple[str, ...] = ()
    of_losses: bool = False

    @property
    def is_metric(self) -> bool:
        """Whether a trial's run in a tracker has it as a metric."""
        return self.is_tracked and self.type is not str


def column(
    meaning: str, unit: str = "", *, default: Any = None, repr: bool = True, compare: bool = True, **options: Any
) -> Any:
    """Return a dataclass field with a ``Column``, whose name and type are the field's; ``options`` are its others."""
    metadata = {_KEY: Column("", unit, meaning, default=default, **options)}
    return field(default=default, repr=repr, compare=compare, metadata=metadata)


def hidden(meaning: str, **options: Any) -> Any:
    """Return a ``column`` that tables leave out."""
    return column(meaning, in_tables=False, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """Numbers of one training, which a worker measures. Losses are finite or None."""

    # fmt: off
    onset_step: int | None = column(
        "where it first left its trend (spiked), where the divergence began (diverged), the first step (stalled)",
        "step", title="median onset step", is_tracked=True, of_losses=True
    )
    num_spikes: int | None = column(
        "times that the loss left its trend, whether or not it came back",
        title="median number of spikes", is_tracked=True, of_losses=True
    )
    steps_done: int | None = column(
        "steps trained; fewer than steps if the trial was stopped early",
        "steps", title="median steps trained", is_tracked=True
    )
    initial_loss: float | None = column("first finite training loss", "loss", is_tracked=True, of_losses=True)
    best_loss: float | None = column(
        "lowest median of ten consecutive training losses, without losses off the trend",
        "loss", title="median best loss", is_tracked=True, of_losses=True
    )
    final_loss: float | None = column(
        "median of the last ten training losses; empty if loss or gradient became non-finite",
        "loss", title="median final loss", is_tracked=True, of_losses=True
    )
    peak_loss: float | None = column(
        "highest training loss off the trend; empty if the loss never left its trend",
        "loss", title="median peak of the spikes", of_losses=True
    )
    peak_factor: float | None = column(
        "tallest excursion off the trend, as a factor of the level before it",
        title="median height of the tallest spike, as a factor", is_tracked=True, of_losses=True
    )
    off_share: float | None = column(
        "share of the steps off the trend",
        "share", title="median share of steps off the trend", is_tracked=True, of_losses=True
    )
    risen_share: float | None = column(
        "share of the learned drop in loss that a slow rise gave up; empty below a quarter, and after a recovery",
        "share", is_tracked=True, of_losses=True
    )
    norm_rises: tuple[int, ...] = column(
        "where the median of 10 gradient norms had risen to 1.5 times the median of 128; a note, which changes no "
        "outcome",
        "steps", default=(), of_losses=True
    )
    fired: tuple[Mapping[str, Any], ...] = column(
        "what the rules of its control did, and why; empty without control", default=(), since=2
    )
    validation_loss: float | None = column(
        "mean loss on held-out data after the last step; empty without held-out data",
        "loss", title="median validation loss", is_tracked=True
    )
    best_validation_loss: float | None = column(
        "lowest validation loss, during training and after the last step",
        "loss", title="median best validation loss", is_tracked=True
    )
    best_validation_step: int | None = column(
        "the update after which it had its lowest validation loss",
        "step", title="median step of the best validation loss", is_tracked=True
    )
    merged_loss: float | None = column(
        "validation loss of the mean of the last merge_last states of its weights; empty without merge_last",
        "loss", title="median validation loss of merged weights", is_tracked=True, since=6
    )
    ema_loss: float | None = column(
        "validation loss of the exponential average of its weights; empty without ema",
        "loss", title="median validation loss of averaged weights", is_tracked=True, since=6
    )
    overfit_step: int | None = column(
        "step since which its validation loss rose while its training loss stayed on its trend; a note, which changes "
        "no outcome",
        "step", is_tracked=True
    )
    collapsed_step: int | None = column(
        "step since which its router has collapsed, to its end: the Gini coefficient of the loads is above 0.5 or an "
        "expert is dead; empty if not throughout the last tenth of its readings. A mark, which changes no outcome",
        "step", title="median step of the collapse", is_tracked=True, since=5
    )
    score: float | None = column(
        "the metric that is compared in place of a loss, if the sweep has one: median of the last tenth of its values",
        title="median score", is_tracked=True, since=3
    )
    num_nonfinite: int | None = column(
        "steps whose loss or gradient norm was NaN or infinite", is_tracked=True, of_losses=True, since=4
    )
    nonfinite_share: float | None = column(
        "share of such steps among its last 100", "share",
        title="median share of the last 100 steps that were not finite", is_tracked=True, of_losses=True, since=4
    )
    num_skipped: int | None = column(
        "steps that its loss scaler skipped; empty without one",
        is_tracked=True, since=4
    )
    data_share: float | None = column(
        "share of the steps' time spent waiting for data; empty if its trainer does not report data_time and step_time",
        "share", is_tracked=True, since=4, compare=False
    )
    peak_memory: float | None = column(
        "largest resident memory of the process that trained it, which a pack shares",
        "MiB", title="median peak of the memory", is_tracked=True, since=4, compare=False
    )
    peak_device_memory: float | None = column(
        "most memory that torch allocated on a GPU, which a pack shares; empty without a GPU",
        "MiB", is_tracked=True, since=4, compare=False
    )
    joules: float | None = column(
        "energy of its training, measured by the counters that could be read; empty if none could",
        "J", title="median energy", is_tracked=True, since=4, compare=False
    )
    reason: str | None = column("why it has this outcome, or what went wrong", is_tracked=True, of_losses=True)
    verdict_step: int | None = hidden("step of the verdict that it is lost, even if it trained on")
    slow_step: int | None = hidden("step where it was found slow, and pruned unless audited")
    plateau_step: int | None = hidden("step where its validation loss had stopped improving")
    is_audited: bool = hidden("whether it trains on after any of these", default=False)
    episodes: tuple[tuple[int, int | None], ...] = hidden(
        "onset and recovery of each time off its trend, recovery null while it lasted", default=()
    )
    curve_digest: str | None = hidden("hash of steps and losses, if a custom trainer may repeat a run")
    initial_score: float | None = hidden("the score before training; empty if it is not known", since=3)
    rung_losses: tuple[float, ...] = hidden("loss at each rung that it reached, if slow trials are pruned", default=())
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult(TrainingResult):
    """One member's result, as its worker reports it."""

    trial_id: str
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult(TrainingResult):
    """The ledger's record of one trial; the stored fields are the columns of its table.

    ``cell`` maps axes to values in the order of the axes, ``config`` is the full resolved configuration. ``position``
    is None for a trial that is no longer in the sweep, ``outcome`` is None without a result.
    """

    # fmt: off
    trial_id: str = column("hash of the full resolved configuration", default=MISSING)
    seed: int = column("seed of the initial weights and of the order of the data", default=MISSING)
    status: str = column(
        f"what the infrastructure did: {', '.join(STATUSES[:-1])} or {STATUSES[-1]}",
        is_tracked=True, values=STATUSES, default=MISSING
    )
    outcome: str | None = column(
        f"what the training did: {', '.join((*OUTCOMES, UNKNOWN))} or {PRUNED}; empty without a result",
        is_tracked=True, values=(*OUTCOMES, UNKNOWN, PRUNED)
    )
    steps: int = column("length of the training as configured", "steps", after="num_spikes", default=MISSING)
    num_attempts: int = column("number of times that its training was started", after="reason", default=0)
    cell: Cell = hidden("axis -> value, in the order of the axes", default=MISSING)  # noqa: RUF009
    config: Mapping[str, Any] = hidden("the full resolved configuration", default=MISSING, repr=False)
    objective: str = hidden("name of the objective", default=MISSING)
    position: int | None = hidden("order in the sweep; NULL once the sweep no longer has the trial")
    error: str | None = hidden("tail of the traceback of an errored trial")
    pack_id: str | None = hidden("the last attempt")
    started_at: float | None = hidden("seconds since 1970, of the last attempt")
    finished_at: float | None = hidden("seconds since 1970")
    # Computed for all trials of a sweep together, None in a row that is read alone.
    learned_share: float | None = column(
        "what it learned, relative to the sweep's best trial: (start - final loss) / (start - best final loss); the "
        "start is the initial loss, at most the lower quartile of the sweep's; of the score if that has a start",
        "share", title="median share learned of what the best trial did", is_tracked=True, is_stored=False,
        after="fired"
    )
    lr_health: str | None = column(
        "whether its learning rate is right, by its neighbours along the learning rate: too slow (raise it), "
        "oscillating (lower it), right or unknown; empty without a learning-rate axis, and if the outcome says more",
        is_stored=False, after="learned_share"
    )
    lr_regret: float | None = column(
        "final loss (or score) minus the best one at any learning rate with the same seed and settings, unsigned",
        "loss", title="median loss left on the table by the learning rate", is_tracked=True, is_stored=False,
        after="lr_health"
    )
    # fmt: on

    @property
    def name(self) -> str:
        """The cell and the seed in words: ``lr=0.1 seed=0``."""
        return trial_name(self.cell, self.seed)

    @property
    def firings(self) -> list[str]:
        """What the rules of its control did, in words."""
        return list(map(firing_in_words, self.fired))

    @property
    def changes_by_rules(self) -> list[tuple[int, str]]:
        """The step and the words of each change that a rule of its control made."""
        return [(firing["did"]["at"], change_in_words(firing["did"])) for firing in self.fired]

    @property
    def is_judged(self) -> bool:
        """Whether its outcome is the outcome of a whole training, which a pruned trial does not have."""
        return self.outcome not in (None, PRUNED)

    @property
    def is_degraded(self) -> bool:
        """Whether it learned less than half of what the best trial did: stable, or stalled at too low an lr."""
        if self.outcome == "stalled":
            return self.lr_health == TOO_SLOW
        return self.outcome == "stable" and self.learned_share is not None and self.learned_share < LEARNED_ENOUGH

    @property
    def is_collapsed(self) -> bool:
        """Whether its loss stayed on its trend while its router collapsed."""
        return self.ending == COLLAPSED

    @property
    def ending(self) -> str | None:
        """See ``ending``; None without a result."""
        return None if self.outcome is None else ending(self.outcome, self.collapsed_step)

    @property
    def ending_step(self) -> int | None:
        """The onset of its ``ending``."""
        return self.collapsed_step if self.is_collapsed else self.onset_step

    @property
    def saved_steps(self) -> int | None:
        """Configured steps that early stopping saved; None without a result.

        A custom trainer that was not stopped may print its last loss before its last step, or count something else.
        """
        if self.steps_done is None:
            return None
        was_ended = self.verdict_step is not None or self.plateau_step is not None or self.outcome == PRUNED
        ran_on = self.objective in CUSTOM_KINDS and not was_ended
        return 0 if ran_on else max(0, self.steps - self.steps_done)

    @property
    def label(self) -> str:
        """The ending, ``degraded`` for a calm trial that only is that, or the status of a trial without an outcome."""
        return DEGRADED if self.is_degraded and not self.is_collapsed else self.ending or self.status


def ending(outcome: str, collapsed_step: int | None) -> str:
    """Return the outcome, or ``collapsed`` in place of stable if the router has collapsed."""
    return COLLAPSED if outcome == "stable" and collapsed_step is not None else outcome


def _columns() -> tuple[Column, ...]:
    """Return the columns of all fields, the identity of a trial first, each ``after`` its predecessor."""
    hints, measured = get_type_hints(TrialResult), {item.name for item in fields(TrainingResult)}
    columns: list[Column] = []
    for item in sorted(fields(TrialResult), key=lambda item: item.name in measured):
        kinds = [kind for kind in get_args(hints[item.name]) if kind is not NoneType]
        is_optional = NoneType in get_args(hints[item.name])
        kind = kinds[0] if is_optional else hints[item.name]
        columns.append(replace(item.metadata[_KEY], name=item.name, type=kind, is_optional=is_optional))
    for moved in [column for column in columns if column.after]:
        columns.remove(moved)
        columns.insert(1 + [column.name for column in columns].index(moved.after), moved)
    return tuple(columns)


# All fields of a ``TrialResult`` in the order of tables.
RESULT_COLUMNS = _columns()
# What a worker measures and reports.
MEASURED = ("outcome", *(item.name for item in fields(TrainingResult)))
