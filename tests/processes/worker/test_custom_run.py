import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from custom_cases import SWEEP, TRAIN, only_pack, reports_of, sweep_in, trained
from tiers import one_of

from orchestrator.base.packs import Failed, Lost, Paused, RungThreshold
from orchestrator.base.processes import is_alive
from orchestrator.maps.replay import Curve, detect
from orchestrator.sweepfile.custom_trainer import CustomTrainer
from orchestrator.worker.launcher import close_server
from orchestrator.worker.run import run_pack

# Says its losses, and then does what the test is about.
HEAD = 'import os, signal, subprocess, sys, time\nprint("step 0 loss 3.0")\nprint("step 1 loss 2.9")\n'
ONE = SWEEP.replace("[0.1, 1.0, 3.0]", "[0.1]").replace("[0, 1]", "[0]")


@pytest.fixture(params=["program", pytest.param("fork", marks=pytest.mark.slow)], autouse=True)
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How trials start; what a run does must not depend on it."""
    if request.param == "fork":
        of_python = property(
            lambda trainer: "auto" if "train.py" in trainer.summary or "(" in trainer.summary else None
        )
        monkeypatch.setattr(CustomTrainer, "preload", of_python)
    yield request.param
    close_server()


def last_of(tmp_path: Path, script: str, text: str = ONE):
    return reports_of(sweep_in(tmp_path, script, text), tmp_path)[-1]


def test_an_unmodified_script_gets_outcomes_curves_and_its_own_step_count(tmp_path: Path) -> None:
    rows = trained(sweep_in(tmp_path), tmp_path)
    assert [(row.cell["lr"], row.outcome) for row in rows] == [
        (0.1, "stable"), (0.1, "stable"), (1.0, "stable"), (1.0, "stable"), (3.0, "diverged"), (3.0, "diverged"),
    ]  # fmt: skip
    stable = rows[0]
    x = 2.0 * 0.9 ** np.arange(60)
    np.testing.assert_array_equal(stable.curve["step"], np.arange(60))
    np.testing.assert_allclose(stable.curve["loss"], x * x / 2 + 1, rtol=1e-8)
    np.testing.assert_allclose(stable.curve["grad_norm"], x, rtol=1e-8)
    assert stable.steps_done == 60
    diverged = rows[-1]
    assert diverged.steps_done == diverged.verdict_step + 1 == len(diverged.curve["step"]) < 60


def test_a_script_is_judged_as_its_log_would_be(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)
    for row in trained(sweep, tmp_path):
        curve = row.curve
        columns = {name: curve[name] for name in ("loss", "grad_norm")}
        (record,) = detect([Curve(curve["step"], columns, all_steps=row.steps)], sweep.stopping)
        assert record.lost_step == row.verdict_step
        assert record.recent_loss == (row.final_loss if record.is_finite else record.recent_loss)


def test_a_run_is_ended_by_sigterm_when_it_is_lost(tmp_path: Path) -> None:
    script = HEAD + (
        'signal.signal(signal.SIGTERM, lambda *_: (open("asked", "w").close(), sys.exit(0)))\n'
        'print("step 2 loss nan")\ntime.sleep(1000)\n'
    )
    last = last_of(tmp_path, script)
    assert (tmp_path / "asked").exists()
    (result,) = last.finished
    assert (result.outcome, result.steps_done) == ("diverged", 3)


def test_a_lost_run_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    script = HEAD + 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint("step 2 loss nan")\ntime.sleep(1000)\n'
    began = time.monotonic()
    last = last_of(tmp_path, script, ONE.replace('"{seed}"]', '"{seed}"]\n  grace_s: 0.5'))
    assert time.monotonic() - began > 0.5
    assert last.finished[0].outcome == "diverged"


def test_children_and_daemons_end_with_the_run(tmp_path: Path) -> None:
    script = HEAD + (
        'child = subprocess.Popen(["sleep", "1000"])\n'
        'daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)\n'
        'open("pids", "w").write(f"{child.pid} {daemon.pid}")\n'
    )
    last = last_of(tmp_path, script)
    assert last.error is None
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    deadline = time.monotonic() + 600
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_alive, pids))


def test_a_crash_is_an_error_with_the_scripts_last_words(tmp_path: Path) -> None:
    last = last_of(tmp_path, HEAD + 'raise RuntimeError("no such layer")\n')
    assert last.finished == ()
    assert last.error.splitlines()[-1] == "it ended with exit code 1: RuntimeError: no such layer"
    assert "Traceback" in last.error
    assert isinstance(last.ending, Failed)


def test_a_crash_after_a_loss_that_is_not_finite_is_a_divergence(tmp_path: Path) -> None:
    last = last_of(tmp_path, HEAD + 'print("step 2 loss nan")\nsys.exit("loss is nan")\n')
    assert last.error is None
    assert last.finished[0].outcome == "diverged"


GIVES_UP = {
    "after losses": (HEAD + 'print("Loss is nan, stopping training")\nsys.exit(1)\n', 2),
    "before the first": ('raise FloatingPointError("gradients are Nan/Inf")\n', 0),
    "by an exception": (HEAD + 'import math\nprint("step 2 loss 679")\nmath.exp(710)\n', 3),
}


@pytest.mark.parametrize(("script", "steps"), GIVES_UP.values(), ids=GIVES_UP)
def test_a_script_that_stops_itself_since_it_diverged_has_diverged(tmp_path: Path, script: str, steps: int) -> None:
    (row,) = trained(sweep_in(tmp_path, script, ONE), tmp_path)
    assert (row.status, row.outcome, row.steps_done) == ("finished", "diverged", steps)
    assert row.onset_step == max(0, steps - 1)


def test_a_pattern_says_what_means_that_a_script_diverged(tmp_path: Path) -> None:
    script = HEAD + 'print("giving up: boom")\n'
    last = last_of(tmp_path, script, ONE.replace('"{seed}"]', '"{seed}"]\n  diverged_if: "boom$"'))
    assert last.finished[0].outcome == "diverged"


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(137)"])
def test_what_was_killed_from_outside_is_lost_and_may_be_tried_again(tmp_path: Path, how: str) -> None:
    last = last_of(tmp_path, HEAD + how)
    assert isinstance(last.ending, Lost)
    assert last.error.splitlines()[-1] == "it was killed by SIGKILL (is memory short?)"


def test_a_segmentation_fault_is_an_error(tmp_path: Path) -> None:
    last = last_of(tmp_path, HEAD + "os.kill(os.getpid(), signal.SIGSEGV)")
    assert isinstance(last.ending, Failed)
    assert "it was killed by SIGSEGV" in last.error


def test_a_script_that_says_no_loss_is_an_error_that_tells_what_it_said(tmp_path: Path) -> None:
    last = last_of(tmp_path, 'print("epoch 1 accuracy 0.5")\n')
    assert "ended with exit code 0 and without a loss" in last.error
    assert "accuracy" in last.error


def test_a_run_that_hangs_is_lost_and_one_that_never_says_a_loss_is_an_error(tmp_path: Path) -> None:
    text = ONE + "resources: {stall_timeout_s: 0.5}\n"
    last = last_of(tmp_path, HEAD * 3 + "time.sleep(1000)", text.replace("0.5", "5"))
    assert isinstance(last.ending, Lost)
    assert "after step 1: it hangs" in last.error
    assert last.ending.is_hung
    last = last_of(tmp_path, 'import time\nprint("starting")\ntime.sleep(1000)', text)
    assert isinstance(last.ending, Failed)
    assert "no loss for 0.5 s" in last.error
    assert last.ending.is_hung


@pytest.mark.parametrize("then", ["break", "pass"], ids=["ends", "for ever"])
def test_a_run_that_rolls_back_again_and_again_and_comes_no_further_has_diverged(tmp_path: Path, then: str) -> None:
    script = f"""
