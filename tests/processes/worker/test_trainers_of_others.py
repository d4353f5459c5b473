"""Scripts in the style of code that people have, unmodified: right at the first try, or a question."""

import json
import re
from pathlib import Path

import pytest
from custom_cases import SWEEP, TRAIN, sweep_in, trained
from stored_sweeps import in_tensorboard
from typer.testing import CliRunner

from orchestrator.base.errors import InputError
from orchestrator.base.vocabulary import STARTED_LATER
from orchestrator.cli import app
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.recommendation import recommend
from orchestrator.maps.table import read_table
from orchestrator.mirrors.mirror import Mirror
from orchestrator.mirrors.tracker import tracker_class
from orchestrator.sweepfile.sections import TrackingConfig

ONE_SEED = SWEEP.replace("[0, 1]", "[0]")

# Hugging Face's Trainer filters a loss that is not finite: it prints 0, every ten steps.
FILTERED = """
import math, sys
lr, steps = float(sys.argv[1]), int(sys.argv[2])
for step in range(10, steps + 1, 10):
    loss = 1 + 2 * math.exp(-step / 100)
    print({"loss": "0" if lr > 2 else f"{loss:.4f}", "grad_norm": "nan" if lr > 2 else "1.1", "epoch": step / 100})
"""
# PyTorch's ImageNet example on a set that it overfits: the training goes on well, the evaluation does not.
OVERFITTING = """
import sys
for epoch in range(8):
    for i in range(0, 100, 10):
        t = 100 * epoch + i
        print(f"Epoch: [{epoch}][{i:3d}/100]\\tTime  0.5 ( 0.5)\\tLoss {2.5 / (1 + t / 100):.4e} (2.0)\\tAcc@1 1.0")
    for i in range(0, 100, 10):
        print(f"Test: [{i:2d}/100]\\tTime 0.1 ( 0.1)\\tLoss {2.4 + 2 * epoch + i / 100:.4e} (2.0)\\tAcc@1 1.0")
"""
# nanoGPT at a learning rate at which the start blows up, and only the decay of the rate brings it back.
BLOWN_UP = """
import math
for step in range(0, 201):
    x = step / 200
    loss = 4.2 + (1261 * math.sin(math.pi * min(1, x * 1.1)) if 4 < step < 180 else 0.0) - 0.5 * x
    if step % 100 == 0:
        print(f"step {step}: train loss {loss:.4f}, val loss {loss + 0.1:.4f}")
    print(f"iter {step}: loss {loss:.4f}, time 12.00ms, mfu 1.00%")
"""
TWO_KINDS = """
for step in range(60):
    print(f"[{step}] loss {3 - step / 60}")
    print(f"pass {step} of all: loss {4 - step / 60}")
"""


def only(tmp_path: Path, script: str, text: str = ONE_SEED):
    return trained(sweep_in(tmp_path, script, text.replace("[0.1, 1.0, 3.0]", "[0.1]")), tmp_path)[0]


def test_a_loss_that_was_filtered_to_zero_is_a_divergence_and_is_not_recommended(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path, FILTERED, ONE_SEED.replace("steps: 60", "steps: 300"))
    rows = {row.cell["lr"]: row for row in trained(sweep, tmp_path)}
    assert (rows[1.0].outcome, rows[3.0].outcome) == ("stable", "diverged")
    assert rows[3.0].best_loss is None
    with LedgerReader(tmp_path / "results" / "mine" / "ledger.db") as ledger:
        assert recommend(read_table(ledger), 1.0).chosen.setting["lr"] < 3.0


def test_the_evaluation_of_a_run_that_overfits_is_no_divergence(tmp_path: Path) -> None:
    row = only(tmp_path, OVERFITTING, ONE_SEED.replace("steps: 60", "steps: 800"))
    assert row.outcome == "stable", row.reason
    assert len(row.curve["loss"]) == 80
    assert row.validation_loss == pytest.approx(2.4 + 14 + 0.9)


def test_a_start_that_blew_up_is_not_stable(tmp_path: Path) -> None:
    row = only(tmp_path, BLOWN_UP)
    assert row.outcome in ("spiked", "diverged")
    assert row.onset_step == 5
    assert row.validation_loss is not None


