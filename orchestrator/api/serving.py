"""`sweep ui`: serve MLflow's pages on this machine."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile
import webbrowser
from pathlib import Path

from orchestrator.base.errors import EXIT_OK, InputError, Problem, SweepError
from orchestrator.base.processes import MARK, new_mark
from orchestrator.mirrors.mlflow_store import STORE, rehome, run_pages, server_command, tracking_uri
from orchestrator.render.printing import Lines
from orchestrator.sweepfile.sections import TrackingConfig

_SHOWN_LINES = 15  # of a server that has failed


def ui(results: Path, uri: str | None, port: int) -> Lines:
    """Serve MLflow's pages on loopback until Ctrl-C. Raises InputError, SweepError."""
    store = tracking_uri(TrackingConfig(uri=uri), results)
    if uri is None:
        if not (results / STORE).is_file():
            raise InputError(Problem(str(results / STORE), "", "no MLflow store yet", "`sweep run FILE` creates one"))
        with contextlib.suppress(sqlite3.Error):  # MLflow reports errors of its store
            rehome(results / STORE, results)
    address = f"http://127.0.0.1:{port}"
    yield f"MLflow at {address} (Ctrl-C ends it)"
    try:
        marked = {**os.environ, MARK: new_mark()}
        command = server_command(store, results, port, sys.executable)
        log = tempfile.TemporaryFile()  # noqa: SIM115 - MLflow logs every request; shown only where it fails
        # Files that it writes are private to this user.
        server = subprocess.Popen(command, env=marked, umask=0o077, stdout=log, stderr=log)
    except OSError as error:
        raise SweepError(f"cannot start MLflow: {error}") from error
    try:
        yield from run_pages(store, address)
        code = server.wait()
        log.seek(0)
        yield from log.read().decode(errors="replace").splitlines()[-_SHOWN_LINES:]
        return code
    except KeyboardInterrupt:
        return EXIT_OK
    finally:
        server.terminate()  # no effect if it has ended
        server.wait()


def page(results: Path, name: str | None, port: int | None, opens: bool) -> Lines:
    """Serve the page of the sweep ``name``, or the index of all, on loopback until Ctrl-C.

    Raises InputError without a folder of results, or if the port is taken.
    """
    from orchestrator.pages.server import address_of, listening_socket, serve

    if not results.is_dir():
        raise InputError(Problem(str(results), "", "is not a folder of sweeps", "`sweep run FILE` makes one"))
    listener = listening_socket(port)
    address = address_of(listener, name)
    yield f"page at {address} (Ctrl-C ends it)"
    if opens:
        webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):
        serve(listener, results)
    return EXIT_OK
