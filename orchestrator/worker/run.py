"""Runs one pack, or one trial of a custom trainer, as a generator of reports that never raises.

The same code runs in this process, in a Ray worker or anywhere else, for any error of the trainer.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from typing import Protocol

from orchestrator.base.packs import LaunchedPack, Pack, StackedPack
from orchestrator.base.reports import Ending, Failed, OutOfMemory, Refused, Report
from orchestrator.worker.checkpoints import BadCheckpoint
from orchestrator.worker.forked_run import launched_run
from orchestrator.worker.machine import is_out_of_memory
from orchestrator.worker.packed_run import Pace, PackedRun
from orchestrator.worker.ranks import RankLauncher

_ERROR_LINES = 30


class Run(Protocol):
    """A pack in training, stacked or launched."""

    @property
    def at_a_time(self) -> int:
        """Members that train together."""

    @property
    def waited(self) -> tuple[str, ...]:
        """Trials that wait for a place among those that train."""

    def reports(self, started: float, wants_pause: Callable[[], bool]) -> Iterator[Report]:
        """Train, with a report about every second and a last one that has an ending. May raise anything."""

    def report(self, started: float, ending: Ending | None = None) -> Report:
        """Everything since the last report."""

    def close(self) -> None:
        """Release all that it holds; this changes no result."""


def never() -> bool:
    """A pack that is never asked to pause."""
    return False


def run_pack(
    pack: Pack,
    wants_pause: Callable[[], bool] = never,
    launcher: RankLauncher | None = None,
    pace: Pace = Pace(),
) -> Iterator[Report]:
    """Train ``pack`` to its end, yielding a report about every second, one for each checkpoint, and a last one.

    Once ``wants_pause()``, called at every report, is true, the last report is a checkpoint. The processes of a custom
    trainer run on ``launcher``, by default all on this machine; an objective's pack keeps
    ``pace``.
    """
    started = time.perf_counter()
    run = run_of(pack, launcher, pace)
    try:
        yield from run.reports(started, wants_pause)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # sys.exit() in a trainer is an error of the trainer too
        tail = "".join(traceback.format_exc().splitlines(keepends=True)[-_ERROR_LINES:])
        yield run.report(started, _ending_of(error, tail, run))
    finally:
        run.close()


def run_of(pack: Pack, launcher: RankLauncher | None = None, pace: Pace = Pace()) -> Run:
    """The run of a pack of either kind."""
    if isinstance(pack, LaunchedPack):
        return launched_run(pack, launcher)
    assert isinstance(pack, StackedPack), pack
    return PackedRun(pack, pace)


def _ending_of(error: BaseException, tail: str, run: Run) -> Ending:
    """The ending of a pack whose trainer raised ``error``."""
    if isinstance(error, BadCheckpoint):
        return Refused(tail)
    if is_out_of_memory(error):
        return OutOfMemory(tail, run.at_a_time, run.waited)
    return Failed(tail, run.waited)
