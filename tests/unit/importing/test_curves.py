"""Curves of elsewhere are judged by the detector, from long tables and from folders, with equal results."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.importing.collecting import collect, record
from orchestrator.importing.options import ImportOptions, import_options
from orchestrator.ledger.reader import LedgerReader

HERE = Path("results")
STEPS = 120
LONG = import_options(axis=["lr"], step="step", loss="loss", run=("run_id",))


def losses(lr: float, seed: int) -> np.ndarray:
    """A calm run, one that spikes at 0.1, one that diverges at 1."""
    step_N = np.arange(STEPS)
    loss_N = 1 + np.exp(-step_N / 20) + np.random.default_rng(seed).normal(0, 0.01, STEPS)
    if lr == 0.1:
        loss_N[60:66] += 5
    if lr == 1:
        loss_N[80:] = math.nan
    return loss_N


def runs() -> list[tuple[str, float, int, np.ndarray]]:
    return [(f"r{lr}_{seed}", lr, seed, losses(lr, seed)) for lr in (0.01, 0.1, 1) for seed in (0, 1)]


@pytest.fixture
def table(tmp_path: Path) -> str:
    lines = [f"{run},{lr},{t},{loss}" for run, lr, _, loss_N in runs() for t, loss in enumerate(loss_N)]
    (tmp_path / "curves.csv").write_text("\n".join(["run_id,lr,step,loss", *lines]) + "\n")
    return str(tmp_path / "curves.csv")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for _, lr, seed, loss_N in runs():
        own = tmp_path / "runs" / f"lr{lr}_seed{seed}"
        own.mkdir(parents=True)
        (own / "config.json").write_text(json.dumps({"optim": {"lr": lr}, "seed": seed}))
        rows = [f"{t},{loss}" for t, loss in enumerate(loss_N)]
        (own / "metrics.csv").write_text("\n".join(["step,loss", *rows]) + "\n")
    return tmp_path / "runs"


def results(source: str, options: ImportOptions) -> list[tuple[float, int, str, tuple]]:
    found = collect([source], options, HERE).runs
    return [(run.settings.cell["lr"], run.seed, run.result.outcome, run.result.episodes) for run in found]


def test_spikes_are_seen_and_a_table_and_a_folder_give_the_same(table: str, folder: Path) -> None:
    found = results(table, LONG)
    assert [outcome for _, _, outcome, _ in found] == ["stable"] * 2 + ["spiked"] * 2 + ["diverged"] * 2
    assert results(str(folder), import_options(axis=["lr"], seed="seed")) == found
    named = import_options(axis=["lr"], seed="seed", from_path=r"lr(?P<lr>[^_/]+)_seed(?P<seed>\d+)")
    assert results(str(folder), named) == found


def test_the_chart_of_a_tracker_with_a_column_for_each_run_gives_the_same(table: str, tmp_path: Path) -> None:
    chart = tmp_path / "chart.csv"
    names = [f"lr={lr}, seed={seed}" for _, lr, seed, _ in runs()]
    columns = [f"{name} - train/loss{end}" for name in names for end in ("", "__MIN", "__MAX")]
    rows = np.stack([loss_N for *_, loss_N in runs()], axis=1).repeat(3, axis=1)
    lines = [",".join([str(t), *(str(loss) for loss in row)]) for t, row in enumerate(rows)]
    chart.write_text("\n".join([",".join(["Step", *(f'"{name}"' for name in columns)]), *lines]) + "\n")
    wide = import_options(axis=["lr"], step="Step", loss="train/loss")
    assert results(str(chart), wide) == results(table, LONG)
    named = import_options(
        axis=["lr"], step="Step", loss="train/loss", from_path=r"lr=(?P<lr>[^,]+), seed=(?P<seed>\d+)"
    )
    assert results(str(chart), named) == results(table, LONG)


def test_a_chart_whose_runs_name_no_setting_says_how_to_name_them(tmp_path: Path) -> None:
    chart = tmp_path / "chart.csv"
    chart.write_text("Step,proud-sun-7 - loss\n0,2.0\n1,1.9\n")
    with pytest.raises(InputError, match=r"proud-sun-7 - loss: the name of its run names no setting .see --from-path"):
        collect([str(chart)], import_options(axis=["lr"], step="Step", loss="loss"), HERE)
    with pytest.raises(InputError, match=r"--step: '_step' is not a column"):
        collect([str(chart)], import_options(axis=["lr"], step="_step", loss="loss"), HERE)


def test_the_rows_of_a_long_table_may_stand_in_any_order(table: str) -> None:
    before = results(table, LONG)
    head, *rows = Path(table).read_text().splitlines()
    order = np.random.default_rng(0).permutation(len(rows))
    Path(table).write_text("\n".join([head, *(rows[i] for i in order)]) + "\n")
    assert sorted(outcome for _, _, outcome, _ in results(table, LONG)) == sorted(outcome for *_, outcome, _ in before)


def test_curves_are_stored_as_they_were(table: str, tmp_path: Path) -> None:
    record(tmp_path / "made", "made", collect([table], LONG, HERE), replaces=False)
    with LedgerReader(tmp_path / "made" / LEDGER) as ledger:
        for trial, (_, _, _, loss_N) in zip(ledger.trials(), runs(), strict=True):
            trace = ledger.trace(trial.trial_id)
            np.testing.assert_array_equal(trace["step"], np.arange(STEPS))
            np.testing.assert_allclose(trace["loss"], loss_N)
            assert trial.steps_done == STEPS
            assert trial.num_spikes is not None


def test_rows_of_several_runs_that_nothing_tells_apart_are_refused(table: str) -> None:
    with pytest.raises(InputError, match=r"curves\.csv:\d+: step: .*\n.*--run NAME"):
        collect([table], import_options(axis=["lr"], step="step", loss="loss"), HERE)


def test_a_run_whose_axis_changes_is_left_out_and_named(table: str) -> None:
    text = Path(table).read_text().replace("r0.01_0,0.01,7,", "r0.01_0,0.02,7,")
    Path(table).write_text(text)
    found = collect([table], LONG, HERE)
    assert len(found.runs) == 5
    assert [one.reason for one in found.left_out] == ["lr changes within the run"]


def test_a_run_with_several_logs_is_left_out_until_one_is_named(folder: Path) -> None:
    one = folder / "lr1_seed0"
    (one / "again.csv").write_text((one / "metrics.csv").read_text())
    options = import_options(axis=["lr"], seed="seed")
    found = collect([str(folder)], options, HERE)
    assert len(found.runs) == 5
    assert "log: again.csv" in found.left_out[0].reason
    assert (
        len(collect([str(folder)], import_options(axis=["lr"], seed="seed", log="metrics.csv"), Path("results")).runs)
        == 6
    )


def test_the_settings_of_weights_and_biases_stand_under_value(tmp_path: Path) -> None:
    (tmp_path / "run" / "files").mkdir(parents=True)
    (tmp_path / "run" / "files" / "config.yaml").write_text("wandb_version: 1\nlr:\n  desc: null\n  value: 0.1\n")
    (tmp_path / "run" / "log.csv").write_text("step,loss\n" + "".join(f"{t},{2 - t / 100}\n" for t in range(60)))
    (run,) = collect([str(tmp_path)], import_options(axis=["lr"]), HERE).runs
    assert run.settings.cell == {"lr": 0.1}


def test_options_of_other_sources_are_refused(table: str, folder: Path) -> None:
    for source, options in (
        (table, import_options(axis=["lr"], step="step", loss="loss", outcome="loss")),
        (table, import_options(axis=["lr"], outcome="loss", from_path="(?P<lr>.*)")),
        (str(folder), import_options(axis=["lr"], diverged_above=3)),
    ):
        with pytest.raises(InputError, match="leave it out"):
            collect([source], options, HERE)
