"""Run a pack, stacked or launched, as a generator of reports that never raises, whatever the trainer does.

The same code runs in the driver's process, in a Ray worker and in a Slurm job.
"""

from __future__ import annotations

import contextlib
import json
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from objectives.base import RankLost
from orchestrator.base.consumption import EnergyMeter, peak_memory_of_children
from orchestrator.base.errors import StorageError
from orchestrator.base.files import atomic_write
from orchestrator.base.packs import Ending, Failed, LaunchedPack, OutOfMemory, Pack, Refused, Report, StackedPack
from orchestrator.worker.checkpoints import BadCheckpoint
from orchestrator.worker.custom_run import CustomRun
from orchestrator.worker.forked_run import launched_run
from orchestrator.worker.launcher import TRIAL_MARK, Launcher
from orchestrator.worker.machine import is_out_of_memory
from orchestrator.worker.packed_run import Pace, PackedRun
from orchestrator.worker.points import TrialFolder
from orchestrator.worker.shared_run import SharedRun

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
    processes of a trial of several, by default on this machine; an objective's pack keeps ``pace``.
    """
    started = time.perf_counter()
    run: PackedRun | CustomRun
    if isinstance(pack, LaunchedPack):
        run = launched_run(pack, launcher)
    else:
        assert isinstance(pack, StackedPack), pack
        run = PackedRun(pack, pace) if pack.workers == 1 else SharedRun(pack, pace, launcher)
    try:
        reports = run.reports(started, wants_pause)
        # Processes of a trial on several machines would be measured on one of them.
        yield from (
            _with_usage(reports, run.pack, run.launcher)
            if isinstance(run, CustomRun) and run.pack.launch.workers == 1
            else reports
        )
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
    if isinstance(error, RankLost) and isinstance(run, SharedRun):
        return run.ending(error)
    if is_out_of_memory(error):
        return OutOfMemory(tail, run.at_a_time, run.waited)
    return Failed(tail, run.waited)


def _with_usage(reports: Iterator[Report], pack: LaunchedPack, launcher: Launcher) -> Iterator[Report]:
    """Yield the reports of a trial whose processes are on this machine, its result with their memory and energy."""
    meter, peak = EnergyMeter(pack.launch.gpus_per_worker, variable=TRIAL_MARK), None
    joules: float | None = None
    kept = TrialFolder(Path(pack.launch.trials_folder) / pack.trial_ids[0]).joules
    environment = {"energy": meter.source} if meter.source else {}
    for report in reports:
        peaks = (peak, launcher.peak_memory, peak_memory_of_children(TRIAL_MARK))
        peak = max((each for each in peaks if each is not None), default=None)
        if (spent := meter.take()) is not None:
            # The first report comes after an attempt that does not resume has emptied the trial's folder.
            joules = (_kept_joules(kept) if joules is None else joules) + spent
            with contextlib.suppress(StorageError):
                atomic_write(kept, json.dumps(joules))
        finished = tuple(replace(result, peak_memory=peak, joules=joules) for result in report.finished)
        has_facts = bool(report.environment)
        facts = {**report.environment, **(environment if has_facts else {})}
        yield replace(report, finished=finished, environment=facts, peak_memory=peak)


def _kept_joules(path: Path) -> float:
    """Return the energy of earlier attempts that this one goes on from."""
    try:
        return float(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return 0.0
