import shutil
from pathlib import Path

import pytest
from sweep_cases import QUADRATIC

from orchestrator.api.running import run
from orchestrator.sweepfile.spec import load_sweep

SHIPPED = sorted((Path(__file__).parents[3] / "sweeps").glob("*.yaml"))


INLINE = ("--executor", "inline")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep of edge.yaml and its files."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "edge.yaml").write_text(QUADRATIC)
    run(folder / "edge.yaml", results=folder / "results", executor="inline")
    return folder / "results"


@pytest.fixture
def edge(trained: Path, sweep_command, tmp_path: Path):
    """Run the command line beside the finished sweep."""
    shutil.copytree(trained, tmp_path / "results")
    return sweep_command


def test_a_sweep_runs_is_exported_and_says_where_everything_is(sweep_command, tmp_path: Path) -> None:
    code, text = sweep_command("run", "edge.yaml", *INLINE)
    assert code == 0, text
    folder = tmp_path / "results" / "edge"
    for name in ("heatmap.png", "map.csv", "report.html", "ledger.db", "sweep.yaml"):
        assert (folder / name).is_file()
    for name in ("heatmap.png", "report.html"):
        assert f"results/edge/{name}" in text
    assert "10 stable, 2 diverged" in text
    code, text = sweep_command("export", "heatmap", "edge", "--x", "beta1", "--output", "a b.svg")
    assert (code, (tmp_path / "a b.svg").read_bytes()[:5]) == (0, b"<?xml")
    code, text = sweep_command("status", str(folder))
    assert code == 0
    assert "12 trials of quadratic" in text
    assert "X diverged" in text


@pytest.mark.slow
def test_files_are_refused_that_cannot_be_what_was_asked(sweep_command, tmp_path: Path) -> None:
    sweep_command("run", "edge.yaml", *INLINE)
    sweep_command("run", "edge.yaml", *INLINE, "--name", "other")
    (tmp_path / "log.csv").write_text("step,loss\n" + "".join(f"{step},1\n" for step in range(50)))
    before = sorted(tmp_path.rglob("*"))
    commands = {
        ("export", "heatmap", "edge", "--output"): "png",
        ("edge", "edge", "--output"): "csv",
        ("compare", "edge", "other", "--output"): "png",
        ("diagnose", "edge", "--output"): "png",
        ("diagnose", "edge", "--json"): "json",
        ("explain", "edge", "--output"): "png",
        ("replay", "log.csv", "--no-figures", "--json"): "json",
        ("replay", "log.csv", "--figures"): "folder",
        ("init", "mine", "--output"): "yaml",
    }
    for command, ending in commands.items():
        code, text = sweep_command(*command, f"newdir/x.{ending}")
        assert (code, "folder newdir does not exist" in text, "mkdir -p newdir" in text) == (2, True, True), text
        if command[-1] == "--output" and command[0] != "init":
            code, text = sweep_command(*command, "x.jpg")
            assert (code, ".png, .svg" in text) == (2, True), text
    assert sorted(tmp_path.rglob("*")) == before
    for name, begins in (("x.svg", b"<?xml"), ("x.csv", b"lr,beta1,"), ("x.PDF", b"%PDF")):
        code, text = sweep_command("export", "heatmap", "edge", "--output", name)
        assert (code, (tmp_path / name).read_bytes()[: len(begins)]) == (0, begins), text
    assert sweep_command("replay", "log.csv", "--figures", "pictures")[0] == 0
    assert [path.suffix for path in (tmp_path / "pictures").iterdir()] == [".png"]


@pytest.mark.slow
def test_no_picture_is_written_where_a_link_points_to(sweep_command, tmp_path: Path) -> None:
    sweep_command("run", "edge.yaml", *INLINE)
    sweep_command("run", "edge.yaml", *INLINE, "--name", "other")
    (tmp_path / "log.csv").write_text("step,loss\n" + "".join(f"{step},1\n" for step in range(50)))
    (tmp_path / "elsewhere").mkdir()
    results = tmp_path / "results"
    for link in (results / "compare", results / "replay", results / "edge" / "diagnosis"):
        link.symlink_to(tmp_path / "elsewhere")
    for command in (("compare", "edge", "other"), ("replay", "log.csv"), ("diagnose", "edge")):
        code, text = sweep_command(*command)
        assert (code, "is a link to" in text) == (4, True), text
    (results / "other").rename(tmp_path / "elsewhere" / "other")
    (results / "other").symlink_to(tmp_path / "elsewhere" / "other")
    before = sorted((tmp_path / "elsewhere").rglob("*"))
    commands = (("diagnose", "other"), ("explain", "other"), ("export", "heatmap", "other"), ("report", "other"))
    for command in commands:
        code, text = sweep_command(*command)
        assert (code, "is a link to" in text) == (4, True), text
    assert sorted((tmp_path / "elsewhere").rglob("*")) == before
    assert sweep_command("explain", "other", "--output", "x.png")[0] == 0, "what is read may be a link"


