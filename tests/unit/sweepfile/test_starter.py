from pathlib import Path

import pytest

from objectives.base import OBJECTIVES
from orchestrator.api.sweep_files import init, read_sweep
from orchestrator.base.errors import InputError
from orchestrator.sweepfile import starter as module
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.sections import SweepFile
from orchestrator.sweepfile.spec import build_sweep, load_sweep
from orchestrator.sweepfile.starter import objective_rows, shipped_sweep, shipped_sweeps, starter_file
from orchestrator.sweepfile.strict_yaml import parse_document


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_starter_is_a_sweep_as_it_stands_and_comments_every_section(objective: str) -> None:
    text = starter_file("mine", objective, Overrides())
    sweep = build_sweep(parse_document(text, "mine.yaml"))
    assert (sweep.name, sweep.objective.name) == ("mine", objective)
    for section in ("axes", "fixed", "sample", "stopping", "resources", "tracking", "notify"):
        assert section in SweepFile.model_fields
        assert f"{section}:" in text


def test_options_land_in_the_starter() -> None:
    overrides = Overrides(axes=["warmup=values:0,5"], sets=["fixed.width=64", "stopping.patience=9"], steps=77)
    sweep = build_sweep(parse_document(starter_file("mine", "gpt", overrides), "mine.yaml"))
    assert "warmup" in sweep.axis_names
    assert (sweep.fixed["width"], sweep.stopping.patience, sweep.steps) == (64, 9, 77)


@pytest.mark.parametrize(
    ("overrides", "axes"),
    [
        (Overrides(), ["lr", "beta2"]),
        (Overrides(axes=["clip=values:none,1"]), ["clip"]),
        (Overrides(axes=["beta2=values:0.5", "warmup=values:0,5"]), ["beta2", "warmup"]),
        (Overrides(drops=["beta2"]), ["lr"]),
        (Overrides(drops=["lr", "beta2"], sets=["fixed.lr=0.1"]), []),
        (Overrides(axes=["clip=values:none,1"], drops=["lr"], sets=["fixed.lr=0.1"]), ["clip"]),
        (Overrides(sets=["axes.eps={values: [1e-8]}"]), ["lr", "beta2", "eps"]),
    ],
)
def test_named_axes_replace_those_of_the_starter(overrides: Overrides, axes: list[str]) -> None:
    sweep = build_sweep(parse_document(starter_file("mine", "gpt", overrides), "mine.yaml"))
    assert sweep.axis_names == axes


@pytest.mark.parametrize(
    ("objective", "sets", "axes"),
    [
        ("router", [], ["lr", "beta"]),  # trained by sgd, which has no beta2
        ("router", ["fixed.beta=2"], ["lr"]),
        ("gpt", ["fixed.optimizer=sgd"], ["lr"]),
        ("router", ["fixed.optimizer=adamw"], ["lr", "beta2", "beta"]),
    ],
)
def test_the_axes_of_the_starter_act_in_its_trials(objective: str, sets: list[str], axes: list[str]) -> None:
    sweep = build_sweep(parse_document(starter_file("mine", objective, Overrides(sets=sets)), "mine.yaml"))
    assert sweep.axis_names == axes


def test_an_axis_that_the_starter_does_not_have_cannot_be_dropped() -> None:
    with pytest.raises(InputError, match=r"--drop eps.*is not an axis"):
        starter_file("mine", "gpt", Overrides(axes=["clip=values:none,1"], drops=["eps"]))


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES.keys())
def test_every_field_is_listed_with_unit_default_and_meaning(objective) -> None:
    rows = objective_rows(objective)
    assert [row[0] for row in rows] == list(objective.config_class.model_fields)
    assert all(default and unit and meaning for _, default, unit, _, meaning in rows)
    domains = {row[0]: row[3] for row in rows}
    assert domains["beta2"] == ">= 0, < 1"
    assert domains["lr"] == "> 0"
    assert domains["clip"] == "> 0"
    assert domains["weight_decay_kind"] == "decoupled | coupled | independent"


def test_a_field_that_takes_a_word_or_null_lists_both() -> None:
    domains = {row[0]: row[3] for row in objective_rows(OBJECTIVES["gpt"])}
    assert domains["norm"] == "layer | rms | null"
    assert domains["init"] == "gpt2 | fan_in | he | xavier"


ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_file_of_the_folder_ships_under_its_name() -> None:
    assert {path.stem for path in (ROOT / "sweeps").glob("*.yaml")} == set(shipped_sweeps())


def test_where_the_package_is_installed_they_are_within_it(tmp_path: Path, monkeypatch) -> None:
    for folder in ("shipped", "sweeps"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"of_{folder}.yaml").touch()
    monkeypatch.setattr(module, "_FOLDERS", (tmp_path / "shipped", tmp_path / "sweeps"))
    assert list(shipped_sweeps()) == ["of_shipped"]
    monkeypatch.setattr(module, "_FOLDERS", (tmp_path / "none",))
    assert shipped_sweeps() == {}


def test_a_sweep_that_ships_needs_no_file_and_a_file_of_that_name_comes_first() -> None:
    assert read_sweep("lr_warmup", Path("results"), Overrides(), False).name == "lr_warmup"
    Path("lr_warmup").write_text("name: mine\nobjective: quadratic\nsteps: 5\naxes: {lr: {values: [1]}}\n")
    assert read_sweep("lr_warmup", Path("results"), Overrides(), False).name == "mine"
    with pytest.raises(InputError):
        read_sweep("lr_warmdown", Path("results"), Overrides(), False)


def test_a_copy_has_its_comments_and_the_new_name() -> None:
    list(init("mine", None, None, Overrides(), None, "lr_warmup"))
    text = Path("mine.yaml").read_text()
    assert text == shipped_sweeps()["lr_warmup"].read_text().replace("name: lr_warmup", "name: mine")
    assert load_sweep(Path("mine.yaml")).name == "mine"


@pytest.mark.parametrize(
    ("shipped", "changes", "said"),
    [("nothing", Overrides(), "choose adam_phase"), ("lr_warmup", Overrides(steps=5), "edit the copy")],
)
def test_what_cannot_be_copied_is_told(shipped: str, changes: Overrides, said: str) -> None:
    with pytest.raises(InputError, match=said):
        list(init("mine", None, None, changes, None, shipped))


def test_a_shipped_sweep_in_a_folder_is_found_by_folder_and_name() -> None:
    assert shipped_sweep("known/router") == ROOT / "sweeps/known/router.yaml"
    assert shipped_sweep("../sweeps/known/router") is None
    assert read_sweep("known/router", Path("results"), Overrides(), allow_import=False).name == "router"
