"""The benchmark of detection: scores that can be counted by hand, and other people's rules as they published them."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import learning
from tiers import examples

from benchmarks import detection, detection_peers, detection_simulated
from benchmarks.detection import Labelled, Told, score, summary, told_by
from benchmarks.detection_rules import (
    RULES,
    kill_loss_spike,
    lightning_spike,
    loss_watchdog,
    six_sigma,
    threshold_pruner,
    worse_than_best,
    z_score_ema,
)
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log

# --- scores --------------------------------------------------------------------------------------


def labelled(
    label: str, episodes: Sequence[tuple[int, int]] = (), losses: Sequence[float] = (1.0,), ambiguous: bool = False
) -> Labelled:
    log = Log("a.csv", Columns("step", "loss"), np.arange(len(losses)), np.array(losses), None)
    return Labelled(log, "somewhere", label, ambiguous, tuple(episodes))


def counts(label: str, episodes: Sequence[tuple[int, int]], onsets: Sequence[int]) -> tuple[int, int, int]:
    """Hits, misses and false alarms."""
    found = score(labelled(label, episodes), Told(tuple(onsets), None, "spiked"))
    return found.hits, found.misses, found.false_alarms


@pytest.mark.parametrize(
    ("episodes", "onsets", "expected"),
    [
        ([], [], (0, 0, 0)),
        ([], [5, 90], (0, 0, 2)),
        ([(100, 105)], [], (0, 1, 0)),
        ([(100, 105)], [100], (1, 0, 0)),
        # Within two points, whatever the length.
        ([(100, 105)], [98], (1, 0, 0)),
        ([(100, 105)], [102], (1, 0, 0)),
        ([(100, 105)], [97], (0, 1, 1)),
        ([(100, 105)], [103], (0, 1, 0)),  # too late, but inside
        # Within a tenth of the episode, where that is more.
        ([(100, 200)], [90], (1, 0, 0)),
        ([(100, 200)], [110], (1, 0, 0)),
        ([(100, 200)], [111], (0, 1, 0)),
        # One onset finds one episode, the nearest of two onsets counts, the other is an alarm.
        ([(100, 105), (103, 110)], [102], (1, 1, 0)),
        ([(100, 105)], [99, 101], (1, 0, 0)),  # a fragment
        ([(100, 200), (300, 305)], [92, 99, 305, 301], (2, 0, 1)),
    ],
)
def test_onsets_match_within_two_points_or_a_tenth_of_the_episode(episodes, onsets, expected) -> None:
    assert counts("recovered-spike", episodes, onsets) == expected


def stopped(label: str, episodes: Sequence[tuple[int, int]], stop: int | None) -> tuple[bool, bool, int | None]:
    """Whether the stop is wrong, whether it found the lost run, and how long that took."""
    found = score(labelled(label, episodes), Told((), stop, "lost"))
    return found.is_wrong_stop, found.is_lost_stopped, found.points_until_stop


@pytest.mark.parametrize(
    ("label", "episodes", "stop", "expected"),
    [
        ("clean", [], None, (False, False, None)),
        ("clean", [], 50, (True, False, None)),
        ("recovered-spike", [(100, 120)], 110, (True, False, None)),
        ("diverged", [(100, 300)], None, (False, False, None)),
        ("diverged", [(100, 300)], 150, (False, True, 50)),
        ("nan", [(100, 100)], 100, (False, True, 0)),
        # A tenth of 200 points early is still the same divergence, one point more is not.
        ("diverged", [(100, 300)], 80, (False, True, 0)),
        ("diverged", [(100, 300)], 79, (True, False, None)),
        # It came back from the first: to stop there loses what was learned afterwards.
        ("diverged", [(50, 60), (200, 300)], 55, (True, False, None)),
        ("diverged", [(50, 60), (200, 300)], 210, (False, True, 10)),
    ],
)
def test_a_stop_is_wrong_unless_the_run_was_lost_by_then(label, episodes, stop, expected) -> None:
    assert stopped(label, episodes, stop) == expected


@pytest.mark.parametrize(
    ("label", "right"), [("clean", "clean"), ("recovered-spike", "spiked"), ("diverged", "lost"), ("nan", "lost")]
)
def test_of_the_outcomes_one_is_right_for_each_label(label: str, right: str) -> None:
    trace = labelled(label, [(0, 0)] if label != "clean" else [])
    for outcome in ("clean", "spiked", "lost"):
        assert score(trace, Told((), None, outcome)).is_outcome_right == (outcome == right)


def test_shares_are_of_all_logs_together() -> None:
    scores = [
        # Two of three found, one alarm; stopped rightly after 10 points.
        score(labelled("diverged", [(20, 30), (50, 52), (100, 300)]), Told((20, 70, 100), 110, "lost")),
        # One found; stopped wrongly.
        score(labelled("recovered-spike", [(20, 30)]), Told((21,), 25, "lost")),
        # Two alarms.
        score(labelled("clean"), Told((5, 9), None, "spiked")),
        # Lost and never stopped, its episode missed.
        score(labelled("nan", [(40, 40)]), Told((), None, "clean")),
        # Stopped after 40 points.
        score(labelled("diverged", [(60, 100)]), Told((60,), 100, "lost")),
    ]
    assert summary(scores) == {
        "traces": 5,
        "wrong_stops": 1,
        "lost_stopped": 2,
        "lost_total": 3,
        "median_points_until_stop": 25.0,
        "episode_precision": 4 / 7,
        "episode_recall": 4 / 6,
        "episode_f1": 2 * 4 / (2 * 4 + 3 + 2),
        "outcome_accuracy": 2 / 5,
        "false_alarms": 3,
    }


def test_what_cannot_be_divided_is_null() -> None:
    nothing = summary([score(labelled("clean"), Told((), None, "clean"))])
    assert nothing["outcome_accuracy"] == 1.0
    for name in ("episode_precision", "episode_recall", "episode_f1", "median_points_until_stop"):
        assert nothing[name] is None
    assert summary([])["outcome_accuracy"] is None


def test_flags_of_a_rule_are_one_episode_until_five_points_without_one() -> None:
    flagged = {3, 4, 9, 15, 16, 30}

    def rule(losses: Sequence[float], norms: Sequence[float] | None) -> tuple[list[bool], int | None]:
        return [i in flagged for i in range(len(losses))], None

    found = told_by(rule, labelled("clean", losses=[1.0] * 40))
    assert found == Told((3, 15, 30), None, "spiked"), "4 and 9 have four points between, 9 and 15 have five"


# --- a folder ------------------------------------------------------------------------------------

COLUMNS = ("file", "source_repo", "label", "onset_steps", "recovery_steps", "ambiguous")
# Steps are tens, so that a step is not taken for a point. The first loss is 5.
LOGS = {
    "clean.csv": (learning(400), ("one", "clean", "", "", "no")),
    "spike.csv": (learning(400, changes=[(200, 210, 20.0)]), ("one", "recovered-spike", "2000", "2100", "no")),
    "lost.csv": (
        learning(600, changes=[(150, 160, 20.0), (300, 600, 20.0)]),
        ("two", "diverged", "1500; 3000", "1600;END", "no"),
    ),
    "nan.csv": (np.where(np.arange(400) >= 300, np.nan, learning(400)), ("two", "nan", "3000", "END", "no")),
    # Clean for the label, but with a jump that any rule sees.
    "unclear.csv": (learning(400, changes=[(200, 215, 20.0)]), ("two", "clean", "", "", "yes")),
}


def write_log(path: Path, losses: np.ndarray) -> None:
    path.write_text("step,loss\n" + "".join(f"{10 * i},{loss}\n" for i, loss in enumerate(losses.tolist())))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = ["\t".join(COLUMNS)]
    for name, (losses, cells) in LOGS.items():
        write_log(tmp_path / name, losses)
        lines.append("\t".join((name, *cells)))
    (tmp_path / "MANIFEST.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_a_folder_is_scored_as_one_does_it_by_hand(folder: Path, capsys) -> None:
    path = folder / "figures.json"
    assert detection.main([str(folder), "--json", str(path)]) == 0
    figures = json.loads(path.read_text())
    assert list(figures) == ["all", "unambiguous", "by_set", "by_source"]
    assert figures["by_set"] == {"all": {"all": figures["all"], "unambiguous": figures["unambiguous"]}}
    assert list(figures["by_source"]) == ["one", "two"]
    keys = {
        "traces", "wrong_stops", "lost_stopped", "lost_total", "median_points_until_stop", "episode_precision",
        "episode_recall", "episode_f1", "outcome_accuracy", "false_alarms",
    }  # fmt: skip
    for part in (figures["all"], figures["unambiguous"], *figures["by_source"].values()):
        assert set(part) == {"ours", *RULES}
        assert {frozenset(found) for found in part.values()} == {frozenset(keys)}
    # The first loss is 5, spikes reach 22 and more: every point of them is over twice the first.
    watchdog = figures["all"]["loss watchdog, 2x the first"]
    assert watchdog == {
        "traces": 5,
        "wrong_stops": 3,  # at the third point of each spike, also of the one before the divergence
        "lost_stopped": 0,
        "lost_total": 2,
        "median_points_until_stop": None,
        "episode_precision": 3 / 4,  # spike, both of lost; not the unclear one
        "episode_recall": 3 / 4,  # NaN is not over anything
        "episode_f1": 6 / 8,
        "outcome_accuracy": 2 / 5,  # clean and lost, though for the wrong reason
        "false_alarms": 1,
    }
    # NaN is found where it begins: at point 300, and nothing else is a spike of three times a mean of ten.
    lightning = figures["by_source"]["two"]["Lightning SpikeDetection"]
    assert (lightning["traces"], lightning["wrong_stops"], lightning["lost_stopped"]) == (3, 2, 1)
    assert lightning["median_points_until_stop"] == 0
    ours = figures["unambiguous"]["ours"]
    assert (ours["wrong_stops"], ours["lost_stopped"], ours["lost_total"]) == (0, 2, 2)
    assert (ours["episode_f1"], ours["outcome_accuracy"]) == (1.0, 1.0)
    assert figures["all"]["ours"]["episode_precision"] == 4 / 5
    shown = capsys.readouterr().out
    assert all(name in shown for name in RULES)
    assert "all 5 logs" in shown
    assert "the 4 unambiguous logs" in shown


def test_the_details_name_the_logs_that_are_wrong_and_no_others(folder: Path, capsys) -> None:
    assert detection.main([str(folder), "--details"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if ".csv" in line]
    assert lines == ["unclear.csv (clean): 1 false alarms, another outcome"]


def test_packages_of_others_are_scored_where_installed_and_named_where_not(folder, capsys, monkeypatch) -> None:
    def seldom(losses: Sequence[float], norms: Sequence[float] | None) -> tuple[list[bool], bool]:
        return [loss > 20 for loss in losses], any(math.isnan(loss) for loss in losses)

    def absent(losses: Sequence[float], norms: Sequence[float] | None) -> tuple[list[bool], bool]:
        raise ModuleNotFoundError("No module named 'absent'")

    monkeypatch.setattr(detection_peers, "PEERS", {"numpy": seldom, "absent": absent})
    assert detection.main([str(folder), "--peers", "--json", str(folder / "figures.json")]) == 0
    said = capsys.readouterr().out
    assert "left out: absent is not installed (No module named 'absent')" in said
    found = json.loads((folder / "figures.json").read_text())["all"][f"numpy {np.__version__}"]
    assert (found["lost_stopped"], found["wrong_stops"], found["false_alarms"]) == (0, 0, 1)
    assert found["outcome_accuracy"] == 3 / 5, "clean, spike and nan"


def test_the_order_of_the_manifest_changes_no_figure(folder: Path) -> None:
    found = []
    for i in range(2):
        head, *rows = (folder / "MANIFEST.tsv").read_text().splitlines()
        (folder / "MANIFEST.tsv").write_text("\n".join([head, *rows[::-1]]) + "\n")
        detection.main([str(folder), "--json", str(folder / f"{i}.json")])
        found.append((folder / f"{i}.json").read_text())
    assert found[0] == found[1]


def test_without_a_manifest_it_ends_with_exit_code_2_and_a_message(tmp_path: Path, capsys) -> None:
    assert detection.main([str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert f"{tmp_path / 'MANIFEST.tsv'}: no such file" in message
    assert "file, label, onset_steps, recovery_steps" in message


@pytest.mark.parametrize(
    ("head", "row"),
    [
        (COLUMNS, ("missing.csv", "one", "clean", "", "", "no")),
        (COLUMNS[:-1], ("clean.csv", "one", "clean", "", "")),
        (COLUMNS, ("clean.csv", "one", "recovered-spike", "some", "time", "no")),
        (COLUMNS, ("clean.csv", "one", "recovered-spike", "100; 200", "110", "no")),
        (COLUMNS, ("clean.csv", "one", "diverged", "", "", "no")),
    ],
    ids=["log missing", "column missing", "no steps", "one recovery missing", "lost but nowhere"],
)
def test_a_manifest_that_cannot_be_used_ends_with_exit_code_2_and_names_the_log(folder, capsys, head, row) -> None:
    (folder / "MANIFEST.tsv").write_text("\t".join(head) + "\n" + "\t".join(row) + "\n")
    assert detection.main([str(folder)]) == 2
    message = capsys.readouterr().err
    assert "MANIFEST.tsv" in message or row[0] in message


# --- other people's rules, on streams that one can follow by hand --------------------------------


def flagged(flags: Sequence[bool]) -> list[int]:
    return np.flatnonzero(flags).tolist()


def test_llm_foundry_stops_at_the_fifth_outlier_in_a_row() -> None:
    """llmfoundry/callbacks/kill_loss_spike_callback.py: patience 4, outlier_multiplier 2, window 100."""
    losses = [1.0] * 300
    losses[150:154] = [9.0] * 4  # four are tolerated
    losses[200:207] = [9.0] * 7
    flags, stop = kill_loss_spike(losses, None)
    assert flagged(flags) == [*range(150, 154), *range(200, 207)]
    assert stop == 204


def test_llm_foundry_compares_a_loss_with_the_hundred_before_it() -> None:
    """The callback appends a loss to its window only after it has judged it, and judges once the window is full."""
    losses = [1.0] * 300
    losses[99] = 3.0  # only 99 before it: not judged
    losses[200] = 2.0  # twice the mean of points 100 to 199
    losses[250] = 1.99  # the mean is 1.01 here
    flags, stop = kill_loss_spike(losses, None)
    assert (flagged(flags), stop) == ([200], None)


def test_llm_foundry_stops_when_half_a_window_is_above_the_highest_loss_of_the_first() -> None:
    losses = [1.0] * 100 + [0.7] * 150 + [1.2] * 200
    # Point 299 is the fiftieth above the cap of 1; the one after it is judged by the window with all fifty.
    assert kill_loss_spike(losses, None) == ([False] * 450, 300)
    # The cap is 10 at most, so a run that starts at 20 and stays there is stopped after its second window.
    assert kill_loss_spike([20.0] * 300, None)[1] in (199, 200)
    assert kill_loss_spike([9.0] * 300, None)[1] is None


def test_llm_foundry_takes_a_window_of_a_twentieth_of_a_long_run() -> None:
    losses = [1.0] * 4000
    losses[150] = losses[3000] = 9.0  # the window is 200 points
    assert flagged(kill_loss_spike(losses, None)[0]) == [3000]


ALTERNATING = [1.0, 3.0] * 64  # mean 2, deviation 1


def test_olmo_core_flags_what_is_over_six_deviations_of_the_last_128_and_never_stops() -> None:
    """src/olmo_core/train/callbacks/stability_monitor.py: window_size 128, threshold_std 6."""
    assert flagged(six_sigma([*ALTERNATING, 8.0], None)[0]) == []
    assert six_sigma([*ALTERNATING, 8.01], None) == ([False] * 128 + [True], None)
    # The gradient norm alone suffices; points 1 to 128 are the window of the last one, with a deviation over 1.
    assert flagged(six_sigma([1.0] * 130, [*ALTERNATING, 8.01, 8.01])[0]) == [128]


def test_olmo_core_judges_nothing_before_its_window_is_full() -> None:
    """`if len(history) < self.window_size: return False`."""
    assert flagged(six_sigma([*ALTERNATING[:127], 100.0], None)[0]) == []


def test_olmo_core_judges_nothing_without_a_deviation() -> None:
    assert flagged(six_sigma([1.0] * 128 + [100.0], None)[0]) == []


def test_the_watchdog_stops_at_the_third_loss_in_a_row_over_twice_the_first() -> None:
    """axolotl/utils/callbacks: loss_watchdog_patience 3; the threshold is about twice the loss at the start."""
    flags, stop = loss_watchdog([1.5, 3.1, 3.1, 3.0, 3.1, 3.1, 3.1, 9.0], None)
    assert (flagged(flags), stop) == ([1, 2, 4, 5, 6, 7], 6)
    assert loss_watchdog([1.5, 3.1, 3.1], None)[1] is None


def test_lightning_flags_what_differs_from_the_mean_of_ten_by_twice_that_mean() -> None:
    """lightning/fabric/utilities/spike.py: window 10, warmup 1, rtol 2, finite_only."""
    # The mean is 1 until 2.99 is in it: (9 + 2.99) / 10 = 1.199, and 3 is less than three times that.
    assert lightning_spike([1.0] * 12 + [2.99, 3.0], None) == ([False] * 14, None)
    flags, stop = lightning_spike([*[1.0] * 12, 3.0, 1.0, 3.0, math.nan], None)
    assert (flagged(flags), stop) == ([12, 14, 15], 12)
    # Only the last ten count: 30 is no longer in their mean.
    assert flagged(lightning_spike([30.0, *[1.0] * 10, 3.0], None)[0]) == [11]
    assert flagged(lightning_spike([30.0, *[1.0] * 9, 3.0], None)[0]) == []


def test_lightning_never_flags_an_improvement_nor_what_stays_the_same() -> None:
    """`_is_better` is `diff <= 0`."""
    assert lightning_spike([1.0, 1.0, -7.0, -7.0], None)[1] is None
    assert lightning_spike([0.0, 0.0, 0.0], None)[1] is None


def test_zclip_flags_by_moving_averages_that_are_fed_the_clipped_value() -> None:
    """zclip.py: alpha 0.97, z_thresh 2.5, warmup_steps 25, adaptive scaling."""
    start = [1.0, 3.0] * 12 + [2.0]  # mean 2, variance 24 / 25, so the limit is 2 + 2.5 * 0.98 = 4.4495
    assert flagged(z_score_ema([*start, 4.44], None)[0]) == []
    assert flagged(z_score_ema([*start, 4.46], None)[0]) == [25]
    # 12 is clipped to 2 + 2.5^2 * 0.96 / 10 = 2.6. Mean 2.018, variance 0.94136, limit 4.4436.
    # With 12 itself it would be 7.1, without anything 4.4495.
    assert flagged(z_score_ema([*start, 12.0, 4.447], None)[0]) == [25, 26]
    assert flagged(z_score_ema([*start, 12.0, 4.440], None)[0]) == [25]
    assert z_score_ema([*start, math.nan, 4.46], None) == ([False] * 25 + [True, True], None)
    assert flagged(z_score_ema([1.0, 3.0] * 12 + [99.0], None)[0]) == [], "it warms up"


def test_the_threshold_pruner_prunes_at_the_first_loss_over_the_first_or_nan() -> None:
    """optuna/pruners/_threshold.py: upper."""
    assert threshold_pruner([2.0, 1.0, 2.0, 2.1, 1.0], None) == ([False, False, False, True, False], 3)
    assert threshold_pruner([2.0, math.nan, 1.0], None)[1] == 1
    assert threshold_pruner([2.0, 1.0, -math.inf], None)[1] is None


def test_the_pruner_by_the_best_prunes_over_twice_the_best_after_twenty_points() -> None:
    losses = [4.0, *[1.0] * 18, 9.0, 2.0, 2.01, 0.5, 1.5]
    flags, stop = worse_than_best(losses, None)
    assert (flagged(flags), stop) == ([21, 23], 21)
    assert worse_than_best([1.0, math.nan], None)[1] == 1


ANY_LOSS = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, 0.0, 1.0, 1.0, 1.0]))


@settings(max_examples=examples(40))
@given(st.lists(ANY_LOSS, min_size=1, max_size=300), st.booleans())
def test_every_rule_judges_any_stream_point_by_point_and_without_looking_ahead(losses: list[float], has_norms) -> None:
    norms = [abs(loss) for loss in losses] if has_norms else None
    half = len(losses) // 2 + 1
    for rule in RULES.values():
        flags, stop = rule(losses, norms)
        assert len(flags) == len(losses)
        assert stop is None or 0 <= stop < len(losses)
        earlier = rule(losses[:half], norms[:half] if norms else None)
        assert earlier[0] == flags[:half]
        assert earlier[1] == (stop if stop is not None and stop < half else None)


@pytest.mark.parametrize("kind", detection_simulated.KINDS)
def test_simulated_logs_follow_from_their_seed_and_are_losses(kind: str) -> None:
    first, again, other = (detection_simulated.KINDS[kind](np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert len(first) != len(other) or (first != other).any()
    assert np.isfinite(first).all()
    assert (first > 0).all()


def test_simulated_logs_are_judged_with_and_without_the_rule_for_blocks() -> None:
    found = detection_simulated.figures("blocks", range(30002, 30004))
    assert sum(found["outcomes"].values()) == 2
    assert found["episodes_a_log"] < found["episodes_without_blocks"]
