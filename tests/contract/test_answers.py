"""One suite for every question: asked of six kinds of sweeps, in every medium, from Python and the command line."""

import importlib
import itertools
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweep_cases import finished, ledger_at, record, sweep_of, trained_ladder
from tiers import thinned
from typer.testing import CliRunner

from orchestrator import answers, load
from orchestrator.base.errors import InputError, SweepError
from orchestrator.base.files import FROZEN_SWEEP, LEDGER
from orchestrator.base.packs import Completed, Report
from orchestrator.base.query import Query
from orchestrator.cli.app import app
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import make_packs
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.maps.table import read_table
from orchestrator.pages.answers import answers_html
from orchestrator.render.answer import Answer
from orchestrator.render.html import cards_html
from orchestrator.render.text import WIDTH
from orchestrator.sweepfile.spec import Sweep

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "json.md").read_text()
GRID = "seeds: [0, 1]\naxes: {lr: {log: [1e-3, 1], num: 4}, beta1: {values: [0.0, 0.5, 0.9]}}\n"
SCATTERED = "axes: {lr: {log: [1e-3, 1]}, beta1: {linear: [0, 0.9]}}\nsample: {method: sobol, num: 32}\n"
HEAD = "objective: quadratic\nsteps: 20\nfixed: {optimizer: sgd}\n"
TEXT_SWEEP = """# Does noise move the edge?
name: of_text
objective: gpt
steps: 5
axes: {{noise_share: {{values: [0.2]}}}}
fixed: {{separator: "\\n", text: ["{text}"]}}
"""
KEPT = """axes: {lr: {values: [0.001, 0.003]}}
fixed: {width: 8, heads: 2, depth: 1, context: 8, batch_size: 2, validation_batches: 2}
keep: {every: 2}
tracking: {enabled: false}
"""
KINDS = ("grid", "scattered", "empty", "imported", "half", "broken")
# What a question needs besides its defaults: options of the command line, and fields in Python.
NEEDED: dict[str, tuple[list[str], dict[str, Any]]] = {
    "predict": (["--at", "beta1=0.4"], {"at": ("beta1=0.4",)}),
    "locate": (["--at", "lr=0.02", "--at", "beta1=0.4"], {"at": ("lr=0.02", "beta1=0.4")}),
    "remedy": (
        ["--try", "lr=x0.1", "--fork", "0", "--replicates", "1", "--no-pairs"],
        {"try_": ("lr=x0.1",), "fork": ("0",), "replicates": 1, "pairs": False},
    ),
    "cause": (["--replicates", "2"], {"replicates": 2}),
    "remedies": (
        ["--try", "lr=x0.1", "--fork", "0", "--replicates", "1"],
        {"try_": ("lr=x0.1",), "fork": ("0",), "replicates": 1},
    ),
}
pytestmark = pytest.mark.usefixtures("small_pictures")
# They ask the surface of scattered cells for nothing that the others do not.
ON_GRIDS = ("remedy", "remedies", "importance", "explain", "diagnose", "edge")
ABOUT_SWEEPS = [query.query_name() for query in answers.query_classes("sweep")]


def is_by_default(case: tuple[str, str]) -> bool:
    """A grid, scattered cells, and in turn one of the sweeps that have less to say."""
    name, kind = case
    turn = (ABOUT_SWEEPS.index(name) + KINDS.index(kind)) % (len(KINDS) - 2) == 0
    return kind == "grid" or (name not in ON_GRIDS if kind == "scattered" else turn)


def sweep_named(name: str, body: str) -> Sweep:
    return sweep_of(body, f"name: {name}\n{HEAD}")