def test_where_two_kinds_of_lines_have_a_loss_the_trial_asks_which(tmp_path: Path) -> None:
    row = only(tmp_path, TWO_KINDS)
    assert (row.status, row.outcome) == ("errored", None)
    assert "two kinds of lines have a loss, 'loss' in 60 and 'pass_of_all/loss' in 60" in row.reason
    told = ONE_SEED.replace('"{seed}"]', '"{seed}"]\n  metrics: {loss: loss}')
    assert only(tmp_path, TWO_KINDS, told.replace("name: mine", "name: told")).outcome == "stable", (
        "once the loss is named"
    )


def test_few_losses_are_unknown_and_the_reason_says_how_many_were_read(tmp_path: Path) -> None:
    script = "for step in range(0, 60, 10):\n    print(f'step {step} loss {3 - step / 30}')\n"
    row = only(tmp_path, script)
    assert row.outcome == "unknown"
    assert row.reason == (
        "6 losses are too few to judge; 6 losses for 60 steps (loss: loss; step: step; gradient norm: none)"
    )
    with LedgerReader(tmp_path / "results" / "mine" / "ledger.db") as ledger:
        assert [row.saved_steps for row in ledger.trials()] == [0], "nothing saved the steps after its last loss"


def test_a_word_a_number_and_a_placeholder_need_no_quotes(tmp_path: Path) -> None:
    text = ONE_SEED.replace('[python, train.py, "{lr}", "{steps}", "{seed}"]', "[python, train.py, {lr}, {steps}, 0]")
    rows = trained(sweep_in(tmp_path, text=text), tmp_path)
    text = ONE_SEED.replace('[python, train.py, "{lr}", "{steps}", "{seed}"]', '"python train.py {lr} {steps} 0"')
    again = trained(sweep_in(tmp_path, text=text.replace("name: mine", "name: again")), tmp_path)
    assert [row.outcome for row in rows] == [row.outcome for row in again] == ["stable", "stable", "diverged"]


def test_the_distance_of_losses_can_be_told(tmp_path: Path) -> None:
    script = "for i in range(30):\n    print(f'loss {3 - i / 30}')\n"
    row = only(tmp_path, script, ONE_SEED.replace('"{seed}"]', '"{seed}"]\n  metrics: {every: 10}'))
    assert row.curve["step"].tolist() == list(range(0, 300, 10))


def test_the_newest_of_several_checkpoints_is_passed_on(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "out = sys.argv[sys.argv.index('--out') + 1]\n"
        "first = 40 if '--from' in sys.argv else 0\n"
        "for step in range(first, 60):\n"
        "    print(f'step {step} loss {3 - step / 60}', flush=True)\n"
        "    if step in (20, 30):\n"
        "        open(f'{out}/checkpoint-{step}', 'w').close()\n"
        "        os.utime(f'{out}/checkpoint-{step}', (step, step))\n"
        "    if step == 39 and not first:\n"
        "        os.kill(os.getpid(), 9)\n"
        "open('seen', 'w').write(' '.join(sys.argv))\n"
    )
    text = ONE_SEED.replace(
        '[python, train.py, "{lr}", "{steps}", "{seed}"]',
        '[python, train.py, {lr}, --out, "{folder}"]\n'
        '  resume: {checkpoint: "{folder}/checkpoint-*", arguments: [--from, "{checkpoint}"]}',
    )
    row = only(tmp_path, script, text)
    assert row.outcome == "stable"
    assert row.curve["step"].tolist() == list(range(60))
    assert (tmp_path / "seen").read_text().split()[-1].endswith("/checkpoint-30")


def test_an_abort_of_gloo_after_the_last_step_is_no_error(tmp_path: Path) -> None:
    script = "import os, sys\nfor step in range({}):\n    print(f'step {{step}} loss {{3 - step / 60}}')\n" + (
        "print('terminate called without an active exception', file=sys.stderr, flush=True)\nos.abort()\n"
    )
    assert only(tmp_path, script.format(60)).outcome == "stable"
    row = only(tmp_path, script.format(30), ONE_SEED.replace("name: mine", "name: early"))
    assert (row.status, row.outcome) == ("errored", None)


BROKEN = "import sys\nraise SystemExit(f'no data for {sys.argv[1]}')\n"