import time
for i in range(10**9):
    step = i if i < 20 else 12 + i % 8
    print(f"step {{step}} loss {{3 - 0.1 * step}}", flush=True)
    if i > 150:
        time.sleep(0.01)
        {then}
"""
    (result,) = last_of(tmp_path, script, ONE + "resources: {stall_timeout_s: 1.0}\n").finished
    assert (result.outcome, result.onset_step, result.steps_done) == ("diverged", 20, 21)
    assert "times from step 19 and came no further" in result.reason


def test_a_hundred_megabytes_of_noise_change_nothing_and_fill_no_disk(tmp_path: Path) -> None:
    script = TRAIN.replace("for step", 'noise = "no news " * 12500\nfor _ in range(1000): print(noise)\nfor step')
    last = last_of(tmp_path, script)
    assert last.finished[0].outcome == "stable"
    (log,) = (tmp_path / "trials").glob("*/output.log")
    assert log.stat().st_size < 9 * 2**20
    assert "bytes left out" in log.read_text()
    assert "step 59" in log.read_text()


def test_a_command_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    last = last_of(tmp_path, TRAIN, ONE.replace("python, train.py", "no-such-program"))
    assert last.error.startswith("'no-such-program' cannot be run")


def test_values_reach_the_command_as_python_writes_them_and_never_a_shell(tmp_path: Path) -> None:
    text = """
