"""Control through the command line: an axis of rules is trained, told, compared, and its firings are explained."""

import csv
import json
import re
from pathlib import Path

import pytest
from page_cases import run_commands, section, write_files

from objectives.control import SIGNALS, Rule

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "control.md").read_text()
SWEEP = """
name: ruled
objective: function_fit
steps: 120
seeds: [0]
fixed: {beta2: 0.99, width: 16, num_points: 40}
axes:
  control:
    values:
      - []
      - [{name: halve, on: curvature, above: 0.5, do: {lr: x0.5}, every: 5, at_most: 2, cool_down: 10, over: 5}]
      - [{on: grad_norm, above: 1.5, do: {clip_to_quantile: 0.5}, every: 5}]
  lr: {values: [0.01, 0.3]}
resources: {pack: 6}
telemetry: {every: null}
tracking: {enabled: false}
"""


def test_an_axis_of_rules_goes_through_the_commands_and_tells_what_fired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ruled.yaml").write_text(SWEEP)
    code, said = command_line("run", "ruled.yaml", "--executor", "inline")
    assert code == 0, said
    labels = ["none", "halve", "grad_norm > 1.5: clip to quantile 0.5"]
    rows = list(csv.DictReader((tmp_path / "results" / "ruled" / "trials.csv").read_text().splitlines()))
    assert [row["control"] for row in rows[::2]] == [*labels[:2], f"{labels[2]}, every 5"]
    halved = next(row for row in rows if row["control"] == "halve" and row["lr"] == "0.3")
    assert halved["fired"].startswith("lr x0.5 at ")
    assert "(curvature " in halved["fired"]
    assert [row["fired"] for row in rows if row["control"] == "none"] == ["", ""]

    code, said = command_line("diagnose", "ruled", "--trial", halved["trial_id"], "--json", "told.json")
    assert code == 0, said
    told = json.loads((tmp_path / "told.json").read_text())["fired"]
    assert told[0]["on"] == "curvature"
    assert told[0]["value"] > told[0]["above"] == 0.5
    assert told[0]["did"] == {"at": told[0]["step"] + 1, "set": {"lr": "x0.5"}, "over": 5}
    assert "control: halve" in said
    assert "its rules did: lr x0.5 at " in said

    code, said = command_line("explain", "ruled")
    assert code == 0, said
    assert re.search(r"control rules acted in [1-4] of the 4 trials", said)

    code, said = command_line("compare", "ruled", "--by", "control")
    assert code == 0, said
    assert "Against control=none" in said
    assert "\nhalve " in said
    assert "rules did" in (tmp_path / "results" / "ruled" / "report.html").read_text()


@pytest.mark.slow
def test_the_commands_of_the_control_page_work_on_its_example(tmp_path: Path) -> None:
    use = section(PAGE, "Use it in a sweep")
    write_files(use, tmp_path)
    printed = run_commands(use, tmp_path)
    assert "Against control=none" in printed
    assert "its rules did: " in printed


@pytest.mark.slow
def test_the_loop_of_the_control_page_is_saved_by_its_rule(tmp_path: Path) -> None:
    loop = section(PAGE, "In a training loop of your own")
    write_files(loop, tmp_path)
    said = run_commands(loop, tmp_path)
    assert said == "stable [{'at': 150, 'skip': 1}]\n"


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps" / "control").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_page_names_every_sweep_that_ships_for_it(path: Path) -> None:
    assert f"](../sweeps/control/{path.name})" in PAGE


def test_the_page_has_every_key_of_a_rule_with_its_default_and_every_signal() -> None:
    rows = {
        key: default for key, default in re.findall(r"^\| `(\w+)` \|([^|]*)\|", section(PAGE, "A rule"), re.MULTILINE)
    }
    expected = {
        name: "" if field.is_required() else "null" if field.default is None else str(field.default)
        for name, field in Rule.model_fields.items()
    }
    assert {key: default.strip() for key, default in rows.items()} == expected
    assert set(re.findall(r"^\| `(\w+)`", section(PAGE, "The signals"), re.MULTILINE)) - {"on"} == {*SIGNALS}
