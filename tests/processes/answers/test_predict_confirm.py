"""`--confirm` trains at the target: the answer is updated by what happens there, or void."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from sweep_cases import trained_ladder
from typer.testing import CliRunner

from objectives.training.packed import PackedTrainer
from orchestrator import load, run
from orchestrator.answers.predict import PredictAnswer
from orchestrator.base.errors import InputError
from orchestrator.cli.app import app
from orchestrator.render.blocks import Caution

TARGET = ("curvature=64",)
EDGE = 2 / 64  # of gradient descent


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ladder of quadratics, whose edge is 2 / curvature; without map and report."""
    return ladder_without_files(tmp_path_factory.mktemp("ladder"))


def ladder_without_files(results: Path, **options: Any) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchestrator.pages.report.export_all", lambda folder, **options: [])
        return trained_ladder(results, **options)


@pytest.fixture
def folder(tmp_path: Path, ladder: Path, without_files: None) -> Path:
    """A copy of the ladder."""
    return shutil.copytree(ladder, tmp_path / ladder.name)


def confirm(folder: Path, num: int) -> PredictAnswer:
    return load(folder).predict(at=TARGET, confirm=num)


def test_runs_at_the_target_narrow_the_edge_around_the_truth(folder: Path) -> None:
    before, after = load(folder).predict(at=TARGET), confirm(folder, 4)
    assert before.confirmation is None
    assert after.confirmation is not None
    assert not after.is_void
    assert [run.steps for run in after.confirmation.runs] == [30, 80, 80, 80, 80]
    assert after.edge.low < EDGE < after.edge.high
    assert after.edge.high / after.edge.low < 0.7 * before.edge.high / before.edge.low
    assert after.confirmation.law_edge.at == pytest.approx(before.edge.at, rel=0.05)
    assert after.take <= after.edge.low
    assert after.confirmation.member_steps == sum(run.steps_done for run in after.confirmation.runs)
    for ending, begins in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        assert after.rendered(ending).startswith(begins)


def test_runs_there_are_trained_once_and_every_later_answer_counts_them(folder: Path) -> None:
    two = confirm(folder, 2)
    assert confirm(folder, 2).to_plain() == two.to_plain()
    assert load(folder).predict(at=TARGET).to_plain() == two.to_plain()
    assert load(folder).predict(at=("curvature=32",)).confirmation is None
    three = confirm(folder, 3).confirmation
    assert three is not None
    assert {run.rate for run in two.confirmation.runs} < {run.rate for run in three.runs}
    whole = load(folder.parent / "trained_confirm_curvature64")
    assert sorted(whole.trials["lr"]) == sorted(run.rate for run in three.runs if run.steps == 80)


def test_a_run_that_was_interrupted_is_continued_by_the_same_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import orchestrator.answers._confirming as confirming

    whole = confirming.run_sweep

    def killed(sweep, *arguments, **options):
        summary = whole(sweep, *arguments, **options)
        if sweep.steps == 80:
            raise KeyboardInterrupt
        return summary

    monkeypatch.setattr(confirming, "run_sweep", killed)
    with pytest.raises(KeyboardInterrupt):
        confirm(folder, 2)
    monkeypatch.undo()
    rates = set(load(folder.parent / "trained_confirm_curvature64").trials["lr"])
    continued = confirm(folder, 2).confirmation
    assert rates < {run.rate for run in continued.runs}
    assert sum(run.steps == 80 for run in continued.runs) == 2


@pytest.mark.usefixtures("without_files")
def test_a_break_far_earlier_than_on_the_ladder_voids_the_prediction(tmp_path: Path) -> None:
    late = [*[2.0] * 60, *[2.0 * 1.3 ** min(i, 20) for i in range(60)]]
    early = [2.0 * 1.6 ** min(i, 12) for i in range(30)]
    results = of_script(tmp_path, f"{late} if width < 100 else {early}", first="2.0")
    answer = results.predict(at=("width=256",), confirm=4, allow_import=True)
    assert_void(answer, 1)
    assert "breaks at step" in answer.confirmation.reasons[0]


@pytest.mark.slow
@pytest.mark.usefixtures("without_files")
def test_an_initial_loss_far_off_the_ladder_voids_the_prediction_without_a_whole_run(tmp_path: Path) -> None:
    late = [*[2.0] * 60, *[2.0 * 1.3 ** min(i, 20) for i in range(60)]]
    results = of_script(tmp_path, f"{late}", first="2.0 if width < 100 else 300.0")
    answer = results.predict(at=("width=256",), confirm=4, allow_import=True)
    assert_void(answer, 1)
    expected = answer.confirmation.initial_loss
    assert expected.low < 2.0 < expected.high < 300.0


@pytest.mark.usefixtures("without_files")
def test_a_command_that_cannot_be_shortened_is_confirmed_by_whole_runs_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\n"
        "lr, width = map(float, sys.argv[1:])\n"
        "for step in range(60):\n"
        "    print('step', step, 'loss', 2 - 0.01 * step if lr * width < 1 else 2 * 1.2 ** min(step, 40), flush=True)\n"
    )
    sweep = {
        "name": "commanded",
        "objective": {"command": ["python", "train.py", "{lr}", "{width}"], "folder": str(tmp_path)},
        "steps": 60,
        "seeds": [0],
        "axes": {"lr": {"log": [4e-3, 0.25], "num": 7}, "width": {"values": [16, 32, 64]}},
        "tracking": {"enabled": False},
    }
    answer = run(sweep, results=tmp_path, executor="inline").predict(at=("width=256",), confirm=3)
    assert [run.steps for run in answer.confirmation.runs] == [60] * 3
    assert answer.edge.low < 1 / 256 < answer.edge.high


