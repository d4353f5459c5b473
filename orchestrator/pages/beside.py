"""The server of pages beside a run: a process of its own, which ends with the run."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from orchestrator.base.processes import MARK, new_mark
from orchestrator.pages.server import serve

_GRACE_S = 5.0  # for the server to end
# Ends with its standard input, whose other end the run holds: also where the run is killed.
_BESIDE = "import sys; from orchestrator.pages.beside import serve_beside; serve_beside(*sys.argv[1:])"


@contextlib.contextmanager
def page_beside(listener: socket.socket, results: Path) -> Iterator[None]:
    """Serve the pages of ``results`` on ``listener`` from a process of its own, of low priority, during the block."""
    command = [sys.executable, "-c", _BESIDE, str(listener.fileno()), str(results.absolute())]
    with listener:
        server = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, MARK: new_mark()},
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C is for the run, which ends the page last
        )
    try:
        yield
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(_GRACE_S)
        server.kill()  # no effect if it has ended
        server.communicate()


def serve_beside(handle: str, results: str) -> None:
    """Serve on the open socket ``handle`` until standard input ends."""
    os.nice(10)
    serve(socket.socket(fileno=int(handle)), Path(results), sys.stdin.read)
