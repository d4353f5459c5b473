"""An import that is killed, or that fills the disk, leaves the results as they were."""

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import thinned

from orchestrator.base.files import LEDGER
from orchestrator.importing.collecting import collect, record
from orchestrator.importing.options import import_options
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter

OPTIONS = import_options(axis=["lr"], outcome="loss")
# Kills itself at the call N of a function, or has files of at most N bytes.
VICTIM = """
import os, resource, signal, sys
from pathlib import Path
from orchestrator.importing import collecting
from orchestrator.importing.options import import_options
from orchestrator.ledger.writer import LedgerWriter
folder, table, kind, number = Path(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4])
owners = {"finish": (LedgerWriter, "_finish"), "curve": (LedgerWriter, "_add_curves"), "replace": (os, "replace")}
owner, name = owners.get(kind, (None, ""))
if owner is None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))
else:
    original, calls = getattr(owner, name), []
    def counted(*arguments):
        calls.append(None)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)
    setattr(owner, name, counted)
columns = {"step": "step", "loss": "loss"} if kind == "curve" else {"outcome": "loss"}
options = import_options(axis=["lr"], **columns)
collecting.record(folder, "made", collecting.collect([table], options, folder), replaces=True)
"""
KILLED = [("finish", 1), ("finish", 150), ("replace", 1), ("full", 4096), ("full", 65536), ("full", 131072)]
FAULTS = [(*fault, is_there) for fault in KILLED for is_there in (False, True)]
BY_DEFAULT = {("finish", 150, True), ("replace", 1, False), ("full", 65536, False), ("full", 131072, True)}


def table(path: Path, loss: float) -> Path:
    path.write_text("lr,loss\n" + "".join(f"{i},{loss + i}\n" for i in range(300)))
    return path


def losses(folder: Path) -> list[float | None]:
    with LedgerReader(folder / LEDGER) as ledger:
        return [trial.final_loss for trial in ledger.trials()]


@pytest.mark.parametrize(("kind", "number", "is_there"), thinned(FAULTS, BY_DEFAULT.__contains__))
def test_an_interrupted_import_changes_nothing(tmp_path: Path, kind: str, number: int, is_there: bool) -> None:
    folder, new = tmp_path / "made", table(tmp_path / "new.csv", 7.5)
    if is_there:
        record(folder, "made", collect([str(table(tmp_path / "old.csv", 2.5))], OPTIONS, tmp_path), replaces=False)
    command = [sys.executable, "-c", VICTIM, str(folder), str(new), kind, str(number)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if is_there and kind == "replace":
        assert ended.returncode == 0, ended.stderr  # one transaction, without a new file
    elif kind == "full":
        assert "StorageError" in ended.stderr
    else:
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    if is_there:
        assert losses(folder)[0] == (7.5 if kind == "replace" else 2.5)
    else:
        assert not (folder / LEDGER).exists()
        assert kind != "full" or [path.name for path in folder.iterdir()] == ["lock"]
    collected = collect([str(new)], OPTIONS, tmp_path)
    record(folder, "made", collected, replaces=is_there)
    assert losses(folder)[0] == 7.5
    assert not list(folder.glob(".*"))


def test_an_empty_ledger_of_an_earlier_version_is_filled(tmp_path: Path) -> None:
    LedgerWriter(tmp_path / "made" / LEDGER).close()
    collected = collect([str(table(tmp_path / "new.csv", 7.5))], OPTIONS, tmp_path)
    assert record(tmp_path / "made", "made", collected, replaces=False)
    assert len(losses(tmp_path / "made")) == 300


@pytest.mark.parametrize(("number", "is_there"), thinned(itertools.product((1, 3), (False, True)), (3, True).__eq__))
def test_an_import_of_curves_that_is_killed_changes_nothing(tmp_path: Path, number: int, is_there: bool) -> None:
    folder, curves = tmp_path / "made", tmp_path / "curves.csv"
    curves.write_text("lr,step,loss\n" + "".join(f"{run},{i},{9 - run}\n" for i in range(100) for run in range(4)))
    if is_there:
        record(folder, "made", collect([str(table(tmp_path / "old.csv", 2.5))], OPTIONS, tmp_path), replaces=False)
    command = [sys.executable, "-c", VICTIM, str(folder), str(curves), "curve", str(number)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    if is_there:
        assert losses(folder) == [2.5 + i for i in range(300)]
    else:
        assert not (folder / LEDGER).exists()
    options = import_options(axis=["lr"], step="step", loss="loss")
    record(folder, "made", collect([str(curves)], options, tmp_path), replaces=is_there)
    assert losses(folder) == [9.0, 8.0, 7.0, 6.0]
    assert not list(folder.glob(".*"))
