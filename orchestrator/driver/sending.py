"""What a pack gets when it is sent to a worker: the folder of its trials, and the losses of earlier ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.base.messages import LaunchedPack, Pack
from orchestrator.detection.slow import bars_of
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.spec import Sweep
from orchestrator.worker.trial_folder import TRIALS


def ready(pack: Pack, sweep: Sweep, folder: Path, ledger: LedgerReader) -> Pack:
    """``pack`` as it is sent, with the bars of the trials that have a result now."""
    if sweep.stopping.slow is not None:
        pack = replace(pack, bars=bars_of(sweep.stopping.slow, pack.steps, ledger.rivals(pack.steps)))
    if isinstance(pack, LaunchedPack):
        trials_folder = str((folder / TRIALS).absolute())
        pack = replace(pack, launch=replace(pack.launch, trials_folder=trials_folder))
    return pack
