"""Options of an import come from the command line and from a mapping file, and errors name where."""

import math
from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.importing.collecting import collect
from orchestrator.importing.options import ImportOptions, MappingFile, import_options
from orchestrator.search.study import Parameter, StudyTrial, study_file

FILE = """\
axes:
  lr: {column: learning_rate, scale: log}
  beta2: b2
outcome: state
map: {diverged: [crashed, nan, 0], skip: [none]}
where: {model: 130m, layers: 12}
stopping: {window: 40}
scattered: false
"""


@pytest.fixture
def mapping(tmp_path: Path) -> Path:
    (tmp_path / "theirs.yaml").write_text(FILE)
    return tmp_path / "theirs.yaml"


def refusal(path: Path, text: str, **options) -> str:
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        import_options(path, **options)
    return str(caught.value)


def test_a_mapping_file_has_all_that_options_say(mapping: Path) -> None:
    keys = import_options(mapping).keys
    assert {name: (axis.column, axis.scale) for name, axis in keys.axes.items()} == {
        "lr": ("learning_rate", "log"),
        "beta2": ("b2", None),
    }
    assert keys.map == {"diverged": ["crashed", "nan", "0"], "skip": ["none"]}
    assert keys.where == {"model": "130m", "layers": "12"}
    assert (keys.scattered, keys.stopping.window) == (False, 40)
    by_options = import_options(
        axis=["lr"], outcome="state", map=["diverged=crashed,nan"], where=["model=130m"], set=["stopping.window=40"]
    ).keys
    assert by_options.map == {"diverged": ["crashed", "nan"]}
    assert by_options.stopping == keys.stopping


def test_the_command_line_beats_the_file_and_keeps_its_other_entries(mapping: Path) -> None:
    keys = import_options(
        mapping, axis=["width", "lr=values"], where=["model=1b"], map=["skip=oom"], outcome="end"
    ).keys
    assert {name: (axis.column, axis.scale) for name, axis in keys.axes.items()} == {
        "width": (None, None),
        "lr": ("learning_rate", "values"),
    }
    assert keys.where == {"model": "1b", "layers": "12"}
    assert keys.map["skip"] == ["oom"]
    assert keys.outcome == "end"


