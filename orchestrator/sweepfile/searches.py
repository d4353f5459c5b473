"""The section ``search`` of a sweep file: the settings of its methods, and the search that it describes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.base.columns import RESULTS
from orchestrator.base.errors import InputError, Problem, did_you_mean
from orchestrator.base.measure import SCORE, column_measure, score_fact
from orchestrator.base.space import Axis, Cell, Trial, grid_cells, is_number, is_ordered
from orchestrator.base.vocabulary import LEARNED_ENOUGH, PRUNED
from orchestrator.base.words import count
from orchestrator.detection.relative import learned_shares
from orchestrator.search.by_optuna import GENERATIONS, MARGIN, SPREADS, OptunaSearch, sample_cells
from orchestrator.search.protocol import (
    EDGE,
    CellResult,
    InBatches,
    ListedCells,
    Proposal,
    Search,
    SeedsWhereCellsDisagree,
)
from orchestrator.sweepfile.sections import CustomTrainerSection, SearchSection, SeedsSection, SweepFile
from orchestrator.sweepfile.strict_yaml import Document
from orchestrator.sweepfile.trials import TrialMaker

if TYPE_CHECKING:
    from orchestrator.search.margins import EdgeMargins

# A search for the edge runs this part of its trials at a time, and at least a few.
_CONCURRENT_PARTS, _MIN_CONCURRENT = 8, 8
# The settings that apply to some methods only.
_METHOD_KEYS: Mapping[str, tuple[str, ...]] = {
    EDGE: ("along", "precision", "level", "refines"),
    "tpe": ("metric", "along", "stable"),
    "gp": ("metric", "along", "stable"),
    "nsga2": ("metric", "along", "stable"),
    "cmaes": ("metric", "along"),
    **dict.fromkeys(SPREADS, ()),
}
_LOSS = "final_loss"  # what is minimised unless the file says something else
_MAX_CORNERS = 256  # that are checked
_PROBES = 17  # values of a tied range that are checked
_FIRST_ROOM = 16  # trials that are asked for while nothing is known
_MAX_AXES = 4  # of an edge that is fitted


def over_edge(outcome: str) -> bool | None:
    """Whether a trial with this outcome is over the edge of stability; None if its losses do not say."""
    return None if outcome in ("unknown", PRUNED) else outcome != "stable"


def have_learned(known: Sequence[CellResult]) -> list[bool]:
    """Whether the seeds of each cell learned at least half of what the best of ``known`` did, so it is not degraded."""
    metrics = [(seed.outcome, seed.metrics) for result in known for seed in result.seeds]
    shares = iter(learned_shares([(outcome, of.get("initial_loss"), of.get("final_loss")) for outcome, of in metrics]))
    by_cell = [[next(shares) for _ in result.seeds] for result in known]
    return [all(share is None or share >= LEARNED_ENOUGH for share in seeds) for seeds in by_cell]


# --- the search of a sweep -------------------------------------------------------------------------


def listed_cells(file: SweepFile, axes: Sequence[Axis]) -> ListedCells:
    """Return the search that proposes all cells of the grid or the sample at once."""
    sample = file.sample
    if sample is None:
        return ListedCells(list(grid_cells(axes)), len(file.all_seeds))
    return ListedCells(sample_cells(axes, sample.method, sample.num, sample.seed), len(file.all_seeds))


def added_seeds(file: SweepFile, section: SeedsSection, axes: Sequence[Axis], document: Document) -> Search:
    """Return the search that adds seeds to the cells of a grid. Raises InputError."""
    if file.sample is not None:
        what = "sampled cells have no neighbours to disagree with"
        raise InputError(document.problem(("seeds",), what, "list the seeds, e.g. seeds: [0, 1, 2]"))
    if section.up_to <= section.start:
        what = f"up_to = {section.up_to} is not more than start = {section.start}"
        raise InputError(document.problem(("seeds", "up_to"), what, "raise it"))
    return SeedsWhereCellsDisagree(list(grid_cells(axes)), tuple(axes), section.start, section.up_to, over_edge)


def search_of(file: SweepFile, axes: Sequence[Axis], document: Document) -> Search:
    """Return the search of a ``file`` that has one. Raises InputError for settings that do not fit method or axes."""
    assert file.search is not None
    if problems := list(_problems(file, file.search, axes, document)):
        raise InputError(*problems)
    search, section = _search(file, file.search, axes), file.search
    return search if section.batch is None else InBatches(search, section.batch)


def max_concurrent(section: SearchSection) -> int | None:
    """Return how many trials should run at a time, for a search whose next cell depends on each result; None for any.

    Cells proposed together are chosen with less information: on four planted edges, 128 trials found them within 0.18
    cells on average with 4, 8 or 16 at a time, and within 0.27 with 32.
    """
    is_limited = section.method == EDGE and section.batch is None
    num_own = section.trials - (section.refines or 0)
    return max(_MIN_CONCURRENT, num_own // _CONCURRENT_PARTS) if is_limited else None


def num_initial(section: SearchSection, axes: Sequence[Axis], search: Search) -> int | None:
    """Return the number of first cells of a search that do not depend on results; None if unknown."""
    if section.method != EDGE:
        return None
    if section.refines is not None and (num_cells := math.prod(len(axis.refined or axis.values) for axis in axes)):
        return num_cells
    from orchestrator.search.edge import EdgeSearch

    of_edge = search.search if isinstance(search, InBatches) else search
    assert isinstance(of_edge, EdgeSearch)
    return of_edge.num_initial


def _search(file: SweepFile, section: SearchSection, axes: Sequence[Axis]) -> Search:
    if section.method == EDGE:
        # It computes with scipy, which is slow to import and unused by most commands.
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
    facts = _score_fact(file)
    metrics = tuple(column_measure(name, facts).column for name in section.metric or (SCORE if facts else _LOSS,))
    return OptunaSearch(
        method=section.method,
        axes=tuple(axes),
        metrics=metrics,
        maximized=frozenset(name for name in metrics if column_measure(name, facts).maximize),
        num_trials=section.trials,
        num_seeds=len(file.all_seeds),
        stable=section.stable,
        seed=section.seed,
        margins=_margins(section, axes) if MARGIN in (section.metric or ()) else None,
    )


def _score_fact(file: SweepFile) -> dict[str, str]:
    """The fact about the score of a custom trainer, empty without one."""
    score = file.objective.metrics.score if isinstance(file.objective, CustomTrainerSection) else None
    return {} if score is None else {SCORE: score_fact(score.title, maximize=bool(score.maximize))}


def _margins(section: SearchSection, axes: Sequence[Axis]) -> EdgeMargins:
    from orchestrator.search.margins import EdgeMargins  # scipy is slow to import

    return EdgeMargins(tuple(axes), section.along or axes[0].name, over_edge, have_learned)


# --- cells and trials ------------------------------------------------------------------------------


def corner_cells(axes: Sequence[Axis], tied: Container[str]) -> Iterator[dict[str, Any]]:
    """Yield the cells at the ends of all axes, with every listed word, where incompatible values would show.

    Values between the ends of ``tied`` axes are included: several may become the same value.
    """
    ordered = sorted(axes, key=lambda axis: axis.name in tied)
    candidates = [_corner_values(axis, axis.name in tied) for axis in ordered]
    for values in itertools.islice(itertools.product(*candidates), _MAX_CORNERS):
        cell = {axis.name: value for axis, value in zip(ordered, values, strict=True)}
        yield {axis.name: cell[axis.name] for axis in axes}


def _corner_values(axis: Axis, is_tied: bool) -> Iterable[Any]:
    if not axis.values:
        return axis.grid(_PROBES) if is_tied else (axis.at(0.0), axis.at(1.0))
    if is_tied or not is_number(axis.values[0]):
        return axis.values
    return dict.fromkeys((axis.values[0], axis.values[-1]))


def first_trials(search: Search, maker: TrialMaker) -> list[Trial]:
    """Return what ``search`` proposes while nothing is known. Raises InputError for incompatible values of a cell."""
    return proposed_trials(search.propose((), _FIRST_ROOM) or [], maker)


def proposed_trials(proposals: Iterable[Proposal], maker: TrialMaker) -> list[Trial]:
    """Return the trials of ``proposals``, in order. Raises InputError for incompatible values of a cell."""
    trials = []
    for proposal in proposals:
        try:
            trials += maker.trials(proposal.cell)[: proposal.num_seeds]
        except ValueError as error:
            message = f"{error} (at {Cell(proposal.cell).name})"
            raise InputError(Problem("", "search", message, "narrow the axes, or fix one of the two")) from None
    return trials


# --- problems --------------------------------------------------------------------------------------


def _problems(file: SweepFile, section: SearchSection, axes: Sequence[Axis], document: Document) -> Iterator[Problem]:
    def problem(key: str, message: str, remedy: str) -> Problem:
        return document.problem(("search", key), message, remedy)

    if isinstance(file.seeds, SeedsSection):
        what, remedy = "a search itself decides which cells get more seeds", "list the seeds, e.g. seeds: [0, 1, 2]"
        yield document.problem(("seeds",), what, remedy)
    if file.sample is not None:
        yield document.problem(("sample",), "does not apply to a search", "remove one of the two")
    if not axes:
        yield problem("method", "the file has no axis to search over", "add one, e.g. axes: {lr: {log: [1e-4, 1.0]}}")
    keys = _METHOD_KEYS[section.method]
    for key in sorted({key for allowed in _METHOD_KEYS.values() for key in allowed} - set(keys)):
        if getattr(section, key) is not None:
            others = [method for method, allowed in _METHOD_KEYS.items() if key in allowed]
            yield problem(key, f"does not apply to {section.method}", f"remove it, or choose {' or '.join(others)}")
    if section.trials < len(file.all_seeds):
        what = (
            f"{count(section.trials, 'trial is', 'trials are')} fewer than one cell has seeds ({len(file.all_seeds)})"
        )
        yield problem("trials", what, "raise it, or use fewer seeds")
    words = [axis.name for axis in axes if axis.ends is None and not all(map(is_number, axis.values))]
    has_margin = MARGIN in (section.metric or ())
    if section.method == EDGE or has_margin:
        yield from _edge_problems(section, axes, document.place(("search", "along")))
    elif section.along is not None and "along" in keys:
        yield problem("along", "applies to the metric margin only", "remove it, or add margin to search.metric")
    if section.method == "cmaes" and (words or len(axes) < 2):
        message = f"cmaes cannot choose among words ({words[0]})" if words else "cmaes needs two axes or more"
        yield problem("method", message, "choose tpe")
    for name in section.metric or ():
        facts = _score_fact(file)
        known = tuple(known for known in (*RESULTS, MARGIN) if known != SCORE or facts)
        if column_measure(name, facts).column not in known:
            remedy = did_you_mean(name, known) or f"choose from {', '.join(known)}"
            yield problem("metric", f"{name!r} is unknown", remedy)
    if section.metric and len(section.metric) > 1 and section.method in GENERATIONS and section.method != "nsga2":
        yield problem("metric", f"{section.method} takes one metric", "choose nsga2 or tpe")
    if section.metric and len(set(section.metric)) < len(section.metric):
        yield problem("metric", "names a metric twice", "name each once")


def _edge_problems(section: SearchSection, axes: Sequence[Axis], where: str) -> Iterator[Problem]:
    """Yield what prevents fitting an edge, for a search for the edge or for the metric margin."""
    ordered = [axis.name for axis in axes if axis.ends is not None or _is_ascending(axis)]
    along = section.along or (axes[0].name if axes else "")
    if axes and along not in ordered:
        known = ", ".join(ordered) or "none is left"
        is_axis = along in [axis.name for axis in axes]
        what = "has words or unordered values, which have no edge" if is_axis else "is not an axis"
        yield Problem(where, "search.along", f"{along!r} {what}", f"axes of ascending numbers: {known}")
    if len(axes) > _MAX_AXES:
        what = f"an edge is fitted over at most {_MAX_AXES} axes, and there are {len(axes)}"
        yield Problem(where, "axes", what, "fix some axes")


def _is_ascending(axis: Axis) -> bool:
    return all(map(is_number, axis.values)) and is_ordered(axis.values)