name: mine
objective:
  command: [python, train.py, "{lr}", "{eps:.1e}", "{name}", "{flag}", "{none}", "{{lr}}", "{seed}"]
  environment: {LR_TIMES: "{lr}x"}
steps: 5
seeds: [7]
fixed: {lr: 1e-5, eps: 0.001, name: "$(touch owned); *", flag: true, none: null}
tracking: {enabled: false}
"""
    script = 'import json, os, sys\njson.dump([sys.argv[1:], os.environ["LR_TIMES"]], open("seen", "w"))\n' + HEAD
    assert last_of(tmp_path, script, text).error is None
    assert json.loads((tmp_path / "seen").read_text()) == [
        ["1e-05", "1.0e-03", "$(touch owned); *", "True", "None", "{lr}", "7"], "1e-05x",
    ]  # fmt: skip
    assert not (tmp_path / "owned").exists()


def test_each_trial_has_a_folder_and_a_file_with_all_its_values(tmp_path: Path) -> None:
    script = (
        "import json, sys\nfolder, config = sys.argv[1:]\n"
        'settings = json.load(open(config))\nopen(folder + "/made", "w").write(str(settings["config"]["lr"]))\n' + HEAD
    )
    text = ONE.replace('"{lr}", "{steps}", "{seed}"', '"{folder}", "{config}"')
    last_of(tmp_path, script, text)
    (made,) = (tmp_path / "trials").glob("*/made")
    assert made.read_text() == "0.1"


@pytest.mark.parametrize(
    ("metrics", "write"),
    one_of(2, [
        ("{file: '{folder}/log.csv'}", 'w = open(f + "/log.csv", "w")\nw.write("step,loss,grad_norm\\n")\n'
         'say = lambda s, l, n: (w.write(f"{s},{l},{n}\\n"), w.flush())'),
        ("{file: '{folder}/*.jsonl', loss: train/loss}", 'import json\nw = open(f + "/m.jsonl", "w")\n'
         'say = lambda s, l, n: w.write(json.dumps({"step": s, "train": {"loss": l}, "grad_norm": n}) + "\\n")'),
        ("{pattern: '<(?P<step>\\d+)> L=(?P<loss>\\S+) N=(?P<grad_norm>\\S+)'}",
         'say = lambda s, l, n: print(f"<{s}> L={l} N={n}")'),
        ("{}", 'say = lambda s, l, n: print(f"iter={s} loss={l} grad_norm={n}")'),
        ("{}", 'import json\nsay = lambda s, l, n: print(json.dumps({"step": s, "loss": l, "grad_norm": n}))'),
        ("{file: '{folder}/events*'}", 'from tensorboardX import SummaryWriter\nw = SummaryWriter(f)\n'
         'say = lambda s, l, n: (w.add_scalar("loss", l, s), w.add_scalar("grad_norm", n, s), w.flush())'),
    ]),
    ids=["csv", "jsonl", "pattern", "pairs", "json", "tensorboard"],
)  # fmt: skip
def test_losses_are_read_in_whatever_way_a_script_says_them(tmp_path: Path, metrics: str, write: str) -> None:
    script = (
        f"import sys\nf = sys.argv[1]\n{write}\nx = 2.0\nfor step in range(40):\n"
        "    say(step, x * x / 2 + 1, abs(x))\n    x -= 0.1 * x\n"
    )
    text = ONE.replace('"{lr}", "{steps}", "{seed}"]', '"{folder}", "{lr}"]\n  metrics: ' + metrics)
    reports = reports_of(sweep_in(tmp_path, script, text), tmp_path)
    assert reports[-1].error is None, reports[-1].error
    assert reports[-1].finished[0].outcome == "stable"
    (trial_id,) = {trial_id for report in reports for trial_id in report.traces}
    traces = [report.traces[trial_id] for report in reports if report.traces]
    found = [np.concatenate([trace[column] for trace in traces]) for column in ("step", "loss", "grad_norm")]
    x = 2.0 * 0.9 ** np.arange(40)
    np.testing.assert_array_equal(found[0], np.arange(40))
    np.testing.assert_allclose(found[1:], [x * x / 2 + 1, x], rtol=1e-6)


RESUMABLE = """
import os, sys, time
folder, dies_at, resume = sys.argv[1], int(sys.argv[2]), "--resume" in sys.argv
first, x = 0, 2.0
if resume:
    first, x = eval(open(folder + "/ckpt").read())
