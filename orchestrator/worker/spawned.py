"""A process of a custom trainer that starts as a program of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

# Names the trial in the environment of its processes, and of all that they start.
TRIAL_MARK = "SWEEP_TRIAL_PROCESS"
_SET_PARENT_DEATH_SIGNAL = 1
with contextlib.suppress(OSError):
    _LIBC = ctypes.CDLL(None)


class StartedProcess(Protocol):
    """A process in a session of its own, whose output can be read from the descriptor ``output``."""

    output: int

    def returncode(self) -> int | None:
        """Its exit status, minus the signal's number where one killed it; None while it runs.

        Until `release` its id and that of its group are not reused.
        """

    def signal(self, number: int) -> None:
        """Send a signal to its group."""

    def release(self) -> None:
        """Forget it, once it has been killed."""


class Spawned:
    """A program; see `StartedProcess` for each method."""

    def __init__(
        self,
        command: Sequence[str],
        folder: str,
        environment: Mapping[str, str],
        ignored: signal.Signals | None = None,
    ) -> None:
        """Start ``command`` in ``folder`` with exactly this ``environment``; it ignores one signal.

        Raises OSError and ValueError.
        """
        self._process = subprocess.Popen(
            list(command),
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C goes to the driver only, and the group can be signalled
            preexec_fn=lambda: _prepare(ignored),
        )
        assert self._process.stdout is not None  # a pipe was asked for
        self._stdout = self._process.stdout
        self.output = self._stdout.fileno()

    def returncode(self) -> int | None:
        """Its exit status; it is not reaped."""
        if self._process.returncode is not None:
            return self._process.returncode
        found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def signal(self, number: int) -> None:
        """Send a signal to its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def release(self) -> None:
        """Reap it."""
        self._process.wait()
        self._stdout.close()


def _prepare(ignored: signal.Signals | None) -> None:
    die_with_this_thread()
    if ignored is not None:
        signal.signal(ignored, signal.SIG_IGN)


def die_with_this_thread() -> None:
    """In a child: the kernel kills it when the thread that started it ends, for any reason."""
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
