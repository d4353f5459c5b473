"""A sweep's results for a notebook: `orchestrator.load("NAME")` gives pandas, pictures and answers."""

from __future__ import annotations

import base64
import html
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from orchestrator.answers import names as query_names
from orchestrator.answers import query_class, query_classes
from orchestrator.api.asking import followed
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import LEDGER, sweep_folder
from orchestrator.base.query import Query
from orchestrator.base.space import Axis
from orchestrator.base.words import count, counts_line
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.curve_metrics import CURVE_METRICS, Measured, measured
from orchestrator.maps.edges import StableRule
from orchestrator.maps.sentence import Sentence, sentence_of
from orchestrator.maps.table import SweepTable, read_table
from orchestrator.maps.tables import labelled, map_table, trial_table
from orchestrator.render.html import text_html
from orchestrator.render.maps import fraction_axes, heatmap, map_figure

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Result = TypeVar("_Result")
# What a notebook shows to go on with.
_NEXT = ("plot()", "trials", "boundary()", "recommend()", "explain()", "diagnose()", "compare(other)")


class SweepResults:
    """The results of one sweep, read from its ledger on demand. It keeps no file open.

    Raises InputError when ``folder`` has no ledger, and StorageError when it cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / LEDGER).is_file():
            raise InputError(Problem(str(folder), "", f"has no {LEDGER}", "give a sweep's folder: results/NAME"))
        self.name = self._read(lambda ledger: ledger.facts().get("name", self.folder.name))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the method of a question about a sweep, such as ``boundary``. There is one for each module of answers.

        Its arguments are the options of the command, and it returns the answer.
        """
        if name.startswith("_") or name not in query_names() or query_class(name).subject != "sweep":
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return MethodType(_method(query_class(name)), self)

    def __dir__(self) -> list[str]:
        own = [name for name in vars(type(self)) if not name.startswith("_")]
        questions = [query.query_name() for query in query_classes("sweep")]
        return [*dict.fromkeys([*own, *questions, "folder", "name"])]

    def _repr_html_(self) -> str:
        """For a notebook: the sentence, outcomes, the map, and what to call next."""
        labels = self._of_table(lambda table: Counter(row.label for row in table.trials if row.outcome is not None))
        counts = counts_line(labels) if labels else "no trial is over"
        picture = base64.b64encode(self._of_table(lambda table: heatmap("png", cell_map(table)))).decode()
        return (
            f"<p>{text_html(str(self.sentence))}</p>"
            f"<p><b>{html.escape(self.name)}</b>: axes {html.escape(self._axes_text())}; {counts}</p>"
            f'<img alt="stability map" src="data:image/png;base64,{picture}">'
            f"<p>{', '.join(f'<code>.{call}</code>' for call in _NEXT)}</p>"
        )

    def _axes_text(self) -> str:
        return ", ".join(f"{axis.name} ({len(axis.values)})" for axis in self.axes) or "none"

    def __repr__(self) -> str:
        return f"<sweep {self.name}: {count(len(self.trials), 'trial')}, axes {self._axes_text()}>"

    @property
    def sentence(self) -> Sentence:
        """Where the edge is, which setting to take and why, and the command that comes next, in one sentence."""
        return self._of_table(sentence_of)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per trial: every field of its configuration, and TRIAL_COLUMNS of ``orchestrator.base.columns``."""
        return self._of_table(trial_table)

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The sweep's axes, with their values and scales."""
        return self._of_table(lambda table: table.axes)

    def trace(self, trial_id: str) -> pd.DataFrame:
        """The curve of one trial: step, loss, grad_norm and any other columns of its objective.

        Raises InputError for a trial that the sweep does not have.
        """
        self._require(trial_id)
        return pd.DataFrame(self._read(lambda ledger: ledger.trace(trial_id)))

    def telemetry(self, trial_id: str) -> pd.DataFrame:
        """Readings of one trial every few steps, possibly none: step, v_lag/GROUP, lambda_max, ...

        Raises InputError for a trial that the sweep does not have.
        """
        self._require(trial_id)
        return pd.DataFrame(self._read(lambda ledger: ledger.telemetry(trial_id)))

    def map(
        self,
        x: str | None = None,
        y: str | None = None,
        where: Mapping[str, Any] | None = None,
        reduce: str = "worst",
    ) -> pd.DataFrame:
        """The stability map over two axes, one row per cell; ``attrs["note"]`` says what was reduced.

        ``orchestrator.base.columns`` defines its columns in MAP_COLUMNS.
        """
        return self._of_table(lambda table: map_table(cell_map(table, x, y, None, where, reduce, self._measured)))

    def plot(
        self,
        x: str | None = None,
        y: str | None = None,
        metric: str | None = None,
        where: Mapping[str, Any] | None = None,
        reduce: str = "worst",
        degraded: bool = False,
        ax: Axes | None = None,
    ) -> Figure | Axes:
        """The stability map as a matplotlib figure: the fraction of stable seeds, and ``metric`` in a second panel.

        The metric is by default the score of the sweep, else the final loss. With ``ax`` only the fractions are drawn,
        into axes of your own, which are returned. Raises InputError for an axis or a metric that the sweep does not
        have.
        """

        def drawn(table: SweepTable) -> Figure | Axes:
            found = cell_map(table, x, y, metric, where, reduce, self._measured, rule=StableRule(degraded))
            return map_figure([found]) if ax is None else fraction_axes(ax, found)

        return self._of_table(drawn)

    def to_xarray(self) -> xarray.Dataset:
        """The sweep as an xarray.Dataset over its axes: `stable_fraction` and `state` of cells, results by `seed`.

        Raises InputError if its cells are scattered, or if xarray is not installed.
        """
        return self._of_table(labelled)

    def ask(self, query: Query[Any]) -> Any:
        """Return the answer to a question about this sweep: an instance of one of ``orchestrator.answers``.

        Trackers follow what it trained. Raises InputError.
        """
        answer = self._of_table(lambda table: query.ask(table, print))
        for line in followed(query, answer, [self.folder]):
            print(line)
        return answer

    def compare(self, *others: SweepResults | str | Path, **options: Any) -> Any:
        """Return how other sweeps differ from this one, or how the values of an axis of this one differ.

        A name means a sweep in the same folder of results. ``options`` are the options of `sweep compare`. Raises
        InputError if the sweeps share nothing.
        """
        named = (each if isinstance(each, SweepResults) else load(each, self.folder.parent) for each in others)
        sweeps = [self, *named]
        with ExitStack() as stack:
            ledgers = [stack.enter_context(LedgerReader(each.folder / LEDGER)) for each in sweeps]
            return query_class("compare")(**options).ask(list(map(read_table, ledgers)), print)

    def _require(self, trial_id: str) -> None:
        if trial_id not in set(self.trials["trial_id"]):
            raise InputError(Problem(str(self.folder), "", f"has no trial {trial_id!r}", "see .trials.trial_id"))

    @cached_property
    def _measured(self) -> Measured:
        return self._of_table(lambda table: measured(table, [*CURVE_METRICS, *table.printed_metrics]))

    def _of_table(self, action: Callable[[SweepTable], _Result]) -> _Result:
        return self._read(lambda ledger: action(read_table(ledger)))

    def _read(self, action: Callable[[LedgerReader], _Result]) -> _Result:
        with LedgerReader(self.folder / LEDGER) as ledger:
            return action(ledger)


def _method(kind: type[Query[Any]]) -> Callable[..., Any]:
    """Return the method that asks a question, with its options as arguments."""
    options, defaults = kind.options(), kind.defaults()
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=defaults[name]) for name in options
    ]
    signature = inspect.Signature(parameters)

    def method(*values: Any, **named: Any) -> Any:
        given = signature.bind(*values, **named).arguments
        return given.pop("self").ask(kind(**given))

    method.__signature__ = signature  # type: ignore[attr-defined]
    method.__name__ = kind.query_name()
    first, _, details = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    lines = [f"{name}: {option.help}" for name, option in options.items()]
    method.__doc__ = "\n\n".join(filter(None, (first, details, "\n".join(lines))))
    return method


def load(name: str | Path, results: str | Path = "results") -> SweepResults:
    """The results of a sweep, by its name in ``results`` or by its folder. Raises InputError when there are none."""
    return SweepResults(sweep_folder(str(name), Path(results)))