def test_a_column_that_is_not_there_is_named_with_the_line_or_the_option(mapping: Path, tmp_path: Path) -> None:
    mapping.write_text(FILE.partition("stopping")[0])
    (tmp_path / "t.csv").write_text("learning_rate,b2,model,layers\n1,2,130m,12\n")
    for options, says in (
        (import_options(mapping), r"theirs.yaml:4: outcome: 'state' is not a column"),
        (import_options(mapping, outcome="end"), r"--outcome: 'end' is not a column"),
        (import_options(mapping, axis=["lr", "width"]), r"--axis width: 'width' is not a column"),
    ):
        with pytest.raises(InputError, match=says):
            collect([str(tmp_path / "t.csv")], options, tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("axes: {lr: lr}\noutcom: end\n", ":2: outcom: unknown key\n    remedy: did you mean `outcome`?"),
        ("axes:\n  lr: {scale: cubic}\n", ":2: axes.lr.scale: 'cubic' is refused: input should be"),
        ("axes:\n  lr: {colum: x}\n", ":2: axes.lr.colum: unknown key\n    remedy: did you mean `column`?"),
        ("axes: [lr]\n", ":1: axes: ['lr'] is refused"),
        ("outcome: end\n", "theirs.yaml:1: axes: is missing"),
        ("axes: {lr: lr}\nsteps: [1]\n", ":2: steps: [1] is refused"),
        ("axes: {lr: lr}\nstopping: {windo: 3}\n", ":2: stopping.windo: unknown key"),
        ("axes: {lr: lr}\npattern: '('\n", ":2: pattern: is not a valid regular expression"),
        ("axes: {lr: lr}\nloss: a\nloss: b\n", ":3: loss: given twice"),
    ],
)
def test_a_mistake_in_a_mapping_file_is_named_with_its_line_and_a_remedy(tmp_path: Path, text: str, says: str) -> None:
    assert says in refusal(tmp_path / "theirs.yaml", text)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "--axis: is missing"),
        ({"axis": ["lr=cubic"]}, "--axis lr=cubic: 'cubic' is not a scale"),
        ({"axis": ["lr", "lr"]}, "--axis lr: 'lr' is an axis already"),
        ({"axis": ["lr"], "where": ["a"]}, "--where a: is not COLUMN=VALUE"),
        ({"axis": ["lr"], "map": ["diverged=failed,stable=done"]}, "remedy: .*--map diverged=failed --map stable=done"),
        ({"axis": ["lr"], "set": ["fixed.lr=1"]}, "--set fixed.lr=1: is not a key of stopping"),
        ({"axis": ["lr"], "set": ["stopping.windo=1"]}, "--set stopping.windo=1: stopping.windo: unknown key"),
    ],
)
def test_a_mistake_in_an_option_is_named_with_the_option(options: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        import_options(**options)


def test_labels_that_mean_two_outcomes_or_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("lr,end\n1,nan\n")
    for labels, says in (
        (["diverged=nan", "skip=NaN"], "'nan' also means diverged"),
        (["lost=nan"], "'lost' is not an"),
    ):
        options: ImportOptions = import_options(axis=["lr"], outcome="end", map=labels)
        with pytest.raises(InputError, match=says):
            collect([str(tmp_path / "t.csv")], options, tmp_path)


def test_docs_list_every_key_of_a_mapping_file() -> None:
    page = (Path(__file__).parents[3] / "docs" / "import.md").read_text()
    assert [key for key in MappingFile.model_fields if f"| `{key}` |" not in page] == []


OPTIONS = import_options(axis=["lr"], outcome="value", diverged_above=5.0, map=("skip=empty",))


def study(path: Path, name: str = "theirs") -> str:
    """A study of four trials: two that are good, one above 5 and one that failed."""
    values = {0.001: 2.0, 0.01: 1.5, 0.1: 9.0, 1.0: None}
    trials = [
        StudyTrial(
            "fail" if value is None else "complete", {"lr": lr}, None if value is None else (value,), {}, {}, 0, 1
        )
        for lr, value in values.items()
    ]
    path.write_bytes(study_file(name, ["loss"], [Parameter("lr", 1e-3, 1.0, is_log=True)], trials))
    return f"optuna:sqlite:///{path}"


def test_the_trials_of_an_optuna_study_are_runs_and_a_failed_one_is_named(tmp_path: Path) -> None:
    source = study(tmp_path / "theirs.db")
    for named in (source, f"{source}#theirs"):
        found = collect([named], OPTIONS, tmp_path)
        assert [(run.settings.cell["lr"], run.result.outcome) for run in found.runs] == [
            (0.001, "stable"), (0.01, "stable"), (0.1, "diverged"),
        ]  # fmt: skip
        assert [run.result.final_loss for run in found.runs] == [2.0, 1.5, 9.0]
        assert [one.where for one in found.left_out] == [f"{named}:3"]
        assert not math.isnan(found.runs[0].result.final_loss)


def test_the_state_of_trials_can_be_the_outcome(tmp_path: Path) -> None:
    options = import_options(axis=["lr"], outcome="state", map=("stable=complete", "diverged=fail"))
    found = collect([study(tmp_path / "theirs.db")], options, tmp_path)
    assert [run.result.outcome for run in found.runs] == ["stable", "stable", "stable", "diverged"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("optuna:sqlite:///HERE/none.db", "no such file"),
        ("optuna:sqlite:///HERE/theirs.db#ours", "has no study 'ours'"),
        ("optuna:sqlite:///HERE/text.db", "cannot be read"),
        ("mlflow:ours", "no MLflow store"),
    ],
)
def test_a_store_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch, source: str, says: str) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    study(tmp_path / "theirs.db")
    (tmp_path / "text.db").write_text("no database, but long enough to be taken for one by its size " * 20)
    with pytest.raises(InputError, match=says):
        collect(
            [source.replace("HERE", str(tmp_path))],
            OPTIONS if "optuna" in source else import_options(axis=["lr"]),
            tmp_path,
        )


def test_stores_of_two_kinds_are_two_imports(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a store of another kind"):
        collect(["mlflow:ours", "optuna:sqlite:///a.db"], OPTIONS, tmp_path)


@pytest.mark.parametrize("pattern", ["(", "a{99999999999999999999}", "(" * 3000])
def test_a_pattern_of_paths_that_cannot_be_compiled_is_refused_with_its_option(pattern: str) -> None:
    with pytest.raises(InputError) as caught:
        _ = import_options(axis=["lr"], from_path=pattern).path_pattern
    assert caught.value.problems[0].where == "--from-path"
