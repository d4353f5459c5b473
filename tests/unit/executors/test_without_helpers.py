"""Which processes a private Ray starts: those that nobody uses are left out, and only while it starts."""

import contextlib

from ray._private.node import Node

from orchestrator.executors.ray_start import without_helpers

HELPERS = ("start_monitor", "start_api_server", "start_log_monitor")


def test_helpers_are_left_out_while_a_private_ray_starts_and_are_there_again_also_after_a_failure() -> None:
    own = [getattr(Node, name) for name in HELPERS]  # a version of Ray without one of them fails here
    with contextlib.suppress(ConnectionError), without_helpers():
        assert not {*own} & {getattr(Node, name) for name in HELPERS}
        assert all(getattr(Node, name)(None) is None for name in HELPERS)
        raise ConnectionError
    assert [getattr(Node, name) for name in HELPERS] == own
