"""Which processes a private Ray starts: those that nobody uses are left out, and only while it starts."""

import contextlib

import pytest
from ray._private.node import Node
from ray.tune.execution import class_cache

from orchestrator.executors.ray_start import inherit_environment, without_helpers

HELPERS = ("start_monitor", "start_api_server", "start_log_monitor")


def test_helpers_are_left_out_while_a_private_ray_starts_and_are_there_again_also_after_a_failure() -> None:
    own = [getattr(Node, name) for name in HELPERS]  # a version of Ray without one of them fails here
    with contextlib.suppress(ConnectionError), without_helpers():
        assert not {*own} & {getattr(Node, name) for name in HELPERS}
        assert all(getattr(Node, name)(None) is None for name in HELPERS)
        raise ConnectionError
    assert [getattr(Node, name) for name in HELPERS] == own


def test_tune_gives_its_workers_no_environment_for_which_those_that_are_ready_would_not_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def environment() -> dict[str, str]:
        actor = class_cache._ActorClassCache().get(type("Trained", (), {}))
        return actor._default_options["runtime_env"].get("env_vars", {})

    for name in ("DEFAULT_ENV_VARS", "ENV_VARS_TO_PROPAGATE"):
        monkeypatch.setattr(class_cache, name, getattr(class_cache, name))  # for the other tests of this process
    assert environment()  # a version of Ray without one fails here
    inherit_environment()
    assert environment() == {}
