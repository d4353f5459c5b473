"""The installed command on logs of other tools, and on what it trained itself."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sweep_cases import learning

SWEEP = str(Path(sys.executable).with_name("sweep"))
DATA = Path(__file__).parents[1] / "data" / "logs"
TRAINED = """
name: trained
objective: quadratic
steps: 30
seeds: [0]
axes:
  lr: {values: [0.1, 1.0e+4, 1.0e+20]}
fixed: {optimizer: sgd, beta1: 0.0}
stopping: {patience: 20}
tracking: {every: 1}
"""


def sweep(cwd: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([SWEEP, *arguments], cwd=cwd, capture_output=True, text=True)


def test_a_newcomer_gets_the_right_table_of_nano_gpt_at_once(tmp_path: Path) -> None:
    losses = learning(2000, changes=[(1200, 1230, 2.0)])
    lines = ["tokens per iteration will be: 491,520", "number of parameters: 123.59M"]
    for i, loss in enumerate(losses):
        if i % 250 == 0:
            lines.append(f"step {i}: train loss {loss:.4f}, val loss {loss + 0.1:.4f}")
        lines.append(f"iter {i}: loss {loss:.4f}, time 23.40ms, mfu 12.30%")
    (tmp_path / "train.log").write_text("\n".join(lines))
    done = sweep(tmp_path, "replay", "train.log")
    assert (done.returncode, done.stderr) == (0, "")
    header, row, columns, pictures, *why = done.stdout.splitlines()
    assert header.split("  ")[0] == "log"
    assert row.split()[:3] == ["train.log", "2,000", "spiked"]
    assert "1: 1,200 to 1,230" in row
    assert columns == "columns: step=iter loss=loss grad-norm=None"
    assert pictures == "pictures: results/replay/"
    assert why[0] == "train.log: what it says of step 1,200"
    assert any(line.startswith("  validation loss 2.") for line in why)
    assert "  do: nothing, while it stays rare: it came back without help" in why
    assert (tmp_path / "results" / "replay" / "train.log.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("kinds", "code"), [("spiked,diverged", 5), ("diverged", 0)])
def test_an_outcome_that_was_asked_to_fail_is_an_exit_code_for_ci(
    tmp_path: Path, command_line, monkeypatch, kinds: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    losses = learning(2000, changes=[(1200, 1230, 2.0)])
    Path("train.log").write_text("".join(f"step {i} loss {loss:.4f}\n" for i, loss in enumerate(losses)))
    found, text = command_line("replay", "train.log", "--no-figures", "--fail-on", kinds)
    assert found == code
    assert ("--fail-on: train.log is spiked" in text) == (code == 5)
    assert command_line("replay", "nowhere.log", "--fail-on", kinds)[0] == 2
    assert command_line("replay", "train.log", "--fail-on", "spike")[0] == 2


@pytest.mark.slow
def test_logs_that_other_tools_wrote_are_judged_in_one_go(tmp_path: Path) -> None:
    done = sweep(tmp_path, "replay", str(DATA), "--no-figures", "--json", "all.json")
    assert (done.returncode, done.stderr) == (0, "")
    found = {
        Path(one["log"]).relative_to(DATA).parts[0]: one for one in json.loads((tmp_path / "all.json").read_text())
    }
    assert {name: one["num_points"] for name, one in found.items()} == {
        "lightning_metrics.csv": 48, "tensorboard": 60, "tensorboard_tensors": 20, "trainer_state.json": 40,
        "transformers_stdout.txt": 40,
    }  # fmt: skip
    assert {one["outcome"] for one in found.values()} == {"stable"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file or folder"),
        (b"", "is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is a binary file, not a log"),
        (b"Nothing was trained.\n", "holds no numbers with names"),
        (b'{"log_history": [{"step": 1', "is not JSON"),
    ],
)
def test_what_is_no_log_ends_with_two_and_says_what_to_do(
    tmp_path: Path, command_line, monkeypatch, content: bytes | None, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "run.log").write_bytes(content)
    code, output = command_line("replay", "run.log")
    assert code == 2
    assert f"error: run.log: {message}" in output
    assert "remedy: " in output
    assert "Traceback" not in output


@pytest.mark.slow  # half a minute; each half of it is among the unit tests
def test_a_trained_sweep_is_replayed_from_its_ledger_and_a_trial_from_mlflow(tmp_path: Path) -> None:
    (tmp_path / "trained.yaml").write_text(TRAINED)
    done = sweep(tmp_path, "run", "trained.yaml", "--executor", "inline")
    assert done.returncode == 0, done.stdout + done.stderr
    done = sweep(tmp_path, "replay", "trained", "--json", "same.json")
    assert done.returncode == 0, done.stderr
    assert "trained: 3 finished trials, 0 with another outcome" in done.stdout
    trials = json.loads((tmp_path / "same.json").read_text())
    assert [trial["outcome"] for trial in trials] == ["stable", "diverged", "diverged"]
    done = sweep(tmp_path, "replay", "trained", "--set", "stopping.early_stop=false", "--json", "other.json")
    assert done.returncode == 0, done.stderr
    unknown = [
        trial for trial in json.loads((tmp_path / "other.json").read_text()) if trial["new_outcome"] == "unknown"
    ]
    assert "diverged -> unknown: 1" in done.stdout
    assert [trial["cell"]["lr"] for trial in unknown] == [1e4]

    # A run on a busy machine may end before its mirror does.
    done = sweep(tmp_path, "sync", "trained")
    assert done.returncode == 0, done.stderr
    calm = next(trial for trial in trials if trial["outcome"] == "stable")
    with sqlite3.connect(tmp_path / "results" / "mlflow.db") as store:
        ((run_id,),) = store.execute(
            "SELECT run_uuid FROM tags WHERE key = 'sweep.trial_id' AND value = ?", (calm["trial_id"],)
        ).fetchall()
    store.close()
    done = sweep(tmp_path, "replay", f"mlflow:{run_id}", "--no-figures", "--json", "run.json")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads((tmp_path / "run.json").read_text())
    assert run["columns"] == {"step": "step", "loss": "loss", "grad_norm": "grad_norm"}
    assert (run["num_points"], run["first_step"], run["last_step"], run["notes"]) == (30, 0, 29, [])
