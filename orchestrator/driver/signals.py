"""The signals by which a user, a terminal or a scheduler asks a run to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

# Time for running packs to write a checkpoint when the run is stopped, in seconds.
PAUSE_S = 10.0


@contextlib.contextmanager
def stop_signals(request_stop: Callable[[int], None]) -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into a request to stop; a no-op outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, lambda received, _: request_stop(received)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
