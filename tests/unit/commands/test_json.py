"""docs/json.md has every key that a command writes, and no other."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweep_cases import finished, ledger_at, record, search_with, sweep_of

from orchestrator.base.reports import Completed, Report
from orchestrator.causes.remedies.request import RemedyRequest
from orchestrator.cli import app
from orchestrator.commands.boundary import boundary
from orchestrator.commands.compare import compare
from orchestrator.commands.diagnose import diagnose
from orchestrator.commands.doctor import doctor
from orchestrator.commands.explain import explain
from orchestrator.commands.import_ import import_
from orchestrator.commands.list import list as list_
from orchestrator.commands.locate import locate
from orchestrator.commands.plan import plan
from orchestrator.commands.printing import Answer, written_json
from orchestrator.commands.recommend import recommend
from orchestrator.commands.remedy import remedy
from orchestrator.commands.remedy_each_cell import remedy_each_cell
from orchestrator.commands.sensitivity import sensitivity
from orchestrator.commands.status import status
from orchestrator.commands.warn import warn
from orchestrator.driver.packing import make_packs
from orchestrator.driver.provenance import driver_facts
from orchestrator.importing.options import ImportOptions
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.logs.columns import Columns
from orchestrator.sweepfile.spec import Sweep

PAGE = (Path(__file__).parents[3] / "docs" / "json.md").read_text()
GRID = "seeds: [0, 1]\naxes: {lr: {log: [1e-3, 1], num: 4}, beta1: {values: [0.0, 0.5, 0.9]}}\n"
SAMPLED = "axes: {lr: {log: [1e-3, 1]}, beta1: {linear: [0, 0.9]}}\nsample: {method: sobol, num: 32}\n"
HEAD = "objective: quadratic\nsteps: 20\n"

Command = Callable[[Path, Path], Answer]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two grids, two samples and a search that has not begun; of the first grid a trial has failed."""
    folder = tmp_path_factory.mktemp("results")
    for name, unstable in (("grid", 0.5), ("other_grid", 0.05)):
        sweep = sweep_of(GRID, f"name: {name}\n{HEAD}")
        labels = ["diverged" if trial.cell["lr"] > unstable else "stable" for trial in sweep.trials]
        if name == "grid":
            labels[0] = "errored"
        with ledger_at(folder / name) as ledger:
            record(ledger, sweep, labels, [1.0 + trial.cell["beta1"] + trial.cell["lr"] for trial in sweep.trials])
    for name, unstable in (("sample", 0.3), ("other_sample", 0.1)):
        sweep = sweep_of(SAMPLED, f"name: {name}\n{HEAD}")
        labels = ["diverged" if trial.cell["lr"] > unstable else "stable" for trial in sweep.trials]
        with ledger_at(folder / name) as ledger:
            record(ledger, sweep, labels, [1.0 + trial.cell["lr"] for trial in sweep.trials])
    sweep = sweep_of(GRID, f"name: warned\n{HEAD.replace('20', '400')}")
    with ledger_at(folder / "warned") as ledger:
        record_with_readings(ledger, sweep)
    (folder / "broken").mkdir()
    (folder / "broken" / "ledger.db").write_text("no ledger")
    return folder


def record_with_readings(ledger: LedgerWriter, sweep: Sweep) -> None:
    """Trials whose curvature jumps at step 200, of which every second one diverges 30 steps later."""
    ledger.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
    step_N = np.arange(0, 400, 5)
    curvature_N = np.where(step_N < 200, 0.01, 1e3)
    readings = {"step": step_N, "grad_norm/all": np.ones(80), "lambda_max": curvature_N, "lambda_grad": curvature_N}
    for i, trial in enumerate(sweep.trials):
        (pack,) = make_packs(sweep, [trial], 1)
        ledger.start_pack(pack, "test")
        changes = {"onset_step": 230, "episodes": ((230, None),)} if i % 2 else {"onset_step": None}
        result = finished(trial.trial_id, "diverged" if i % 2 else "stable", steps_done=400, **changes)
        curve = {"step": np.arange(400), "loss": np.ones(400)}
        of_trial = {trial.trial_id: {**readings, "curvature_threshold": np.ones(80)}}
        ledger.record(
            Report(pack.pack_id, 400, 0, 0.5, {trial.trial_id: curve}, (result,), Completed(), telemetry=of_trial)
        )
        ledger.end_pack(pack.pack_id, "done", "errored", "a bug")


def both(command: Callable[[Path, Path], Answer]) -> list[Command]:
    """The command for a grid and for scattered cells."""
    return [
        lambda results, file: command(results / "grid", file),
        lambda results, file: command(results / "sample", file),
    ]


def compared(names: tuple[str, ...], along: str | None = None) -> Command:
    return lambda results, file: compare(
        [results / name for name in names],
        None,
        None,
        "worst",
        False,
        results / "picture.png",
        results,
        along,
        None,
        file,
    )


def located(name: str, *sets: str) -> Command:
    return lambda results, file: locate(results / name, None, sets, None, Columns(), None, False, file)


def imported(results: Path, file: Path) -> Answer:
    table = file.with_name("table.csv")
    table.write_text("lr,kind,loss\n0.1,a,2.0\n0.1,b,2.1\n1.0,a,nan\n,b,2.0\n")
    options = ImportOptions(x="lr", outcome="loss")
    return import_([str(table)], "theirs", options, results / "imports", file, replaces=True)


