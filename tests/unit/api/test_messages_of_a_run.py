"""What `sweep run` tells through `notify`, and what it says of it on the terminal."""

import os
import signal
import threading
from functools import partial
from pathlib import Path

import pytest
from sweep_cases import QUADRATIC

from objectives.models import quadratic
from orchestrator.base.errors import StorageError
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.mirrors import notifier
from orchestrator.mirrors.notifier import Message, NotDelivered, Sender

pytestmark = pytest.mark.usefixtures("without_files")
RUN = ("run", "edge.yaml", "--executor", "inline")


@pytest.fixture
def arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """The messages of runs in a folder with a sweep file that asks for them."""
    found: list[Message] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notifier, "service_of", lambda notify, where: found.append)
    (tmp_path / "edge.yaml").write_text(f"{QUADRATIC}notify: {{url_from: NOTIFY_URL}}\n")
    return found


@pytest.fixture
def refusing(arrived, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service takes no message."""

    def refuse(message: Message) -> None:
        raise NotDelivered("the service answered with HTTP status 401")

    monkeypatch.setattr(notifier, "service_of", lambda notify, where: refuse)


def test_a_run_is_told_at_its_end_and_a_finished_sweep_tells_nothing_more(arrived, command_line) -> None:
    code, text = command_line(*RUN)
    assert code == 0
    assert "warning" not in text
    (message,) = arrived
    assert (message.title, message.kind) == ("edge: finished", "success")
    assert message.body.startswith("12 trials: 10 stable, 2 diverged\n")
    assert message.body.endswith("results in results/edge")
    code, text = command_line(*RUN)
    assert (code, len(arrived)) == (0, 1)
    assert "nothing to train" in text


def test_a_resumed_run_tells_of_what_it_trains_and_not_of_what_earlier_ones_did(arrived, command_line) -> None:
    command_line(*RUN, "--seeds", "0")
    command_line(*RUN)
    assert [message.title for message in arrived] == ["edge: finished", "edge: finished"]
    assert "6 trials: 5 stable, 1 diverged" in arrived[0].body
    assert "12 trials: 10 stable, 2 diverged" in arrived[1].body


def test_without_the_section_nothing_is_told(arrived, command_line) -> None:
    assert command_line(*RUN, "--set", "notify=null")[0] == 0
    assert arrived == []


def test_errored_trials_are_told(arrived, command_line, monkeypatch) -> None:
    def start(configs, seeds, device, plan):
        raise RuntimeError("secret words of a trainer")

    monkeypatch.setattr(quadratic, "start", start)
    assert command_line(*RUN)[0] == 3
    assert arrived[0].title.startswith("edge: ")
    assert "trials errored: `sweep status edge` says why" in arrived[0].body
    assert "secret" not in arrived[0].body


def test_ctrl_c_is_told_as_stopped(arrived, command_line, monkeypatch) -> None:
    start = quadratic.start

    def stopped(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return start(*arguments)

    monkeypatch.setattr(quadratic, "start", stopped)
    assert command_line(*RUN, "--pack", "4")[0] == 130
    assert [message.title for message in arrived] == ["edge: stopped"]


@pytest.fixture
def broken_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger cannot be written once trials train."""

    def record(*_: object) -> None:
        raise StorageError("the disk is gone")

    monkeypatch.setattr(LedgerWriter, "record", record)


def test_an_error_that_ends_the_run_is_told_before_the_command_ends(arrived, command_line, broken_disk) -> None:
    code, text = command_line(*RUN)
    assert code == 4
    assert "error: the disk is gone" in text
    assert [message.title for message in arrived] == ["edge: ended by an error"]


def test_a_service_that_refuses_costs_one_warning_also_where_an_error_ends_the_run(
    refusing, command_line, broken_disk
) -> None:
    code, text = command_line(*RUN)
    assert code == 4
    assert text.count("warning: notify: 1 of 1 messages did not arrive") == 1
    assert "error: the disk is gone" in text


def test_a_service_that_hangs_costs_one_warning(arrived, command_line, monkeypatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(notifier, "service_of", lambda notify, where: lambda message: release.wait() and None)
    monkeypatch.setattr("orchestrator.api.running.Sender", partial(Sender, patience_s=0.01))
    code, text = command_line(*RUN)
    assert code == 0
    assert text.count("warning: notify: the service did not answer within 0.01 s") == 1
    release.set()


def test_a_refinement_sends_a_test_message_as_other_runs_do(arrived, command_line) -> None:
    command_line(*RUN)
    del arrived[:]
    code, text = command_line("run", "edge", "--refine", "--executor", "inline", "--notify-test")
    assert (code, text) == (0, "the service of NOTIFY_URL accepted the test message\n")
    assert [message.title for message in arrived] == ["edge: test"]


def test_a_test_message_without_the_section_is_refused_with_a_remedy(arrived, command_line) -> None:
    code, text = command_line(*RUN, "--notify-test", "--set", "notify=null")
    assert code == 2
    assert "--notify-test: notify: is missing in the sweep file" in text
    assert "url_from: NAME_OF_AN_ENVIRONMENT_VARIABLE" in text


@pytest.mark.parametrize("option", [(), ("--notify-test",)])
def test_without_the_variable_a_run_is_refused_before_it_writes_anything(
    command_line, tmp_path: Path, monkeypatch, option
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOTIFY_URL", raising=False)
    (tmp_path / "edge.yaml").write_text(f"{QUADRATIC}notify: {{url_from: NOTIFY_URL}}\n")
    code, text = command_line(*RUN, *option)
    assert code == 2
    assert "edge.yaml:11: notify.url_from: the environment variable NOTIFY_URL is not set" in text
    assert not (tmp_path / "results").exists()


def test_a_trainer_does_not_inherit_the_url_of_the_receiver(arrived, command_line, monkeypatch) -> None:
    seen, start = [], quadratic.start

    def watched(configs, seeds, device, plan):
        seen.append(os.environ.get("NOTIFY_URL"))
        return start(configs, seeds, device, plan)

    monkeypatch.setattr(quadratic, "start", watched)
    monkeypatch.setenv("NOTIFY_URL", "json://secret")
    assert command_line(*RUN)[0] == 0
    assert set(seen) == {None}
    assert os.environ["NOTIFY_URL"] == "json://secret"
