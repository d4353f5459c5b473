"""The lock of a sweep between two processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.base.files import (
    sweep_lock,
)


def test_a_second_process_is_told_who_holds_the_sweep_and_a_dead_holder_holds_nothing(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from orchestrator.base.files import sweep_lock
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
