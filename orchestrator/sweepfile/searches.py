"""The section ``search`` of a sweep file: which settings its method takes, and the search that it describes."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.base.cell import Cell, Trial
from orchestrator.base.columns import RESULTS
from orchestrator.base.errors import InputError, Problem, did_you_mean
from orchestrator.base.space import Axis, grid_cells, is_number, is_ordered
from orchestrator.base.vocabulary import LEARNED_ENOUGH, PRUNED
from orchestrator.detection.relative import learned_shares
from orchestrator.search.batches import InBatches
from orchestrator.search.by_optuna import GENERATIONS, MARGIN, SPREADS, OptunaSearch
from orchestrator.search.catalogue import EDGE
from orchestrator.search.disagreement import SeedsWhereCellsDisagree
from orchestrator.search.protocol import CellResult, Proposal, Search
from orchestrator.sweepfile.sections import SearchSection, SeedsSection, SweepFile
from orchestrator.sweepfile.strict_yaml import Document
from orchestrator.sweepfile.trials import TrialMaker

if TYPE_CHECKING:
    from orchestrator.search.margins import EdgeMargins

# A search for the edge has this part of its trials under way, and at least a few.
_PARTS, _FEW = 8, 8
# The settings that act with some methods only.
_TAKES: Mapping[str, tuple[str, ...]] = {
    EDGE: ("along", "precision", "level"),
    "tpe": ("metric", "along", "stable"),
    "gp": ("metric", "along", "stable"),
    "nsga2": ("metric", "along", "stable"),
    "cmaes": ("metric", "along"),
    **dict.fromkeys(SPREADS, ()),
}
_MOST_CORNERS = 256  # looked at
_PROBES = 17  # values of a tied range that are looked at
_FIRST_ROOM = 16  # trials that are asked for while nothing is known
_MOST_AXES = 4  # of an edge that is fitted


def added_seeds(file: SweepFile, section: SeedsSection, axes: Sequence[Axis], document: Document) -> Search:
    """The search that adds seeds to the cells of a grid. Raises InputError."""
    where = document.place(("seeds",))
    if file.sample is not None:
        what = "sampled cells have no neighbours to disagree with"
        raise InputError(Problem(where, "seeds", what, "list the seeds, e.g. seeds: [0, 1, 2]"))
    if section.up_to <= section.start:
        what = f"up_to = {section.up_to} is not more than start = {section.start}"
        raise InputError(Problem(document.place(("seeds", "up_to")), "seeds.up_to", what, "raise it"))
    cells = list(grid_cells(axes))
    return SeedsWhereCellsDisagree(cells, tuple(axes), section.start, section.up_to, over_edge)


def over_edge(outcome: str) -> bool | None:
    """Whether a trial of this outcome is over the edge of stability; None where its losses do not say."""
    return None if outcome in ("unknown", PRUNED) else outcome != "stable"


def have_learned(known: Sequence[CellResult]) -> list[bool]:
    """Whether each cell is not degraded, by the losses of ``known`` alone: a cell's seeds learned half of the best."""
    metrics = [(seed.outcome, seed.metrics) for result in known for seed in result.seeds]
    shares = iter(learned_shares([(outcome, of.get("initial_loss"), of.get("final_loss")) for outcome, of in metrics]))
    own = [[next(shares) for _ in result.seeds] for result in known]
    return [all(share is None or share >= LEARNED_ENOUGH for share in seeds) for seeds in own]


def search_of(file: SweepFile, axes: Sequence[Axis], document: Document) -> Search:
    """The search of ``file``, which has one. Raises InputError for settings that do not fit its method or axes."""
    assert file.search is not None
    if problems := list(_problems(file, file.search, axes, document)):
        raise InputError(*problems)
    search, section = _search(file, file.search, axes), file.search
    return search if section.batch is None else InBatches(search, section.batch)


