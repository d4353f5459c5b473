"""docs/tutorial.md: its commands run as shown; with fewer steps, since numbers differ anyway."""

import re
from pathlib import Path

import pytest
from page_cases import run_commands

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()


@pytest.mark.slow
def test_the_commands_of_the_tutorial_give_an_edge_a_cause_and_a_recommendation(tmp_path: Path) -> None:
    short = PAGE.replace("--steps 200", "--steps 40").replace("--steps 800", "--steps 60")
    assert short.count("--steps 40") == 2
    printed = run_commands(short, tmp_path)
    assert re.search(r"^warmup=0 +edge near lr=", printed, re.MULTILINE)
    assert re.search(r"^cause: ", printed, re.MULTILINE)
    assert re.search(r"^inside stable territory", printed, re.MULTILINE)
    assert re.search(r"^qk_norm=true against qk_norm=false: the stable area changes by", printed, re.MULTILINE)
    assert len(re.findall(r"^lr=[^:]*: median validation loss", printed, re.MULTILINE)) == 3  # recommended thrice
    assert (tmp_path / "edge.png").is_file()
