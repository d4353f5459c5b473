"""`sweep page`: serve the page of a sweep, or a list of all, on this machine."""

from __future__ import annotations

import contextlib
import webbrowser
from pathlib import Path

from orchestrator.base.errors import EXIT_OK, InputError, Problem
from orchestrator.commands.printing import Answer


def page(results: Path, name: str | None, port: int | None, opens: bool) -> Answer:
    """Serve the page of the sweep ``name``, or the index of all, on loopback until Ctrl-C, which is no error.

    Raises InputError where there is no sweep yet, or the port is taken.
    """
    from orchestrator.pages.server import address_of, listening_socket, serve

    if not results.is_dir():
        raise InputError(Problem(str(results), "", "is no folder of sweeps", "`sweep run FILE` makes one"))
    listener = listening_socket(port)
    address = address_of(listener, name)
    yield f"page at {address} (Ctrl-C ends it)"
    if opens:
        webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):
        serve(listener, results)
    return EXIT_OK
