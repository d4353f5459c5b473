"""docs/predict.md: its commands run, with fewer steps and seeds, and its numbers are of the shipped ladders."""

import csv
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_cases import run_commands
from sweep_cases import table_with, trial_row

from orchestrator.base.files import LEDGER
from orchestrator.base.space import Axis
from orchestrator.base.vocabulary import OUTCOMES
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.confirmation import judged
from orchestrator.maps.form import Form, usual_prior
from orchestrator.maps.ladder import log_size, read_ladder
from orchestrator.maps.law import fit_edges
from orchestrator.maps.prediction import Prediction, predict
from orchestrator.maps.table import read_table
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import read_document

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "predict.md").read_text()


def of_reference(name: str, axis: str, value: float) -> Prediction:
    """The prediction from the trials that a table of reference counts."""
    with (ROOT / "results" / "reference" / name / "map.csv").open() as file:
        rows = list(csv.DictReader(file))
    trials = [
        trial_row(
            trial_id=f"{row['lr']} {row[axis]} {outcome} {i}",
            cell={"lr": float(row["lr"]), axis: int(row[axis])},
            outcome=outcome,
            final_loss=float(row["median_final_loss"]) if row["median_final_loss"] else None,
        )
        for row in rows
        for outcome in OUTCOMES
        for i in range(int(row[f"num_{outcome}"]))
    ]
    values = {key: sorted({trial.cell[key] for trial in trials}) for key in ("lr", axis)}
    return predict(table_with(trials, [Axis(key, "log", tuple(each)) for key, each in values.items()]), {axis: value})


def test_the_shipped_ladder_of_widths_predicts_what_the_page_shows() -> None:
    shown = re.search(r"the edge lies at lr ([\d.]+) \(([\d.]+) to ([\d.]+)\)", PAGE)
    found = of_reference("lr_width", "width", 128).edge
    # Cells at the edge differ from machine to machine.
    assert [float(each) for each in shown.groups()] == pytest.approx([found.at, found.low, found.high], rel=0.15)


def test_the_ladder_of_depths_passes_its_backtest_though_a_deeper_model_may_fail_otherwise() -> None:
    found = of_reference("lr_depth", "depth", 8)
    assert found.refused == ()
    assert not found.backtest.is_off
    assert not found.backtest.is_beaten
    assert f"{found.edge.at:.2g}" in PAGE


def confirmed(name: str) -> dict[str, Any]:
    """The answer of reference, after runs at its target."""
    return json.loads((ROOT / "results" / "reference" / name).read_text())


def test_the_page_shows_the_runs_at_the_target_that_were_trained_once() -> None:
    found = confirmed("lr_width/confirm_width128.json")
    runs = found["confirmation"]["runs"]
    shown = re.findall(r"^  lr ([\d.]+): (\w+) in (\d+) of (\d+) steps", PAGE, re.MULTILINE)
    assert shown == [(f"{run['rate']:g}", run["outcome"], str(run["steps_done"]), str(run["steps"])) for run in runs]
    assert f"{found['confirmation']['member_steps']:,} steps" in PAGE
    truth = 0.0101
    assert found["edge"]["low"] < truth < found["edge"]["high"]
    assert max(found["edge"]["at"] / truth, truth / found["edge"]["at"]) < 1.25


def test_depth_8_is_void_by_its_first_run() -> None:
    found = confirmed("lr_depth/confirm_depth8.json")
    (run,) = found["confirmation"]["runs"]
    assert found["edge"] is None
    assert len(found["confirmation"]["reasons"]) == 2
    assert f"the loss begins at {run['initial_loss']:.0f}" in PAGE.replace("\n", " ")
    assert f"the run breaks at step {run['onset']}" in PAGE.replace("\n", " ")


def ladder(name: str) -> dict[str, Any]:
    """The answer of a ladder of reference, as it was given."""
    return json.loads((ROOT / "results" / "reference" / "ladders" / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("name", "low", "high", "most_off"),
    # What was trained at the target: the rates between which the edge lies.
    [("width128", 0.0091, 0.0110, 1.25), ("steps1200", 0.0127, 0.0202, 1.3)],
)
def test_the_ladders_of_reference_find_the_edge_of_their_targets(
    name: str, low: float, high: float, most_off: float
) -> None:
    edge, truth = ladder(name)["edge"], math.sqrt(low * high)
    assert max(edge["at"] / truth, truth / edge["at"]) < most_off
    assert edge["low"] < high
    assert low < edge["high"]


def test_the_edge_at_width_128_is_where_half_of_the_runs_there_are_stable() -> None:
    with (ROOT / "results" / "reference" / "ladders" / "target128.csv").open() as file:
        rows = list(csv.DictReader(file))
    runs = [
        (math.log(float(row["lr"])), outcome != "stable")
        for row in rows
        for outcome in OUTCOMES
        for _ in range(int(row[f"num_{outcome}"]))
    ]
    log_rate_N, unstable_N = map(np.array, zip(*runs, strict=True))
    assert len(runs) == 54
    law = fit_edges(np.zeros((len(runs), 0)), log_rate_N, unstable_N)
    assert [math.exp(each) for each in law.interval(np.zeros(0))] == pytest.approx([0.0100, 0.0091, 0.0110], rel=0.03)


def test_a_rate_that_is_tied_to_the_width_as_in_mup_is_found_flat() -> None:
    found = ladder("tied128")
    assert 0.0 in found["exponents"]["width"]["theories"]
    assert -1.0 not in found["exponents"]["width"]["theories"]


def test_the_table_of_the_ladders_has_their_numbers() -> None:
    table = (ROOT / "results" / "reference" / "ladders" / "README.md").read_text()
    for name in ("width128", "steps1200", "tied128"):
        found = ladder(name)
        assert "{at:.2g} ({low:.2g} to {high:.2g})".format(**found["edge"]) in table
        assert f"| {found['num_runs']} |" in table


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    shutil.copy(ROOT / "sweeps" / "lr_width.yaml", tmp_path)
    short = PAGE.replace("run lr_width", "run lr_width --steps 200 --seeds 0").replace("steps=1200", "steps=800")
    printed = run_commands(short, tmp_path)
    assert re.search(r"width=128: the edge lies at lr [\d.e-]+ \(", printed)
    assert (tmp_path / "larger.png").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "axis"), [("lr_width", "width"), ("lr_depth", "depth")])
def test_no_run_of_a_ladder_is_void_to_the_other_sizes(
    train: Callable[..., Any], tmp_path: Path, name: str, axis: str
) -> None:
    """The 180 runs of docs/predict.md, each as a first run at the target."""
    overrides = Overrides(sets=("tracking.enabled=false",))
    train(build_sweep(read_document(ROOT / "sweeps" / f"{name}.yaml"), overrides))
    with LedgerReader(tmp_path / name / LEDGER) as ledger:
        ladder = read_ladder(read_table(ledger), (axis,), "lr")
    assert ladder.num_runs == 90
    for size in ladder.sizes:
        others, target_K = ladder.without(axis, size.setting[axis]), log_size(size.setting, (axis,))
        edge = Form(usual_prior(1, [], None), (0,), ()).edge_law(others).at(target_K, 16)
        assert not [run.cell for run in size.runs if judged(others, edge, target_K, [run]).is_void]
