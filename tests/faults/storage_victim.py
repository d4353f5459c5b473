"""A driver in small: every kind of file that a run writes, once, with a word to stdout after each.

    python storage_victim.py FOLDER

Run by tests under a fault that hits one system call.
"""

import os
import sys
from pathlib import Path

import numpy as np
from sweep_cases import finished, sweep_of

from orchestrator.base.errors import StorageError, printable
from orchestrator.base.files import LEDGER, atomic_write, remove, sweep_lock, unneeded_checkpoints, write_checkpoint
from orchestrator.base.packs import Checkpoint, Member, Report
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import pack_of
from orchestrator.ledger.writer import LedgerWriter

SWEEP = sweep_of("axes: {lr: {values: [0.1, 0.2]}}\ntracking: {enabled: false}\n")
OLD, NEW = b"old " * 5000, b"new " * 5000


def curves(first: int) -> dict:
    steps = np.arange(first, first + 10)
    return {trial.trial_id: {"step": steps, "loss": 1.0 / (1 + steps)} for trial in SWEEP.trials}


def work(folder: Path) -> None:
    """Train two trials on paper."""
    with sweep_lock(folder), LedgerWriter(folder / LEDGER) as ledger:
        ledger.plan("quadratic", SWEEP.trials, driver_facts(SWEEP))
        ledger.release_abandoned()
        if all(status == "finished" for status, _ in ledger.statuses().values()):
            say("nothing to do")
            return
        members = [Member(trial.trial_id, trial.config, trial.seed) for trial in SWEEP.trials]
        pack = pack_of(SWEEP, members, 0)
        ledger.start_pack(pack, "test")
        for number in range(3):
            checkpoint = Checkpoint(b"%d" % number * 3000, dict.fromkeys(pack.trial_ids, 10 * number))
            saved = write_checkpoint(folder, checkpoint.content)
            report = Report(pack.pack_id, 10, 0, 0.1, curves(10 * number) if number < 2 else {}, checkpoint=checkpoint)
            ledger.record(report, saved)
            remove(unneeded_checkpoints(folder, ledger.checkpoint_names()))
            say(f"checkpoint {number}")
        for trial_id in pack.trial_ids:
            ledger.record(Report(pack.pack_id, 20, 0, 0.2, {}, (finished(trial_id, "stable"),)))
            say(f"finished {trial_id}")
        ledger.end_pack(pack.pack_id, "done", "errored", "")
        remove(unneeded_checkpoints(folder, ledger.checkpoint_names()))
    atomic_write(folder / "map.csv", NEW)
    say("exported")


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    try:
        work(Path(sys.argv[1]))
    except (StorageError, OSError) as error:
        sys.stderr.write(f"error: {printable(str(error))}\n")
        sys.exit(4)