def few_at_a_time(section: SearchSection) -> int | None:
    """The trials that are best under way together, where each result says where the next one tells most.

    Proposals made together tell less: on four planted edges, 128 trials found them within 0.18 cells on average with 4,
    8 or 16 at a time, and within 0.27 with 32.
    """
    is_limited = section.method == EDGE and section.batch is None
    return max(_FEW, section.trials // _PARTS) if is_limited else None


def num_spread(section: SearchSection, search: Search) -> int | None:
    """How many of a search's first cells lie where they do whatever the results; None where that is not known."""
    if section.method != EDGE:
        return None
    from orchestrator.search.edge import EdgeSearch

    of_edge = search.search if isinstance(search, InBatches) else search
    assert isinstance(of_edge, EdgeSearch)
    return of_edge.num_spread


def corner_cells(axes: Sequence[Axis], tied: Container[str]) -> Iterator[dict[str, Any]]:
    """The cells at the ends of all axes, with every listed word: where values that do not fit together are found.

    Of ``tied`` axes also values between the ends, several of which may become one value.
    """
    ordered = sorted(axes, key=lambda axis: axis.name in tied)
    looked_at = [_looked_at(axis, axis.name in tied) for axis in ordered]
    for values in itertools.islice(itertools.product(*looked_at), _MOST_CORNERS):
        cell = {axis.name: value for axis, value in zip(ordered, values, strict=True)}
        yield {axis.name: cell[axis.name] for axis in axes}


def _looked_at(axis: Axis, is_tied: bool) -> Iterable[Any]:
    if not axis.values:
        return axis.grid(_PROBES) if is_tied else (axis.at(0.0), axis.at(1.0))
    if is_tied or not is_number(axis.values[0]):
        return axis.values
    return dict.fromkeys((axis.values[0], axis.values[-1]))


def first_trials(search: Search, maker: TrialMaker) -> list[Trial]:
    """What ``search`` proposes while nothing is known. Raises InputError where the values of a cell do not fit."""
    return proposed_trials(search.propose((), _FIRST_ROOM) or [], maker)


def proposed_trials(proposals: Iterable[Proposal], maker: TrialMaker) -> list[Trial]:
    """The trials of ``proposals``, in order. Raises InputError where the values of a cell do not fit together."""
    trials = []
    for proposal in proposals:
        try:
            trials += maker.trials(proposal.cell)[: proposal.num_seeds]
        except ValueError as error:
            at = Cell(proposal.cell).name
            remedy = "narrow the axes, or fix one of the two"
            raise InputError(Problem("", "search", f"{error} (at {at})", remedy)) from None
    return trials


def _search(file: SweepFile, section: SearchSection, axes: Sequence[Axis]) -> Search:
    if section.method == EDGE:
        # It computes with scipy, which is slow to import and of no use to most commands.
        from orchestrator.search.edge import EdgeOptions, EdgeSearch

        options = EdgeOptions(
            along=section.along or axes[0].name,
            trials=section.trials,
            num_seeds=len(file.all_seeds),
            seed=section.seed,
            level=0.5 if section.level is None else section.level,
            precision=section.precision,
        )
        return EdgeSearch(axes, options, over_edge)
    return OptunaSearch(
        method=section.method,
        axes=tuple(axes),
        metrics=tuple(section.metric or ("final_loss",)),
        num_trials=section.trials,
        num_seeds=len(file.all_seeds),
        stable=section.stable,
        seed=section.seed,
        margins=_margins(section, axes) if MARGIN in (section.metric or ()) else None,
    )


def _margins(section: SearchSection, axes: Sequence[Axis]) -> EdgeMargins:
    from orchestrator.search.margins import EdgeMargins  # scipy is slow to import

    return EdgeMargins(tuple(axes), section.along or axes[0].name, over_edge, have_learned)


def _problems(file: SweepFile, section: SearchSection, axes: Sequence[Axis], document: Document) -> Iterator[Problem]:
    def problem(key: str, message: str, remedy: str) -> Problem:
        return Problem(document.place(("search", key)), f"search.{key}", message, remedy)

    if isinstance(file.seeds, SeedsSection):
        what, remedy = "a search decides itself which cells get more seeds", "list the seeds, e.g. seeds: [0, 1, 2]"
        yield Problem(document.place(("seeds",)), "seeds", what, remedy)
    if file.sample is not None:
        yield Problem(document.place(("sample",)), "sample", "has no meaning beside search", "remove one of the two")
    if not axes:
        yield problem("method", "there is no axis to search over", "add one, e.g. axes: {lr: {log: [1e-4, 1.0]}}")
    takes = _TAKES[section.method]
    for key in sorted({"along", "precision", "level", "metric", "stable"} - set(takes)):
        if getattr(section, key) is not None:
            remedy = f"remove it, or choose {' or '.join(method for method, keys in _TAKES.items() if key in keys)}"
            yield problem(key, f"has no meaning for {section.method}", remedy)
    if section.trials < len(file.all_seeds):
        what = f"{section.trials} trials are fewer than one cell has seeds ({len(file.all_seeds)})"
        yield problem("trials", what, "raise it, or use fewer seeds")
    words = [axis.name for axis in axes if axis.ends is None and not all(map(is_number, axis.values))]
    has_margin = MARGIN in (section.metric or ())
    if section.method == EDGE or has_margin:
        yield from _of_edge(section, axes, problem("along", "", "").where)
    elif section.along is not None and "along" in takes:
        yield problem("along", "has no meaning without the metric margin", "remove it, or add margin to search.metric")
    if section.method == "cmaes" and (words or len(axes) < 2):
        message = f"cmaes cannot choose among words ({words[0]})" if words else "cmaes needs two axes or more"
        yield problem("method", message, "choose tpe")
    for name in section.metric or ():
        if name not in (*RESULTS, MARGIN):
            known = (*RESULTS, MARGIN)
            remedy = did_you_mean(name, known) or f"choose from {', '.join(known)}"
            yield problem("metric", f"{name!r} is unknown", remedy)
    if section.metric and len(section.metric) > 1 and section.method in GENERATIONS and section.method != "nsga2":
        yield problem("metric", f"{section.method} takes one metric", "choose nsga2 or tpe")
    if section.metric and len(set(section.metric)) < len(section.metric):
        yield problem("metric", "names a metric twice", "name each once")


def _of_edge(section: SearchSection, axes: Sequence[Axis], where: str) -> Iterator[Problem]:
    """What keeps an edge from being fitted, for a search for it or for the metric margin."""
    ordered = [axis.name for axis in axes if axis.ends is not None or _ascend(axis)]
    along = section.along or (axes[0].name if axes else "")
    if axes and along not in ordered:
        known = ", ".join(ordered) or "none is left"
        is_axis = along in [axis.name for axis in axes]
        what = "has words, or values in no order, which have no edge" if is_axis else "is not an axis"
        yield Problem(where, "search.along", f"{along!r} {what}", f"axes of numbers that ascend: {known}")
    if len(axes) > _MOST_AXES:
        what = f"{len(axes)} axes are more than an edge is fitted over ({_MOST_AXES})"
        yield Problem(where, "axes", what, "fix some of them")


def _ascend(axis: Axis) -> bool:
    return all(map(is_number, axis.values)) and is_ordered(axis.values)
