"""`orchestrator.run`: a sweep trained from Python."""

import os
import re
import signal
from pathlib import Path

import pytest
from sweep_cases import QUADRATIC

import orchestrator
from orchestrator.base.errors import InputError
from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.executors.inline import InlineExecutor
from orchestrator.sweepfile.spec import load_sections

pytestmark = pytest.mark.usefixtures("without_files")
SMALL = {
    "name": "small",
    "objective": "quadratic",
    "steps": 20,
    "axes": {"lr": {"values": [0.01, 100.0]}},
    "fixed": {"optimizer": "sgd"},
    "tracking": {"enabled": False},
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_dictionary_and_a_file_that_says_the_same_are_one_sweep() -> None:
    found = orchestrator.run(SMALL, executor="inline")
    assert found.trials.outcome.tolist() == ["stable", "diverged"]
    lines = "\n".join(f"{key}: {value}" for key, value in SMALL.items())
    Path("small.yaml").write_text(lines.replace("False", "false"))
    again = orchestrator.run("small.yaml", executor="inline")
    assert again.trials.trial_id.tolist() == found.trials.trial_id.tolist()
    assert again.trials.num_attempts.tolist() == [1, 1], "nothing was trained a second time"
    assert orchestrator.load("small").trials.trial_id.tolist() == found.trials.trial_id.tolist()


def test_what_a_dictionary_has_twice_is_no_alias() -> None:
    share = {"log": [0.1, 0.2], "num": 2}
    sweep = {**SMALL, "axes": {"lr": share, "curvature": share}}
    assert len(orchestrator.run(sweep, executor="inline").trials) == 4


def test_the_options_are_those_of_the_command_line_and_seeds_may_be_a_number() -> None:
    Path("edge.yaml").write_text(QUADRATIC)
    found = orchestrator.run(
        "edge.yaml",
        axis=["lr=values:0.1,0.2"],
        set=["tracking.enabled=false"],
        seeds=3,
        steps=10,
        name="other",
        results="elsewhere",
        executor="inline",
    )
    assert found.folder == Path("elsewhere/other")
    assert set(found.trials.seed) == {0, 1, 2}
    assert set(found.trials.lr) == {0.1, 0.2}
    assert set(found.trials.steps) == {10}
    assert set(orchestrator.run(SMALL, seeds=[7], executor="inline").trials.seed) == {7}


def test_what_a_file_may_not_say_a_dictionary_may_not_either() -> None:
    with pytest.raises(InputError, match="lrr"):
        orchestrator.run({**SMALL, "fixed": {"lrr": 1.0}}, executor="inline")
    with pytest.raises(InputError, match="unknown"):
        orchestrator.run(SMALL, executor="abacus")


def test_a_signal_is_an_interrupt_and_the_same_call_goes_on(monkeypatch) -> None:
    poll = InlineExecutor.poll

    def interrupted(self: InlineExecutor, timeout_s: float):
        os.kill(os.getpid(), signal.SIGINT)
        return poll(self, timeout_s)

    monkeypatch.setattr(InlineExecutor, "poll", interrupted)
    with pytest.raises(KeyboardInterrupt):
        orchestrator.run(SMALL, executor="inline")
    monkeypatch.setattr(InlineExecutor, "poll", poll)
    assert orchestrator.run(SMALL, executor="inline").trials.outcome.tolist() == ["stable", "diverged"]


def test_a_refinement_ends_with_the_edge_in_one_sentence(command_line) -> None:
    axes = {"lr": {"log": [0.01, 100.0], "num": 5}, "beta1": {"values": [0.0, 0.3]}}
    orchestrator.run({**SMALL, "seeds": [0, 1], "axes": axes}, executor="inline")
    code, text = command_line("run", "small", "--refine", "--trials", "4", "--executor", "inline")
    assert code == 0
    sentence = (
        r"the edge at beta1=\S+: stable up to lr (\S+) \((\S+) \.\. (\S+)\); take lr=\S+ beta1=\S+; next: `sweep .*`"
    )
    found = re.fullmatch(sentence, text.splitlines()[-1])
    assert found
    at, low, high = map(float, found.groups())
    assert 1 <= at <= 10, "two of two are stable at 1, none at 10"
    assert 0.1 < low <= at <= high < 100, "two runs leave the interval some room beyond them"


def test_a_refinement_lies_along_the_axis_that_moves_stability_most(command_line) -> None:
    axes = {"beta1": {"values": [0.0, 0.3]}, "lr": {"log": [0.01, 100.0], "num": 3}}
    orchestrator.run({**SMALL, "axes": axes}, executor="inline")
    code, _ = command_line("run", "small", "--refine", "--trials", "1", "--executor", "inline")
    search = load_sections(Path("results/small") / FROZEN_SWEEP).search
    assert (code, search.along if search else None) == (0, "lr")


def test_a_refinement_of_imported_results_says_that_they_are_imported(command_line) -> None:
    Path("table.csv").write_text("lr,label\n0.1,stable\n1,diverged\n")
    assert command_line("import", "table.csv", "--name", "theirs", "--axis", "lr", "--outcome", "label")[0] == 0
    code, text = command_line("run", "theirs", "--refine")
    assert code == 2
    assert "holds imported results" in text


def test_a_refinement_of_too_few_trials_says_that_the_edge_is_not_known(command_line) -> None:
    orchestrator.run(SMALL, executor="inline")
    code, text = command_line("run", "small", "--refine", "--trials", "1", "--executor", "inline")
    assert code == 0
    assert "the edge is not known: small: 3 trials with an outcome are too few to fit a surface to" in text
