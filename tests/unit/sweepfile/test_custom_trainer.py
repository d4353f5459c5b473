import contextlib
from pathlib import Path

import pytest
from custom_cases import SWEEP, sweep_in, sweep_of_text
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sweep_cases import refusal, sweep_of
from tiers import examples
from typer.testing import CliRunner

from orchestrator.answers.plan import PlanQuery
from orchestrator.base.errors import InputError
from orchestrator.cli import app
from orchestrator.driver.packing import make_packs
from orchestrator.sweepfile.custom_trainer import PARTS, command_of, placeholders, render, whole_batch
from orchestrator.sweepfile.spec import ImportNotAllowed, build_sweep, load_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

COMMAND = 'command: [python, train.py, "{lr}", "{steps}", "{seed}"]'


def changed(before: str, after: str) -> str:
    assert before in SWEEP
    return SWEEP.replace(before, after)


# What is wrong, and what the message must say.
REFUSED = {
    "an unknown placeholder": (
        changed('"{lr}"', '"{lrr}"'),
        ["objective.command.2", "{lrr} is neither an axis nor fixed", "lr, steps, seed"],
    ),
    "an axis that no command uses": (
        changed('"{lr}", ', ""),
        ["axes.lr", "no part of the command uses {lr}", "write {lr}"],
    ),
    "a fork of what is no script": (
        changed(COMMAND, 'command: [bash, train.sh, "{lr}", "{seed}"]\n  preload: auto'),
        ["objective.preload", "the command is bash train.sh", "python SCRIPT or python -m MODULE"],
    ),
    "a fork of an option": (
        changed(COMMAND, 'command: [python, -c, "{lr} {seed}"]\n  preload: [torch]'),
        ["objective.preload", "the command is python -c"],
    ),
    "a fork with an environment of its own": (
        changed(COMMAND, f'{COMMAND}\n  preload: auto\n  environment: {{RATE: "{{lr}}"}}'),
        ["objective.environment.RATE", "differs between trials", "preload: false"],
    ),
    "a word that is no list of modules": (
        changed(COMMAND, f"{COMMAND}\n  preload: torch"),
        ["objective.preload: 'torch'", "should be auto, false or a list of names of modules"],
    ),
    "a module that cannot be one": (
        changed(COMMAND, f"{COMMAND}\n  preload: [no-module]"),
        ["objective.preload", "'no-module' is not the name of a module"],
    ),
    "a brace too many": (changed('"{lr}"', '"{lr"'), ["objective.command.2", "'{lr' is refused"]),
    "an attribute": (changed('"{lr}"', '"{lr.__class__}"'), ["objective.command.2", "is not a placeholder"]),
    "an index": (changed('"{lr}"', '"{lr[0]}"'), ["objective.command.2", "is not a placeholder"]),
    "a number as placeholder": (changed('"{lr}"', '"{0}"'), ["objective.command.2", "is not a placeholder"]),
    "a format for another type": (changed('"{lr}"', '"{lr:d}"'), ["lr = 0.1", "does not accept the format {lr:d}"]),
    "a width beyond any line": (
        changed('"{lr}"', '"{lr:>300000000}"'),
        ["mine.yaml:4", "objective.command.2", "300000000 is more than 200 characters"],
    ),
    "a width of more digits than a number has": (
        changed('"{lr}"', '"{lr:' + "9" * 5000 + '}"'),
        ["objective.command.2", "is more than 200 characters"],
    ),
    "a precision beyond any line": (
        changed('"{lr}"', '"{lr:.300000000f}"'),
        ["objective.command.2", "300000000 is more than 200 characters"],
    ),
    "a placeholder in a format": (
        changed('"{lr}"', '"{lr:{steps}}"'),
        ["objective.command.2", "{lr:{steps}} has a placeholder in its format"],
    ),
    "a conversion that there is not": (
        changed('"{lr}"', '"{lr!z}"'),
        ["objective.command.2", "!z", "!r, !s or !a"],
    ),
    "a format for another type of what sweep gives": (
        changed('"{steps}"', '"{steps:>5s}"'),
        ["mine.yaml:4", "objective.command.3", "steps = 60 does not accept the format {steps:>5s}"],
    ),
    "a letter of a number that is none": (
        changed('"{steps}"', '"{steps:c}"').replace("steps: 60", "steps: 5000000"),
        ["objective.command.3", "steps = 5000000 does not accept the format {steps:c}"],
    ),
    "a NUL in a command": (
        changed('"{seed}"', '"{seed:c}"'),
        ["objective.command.4", "seed = 0 does not accept the format {seed:c}", "NUL"],
    ),
    "values that Python takes for one": (
        changed("[0.1, 1.0, 3.0]", "[1, 1.0, true]"),
        ["mine.yaml:7", "axes.lr", "1 and 1.0 are equal in Python", "in quotes"],
    ),
    "true beside a one": (changed("[0.1, 1.0, 3.0]", "[true, 1]"), ["axes.lr", "True and 1 are equal in Python"]),
    "nothing to run": (
        changed(COMMAND, "folder: ."),
        ["objective", "does not say what to train", "command, python, packed"],
    ),
    "two trainers": (changed(COMMAND, COMMAND + "\n  python: a:b"), ["has both command and python"]),
    "a key of the file": (
        changed(COMMAND, COMMAND + "\n  facts: {}"),
        ["objective.facts", "left margin"],
    ),
    "a key of resources": (changed(COMMAND, COMMAND + "\n  gpus: 1"), ["objective.gpus", "write it under resources:"]),
    "a misspelt key": (changed(COMMAND, COMMAND + "\n  metric: {}"), ["objective.metric", "unknown key", "metrics"]),
    "a misspelt key of metrics": (
        changed(COMMAND, COMMAND + "\n  metrics: {los: x}"),
        ["objective.metrics.los", "did you mean `loss`"],
    ),
    "a pattern that is none": (
        changed(COMMAND, COMMAND + "\n  metrics: {pattern: '('}"),
        ["objective.metrics.pattern"],
    ),
    "a pattern without a loss": (
        changed(COMMAND, COMMAND + "\n  metrics: {pattern: '(?P<step>.)'}"),
        ["objective.metrics.pattern", "loss"],
    ),
    "a command that is a number": (changed(COMMAND, "command: 3"), ["objective.command", "list"]),
    "a command with an open quote": (changed(COMMAND, 'command: "python \'x {lr}"'), ["objective.command", "split"]),
    "a word that may be nothing": (
        changed(COMMAND, "command: [python, {lr}, null]"),
        ["objective.command", "quote"],
    ),
    "a word that may be true": (changed(COMMAND, "command: [python, {lr}, true]"), ["objective.command", "quote"]),
    "a name that sweep gives": (
        changed("axes: {lr:", "fixed: {seed: 1}\naxes: {lr:"),
        ["fixed.seed", "given to a trainer by sweep itself"],
    ),
    "a name with a dash": (
        changed("axes: {lr:", "fixed: {a-b: 1}\naxes: {lr:"),
        ["fixed.a-b", "not a valid name of a placeholder"],
    ),
    "a list as a value": (
        changed("axes: {lr:", "fixed: {b: [1, 2]}\naxes: {lr:").replace('"{lr}"', '"{lr}{b}"'),
        ["fixed.b", "one value"],
    ),
    "metrics of a function": (
        changed(COMMAND, "python: a:b\n  metrics: {loss: x}"),
        ["objective.metrics", "does not apply to python"],
    ),
    "a function that is no reference": (changed(COMMAND, "python: train.run"), ["objective.python", "module:name"]),
    "a file that all trials share": (
        changed(COMMAND, COMMAND + "\n  metrics: {file: log.csv}"),
        ["objective.metrics.file", "{folder}"],
    ),
    "processes of a built-in objective": (
        "name: mine\nobjective: quadratic\nsteps: 5\nresources: {workers: 2}\n",
        ["resources.workers", "parallel"],
    ),
    "a number of processes that changes, without a checkpoint and a batch": (
        SWEEP + "resources: {workers: {min: 1, max: 4}}\n",
        ["resources.workers", "say objective.resume", "add batch: {global: N, micro: M}"],
    ),
    "a fact that is an axis": (SWEEP + "facts: {lr: 0.1}\n", ["facts.lr", "is given elsewhere in the file as well"]),
    "a fact that is a list": (SWEEP + "facts: {warmup: [1]}\n", ["facts.warmup"]),
    "a pattern of divergence that is none": (
        changed(COMMAND, f"{COMMAND}\n  diverged_if: '('"),
        ["objective.diverged_if", "is not a valid regular expression"],
    ),
    "GPUs said twice": (SWEEP + "resources: {workers: 2, gpus: 1}\n", ["resources.gpus", "gpus_per_worker"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_refused_with_its_key_and_a_remedy(case: str) -> None:
    text, wanted = REFUSED[case]
    with pytest.raises(InputError) as caught:
        sweep_of_text(text)
    for part in wanted:
        assert part in str(caught.value)


def test_a_trainer_gets_floats_from_an_axis_that_has_one() -> None:
    def values(written: str) -> list[str]:
        trials = sweep_of_text(SWEEP.replace("[0.1, 1.0, 3.0]", written)).trials
        return list(dict.fromkeys(repr(trial.cell["lr"]) for trial in trials))

    assert values("[0.03, 3]") == ["0.03", "3.0"]
    assert values("[1, 3]") == ["1", "3"]
    assert values("[null, 0.5, 1]") == ["None", "0.5", "1.0"]


def test_a_trial_is_known_by_its_command_and_values_and_not_by_where_it_runs(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    ids = [trial.trial_id for trial in sweep_in(here).trials]
    assert ids == [trial.trial_id for trial in sweep_in(there).trials]
    other = sweep_in(there, text=SWEEP.replace("train.py", "other.py"))
    assert not set(ids) & {trial.trial_id for trial in other.trials}
    assert ids == [t.trial_id for t in sweep_in(here, text=SWEEP + "resources: {cpus: 2, stall_timeout_s: 5}\n").trials]
    assert ids != [t.trial_id for t in sweep_in(here, text=SWEEP + "resources: {workers: 2}\n").trials]


def test_the_frozen_sweep_runs_the_same_command_in_the_same_folder(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    frozen = tmp_path / "elsewhere" / "sweep.yaml"
    frozen.write_text(sweep.text)
    again = load_sweep(frozen)
    assert again.objective.folder == sweep.objective.folder == str(tmp_path)
    assert again.objective.section.command == sweep.objective.section.command
    assert again.trials == sweep.trials


def test_ranges_between_whole_numbers_hold_whole_numbers(tmp_path: Path) -> None:
    text = SWEEP.replace("{values: [0.1, 1.0, 3.0]}", "{log: [8, 64], num: 4}")
    assert [trial.cell["lr"] for trial in sweep_in(tmp_path, text=text).trials[::2]] == [8, 16, 32, 64]
    text = SWEEP.replace("{values: [0.1, 1.0, 3.0]}", "{log: [1.0, 8], num: 4}")
    values = [trial.cell["lr"] for trial in sweep_in(tmp_path, text=text).trials[::2]]
    assert values == [1.0, 2.0, 4.0, 8.0]
    assert all(isinstance(value, float) for value in values)


def test_placeholders_take_formats_and_braces_can_be_written() -> None:
    assert placeholders("--lr={lr:.2e} {{x}} {seed!r}") == ["lr", "seed"]
    assert render("--lr={lr:.2e} {{x}}", {"lr": 0.001}) == "--lr=1.00e-03 {x}"
    assert render("{lr:0>200} {a!r:>5} {b!s:>6}", {"lr": 1, "a": "x", "b": True}) == f"{'1':0>200}   'x'   True"


FORMATS = st.text("0123456789<>^=+-# ,._%sdxXobcnNeEfFgGaz!{}", max_size=12)
ANY_VALUE = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3))


@settings(max_examples=examples(500))
@given(st.sampled_from(":!"), FORMATS, ANY_VALUE)
def test_any_format_fills_a_short_text_or_is_refused(begin: str, form: str, value) -> None:
    text = f"{{lr{begin}{form}}}"
    with contextlib.suppress(ValueError):
        assume(placeholders(text) == ["lr"])
        rendered = render(text, {"lr": value})
        assert "\0" not in rendered
        assert len(rendered) < 2000  # the largest float has 309 digits before its point


def test_python_is_the_interpreter_that_runs_sweep() -> None:
    import sys

    assert command_of(["python", "x.py"]) == [sys.executable, "x.py"]
    assert command_of(["./python", "x.py"]) == ["./python", "x.py"]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ('python: "fit:run"', "auto"),
        ('python: "fit:run", preload: false', None),
        ('python: "fit:run", environment: {RATE: "{lr}"}', None),
        ('python: "fit:run", environment: {RATE: "1"}', "auto"),
        ('command: "python train.py {lr} {seed}"', None),
        ('command: "python train.py {lr} {seed}", preload: auto', "auto"),
        ('command: "python -m mine {lr} {seed}", preload: [torch, numpy.linalg]', ("torch", "numpy.linalg")),
    ],
)
def test_functions_are_forked_and_scripts_on_request(what: str, expected: object) -> None:
    text = SWEEP.replace(f"objective:\n  {COMMAND}", f"objective: {{{what}}}")
    assert make_packs(sweep_of_text(text), sweep_of_text(text).trials[:1], 1)[0].launch.preload == expected


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (("python, train.py", "no-such-program"), "'no-such-program' is not a program"),
        (("train.py", "missing.py"), "'missing.py' is not in"),
        ((COMMAND, COMMAND + "\n  folder: nowhere"), "is not a folder"),
    ],
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_what_is_not_on_this_machine_is_told_before_anything_starts(
    tmp_path: Path, command: str, change: tuple[str, str], wanted: str, monkeypatch
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "mine.yaml").write_text(SWEEP.replace(*change))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [command, "mine.yaml"])
    assert isinstance(done.exception, InputError)
    assert wanted in str(done.exception)
    assert str(done.exception).startswith("mine.yaml: objective.")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("kind", ["python", "packed"])
