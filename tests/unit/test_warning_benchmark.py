"""The benchmark of warnings: baselines, folds, and the page that shows its numbers."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import warning as benchmark
from benchmarks import warning_fresh
from benchmarks.warning import REFERENCE, SCORES, SWEEPS, Run, across, by_forwards, fit, soon, thinned
from benchmarks.warning_scores import cusum, deviations, kurtosis
from orchestrator.detection.warning.alarms import UnstableSpan
from orchestrator.detection.warning.risk import NAMES, features, shipped
from orchestrator.sweepfile.spec import load_sweep

PAGE = (Path(__file__).parents[2] / "docs" / "warning.md").read_text()
TABLES = (REFERENCE / "README.md").read_text()


def run(objective: str, seed: int, onset: int | None = None) -> Run:
    """A run whose curvature grows over its threshold from 40 steps before its onset on."""
    random = np.random.default_rng(seed)
    step_N = np.arange(0, 600, 5)
    ratio_N = 0.3 * np.exp(0.1 * random.normal(size=len(step_N)))
    if onset is not None:
        ratio_N[step_N >= onset - 40] *= 10
    telemetry = {
        "step": step_N,
        "grad_norm/all": np.ones(len(step_N)),
        "lambda_max": ratio_N,
        "lambda_grad": ratio_N,
        "curvature_threshold": np.ones(len(step_N)),
    }
    trace = {"step": np.arange(600), "loss": random.normal(size=600), "grad_norm": np.exp(random.normal(size=600))}
    unstable = () if onset is None else (UnstableSpan(onset, 600),)
    return Run("case", str(seed), objective, "adamw", telemetry, features(telemetry), trace, unstable, 600)


RUNS = [run(name, seed, onset) for name in "ab" for seed, onset in enumerate((None, None, 300, 410, 520))]


def test_a_law_that_holds_on_all_objectives_is_found_on_those_left_out() -> None:
    found = across(RUNS, "objective", SCORES["risk, curvature"])
    assert found["all"].quality.num_onsets == 6
    assert found["all"].quality.good_share == 1.0
    assert found["all"].quality.false_per_1000 <= 1.0


def test_a_threshold_from_theory_is_not_chosen_on_the_training_folds() -> None:
    """Without any instability among them no threshold could be chosen."""
    calm = [run("c", seed) for seed in range(3)]
    at_edge = benchmark.fixed(lambda run: (run.step_N, run.feature_NF[:, NAMES.index("edge_ahead")]), 0.0)
    found = across([*calm, *[one for one in RUNS if one.objective == "a"]], "objective", at_edge)["a"].quality
    assert found.num_onsets == found.num_warned == 3


def test_noise_warns_of_nothing() -> None:
    found = across(RUNS, "objective", SCORES["norm, deviations"])
    assert found["all"].quality.good_share <= 0.5


def test_a_reading_is_soon_before_an_onset_from_fifty_steps_on() -> None:
    steps = RUNS[2].step_N[soon(RUNS[2])]
    assert (steps.min(), steps.max()) == (250, 295)


def test_thinning_keeps_the_readings_that_would_have_been_taken() -> None:
    sparse = thinned(RUNS[0], 20, 50)
    assert set(sparse.step_N.tolist()) == {step for step in range(0, 600, 5) if step % 20 == 0 or step % 50 == 0}
    assert np.isfinite(sparse.telemetry["lambda_max"]).sum() == 12
    assert not np.isfinite(thinned(RUNS[0], 20, None).telemetry["lambda_max"]).any()


def test_a_run_by_forward_passes_has_their_curvature_at_the_steps_of_both() -> None:
    step_N = np.arange(0, 600, 10)
    crit_N = np.where(step_N < 300, 0.5, 2.0)
    found = by_forwards(RUNS[2], {"step": step_N, "lambda_crit": crit_N})
    value_N = found.telemetry["lambda_grad"]
    np.testing.assert_array_equal(value_N[::2], crit_N)
    assert np.isnan(value_N[1::2]).all()
    assert found.step_N.tolist() == RUNS[2].step_N.tolist()


def test_an_objective_with_many_runs_counts_no_more_than_one_with_few() -> None:
    """Ten copies of the runs of one objective do not move the fit."""
    of_a, of_b = [run for run in RUNS if run.objective == "a"], [run for run in RUNS if run.objective == "b"]
    names = ("edge", "gradient_edge")
    once, often = fit([*of_a, *of_b], names), fit([*of_a * 10, *of_b], names)
    assert once.bias == pytest.approx(often.bias, abs=0.2)


def test_deviations_are_those_above_the_window_before() -> None:
    value_N = np.concatenate([np.tile([0.0, 1.0], 30), [10.0]])
    assert deviations(value_N)[-1] == pytest.approx((10 - 0.5) / (1.4826 * 0.5))
    assert np.isnan(deviations(value_N)[49])


def test_a_cusum_grows_while_values_stay_above_their_past() -> None:
    value_N = np.concatenate([np.random.default_rng(0).normal(size=100), np.full(20, 3.0)])
    sums_N = cusum(value_N)
    assert (np.diff(sums_N[100:110]) > 0).all()


def test_the_kurtosis_of_one_outlier_is_high_and_of_two_values_is_least() -> None:
    assert kurtosis(np.tile([0.0, 1.0], 25))[-1] == pytest.approx(-2.0)
    assert kurtosis(np.concatenate([np.zeros(49), [1.0]]))[-1] > 40


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_sweep_of_the_benchmark_reads_its_telemetry(path: Path) -> None:
    sweep = load_sweep(path)
    assert sweep.name == path.stem
    assert sweep.telemetry.every == 5


def test_the_package_s_models_are_of_the_features_of_the_benchmark() -> None:
    for name, (of, _, _) in benchmark.FITTED.items():
        assert shipped()[name].names == benchmark.SETS[of]


@pytest.mark.parametrize(("page", "least"), [(PAGE, 20), (TABLES, 80)], ids=["page", "all tables"])
def test_a_page_shows_the_numbers_of_the_tables(page: str, least: int) -> None:
    """Each row of a table of a page is one of the reference, cell by cell."""
    rows = re.findall(r"^\| ((?:[^|\\]|\\.)+?) \| ((?:[\d.-]+ \| ?)+)$", page, re.MULTILINE)
    shown = [row for row in rows if row[0] != "---"]
    known = set()
    for path in REFERENCE.glob("*.csv"):
        with path.open() as file:
            known |= {tuple(row.values()) for row in csv.DictReader(file)}
    assert len(shown) > least
    for name, cells in shown:
        numbers = tuple(cell.strip() for cell in cells.strip(" |").split("|"))
        assert any(set(numbers) <= set(row) for row in known), (name, numbers)


def test_a_run_is_left_out_with_its_setting() -> None:
    folds = {benchmark.SPLITS["setting"](one) for one in RUNS}
    assert len(folds) > 1
    assert benchmark.SPLITS["setting"](RUNS[0]) == benchmark.SPLITS["setting"](replace(RUNS[0], num_steps=1))


def test_a_sweep_that_ran_again_replaces_its_rows() -> None:
    old = table_rows(REFERENCE / "fresh.csv")
    new = {column: "7" for column in old[0]} | {"sweep": "warning_quadratic"}
    rows = warning_fresh.merged(REFERENCE / "fresh.csv", [new])
    assert rows == [*(row for row in old if row["sweep"] != new["sweep"]), new]


def test_the_committed_runs_have_the_counts_of_their_sweeps() -> None:
    sweeps = {row["sweep"]: row for row in table_rows(REFERENCE / "fresh.csv")}
    runs = table_rows(REFERENCE / "fresh_runs.csv")
    for name in {row["sweep"] for row in runs}:
        own = [row for row in runs if row["sweep"] == name]
        assert len(own) == int(sweeps[name]["runs"])
        assert sorted({row["seed"] for row in own}) == sweeps[name]["seeds"].split()
        for column in ("onsets", "onsets_warned_by_20", "onsets_warned", "false_alarms"):
            assert sum(int(row[column]) for row in own) == int(sweeps[name][column])


def table_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))
