"""A process of a custom trainer: its output, its end, and the end of all processes that it started."""

from __future__ import annotations

import os
import re
import select
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.base.processes import MARK, end_marked, new_mark
from orchestrator.worker.forked import ForkServer
from orchestrator.worker.spawned import TRIAL_MARK, Spawned, StartedProcess
from orchestrator.worker.trial_folder import OutputLog

_CHUNK_BYTES = 2**20
_LAST_BYTES = 16 * 2**10
_LONGEST_LINE = 500
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class CannotStart(Exception):
    """A command that cannot be run because of its program, folder, arguments or permissions."""


class Child:
    """A running command in its own session. Processes that it starts carry a mark, so daemons are found too."""

    def __init__(
        self,
        command: Sequence[str],
        folder: str,
        environment: Mapping[str, str],
        log: Path,
        server: ForkServer | None = None,
        ignored: signal.Signals | None = None,
    ) -> None:
        """Start ``command`` in ``folder``, as a fork of ``server`` if there is one, else a signal may be ``ignored``.

        Raises CannotStart, and StorageError for its ``log``.
        """
        self._mark, self._is_closed = uuid.uuid4().hex, False
        marks = {MARK: os.environ.get(MARK) or new_mark(), TRIAL_MARK: self._mark}
        if not os.path.isdir(folder):
            raise CannotStart(f"objective.folder {folder} is not a folder on this machine")
        self._log = OutputLog(log)
        try:
            self._process = _started(command, folder, {**os.environ, **environment, **marks}, server, ignored)
        except (OSError, ValueError) as error:
            self._log.close()
            cause = getattr(error, "strerror", None) or str(error)
            raise CannotStart(f"{command[0]!r} cannot be run: {cause}") from None
        self._is_at_end, self._last = False, b""
        os.set_blocking(self._process.output, False)

    def read(self, timeout_s: float = 0.0) -> bytes:
        """New output, at most 1 MiB; waits up to ``timeout_s`` for some. Raises StorageError."""
        if self._is_at_end:
            if self.returncode() is None:
                time.sleep(timeout_s)  # it has closed its output and still runs
            return b""
        if not self.is_readable(timeout_s):
            return b""
        content = os.read(self._process.output, _CHUNK_BYTES)
        self._is_at_end = not content
        self._last = (self._last + content)[-_LAST_BYTES:]
        self._log.write(content)
        return content

    def is_readable(self, timeout_s: float = 0.0) -> bool:
        """Whether there is something to read within ``timeout_s``."""
        return not self._is_at_end and bool(select.select([self._process.output], [], [], timeout_s)[0])

    def last_lines(self) -> list[str]:
        """The last lines of its output, each truncated to a readable length."""
        lines = _COLOURS.sub("", self._last.decode(errors="replace")).replace("\r", "\n").split("\n")
        return [line[:_LONGEST_LINE] for line in lines if line.strip()]

    def returncode(self) -> int | None:
        """Its exit status, minus the signal's number where one killed it; None while it runs."""
        return self._process.returncode()

    def terminate(self) -> None:
        """Ask it, and the processes in its group, to end."""
        self._process.signal(signal.SIGTERM)

    def close(self) -> None:
        """Kill it and everything it started, and complete its log."""
        if self._is_closed:
            return
        self._is_closed = True
        self._process.signal(signal.SIGKILL)
        end_marked(self._mark, variable=TRIAL_MARK)
        self._process.release()
        self._log.close()


def _started(
    command: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    server: ForkServer | None,
    ignored: signal.Signals | None,
) -> StartedProcess:
    if server is not None:
        try:
            return server.start(command, folder, environment)
        except OSError:
            server.close()  # it has been killed; the trial can do without it
    return Spawned(command, folder, environment, ignored)
