"""A run followed while its log grows: the same as a replay of the whole log, wherever it was cut and restarted."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_styles import READ, text_of
from sweep_cases import learning
from tiers import one_of

from orchestrator.detection.config import StoppingConfig
from orchestrator.logs.columns import Columns, MetricsConfig
from orchestrator.logs.files import find_logs, read_log
from orchestrator.logs.following import StreamedLog, followed_log
from orchestrator.logs.point_maker import Point
from orchestrator.maps import followed
from orchestrator.maps.followed import FollowedRun
from orchestrator.maps.replay import replay_logs

DATA = Path(__file__).parents[2] / "data" / "logs"
CONFIG = StoppingConfig()


def lines(losses: np.ndarray, first: int = 0) -> str:
    return "".join(f"step {first + i} loss {loss:.4f} grad_norm 1.0\n" for i, loss in enumerate(losses))


def followed_in_parts(content: bytes, cuts: list[int]) -> FollowedRun:
    """The run of a log whose ``content`` comes in parts."""
    ends = sorted({min(cut, len(content)) for cut in cuts} | {len(content)})
    parts = iter([*(content[a:b] for a, b in zip([0, *ends], ends, strict=False) if a < b), None])
    log, run = StreamedLog("a log", lambda: next(parts), MetricsConfig()), FollowedRun(CONFIG)
    for points in log.read():
        run.add(points)
    run.add(log.finish())
    assert log.is_over
    return run


def assert_is_replay(run: FollowedRun, path: Path) -> None:
    (replayed,) = replay_logs([read_log(path, Columns())], CONFIG)
    record, result = run.conclude("a log")
    assert (result.outcome, result.onset_step) == (replayed.result.outcome, replayed.result.onset_step)
    assert record.episodes == replayed.record.episodes
    assert run.result("a log").outcome == replayed.result.outcome


@pytest.mark.parametrize("style", one_of(5, READ))
@settings(max_examples=3)
@given(cuts=st.lists(st.integers(1, 20_000), max_size=12))
def test_a_log_of_any_style_in_any_parts_comes_to_what_a_replay_says(style, cuts, tmp_path_factory) -> None:
    text = text_of(READ[style])
    path = tmp_path_factory.mktemp("log") / ("run.csv" if style == "CSV" else "run.log")
    path.write_text(text)
    assert_is_replay(followed_in_parts(text.encode(), cuts), path)


@pytest.mark.parametrize("seed", range(12))
def test_a_run_that_was_killed_and_went_back_to_a_checkpoint_comes_to_what_a_replay_says(
    seed: int, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(followed, "_BETWEEN_STATES", 100)
    rng = np.random.default_rng(seed)
    losses = np.round(learning(600, changes=[(400, 415, 2.0)]), 4)
    text, at = "", 0
    for end in sorted(rng.integers(1, 600, seed % 4).tolist()):
        text += lines(losses[at:end], at)
        at = max(0, end - int(rng.integers(1, 150)))  # less is written again than is new, so steps count
    text += lines(losses[at:], at)
    path = tmp_path / "run.log"
    path.write_text(text)
    assert_is_replay(followed_in_parts(text.encode(), rng.integers(1, 30_000, 8).tolist()), path)


def test_a_run_that_begins_anew_in_the_same_log_is_another_run(tmp_path: Path) -> None:
    text = lines(learning(1500, changes=[(900, 1400, 5.0)])) + lines(learning(800, seed=1))
    (tmp_path / "run.log").write_text(text)
    run = followed_in_parts(text.encode(), [1000, 40_000])
    assert_is_replay(run, tmp_path / "run.log")
    assert (run.num_points, run.record.episodes) == (800, ())


def test_a_run_that_returns_says_where_to_and_one_with_dropped_points_goes_on(monkeypatch) -> None:
    monkeypatch.setattr(followed, "_BETWEEN_STATES", 100)
    monkeypatch.setattr(followed, "MOST_POINTS", 1000)
    losses = learning(3000, changes=[(2700, 2720, 2.0)])
    points = [Point(step, loss, 1.0, {}) for step, loss in enumerate(losses.tolist())]
    run = FollowedRun(CONFIG)
    assert run.add(points[:2900]) is None
    assert len(run.log("it", Columns()).loss_N) <= 1000
    assert run.add(points[2650:]) == 2650
    assert run.num_points == 3000
    assert [episode.onset_step for episode in run.record.episodes] == [2700]
    assert run.conclude("it")[1].outcome == "spiked"
    assert run.add([Point(10, 2.0, None, {})]) == 10
    assert run.num_points == 1, "what was so long ago is not known: another run"


def test_norms_that_come_late_or_never_are_no_broken_ones() -> None:
    run = FollowedRun(CONFIG)
    run.add([Point(step, 3.0, None, {}) for step in range(50)])
    run.add([Point(step, 3.0, None if step < 80 else 7.0, {}) for step in range(50, 120)])
    assert run.record.num_broken == 0
    assert run.share_not_finite() == 0.0
    run.add([Point(120, math.nan, math.nan, {})])
    assert (run.record.lost, run.share_not_finite()) == ("not_finite", 0.01)


@pytest.mark.parametrize("path", find_logs(DATA), ids=lambda path: path.name)
def test_a_log_of_another_tool_comes_to_what_a_replay_says(path: Path) -> None:
    log, run = followed_log(str(path), Columns(), MetricsConfig()), FollowedRun(CONFIG)
    for points in log.read():
        run.add(points)
    run.add(log.finish())
    assert_is_replay(run, path)


def test_the_first_step_of_a_long_run_is_known_after_its_first_points_are_dropped(monkeypatch) -> None:
    monkeypatch.setattr(followed, "MOST_POINTS", 100)
    run = FollowedRun(CONFIG)
    run.add([Point(10 * i, 3.0, None, {}) for i in range(150)])
    assert (run.first_step, run.num_points, run.every) == (0, 150, 10)


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("num", [2, 8])
def test_of_several_processes_the_first_line_of_each_step_counts_as_in_a_replay(num: int, lag: int, tmp_path) -> None:
    losses = learning(1000)
    spiked = learning(1000, changes=[(600, 630, 2.0)])
    order = sorted((step + lag * rank, rank, step) for step in range(1000) for rank in range(num))
    rows = [lines((spiked if rank == 0 else losses)[step : step + 1], step) for _, rank, step in order]
    path = tmp_path / "train.log"
    path.write_text("".join(rows))
    run = followed_in_parts(path.read_bytes(), [*range(0, path.stat().st_size, 5000)])
    assert_is_replay(run, path)
    assert (run.result("it").outcome, run.num_points) == ("spiked", 1000)


def test_several_processes_that_are_restarted_go_back_together() -> None:
    run, losses = FollowedRun(CONFIG), learning(1000)

    def add(steps: range) -> int | None:
        return run.add([Point(step, losses[step], None, {}) for step in steps for _ in range(2)])

    assert add(range(10)) is None
    assert add(range(10, 900)) is None
    assert (add(range(400, 1000)), run.left_step) == (400, 899)
    assert (run.num_points, run.last_step) == (1000, 999)


def test_a_run_that_is_restarted_at_its_last_step_goes_back() -> None:
    run = FollowedRun(CONFIG)
    assert run.add([Point(step, 3.0, None, {}) for step in range(301)]) is None
    assert (run.add([Point(300, 3.0, None, {})]), run.left_step) == (300, 300)