def test_code_is_imported_only_when_the_command_line_allows_it(tmp_path: Path, kind: str, monkeypatch) -> None:
    (tmp_path / "own_code.py").write_text("open('imported', 'w').close()\n")
    (tmp_path / "mine.yaml").write_text(SWEEP.replace(COMMAND, f"{kind}: own_code:run"))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["run", "mine.yaml"])
    assert isinstance(done.exception, ImportNotAllowed)
    assert "--allow-import" in str(done.exception)
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("x = 1", "has no attribute 'OBJECTIVE'"),
        ("OBJECTIVE = 3", "OBJECTIVE is int, not an Objective"),
        ("def broken(:", "SyntaxError"),
        ("raise SystemExit(1)", "SystemExit"),
    ],
)
def test_an_objective_that_cannot_be_loaded_is_refused_with_the_reason(
    tmp_path: Path, code: str, wanted: str, request
) -> None:
    module = f"own_{abs(hash(request.node.name))}"
    (tmp_path / f"{module}.py").write_text(code)
    text = SWEEP.replace(COMMAND, f"packed: {module}:OBJECTIVE\n  folder: {tmp_path}")
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InputError, match=r"objective\.packed") as caught:
        load_sweep(tmp_path / "mine.yaml", allow_import=True)
    assert wanted in str(caught.value)


