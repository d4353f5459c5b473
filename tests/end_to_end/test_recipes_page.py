"""docs/from-trainer-to-map.md: each recipe, run as shown, gives a map with its edge where it must be."""

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
from page_cases import BLOCK, blocks, copy_linked, invoke, run_commands, section, shipped, write_files

from orchestrator.base.trial_result import TrialResult
from orchestrator.ledger.reader import LedgerReader
from orchestrator.logs.columns import MetricsConfig
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import Sweep, load_sweep

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "from-trainer-to-map.md").read_text()
NANOGPT = "A script in the style of nanoGPT"
# The sweep of each section. A trial that imports torch takes three seconds, so all but one are slow.
RECIPES = {
    NANOGPT: "gpt",
    "Hugging Face's Trainer": "trainer",
    "Accelerate, with several processes": "accelerate",
    "Lightning": "lightning_csv",
    "A script in the style of torchtitan": "titan",
    "JAX and optax": "jax_optax",
    "A C program": "c_program",
}
TIERS = {"A C program": (), "JAX and optax": (pytest.mark.recipes,)}
CASES = [pytest.param(title, marks=TIERS.get(title, (pytest.mark.slow,)), id=name) for title, name in RECIPES.items()]


def rows_by_lr(folder: Path, name: str) -> dict[float, set[str | None]]:
    """The outcomes of a sweep at each learning rate, from the lowest to the highest."""
    found = defaultdict(set)
    for row in trials(folder, name):
        found[row.cell["lr"]].add(row.outcome)
    return dict(sorted(found.items()))


def trials(folder: Path, name: str) -> list[TrialResult]:
    with LedgerReader(folder / "results" / name / "ledger.db") as ledger:
        return ledger.trials()


def replayed(sweep: Sweep, folder: Path) -> dict[str, str]:
    """The outcome that `sweep replay` gives to the kept log of each trial."""
    metrics = sweep.objective.section.metrics
    log = "output.log" if metrics.file is None else metrics.file.removeprefix("{folder}/")
    found = {}
    for trial in (folder / "results" / sweep.name / "trials").iterdir():
        told = ["--set", f"stopping.spike_rise={sweep.stopping.spike_rise}"] if sweep.stopping.spike_rise else []
        judged = folder / "judged.json"
        command = ["replay", str(trial / log), "--no-figures", "--json", str(judged), *told]
        invoke(command, folder)
        (one,) = json.loads(judged.read_text())
        found[trial.name] = one["outcome"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("title", CASES)
def test_a_recipe_gives_a_map_with_its_edge_and_its_kept_logs_agree(tmp_path: Path, title: str) -> None:
    name = RECIPES[title]
    copy_linked(section(PAGE, title), tmp_path)
    write_files(section(PAGE, title), tmp_path)
    if title == NANOGPT:
        (tmp_path / "gpt.yaml").unlink()  # `sweep init` writes it, and never overwrites
    printed = run_commands(section(PAGE, title), tmp_path)

    outcomes = rows_by_lr(tmp_path, name)
    lowest, highest = min(outcomes), max(outcomes)
    assert outcomes[lowest] >= {"stable"}
    assert outcomes[highest] == {"diverged"}
    assert None not in set().union(*outcomes.values())
    assert "its losses are read: " in printed
    if name == "c_program":  # momentum diverges above 2 (1 + momentum) / curvature, which is about 2 / 3
        for row in trials(tmp_path, name):
            assert (row.outcome == "diverged") == (row.cell["lr"] > 3 * (1 + row.cell["momentum"])), row.cell
    sweep = load_sweep(tmp_path / f"{name}.yaml")
    assert replayed(sweep, tmp_path) == {row.trial_id: row.outcome for row in trials(tmp_path, name)}


def test_every_section_is_a_recipe_and_names_no_column(tmp_path: Path) -> None:
    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == [*RECIPES]
    for title, name in RECIPES.items():
        write_files(section(PAGE, title), tmp_path)
        metrics = load_sweep(tmp_path / f"{name}.yaml").objective.section.metrics
        assert metrics.model_copy(update={"file": None}) == MetricsConfig(), title
        assert (metrics.file is None) == (title != "Lightning")


def test_each_excerpt_is_of_a_trainer_that_ships() -> None:
    assert len(blocks(PAGE, "py")) == 5
    assert all(excerpt in shipped(PAGE) for excerpt in blocks(PAGE, "py"))


def test_init_writes_the_sweep_file_that_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy_linked(section(PAGE, NANOGPT), tmp_path)
    write_files(section(PAGE, NANOGPT), tmp_path)
    shown = load_sweep(tmp_path / "gpt.yaml")
    (tmp_path / "gpt.yaml").unlink()
    first = next(block[2] for block in BLOCK.finditer(section(PAGE, NANOGPT)) if block[1] == "sh")
    run_commands(f"```sh\n{first}```", tmp_path)
    written = load_sweep(tmp_path / "gpt.yaml", Overrides())
    assert [trial.trial_id for trial in written.trials] == [trial.trial_id for trial in shown.trials]
    assert (tmp_path / "gpt.yaml").read_text().count(str(tmp_path)) == 0


def test_links_lead_to_every_recipe() -> None:
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in RECIPES}
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) == anchors
