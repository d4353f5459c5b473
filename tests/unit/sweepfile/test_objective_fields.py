"""Every field of every objective can be an axis: planned, trained, and shown."""

from pathlib import Path
from typing import Any

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
    small = {key: value for key, value in SMALL[objective].items() if key not in ("optimizer", "beta1")}
    fixed = {"optimizer": "adamw", **small, **needs_of(field)}
    fixed.pop(field, None)
    data = {
        "name": "every", "objective": objective, "steps": 3, "axes": {field: {"values": VALUES[field]}},
        "fixed": fixed, "resources": {"pack": 2}, "telemetry": {"every": None}, "tracking": {"enabled": False},
    }  # fmt: skip
    return yaml.safe_dump(data)


def absolute(field: str, value: Any, folder: Path) -> Any:
    """A value as a trial has it: paths are absolute."""
    if field == "domains":
        return to_hashable({str(folder / name): weight for name, weight in value.items()})
    return (str(folder / value[0]),) if field in ("text", "shift_text", "mix_text") else to_hashable(value)


@pytest.fixture
def texts(tmp_path: Path, monkeypatch) -> Path:
    """A folder with two texts, in which one stands."""
    for name in ("en", "fr"):
        (tmp_path / f"{name}.txt").write_text(f"{name} " * 4000)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# A field that objectives share is theirs all: by default the last of them, the quickest, sweeps it.
SHOWN_BY = {field: name for name, field in EVERY_FIELD}
IDS = [f"{name}.{field}" for name, field in EVERY_FIELD]


def test_every_field_of_every_objective_can_be_an_axis(texts: Path) -> None:
    for field, objective in SHOWN_BY.items():
        assert field in VALUES, "a new field: give it two values above"
        sweep = build_sweep(parse_document(sweep_over(objective, field), "every.yaml"))
        assert [trial.cell[field] for trial in sweep.trials] == [absolute(field, v, texts) for v in VALUES[field]]


def is_shown_by_default(case: tuple[str, str]) -> bool:
    """One field of four, and of gpt one for each kind of values."""
    objective, field = case
    is_chosen = list(SHOWN_BY).index(field) % 4 == 0 and SHOWN_BY[field] == objective
    is_long = field == "curriculum"  # whose order by a model's loss trains that model
    return (is_chosen and not is_long) or (objective == "gpt" and field in DRAWN)


@pytest.mark.parametrize(("objective", "field"), thinned(EVERY_FIELD, is_shown_by_default), ids=IDS)
def test_every_field_of_every_objective_can_be_swept_and_shown(objective: str, field: str, texts: Path) -> None:
    sweep = build_sweep(parse_document(sweep_over(objective, field), "every.yaml"))
    values = [trial.cell[field] for trial in sweep.trials]
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


CHANGES = [[], [{"at": 3, "set": {"lr": "x0.5", "clip": 1}}], [{"at": 2, "reset": "moments"}, {"at": 4, "skip": 1}]]
EVERY_COMMAND = """
plan every.yaml; run every.yaml --executor inline; run every.yaml --name again --executor inline --seeds 0,1,2;
status every; report every; recommend every; sensitivity every; doctor every; sync every; compare every again;
boundary every --along lr; boundary every --along lr --where AXIS=VALUE; audit every; explain every;
importance every; survival every; front every; export heatmap every --by AXIS; export heatmap every --x lr --y AXIS;
export heatmap every --where AXIS=VALUE --output map.csv; diagnose every; diagnose every --cell AXIS=VALUE,lr=1e6;
replay results/every --set stopping.window=30 --no-figures
"""


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "axis", "values", "word", "changes"), [
    ("gpt", "text", [[], ["en.txt"], ["en.txt", "fr.txt"]], "HERE/en.txt", {"steps": 12}),
    ("quadratic", "interventions", CHANGES, "clip 1 + lr x0.5 at 3", {"steps": 60, "tracking": {"enabled": True}}),
])  # fmt: skip
def test_a_sweep_over_values_with_parts_goes_through_every_command(
    texts: Path, command_line, objective: str, axis: str, values: list, word: str, changes: dict
) -> None:
    data = yaml.safe_load(sweep_over(objective, axis)) | {"seeds": [0, 1], "telemetry": {"every": 2}, **changes}
    data["axes"] = {axis: {"values": values}, "lr": {"values": [0.01, 1e6]}}
    (texts / "every.yaml").write_text(yaml.safe_dump(data))
    word, said = word.replace("HERE", texts.name), {}
    for line in EVERY_COMMAND.replace("\n", " ").strip().split("; "):
        command = [part.replace("AXIS", axis).replace("VALUE", word) for part in line.split()]
        code, said[line] = command_line(*command)
        assert code == 0, (line, said[line])
    assert word in said["plan every.yaml"].replace("\n", " ")
    assert "warning" not in said["run every.yaml --executor inline"]
    assert len(load(texts / "results" / "every").map(axis, "lr")) == 6
    assert word in (texts / "results" / "every" / "trials.csv").read_text()


@pytest.mark.slow
def test_texts_have_no_edge_along_them(texts: Path, command_line) -> None:
    (texts / "every.yaml").write_text(sweep_over("gpt", "text"))
    assert command_line("run", "every.yaml", "--executor", "inline")[0] == 0
    code, said = command_line("boundary", "every", "--along", "text")
    assert code == 2, said
    assert "remedy" in said


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
