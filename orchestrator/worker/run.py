"""Run a pack, stacked or launched, as a generator of reports that never raises, whatever the trainer does.

The same code runs in the driver's process, in a Ray worker and in a Slurm job.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from typing import Protocol

from orchestrator.base.packs import Ending, Failed, LaunchedPack, OutOfMemory, Pack, Refused, Report, StackedPack
from orchestrator.worker.checkpoints import BadCheckpoint
from orchestrator.worker.forked_run import launched_run
from orchestrator.worker.launcher import Launcher
from orchestrator.worker.machine import is_out_of_memory
from orchestrator.worker.packed_run import Pace, PackedRun

_ERROR_LINES = 30


class Run(Protocol):
    """A pack in training, stacked or launched."""

    @property
    def at_a_time(self) -> int:
        """Members that train together."""

    @property
    def waited(self) -> tuple[str, ...]:
        """Trials that wait for a free row."""

    def reports(self, started: float, wants_pause: Callable[[], bool]) -> Iterator[Report]:
        """Train, yielding a report about every second and a last one with an ending. May raise anything."""

    def report(self, started: float, ending: Ending | None = None) -> Report:
        """Return everything since the last report."""

    def close(self) -> None:
        """Release all resources; this changes no result."""


def never() -> bool:
    """Never ask a pack to pause."""
    return False


def run_pack(
    pack: Pack,
    wants_pause: Callable[[], bool] = never,
    launcher: Launcher | None = None,
    pace: Pace = Pace(),
) -> Iterator[Report]:
    """Train ``pack`` to its end, yielding a report about every second, one for each checkpoint, and a last one.

    Once ``wants_pause()``, called at every report, is true, the last report is a checkpoint. ``launcher`` starts the
    processes of a custom trainer, by default on this machine; an objective's pack keeps ``pace``.
    """
    started = time.perf_counter()
    run = run_of(pack, launcher, pace)
    try:
        yield from run.reports(started, wants_pause)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # sys.exit() in a trainer is an error too
        tail = "".join(traceback.format_exc().splitlines(keepends=True)[-_ERROR_LINES:])
        yield run.report(started, _ending_of(error, tail, run))
    finally:
        run.close()


def run_of(pack: Pack, launcher: Launcher | None = None, pace: Pace = Pace()) -> Run:
    """Return the run of a pack of either kind."""
    if isinstance(pack, LaunchedPack):
        return launched_run(pack, launcher)
    assert isinstance(pack, StackedPack), pack
    return PackedRun(pack, pace)


def _ending_of(error: BaseException, tail: str, run: Run) -> Ending:
    """Return the ending of a pack whose trainer raised ``error``."""
    if isinstance(error, BadCheckpoint):
        return Refused(tail)
    if is_out_of_memory(error):
        return OutOfMemory(tail, run.at_a_time, run.waited)
    return Failed(tail, run.waited)
