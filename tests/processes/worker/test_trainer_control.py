"""Rules of a sweep act on a training loop of one's own: the run, its ledger, its rows and its log."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from custom_cases import SWEEP, only_pack, reports_of, sweep_in, trained

from orchestrator.base.packs import Failed, Paused
from orchestrator.detection.rows import read_rows
from orchestrator.sweepfile.spec import load_sweep
from orchestrator.worker.run import run_pack

NANO = Path(__file__).parents[3] / "sweeps" / "control" / "nano.py"
# A small GPT in plain torch, above its edge.
MAP = """
name: nano
objective: {command: [python, nano.py, "--lr={lr}", "--steps={steps}", "--seed={seed}"]}
steps: 100
seeds: [0]
axes:
  lr: {values: [0.04]}
  control:
    values:
      - []
      - [{name: half from the start, on: step, above: 0, do: {lr: x0.5}, every: 1}]
      - [{name: halve, on: grad_norm, above: 2, do: {lr: x0.5}, every: 1, at_most: 4, cool_down: 10}]
tracking: {enabled: false}
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SimpleNamespace]:
    folder = tmp_path_factory.mktemp("nano")
    shutil.copy(NANO, folder)
    (folder / "nano.yaml").write_text(MAP)
    found = trained(load_sweep(folder / "nano.yaml"), folder)
    trials = folder / "results" / "nano" / "trials"
    for row in found:
        row.rows = read_rows(trials / row.trial_id / "rows.jsonl")
        row.output = (trials / row.trial_id / "output.log").read_text()
    return {row.cell["control"][0]["name"] if row.cell["control"] else "none": row for row in found}


@pytest.mark.slow
def test_a_rule_saves_a_small_gpt_that_is_lost_without_it(rows: dict[str, SimpleNamespace]) -> None:
    assert {name: row.outcome for name, row in rows.items()} == {
        "none": "diverged", "half from the start": "stable", "halve": "stable",
    }  # fmt: skip
    assert rows["halve"].steps_done == 100
    assert rows["none"].steps_done < 100
    assert rows["halve"].final_loss < rows["none"].initial_loss / 2
    assert rows["none"].fired == ()


@pytest.mark.slow
def test_what_fired_is_in_the_ledger_in_the_rows_and_in_the_log(rows: dict[str, SimpleNamespace]) -> None:
    row = rows["halve"]
    first = row.fired[0]
    assert first["on"] == "grad_norm"
    assert first["value"] > first["above"] == 2
    assert first["did"] == {"at": first["step"], "set": {"lr": "x0.5"}}
    assert [one for line in row.rows for one in line.get("fired", ())] == list(row.fired)
    assert f"step {first['step']}: lr x0.5 at {first['step']} (grad_norm " in row.output
    # The same run until the rule fires, and then another one.
    alone, step = rows["none"].curve["loss"], first["step"]
    assert list(row.curve["loss"][: step + 1]) == list(alone[: step + 1])
    assert row.curve["loss"][step + 1] != alone[step + 1]


LOOP = """
import json, pathlib, sys
from orchestrator import Watch

lr, steps, folder = float(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
kept, watch = folder / "x.json", Watch()
step, x, factor = json.loads(kept.read_text()) if kept.is_file() else (0, 2.0, 1.0)
while step < steps:
    action = watch.report(step, x * x / 2 + 1, abs(x))
    if action:
        break
    x -= 0 if action.skip else lr * action.factor * x
    step += 1
    if step == 30:
        kept.write_text(json.dumps((step, x, factor)))
    if step == 40 and not (folder / "paused").exists():
        (folder / "paused").touch()
        import time
        time.sleep(60)
"""
RULED = SWEEP.replace(
    'command: [python, train.py, "{lr}", "{steps}", "{seed}"]',
    'command: [python, train.py, "{lr}", "{steps}", "{folder}"]\n  resume: {checkpoint: "{folder}/x.json"}',
).replace("[0, 1]", "[0]").replace("[0.1, 1.0, 3.0]", "[2.1]") + (
    "control:\n  - {on: step, above: 9, every: 8, do: [{lr: x0.9}, {skip: 3}], at_most: 5, over: 4, calm: 50}\n"
    "resources: {stall_timeout_s: 100}\n"
)  # fmt: skip


def test_a_trial_that_was_paused_goes_on_with_the_counts_of_its_rules(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path, LOOP.replace("time.sleep(60)", ""), RULED)
    (whole,) = reports_of(sweep, tmp_path / "whole")[-1].finished
    sweep = sweep_in(tmp_path, LOOP, RULED)
    pack = only_pack(sweep, tmp_path)
    rows = tmp_path / "trials" / pack.members[0].trial_id / "rows.jsonl"
    paused = list(run_pack(pack, lambda: rows.is_file() and len(read_rows(rows)) == 40))[-1]
    assert isinstance(paused.ending, Paused)
    (again,) = list(run_pack(pack))[-1].finished
    assert again.fired == whole.fired
    assert [one["step"] for one in again.fired] == [16, 24, 32, 40, 48]
    assert (again.outcome, again.curve_digest) == (whole.outcome, whole.curve_digest)


def test_rules_for_a_trainer_that_only_prints_are_an_error(tmp_path: Path) -> None:
    text = SWEEP.replace("[0, 1]", "[0]") + "control: [{on: loss, above: 2, do: {lr: x0.5}}]\n"
    ending = reports_of(sweep_in(tmp_path, text=text), tmp_path)[-1].ending
    assert isinstance(ending, Failed)
    assert "rules of `control` act in a trainer that reports to orchestrator.Watch only" in ending.error