def test_a_run_that_errors_ends_the_command_and_is_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(PackedTrainer, "step", lambda trainer: 1 / 0)
        failed = confirm(folder, 1)
    assert failed.exit_code != 0
    assert isinstance(next(iter(failed.blocks())), Caution)
    assert confirm(folder, 1).exit_code == 0


def of_script(folder: Path, broken: str, first: str):
    """A ladder of widths that a function trains: a run beyond 1 / width, or a tenth above 100, is ``broken``."""
    (folder / "ladder_trainer.py").write_text(
        "def train(config, report):\n"
        "    width, seed = config['width'], config['seed']\n"
        "    edge = (1 if width < 100 else 0.1) / width\n"
        f"    losses = ({broken}) if config['lr'] > edge else [2.0 - 0.01 * i for i in range(120)]\n"
        "    for step in range(config['steps']):\n"
        f"        loss = ({first}) if step == 0 else losses[min(step, len(losses) - 1)]\n"
        "        report(step=step, loss=loss + 0.001 * (seed + 1) * (step % 3))\n"
    )
    sweep = {
        "name": "scripted",
        "objective": {"python": "ladder_trainer:train", "folder": str(folder)},
        "steps": 120,
        "seeds": [0],
        "axes": {"lr": {"log": [1e-3, 0.25], "num": 13}, "width": {"values": [16, 32, 64]}},
        "tracking": {"enabled": False},
    }
    return run(sweep, results=folder, executor="inline", allow_import=True)


def assert_void(answer: PredictAnswer, num_runs: int) -> None:
    assert answer.is_void
    assert (answer.edge, answer.take, answer.best_lr, answer.p_stable) == (None, None, None, None)
    assert len(answer.confirmation.runs) == num_runs
    first = next(iter(answer.blocks()))
    assert isinstance(first, Caution)
    assert answer.rendered("svg").startswith(b"<?xml")


def test_the_advice_names_the_cost_and_its_command_runs(folder: Path) -> None:
    answer = load(folder).predict(at=TARGET)
    advice = next(line for line in answer.lines() if line.startswith("next:"))
    assert re.search(r"320 steps \(about [\d:]+( to [\d:]+)? on one worker\)", advice)
    done = CliRunner().invoke(app, shlex.split(advice.split("`")[1])[1:])
    assert done.exit_code == 0, done.output
    assert load(folder).predict(at=TARGET).confirmation is not None


@pytest.mark.slow
@pytest.mark.usefixtures("small_pictures")
@pytest.mark.parametrize("is_command", [True, False])
def test_the_sweeps_at_the_target_are_mirrored_and_reported_at_their_end(tmp_path: Path, is_command: bool) -> None:
    folder = ladder_without_files(tmp_path, tracking={"to": ["tensorboard"]})
    if is_command:
        done = CliRunner().invoke(app, ["predict", str(folder), "--at", *TARGET, "--confirm", "1"])
        assert done.exit_code == 0, done.output
    else:
        confirm(folder, 1)
    for end in ("", "_start"):
        own = tmp_path / f"trained_confirm_curvature64{end}"
        assert len(list((own / "tensorboard" / "trials").iterdir())) == 1
        assert (own / "report.html").is_file()


def test_what_cannot_be_trained_is_refused_with_the_remedy(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(
        "\n".join(
            ["lr,width,loss"]
            + [
                f"{lr},{width},{'nan' if lr * width > 0.3 else 2}"
                for lr in (1e-3, 4e-3, 1.6e-2)
                for width in (16, 32, 64)
            ]
        )
    )
    arguments = ["import", str(table), "--name", "table", "--axis", "lr", "--axis", "width", "--outcome", "loss"]
    assert CliRunner().invoke(app, [*arguments, "--results", str(tmp_path)]).exit_code == 0
    with pytest.raises(InputError, match="sweep import"):
        load(tmp_path / "table").predict(at=("width=128",), confirm=2)


@pytest.mark.slow
def test_longer_runs_are_trained_as_long_as_the_target_says(folder: Path) -> None:
    longer = ("curvature=64", "steps=320")
    answer = load(folder).predict(at=longer, confirm=2)
    assert not answer.is_void
    assert [run.steps for run in answer.confirmation.runs] == [30, 320, 320]
    assert answer.edge.low < EDGE < answer.edge.high
    assert load(folder).predict(at=TARGET).confirmation is None


@pytest.mark.usefixtures("without_files")
def test_pooled_sweeps_are_confirmed_at_the_target(tmp_path: Path) -> None:
    for curvature in (1.0, 4.0, 16.0):
        fixed = {"optimizer": "sgd", "beta1": 0.0, "noise": 1.0, "dimension": 1000, "curvature": curvature}
        axes = {"lr": {"log": [0.02, 5.0], "num": 17}}
        sweep = {"objective": "quadratic", "steps": 80, "seeds": [3], "axes": axes, "fixed": fixed}
        run({**sweep, "name": f"c{curvature:g}", "tracking": {"enabled": False}}, results=tmp_path, executor="inline")
    answer = load("c1", tmp_path).predict(at=TARGET, beside=("c4", "c16"), confirm=2)
    assert not answer.is_void
    assert answer.edge.low < EDGE < answer.edge.high
    advice = next(line for line in answer.lines() if line.startswith("next:"))
    assert "c1 " in advice
    assert "c4" in advice
    assert "c16" in advice