def of_imported(results: Path, file: Path) -> Answer:
    assert list(imported(results, file.with_name("import.json")))
    return status(results / "imports" / "theirs", file)


def remedied(folder: Path, file: Path) -> Answer:
    asked = RemedyRequest(("lr=x0.1",), ("0",), 2)
    return remedy(folder, None, {}, asked, "inline", folder.parent / "picture.png", None, file)


def remedied_cells(folder: Path, file: Path) -> Answer:
    asked = RemedyRequest(("lr=x0.1",), ("0",), 2, pairs=False, each_cell=True)
    picture = folder.parent / "picture.png"
    return remedy_each_cell(folder, {"beta1": "0.5"}, asked, "inline", picture, None, file)


COMMANDS: dict[str, list[Command]] = {
    "list": [list_],
    "status": [
        lambda results, file: status(results / "grid", file),
        lambda results, file: (
            [*imported(results, file.with_name("import.json"))] and status(results / "imports" / "theirs", file)
        ),
    ],
    "import": [lambda results, file: imported(results, file)],
    "plan": [
        lambda results, file: plan(sweep_of(GRID, f"name: grid\n{HEAD}"), results, file),
        lambda results, file: plan(search_with(), results, file),
    ],
    "doctor": [lambda results, file: doctor(results / "grid", results, False, False, file)],
    "boundary": [
        *both(lambda folder, file: boundary(folder, None, None, {}, "worst", False, file)),
        lambda results, file: boundary(results / "grid", None, None, {}, "worst", False, file, "final_loss", 1.7),
    ],
    "recommend": both(lambda folder, file: recommend(folder, 2.0, None, False, file)),
    "sensitivity": both(lambda folder, file: sensitivity(folder, "lr", None, file)),
    "compare": [compared(("grid", "other_grid")), compared(("sample", "other_sample")), compared(("grid",), "beta1")],
    "locate": [
        located("grid", "lr=0.02", "beta1=0.4", "warmup=3"),
        located("sample", "lr=0.9", "beta1=0.4"),
        located("grid", "lr=7", "beta1=0.4"),
    ],
    "explain": [lambda results, file: explain(results / "grid", None, None, results / "picture.png", file)],
    "warn": [lambda results, file: warn(results / "warned", file)],
    "diagnose": [lambda results, file: diagnose(results / "grid", None, {}, results / "picture.png", file)],
    "remedy": [lambda results, file: remedied(results / "grid", file)],
    "remedy --each-cell": [lambda results, file: remedied_cells(results / "grid", file)],
}


def documented(command: str) -> set[str]:
    """The keys of the command's table."""
    section = PAGE.split(f"\n## {command}\n")[1].split("\n## ")[0]
    return {
        key
        for line in section.splitlines()
        if line.startswith("| `")
        for key in re.findall(r"`([^`]+)`", line.split("|")[1])
    }


def paths(value: Any, path: str = "") -> Iterator[str]:
    """Where the values of a JSON document are: keys joined by dots, [] for the elements of a list.

    What is empty is a value, as null is.
    """
    if value in ({}, []):
        yield path
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from paths(one, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for one in value:
            yield from paths(one, f"{path}[]")
    else:
        yield path


def is_meant(key: str, path: str) -> bool:
    """Whether the documented ``key`` is about ``path``; a star stands for a name, or at its end for all below.

    A path that ends above the key is null or empty.
    """
    pattern = re.escape(key).replace(r"\.\*", r"\.[^.]+")
    is_below = re.fullmatch(pattern + (r"(\..+)?" if key.endswith("*") else ""), path) is not None
    return is_below or key.startswith((f"{path}.", f"{path}[]"))


def written(command: Command, results: Path, file: Path) -> Any:
    lines = list(command(results, file))
    assert lines[-1] == f"wrote {file}"
    return json.loads(file.read_text())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_has_every_key_that_is_written_and_no_key_that_is_not(
    results: Path, tmp_path: Path, name: str
) -> None:
    found = {path for command in COMMANDS[name] for path in paths(written(command, results, tmp_path / "answer.json"))}
    keys = documented(name)
    assert sorted(path for path in found if not any(is_meant(key, path) for key in keys)) == []
    assert sorted(key for key in keys if not any(is_meant(key, path) for path in found)) == []


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    list(written_json(file, {"a": math.nan, "b": [math.inf, 1.0], "c": {"d": -math.inf, "e": (1, None)}}))
    assert json.loads(file.read_text()) == {"a": None, "b": [None, 1.0], "c": {"d": None, "e": [1, None]}}


def test_without_the_option_nothing_is_written() -> None:
    assert list(written_json(None, {"a": 1})) == []


def test_with_a_dash_standard_output_has_the_json_alone_and_the_text_goes_to_standard_error(results, capsys) -> None:
    arguments = ["recommend", "grid", "--results", str(results), "--json"]
    with pytest.raises(SystemExit, match="0"):
        app([*arguments, "-"])
    shown = capsys.readouterr()
    assert "chosen from" in shown.err
    with pytest.raises(SystemExit, match="0"):
        app([*arguments, str(results / "answer.json")])
    assert shown.out == (results / "answer.json").read_text()
    assert "chosen from" in capsys.readouterr().out
