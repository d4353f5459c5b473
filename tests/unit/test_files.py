from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import InputError, StorageError
from orchestrator.files import atomic_write, sweep_folder, sweep_lock, write_if_changed


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "map.csv"
    atomic_write(path, "old")

    def fail(*arguments) -> None:
        raise OSError(28, "No space left on device")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, step, fail)
            with pytest.raises(StorageError, match=r"map\.csv: No space left on device .*MiB free"):
                atomic_write(path, "new")
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["map.csv"]


def test_content_that_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    write_if_changed(path, "a")
    before = path.stat().st_mtime_ns
    write_if_changed(path, "a")
    assert path.stat().st_mtime_ns == before
    write_if_changed(path, "b")
    assert path.read_text() == "b"


def test_a_second_process_is_told_who_holds_the_sweep_and_a_dead_holder_holds_nothing(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from orchestrator.files import sweep_lock
with sweep_lock(Path({str(tmp_path)!r})):
    print("held", flush=True)
    sys.stdin.read()
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match=f"in use by pid {holder.pid} since"), sweep_lock(tmp_path):
            pass
        holder.kill()
    with sweep_lock(tmp_path):
        assert (tmp_path / "lock").read_text().startswith(f"pid {os.getpid()}")


def test_a_sweep_is_found_by_name_or_folder_and_a_wrong_name_lists_what_there_is(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "ledger.db").touch()
    assert sweep_folder("mine", tmp_path) == sweep_folder(str(folder), Path("elsewhere")) == folder
    with pytest.raises(InputError, match="there are: mine"):
        sweep_folder("other", tmp_path)
