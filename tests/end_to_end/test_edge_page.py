"""docs/edge.md: sweep files are valid, commands run as shown; with fewer steps, since edges differ anyway."""

import re
import shutil
from pathlib import Path

import pytest
from page_cases import run_commands, write_files

from orchestrator.maps.edge_line import PLACES_ACROSS
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "edge.md").read_text()


def test_the_sweep_files_of_the_page_are_valid() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert [build_sweep(parse_document(text, "edge.md")).is_open for text in blocks] == [True, True, False]


@pytest.mark.slow
def test_the_commands_of_the_page_give_an_edge_with_an_interval(tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    shutil.copy(ROOT / "sweeps" / "fit_edge.yaml", tmp_path / "sweeps")
    write_files(PAGE, tmp_path)
    for path in tmp_path.rglob("*.yaml"):
        path.write_text(re.sub(r"steps: \d+", "steps: 60", path.read_text()).replace("trials: 128", "trials: 48"))
    printed = run_commands(PAGE, tmp_path)
    assert len(re.findall(r"^beta2=\S+ +(stable|not stable|an edge)", printed, re.MULTILINE)) >= 9 + 3
    assert re.search(r"stable up to lr \S+ \(\S+ \.\. \S+\)", printed)
    assert (tmp_path / "results" / "coarse" / "heatmap.png").is_file()
    assert re.search(r"^fit_edge_warmup against fit_edge: the stable area changes by \S+ points", printed, re.MULTILINE)
    assert (tmp_path / "results" / "compare" / "fit_edge_vs_fit_edge_warmup.png").is_file()
    assert re.search(r"^safe: low validation loss against a wide margin to the edge$", printed, re.MULTILINE)
    rows = (tmp_path / "front.csv").read_text().splitlines()
    assert rows[0] == "lr,beta2,state,num_seeds,validation_loss,margin,kind,limit"
    assert len(rows) == 1 + 48
    table = (tmp_path / "edge.csv").read_text().splitlines()
    assert table[0] == "beta2,edge,low,high,kind"
    assert len(table) > PLACES_ACROSS