def test_plan_says_what_each_trial_runs(tmp_path: Path, monkeypatch) -> None:
    sweep_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["plan", "mine.yaml"])
    assert done.exit_code == 0, done.output
    assert "mine (command, 60 steps)" in done.output
    assert "each trial by itself: python train.py {lr} {steps} {seed}" in done.output


OWN = "name: own\nobjective: {command: 'true {micro_batch} {accumulation} {workers}'}\nsteps: 20\n"
SIZES = st.integers(1, 10_000)


def sizes(body: str, base: str = OWN) -> list[tuple[int, ...]]:
    names = ("global_batch", "micro_batch", "accumulation", "workers")
    return [tuple(trial.config[name] for name in names) for trial in sweep_of(body, base).trials]


@given(SIZES, SIZES, st.integers(1, 64), st.sampled_from(list(PARTS.values())))
def test_any_of_the_three_follows_from_the_other_two(micro: int, accumulation: int, workers: int, left: str) -> None:
    whole = {"global_batch": micro * accumulation * workers, "micro_batch": micro, "accumulation": accumulation}
    given = {name: size for name, size in whole.items() if name != left}
    assert whole_batch(given, workers) == whole


@given(SIZES, SIZES, st.integers(1, 64))
def test_a_global_batch_is_whole_or_refused(global_batch: int, micro: int, workers: int) -> None:
    given = {"global_batch": global_batch, "micro_batch": micro}
    if global_batch % (micro * workers):
        with pytest.raises(ValueError, match="is not a multiple of micro_batch x workers"):
            whole_batch(given, workers)
    else:
        assert whole_batch(given, workers)["accumulation"] * micro * workers == global_batch