for step in range(first, 60):
    print(f"step {step} loss {x * x / 2 + 1:.9g} norm {x:.9g}", flush=True)
    x -= 0.1 * x
    if step % 10 == 9:
        open(folder + "/ckpt.new", "w").write(repr((step + 1, x)))
        os.rename(folder + "/ckpt.new", folder + "/ckpt")
    if step == dies_at and not resume:
        time.sleep(0.3)  # until what was printed has been read
        os.kill(os.getpid(), 9)
"""
WITH_RESUME = ONE.replace('"{lr}", "{steps}", "{seed}"]', '"{folder}", "{lr}"]\n  resume: {checkpoint: "{folder}/ckpt", arguments: [--resume]}')  # fmt: skip # noqa: E501


@pytest.mark.parametrize("dies_at", [5, 25])
def test_a_script_with_a_checkpoint_goes_on_and_its_curve_is_whole(tmp_path: Path, dies_at: int) -> None:
    text = WITH_RESUME.replace("[0.1]", f"[{dies_at}]")
    (row,) = trained(sweep_in(tmp_path, RESUMABLE, text), tmp_path) if dies_at == 25 else (None,)
    if row is None:
        # Without a checkpoint it begins anew, dies again and is given up.
        (row,) = trained(sweep_in(tmp_path, RESUMABLE, text), tmp_path)
        assert (row.status, row.num_attempts) == ("errored", 3)
        return
    assert (row.status, row.outcome, row.num_attempts) == ("finished", "stable", 2)
    np.testing.assert_array_equal(row.curve["step"], np.arange(60))
    np.testing.assert_allclose(row.curve["grad_norm"], 2.0 * 0.9 ** np.arange(60), rtol=1e-8)


def test_a_pause_asks_the_script_to_end_and_says_that_it_was_interrupted(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path, HEAD + "time.sleep(1000)", ONE)
    last = reports_of(sweep, tmp_path, wants_pause=lambda: True)[-1]
    assert last.ending == Paused()
    assert last.finished == ()


def test_closing_a_run_leaves_no_process(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path, HEAD + 'open("pid", "w").write(str(os.getpid()))\ntime.sleep(1000)', ONE)
    run = run_pack(only_pack(sweep, tmp_path))
    next(run)
    run.close()
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_killed_worker_takes_its_script_with_it(tmp_path: Path) -> None:
    sweep_in(tmp_path, HEAD + 'open("pid", "w").write(str(os.getpid()))\ntime.sleep(1000)', ONE)
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]);"
        "from custom_cases import *; reports_of(load_sweep(Path('mine.yaml')), Path.cwd())"
    )
    import subprocess

    worker = subprocess.Popen([sys.executable, "-c", code, str(Path(__file__).parents[2])], cwd=tmp_path)
    deadline = time.monotonic() + 600
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid = int((tmp_path / "pid").read_text())
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(pid)


FUNCTION = """
def run(config, report):
    x = 2.0
    for step in range(config["steps"]):
        report(step, loss=x * x / 2 + 1, grad_norm=abs(x), extra=float(step))
        x -= config["lr"] * x
    open(f"ended-{config['lr']}", "w").close()
