"""Forks of a custom trainer's run, each a process of its own that goes on from the trainer's checkpoint."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked_cases import ONSET, SWEEP, TRAIN, swept
from remedy_cases import find_remedies

from orchestrator.answers.remedy import RemedyAnswer
from orchestrator.api.results import load
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.remedies.reading import forks_folder
from orchestrator.causes.remedies.remedy import fork_of
from orchestrator.causes.remedies.request import RemedyRequest
from orchestrator.causes.remedies.results import Ignored, Remedies, Resumed
from orchestrator.ledger.reader import LedgerReader

pytestmark = pytest.mark.slow  # each fork is a process, and a test has about ten of them
ASKED = RemedyRequest(("lr=x0.5,x0.25",), ("-20,-5",), pairs=False)
OF_A_LOG = SWEEP.replace("  resume:", '  metrics: {file: "{folder}/log.txt"}\n  resume:')
LOSS = re.compile(r"step (\d+) \| loss (\S+)")


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("mine"))


@pytest.fixture(scope="module")
def found(mine: Path) -> Remedies:
    return find_remedies(mine, None, {}, ASKED)


def said(found: Remedies) -> str:
    return re.sub(r"\s+", " ", str(RemedyAnswer.of(found)))


def into_a_log(script: str) -> str:
    """The script, appending to a file what it prints."""
    appended = script.replace("    print(", "    print(file=open(out + '/log.txt', 'a'), *[")
    return appended.replace(':.9g}", flush=True)', ':.9g}"])')


def forks(folder: Path, found: Remedies) -> dict[tuple[str, int], TrialResult]:
    """The rows of the forks, by remedy and step."""
    with LedgerReader(forks_folder(folder, found.trial.trial_id) / LEDGER) as ledger:
        rows = [(fork_of(row.config["interventions"]), row) for row in ledger.trials()]
    return {(fork.remedy.name, fork.step): row for fork, row in rows if fork is not None}


def curve(folder: Path, found: Remedies, name: str, step: int) -> dict[int, float]:
    with LedgerReader(forks_folder(folder, found.trial.trial_id) / LEDGER) as ledger:
        trace = ledger.trace(forks(folder, found)[name, step].trial_id)
    return dict(zip(trace["step"].tolist(), trace["loss"].tolist(), strict=True))


def by_hand(folder: Path, *arguments: str) -> dict[int, float]:
    """The losses that the script prints when somebody starts it."""
    command = [sys.executable, str(folder / "train.py"), "--beta=0.1", "--seed=0", f"--out={folder}", *arguments]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {int(step): float(loss) for step, loss in LOSS.findall(printed)}


def test_a_fork_is_the_run_that_one_would_resume_by_hand(mine: Path, found: Remedies) -> None:
    folder = mine.parents[1]
    before = by_hand(folder, "--lr=1.5", "--steps=31")  # its last checkpoint is that of step 30
    after = by_hand(folder, "--lr=0.75", "--steps=100", "--resume")
    assert (min(after), max(after)) == (30, 99)
    assert curve(mine, found, "lr x0.5", 30) == {**before, **after}


def test_forks_start_at_the_nearest_checkpoint_before_the_steps_that_are_asked_for(found: Remedies) -> None:
    assert found.onset == ONSET
    assert found.fork_steps == [30, 50]


def test_the_answer_says_what_saves_the_run_beside_a_control_and_forks_that_are_left_alone(found: Remedies) -> None:
    counts = {(one.remedy.name, one.fork_step): (one.saved, one.tried) for one in found.tallies}
    assert counts == {
        ("lr x0.5", 30): (1, 1),
        ("lr x0.5", 50): (0, 1),
        ("lr x0.25", 30): (1, 1),
        ("lr x0.25", 50): (1, 1),
    }
    assert [(one.fork_step, one.saved, one.tried) for one in found.unchanged] == [(30, 0, 1), (50, 0, 1)]
    assert found.control_repeats is True
    assert found.resumed == (Resumed(30, None), Resumed(50, None))
    assert found.cheapest is None, "one run each may be chance"
    assert "a trainer that takes data_seed gets more replicates" in said(found)
    assert {harm.name for harm in found.costs} == {"lr x0.5", "lr x0.25"}
    assert "3 of 3 runs left alone had the trial's losses bit for bit: from its seed and steps 30, 50" in said(found)
    assert "no change, resumed" in said(found)


def test_the_same_question_trains_nothing_and_other_steps_get_checkpoints_of_their_own(tmp_path: Path) -> None:
    mine = swept(tmp_path)
    first = find_remedies(mine, None, {}, ASKED)
    ledger = forks_folder(mine, first.trial.trial_id) / LEDGER

    def attempts() -> dict[str, int]:
        with LedgerReader(ledger) as reader:
            return {row.trial_id: row.num_attempts for row in reader.trials(removed=True)}

    before = attempts()
    assert find_remedies(mine, None, {}, ASKED) == first
    assert attempts() == before
    other = find_remedies(mine, None, {}, RemedyRequest(("lr=x0.5",), ("0", "42"), pairs=False))
    assert other.fork_steps == [0, 40]
    assert {key: attempts()[key] for key in before} == before
    assert len(attempts()) == len(before) + 4  # another control, the fork at 0, and two at 40
    assert {path.name for path in (ledger.parent / "kept").iterdir()} == {"30", "40", "50", "steps.json"}


def test_the_folder_of_a_fork_keeps_its_output_and_not_its_checkpoints(mine: Path, found: Remedies) -> None:
    folders = list((forks_folder(mine, found.trial.trial_id) / "trials").iterdir())
    assert len(folders) == 7  # the control, two that are left alone, and four with a remedy
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == {"output.log", "points.jsonl", "trial.json"}


FORGETS_MOMENTUM = TRAIN.replace(
    'first, *saved = json.load(open(o.get("from", path)))',
    "first, *saved = json.load(open(path)); v = 0.0; x *= 1.001",
)


def test_a_trainer_that_does_not_resume_exactly_is_said_to_differ(tmp_path: Path) -> None:
    found = find_remedies(swept(tmp_path, FORGETS_MOMENTUM), None, {}, ASKED)
    assert found.control_repeats is True
    steps = [(one.fork_step, one.differs and one.differs.step) for one in found.resumed]
    assert steps == [(30, 30), (50, 50)]
    largest = [one.differs.largest for one in found.resumed if one.differs is not None]
    assert 0 < largest[1] < 0.1, largest
    assert "resumed: at step 30 and left alone, it does NOT repeat the trial: they differ from step 30" in said(found)


def test_what_a_trainer_without_other_data_names_is_not_trained_with_fresh_data(tmp_path: Path) -> None:
    asked = RemedyRequest(("lr=x0.25",), ("-35", "-25", "-15", "-5"), pairs=False)
    found = find_remedies(swept(tmp_path, FORGETS_MOMENTUM), None, {}, asked)
    assert found.cheapest is not None
    assert (found.cheapest.name, found.fresh, found.num_missing) == ("lr x0.25", (), 0)
    assert "lr x0.25 from step 50 (5 before the onset): not trained with fresh data" in said(found)


def test_a_value_that_the_trainer_takes_from_its_checkpoint_counts_as_not_tried(tmp_path: Path) -> None:
    script = TRAIN.replace("for step in range(first", "if first: beta = saved[0]\nfor step in range(first")
    asked = RemedyRequest(("beta=0.5", "lr=x0.25"), ("-20",), pairs=False)
    found = find_remedies(swept(tmp_path, script), None, {}, asked)
    assert found.without_effect == (Ignored("beta 0.5", 30),)
    assert found.names == ["lr x0.25"]
    assert "beta 0.5 had no effect from step 30" in said(found)


def test_a_trainer_that_draws_other_numbers_each_time_is_said_not_to_repeat_its_trial(tmp_path: Path) -> None:
    script = TRAIN.replace("x, v, first, data", "x, v, first, data").replace(
        "2.0 + 0.1 * seed", "2.0 + time.time() % 1e-3"
    )
    found = find_remedies(swept(tmp_path, script), None, {}, ASKED)
    assert found.control_repeats is False
    assert found.control_difference is not None
    assert found.control_difference.step == 0
    assert 0 < found.control_difference.largest < 0.01
    assert "does NOT repeat the trial's losses: they differ from step 0" in said(found)


def test_a_placeholder_for_the_data_makes_replicates(tmp_path: Path) -> None:
    text = SWEEP.replace('"--out={folder}"]', '"--out={folder}", "--data={data_seed}"]').replace(
        "beta: 0.1", "beta: 0.1, data_seed: 3"
    )
    found = find_remedies(
        swept(tmp_path, text=text), None, {}, RemedyRequest(("lr=x0.25",), ("-5",), replicates=3, pairs=False)
    )
    (tally,), (alone,) = found.tallies, found.unchanged
    assert (tally.saved, tally.tried, tally.different) == (3, 3, 3)
    assert alone.tried == 3


def test_of_many_checkpoints_the_newest_before_the_step_is_copied(tmp_path: Path) -> None:
    text = SWEEP.replace(
        'ckpt.json", arguments: [--resume]', 'ckpt-*.json", arguments: [--resume, "--from={checkpoint}"]'
    )
    text = text.replace('"--out={folder}"]', '"--out={folder}", --all]')
    mine = swept(tmp_path, text=text)
    found = find_remedies(mine, None, {}, ASKED)
    assert found.fork_steps == [30, 50]
    assert found.resumed == (Resumed(30, None), Resumed(50, None))
    kept = forks_folder(mine, found.trial.trial_id) / "kept"
    assert [path.name for path in sorted(kept.glob("*/files/*"))] == ["ckpt-030.json", "ckpt-050.json"]


def test_a_log_that_the_trainer_appends_to_has_the_lines_of_each_fork_alone(tmp_path: Path) -> None:
    script = TRAIN.replace('"pause", 0.004', '"pause", 0.01')
    mine = swept(tmp_path, into_a_log(script), OF_A_LOG)
    found = find_remedies(mine, None, {}, ASKED)
    assert found.resumed == (Resumed(30, None), Resumed(50, None))
    own = curve(mine, found, "lr x0.5", 30)
    assert sorted(own) == list(range(100))
    assert own[31] != curve(mine, found, "no change", 30)[31]


def test_a_function_is_forked_as_a_command_is(tmp_path: Path) -> None:
    script = """
