import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sweep_cases import learning

from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

SWEEP = """
name: judged
objective: quadratic
steps: 80
seeds: [0, 1]
axes:
  lr: {values: [0.003, 1.0e+4, 1.0e+20]}
fixed: {optimizer: sgd, beta1: 0.0}
stopping: {patience: 20}
tracking: {enabled: false}
"""
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def replay(tmp_path: Path, monkeypatch, command_line) -> Callable[..., tuple[int, str]]:
    """Run `sweep replay` in an empty folder: exit code and everything it printed."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, command="replay": command_line(command, *arguments)


def write(path: str, loss_N: np.ndarray, header: str = "step,loss") -> None:
    """A log in CSV, a tenth of whose steps are logged."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{10 * step},{loss!r}\n" for step, loss in enumerate(map(float, loss_N)))
    Path(path).write_text(f"{header}\n{rows}")


CALM = learning(300)
SPIKED = learning(300, changes=[(150, 160, 3.0)])
LOST = learning(300, changes=[(150, 300, 4.0)])
BACK = learning(600, changes=[(300, 420, 4.0)])


def train(steps: str) -> None:
    """Train the sweep in the current folder."""
    sweep = build_sweep(parse_document(SWEEP.replace("steps: 80", f"steps: {steps}"), "judged.yaml"))
    assert run_sweep(sweep, Path("results/judged").absolute(), InlineExecutor).exit_code == 0


@pytest.fixture
def some_logs(replay) -> None:
    """Logs in folders, two of them of one name, and other files."""
    write("logs/calm.csv", CALM)
    write("logs/a/run.csv", SPIKED)
    write("logs/b/run.csv", LOST)
    write("logs/back.csv", BACK)
    write("logs/broken.csv", np.where(np.arange(300) >= 200, math.nan, CALM))
    Path("logs/config.json").write_text('{"width": 16, "lr": 0.1}')
    Path("logs/model.pt").write_bytes(b"\0\1\2")


def test_a_folder_is_walked_and_each_log_has_a_line_and_an_entry_with_finite_numbers(replay, some_logs) -> None:
    Path("out").mkdir()
    code, text = replay("logs", "--no-figures", "--json", "out/all.json", "--set", "stopping.patience=50")
    assert code == 0, text
    assert "NaN" not in Path("out/all.json").read_text()
    assert "Infinity" not in Path("out/all.json").read_text()
    found = {one["log"]: one for one in json.loads(Path("out/all.json").read_text())}
    assert {name: one["outcome"] for name, one in found.items()} == {
        "logs/a/run.csv": "spiked", "logs/b/run.csv": "diverged", "logs/back.csv": "spiked",
        "logs/broken.csv": "diverged", "logs/calm.csv": "stable",
    }  # fmt: skip
    for one in found.values():
        lines = [line.split() for line in text.splitlines() if line.startswith(one["log"].removeprefix("logs/") + " ")]
        assert [line[1:3] for line in lines] == [[str(one["num_points"]), one["outcome"]]]
        assert (one["first_step"], one["last_step"]) == (0, 10 * (one["num_points"] - 1))
        assert one["columns"] == {"step": "step", "loss": "loss", "grad_norm": None}
        assert (one["stop_step"] is None) == (one["stop_reason"] is None)
    assert found["logs/broken.csv"]["stop_step"] == 2000
    assert found["logs/b/run.csv"]["onset_step"] == 1500
    (episode,) = found["logs/a/run.csv"]["episodes"]
    assert (episode["onset_step"], episode["recovery_step"]) == (1500, 1600)
    assert "1: 1,500 to 1,600" in text
    assert {name for name, one in found.items() if one["is_wrong_stop"]} == {"logs/back.csv"}
    (line,) = [line for line in text.splitlines() if line.startswith("back.csv")]
    assert f"step {found['logs/back.csv']['stop_step']:,} (wrong: it came back)" in line
    assert "columns: step=step loss=loss grad-norm=None" in text
    assert not Path("results").exists(), "no picture was asked for"


