"""`sweep init --for` plans small models: the written file runs, and its sweep predicts the large one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from orchestrator import load, run
from orchestrator.cli.app import app

TRAINER = "python train.py --lr={lr} --width={width} --depth={depth} --steps={steps} --seed={seed}"


@pytest.fixture(autouse=True)
def few_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    """How wide an interval will be is told from three laws, where a command draws more."""
    monkeypatch.setattr("orchestrator.maps.planned_ladder._DRAWS", 3)


def init(folder: Path, *arguments: str) -> tuple[dict, str]:
    """The file that the command writes, and what it says."""
    done = CliRunner().invoke(app, ["init", "proxies", *arguments, "--output", str(folder / "proxies.yaml")])
    assert done.exit_code == 0, done.output or str(done.exception)
    return yaml.safe_load((folder / "proxies.yaml").read_text()), done.output


def test_a_trainer_gets_sizes_below_the_target_and_a_search_along_the_rate(tmp_path: Path) -> None:
    written, said = init(tmp_path, "--for", "width=4096,depth=32,steps=100000", "--trainer", TRAINER, "--trials", "40")
    assert written["axes"]["width"]["values"][-1] == 1024
    assert written["axes"]["depth"]["values"][-1] == 8
    assert written["steps"] == 25_000
    assert written["search"] == {"method": "edge", "along": "lr", "trials": 40}
    assert "--at width=4096 --at depth=32" in said


def test_the_rate_has_the_name_that_the_trainer_gives_it(tmp_path: Path) -> None:
    trainer = ["--trainer", "python train.py --learning_rate={learning_rate} --width={width}"]
    written, _ = init(
        tmp_path, "--for", "width=4096", *trainer, "--axis", "learning_rate=log:1e-5,1e-1", "--trials", "12"
    )
    assert written["search"]["along"] == "learning_rate"
    assert list(written["axes"]) == ["learning_rate", "width"]


def test_more_trials_make_a_narrower_interval(tmp_path: Path) -> None:
    def width(trials: int) -> float:
        (tmp_path / "proxies.yaml").unlink(missing_ok=True)
        _, said = init(tmp_path, "--for", "width=512", "--trials", str(trials))
        found = re.search(r"a factor ([\d.]+) wide", said)
        assert found is not None
        return float(found[1])

    assert width(36) < width(12)


@pytest.mark.usefixtures("without_files")
def test_the_written_sweep_runs_and_its_prediction_can_be_confirmed(tmp_path: Path) -> None:
    fixed = [f"--set=fixed.{name}" for name in ("optimizer=sgd", "beta1=0", "noise=1", "dimension=1000")]
    settings = ["--objective", "quadratic", "--steps", "80", *fixed, "--set", "tracking.enabled=false"]
    _, said = init(tmp_path, "--for", "curvature=64", "--axis", "lr=log:1e-2,10", "--trials", "45", *settings)
    run(tmp_path / "proxies.yaml", results=tmp_path, executor="inline")
    command = shlex.split(next(line for line in said.splitlines() if line.startswith("then:")).split("`")[1])
    done = CliRunner().invoke(app, [*command[1:], "--results", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = load(tmp_path / "proxies").predict(at=("curvature=64",))
    assert found.edge.low < 2 / 64 < found.edge.high


@pytest.mark.parametrize(
    "arguments",
    [
        ["--for", "steps=100"],
        ["--for", "width=6"],
        ["--for", "width"],
        ["--for", "width=-4"],
        ["--for", "width=inf"],
        ["--for", "width=4096.7"],
        ["--for", "width=1e300"],
        ["--for", "width=4096,width=512"],
        ["--for", "width=4096", "--axis", "width=values:16,32"],
        ["--for", "lr=4096"],
        ["--for", "width=4096", "--axis", "lr=values:0.1,0.2"],
        ["--for", "width=4096,depth=32", "--trials", "4"],
        ["--trials", "4"],
        ["--for", "width=4096", "--from", "lr_warmup"],
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_remedy(tmp_path: Path, arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["init", "proxies", *arguments, "--output", str(tmp_path / "proxies.yaml")])
    assert done.exit_code != 0
    assert "remedy" in str(done.exception)
    assert not (tmp_path / "proxies.yaml").exists()


def test_more_trials_than_a_sweep_may_have_are_refused_before_any_simulation(tmp_path: Path) -> None:
    arguments = ["--for", "width=4096", "--trials", "1000000", "--output", str(tmp_path / "proxies.yaml")]
    assert CliRunner().invoke(app, ["init", "proxies", *arguments]).exit_code == 2
