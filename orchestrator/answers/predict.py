"""The edge and the best rate at a size that was not trained."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import (
    allow_import_option,
    along_option,
    degraded_option,
    executor_option,
    where_option,
)
from orchestrator.base.errors import EXIT_OK, InputError, Problem
from orchestrator.base.files import PREDICTION
from orchestrator.base.query import Query, Say, conditions, flat, hidden, named, option, silent
from orchestrator.base.space import format_value, is_number, to_hashable
from orchestrator.base.words import count, format_seconds, joined
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Caution, Figure, File, Line, picture_of

if TYPE_CHECKING:
    from orchestrator.maps.edges import Interval
    from orchestrator.maps.prediction import Exponent, Prediction
    from orchestrator.maps.table import SweepTable

STEPS = "steps"
_WIDE = 2.5  # factor from the low to the high end of an interval that more runs would narrow
_STEEPEST = 10  # exponent that may be assumed
_CONFIRM = 4  # runs at the target that are advised
_NOT_KEPT = ("confirm", "executor", "allow_import")  # of a question that is asked again
# Axes that are sizes without being asked for, and what a page may cost.
_SIZES = ("width", "depth", "layers", "parameters", "tokens", "batch", "batch_size", "context")
_MOST_ON_PAGE = 500  # trials


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictQuery(Query["SweepTable"]):
    """Predict the edge and the best rate at a larger size from smaller ones, before it is paid for.

    It tests itself on the largest trained size first. For example `sweep predict proxies --at width=2048 --at
    depth=16`, or with your own rate `sweep predict proxies --at width=2048 --lr 3e-4`. With `--confirm 4` it trains a
    short run and four whole ones at the target, and says whether the prediction holds there. Several sweeps of one
    training are one ladder: `sweep predict width16 width32 width64 --at width=256`.
    """

    panel: ClassVar[str] = "choose"
    section: ClassVar[str] = "A larger model"

    beside: tuple[str, ...] = option(
        (), "further sweeps, which differ in sizes alone", metavar="[NAME...]", is_argument=True
    )
    at: tuple[str, ...] = option(
        (), "a size of the target: width=2048, or steps=9000; repeatable", metavar="AXIS=VALUE"
    )
    along: str | None = along_option("the axis of the rate; lr, or else the first, by default")
    where: Mapping[str, Any] = where_option()
    lr: float | None = option(None, "your own rate, whose P(stable) at the target is wanted", metavar="RATE")
    assume: float | None = option(
        None, "the exponent of axes with fewer than 3 sizes or a span below 4, e.g. -1", metavar="EXPONENT"
    )
    far: bool = option(False, "predict a target that is more than 4 times beyond the trained sizes")
    anyway: bool = option(False, "also say numbers that failed the backtest")
    degraded: bool = degraded_option()
    confirm: int | None = option(
        None, "train a short run and this many whole ones at the target", metavar="N", minimum=1, maximum=100
    )
    executor: str = executor_option()
    allow_import: bool = allow_import_option()

    def ask(self, subject: SweepTable, say: Say = silent) -> PredictAnswer:
        """Return the prediction at the target, after runs there if it has some."""
        from orchestrator.answers._confirming import Confirming
        from orchestrator.ledger.facts import imported_of
        from orchestrator.maps.edges import StableRule
        from orchestrator.maps.prediction import predict
        from orchestrator.maps.step_time import step_seconds

        table, names = self._pooled(subject)
        at = _target(self.at, table)
        if self.lr is not None and not (0 < self.lr < math.inf):
            raise InputError(Problem("--lr", str(self.lr), "is not a rate", "give a positive number, e.g. 3e-4"))
        if self.assume is not None and not abs(self.assume) <= _STEEPEST:
            remedy = f"give a number of at most {_STEEPEST}, e.g. -1"
            raise InputError(Problem("--assume", str(self.assume), "is not an exponent", remedy))
        table = table.where("--where", self.where)
        rule = StableRule(self.degraded)
        found = predict(table, at, self.along, self.lr, self.assume, self.far, rule)
        if self.assume is not None and not any(each.is_assumed for each in found.exponents.values()):
            message = "is not needed: the sizes of each axis show its exponent, or hold the target between them"
            raise InputError(Problem("--assume", f"{self.assume:g}", message, "leave it out"))
        confirming = Confirming(table, rule, self.executor, self.allow_import)
        code, trained = EXIT_OK, tuple[Path, ...]()
        if self.confirm is None:
            found = confirming.updated(found)
        else:
            found, code = confirming.train(found, self.confirm, say)
            trained = confirming.folders(found)
        found = found if self.anyway else found.withheld()
        can_train = imported_of(subject.facts) is None
        asked = json.dumps({name: getattr(self, name) for name in self.options() if name not in _NOT_KEPT})
        folder, seconds = subject.ledger.path.parent, step_seconds(table, found.ladder, found.target)
        return PredictAnswer(found, names, folder, self._options(), asked, can_train, trained, seconds, code)

    @classmethod
    def on_page(cls, subject: SweepTable) -> PredictQuery | None:
        """Return what was asked last, or else twice the largest size of a ladder that is trained."""
        from pydantic import TypeAdapter

        from orchestrator.maps.prediction import FEWEST_SIZES

        with contextlib.suppress(OSError, ValueError):
            return TypeAdapter(cls).validate_json((subject.ledger.path.parent / PREDICTION).read_bytes())
        numbers = {axis.name: list(filter(is_number, axis.values)) for axis in subject.axes if axis.name in _SIZES}
        at = tuple(f"{name}={2 * max(values)}" for name, values in numbers.items() if len(values) >= FEWEST_SIZES)
        is_over = all(trial.outcome is not None or trial.status == "errored" for trial in subject.trials)
        return cls(at=at) if at and is_over and len(subject.trials) <= _MOST_ON_PAGE else None

    def _pooled(self, subject: SweepTable) -> tuple[SweepTable, tuple[str, ...]]:
        """The sweep with those beside it, names in its folder of results or folders, and their names."""
        if not self.beside:
            return subject, ()
        from orchestrator.base.files import LEDGER, sweep_folder
        from orchestrator.ledger.reader import LedgerReader
        from orchestrator.maps.pooling import pooled_table
        from orchestrator.maps.table import read_table

        results = subject.ledger.path.parent.parent
        with contextlib.ExitStack() as stack:
            ledgers = [stack.enter_context(LedgerReader(sweep_folder(name, results) / LEDGER)) for name in self.beside]
            others = list(map(read_table, ledgers))
        return pooled_table([subject, *others]), tuple(table.name for table in others)

    def _options(self) -> str:
        """The options that asking again with another rate needs."""
        words = [
            *self.beside,
            *(f"--at={text}" for text in self.at),
            *(f"--where={axis}={format_value(value)}" for axis, value in self.where.items()),
            *([f"--along={self.along}"] if self.along else []),
            *([f"--assume={self.assume:g}"] if self.assume is not None else []),
            *(["--far"] if self.far else []),
            *(["--anyway"] if self.anyway else []),
            *(["--degraded"] if self.degraded else []),
        ]
        return shlex.join(words)


def _target(texts: tuple[str, ...], table: SweepTable) -> dict[str, float]:
    """The sizes of the target. Raises InputError."""
    from orchestrator.maps.law import LARGEST

    names = [axis.name for axis in table.axes if all(is_number(value) and value > 0 for value in axis.values)]
    numeric = f"numeric axes: {', '.join(names) or 'none'}"
    if not texts:
        raise InputError(Problem("--at", "", "no target", f"name its sizes, e.g. --at width=2048; {numeric}"))
    at: dict[str, float] = {}
    for name, text in conditions(texts, "--at").items():
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 1 / LARGEST <= value <= LARGEST:
            remedy = f"give a positive number, of 1e15 at most; {numeric}"
            raise InputError(Problem("--at", f"{name}={text}", "is not a size", remedy))
        if name != STEPS:
            table.axis(name, "--at")
        at[name] = to_hashable(int(value) if value.is_integer() else value)
    return at


@dataclass(frozen=True, slots=True)
class PredictAnswer(Answer):
    """A prediction, with the doubts about it first."""

    result: Prediction = flat()
    beside: tuple[str, ...] = named("beside")
    folder: Path = hidden()
    options: str = hidden()
    asked: str = hidden()
    can_train: bool = hidden()
    trained: tuple[Path, ...] = hidden()
    step_seconds: tuple[float, float] | None = hidden()
    code: int = hidden(default=EXIT_OK)

    @property
    def title(self) -> str:
        """The target."""
        return f"{self.result.sweep} at {self.result.target_name}"

    @property
    def exit_code(self) -> int:
        """The exit code of the training."""
        return self.code

    @property
    def trained_folders(self) -> tuple[Path, ...]:
        """The folders of the runs at the target."""
        return self.trained

    def blocks(self) -> Iterator[Block]:
        """Yield the doubts, the edge and the rate to take, why, and the next command."""
        result = self.result
        if self.code:
            runs = f"{result.sweep}_confirm_..."
            yield Caution(
                f"a run at the target has no result: `sweep status {runs}` says why; the same command goes on"
            )
        yield from self._void() if result.is_void else self._withheld() if result.is_withheld else self._edge()
        runs, sizes = count(result.num_runs, "run"), count(result.num_sizes, "size")
        judged = joined(list(map(str, result.ladder.lengths)), "and")
        when = f", judged after {judged} steps" if judged else ""
        what = f"edge and best {result.along} go" if result.best_exponents else "the edge goes"
        of = f" of {joined([result.sweep, *self.beside], 'and')}" if self.beside else ""
        yield Line(f"by a law fitted to the outcomes of {runs} at {sizes}{of}{when}; {what} as")
        for name, exponent in result.exponents.items():
            best = result.best_exponents.get(name)
            yield Line(f"{name} to the power {_power(exponent)}{'' if best is None else f', best {_power(best)}'}", 1)
            if name != STEPS and exponent.binds is None:
                yield Line(_theories(exponent), 2)
            yield from self._bends(name)
        yield from self._binding()
        yield from self._tested()
        yield from self._trained()
        if result.settings and result.edge is not None:
            held = (f"{name}={format_value(value)}" for name, value in result.settings.items())
            yield Line(f"holds with {' '.join(held)}, as trained")
        yield Line(f"next: {self._next()}")
        yield Figure(picture_of("prediction:prediction_picture", self.result), "edge and best rate over size")
        if os.access(self.folder, os.W_OK):
            yield File(self.folder / PREDICTION, self.asked)

    def _void(self) -> Iterator[Block]:
        assert self.result.confirmation is not None
        yield Caution(f"void: {self.result.target_name} is not as on the ladder, so nothing is predicted there")
        for reason in self.result.confirmation.reasons:
            yield Line(reason, 1)

    def _withheld(self) -> Iterator[Block]:
        first, *others = self.result.refused
        yield Caution(f"refused: {first}")
        for reason in (*others, *(doubt for doubt in self.result.doubts if doubt not in self.result.refused)):
            yield Line(reason, 1)
        yield Line(f"{self.result.target_name}: no number is to be trusted; --anyway shows what the law says")

    def _edge(self) -> Iterator[Block]:
        result = self.result
        assert result.edge is not None
        for doubt in result.doubts:
            yield Caution(doubt)
        edge = f"the edge lies at {result.along} {_interval(result.edge)}"
        yield Line(f"{result.target_name}: {edge}; take {result.along} = {result.take:.2g}")
        yield Line(self._reason(), 1)
        if result.p_stable is not None:
            yield Line(f"P(stable) at your {result.along} = {result.rate:.3g}: {result.p_stable:.2f}", 1)

    def _trained(self) -> Iterator[Line]:
        """The runs at the target."""
        confirmation = self.result.confirmation
        if confirmation is None:
            return
        law = "" if self.result.edge is None else f"; without them the law says {_interval(confirmation.law_edge)}"
        yield Line(f"trained there: {confirmation.member_steps:,} steps{law}")
        for run in confirmation.runs:
            end = "" if run.onset is None else f", breaks at step {run.onset}"
            start = "" if run.initial_loss is None else f", first loss {run.initial_loss:.3g}"
            where = f"{self.result.along} {format_value(run.rate)}"
            yield Line(f"{where}: {run.outcome} in {run.steps_done} of {run.steps} steps{end}{start}", 1)

    def _reason(self) -> str:
        result = self.result
        assert result.take is not None
        if result.best_lr is None:
            if result.ladder.lengths:
                return "losses of shorter runs say nothing about the best rate: half of the low end of the interval"
            return "no loss says which rate is best: half of the low end of the edge's interval"
        best = f"the best rate is {_interval(result.best_lr)}"
        if result.take < result.best_lr.at:
            return f"{best}, which reaches beyond the low end of the edge's interval"
        assert result.headroom is not None
        loss = "" if result.best_loss is None else f" and its loss {_interval(result.best_loss, 3)}"
        return f"{best}{loss}, a factor {result.headroom.at:.2g} below the edge; err low, since loss is steeper above"

    def _bends(self, name: str) -> Iterator[Line]:
        """Where an exponent changes over the sizes, or ends."""
        pairs = ("edge", self.result.exponents.get(name)), ("best", self.result.best_exponents.get(name))
        for what, exponent in pairs:
            if exponent is not None and exponent.saturates is not None:
                yield Line(f"saturates: {what} is flat above {name} {_sizes(exponent.saturates)}", 2)
            elif exponent is not None and exponent.bends and exponent.bend is not None:
                bend = exponent.bend
                yield Line(
                    f"bends: {what} by {bend.at:.2f} ({bend.low:.2f} to {bend.high:.2f}, 99 %) for each doubling", 2
                )

    def _binding(self) -> Iterator[Line]:
        """Which groups of layers hold the edge where it is, by the exponents of their shares of the rate."""
        groups = {name: each for name, each in self.result.exponents.items() if each.binds is not None}
        if not groups:
            return
        binding = sorted((name for name, each in groups.items() if each.binds), key=lambda name: groups[name].at)
        others = [name for name in groups if name not in binding]
        free = f"{joined(others, 'and')}: not seen to bind, the edge does not fall with a share of the rate"
        if binding:
            yield Line(
                f"{joined(binding, 'and')} {'binds' if len(binding) == 1 else 'bind'}: a lower share raises the edge", 1
            )
        if others:
            yield Line(free, 1)

    def _tested(self) -> Iterator[Line]:
        test = self.result.backtest
        if test is None:
            return
        where = " ".join(f"{name}={format_value(value)}" for name, value in test.at.items())
        inside = "inside" if test.num_sizes == 1 else f"{test.num_inside} of {test.num_sizes} inside"
        if test.num_sizes == 1 and not test.num_inside:
            inside = "outside"
        yield Line(
            f"backtest: {where} from the others is a factor {test.factor:.2f} off, {inside} the interval; copying the "
            f"largest of them {test.copied:.2f}, their mean {test.no_effect:.2f}"
        )
        if test.regret is not None:
            copied = "" if test.copied_regret is None else f", copying the best rate {test.copied_regret:.2g}"
            yield Line(f"the best rate of the law leaves {test.regret:.2g} of loss there on the table{copied}", 1)

    def _next(self) -> str:
        result, name = self.result, shlex.quote(str(self.folder))
        runs = [run for size in result.ladder.sizes for run in size.runs]
        longest = int(result.target.get(STEPS, max(run.steps for run in runs)))
        if result.is_void:
            sizes = " ".join(
                f"--steps {longest}" if axis == STEPS else f"--axis {axis}=values:{format_value(value)}"
                for axis, value in result.target.items()
            )
            own = f"{result.sweep}_at_target --seeds {min(run.seed for run in runs)}"
            return f"`sweep run {name} {sizes} --name {own}` maps {result.along} at the target itself"
        asked = f"`sweep predict {name} {self.options}"
        is_wide = result.edge is None or result.edge.high > _WIDE * result.edge.low
        is_open = result.confirmation is None or not result.confirmation.is_bracketed
        if self.can_train and (is_open or is_wide):
            known = 0 if result.confirmation is None else sum(r.steps == longest for r in result.confirmation.runs)
            why = "since a larger model may fail in a way that no smaller one shows" if not known else "to know more"
            cost = f"{_CONFIRM} runs and {_CONFIRM * longest:,} steps{self._time(_CONFIRM * longest)}"
            return f"{asked} --confirm {known + _CONFIRM}` trains at most {cost} there, {why}"
        if result.doubts and not result.is_withheld:
            return f"`sweep boundary {name} --along {result.along}` shows the edge of each size"
        if is_wide:
            values = result.ladder.values(result.axis)
            size = f"{result.axis} between {format_value(values[-1])} and {format_value(result.target[result.axis])}"
            num = len(runs) // len(values)
            steps = f" and {count(num * longest, 'step')}" if longest else ""  # an import may not know its lengths
            would = "show whether the law holds" if result.is_withheld else "narrow the interval"
            return f"a size more would {would}: {size}, with {count(num, 'run')}{steps}"
        return f"{asked} --lr RATE` says P(stable) at a rate of your own"

    def _time(self, steps: int) -> str:
        """How long so many steps at the target take, if the packs of the sweep say."""
        if self.step_seconds is None:
            return ""
        low, high = (format_seconds(steps * seconds) for seconds in self.step_seconds)
        return f" (about {high if low == high else f'{low} to {high}'} on one worker)"


def _interval(found: Interval, digits: int = 2) -> str:
    return f"{found.at:.{digits}g} ({found.low:.{digits}g} to {found.high:.{digits}g})"


def _sizes(found: Interval) -> str:
    at, low, high = (f"{float(f'{value:.2g}'):,g}" for value in (found.at, found.low, found.high))
    return f"{at} ({low} to {high})"


def _power(exponent: Exponent) -> str:
    if exponent.is_assumed:
        return f"{exponent.at:.2f} (assumed)"
    return f"{exponent.at:.2f} ({exponent.low:.2f} to {exponent.high:.2f})"


def _theories(exponent: Exponent) -> str:
    names = {0.0: "0 (no effect, as with muP)", -0.5: "-1/2", -1.0: "-1"}
    if exponent.is_assumed:
        return "assumed, not measured"
    if not exponent.theories:
        return f"none of the theories {joined(list(names.values()), 'or')} fits"
    return f"fits the theory {joined([names[each] for each in exponent.theories], 'or')}"