def test_each_log_gets_a_picture_of_its_own(replay, some_logs) -> None:
    code, text = replay("logs")
    assert code == 0, text
    pictures = sorted(Path("results/replay").iterdir())
    assert [picture.name for picture in pictures] == [
        "b__run.csv.png", "back.csv.png", "broken.csv.png", "calm.csv.png", "run.csv.png",
    ]  # fmt: skip
    contents = {picture.read_bytes() for picture in pictures}
    assert all(content.startswith(PNG) for content in contents)
    assert len(contents) == len(pictures)
    assert "pictures: results/replay/" in text


@pytest.mark.parametrize("paths", [("run.csv", "../run.csv"), ("a b/run.csv", "run.csv", "a_b/run.csv")])
def test_logs_whose_names_come_out_alike_get_pictures_of_their_own(
    replay, monkeypatch, tmp_path: Path, paths: tuple[str, ...]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for i, path in enumerate(paths):
        write(path, CALM + i)
    code, text = replay(*paths, "--figures", "pictures")
    assert code == 0, text
    assert len({picture.read_bytes() for picture in Path("pictures").iterdir()}) == len(paths)


@pytest.mark.parametrize(
    ("change", "outcome"), [("spike_rise=100.0", "stable"), ("spike_steps=11", "stable"), ("window=60", "spiked")]
)
def test_another_setting_judges_otherwise(replay, change: str, outcome: str) -> None:
    # Not so high that one step of it would count.
    write("run.csv", learning(300, changes=[(150, 160, 1.5)]))
    assert replay("run.csv", "--no-figures")[1].splitlines()[1].split()[2] == "spiked"
    code, text = replay("run.csv", "--no-figures", "--set", f"stopping.{change}")
    assert (code, text.splitlines()[1].split()[2]) == (0, outcome)


def test_columns_can_be_chosen_and_are_said_with_what_was_left_out(replay) -> None:
    Path("run.csv").write_text("s,a,b,g\n" + "".join(f"{i},{9 - i},{i},1\n" for i in range(9)) + "6,1,1,1\n9\n")
    code, text = replay("run.csv", "--no-figures", "--step", "s", "--loss", "b", "--grad-norm", "g", "--json", "x")
    assert code == 0, text
    assert "columns: step=s loss=b grad-norm=g" in text
    assert "note: run.csv: not understood: 1 line or record" in text
    assert "note: run.csv: 3 points were written again" in text
    (one,) = json.loads(Path("x").read_text())
    assert one["columns"] == {"step": "s", "loss": "b", "grad_norm": "g"}
    assert len(one["notes"]) == 2


def test_names_are_shown_as_they_are(replay) -> None:
    write("[red]run[/red].csv", CALM)
    code, text = replay("[red]run[/red].csv", "--no-figures")
    assert code == 0
    assert text.splitlines()[1].startswith("[red]run[/red].csv ")


# --- what goes wrong


@pytest.mark.parametrize(
    ("name", "why"), [("accuracy", "is the name of a score"), ("losses/value_loss", "rises while an agent learns")]
)
def test_a_column_that_the_detector_cannot_judge_is_refused_by_its_name(replay, name: str, why: str) -> None:
    Path("run.csv").write_text(f"step,{name}\n" + "".join(f"{i},{9 - i}\n" for i in range(9)))
    code, text = replay("run.csv", "--no-figures", "--loss", name)
    assert code == 2
    assert f"--loss {name}: {why}" in text
    assert replay("run.csv", "--no-figures", "--pattern", r"(?P<step>\d+),(?P<loss>\d+)")[0] == 0


BAD_SETS = {
    "stopping.windw=5": ("stopping.windw", "window"),
    "stopping.window=abc": ("stopping.window", "integer"),
    "stopping.window=1": ("stopping.window", "10"),
    "stopping.patience=.inf": ("stopping.patience", "integer"),
    "stopping.window": ("--set stopping.window", "is not KEY=VALUE"),
    "fixed.lr=1": ("--set fixed.lr=1", "stopping"),
}


@pytest.mark.parametrize("change", BAD_SETS)
@pytest.mark.parametrize("path", ["run.csv", "judged"])
def test_a_setting_that_is_none_is_refused_with_its_key(replay, path: str, change: str) -> None:
    write("run.csv", CALM)
    if path == "judged":
        train("2")
    code, text = replay(path, "--no-figures", "--set", change)
    assert code == 2
    for part in BAD_SETS[change]:
        assert part in text
    assert "Traceback" not in text
    assert "finished trials" not in text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("other.csv", "", "no such file or folder"),
        ("bad.csv", "\0\1\2\3", "is a binary file, not a log"),
        ("bad.csv/config.json", '{"lr": 1}', "its only file is not a log"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_name_and_a_remedy(
    replay, name: str, content: str, message: str
) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(content)
    code, text = replay("bad.csv")
    assert code == 2
    (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: bad.csv: ")
    assert message in text
    assert "remedy: " in text
    assert "Traceback" not in text
    assert not Path("results").exists()


def test_one_bad_log_keeps_no_other_from_being_judged(replay) -> None:
    write("good.csv", CALM)
    Path("bad.csv").touch()
    code, text = replay("bad.csv", "good.csv", "--no-figures", "--json", "all.json")
    assert code == 2
    assert "error: bad.csv: is empty" in text
    assert [one["log"] for one in json.loads(Path("all.json").read_text())] == ["good.csv"]


# --- finished sweeps


@pytest.fixture
def judged(replay) -> None:
    """A finished sweep: two stable trials, two stopped while finite, two not finite."""
    train("80")


@pytest.mark.parametrize("name", ["judged", "results/judged"])
def test_a_finished_sweep_without_another_setting_is_what_it_was(replay, judged, name: str) -> None:
    code, text = replay(name, "--json", "all.json")
    assert code == 0
    assert "judged: 6 finished trials, 0 with another outcome" in text
    assert "->" not in text
    assert "unknown" not in text
    trials = json.loads(Path("all.json").read_text())
    assert len(trials) == 6
    for trial in trials:
        assert (trial["new_outcome"], trial["new_steps_done"]) == (trial["outcome"], trial["steps_done"])
        assert trial["sweep"] == "judged"
    total = sum(trial["steps_done"] for trial in trials)
    assert f"member-steps: {total:,} trained, {total:,} until the new verdicts" in text


def test_a_finished_sweep_under_another_setting_says_which_outcomes_change(replay, judged) -> None:
    code, text = replay("judged", "--set", "stopping.patience=2000", "--json", "all.json")
    assert code == 0
    assert "6 finished trials, 2 with another outcome\n  diverged -> unknown: 2\n" in text
    assert "unknown: training was stopped before the new settings would have judged" in text
    changed = [one for one in json.loads(Path("all.json").read_text()) if one["new_outcome"] != one["outcome"]]
    assert {(one["cell"]["lr"], one["new_outcome"]) for one in changed} == {(1e4, "unknown")}
    rows = [line.split() for line in text.splitlines() if line.startswith("lr=")]
    assert [row[:4] for row in rows] == [["lr=10000", str(seed), "diverged", "unknown"] for seed in (0, 1)]
    code, text = replay("judged", "--set", "stopping.stall_drop=0.95")
    assert "  stable -> stalled: 2\n" in text


def test_sweeps_and_logs_are_replayed_together(replay, judged) -> None:
    write("run.csv", SPIKED)
    code, text = replay("judged", "run.csv", "--no-figures", "--json", "all.json", "--set", "stopping.patience=30")
    assert code == 0
    assert "judged: 6 finished trials" in text
    assert "run.csv" in text
    assert len(json.loads(Path("all.json").read_text())) == 7


# --- MLflow


def write_norms(path: str, every: int) -> None:
    """A calm log whose gradient norm doubles half-way, with a point every few steps."""
    rows = (f"{every * i},{loss!r},{2.0 if i >= 300 else 1.0}\n" for i, loss in enumerate(learning(600).tolist()))
    Path(path).write_text("step,loss,grad_norm\n" + "".join(rows))


def test_a_rising_gradient_norm_is_noted_and_changes_nothing(replay) -> None:
    write_norms("dense.csv", 1)
    write_norms("sparse.csv", 20)
    note = "the gradient norm has risen by half against its last 128 steps, at step"
    code, said = replay("dense.csv", "sparse.csv", "--json", "found.json")
    dense, sparse = json.loads(Path("found.json").read_text())
    assert code == 0
    assert f"note: dense.csv: {note} 309" in said
    assert "note: sparse.csv" not in said, "its points are too far apart"
    assert (dense["norm_rises"], dense["outcome"], sparse["norm_rises"]) == ([309], "stable", [])
    assert note not in replay("dense.csv", "--no-norm-rises")[1]
    assert f"note: sparse.csv: {note} 6,180" in replay("sparse.csv", "--norm-rises")[1]


def test_faint_episodes_are_listed_on_request_and_count_for_nothing(replay) -> None:
    noise = np.exp(0.3 * np.random.default_rng(3).standard_t(5, 3000))
    write("heavy.csv", (1 + 3 * np.exp(-np.arange(3000) / 50)) * noise)
    code, said = replay("heavy.csv", "--faint", "--json", "found.json")
    (found,) = json.loads(Path("found.json").read_text())
    assert (code, found["outcome"], found["num_spikes"], found["episodes"]) == (0, "stable", 0, [])
    faint = found["faint_episodes"]
    assert all(0 <= episode["strength"] < 12 for episode in faint)
    assert f"faint episodes of heavy.csv: {len(faint)}: {faint[0]['onset_step']:,} to" in said
    assert "faint" not in replay("heavy.csv", "--no-figures")[1]


def test_a_slow_rise_is_noted(replay) -> None:
    loss_N = learning(3000)
    loss_N[2000:] += np.minimum(np.arange(1000) / 500, 1.0)
    write("slow.csv", loss_N)
    code, said = replay("slow.csv", "--json", "found.json")
    (found,) = json.loads(Path("found.json").read_text())
    assert code == 0
    assert found["outcome"] == "stable"
    assert found["risen_share"] == pytest.approx(1 / 3, abs=0.05)
    assert f"note: slow.csv: since step {found['risen_since_step']:,} it has given up" in said


def test_a_pattern_and_a_format_can_be_told(replay) -> None:
    Path("odd.log").write_text("".join(f"it#{10 * i} L~{loss:.6f}\n" for i, loss in enumerate(CALM)))
    code, said = replay("odd.log", "--pattern", r"it#(?P<step>\d+) L~(?P<loss>\S+)", "--no-figures")
    assert (code, "stable" in said) == (0, True)
    assert "columns: step=step loss=loss" in said
    Path("a.txt").write_text("".join(json.dumps({"step": i, "loss": loss}) + "\n" for i, loss in enumerate(CALM)))
    assert replay("a.txt", "--format", "json", "--no-figures")[0] == 0
    for options, says in (
        (["--pattern", "("], "is not a valid regular expression"),
        (["--pattern", "(?P<step>x)"], "has no group called loss"),
        (["--format", "xml"], "--format: Input should be"),
    ):
        code, said = replay("odd.log", *options)
        assert (code, says in said) == (2, True), said


def test_a_spike_is_compared_with_what_became_of_such_runs_in_a_sweep(replay) -> None:
    train("80")
    write("run.csv", SPIKED)
    code, text = replay("run.csv", "--no-figures", "--beside", "judged", "--json", "run.json")
    assert code == 0, text
    (why,) = [one["explanation"] for one in json.loads(Path("run.json").read_text())]
    assert "of judged that left the trend came back without help" in why["actions"][0]["what"]
    assert why["onset_step"] == 1500
    assert {each["from_step"] for each in why["actions"][1:]} == {1450}
    code, text = replay("run.csv", "--no-figures", "--beside", "nowhere")
    assert code == 2
    assert "holds no sweep" in text


def test_calm_runs_have_no_explanation_and_only_some_of_many_are_in_the_text(replay) -> None:
    write("logs/calm.csv", CALM)
    for number in range(5):
        write(f"logs/{number}.csv", SPIKED)
    code, text = replay("logs", "--no-figures", "--json", "all.json")
    assert code == 0
    assert text.count("what it says of step 1,500") == 3
    assert "2 more logs left their trend; --json FILE says why" in text
    found = {one["log"]: one["explanation"] for one in json.loads(Path("all.json").read_text())}
    assert [name for name, why in found.items() if why is None] == ["logs/calm.csv"]
