"""`--executor auto` takes Ray where it gains more than its start costs."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from sweep_cases import sweep_with

import orchestrator
from orchestrator.api.running import run_lines
from orchestrator.driver import executor_choice
from orchestrator.driver.executor_choice import chosen_executor
from orchestrator.executors import INLINE


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> dict[str, float | None]:
    """The member-steps per second that a plan knows, and whose plan it is."""
    known: dict[str, float | None] = {"speed": 1e6}
    plan_of = executor_choice.plan_of

    def planned(*arguments: Any) -> Any:
        return dataclasses.replace(plan_of(*arguments), member_steps_per_second=known["speed"])

    monkeypatch.setattr(executor_choice, "plan_of", planned)
    return known


def test_what_is_over_before_ray_has_started_is_trained_here(tmp_path: Path, speed: dict[str, float | None]) -> None:
    name, why = chosen_executor(sweep_with(), tmp_path, None)
    assert name == INLINE
    assert "s of training" in why


def test_what_takes_longer_than_the_start_of_ray_goes_to_ray(tmp_path: Path, speed: dict[str, float | None]) -> None:
    speed["speed"] = 1.0
    assert chosen_executor(sweep_with(), tmp_path, None)[0] == "ray"


def test_a_speed_that_is_not_known_a_running_cluster_and_trials_of_several_processes_go_to_ray(
    tmp_path: Path, speed: dict[str, float | None]
) -> None:
    assert chosen_executor(sweep_with(), tmp_path, "127.0.0.1:6379")[0] == "ray"
    speed["speed"] = None
    assert chosen_executor(sweep_with(), tmp_path, None)[0] == "ray"


def test_without_ray_everything_is_trained_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    assert chosen_executor(sweep_with(), tmp_path, None)[0] == INLINE


@pytest.mark.usefixtures("without_files")
def test_a_run_says_where_it_trains_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speed: dict[str, float | None]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = list(run_lines(sweep_with(), Path("results"), "auto"))
    assert sum(str(line).startswith("executor: inline, ") for line in lines) == 1
    assert len(orchestrator.load("edge").trials) == len(sweep_with().trials)