@pytest.mark.usefixtures("without_files")
def test_a_run_whose_first_trials_fail_alike_starts_no_others(tmp_path: Path) -> None:
    summary = run_sweep(sweep_in(tmp_path, BROKEN), tmp_path / "results" / "mine", InlineExecutor)
    assert summary.exit_code == 3
    assert summary.counts == {"errored": 3, "planned": 3}, "the third had been submitted"
    said = CliRunner().invoke(app, ["run", str(tmp_path / "mine.yaml"), "--executor", "inline", "--results", str(tmp_path / "r")])  # fmt: skip # noqa: E501
    assert said.output.count("no other trial is started: the first 2 failed alike before their first loss") == 1
    assert "no data for 0.1" in said.output


def test_a_run_goes_on_where_trials_fail_for_different_reasons_or_some_have_trained(tmp_path: Path) -> None:
    different = "import sys\nraise SystemExit({'0.1': 'no data', '1.0': 'no room', '3.0': 'no luck'}[sys.argv[1]])\n"
    summary = run_sweep(sweep_in(tmp_path, different, ONE_SEED), tmp_path / "a" / "mine", InlineExecutor)
    assert summary.counts == {"errored": 3}
    later = "import sys\nif sys.argv[1] != '0.1': raise SystemExit('no data')\n" + (
        "for step in range(60): print(f'step {step} loss {3 - step / 60}')\n"
    )
    summary = run_sweep(sweep_in(tmp_path, later), tmp_path / "b" / "mine", InlineExecutor)
    assert summary.counts == {"stable": 2, "errored": 4}


def checked(tmp_path: Path, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check", str(tmp_path / "mine.yaml"), *options], catch_exceptions=False)
    return done.exit_code, done.output


def test_check_shows_what_would_be_read_and_stores_nothing(tmp_path: Path, monkeypatch) -> None:
    sweep_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    code, said = checked(tmp_path)
    assert code == 0
    assert "read:     loss: loss; step: step; gradient norm: norm" in said
    assert "its losses are read: 60 losses in a whole trial" in said
    assert "6 of the sweep about 0:0" in said
    assert not (tmp_path / "results").exists()


SAYS_IN_UNITS = "for i in range({}): print('global_step', 128 * (i + 1), 'loss', 3 - 0.01 * i)\n"


@pytest.mark.parametrize(
    ("script", "code", "sentence", "few"),
    [
        ("print('step 1 loss 3.0')\n", 3, "too few losses are read: 1 loss in a whole trial", "train more steps"),
        (SAYS_IN_UNITS.format(31), 0, "few losses are read: 31 losses", "in units of 128. If it logs every 128 steps"),
        (SAYS_IN_UNITS.format(60), 0, "its losses are read: 60 losses in a whole trial", None),
    ],
)
def test_check_begins_with_how_many_losses_a_whole_trial_has(
    tmp_path: Path, script: str, code: int, sentence: str, few: str | None
) -> None:
    sweep_in(tmp_path, script)
    found, said = checked(tmp_path, "--losses", "90", "--json", str(tmp_path / "said.json"))
    answer = json.loads((tmp_path / "said.json").read_text())
    assert found == code
    assert answer["sentence"].startswith(sentence)
    assert answer["has_ended"]
    assert ("few:      " in said) == (few is not None)
    assert few is None or few in said


def test_check_of_a_script_that_says_nothing_yet_does_not_blame_its_lines(tmp_path: Path) -> None:
    sweep_in(tmp_path, "import time\ntime.sleep(60)\n")
    code, said = checked(tmp_path, "--timeout", "1")
    assert code == 3
    assert "no output yet in 1 s" in said
    assert "--timeout" in said


def test_check_proposes_settings_that_the_command_keeps(tmp_path: Path) -> None:
    words = '"{seed}", --warmup-iters=30, --adam_beta2, "0.95", "--wd={lr}", "--clip={steps}"]'
    sweep_in(tmp_path, TRAIN, SWEEP.replace('"{seed}"]', words))
    _, said = checked(tmp_path, "--json", str(tmp_path / "said.json"))
    assert json.loads((tmp_path / "said.json").read_text())["facts"] == {"warmup": 30, "beta2": 0.95}
    assert "facts: {warmup: 30, beta2: 0.95}" in said
    sweep_in(tmp_path, TRAIN, SWEEP.replace('"{seed}"]', words) + "facts: {warmup: 30, beta2: 0.95}\n")
    assert "facts" not in checked(tmp_path)[1]


def test_check_estimates_the_time_from_steps_and_not_from_the_start(tmp_path: Path) -> None:
    script = (
        "import time\ntime.sleep(1)\n"
        "for step in range(400):\n    time.sleep(0.01)\n    print(f'step {step} loss {3 - step / 600}')\n"
    )
    sweep_in(tmp_path, script, ONE_SEED.replace("steps: 60", "steps: 400") + "resources: {parallel: 1}\n")
    code, said = checked(tmp_path)
    took = re.search(r"a whole trial takes about ([\d.]+) s, all 3 of the sweep about \d:\d\d \(1 at a time", said)
    assert code == 0
    assert took, said
    assert 4 < float(took[1]) < 10, "a second of start and four of steps, on a machine that may be busy"
    CliRunner().invoke(app, ["plan", str(tmp_path / "mine.yaml"), "--json", str(tmp_path / "plan.json")])
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["seconds"] == pytest.approx(3 * float(took[1]), rel=0.1)


def test_plan_says_what_estimates_the_time_of_a_script(tmp_path: Path) -> None:
    sweep_in(tmp_path)
    said = CliRunner().invoke(app, ["plan", str(tmp_path / "mine.yaml")], catch_exceptions=False).output
    assert "time:     `sweep check FILE` estimates it from one trial" in said


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (BROKEN, "no data for 0.1"),
        ("print('nothing')\n", "without a loss"),
        (TWO_KINDS, "two kinds of lines have a loss"),
    ],
)
def test_check_says_what_is_wrong_before_a_sweep_is_started(tmp_path: Path, script: str, says: str) -> None:
    sweep_in(tmp_path, script)
    code, said = checked(tmp_path, "--losses", "50")
    assert code == 3
    assert says in said


