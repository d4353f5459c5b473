import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from orchestrator import load
from orchestrator.answers._tracked import _answer
from orchestrator.base.errors import InputError
from orchestrator.cli.app import app
from orchestrator.render.blocks import Caution, Line


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An imported table whose edge falls as 1 / width, in two batches."""
    folder = tmp_path_factory.mktemp("ladder")
    lines = [
        f"{lr},{width},{batch},{'nan' if lr * width > 0.3 else 2 + abs(lr * width - 0.06)}"
        for lr in (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
        for width in (16, 32, 64, 128)
        for batch in (8, 32)
    ]
    (folder / "table.csv").write_text("\n".join(["lr,width,batch,loss", *lines]))
    axes = [part for name in ("lr", "width", "batch") for part in ("--axis", name)]
    arguments = ["import", str(folder / "table.csv"), "--name", "ladder", *axes, "--outcome", "loss"]
    done = CliRunner().invoke(app, [*arguments, "--results", str(folder)])
    assert done.exit_code == 0, done.output
    return folder / "ladder"


def test_the_first_line_has_edge_and_rate_and_json_has_the_same(folder: Path) -> None:
    answer = load(folder).predict(at=("width=256", "batch=32"), lr=1e-4)
    plain = answer.to_plain()
    first = next(block for block in answer.blocks() if not isinstance(block, Caution))
    assert isinstance(first, Line)
    assert all(f"{number:.2g}" in first.text for number in (*plain["edge"].values(), plain["take"]))
    assert plain["edge"]["low"] < 0.3 / 256 < plain["edge"]["high"]
    assert plain["target"] == {"width": 256, "batch": 32}
    assert plain["exponents"].keys() == {"width", "batch"}
    assert 0.0 in plain["exponents"]["batch"]["theories"]
    assert plain["p_stable"] > 0.9
    for ending, begins in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        assert answer.rendered(ending).startswith(begins)


def test_a_size_that_would_help_is_named_without_steps_that_an_import_does_not_know(folder: Path) -> None:
    (line,) = [line for line in load(folder).predict(at=("width=512", "batch=32")).lines() if "next:" in line]
    assert line.endswith("width between 128 and 512, with 12 runs")


def test_an_axis_can_be_kept_at_one_value_and_is_asked_for_otherwise(folder: Path) -> None:
    results = load(folder)
    assert results.predict(at=("width=256",), where={"batch": "8"}).to_plain()["num_sizes"] == 4
    with pytest.raises(InputError, match="--at batch=VALUE"):
        results.predict(at=("width=256",))


@pytest.mark.parametrize(
    "at",
    [
        (),
        ("width",),
        ("width=wide",),
        ("width=-1",),
        ("width=inf",),
        ("size=2",),
        ("width=1e300", "batch=8"),
        ("width=1e-300", "batch=8"),
        ("width=256", "batch=8", "width=512"),
    ],
)
def test_a_target_that_is_no_size_is_refused(folder: Path, at: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="remedy"):
        load(folder).predict(at=at, far=True)


@pytest.mark.parametrize(
    "options", [{"lr": 0.0}, {"lr": float("nan")}, {"assume": float("inf")}, {"assume": 1e3}, {"assume": -1.0}]
)
def test_numbers_without_a_meaning_are_refused(folder: Path, options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="remedy"):
        load(folder).predict(at=("width=256", "batch=8"), **options)


def test_the_command_that_comes_next_asks_the_same_with_a_rate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.answers.predict._WIDE", 1e9)
    answer = load(folder).predict(at=("width=192",), where={"batch": "8"}, along="lr", far=True)
    command = next(line for line in answer.lines() if "--lr RATE" in line).split("`")[1].replace("RATE", "1e-4")
    done = CliRunner().invoke(app, [*shlex.split(command)[1:], "--json", "-"])
    assert done.exit_code == 0, done.output
    again = json.loads(done.stdout)
    assert again["edge"] == answer.to_plain()["edge"]
    assert again["rate"] == 1e-4


def imported(folder: Path, width: int, name: str) -> None:
    """A table of one width, with an edge at 0.3 / width."""
    lines = [f"{lr},{width},{'nan' if lr * width > 0.3 else 2}" for lr in (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)]
    (folder / f"{name}.csv").write_text("\n".join(["lr,width,loss", *lines]))
    arguments = ["import", str(folder / f"{name}.csv"), "--name", name, "--axis", "lr", "--axis", "width"]
    done = CliRunner().invoke(app, [*arguments, "--outcome", "loss", "--results", str(folder)])
    assert done.exit_code == 0, done.output


def test_a_law_that_fails_its_backtest_says_no_number_unless_it_is_wanted_anyway(tmp_path: Path) -> None:
    lines = [
        f"{lr},{width},{'nan' if lr * width > (0.05 if width == 128 else 0.3) else 2}"
        for lr in np.geomspace(1e-4, 3e-2, 12)
        for width in (16, 32, 64, 128)
    ]
    (tmp_path / "cliff.csv").write_text("\n".join(["lr,width,loss", *lines]))
    arguments = ["import", str(tmp_path / "cliff.csv"), "--name", "cliff", "--axis", "lr", "--axis", "width"]
    done = CliRunner().invoke(app, [*arguments, "--outcome", "loss", "--results", str(tmp_path)])
    assert done.exit_code == 0, done.output
    results = load(tmp_path / "cliff")
    answer, anyway = results.predict(at=("width=256",), lr=1e-4), results.predict(at=("width=256",), anyway=True)
    plain = answer.to_plain()
    assert [plain[key] for key in ("edge", "best_lr", "headroom", "take", "p_stable")] == [None] * 5
    assert plain["refused"] == anyway.to_plain()["refused"] != []
    first = next(iter(answer.blocks()))
    assert isinstance(first, Caution)
    assert plain["refused"][0] in first.text
    assert not any(f"lr {anyway.edge.at:.2g}" in line for line in answer.lines())
    assert any("width between 128 and 256" in line for line in answer.lines()), "the remedy"
    assert isinstance(next(iter(anyway.blocks())), Caution)
    assert anyway.edge.low < anyway.edge.at < anyway.edge.high
    assert answer.rendered("svg").startswith(b"<?xml")
    assert _answer(answer.result).tags["predicted.edge"] == "refused"


@pytest.mark.slow
def test_sweeps_of_one_size_each_pool_from_the_command_and_from_python(tmp_path: Path) -> None:
    for width in (16, 32, 64):
        imported(tmp_path, width, f"w{width}")
    arguments = ["predict", "w16", "w32", "w64", "--at", "width=128", "--results", str(tmp_path), "--json", "-"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    answer = load("w16", tmp_path).predict(at=("width=128",), beside=("w32", str(tmp_path / "w64")))
    plain = answer.to_plain()
    assert json.loads(done.stdout) == plain
    assert plain["edge"]["low"] < 0.3 / 128 < plain["edge"]["high"]
    assert (plain["sweep"], plain["beside"], plain["num_sizes"]) == ("w16", ["w32", "w64"], 3)
    assert any("at 3 sizes of w16, w32 and w64" in line for line in answer.lines())
    with pytest.raises(InputError, match="holds no sweep"):
        load("w16", tmp_path).predict(at=("width=128",), beside=("missing",))