def test_a_command_gets_what_follows_from_the_section() -> None:
    assert sizes("batch: {global: 256, micro: 8, workers: 4}\n") == [(256, 8, 8, 4)]
    assert sizes("batch: {micro: 8, accumulation: 2}\nresources: {workers: 3}\n") == [(48, 8, 2, 3)]
    assert sizes("batch: {global: 256, accumulation: 2}\n") == [(256, 128, 2, 1)]


def test_sizes_may_be_axes_fixed_or_tied() -> None:
    axes = "axes: {global_batch: {values: [32, 64]}, micro_batch: {values: [4, 8]}}\n"
    assert sizes(f"batch: {{workers: 4}}\n{axes}") == [(32, 4, 2, 4), (32, 8, 1, 4), (64, 4, 4, 4), (64, 8, 2, 4)]
    assert sizes("batch: {micro: 8}\nfixed: {accumulation: 2}\n") == [(16, 8, 2, 1)]
    tied = "batch: {micro: 4}\naxes: {lr: {values: [1, 2]}}\ntie: {global_batch: 8 * lr}\n"
    assert sizes(tied, OWN.replace("{workers}", "{workers} {lr}")) == [(8, 4, 2, 1), (16, 4, 4, 1)]


def test_ties_may_use_the_numbers_of_the_section() -> None:
    base = OWN.replace("{workers}", "{lr}")
    (trial,) = sweep_of("batch: {global: 64, micro: 4}\ntie: {lr: 0.1 * global_batch / 256}\n", base).trials
    assert trial.config["lr"] == 0.025