@pytest.fixture(scope="module")
def results(small_pictures: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid, scattered cells, a planned sweep, imported ones, trained ones, and a broken ledger."""
    folder = tmp_path_factory.mktemp("results")
    grid = sweep_named("grid", GRID)
    labels = ["diverged" if trial.cell["lr"] > 0.5 else "stable" for trial in grid.trials]
    losses = [1.0 + trial.cell["beta1"] + trial.cell["lr"] for trial in grid.trials]
    for name, of_trials in (("grid", labels), ("half", [*labels[:10], *["planned"] * (len(labels) - 10)])):
        sweep = sweep_named(name, GRID)
        with ledger_at(folder / name) as ledger:
            record(ledger, sweep, of_trials, losses)
        (folder / name / FROZEN_SWEEP).write_text(sweep.text)
    scattered = sweep_named("scattered", SCATTERED)
    with ledger_at(folder / "scattered") as ledger:
        outcomes = ["diverged" if trial.cell["lr"] > 0.3 else "stable" for trial in scattered.trials]
        record(ledger, scattered, outcomes, [1.0 + trial.cell["lr"] for trial in scattered.trials])
    (folder / "scattered" / FROZEN_SWEEP).write_text(scattered.text)
    empty = sweep_named("empty", GRID)
    with ledger_at(folder / "empty") as ledger:
        ledger.plan(empty.objective.name, empty.trials, driver_facts(empty))
    (folder / "empty" / FROZEN_SWEEP).write_text(empty.text)
    table = folder / "table.csv"
    table.write_text("lr,beta1,loss\n0.1,0.0,2.0\n0.1,0.5,2.1\n1.0,0.0,nan\n1.0,0.5,nan\n,0.5,2.0\n")
    ladder = folder / "ladder.csv"
    rows = [(lr, width, "nan" if lr * width > 0.5 else 2 + lr) for lr in (1e-3, 4e-3, 0.016) for width in (16, 64, 128)]
    ladder.write_text("\n".join(["lr,width,loss", *(",".join(map(str, row)) for row in rows)]))
    for path, name, other in ((table, "imported", "beta1"), (ladder, "ladder", "width")):
        arguments = ["import", str(path), "--name", name, "--axis", "lr", "--axis", other, "--outcome", "loss"]
        done = CliRunner().invoke(app, [*arguments, "--results", str(folder)])
        assert done.exit_code == 0, done.output
    trained_ladder(folder)
    kept = sweep_of(KEPT, "name: kept\nobjective: gpt\nsteps: 4\n")
    assert run_sweep(kept, folder / "kept", InlineExecutor).exit_code == 0
    lines = b"".join(b"line %d of a text\n" % (number % 900) for number in range(1000))
    (folder.parent / "text.txt").write_bytes(lines)
    (folder.parent / "text.yaml").write_text(TEXT_SWEEP.format(text=folder.parent / "text.txt"))
    (folder / "broken").mkdir()
    (folder / "broken" / LEDGER).write_text("no ledger")
    return folder


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with readings of telemetry: the curvature jumps at step 200, and every second trial diverges after it."""
    folder = tmp_path_factory.mktemp("watched") / "watched"
    sweep = sweep_of(GRID, f"name: watched\n{HEAD.replace('20', '400')}")
    with ledger_at(folder) as ledger:
        record_with_readings(ledger, sweep)
    return folder


def record_with_readings(ledger: LedgerWriter, sweep: Sweep) -> None:
    ledger.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
    step_N = np.arange(0, 400, 5)
    curvature_N = np.where(step_N < 200, 0.01, 1e3)
    readings = {"step": step_N, "grad_norm/all": np.ones(80), "lambda_max": curvature_N, "lambda_grad": curvature_N}
    for i, trial in enumerate(sweep.trials):
        (pack,) = make_packs(sweep, [trial], 1)
        ledger.start_pack(pack, "test")
        changes = {"onset_step": 230, "episodes": ((230, None),)} if i % 2 else {"onset_step": None}
        result = finished(trial.trial_id, "diverged" if i % 2 else "stable", steps_done=400, **changes)
        curve = {"step": np.arange(400), "loss": np.ones(400)}
        of_trial = {trial.trial_id: {**readings, "curvature_threshold": np.ones(80)}}
        ledger.record(
            Report(pack.pack_id, 400, 0, 0.5, {trial.trial_id: curve}, (result,), Completed(), telemetry=of_trial)
        )
        ledger.end_pack(pack.pack_id, "done", "errored", "a bug")


def invoke(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output and error of `sweep` with these arguments."""
    done = CliRunner().invoke(app, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        assert isinstance(done.exception, SweepError), done.exception
        return done.exception.exit_code, "", str(done.exception)
    return done.exit_code, done.stdout, done.stderr


class Tags(HTMLParser):
    """Which elements a page has, each closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        if tag not in ("img", "meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_media(answer: Answer, pictures: Sequence[str] = ("svg",)) -> None:
    """Every medium shows the answer, or says that it has no such form."""
    assert [line for line in answer.lines(WIDTH) if len(line) > WIDTH and " " in line.strip()] == [], "but for a path"
    assert json.loads(str(answer.rendered("json"))) == json.loads(json.dumps(answer.to_plain()))
    assert Tags(cards_html(answer.blocks())).open == []
    assert str(answer.rendered("txt")) == str(answer) + "\n"
    for ending in ("csv", *pictures):
        content = answered(lambda ending=ending: answer.rendered(ending))
        if isinstance(content, InputError):
            assert "the answer has no" in str(content)
        else:
            assert ending == "csv" or content.startswith({"png": b"\x89PNG", "svg": b"<?xml"}[ending])


def answered(ask: Callable[[], Any]) -> Any:
    """What ``ask`` returns, or the error with which the product refuses."""
    try:
        return ask()
    except SweepError as refused:
        return refused


@pytest.mark.parametrize(("name", "kind"), thinned(itertools.product(ABOUT_SWEEPS, KINDS), is_by_default))
def test_python_and_the_command_give_one_answer_in_every_medium_or_refuse_alike(
    results: Path, tmp_path: Path, name: str, kind: str
) -> None:
    options, fields = NEEDED.get(name, ([], {}))
    file = tmp_path / "answer.json"
    code, text, error = invoke(name, kind, *options, "--results", str(results), "--json", str(file))
    answer = answered(lambda: load(kind, results).ask(answers.query_class(name)(**fields)))
    if isinstance(answer, SweepError):
        assert (code, text.strip()) == (answer.exit_code, "")
        assert re.sub(r" \(\d+ MiB free\)", "", str(answer)) in re.sub(r" \(\d+ MiB free\)", "", error)
        return
    assert code == answer.exit_code
    assert json.loads(file.read_text()) == answer.to_plain()
    printed = text.splitlines()
    assert printed[: len(answer.lines())] == answer.lines()
    check_media(answer, ("png", "svg") if kind == "grid" else ("svg",))


@pytest.mark.parametrize("name", ["warn"])
def test_questions_about_telemetry_agree_too(watched: Path, tmp_path: Path, name: str) -> None:
    code, _, _ = invoke(name, str(watched), "--json", str(tmp_path / "answer.json"))
    answer = getattr(load(watched), name)()
    assert code == 0
    assert json.loads((tmp_path / "answer.json").read_text()) == answer.to_plain()
    check_media(answer)


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["doctor", "grid"],
        pytest.param(["compare", "grid", "half"], marks=pytest.mark.slow),
        ["compare", "grid", "--by", "beta1"],
        pytest.param(["compare", "scattered", "scattered"], marks=pytest.mark.slow),
        ["plan", "grid"],
        ["replay", "grid"],
        ["boundary", "grid", "--level", "final_loss=1.7"],
        ["locate", "scattered", "--at", "lr=0.9", "--at", "beta1=0.4"],
        ["locate", "grid", "--at", "lr=7", "--at", "beta1=0.4"],
        pytest.param(["map", "grid", "--by", "beta1"], marks=pytest.mark.slow),
        ["front", "grid", "--against", "steps"],
    ],
    ids=" ".join,
)
def test_an_answer_about_anything_is_written_in_each_form_that_is_asked_for(
    results: Path, tmp_path: Path, arguments: list[str]
) -> None:
    is_read_below = any(arguments in asked for asked in DOCUMENTED.values())  # from JSON, each key
    for ending in ("html",) if is_read_below else ("txt", "html", "json"):
        file = tmp_path / f"answer.{ending}"
        code, text, error = invoke(*arguments, "--results", str(results), "--output", str(file))
        assert code in (0, 3), error
        assert text.endswith(f"wrote {file}\n")
        assert file.stat().st_size


@pytest.mark.parametrize("name", answers.names())
def test_rendered_help_says_the_need_and_has_an_example_and_every_option(name: str) -> None:
    code, text, _ = invoke(name, "--help")
    shown = re.sub(r"[\s│]+", " ", text)
    query = answers.query_class(name)
    assert code == 0
    assert f"sweep {name}" in shown
    assert all(part in shown for part in ("--json", "--output", "--results"))
    assert "(?P<step>" in shown if "pattern" in query.options() else True


def documented(command: str) -> set[str]:
    """The keys of the command's table in docs/json.md."""
    section = PAGE.split(f"\n## {command}\n")[1].split("\n## ")[0]
    return {
        key
        for line in section.splitlines()
        if line.startswith("| `")
        for key in re.findall(r"`([^`]+)`", line.split("|")[1])
    }


def paths(value: Any, path: str = "") -> Iterator[str]:
    """Where the values of a JSON document are: keys joined by dots, [] for the elements of a list."""
    if value in ({}, []):
        yield path
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from paths(one, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for one in value:
            yield from paths(one, f"{path}[]")
    else:
        yield path


def is_meant(key: str, path: str) -> bool:
    """Whether the documented ``key`` is about ``path``; a star stands for a name, or at its end for all below."""
    pattern = re.escape(key).replace(r"\.\*", r"\.[^.]+")
    is_below = re.fullmatch(pattern + (r"(\..+)?" if key.endswith("*") else ""), path) is not None
    return is_below or key.startswith((f"{path}.", f"{path}[]"))


DOCUMENTED: dict[str, list[list[str]]] = {
    "list": [["list"]],
    "status": [["status", "grid"], ["status", "imported"]],
    "import": [
        ["import", "{results}/table.csv", "--name", "imported", "--axis", "lr", "--axis", "beta1", "--outcome", "loss"]
    ],
    "plan": [["plan", "grid"]],
    "merge": [["merge", "kept"]],
    "data": [["data", "{results}/../text.yaml"]],
    "doctor": [["doctor", "grid"]],
    "boundary": [["boundary", "grid"], ["boundary", "scattered"], ["boundary", "grid", "--level", "final_loss=1.7"]],
    "recommend": [["recommend", "grid"], ["recommend", "scattered"]],
    "sensitivity": [["sensitivity", "grid"], ["sensitivity", "scattered"]],
    "compare": [
        ["compare", "grid", "half"],
        ["compare", "scattered", "scattered"],
        ["compare", "grid", "--by", "beta1"],
    ],
    "locate": [
        ["locate", "grid", "--at", "lr=0.02", "--at", "beta1=0.4", "--at", "warmup=3"],
        ["locate", "scattered", "--at", "lr=0.9", "--at", "beta1=0.4"],
        ["locate", "grid", "--at", "lr=7", "--at", "beta1=0.4"],
    ],
    "edge": [["edge", "grid"]],
    "front": [["front", "grid"]],
    "predict": [
        ["predict", "ladder", "--at", "width=256", "--lr", "1e-3"],
        ["predict", "trained", "--at", "curvature=64", "--confirm", "1"],
    ],
    "importance": [["importance", "grid"]],
    "survival": [["survival", "grid"]],
    "audit": [["audit", "grid"]],
    "explain": [["explain", "grid"]],
    "diagnose": [["diagnose", "grid"]],
    "warn": [["warn", "{watched}"]],
    "cause": [["cause", "grid", *NEEDED["cause"][0]], ["cause", "grid", "--each-cell", *NEEDED["cause"][0]]],
    "remedy": [["remedy", "grid", *NEEDED["remedy"][0]]],
    "remedies": [["remedies", "grid", *NEEDED["remedies"][0]]],
    "replay": [["replay", "grid"], ["replay", str(ROOT / "tests/data/logs"), "--no-figures"]],
}


@pytest.mark.parametrize("name", thinned(DOCUMENTED, lambda name: name != "compare"))
def test_the_page_has_every_key_that_is_written_and_no_other(
    results: Path, watched: Path, tmp_path: Path, name: str
) -> None:
    found: set[str] = set()
    for arguments in DOCUMENTED[name]:
        named = [argument.format(results=results, watched=watched) for argument in arguments]
        invoke(*named, "--results", str(results), "--json", str(tmp_path / "answer.json"))
        found |= set(paths(json.loads((tmp_path / "answer.json").read_text())))
    keys = documented(name)
    assert sorted(path for path in found if not any(is_meant(key, path) for key in keys)) == []
    assert sorted(key for key in keys if not any(is_meant(key, path) for path in found)) == []


def test_the_page_has_a_section_for_each_question() -> None:
    sections = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert sorted({*answers.names(), "import"} - {*sections}) == []


SYNTHETIC = '''
"""How many trials a sweep has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from orchestrator.base.query import Query, Say, option, silent
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Line

if TYPE_CHECKING:
    from orchestrator.maps.table import SweepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class CountQuery(Query["SweepTable"]):
    """Count the trials of a sweep.

    For example `sweep count fit --plus 2`.
    """

    section: ClassVar[str] = "Number of trials"

    plus: int = option(0, "trials that are added")

    def ask(self, subject: SweepTable, say: Say = silent) -> CountAnswer:
        """Return the number."""
        return CountAnswer(len(subject.trials) + self.plus)


@dataclass(frozen=True, slots=True)
class CountAnswer(Answer):
    """A number of trials."""

    num_trials: int

    def blocks(self) -> Iterator[Block]:
        """Yield it."""
        yield Line(f"{self.num_trials} trials")
'''


@pytest.fixture
def synthetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A question that is one module, and nothing else."""
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "count.py").write_text(textwrap.dedent(SYNTHETIC))
    monkeypatch.setattr(answers, "__path__", [*answers.__path__, str(folder)])
    importlib.invalidate_caches()
    yield "count"
    monkeypatch.delitem(__import__("sys").modules, "orchestrator.answers.count", raising=False)
    monkeypatch.delattr(answers, "count", raising=False)


def test_one_module_gives_a_command_json_a_file_a_method_a_section_and_a_name(
    synthetic: str, results: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    file = tmp_path / "out" / "count.html"
    arguments = [synthetic, "grid", "--plus", "2", "--results", str(results)]
    assert invoke(*arguments, "--json", "-")[1] == '{\n  "num_trials": 26\n}\n'
    assert invoke(*arguments, "--output", str(file))[1] == f"26 trials\nwrote {file}\n"
    assert "26 trials" in file.read_text()
    assert load("grid", results).count(plus=2).num_trials == 26
    assert "count" in dir(load("grid", results))
    with LedgerReader(results / "grid" / LEDGER) as ledger:
        page = answers_html(read_table(ledger), None, "")
    assert "<h2>Number of trials</h2>" in page
    assert "count" in answers.names()
    assert "Count the trials of a sweep." in invoke("--help")[1]


def test_a_question_is_a_frozen_dataclass_with_an_option_for_each_field() -> None:
    for query in answers.query_classes():
        assert issubclass(query, Query)
        assert query.options().keys() == query.types().keys() == query.defaults().keys()
        assert query.__doc__
        assert query.panel in {"train", "look", "choose", "explain", "upkeep"}


def test_numbers_that_are_not_finite_become_null() -> None:
    from orchestrator.render.answer import to_plain

    values = {"a": float("nan"), "b": [float("inf"), 1.0], "c": {"d": -float("inf"), "e": (1, None)}}
    assert to_plain(values) == {"a": None, "b": [None, 1.0], "c": {"d": None, "e": [1, None]}}


def test_with_a_dash_standard_output_has_the_json_alone_and_the_text_goes_to_standard_error(
    results: Path, tmp_path: Path
) -> None:
    arguments = ["recommend", "grid", "--results", str(results), "--json"]
    _, out, error = invoke(*arguments, "-")
    assert "chosen from" in error
    invoke(*arguments, str(tmp_path / "answer.json"))
    assert out == (tmp_path / "answer.json").read_text()
