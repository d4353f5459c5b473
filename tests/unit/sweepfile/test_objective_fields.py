"""Every field of every objective can be an axis: planned, trained, and shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from field_cases import VALUES, needs_of
from pack_cases import SMALL
from tiers import thinned

from objectives.base import OBJECTIVES
from orchestrator import load
from orchestrator.answers.map import MapQuery
from orchestrator.base.errors import InputError
from orchestrator.base.space import to_hashable
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.table import read_table
from orchestrator.maps.tables import map_table, trial_table
from orchestrator.pages.report import report_html
from orchestrator.render.text_map import text_map
from orchestrator.sweepfile.settings import run_settings
from orchestrator.sweepfile.spec import build_sweep, load_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

EVERY_FIELD = [(n, field) for n, o in OBJECTIVES.items() for field in o.config_class.model_fields if field != "steps"]
# A picture takes a second: one for each kind of values is enough.
DRAWN = {"lr", "clip", "warmup", "schedule", "qk_norm", "text"}


def sweep_over(objective: str, field: str) -> str:
    needs = needs_of(field)
    small = {key: value for key, value in SMALL[objective].items() if key not in ("optimizer", "beta1", field)}
    data = {
        "name": "every", "objective": objective, "steps": 3, "axes": {field: {"values": VALUES[field]}},
        "fixed": {**small, **needs}, "resources": {"pack": 2}, "telemetry": {"every": None},
        "tracking": {"enabled": False},
    }  # fmt: skip
    return yaml.safe_dump(data)


@pytest.fixture
def texts(tmp_path: Path, monkeypatch) -> Path:
    """A folder with two texts, in which one stands."""
    for name in ("en", "fr"):
        (tmp_path / f"{name}.txt").write_text(f"{name} " * 4000)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# A field that objectives share is theirs all: by default the last of them, the quickest, sweeps it.
SHOWN_BY = {field: name for name, field in EVERY_FIELD}


@pytest.mark.parametrize(
    ("objective", "field"),
    thinned(EVERY_FIELD, lambda case: SHOWN_BY[case[1]] == case[0] or (case[0] == "gpt" and case[1] in DRAWN)),
    ids=[f"{name}.{field}" for name, field in EVERY_FIELD],
)
def test_every_field_of_every_objective_can_be_swept_and_shown(objective: str, field: str, texts: Path) -> None:
    assert field in VALUES, "a new field: give it two values above"
    sweep = build_sweep(parse_document(sweep_over(objective, field), "every.yaml"))
    values = [trial.cell[field] for trial in sweep.trials]
    names_files = field in ("text", "shift_text")
    expected = [(str(texts / value[0]),) if names_files else to_hashable(value) for value in VALUES[field]]
    assert values == expected
    folder = texts / "results" / "every"
    assert run_sweep(sweep, folder, InlineExecutor).exit_code == 0
    with LedgerReader(folder / "ledger.db") as ledger:
        (axis,) = read_table(ledger).axes
        assert set(axis.values) == set(values)
        stability = cell_map(read_table(ledger))
        assert {x for x, _ in stability.cells} == set(values)
        assert len(map_table(stability)) == 2
        assert len(trial_table(read_table(ledger))) == 2
        rows = ledger.trials()
        assert [row.cell[field] for row in rows] == values
        assert field in report_html(read_table(ledger), stability, sweep.text)
        answer = MapQuery().ask(read_table(ledger))
    assert len(answer.frame()) == 2
    drawing = text_map(rows)
    assert f"{field}: " in drawing.plain
    if objective == "gpt" and field in DRAWN:
        assert answer.rendered("svg").startswith(b"<?xml")
    (folder / "again.yaml").write_text(sweep.text)
    assert [trial.trial_id for trial in load_sweep(folder / "again.yaml").trials] == [t.trial_id for t in sweep.trials]


REFUSED_TEXTS = {
    "[[en.txt], [gone.txt]]": ["every.yaml:5: axes.text: 'gone.txt' matches no file", "working directory"],
    "[en.txt, fr.txt]": ["axes.text: 'en.txt' is refused", "tuple"],
    "[[en.txt], [./en.txt]]": ["axes.text", "repeats a value"],
    "[[a/x/en.txt], [b/x/en.txt]]": ["axes.text", "would both be called x/en.txt", "another name"],
}


@pytest.mark.parametrize("values", REFUSED_TEXTS)
def test_texts_of_an_axis_are_checked_as_a_fixed_one_is(texts: Path, values: str) -> None:
    for name in ("a/x", "b/x"):
        (texts / name).mkdir(parents=True)
        (texts / name / "en.txt").write_text("en")
    body = f"name: every\nobjective: gpt\nsteps: 3\naxes:\n  text: {{values: {values}}}\n"
    with pytest.raises(InputError) as refused:
        build_sweep(parse_document(body, "every.yaml"))
    for words in REFUSED_TEXTS[values]:
        assert words in str(refused.value)


def check_every_command(command_line, axis: str, value: str) -> None:
    """Commands read a sweep over ``axis`` and lr, one ``value`` of which is given on the command line."""
    for command in (
        ["status", "every"], ["report", "every"], ["recommend", "every"], ["sensitivity", "every"], ["doctor", "every"],
        ["sync", "every"], ["compare", "every", "again"], ["boundary", "every", "--along", "lr"], ["audit", "every"],
        ["boundary", "every", "--along", "lr", "--where", f"{axis}={value}"], ["explain", "every"],
        ["export", "heatmap", "every", "--by", axis], ["export", "heatmap", "every", "--x", "lr", "--y", axis],
        ["export", "heatmap", "every", "--where", f"{axis}={value}", "--output", "map.csv"],
        ["diagnose", "every"], ["diagnose", "every", "--cell", f"{axis}={value},lr=1e6"],
        ["replay", "results/every", "--set", "stopping.window=30", "--no-figures"],
    ):  # fmt: skip
        code, said = command_line(*command)
        assert code == 0, (command, said)


@pytest.mark.slow
def test_a_sweep_over_texts_goes_through_every_command(texts: Path, command_line) -> None:
    data = yaml.safe_load(sweep_over("gpt", "text"))
    data["axes"] = {"text": {"values": [[], ["en.txt"], ["en.txt", "fr.txt"]]}, "lr": {"values": [0.01, 1e6]}}
    data |= {"steps": 6, "seeds": [0, 1], "telemetry": {"every": 2}}
    (texts / "every.yaml").write_text(yaml.safe_dump(data))
    here = texts.name
    both = f"{here}/en.txt+{here}/fr.txt"
    assert command_line("plan", "every.yaml")[0] == 0
    code, said = command_line("run", "every.yaml", "--executor", "inline")
    assert code == 0, said
    assert command_line("run", "every.yaml", "--name", "again", "--executor", "inline", "--seeds", "0,1,2")[0] == 0
    check_every_command(command_line, "text", f"{here}/en.txt")
    assert both[:20] in command_line("status", "every")[1]
    code, said = command_line("boundary", "every", "--along", "text")
    assert code == 2, said
    assert "remedy" in said
    results = load(texts / "results" / "every")
    assert len(results.map("text", "lr")) == 6


@pytest.mark.slow
def test_a_sweep_over_interventions_goes_through_every_command(texts: Path, command_line) -> None:
    words = "clip 1 + lr x0.5 at 3"
    changes = [[], [{"at": 3, "set": {"lr": "x0.5", "clip": 1}}], [{"at": 2, "reset": "moments"}, {"at": 4, "skip": 1}]]
    data = yaml.safe_load(sweep_over("quadratic", "interventions"))
    data["axes"] = {"interventions": {"values": changes}, "lr": {"values": [0.01, 1e6]}}
    data |= {"steps": 60, "seeds": [0, 1], "telemetry": {"every": 2}, "tracking": {"enabled": True}}
    (texts / "every.yaml").write_text(yaml.safe_dump(data))
    assert words in command_line("plan", "every.yaml")[1].replace("\n", " ")
    code, said = command_line("run", "every.yaml", "--executor", "inline")
    assert code == 0, said
    assert "warning" not in said
    assert command_line("run", "every.yaml", "--name", "again", "--executor", "inline", "--seeds", "0,1,2")[0] == 0
    check_every_command(command_line, "interventions", words)
    for command in (["importance", "every"], ["survival", "every"], ["front", "every"]):
        code, said = command_line(*command)
        assert code == 0, (command, said)
    results = load(texts / "results" / "every")
    assert len(results.map("interventions", "lr")) == 6
    assert words in (texts / "results" / "every" / "trials.csv").read_text()


def settings_in(folder: Path, text: str, *sets: str):
    (folder / "mine.yaml").write_text(text)
    return run_settings(folder / "mine.yaml", sets)


def test_a_flat_file_and_the_fixed_of_a_sweep_file_say_the_same(tmp_path: Path) -> None:
    flat = settings_in(tmp_path, "lr: 3e-3\nclip: none\nsteps: 200\nseed: 7\n")
    nested = settings_in(tmp_path, "name: mine\nobjective: gpt\nsteps: 200\nfixed: {lr: 0.003, clip: null}\n")
    assert flat.values == nested.values == {"lr": 0.003, "clip": None, "steps": 200}
    assert flat.places["clip"].endswith("mine.yaml:2")


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    found = settings_in(tmp_path, "lr: 3e-3\n", "lr=1e-2", "fixed.beta2=0.95")
    assert found.values == {"lr": 0.01, "beta2": 0.95}
    assert found.places == {"lr": "--at lr=1e-2", "beta2": "--at fixed.beta2=0.95"}
    assert run_settings(None, ["lr=1e-2"]).values == {"lr": 0.01}


@pytest.mark.parametrize(
    ("text", "sets", "says"),
    [
        ("lr: 1e-3\nlr: 2e-3\n", [], "mine.yaml:2: lr: given twice"),
        ("lr: .nan\n", [], "mine.yaml:1: lr: nan is refused"),
        ("model:\n  lr: 1\n", [], "mine.yaml:1: model: holds further keys"),
        ("fixed: {lr: 1}\naxes: {beta2: {values: [0.9]}}\n", [], "mine.yaml:2: axes: are not settings of one run"),
        ("fixed: {lr: 1}\nstep: 3\n", [], "mine.yaml:2: step: is not a key .*\n.*`steps`"),
        ("fixed: 3\n", [], "mine.yaml:1: fixed: is not a mapping"),
        ("lr: 1\n", ["lr"], "--at lr: is not KEY=VALUE"),
        ("lr: 1\n", ["telemetry.every=3"], "--at telemetry.every=3: telemetry.every: is not the name of a setting"),
    ],
)
def test_what_is_no_flat_setting_is_refused_with_its_place(tmp_path: Path, text: str, sets: list, says: str) -> None:
    with pytest.raises(InputError, match=says):
        settings_in(tmp_path, text, *sets)


def test_without_a_file_or_a_setting_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--config: no setting is given"):
        run_settings(None, [])
    with pytest.raises(InputError, match="no such file"):
        run_settings(tmp_path / "mine.yaml", [])
