"""Disks that are full, fail, or go away, and a driver that dies in the middle of a write."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fault_kit import need
from faults.storage_victim import NEW, OLD

from orchestrator.api.upkeep import gc
from orchestrator.base.files import LEDGER, read_checkpoint
from orchestrator.ledger.writer import LedgerWriter

ROOT = Path(__file__).parents[2]
CALLS = ("write", "pwrite64", "fsync", "fdatasync", "rename", "ftruncate", "unlink")
FAULTS = ("signal=SIGKILL", "error=ENOSPC", "error=EIO")


def victim(folder: Path, *prefix: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    script = str(ROOT / "tests/faults/storage_victim.py")
    return subprocess.run(
        [*prefix, sys.executable, script, str(folder)], capture_output=True, text=True, env=environment
    )


def assert_nothing_is_torn(folder: Path, acknowledged: str) -> None:
    """What was acknowledged is there, and every file is the old one or the new."""
    assert (folder / "map.csv").read_bytes() in (OLD, NEW)
    if "exported" in acknowledged:
        assert (folder / "map.csv").read_bytes() == NEW
    if not (folder / LEDGER).is_file():
        assert acknowledged == ""
        return
    with LedgerWriter(folder / LEDGER) as ledger:
        assert ledger.integrity() == []
        statuses = {trial_id: status for trial_id, (status, _) in ledger.statuses().items()}
        for line in acknowledged.splitlines():
            word, _, rest = line.partition(" ")
            if word == "finished":
                assert statuses[rest] == "finished"
        for pack in ledger.packs():
            for found in ledger.checkpoints(pack.pack_id):
                read_checkpoint(folder, found.name, found.sha256)
        assert ledger.stray_curves() == 0


# strace is not on every machine that `make test` must pass on.
pytestmark = pytest.mark.faults


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", CALLS)
def test_a_fault_at_the_nth_call_tears_nothing_and_the_next_run_completes(
    tmp_path: Path, fault: str, call: str
) -> None:
    need("strace")
    number, is_injected = 1, True
    while is_injected:
        folder, log = tmp_path / f"{call}{number}", tmp_path / "trace"
        folder.mkdir()
        (folder / "map.csv").write_bytes(OLD)
        options = ["-f", "-qq", "-o", str(log), "-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={number}"]
        done = victim(folder, "strace", *options)
        assert "Traceback" not in done.stderr, done.stderr
        is_injected = "INJECTED" in log.read_text() or "killed by SIGKILL" in log.read_text()
        assert is_injected or number > 1, "the call is never made"
        assert done.returncode in ((-9, 137, 4, 0) if is_injected else (0,)), (number, done)
        assert_nothing_is_torn(folder, done.stdout)
        again = victim(folder)
        assert again.returncode == 0, (number, again.stderr)
        list(gc(folder, exports=False, dry_run=False))
        assert not [path.name for path in folder.rglob(".*")]
        number += 1
    print(f"{fault} at {call}: {number - 2} times")