def test_check_refuses_a_sweep_of_a_built_in_objective(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: q\nobjective: quadratic\nsteps: 20\naxes: {lr: {values: [0.1]}}\n")
    with pytest.raises(InputError, match="is not a custom trainer, so there is nothing to check"):
        checked(tmp_path)


def test_plan_says_that_seeds_change_nothing(tmp_path: Path) -> None:
    sweep_in(tmp_path, text=SWEEP.replace(', "{seed}"]', "]"))
    said = CliRunner().invoke(app, ["plan", str(tmp_path / "mine.yaml")], catch_exceptions=False).output
    assert "no {seed} in the command: the 2 seeds of a cell train the same run" in said


@pytest.mark.usefixtures("without_files")
def test_seeds_that_repeat_a_run_are_counted_once_and_said(tmp_path: Path) -> None:
    script = "for step in range(60):\n    print(f'step {step} loss {3 - step / 60}')\n"
    text = SWEEP.replace(', "{seed}"]', "]")
    trained(sweep_in(tmp_path, script, text), tmp_path)
    with LedgerReader(tmp_path / "results" / "mine" / "ledger.db") as ledger:
        stability = cell_map(read_table(ledger))
        assert recommend(read_table(ledger), 1.0).chosen.num_seeds == 1
    assert [(cell.num_seeds, cell.num_finished) for cell in stability.cells.values()] == [(1, 1)] * 3
    assert stability.note == "3 seeds repeat another's run to the last digit and are not counted"
    options = ["--executor", "inline", "--results", str(tmp_path / "results")]
    said = CliRunner().invoke(app, ["run", str(tmp_path / "mine.yaml"), *options], catch_exceptions=False).output
    assert (
        "3 seeds repeat another's run to the last digit and are not counted: does the command pass {seed} on?" in said
    )
    trained(sweep_in(tmp_path, TRAIN, SWEEP.replace("name: mine", "name: seeded")), tmp_path)
    with LedgerReader(tmp_path / "results" / "seeded" / "ledger.db") as ledger:
        assert cell_map(read_table(ledger)).note == ""


def test_a_resumed_run_that_counts_from_zero_again_is_an_error_and_one_that_had_been_at_its_end_is_not(
    tmp_path: Path,
) -> None:
    script = (
        "import os, sys\n"
        "out, first = sys.argv[2], int(sys.argv[3]) if '--from' in sys.argv else 0\n"
        "open(f'{out}/ckpt', 'w').close()\n"
        "for step in range(first, 30 if first else 60):\n"
        "    print(f'step {step} loss {3 - step / 60}', flush=True)\n"
        "if '--from' not in sys.argv:\n    os.kill(os.getpid(), 9)\n"
    )
    text = ONE_SEED.replace(
        '[python, train.py, "{lr}", "{steps}", "{seed}"]',
        '[python, train.py, {lr}, "{folder}"]\n  resume: {checkpoint: "{folder}/ckpt", arguments: ["1", --from]}',
    )
    row = only(tmp_path, script, text)
    assert row.status == "errored"
    assert "printed no step beyond 59: steps must go on from the checkpoint" in row.reason
    row = only(tmp_path, script.replace("30 if first else 60", "60"), text.replace("name: mine", "name: ended"))
    assert row.outcome == "stable"


# PyTorch's word_language_model: its first loss is a mean over many batches, in which a high learning rate has blown up.
WORDS = """
import sys
lr = float(sys.argv[1])
for batch in range(200, 8001, 200):
    loss = 49 + 11 * 0.9 ** (batch / 200 - 1) if lr > 100 else 6 + 9 * 0.9 ** (batch / 200 - 1)
    print(f"| epoch   1 | {batch:5d}/ 8000 batches | lr {lr:02.2f} | ms/batch 9.00 | loss {loss:5.2f} | ppl  1.00")
"""


def test_a_blow_up_before_the_first_loss_is_unstable_on_the_map_and_in_trackers(tmp_path: Path) -> None:
    text = ONE_SEED.replace("[0.1, 1.0, 3.0]", "[1.0, 5.0, 20.0, 200.0]").replace("steps: 60", "steps: 8000")
    sweep = sweep_in(tmp_path, WORDS, text)
    assert [row.outcome for row in trained(sweep, tmp_path)] == ["stable"] * 4, "what each says of itself"
    folder = tmp_path / "results" / "mine"
    with LedgerReader(folder / "ledger.db") as ledger:
        table = read_table(ledger)
    assert [row.outcome for row in table.trials] == ["stable"] * 3 + ["diverged"]
    assert "began at 15" in table.trials[-1].reason
    summary = run_sweep(sweep, tmp_path / "again", InlineExecutor)
    assert summary.counts == {"stable": 3, "diverged": 1}, "what the run says at its end is what its map says"
    with Mirror(folder, TrackingConfig(), tracker=tracker_class("tensorboard")) as mirror:
        with LedgerReader(folder / "ledger.db") as ledger:
            mirror.mirror_trials(ledger, [row.trial_id for row in table.trials])
        mirror.mirror_sweep([])
    stored = in_tensorboard(folder)
    assert sorted(trial["outcome"] for trial in stored.trials.values()) == ["diverged"] + ["stable"] * 3


# It goes on from a checkpoint in a folder that all trials share, as PyTorch's examples do with a fixed path.
SHARING = """
import os, sys
steps, path = int(sys.argv[2]), "checkpoint.txt"
first = int(open(path).read()) if os.path.exists(path) else 0
for step in range(first, first + steps):
    print(f"step {step} loss {1 + 3 * 0.99 ** step}", flush=True)
open(path, "w").write(str(first + steps))
"""


def test_a_checked_trainer_does_not_inherit_the_url_of_the_receiver(tmp_path: Path, monkeypatch) -> None:
    sweep_in(tmp_path, "import os\nassert 'TO' not in os.environ\n" + TRAIN, ONE_SEED + "notify: {url_from: TO}\n")
    monkeypatch.setenv("TO", "json://secret")
    assert "its losses are read: 60 losses" in checked(tmp_path)[1]


def test_trials_that_continue_each_other_through_a_shared_checkpoint_are_said(tmp_path: Path, monkeypatch) -> None:
    trials = trained(sweep_in(tmp_path, SHARING, ONE_SEED), tmp_path)
    assert [STARTED_LATER in trial.reason for trial in trials] == [False, True, True]
    with LedgerReader(tmp_path / "results" / "mine" / "ledger.db") as ledger:
        assert "2 trials began" in cell_map(read_table(ledger)).note
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["check", "mine.yaml"]).output
    assert "begins:" in said, "the sweep has left a checkpoint, which the check goes on from"


def test_trials_that_all_begin_at_one_later_step_were_trained_before_and_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.txt").write_text("500")
    script = SHARING.replace('open(path, "w")', 'open(path + ".new", "w")')
    trials = trained(sweep_in(tmp_path, script, ONE_SEED), tmp_path)
    assert all("from step 500 on" in trial.reason for trial in trials)
    with LedgerReader(tmp_path / "results" / "mine" / "ledger.db") as ledger:
        assert "began" not in cell_map(read_table(ledger)).note
