"""Every command that the docs show is run, and every number that they repeat is compared."""

import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from page_cases import blocks, invoke
from sweep_cases import learning, trial_row

from objectives.entries import Intervention
from orchestrator.base.columns import (
    CURVE_METRIC_COLUMNS,
    MAP_COLUMNS,
    METRICS,
    TRACE_COLUMNS,
    TRIAL_COLUMNS,
    markdown_table,
)
from orchestrator.base.space import format_value
from orchestrator.base.vocabulary import OUTCOMES
from orchestrator.causes.remedies.remedy import Remedy
from orchestrator.causes.remedies.snippets import snippet_of
from orchestrator.detection.config import SlowConfig, StoppingConfig
from orchestrator.detection.run_alarms import ALARM_KINDS
from orchestrator.maps.edge_line import EDGE_COLUMNS, MOST_LINES, PLACES_ACROSS, Kind
from orchestrator.maps.front import FRONT_COLUMNS
from orchestrator.maps.front import Kind as FrontKind
from orchestrator.mirrors.notifier import PATIENCE_S, PAUSE_S
from orchestrator.render.text_map import text_map
from orchestrator.sweepfile.overrides import parse_set
from orchestrator.sweepfile.sections import (
    EVENTS,
    BudgetConfig,
    NotifyConfig,
    ResourcesConfig,
    SearchSection,
    TelemetryConfig,
    TrackingConfig,
    ValidateConfig,
)
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SWEEP_FILE = (ROOT / "docs" / "sweep-file.md").read_text()
DETECTION = (ROOT / "docs" / "detection.md").read_text()
MAPS = (ROOT / "docs" / "maps.md").read_text()
DIAGNOSIS = (ROOT / "docs" / "diagnosis.md").read_text()
REMEDIES = (ROOT / "docs" / "remedies.md").read_text()
WATCH = (ROOT / "docs" / "watch.md").read_text()


def commands(text: str) -> list[list[str]]:
    lines = [line for block in blocks(text, "sh") for line in block.splitlines() if line.strip()]
    return [shlex.split(line, comments=True) for line in lines]


def run_all(lines: list[list[str]], cwd: Path) -> None:
    for program, *arguments in lines:
        assert program == "sweep"
        if arguments[0] not in ("run", "init", "plan"):  # imports of drawing take longer than what they draw
            invoke(arguments, cwd)
            continue
        command = [str(Path(sys.executable).with_name("sweep")), *arguments]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"


def test_the_readme_shows_the_two_commands_that_the_makefile_has() -> None:
    targets = [words[1] for words in commands(README) if words[0] == "make"]
    assert targets == ["run", "test"]
    for target in targets:
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_first_screen_of_the_readme_has_a_command_and_the_map_that_it_prints() -> None:
    screen = README.splitlines()[:24]
    assert all(len(line) <= 80 for line in screen)
    (shown,) = blocks("\n".join(screen), "text")
    rows = []
    with (ROOT / "results" / "reference" / "beta2_eps" / "map.csv").open() as file:
        for row in csv.DictReader(file):
            cell = {name: float(row[name]) for name in ("beta2", "eps")}
            for outcome in OUTCOMES:
                num = int(row[f"num_{outcome}"])
                rows += [trial_row(cell=cell, outcome=outcome)] * num
    assert shown.rstrip() == str(text_map(rows)).rstrip()


@pytest.mark.services
def test_the_commands_of_the_readme_work_in_an_empty_folder(tmp_path: Path) -> None:
    run_all([words for words in commands(README) if words[0] == "sweep"], tmp_path)
    assert (tmp_path / "heatmap.svg").is_file()


def test_the_commands_of_the_sweep_file_page_work_on_its_example(tmp_path: Path) -> None:
    (tmp_path / "my_sweep.yaml").write_text(blocks(SWEEP_FILE, "yaml")[0])
    run_all(commands(SWEEP_FILE), tmp_path)


@pytest.mark.slow
def test_the_commands_of_the_diagnosis_page_work_on_its_example(tmp_path: Path) -> None:
    (tmp_path / "start.yaml").write_text(blocks(DIAGNOSIS, "yaml")[0])
    # Without Ray, which the commands of the README start.
    lines = [[*words, "--executor", "inline"] if words[1] == "run" else words for words in commands(DIAGNOSIS)]
    run_all(lines, tmp_path)
    assert json.loads((tmp_path / "why.json").read_text())["cause"] == "warmup_too_short"
    assert (tmp_path / "where.png").is_file()


