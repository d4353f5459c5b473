"""`sweep init --preset`, `--goal` and `--from config`: searches within a budget, and what they fix."""

from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.sweepfile.spec import Sweep, load_sweep

TRAINER = "python t.py --lr={lr} --clip={max_grad_norm} --seed={seed}"


@pytest.fixture
def init(command_line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`sweep init mine` with options: the sweep of its file, and what it says."""
    monkeypatch.chdir(tmp_path)

    def made(*options: str) -> tuple[Sweep, str]:
        code, text = command_line("init", "mine", *options)
        assert code == 0, text
        return load_sweep(tmp_path / "mine.yaml"), text

    return made


def written(folder: Path, text: str) -> str:
    (folder / "config.json").write_text(text)
    return "config.json"


def test_a_preset_searches_the_usual_axes_within_its_budget(init) -> None:
    sweep, said = init("--preset", "adamw", "--trials", "30")
    assert sweep.axis_names == ["lr", "warmup", "beta2", "clip"]
    assert (sweep.edge_axis, sweep.max_trials, sweep.seeds) == ("lr", 30, (0,))
    assert "`sweep recommend mine`" in said


def test_its_values_lie_around_those_of_the_users_own_configuration(init, tmp_path: Path) -> None:
    config = '{"learning_rate": 3e-4, "warmup_steps": 8, "beta2": 0.97, "width": 64, "out": "x", "steps": 100}'
    sweep, said = init("--preset", "adamw", "--from", written(tmp_path, config))
    axes = {axis.name: axis for axis in sweep.axes}
    low, high = axes["lr"].ends
    assert low < 3e-4 < high
    assert 8 in axes["warmup"].values
    assert 0.97 in axes["beta2"].values
    assert (sweep.fixed["width"], sweep.steps) == (64, 100)
    assert "nothing takes it: out" in said


def test_a_trainer_is_searched_along_what_its_command_takes_and_the_rest_is_said(init, tmp_path: Path) -> None:
    sweep, said = init("--preset", "adamw", "--trainer", TRAINER, "--from", written(tmp_path, '{"max_grad_norm": 2}'))
    assert sweep.axis_names == ["lr", "max_grad_norm"]
    assert 2 in sweep.axes[1].values
    assert "warmup is not searched: the command has none of warmup, " in said


def test_an_axis_of_a_preset_that_does_not_act_is_not_searched_and_that_is_said(init) -> None:
    sweep, said = init("--preset", "adamw", "--objective", "router")
    assert "beta2" not in sweep.axis_names
    assert "beta2 is not searched: it acts only where optimizer is adamw" in " ".join(said.split())


def test_the_goal_of_a_safe_setting_is_a_search_for_the_edge_over_given_ranges(init) -> None:
    sweep, said = init("--goal", "safe", "--trainer", "python t.py {lr} {seed}", "--axis", "lr=log:1e-5,1")
    assert (sweep.axis_names, sweep.edge_axis) == (["lr"], "lr")
    assert "`sweep recommend mine --margin 3 --paste`" in said


def test_the_count_of_a_range_is_left_out_of_a_search(init) -> None:
    sweep, _ = init("--goal", "safe", "--axis", "lr=log:1e-3,1,5")
    assert (sweep.edge_axis, sweep.axes[0].ends) == ("lr", (1e-3, 1.0))


def test_usual_names_of_settings_are_fixed_under_the_names_of_fields(init, tmp_path: Path) -> None:
    config = '{"warmup_steps": 8, "adam_beta2": 0.95, "max_grad_norm": 2.0}'
    sweep, said = init("--axis", "lr=log:1e-3,1,5", "--from", written(tmp_path, config))
    assert [sweep.fixed[name] for name in ("warmup", "beta2", "clip")] == [8, 0.95, 2.0]
    assert "left out" not in said


def test_a_setting_that_an_axis_replaces_is_said(init, tmp_path: Path) -> None:
    _, said = init("--from", written(tmp_path, '{"learning_rate": 3e-4}'))
    assert "lr = 0.0003 of the configuration is not fixed: lr is an axis" in " ".join(said.split())


@pytest.mark.parametrize(
    ("key", "value"),
    [("lr", '"fast"'), ("lr", "-1"), ("lr", "0"), ("warmup_steps", "-3"), ("adam_beta2", "1"), ("width", "1e400")],
)
def test_a_value_that_no_trainer_takes_is_refused_with_its_file_and_key(
    command_line, tmp_path: Path, key: str, value: str
) -> None:
    written(tmp_path, f'{{"{key}": {value}}}')
    code, text = command_line("init", "m", "--preset", "adamw", "--from", str(tmp_path / "config.json"))
    assert code == 2
    assert f"config.json: {key}: " in " ".join(text.split())


def test_a_configuration_alone_fixes_what_is_not_swept(init, tmp_path: Path) -> None:
    sweep, _ = init("--from", written(tmp_path, '{"beta2": 0.95, "width": 64}'))
    assert sweep.axis_names == ["lr", "beta2"]
    assert sweep.fixed["width"] == 64


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('{"a": 1, "a": 2}', "'a' is listed twice"),
        ('{"a": {"b": 1}}', "a hold further keys"),
        ('{"a": NaN}', "NaN is not a number"),
        ("[1]", "is not a mapping"),
        ('{"lr": 1', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_configuration_is_read_strictly(init, tmp_path: Path, config: str, says: str) -> None:
    with pytest.raises((InputError, AssertionError), match=says):
        init("--preset", "adamw", "--from", written(tmp_path, config))
    assert not (tmp_path / "mine.yaml").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--preset", "sgd"], "choose adamw"),
        (["--goal", "fast"], "choose safe"),
        (["--goal", "safe"], "has no range to look for an edge in"),
        (["--goal", "safe", "--axis", "lr=values:1,2"], "has no range to look for an edge in"),
        (["--preset", "adamw", "--for", "width=4096"], "cannot be combined"),
        (["--preset", "adamw", "--from", "lr_warmup"], "copies a file as it is"),
        (["--trials", "3"], "is an option of --for, --preset and --goal"),
        (["--preset", "adamw", "--trainer", "python {lr"], "--command"),
    ],
)
def test_what_makes_no_search_is_refused(command_line, options: list[str], says: str) -> None:
    code, text = command_line("init", "mine", *options)
    assert code == 2
    assert says in " ".join(text.split())


@pytest.mark.parametrize(
    ("name", "text"),
    [("config.json", '{"lr": 0.001, "schedule": "cosine"}'), ("pasted.yaml", 'lr: 0.001\nschedule: "cosine"\n')],
)
def test_words_in_a_configuration_are_fixed_as_they_are_written(init, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    sweep, _ = init("--from", name)
    assert sweep.fixed["schedule"] == "cosine"


def test_an_axis_in_place_of_a_presets_says_what_it_replaces(init, tmp_path: Path) -> None:
    config = written(tmp_path, '{"learning_rate": 3e-4, "beta2": 0.97}')
    sweep, said = init("--preset", "adamw", "--axis", "lr=log:1e-3,1e-1,3", "--from", config)
    assert sweep.axes[0].ends == (1e-3, 1e-1)
    assert "lr = 0.0003 of the configuration is not used" in " ".join(said.split())
    assert "beta2 =" not in said


def test_a_setting_whose_axis_is_dropped_keeps_the_users_own_value(init, tmp_path: Path) -> None:
    config = written(tmp_path, '{"max_grad_norm": 2.0, "warmup_steps": 8}')
    sweep, _ = init("--preset", "adamw", "--drop", "clip", "--drop", "warmup", "--from", config)
    assert sweep.axis_names == ["lr", "beta2"]
    assert (sweep.fixed["clip"], sweep.fixed["warmup"]) == (2.0, 8)


def test_an_objective_that_does_not_exist_is_named_before_what_its_preset_lacks(command_line) -> None:
    code, said = command_line("init", "mine", "--preset", "adamw", "--objective", "digits")
    assert code == 2
    assert "digits" in said
    assert "range" not in said