"""


def test_a_function_reports_by_itself_and_is_ended_by_an_exception_when_it_is_lost(tmp_path: Path) -> None:
    text = SWEEP.replace('command: [python, train.py, "{lr}", "{steps}", "{seed}"]', "python: train:run")
    text = text.replace("[0.1, 1.0, 3.0]", "[0.1, 3.0]").replace("[0, 1]", "[0]")
    rows = trained(sweep_in(tmp_path, FUNCTION, text), tmp_path)
    assert [row.outcome for row in rows] == ["stable", "diverged"]
    np.testing.assert_array_equal(rows[0].curve["extra"], np.arange(60.0))
    assert (tmp_path / "ended-0.1").exists()
    assert not (tmp_path / "ended-3.0").exists()
    assert rows[1].steps_done == rows[1].verdict_step + 1


def test_a_module_that_cannot_be_imported_is_an_error_with_its_reason(tmp_path: Path) -> None:
    text = ONE.replace('command: [python, train.py, "{lr}", "{steps}", "{seed}"]', "python: train:run")
    last = last_of(tmp_path, "import no_such_module\n", text)
    assert "No module named 'no_such_module'" in last.error.splitlines()[-1]


def test_two_processes_of_a_trial_find_each_other_as_with_torchrun(tmp_path: Path) -> None:
    script = (
        "import json, os, sys\n"
        'names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")\n'
        'json.dump({n: os.environ[n] for n in names}, open("rank" + os.environ["RANK"], "w"))\n' + HEAD
    )
    last = last_of(tmp_path, script, ONE + "resources: {workers: 2}\n")
    assert last.error is None
    first, second = (json.loads((tmp_path / f"rank{rank}").read_text()) for rank in (0, 1))
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert {**second, "RANK": "0", "LOCAL_RANK": "0"} == first
    assert (first["WORLD_SIZE"], second["LOCAL_RANK"]) == ("2", "1")


def test_a_command_gets_the_parts_of_a_global_batch_and_so_does_its_file_of_values(tmp_path: Path) -> None:
    words = '"{global_batch}", "{micro_batch}", "{accumulation}", "{workers}"'
    script = 'import json, os, sys\njson.dump(sys.argv[1:], open("words", "w"))\n'
    script += 'json.dump(json.load(open(os.environ["SWEEP_TRIAL"]))["config"], open("values", "w"))\n' + HEAD
    text = (
        ONE.replace('"{lr}", "{steps}", "{seed}"', f'"{{lr}}", {words}') + "batch: {global: 64, micro: 4, workers: 2}\n"
    )
    assert last_of(tmp_path, script, text).error is None
    assert json.loads((tmp_path / "words").read_text()) == ["0.1", "64", "4", "8", "2"]
    values = json.loads((tmp_path / "values").read_text())
    assert {"global_batch": 64, "micro_batch": 4, "accumulation": 8, "workers": 2}.items() <= values.items()


def test_a_rank_that_fails_ends_the_others_and_is_named(tmp_path: Path) -> None:
    script = HEAD + 'sys.exit("rank one fails") if os.environ["RANK"] == "1" else time.sleep(1000)\n'
    last = last_of(tmp_path, script, ONE + "resources: {workers: 2}\n")
    assert last.error.splitlines()[-1] == "rank 1 ended with exit code 1: rank one fails"


def test_a_rank_that_aborts_after_the_last_step_takes_nothing_from_the_result(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\nfor step in range(60):\n    print(f'step {step} loss {3 - step / 100}', flush=True)\n"
        f"done = {str(tmp_path / 'done')!r}\n"
        'if os.environ["RANK"] == "1":\n    while not os.path.exists(done):\n        time.sleep(0.01)\n    os.abort()\n'
        'open(done, "w").close()\ntime.sleep(0.5)\n'
    )
    (result,) = last_of(tmp_path, script, ONE + "resources: {workers: 2}\n").finished
    assert (result.outcome, result.steps_done) == ("stable", 60)


SAVES_WHEN_ASKED = """
import signal, sys, time
folder, resume = sys.argv[1], "--resume" in sys.argv
first = int(open(folder + "/ckpt").read()) if resume else 0
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
for step in range(first, 60):
    print(f"step {step} loss {2 + 0.9 ** step:.9g}", flush=True)
    time.sleep(0.05)
    if asked and step % 5 == 4:
        open(folder + "/ckpt", "w").write(str(step + 1))
        sys.exit(0)
