"""`orchestrator.run`: what `sweep run` does, from Python."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from objectives.native.library import compile_kernels
from orchestrator.api.live_view import LiveView
from orchestrator.api.sweep_files import overrides, read_sweep
from orchestrator.base.environment import check_installed
from orchestrator.base.errors import EXIT_INTERRUPTED, EXIT_OK, InputError, Problem
from orchestrator.base.files import FROZEN_SWEEP, LEDGER, check_in_place
from orchestrator.base.space import is_number
from orchestrator.base.trial_result import MemberResult
from orchestrator.base.words import count, counts_line, length_text
from orchestrator.driver.executor_choice import AUTO, chosen_executor
from orchestrator.driver.packing import kernels_of
from orchestrator.driver.planning import check_runnable, refining_sweep
from orchestrator.driver.progress import Observer, Progress, Summary
from orchestrator.driver.runner import run_sweep
from orchestrator.executors import INLINE, Executor
from orchestrator.executors.catalogue import ExecutorOptions, executor_loader
from orchestrator.ledger.reader import LedgerReader, check_not_imported
from orchestrator.maps.axes import led
from orchestrator.maps.edges import STABLE
from orchestrator.maps.regions import steepest_axis
from orchestrator.maps.table import length_notes, read_table, repeated_runs, repeats_text
from orchestrator.mirrors.notifier import Message, News, NotDelivered, Notifier, Sender
from orchestrator.pages.export_process import ExportProcess
from orchestrator.render.text import Lines, show
from orchestrator.render.text_map import text_map
from orchestrator.sweepfile.custom_trainer import CustomTrainer
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import Sweep, build_sweep, check_import, load_sections
from orchestrator.sweepfile.strict_yaml import parse_document, text_of

if TYPE_CHECKING:
    from orchestrator.api.results import SweepResults

_SIGNAL = 128  # exit codes from here on say which signal stopped the run


def run(
    sweep: str | Path | Mapping[str, Any],
    *,
    axis: Sequence[str] = (),
    drop: Sequence[str] = (),
    set: Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    steps: int | None = None,
    name: str | None = None,
    results: str | Path = "results",
    executor: str = "ray",
    retry_errored: bool = False,
    allow_import: bool = False,
) -> SweepResults:
    """Train the missing trials of ``sweep``, and return its results; running it again trains nothing.

    ``sweep`` is a sweep file, the name of a sweep that was run, or the content of a file as a dictionary. The options
    have the meaning they have in `sweep run`; ``seeds`` may also be their number. Raises InputError for content that a
    file must not have, and KeyboardInterrupt if a signal stopped the run, which the same call continues.
    """
    found = _sweep(sweep, overrides(axis, drop, set, _seeds_text(seeds), steps, name), Path(results), allow_import)
    code = show(run_lines(found, Path(results), executor, allow_import=allow_import, retry_errored=retry_errored))
    if code == EXIT_INTERRUPTED or code > _SIGNAL:
        raise KeyboardInterrupt
    from orchestrator.api.results import SweepResults  # pandas and matplotlib, which would delay the first step

    return SweepResults(Path(results) / found.name)


def _sweep(sweep: str | Path | Mapping[str, Any], changes: Overrides, results: Path, allow_import: bool) -> Sweep:
    if isinstance(sweep, Mapping):
        return build_sweep(parse_document(text_of(sweep), "sweep"), changes, allow_import=allow_import)
    return read_sweep(str(sweep), results, changes, allow_import)


def _seeds_text(seeds: int | Sequence[int] | None) -> str | None:
    if seeds is None:
        return None
    return ",".join(map(str, range(seeds) if isinstance(seeds, int) else seeds))


def run_lines(
    sweep: Sweep,
    results: Path,
    executor: str,
    *,
    address: str | None = None,
    slurm: Sequence[str] = (),
    allow_import: bool = False,
    retry_errored: bool = False,
    notify_test: bool = False,
    page: bool = False,
    port: int | None = None,
    within: float | None = None,
) -> Lines:
    """Train the missing trials of ``sweep`` and write its exports; the exit code says how it ended. Raises SweepError.

    ``executor`` may be auto, and ``address`` and ``slurm`` are its options. ``notify_test`` sends a test
    message instead, and does nothing else. With ``page`` the sweep's page is served on loopback while it runs, on
    ``port`` or a free one. A refinement ends with the edge, which is to be known ``within`` this factor, unless it is
    stopped.
    """
    folder = results / sweep.name
    check_import(sweep, allow_import)
    why = ""
    if executor == AUTO:
        executor, why = chosen_executor(sweep, results, address)
    options = ExecutorOptions(folder, sweep.resources, address, tuple(slurm))
    load_executor = executor_loader(executor, options, AUTO)
    if notify_test:
        return (yield from _notify_test(sweep))
    from rich.console import Console

    from orchestrator.mirrors.mirror import BackgroundMirror
    from orchestrator.mirrors.tracker import tracker_class

    check_runnable(sweep, folder)
    is_built_in = not isinstance(sweep.objective, CustomTrainer)
    if is_built_in:
        check_installed(f"training {sweep.objective.name}", "torch")
    trackers = [tracker_class(name) for name in sweep.tracking.to] if sweep.tracking.enabled else []
    mirrors = [BackgroundMirror(folder, sweep.tracking, tracker) for tracker in trackers]
    notifiers = _notifiers(sweep, folder)
    view = LiveView(Console())
    exports = ExportProcess(folder, with_answers=bool(mirrors))
    later: list[Callable[[], object]] = [mirror.start for mirror in mirrors]
    observers: list[Observer] = [view, exports, *mirrors, *notifiers, OnceTraining(later)]
    num = count(len(sweep.trials) if sweep.max_trials is None else sweep.max_trials, "trial")
    what = f"{'at most ' if sweep.is_open else ''}{num} of {sweep.objective.name}"
    yield f"{sweep.name}: {what}, {length_text(sweep.steps, sweep.tokens)} each"
    if why:
        yield why

    beside: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if page:
        from orchestrator.pages.loopback import address_of, listening_socket
        from orchestrator.pages.server import page_beside

        listener = listening_socket(port)
        beside = page_beside(listener, results)
        yield f"page at {address_of(listener, sweep.name)}"

    if (kernels := kernels_of(sweep)) and executor != INLINE:
        # While workers start; they wait for it, or find it done.
        threading.Thread(target=compile_kernels, args=[kernels], daemon=True).start()

    def announced() -> Executor:
        with view.starting():
            executor = load_executor()()  # imports it, which takes seconds
        if executor.name != INLINE:
            later.append(exports.start)
        return executor

    try:
        with beside:
            summary = run_sweep(sweep, folder, announced, observers, retry_errored=retry_errored)
    except Exception:
        yield from _warnings(notifiers)  # an error ends the command, and its message must be out before
        raise
    if summary.trained:
        yield f"trained for {summary.seconds:.0f} s"
    elif summary.used_up is None:
        yield "nothing to train: every trial has run"
    check_in_place(folder)
    written, answers = exports.finish(with_answers=not all(mirror.is_current() for mirror in mirrors))
    warnings = []
    for tracker, mirror in zip(trackers, mirrors, strict=True):
        if not mirror.is_current():
            yield f"mirroring to {tracker.title} ..."
            if (warning := mirror.finish([folder / FROZEN_SWEEP, *written], answers)) is not None:
                own = "" if len(trackers) == 1 else f" --to {tracker.name}"
                remedy = f"`sweep sync {sweep.name}{own}` writes what is missing"
                warnings.append(f"warning: {warning}\n    remedy: {remedy}")
    yield from _end(sweep, folder, summary, written)
    yield from warnings
    yield from _warnings(notifiers)
    if within is not None and summary.stopped_by is None:
        yield _edge(folder, within)
    else:
        yield from _sentence(folder)
    return summary.exit_code


def _notifiers(sweep: Sweep, folder: Path) -> list[Notifier]:
    """Return the notifier of the run, or none without `notify`. Raises InputError if it cannot be made."""
    if sweep.notify is None:
        return []
    from orchestrator.mirrors.notifier import service_of

    sender = Sender(service_of(sweep.notify, sweep.notify_place))
    return [Notifier(News(sweep.notify.on, folder), sender)]


def _warnings(notifiers: Sequence[Notifier]) -> Iterator[str]:
    """Wait a moment for messages that are under way; one warning where they do not arrive."""
    for notifier in notifiers:
        if (failure := notifier.finish()) is not None:
            yield f"warning: notify: {failure}\n    remedy: `sweep run FILE --notify-test` tries it"


def _notify_test(sweep: Sweep) -> Lines:
    """Send a test message. Raises NotDelivered when the service does not accept it."""
    from orchestrator.mirrors.notifier import service_of

    if sweep.notify is None:
        remedy = "add notify: {url_from: NAME_OF_AN_ENVIRONMENT_VARIABLE} to the file"
        raise InputError(Problem("--notify-test", "notify", "is missing in the sweep file", remedy))
    sender = Sender(service_of(sweep.notify, sweep.notify_place))
    sender.send(Message(f"{sweep.name}: test", "Messages of `sweep run` arrive here.", "info"))
    if (failure := sender.finish()) is not None:
        raise NotDelivered(f"notify: {failure}")
    yield f"the service of {sweep.notify.url_from} accepted the test message"
    return EXIT_OK


def _end(sweep: Sweep, folder: Path, summary: Summary, written: Sequence[Path]) -> Lines:
    """Outcomes, where results are, and what to do next."""
    from orchestrator.mirrors.tracker import tracker_class

    yield ""
    with LedgerReader(folder / LEDGER) as ledger:
        rows = read_table(ledger).trials
    if drawing := text_map(rows, led(sweep.axes)):
        yield drawing
    yield counts_line(Counter(row.label for row in rows))
    if repeats := repeated_runs(rows):
        yield f"{repeats_text(len(repeats))}: does the command pass {{seed}} on?"
    yield from length_notes(rows)
    for path in [*written, folder / LEDGER]:
        yield f"{path.stem:>8}: {path}"
    for name in sweep.tracking.to if sweep.tracking.enabled else ():
        hint = "  (sweep ui)" if name == "mlflow" else ""
        yield f"{name:>8}: {tracker_class(name).shown_store(folder, sweep.tracking)}{hint}"
    if summary.used_up is not None and summary.stopped_by is None:
        yield f"stopped: {summary.used_up} is used up; the same command with a larger budget goes on"
    if summary.stopped_by is not None:
        yield "stopped; the same command resumes the sweep"
    if summary.counts["errored"]:
        yield f"{count(summary.counts['errored'], 'trial')} errored: `sweep status {sweep.name}` says why"
    return summary.exit_code


def refining_lines(
    folder: Path,
    along: str | None,
    num_more: int,
    factor: float,
    changes: Overrides,
    executor: str,
    *,
    allow_import: bool,
    **options: Any,
) -> Lines:
    """Train at most ``num_more`` trials besides those in ``folder``, until the edge is known within ``factor``.

    ``options`` are as in ``run_lines``. Raises SweepError.
    """
    sweep = refining_sweep(folder, along or _steepest(folder), num_more, factor, changes, allow_import)
    return (yield from run_lines(sweep, folder.parent, executor, allow_import=allow_import, within=factor, **options))


def _steepest(folder: Path) -> str | None:
    """Return the axis of numbers that moves stability most on a grid; None without one, and after a search."""
    check_not_imported(folder)
    if load_sections(folder / FROZEN_SWEEP).search is not None:
        return None
    with LedgerReader(folder / LEDGER) as ledger:
        table = read_table(ledger)
    words = [axis.name for axis in table.axes if not all(map(is_number, axis.values))]
    sides = {cell: STABLE.of_state(state) for cell, state in table.states().items()}
    return steepest_axis(sides, table.axes, words) if table.is_grid else None


def _edge(folder: Path, within: float) -> str:
    """Return the edge that a refinement found, in words."""
    from orchestrator.answers._refined import edge_sentence

    search = load_sections(folder / FROZEN_SWEEP).search
    assert search is not None
    assert search.along is not None
    try:
        with LedgerReader(folder / LEDGER) as ledger:
            return edge_sentence(read_table(ledger), search.along, within)
    except InputError as error:
        return f"the edge is not known: {error}"


def _sentence(folder: Path) -> Iterator[str]:
    """Yield the edge, the setting to take and the next command, after an empty line."""
    from orchestrator.maps.sentence import sentence_of

    with LedgerReader(folder / LEDGER) as ledger:
        yield ""
        yield sentence_of(read_table(ledger), is_running=False).text


class OnceTraining:
    """Call ``actions``, which take seconds of a core, once workers train: earlier they would delay the first step."""

    def __init__(self, actions: list[Callable[[], object]]) -> None:
        self._actions = actions

    def began(self, progress: Progress) -> None:
        """Do nothing: workers still start."""

    def changed(self, progress: Progress, finished: Sequence[MemberResult]) -> None:
        """Call them after the first report of steps."""
        while progress.member_steps and self._actions:
            self._actions.pop(0)()

    def ended(self, progress: Progress) -> None:
        """Do nothing: the end does itself what was not begun."""
