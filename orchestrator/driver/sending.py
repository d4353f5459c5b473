"""What a pack gets when it is sent to a worker: the folder of its trials, and the losses of earlier ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.base.packs import LaunchedPack, Pack
from orchestrator.detection.slow import rung_thresholds
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.spec import Sweep
from orchestrator.worker.trial_folder import TRIALS


def ready(pack: Pack, sweep: Sweep, folder: Path, ledger: LedgerReader) -> Pack:
    """``pack`` as it is sent, with the rung thresholds that follow from the trials that have a result now."""
    if sweep.stopping.slow is not None:
        pack = replace(
            pack, rung_thresholds=rung_thresholds(sweep.stopping.slow, pack.steps, ledger.reference_trials(pack.steps))
        )
    if isinstance(pack, LaunchedPack):
        trials_folder = str((folder / TRIALS).absolute())
        pack = replace(pack, launch=replace(pack.launch, trials_folder=trials_folder))
    return pack
