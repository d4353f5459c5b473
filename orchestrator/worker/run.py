"""Run a pack, stacked or launched, as a generator of reports that never raises, whatever the trainer does.

The same code runs in the driver's process, in a Ray worker and in a Slurm job.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator

from orchestrator.base.packs import Ending, Failed, LaunchedPack, OutOfMemory, Pack, Refused, Report, StackedPack
from orchestrator.worker.checkpoints import BadCheckpoint
from orchestrator.worker.custom_run import CustomRun
from orchestrator.worker.forked_run import launched_run
from orchestrator.worker.launcher import Launcher
from orchestrator.worker.machine import is_out_of_memory
from orchestrator.worker.packed_run import Pace, PackedRun

_ERROR_LINES = 30


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
    run: PackedRun | CustomRun
    if isinstance(pack, LaunchedPack):
        run = launched_run(pack, launcher)
    else:
        assert isinstance(pack, StackedPack), pack
        run = PackedRun(pack, pace)
    try:
        yield from run.reports(started, wants_pause)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # sys.exit() in a trainer is an error too
        tail = "".join(traceback.format_exc().splitlines(keepends=True)[-_ERROR_LINES:])
        yield run.report(started, _ending_of(error, tail, run))
    finally:
        run.close()


def _ending_of(error: BaseException, tail: str, run: PackedRun | CustomRun) -> Ending:
    """Return the ending of a pack whose trainer raised ``error``."""
    if isinstance(error, BadCheckpoint):
        return Refused(tail)
    if is_out_of_memory(error):
        return OutOfMemory(tail, run.at_a_time, run.waited)
    return Failed(tail, run.waited)
