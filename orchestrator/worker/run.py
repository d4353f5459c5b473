"""Runs one pack, or one trial of a custom trainer, as a generator of reports that never raises.

The same code runs in this process, in a Ray worker or anywhere else, for any error of the trainer.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator

from orchestrator.messages import Pack, Report
from orchestrator.worker.checkpoints import BadCheckpoint
from orchestrator.worker.own_run import OwnRun, RankPlaces
from orchestrator.worker.packed_run import Pace, PackedRun
from orchestrator.worker.ways import is_out_of_memory

_ERROR_LINES = 30


def never() -> bool:
    """A pack that is never asked to pause."""
    return False


def run_pack(
    pack: Pack,
    wants_pause: Callable[[], bool] = never,
    places: RankPlaces | None = None,
    pace: Pace = Pace(),
) -> Iterator[Report]:
    """Train ``pack`` to its end, yielding a report about every second, one for each checkpoint, and a last one.

    Once ``wants_pause()``, called at every report, is true, the last report is a checkpoint. The processes of a custom
    trainer run on ``places``, by default all on this machine; an objective's pack keeps
    ``pace``.
    """
    started = time.perf_counter()
    run = PackedRun(pack, pace) if pack.launch is None else OwnRun(pack, places)
    try:
        yield from run.reports(started, wants_pause)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # sys.exit() in a trainer is an error of the trainer too
        tail = "".join(traceback.format_exc().splitlines(keepends=True)[-_ERROR_LINES:])
        kind = {"out_of_memory": is_out_of_memory(error), "is_refused": isinstance(error, BadCheckpoint)}
        yield run.report(started, is_last=True, error=tail, **kind)
    finally:
        run.close()
