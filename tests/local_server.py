"""A server of this machine, for tests that start one."""

import socket
import time
import urllib.request

import pytest


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for(url: str) -> None:
    """Wait until a server that was just started answers."""
    for _ in range(240):
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.25)
    pytest.fail(f"nothing answers at {url}")