@pytest.mark.slow
def test_the_commands_of_the_remedies_page_work_on_its_example(tmp_path: Path) -> None:
    (tmp_path / "night.yaml").write_text(blocks(REMEDIES, "yaml")[0])
    run_all(remedies_commands("night"), tmp_path)
    found = json.loads((tmp_path / "rescue.json").read_text())
    assert found["control_repeats"] is True
    assert found["cheapest"] == "lr x0.25"
    (cell,) = json.loads((tmp_path / "cells.json").read_text())["cells"]
    assert cell["trial_id"] == found["trial_id"]


@pytest.mark.slow
def test_the_trainer_of_the_remedies_page_is_forked_from_its_checkpoints(tmp_path: Path) -> None:
    run_all(remedies_commands("train_rescue"), tmp_path)
    found = json.loads((tmp_path / "script.json").read_text())
    assert found["control_repeats"] is True
    steps = [step // 20 * 20 for step in (found["onset_step"] - 50, found["onset_step"])]  # it saves every 20 steps
    assert found["resumed"] == [{"fork_step": step, "differs": None} for step in steps]
    assert found["without_effect"] == []
    assert found["cheapest"] is None, "one run each may be chance"
    assert [tally["tried"] for tally in found["remedies"] if tally["name"] == "lr x0.1"] == [1, 1]


def remedies_commands(name: str) -> list[list[str]]:
    """The commands of the page about one sweep; runs without Ray."""
    lines = [words for words in commands(REMEDIES) if words[2].removesuffix(".yaml") == name]
    assert lines[0][1] == "run"
    return [[*words, "--executor", "inline"] if words[1] == "run" else words for words in lines]


def test_the_commands_of_the_detection_page_work_on_its_log(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(blocks(DETECTION, "text")[0])
    run_all(commands(DETECTION), tmp_path)
    (judged,) = json.loads((tmp_path / "judged.json").read_text())
    assert (judged["outcome"], judged["stop_step"], judged["num_points"]) == ("diverged", 40, 5)
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == ["train.log.png"]


def test_the_commands_of_the_watch_page_work_on_a_log_with_its_spike(tmp_path: Path) -> None:
    losses, norms = learning(2000), np.ones(2000)
    losses[1200:1220] += np.linspace(0, 2.5, 20)
    losses[1220:1300] += np.linspace(2.5, 0, 80)
    norms[1185:1260] = 3.0
    rows = enumerate(zip(losses, norms, strict=True))
    log = "".join(f"step {step} loss {loss:.4f} grad_norm {norm:.3f}\n" for step, (loss, norm) in rows)
    (tmp_path / "train.log").write_text(log)
    watched, replayed = (invoke(words[1:], tmp_path) for words in commands(WATCH))
    assert "ended (the run is complete): spiked from step 1,204" in watched
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert [row["type"] for row in said] == ["report", "end"], "the spike is older than the watch"
    printed = " ".join(replayed.split())
    for part in re.split(r"\n  (?=\S)", blocks(WATCH, "text")[1]):
        assert " ".join(part.split()) in printed


def test_the_watch_page_has_every_kind_of_alarm_and_lines_that_are_printed() -> None:
    assert tuple(re.findall(r"^\| `([a-z]+)` \|", WATCH, re.MULTILINE)) == (
        "spike",
        "lost",
        "nan",
        "warning",
        "stalled",
    )
    assert set(ALARM_KINDS) == {"spike", "lost", "nan", "warning", "stalled"}
    assert blocks(WATCH, "python") == [snippet_of(Remedy(({"at": 0, "rescale": 4.0},)), 150)]


@pytest.mark.parametrize("page", [README, DETECTION], ids=["readme", "detection"])
def test_the_detector_works_in_a_loop_as_shown(page: str) -> None:
    found: dict[str, Any] = {}
    exec(blocks(page, "python")[0], found)
    assert found["detector"].record().lost_reason == "the loss is not finite"


def test_the_detection_page_has_every_setting_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| ([^|]*?) ?\|", DETECTION, re.MULTILINE))
    assert {*rows} == {*StoppingConfig.model_fields, *(f"slow.{name}" for name in SlowConfig.model_fields)}
    check_defaults(rows, StoppingConfig, "")
    check_defaults(rows, SlowConfig, "slow.")


def test_the_example_sweep_file_is_valid() -> None:
    assert len(build_sweep(parse_document(blocks(SWEEP_FILE, "yaml")[0], "example")).trials) == 84


def test_the_examples_of_related_axes_have_the_values_and_cells_that_the_page_says() -> None:
    (scaled,) = (text for text in blocks(SWEEP_FILE, "yaml") if "tie:" in text)
    (momentum,) = (text for text in blocks(SWEEP_FILE, "yaml") if "when:" in text)
    (largest,) = (
        trial for trial in build_sweep(parse_document(scaled, "page")).trials
        if dict(trial.cell) == {"lr": 1.0, "batch_size": 128}
    )  # fmt: skip
    assert (largest.config["lr"], largest.config["warmup"]) == (2.0, 20)
    sweep = build_sweep(parse_document(momentum, "page"))
    assert (len(sweep.trials), 7 * 2 * 3) == (28, 42)


def test_the_example_of_interventions_has_the_words_and_keys_that_the_page_says() -> None:
    section = SWEEP_FILE.partition("## `interventions`")[2].partition("\n## ")[0]
    (text,) = blocks(section, "yaml")
    sweep = build_sweep(parse_document(text, "page"))
    labels = [format_value(value) for value in sweep.axes[0].values]
    assert labels[:2] == ["none", "lr x0.5 at 100"]
    assert all(f"`{label}`" in section for label in labels[:2])
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| ([^|]*?) ?\|", section, re.MULTILINE))
    assert list(rows) == list(Intervention.model_fields)
    for name, field in Intervention.model_fields.items():
        if not field.is_required():
            assert parse_set(f"{name}={rows[name]}")[1] == field.default, name


def test_the_example_of_tokens_has_the_steps_that_the_page_says() -> None:
    (text,) = (text for text in blocks(SWEEP_FILE, "yaml") if "tokens:" in text)
    steps = {trial.steps for trial in build_sweep(parse_document(text, "page")).trials}
    assert f"here {min(steps)} to {max(steps)}, " in SWEEP_FILE


@pytest.mark.parametrize(
    ("section", "prefix"),
    [
        (ResourcesConfig, "resources."),
        (SearchSection, "search."),
        (BudgetConfig, "budget."),
        (TrackingConfig, "tracking."),
        (TelemetryConfig, "telemetry."),
        (ValidateConfig, "validate."),
    ],
)
def test_the_tables_have_every_key_with_its_default(section, prefix: str) -> None:
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| ([^|]*?) ?\|", SWEEP_FILE, re.MULTILINE))
    check_defaults(rows, section, prefix)


def check_defaults(rows: dict[str, str], section: Any, prefix: str) -> None:
    for name, field in section.model_fields.items():
        shown = rows[prefix + name]
        if field.is_required():
            assert not shown.strip(), name
            continue
        assert parse_set(f"{name}={shown}")[1] == field.default, name


def test_the_section_of_messages_has_its_keys_and_every_event() -> None:
    section = SWEEP_FILE.partition("## `notify`")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| ([^|]+?) \|", section, re.MULTILINE))
    assert [name for name in rows if "." in name] == [f"notify.{name}" for name in NotifyConfig.model_fields]
    assert rows["notify.url_from"] == "required"
    assert parse_set(f"on={rows['notify.on']}")[1] == NotifyConfig(url_from="A").on == list(EVENTS)
    assert tuple(name for name in rows if "." not in name) == EVENTS
    assert f"at most {PATIENCE_S:g} seconds" in section
    assert "at most one message a minute" in section
    assert PAUSE_S == 60


FOLDERS_OF_PAGES = (".", "docs", "benchmarks", "tests/faults", "results/reference")


PAGES = [page for folder in FOLDERS_OF_PAGES for page in sorted((ROOT / folder).glob("*.md"))]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "llms.txt"])
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_maps_page_defines_every_column_as_the_code_does() -> None:
    section = MAPS.split("## Columns")[1]
    cells = [column for column in MAP_COLUMNS if not column.name.startswith("median_")]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert tables == list(map(markdown_table, (TRIAL_COLUMNS, cells, CURVE_METRIC_COLUMNS, TRACE_COLUMNS)))
    (named,) = re.findall(r"^and `median_NAME`.*? of (.*?)\. The", section, re.MULTILINE | re.DOTALL)
    assert re.findall(r"`(\w+)`", named) == list(METRICS)


