"""docs/import.md: the published table gives the edges that the page shows, and every command works."""

import contextlib
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from page_cases import blocks, invoke
from typer.testing import CliRunner

import orchestrator
from orchestrator.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "import.md").read_text()


def run(block: str, folder: Path) -> str:
    return "".join(invoke(shlex.split(line)[1:], folder) for line in block.splitlines())


@pytest.mark.slow
def test_the_published_table_has_the_edges_that_the_page_shows(tmp_path: Path) -> None:
    (table,) = blocks(PAGE, "csv")
    (tmp_path / "adamw.csv").write_text(table)
    printed = run(blocks(PAGE, "sh")[0], tmp_path)
    assert re.search(r"^adamw: imported 28 runs in 28 cells from adamw.csv$", printed, re.MULTILINE)
    assert printed.endswith(blocks(PAGE, "text")[0])
    loaded = orchestrator.load("adamw", results=tmp_path / "results")
    assert (loaded.trials["outcome"] == "diverged").sum() == 10
    for line, expected in (
        ("sweep run adamw", "holds imported results"),
        ("sweep run adamw --refine", "holds imported results"),
        ("sweep survival adamw", "without curves"),
        ("sweep diagnose adamw", "without curves"),
        ("sweep replay adamw", "without curves"),
    ):
        with contextlib.chdir(tmp_path):
            refused = CliRunner().invoke(app, shlex.split(line)[1:])
        assert expected in str(refused.exception), line


@pytest.mark.slow
def test_the_commands_of_curves_work_on_a_table_and_a_folder(tmp_path: Path) -> None:
    lines = ["run_id,lr,step,loss"]
    for lr in (0.1, 1.0):
        for seed in (0, 1):
            loss_N = 1 + np.exp(-np.arange(60) / 20) + (lr == 1.0) * (np.arange(60) > 40) * 9
            own = tmp_path / "runs" / f"lr{lr}_seed{seed}"
            own.mkdir(parents=True)
            (own / "hparams.yaml").write_text(f"optim:\n  lr: {lr}\nseed: {seed}\n")
            (own / "train.log").write_text("".join(f"step {t} loss {loss:.4f}\n" for t, loss in enumerate(loss_N)))
            lines += [f"{own.name},{lr},{t},{loss:.4f}" for t, loss in enumerate(loss_N)]
    (tmp_path / "curves.csv").write_text("\n".join(lines) + "\n")
    curves = [
        (lr, seed, [line.split(",")[3] for line in lines if line.startswith(f"lr{lr}_seed{seed},")])
        for lr in (0.1, 1.0)
        for seed in (0, 1)
    ]
    head = ",".join(["Step", *(f"lr={lr} seed={seed} - train/loss" for lr, seed, _ in curves)])
    rows = [",".join([str(t), *(own[t] for *_, own in curves)]) for t in range(60)]
    (tmp_path / "chart.csv").write_text("\n".join([head, *rows]) + "\n")
    printed = "".join(run(block, tmp_path) for block in blocks(PAGE, "sh")[1:])
    assert len(re.findall(r"imported 4 runs in 2 cells", printed)) == 5
    assert printed.count("2 diverged") == 5
