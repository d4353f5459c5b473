"""docs/custom-trainer.md from top to bottom: files are written as shown, commands run as shown."""

import re
from collections import Counter
from pathlib import Path

import pytest
from page_cases import BLOCK, blocks, copy_linked, run_commands, section, shipped, write_files

from orchestrator.ledger.reader import LedgerReader
from orchestrator.logs.columns import MetricsConfig
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "custom-trainer.md").read_text()
TITLES = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
# What each section's blocks must come to; `None` for one that has no sweep.
OUTCOMES = {
    "A script, unmodified": ("mine", {"stable", "diverged"}),
    "A Python function": ("function", {"stable", "diverged"}),
    "A custom packed objective": ("my_digits", {"stable", "diverged"}),
    "Layers, depth and logits of a packed objective": ("residual", {"stable", "diverged"}),
    "More than one process a trial": ("ddp", {"stable", "diverged"}),
    "Slurm, without Ray on the nodes": ("jobs", {"stable", "diverged"}),
}
LONG = (
    "A script, unmodified",
    "A Python function",
    "A custom packed objective",
    "Layers, depth and logits of a packed objective",
    "More than one process a trial",
    "Slurm, without Ray on the nodes",
    "Callbacks",
)
SAID = {"One line in a training loop": "diverged", "Callbacks": "diverged"}


def test_every_section_with_commands_is_tested() -> None:
    assert {title for title in TITLES if "```sh" in section(PAGE, title)} == {*OUTCOMES, *SAID}


@pytest.mark.parametrize("title", [pytest.param(t, marks=pytest.mark.slow) if t in LONG else t for t in OUTCOMES])
def test_the_blocks_of_a_section_give_a_map_with_stable_and_diverged_cells(tmp_path: Path, title: str) -> None:
    name, wanted = OUTCOMES[title]
    if name == "jobs":
        write_files(section(PAGE, "A script, unmodified"), tmp_path)
    copy_linked(section(PAGE, title), tmp_path)
    write_files(section(PAGE, title), tmp_path)
    run_commands(section(PAGE, title), tmp_path)
    with LedgerReader(tmp_path / "results" / name / "ledger.db") as ledger:
        outcomes = Counter(row.outcome for row in ledger.trials())
    assert set(outcomes) >= wanted, outcomes
    assert None not in outcomes


@pytest.mark.parametrize("title", [pytest.param(t, marks=pytest.mark.slow) if t in LONG else t for t in SAID])
def test_the_blocks_of_a_section_stop_a_run_that_is_lost(tmp_path: Path, title: str) -> None:
    copy_linked(section(PAGE, title), tmp_path)
    write_files(section(PAGE, title), tmp_path)
    said = run_commands(section(PAGE, title), tmp_path)
    assert SAID[title] in said


@pytest.mark.slow
def test_a_packed_objective_is_diagnosed_by_layer_depth_curvature_and_logits_and_its_small_sweep_runs(
    tmp_path: Path,
) -> None:
    text = section(PAGE, "Layers, depth and logits of a packed objective")
    copy_linked(text, tmp_path)
    write_files(text, tmp_path)
    said = run_commands(text, tmp_path) + run_commands("```sh\nsweep diagnose residual --full\n```", tmp_path)
    with LedgerReader(tmp_path / "results" / "residual" / "ledger.db") as ledger:
        lost = next(row for row in ledger.trials() if row.outcome == "diverged")
        readings = ledger.telemetry(lost.trial_id)
    by_layer = {f"update_to_weight/{group}" for group in ("input", "blocks", "head", "all")}
    by_depth = {f"update_rms/{part}" for part in ("shallow", "middle", "deep")}
    assert readings.keys() >= {*by_layer, *by_depth, "log_z", "lambda_max", "curvature_threshold"}
    assert "layers out of step: input moves with the layers above it" in said
    assert "growth of the logits: logits were calm up to the onset" in said
    assert "curvature over the threshold at 100%" in said
    (small,) = (tmp_path / "results" / "residual" / "diagnosis").glob("*raise_warmup.yaml")
    run_commands(
        f"```sh\nsweep run {small} --allow-import --executor inline --set tracking.enabled=false\n```", tmp_path
    )


def test_each_excerpt_is_of_a_trainer_that_ships() -> None:
    assert len(blocks(PAGE, "py")) == 4
    for excerpt in blocks(PAGE, "py"):
        assert set(excerpt.splitlines()) <= set(shipped(PAGE).splitlines())


def test_the_page_names_every_key_of_metrics() -> None:
    for name in MetricsConfig.model_fields:
        assert f"`{name}`" in PAGE


def test_parts_of_a_sweep_file_are_valid() -> None:
    parts = [text for language, text in BLOCK.findall(PAGE) if language == "yaml" and not text.startswith("name:")]
    assert parts
    for part in parts:
        sweep = build_sweep(parse_document(f"name: part\nsteps: 5\nfixed: {{lr: 0.1}}\n{part}", "page"))
        section = sweep.objective.section
        said = (section.resume, section.metrics.score, section.preload == "auto", sweep.facts)
        assert any(said)


def test_the_sweep_of_nanogpt_can_be_forked_at_its_checkpoints_with_what_is_tried() -> None:
    (text,) = (text for _, text in BLOCK.findall(PAGE) if text.startswith("name: rescue"))
    sweep = build_sweep(parse_document(text, "page"))
    assert sweep.objective.section.resume is not None
    assert [trial.cell["lr"] for trial in sweep.trials] == [0.1, 1.0]
    for tried in re.findall(r"--try (\w+)=", PAGE):
        assert sweep.objective.uses(tried)


def test_the_sizes_of_the_global_batch_are_those_that_the_page_says() -> None:
    (text,) = (text for _, text in BLOCK.findall(PAGE) if text.startswith("name: accumulated"))
    trials = build_sweep(parse_document(text, "page")).trials
    assert [trial.config["accumulation"] for trial in trials] == [1, 2, 8]
    assert "Here `{accumulation}` is 1, 2 and 8." in PAGE
