"""Serves the pages of the sweeps under results/ on this machine, to this machine alone. It only reads."""

from __future__ import annotations

import contextlib
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from orchestrator.base.environment import OWN_PYTHON
from orchestrator.base.errors import SweepError
from orchestrator.base.files import sweep_names
from orchestrator.base.processes import MARK, new_mark
from orchestrator.pages import answers
from orchestrator.pages.curves import curves
from orchestrator.pages.data import as_script
from orchestrator.pages.index import SweepIndex
from orchestrator.pages.live import LivePage
from orchestrator.pages.loopback import Listener, LoopbackServer

_MOST_CURVES = 1000  # asked for at a time
_MOST_ANSWERS = 4  # in computation or waiting for it
_STEPS = re.compile(r"(\d{1,15}):(\d{1,15})", re.ASCII)


class PageServer(LoopbackServer):
    """The pages of the sweeps in the folder ``results``."""

    def __init__(self, listener: Listener, results: Path) -> None:
        """Take over ``listener``."""
        super().__init__(listener)
        self._results = results
        self._index = SweepIndex(results)
        self._pages: dict[str, LivePage] = {}
        self._lock, self._lock_of_answers = threading.Lock(), threading.Lock()  # several browsers may ask
        self._places = threading.BoundedSemaphore(_MOST_ANSWERS)
        self._last_answer_s = -math.inf

    def is_open_somewhere(self) -> bool:
        """Whether a browser has a page open: it asked for news a moment ago."""
        return time.monotonic() - self._last_answer_s < _LAST_NEWS_S

    def answer(self, target: str) -> tuple[str, str] | None:
        """Type and text of what is at ``target``, the path and query of a request; None if nothing is.

        Raises SweepError where a ledger cannot be read.
        """
        self._last_answer_s = time.monotonic()
        parts = urlsplit(target)
        if parts.path == "/":
            with self._lock:
                return "text/html", self._index.html()
        name, slash, rest = parts.path.removeprefix("/").partition("/")
        # Only the name of a folder that is there can be asked for, so no path leads out of the results.
        name, names = unquote(name), sweep_names(self._results)
        if not slash or name not in names:
            return None
        with self._lock:
            page = self._pages.setdefault(name, LivePage(self._results / name))
        words = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if rest == "":
            return "text/html", page.page()
        if rest == "answers":
            with self._computing():
                return "text/html", page.answers()
        found = self._reply(page, name, names, rest, words)
        return None if found is None else ("application/json", as_script(found))

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        """Let one answer be computed at a time, since the trials need the processor, and a few wait for it."""
        if not self._places.acquire(blocking=False):
            raise SweepError(f"{_MOST_ANSWERS} answers are being computed: ask again")
        try:
            with self._lock_of_answers:
                yield
        finally:
            self._places.release()

    def _reply(
        self, page: LivePage, name: str, names: Sequence[str], rest: str, words: Mapping[str, str]
    ) -> dict[str, Any] | list[Any] | None:
        """What the page of the sweep ``name`` asks for at ``rest`` with ``words``; None if there is no such thing."""
        folder = self._results / name
        if rest == "news":
            return page.news(words.get("since", ""))
        if rest == "curves":
            trial_ids = words.get("trials", "").split(",")[:_MOST_CURVES]
            return curves(folder, trial_ids, words.get("reading"), _between(words.get("steps", "")))
        if rest == "others":
            return [other for other in names if other != name]
        with self._computing():
            if rest == "diagnosis":
                return answers.diagnosis(folder, words.get("trial", ""))
            if rest == "comparison" and words.get("with") in names:
                return answers.comparison(folder, self._results / words["with"])
        return None


def _between(text: str) -> tuple[int, int] | None:
    """The steps of FIRST:LAST; None for anything else."""
    steps = _STEPS.fullmatch(text)
    return None if steps is None else (int(steps[1]), int(steps[2]))


def serve(listener: Listener, results: Path, until: Callable[[], object] | None = None) -> None:
    """Serve the pages of ``results`` for ever, or until ``until`` returns and open pages have had the last news.

    Closes ``listener``.
    """
    with PageServer(listener, results) as server:
        if until is None:
            server.serve_forever()
            return
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        until()
        if server.is_open_somewhere():
            time.sleep(_LAST_NEWS_S)
        server.shutdown()


_GRACE_S = 5.0  # for the server to end
_LAST_NEWS_S = 2.5  # in which each open page asks for news: they ask every second


@contextlib.contextmanager
def page_beside(listener: Listener, results: Path) -> Iterator[None]:
    """Serve the pages of ``results`` on ``listener`` from a process of its own, of low priority, during the block."""
    command = [*OWN_PYTHON, "-m", "orchestrator.pages.server", str(listener.fileno()), str(results.absolute())]
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
    assert server.stdin is not None, "it is a pipe"
    server.stdin.write(f"{listener.token}\n".encode())  # other users can see arguments
    server.stdin.flush()
    try:
        yield
    finally:
        server.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(_GRACE_S + _LAST_NEWS_S)
        server.kill()  # no effect if it has ended
        server.wait()


def serve_beside(handle: str, results: str) -> None:
    """Serve on the open socket ``handle`` until standard input ends."""
    os.nice(10)
    listener = Listener(fileno=int(handle))
    listener.token = sys.stdin.readline().strip()
    serve(listener, Path(results), sys.stdin.read)


if __name__ == "__main__":
    serve_beside(*sys.argv[1:])