def test_the_maps_page_has_every_column_and_kind_of_an_edge() -> None:
    section = MAPS.partition("### The edge against another axis")[2].partition("\n## ")[0]
    told = re.findall(r"`([a-z ]+)`", section.partition("under their own names, then")[2])
    assert told == ["edge", "low", "high", "kind", *get_args(Kind)]
    assert set(EDGE_COLUMNS) <= set(told)
    assert f"{PLACES_ACROSS} even places" in section
    assert f"at most {MOST_LINES} values" in section


def test_the_maps_page_has_every_column_and_kind_of_a_front() -> None:
    section = MAPS.partition("### What a wider margin costs")[2].partition("\n## ")[0]
    told = re.findall(r"`([a-z_ ]+)`", section.partition("the values of the axes, then")[2])
    named = {name for name in FRONT_COLUMNS if name not in ("loss", "against")}  # these have the names of what they are
    assert {*named, *get_args(FrontKind)} <= set(told)
    assert len(get_args(FrontKind)) == 4


def test_every_shipped_sweep_is_in_the_readme() -> None:
    for path in (ROOT / "sweeps").glob("*.yaml"):
        assert f"](sweeps/{path.name})" in README


GAINS = MAPS.partition("### What a change saves")[2].partition("\n## ")[0]


def test_the_example_of_what_a_change_saves_has_the_values_of_its_axis_and_counts_every_pair() -> None:
    (text,) = blocks(GAINS, "yaml")
    sweep = build_sweep(parse_document(text, "page"))
    base, *labels = [format_value(value) for value in sweep.axes[1].values]
    (shown,) = blocks(GAINS, "text")
    assert max(map(len, shown.splitlines())) <= 80
    assert f"Against interventions={base}, on {len(sweep.trials) // 5} trials" in shown
    rows = re.findall(r"^(.+?) +(\d+)/(\d+) +\S+ +(\d+)/(\d+) ", shown, re.MULTILINE)
    assert sorted(row[0] for row in rows) == sorted(labels)
    assert {int(unstable) + int(stable) for _, _, unstable, _, stable in rows} == {len(sweep.trials) // 5}
    saved = [int(row[1]) for row in rows]
    assert saved == sorted(saved, reverse=True)
    assert all(f"`{label}`" in GAINS for label in ("clip 0.1 at 20", "lr x0.1 at 50"))


def heads(text: str) -> list[str]:
    """What tables are named and which columns they have, without their numbers."""
    lines = [" ".join(line.split()) for line in text.partition("Against")[2].splitlines()]
    return [line for line in lines if line.startswith(("interventions ", "Median", "of all cells"))]


@pytest.mark.slow
def test_the_commands_and_the_notebook_of_the_maps_page_work_on_its_example(tmp_path: Path, monkeypatch) -> None:
    # A fifth of the steps: what is printed is not compared, and diverged cells are there all the same.
    (tmp_path / "fit.yaml").write_text(blocks(MAPS, "yaml")[0].replace("steps: 300", "steps: 60"))
    (tmp_path / "mine.yaml").write_text(blocks(MAPS, "yaml")[1])
    (tmp_path / "changes.yaml").write_text(blocks(MAPS, "yaml")[2].replace("steps: 300", "steps: 60"))
    run_all(commands(MAPS), tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {"turned.png", "facets.png", "front.png"}
    assert json.loads((tmp_path / "where.json").read_text())["setting"] == {"lr": 0.02, "beta2": 0.95}
    assert (tmp_path / "results" / "compare" / "fit_vs_fit_cosine.png").is_file()
    compared = invoke(["compare", "changes", "--by", "interventions"], tmp_path)
    assert heads(compared) == heads(blocks(GAINS, "text")[0])
    assert len(heads(compared)) == 4
    assert json.loads((tmp_path / "front.json").read_text())["against"] == "steps_to_target"
    assert {"edge.svg", "edge.csv", "map.csv", "onset.svg"} <= {path.name for path in tmp_path.iterdir()}
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(blocks(MAPS, "python")[0], found)
    assert len(found["fit"].trials) == 72
    assert {"step", "loss", "grad_norm"} <= set(found["curve"])
    exec(blocks(MAPS, "python")[1], found)
    assert len(found["again"].trials) == 48
    assert (tmp_path / "results" / "small" / "heatmap.png").is_file()