def test_tokens_are_counted_with_the_global_batch() -> None:
    base = OWN.replace("steps: 20\n", "tokens: 4096\n")
    body = "batch: {micro: 2, workers: 4}\naxes: {accumulation: {values: [1, 4]}}\nfixed: {context: 16}\n"
    assert [trial.steps for trial in sweep_of(body, base).trials] == [32, 8]
    assert [trial.steps for trial in sweep_of("batch: {micro: 2, global: 8}\nfixed: {context: 16}\n", base).trials] == [
        32
    ]


def test_the_file_in_the_results_makes_the_same_trials() -> None:
    sweep = sweep_of("batch: {micro: 2, workers: 4}\naxes: {accumulation: {values: [1, 4]}}\n", OWN)
    again = build_sweep(parse_document(sweep.text, "sweep.yaml"))
    assert [trial.trial_id for trial in again.trials] == [trial.trial_id for trial in sweep.trials]


def test_the_plan_shows_what_follows(tmp_path: Path) -> None:
    sweep = sweep_of("batch: {micro: 8, workers: 4}\naxes: {global_batch: {values: [32, 256]}}\n", OWN)
    lines = PlanQuery().ask((sweep, tmp_path)).lines()
    assert "batch:    accumulation = global_batch / (micro_batch x 4 workers): 1 .. 8" in lines


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("batch: {global: 100, micro: 8, workers: 4}\n", "case.yaml:4: batch.global: global_batch = 100 is not"),
        ("batch: {micro: 8}\naxes: {global_batch: {values: [8, 9]}}\n", "axes.global_batch: global_batch = 9 is not"),
        ("batch: {micro: 8}\naxes: {global_batch: {values: [8, w]}}\n", "global_batch = 'w' must be a positive"),
        ("batch: {micro: 8}\naxes: {global_batch: {values: [8, true]}}\n", "global_batch = True must be a positive"),
        ("batch: {micro: 8}\naxes: {global_batch: {values: [8, 0]}}\n", "global_batch = 0 must be a positive"),
        ("batch: {micro: 8}\ntie: {global_batch: 10 / 4}\n", "global_batch = 2.5 must be"),
        ("batch: {micro: 8}\n", "case.yaml:4: batch: micro_batch of global_batch, micro_batch, accumulation given"),
        ("batch: {}\n", "case.yaml:4: batch: none of"),
        ("batch: {micro: 8, global: 8, accumulation: 1}\n", "the third follows from two"),
        ("batch: {micro: 8, global: 8}\nfixed: {micro_batch: 8}\n", "batch.micro: micro_batch is given elsewhere"),
        ("batch: {micro: 8, global: 8, workers: 2}\nresources: {workers: 4}\n", "2 differs from resources.workers = 4"),
        ("batch: {micro: 0, global: 8}\n", "case.yaml:4: batch.micro: 0 is refused"),
        ("batch: {mikro: 8}\n", "case.yaml:4: batch.mikro: unknown key"),
        ("batch: 8\n", "case.yaml:4: batch: 8 is refused"),
    ],
)  # fmt: skip
def test_a_batch_that_is_not_whole_is_refused_with_its_line(body: str, message: str) -> None:
    assert message in refusal(body, OWN)


def test_built_in_objectives_have_no_such_section() -> None:
    message = refusal("batch: {micro: 8, global: 8}\n", "name: case\nobjective: gpt\nsteps: 20\n")
    assert "case.yaml:4: batch: applies to custom trainers only" in message