import json, os, time
def run(config, report):
    path, x, first = os.path.join(config["folder"], "ckpt.json"), 2.0, 0
    if os.path.exists(path):
        x, first = json.load(open(path))
    for step in range(first, config["steps"]):
        if step and step % 10 == 0:
            json.dump([x, step], open(path + ".new", "w"))
            os.replace(path + ".new", path)
        h = 0.2 + step / 20
        report(step, loss=h * x * x / 2 + 1, grad_norm=abs(h * x))
        x -= config["lr"] * (h * x + 0.01)
        time.sleep(0.01)
"""
    text = "name: mine\nobjective: {python: 'train:run', resume: {checkpoint: '{folder}/ckpt.json'}}\nsteps: 100\n"
    text += "axes: {lr: {values: [0.5, 1.5]}}\ntracking: {enabled: false}\n"
    mine = swept(tmp_path, script, text, allow_import=True)
    with pytest.raises(InputError, match="--allow-import"):
        find_remedies(mine, None, {}, ASKED)
    found = load(mine).remedy(try_=("lr=x0.25",), fork=("-20",), pairs=False, allow_import=True)
    assert found.onset is not None
    assert found.fork_steps == [(found.onset - 20) // 10 * 10]
    assert [one.differs for one in found.resumed] == [None]
    assert [one.saved for one in found.tallies] == [1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("        json.dump", "        (lambda *_: None)"), "has no checkpoint at or before step 35, 50"),
        (("x, v, first, *saved = json", "x, v, _, *saved = json"), "counted from 0 again"),
        (("x, v, first, *saved = json", "raise SystemExit('no such key'); json"), "no such key"),
    ],
    ids=["it saves nothing", "it starts again", "it fails"],
)
def test_a_trainer_that_cannot_be_resumed_is_an_error_that_says_why(
    tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    script = TRAIN.replace(*change)
    if "lambda" in change[1]:
        script = script.replace("        os.replace(target", "        0 and os.replace(target").replace(
            'open(target + ".new", "w")', "None"
        )
    with pytest.raises(InputError) as refused:
        find_remedies(swept(tmp_path, script), None, {}, ASKED)
    assert words in str(refused.value)
    assert "remedy:" in str(refused.value)


def test_a_command_that_is_killed_at_any_moment_goes_on_and_gives_the_same_answer(tmp_path: Path) -> None:
    script = TRAIN.replace('"pause", 0.004', '"pause", 0.02')
    # Of what is printed, lines that nobody has read yet die with their reader; a file keeps them.
    mine = swept(tmp_path, into_a_log(script), OF_A_LOG)
    arguments = ["remedy", "mine", "--fork", "-20,-5", "--try", "lr=x0.5,x0.25", "--json", "answer.json"]
    command = [sys.executable, "-m", "orchestrator.cli", *arguments]
    killed = 0
    for delay in (2.0, 3.0, 4.0, 5.0, 3.5):  # in the control, while its checkpoints are tried out, and in forks
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode < 0
    assert killed > 1, "no kill came before the end"
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    disturbed = json.loads((tmp_path / "answer.json").read_text())
    (mine / "remedies").rename(tmp_path / "elsewhere")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "answer.json").read_text()) == disturbed
    assert disturbed["control_repeats"] is True
    assert disturbed["num_missing"] == 0
