"""What starts a private Ray, or reaches a running one. Imported by `ray_tune`, which sets Ray's environment first."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from ray._private.node import Node
from ray.tune.execution import class_cache

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.processes import children

CONNECT_TIMEOUT_S = 5.0


@contextlib.contextmanager
def without_helpers() -> Iterator[None]:
    """Let a private Ray start without autoscaler, dashboard and the reader of logs, which nobody uses.

    They would take seconds of the cores on which workers start. A Ray without these methods starts as it is.
    """
    names = ("start_monitor", "start_api_server", "start_log_monitor")
    own = {name: getattr(Node, name) for name in names if hasattr(Node, name)}
    for name in own:
        setattr(Node, name, lambda self, **options: None)
    try:
        yield
    finally:
        for name, method in own.items():
            setattr(Node, name, method)


def inherit_environment() -> None:
    """Let Tune's workers inherit this process's environment, as all processes of a private Ray do.

    Tune would pass some variables to them as an environment of its own, for which the workers that are ready do not
    count: others would start, seconds later. A Ray without these constants does so.
    """
    for name, nothing in (("DEFAULT_ENV_VARS", {}), ("ENV_VARS_TO_PROPAGATE", frozenset())):
        if hasattr(class_cache, name):
            setattr(class_cache, name, nothing)


def check_reachable(address: str) -> None:
    """Raise InputError if nothing listens at host:port, where Ray itself would retry for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        if address != "auto":
            raise InputError(Problem("--address", "", f"{address!r} is not HOST:PORT", "write e.g. 10.0.0.1:6379"))
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        remedy = "`ray status` on the cluster shows its address; without --address sweep starts a private Ray"
        raise InputError(Problem("--address", "", f"nothing answers at {address}: {error}", remedy)) from None


def ray_processes() -> dict[int, str]:
    """Return the essential processes of a private Ray, by id."""
    return {pid: name for pid, name in children(os.getpid()).items() if name in ("gcs_server", "raylet")}