def test_a_finished_sweep_run_again_rewrites_nothing(edge, tmp_path: Path) -> None:
    exports = [tmp_path / "results" / "edge" / name for name in ("heatmap.png", "map.csv", "report.html")]
    before = [path.stat().st_mtime_ns for path in exports]
    code, text = edge("run", "edge.yaml", *INLINE)
    assert (code, [path.stat().st_mtime_ns for path in exports]) == (0, before)
    assert "nothing to train" in text


@pytest.mark.usefixtures("without_files")
def test_the_plan_knows_what_exists_and_how_long_the_rest_takes(sweep_command) -> None:
    code, text = sweep_command("plan", "edge.yaml")
    assert code == 0
    assert "6 cells x 2 seeds = 12" in text
    assert "nothing yet" in text
    sweep_command("run", "edge.yaml", *INLINE)
    _, text = sweep_command("plan", "edge.yaml", "--axis", "lr=values:0.1,1.0,2.5")
    assert "8 finished" in text
    assert "4 trials in" in text
    assert "4 trials in the ledger are no longer in the sweep" in text
    assert "member-steps/s" in text


def test_a_sweep_of_fewer_axes_does_not_take_the_place_of_another(edge, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "edge"
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    dropped = ("--drop", "lr", "--set", "fixed.lr=0.1")
    for command in (["run", "edge.yaml", *INLINE], ["plan", "edge.yaml"], ["run", "edge", *INLINE]):
        code, text = edge(*command, *dropped)
        assert code == 2, text
        assert "results/edge: axes.lr: existing results are over lr and beta1, but this sweep has no axis lr" in text
        assert "--name" in text
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    code, text = edge("run", "edge.yaml", *INLINE, *dropped, "--name", "edge_at_lr")
    assert (code, "4 trials" in text) == (0, True)
    code, text = edge("run", "edge.yaml", *INLINE, "--axis", "lr=values:0.1")
    assert (code, "nothing to train" in text) == (0, True)
    code, text = edge("plan", "edge.yaml", "--axis", "clip=values:none,1")
    assert (code, "exists:   12 finished" in text) == (0, True), text


def test_init_takes_an_objective_or_a_command_and_not_both(sweep_command, tmp_path: Path) -> None:
    code, text = sweep_command("init", "mine", "--objective", "gpt", "--command", "python train.py {lr}")
    assert code == 2
    assert "--objective: cannot be combined with --command" in text
    assert not (tmp_path / "mine.yaml").exists()


def test_init_drops_axes_of_the_starter(sweep_command, tmp_path: Path) -> None:
    assert sweep_command("init", "mine", "--drop", "beta2")[0] == 0
    assert load_sweep(tmp_path / "mine.yaml").axis_names == ["lr"]
    code, text = sweep_command("init", "other", "--set", "fixed.lr=0.1")
    assert code == 2
    assert "--drop lr --set fixed.lr=0.1" in text


def test_init_writes_a_file_for_a_script_that_moves_with_it(sweep_command, tmp_path: Path) -> None:
    command = "python 'my train.py' --lr={lr} --seed={seed}"
    code, text = sweep_command("init", "mine", "--command", command, "--steps", "50")
    assert (code, "next: sweep check mine.yaml" in text) == (0, True)
    sweep = load_sweep(tmp_path / "mine.yaml")
    assert sweep.objective.section.command == ["python", "my train.py", "--lr={lr}", "--seed={seed}"]
    assert (sweep.axis_names, sweep.steps, sweep.seeds) == (["lr"], 50, (0, 1))
    assert str(tmp_path) not in (tmp_path / "mine.yaml").read_text()
    sweep_command("init", "other", "--command", "./train {momentum}", "--axis", "momentum=values:0,0.9")
    assert load_sweep(tmp_path / "other.yaml").axis_names == ["momentum"]


def test_a_sweep_is_named_by_its_folder_its_name_or_its_file(edge) -> None:
    plans = {edge("plan", name) for name in ("edge.yaml", "edge", "results/edge", "results/edge/sweep.yaml")}
    assert len(plans) == 1


@pytest.mark.usefixtures("without_files")
def test_init_writes_a_file_that_runs_and_never_overwrites(sweep_command, tmp_path: Path) -> None:
    options = ("--objective", "quadratic", "--axis", "lr=log:0.1,10,3", "--axis", "beta2=values:0.9", "--seeds", "1")
    code, _ = sweep_command("init", "mine", *options, "--steps", "20")
    assert code == 0
    text = (tmp_path / "mine.yaml").read_text()
    assert text.startswith("#")
    assert [trial.config["lr"] for trial in load_sweep(tmp_path / "mine.yaml").trials] == [0.1, 1.0, 10.0]
    assert sweep_command("run", "mine.yaml", *INLINE, "--set", "tracking.enabled=false")[0] == 0
    code, message = sweep_command("init", "mine")
    assert code == 2
    assert "already exists" in message
    assert (tmp_path / "mine.yaml").read_text() == text


@pytest.mark.usefixtures("without_files")
def test_the_command_line_and_the_file_define_the_same_trials(sweep_command, tmp_path: Path) -> None:
    options = ("--axis", "lr=log:1e-4,1e-1,4", "--axis", "clip=values:none,1,0.3", "--set", "fixed={}")
    options += ("--seeds", "0,5", "--steps", "30", "--name", "other")
    assert sweep_command("run", "edge.yaml", *options, *INLINE)[0] == 0
    (tmp_path / "written.yaml").write_text("""
name: other
objective: quadratic
steps: 30
seeds: [0, 5]
axes:
  lr: {log: [1e-4, 1e-1], num: 4}
  beta1: {values: [0.0, 0.5]}
  clip: {values: [null, 1, 0.3]}
tracking: {enabled: false}
""")
    _, text = sweep_command("plan", "written.yaml")
    assert "exists:   48 finished" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "missing.yaml"], "missing.yaml: no such file"),
        (["plan", "edge.yaml", "--set", "fixed.lrr=3"], "did you mean `lr`"),
        (["plan", "edge.yaml", "--axis", "lr=5"], "--axis lr=5"),
        (
            ["plan", "edge.yaml", "--axis", "interventions=values:[{at: 3, skip: 1}],[]"],
            "write --set 'axes.interventions={values: [[{at: 3, skip: 1}],[]]}'",
        ),
        (["plan", "edge.yaml", "--set", "steps"], "is not KEY=VALUE"),
        (["plan", "edge.yaml", "--set", "name.x=1"], "name"),
        (["plan", "edge.yaml", "--set", "name=../x"], "not a safe name"),
        (["plan", "edge.yaml", "--seeds", "0,zero"], "zero"),
        (["run", "edge.yaml", "--executor", "dask"], "choose ray, slurm, inline or auto"),
        (["run", "edge.yaml", "--pack", "0", *INLINE], "resources.pack"),
        (["status", "nothing"], "holds no sweep"),
        (["export", "heatmap", "nothing"], "holds no sweep"),
        (["sync", "nothing"], "holds no sweep"),
        (["audit", "nothing"], "holds no sweep"),
        (["ui"], "no MLflow store yet"),
        (["init", "Bad Name"], "not a safe name"),
        (["init", "x", "--objective", "gtp"], "did you mean `gpt`"),
        (["init", "x", "--command", "python train.py"], "has no {lr}, and no --axis says what is swept"),
        (["init", "x", "--command", "./train {lr} {beta}"], "{beta} is neither an axis nor fixed"),
        (["plan", "evil\x1b[31m.yaml"], "evil\\x1b[31m.yaml"),
    ],
)
def test_bad_input_ends_with_exit_code_2_and_a_message(sweep_command, arguments: list[str], says: str) -> None:
    code, text = sweep_command(*arguments)
    assert code == 2, text
    assert says in text
    assert "Traceback" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize("option", [("--metric", "speed"), ("--x", "depth"), ("--by", "depth"), ("--where", "lr")])
def test_bad_export_options_are_refused_with_what_there_is(edge, option: tuple[str, str]) -> None:
    code, text = edge("export", "heatmap", "edge", *option)
    assert code == 2
    assert "remedy" in text


@pytest.mark.usefixtures("without_files")
def test_errored_trials_make_exit_code_3_and_status_says_why(sweep_command, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short")
    sets = ["objective=gpt", "axes={}", "fixed={text: [short.txt]}"]
    arguments = [word for value in sets for word in ("--set", value)]
    code, text = sweep_command("run", "edge.yaml", *arguments, *INLINE)
    assert code == 3
    assert "2 trials errored" in text
    code, text = sweep_command("status", "edge")
    assert code == 3
    assert "at least 10000" in text


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_sweeps_are_valid_and_ask_a_question_first(path: Path) -> None:
    sweep = load_sweep(path, allow_import=True)
    assert sweep.name == path.stem
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith("?")


def test_objectives_lists_every_field_with_its_domain(sweep_command) -> None:
    code, text = sweep_command("objectives")
    assert code == 0
    for word in ("function_fit", "qk_norm", "curvature", ">= 0, < 1", "second moment"):
        assert word in text