"""


def test_what_a_script_says_between_the_pause_and_its_checkpoint_is_kept(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path, SAVES_WHEN_ASKED, WITH_RESUME)
    before = reports_of(sweep, tmp_path, wants_pause=lambda: True)
    assert before[-1].ending == Paused()
    after = reports_of(sweep, tmp_path)
    (trace,) = [np.concatenate([r.traces[t]["step"] for r in after if r.traces]) for t in sweep_ids(after)]
    np.testing.assert_array_equal(trace, np.arange(60))
    assert 0 < len(np.concatenate([r.traces[t]["step"] for r in before if r.traces for t in r.traces])) < 60


def sweep_ids(reports) -> set[str]:
    return {trial_id for report in reports for trial_id in report.traces}


def test_a_trial_that_gets_further_each_time_is_not_given_up(tmp_path: Path) -> None:
    script = RESUMABLE.replace("if step == dies_at and not resume:", "if step - first == 15:")
    (row,) = trained(sweep_in(tmp_path, script, WITH_RESUME.replace("[0.1]", "[0]")), tmp_path)
    assert (row.status, row.num_attempts) == ("finished", 6)
    np.testing.assert_array_equal(row.curve["step"], np.arange(60))


# Learns nothing, and takes its time.
SLOW = """
import sys, time
for step in range(60):
    print(f"step {step} | loss 3.0", flush=True)
    if step == 30:
        time.sleep(1000)
"""


def slow_pack(tmp_path: Path, bar: float):
    text = ONE + "stopping: {slow: {method: median, startup_trials: 0}}\n"
    thresholds = tuple(RungThreshold(steps, bar, 3) for steps in range(6, 60, 6))
    return replace(only_pack(sweep_in(tmp_path, SLOW, text), tmp_path), rung_thresholds=thresholds)


def test_a_slow_run_is_ended_at_its_rung(tmp_path: Path) -> None:
    (result,) = list(run_pack(slow_pack(tmp_path, 2.0)))[-1].finished
    assert (result.outcome, result.steps_done, result.slow_step) == ("pruned", 6, 5)
    assert "slow after 6 steps" in result.reason
    assert result.rung_losses == (3.0,)


def test_a_run_that_resumes_is_not_pruned_for_what_an_earlier_attempt_was_not(tmp_path: Path) -> None:
    text = ONE + "stopping: {slow: {method: median, startup_trials: 0}}\n"
    text = text.replace("steps: 60", "steps: 60\ncheckpoint: {every_s: null}").replace(
        '"{seed}"]', '"{seed}"]\n  resume: {checkpoint: "{folder}/saved"}'
    )
    script = (
        "import os, sys, time\nsaved = os.path.join(sys.argv[4], 'saved')\nfirst = 20 if os.path.exists(saved) else 0\n"
        'for step in range(first, 60):\n    print(f"step {step} | loss 3.0", flush=True)\n'
        "    if step == 19 and not first:\n        open(saved, 'w').close()\n        time.sleep(1000)\n"
    )
    text = text.replace('"{seed}"]', '"{seed}", "{folder}"]')
    pack = only_pack(sweep_in(tmp_path, script, text), tmp_path)
    thresholds = tuple(RungThreshold(steps, 4.0, 3) for steps in range(6, 60, 6))
    reports = run_pack(replace(pack, rung_thresholds=thresholds, launch=replace(pack.launch, report_s=0.1)))
    while next(reports).member_steps < 20:
        pass
    reports.close()
    stricter = tuple(replace(threshold, loss=2.0) for threshold in thresholds)
    (result,) = list(run_pack(replace(pack, rung_thresholds=stricter)))[-1].finished
    assert (result.outcome, result.slow_step, result.rung_losses) == ("pruned", 23, (3.0,) * 4)
