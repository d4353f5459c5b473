"""Packs that resume where an interrupted or lost attempt at the same trials stopped."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from orchestrator.base.errors import StorageError
from orchestrator.base.files import read_checkpoint
from orchestrator.base.packs import Checkpoint, Pack, StackedPack
from orchestrator.driver.packing import pack_of
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.sweepfile.spec import Sweep


def resumed_pack(
    sweep: Sweep, ledger: LedgerWriter, folder: Path, pack_id: str, trial_ids: Collection[str], width: int | None = None
) -> tuple[Pack | None, list[str]]:
    """The pack that resumes ``trial_ids`` of ``pack_id`` from its last good checkpoint; None without one.

    The second value lists problems of checkpoints that cannot be used.
    """
    faults = []
    for found in ledger.checkpoints(pack_id):
        try:
            content = read_checkpoint(folder, found.name, found.sha256)
        except StorageError as error:
            faults.append(str(error))
            continue
        members = ledger.members(pack_id)
        skip = frozenset(member.trial_id for member in members) - set(trial_ids)
        steps_ahead = (len(members) - len(skip)) * members[0].config["steps"]
        going_on = pack_of(sweep, members, steps_ahead, width)
        assert isinstance(going_on, StackedPack), "only stacked packs have checkpoints"
        return replace(going_on, resume=Checkpoint(content, found.ages), skip=skip), faults
    return None, faults
