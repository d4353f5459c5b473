"""The memory and energy of a custom trainer's processes, read while they live."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from custom_cases import SWEEP, only_pack, reports_of, sweep_in

from orchestrator.base.packs import Report
from orchestrator.base.trial_result import MemberResult
from orchestrator.worker import run as worker
from orchestrator.worker.launcher import TRIAL_MARK, Launcher
from orchestrator.worker.points import TrialFolder

HOLDS = "import sys; block = bytearray(200 * 2**20); print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def trainer() -> Iterator[subprocess.Popen]:
    """A process of a trial, which holds 200 MiB until it is told to end."""
    environment = {**os.environ, TRIAL_MARK: "trial"}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process


def test_a_result_has_the_memory_that_its_trainer_had(trainer: subprocess.Popen, tmp_path: Path) -> None:
    pack = only_pack(sweep_in(tmp_path), tmp_path)
    result = MemberResult(trial_id="trial", outcome="stable")

    def reports() -> Iterator[Report]:
        yield Report(pack.pack_id, 1, 1, 1.0, environment={"host": "here"})
        trainer.communicate()  # it ends before its result is known
        yield Report(pack.pack_id, 2, 0, 2.0, finished=(result,))

    first, last = worker._with_usage(reports(), pack, Launcher())
    assert first.environment["host"] == "here"
    (found,) = last.finished
    assert 200 < found.peak_memory < 400
    assert (found.joules is None) == ("energy" not in first.environment)


SHORT = """
block = bytearray(200 * 2**20)
for step in range(3):
    print(f"step {step} loss {3.0 - step}", flush=True)
"""


def test_a_trial_that_ends_before_the_first_report_has_its_memory(tmp_path: Path) -> None:
    text = SWEEP.replace("[0.1, 1.0, 3.0]", "[0.1]").replace("[0, 1]", "[0]")
    (only,) = reports_of(sweep_in(tmp_path, SHORT, text), tmp_path)
    (found,) = only.finished
    assert 200 < found.peak_memory < 400


def test_a_trial_without_a_process_that_was_seen_has_no_memory(tmp_path: Path) -> None:
    pack = only_pack(sweep_in(tmp_path), tmp_path)
    reports = iter([Report(pack.pack_id, 2, 0, 2.0, finished=(MemberResult(trial_id="t", outcome="stable"),))])
    (only,) = worker._with_usage(reports, pack, Launcher())
    assert only.finished[0].peak_memory is None


def test_energy_of_an_earlier_attempt_counts_if_the_trial_resumed(tmp_path: Path, monkeypatch) -> None:
    class Meter:
        source = "rapl"

        def __init__(self, gpus: float, variable: str) -> None:
            pass

        def take(self) -> float:
            return 5.0

    monkeypatch.setattr(worker, "EnergyMeter", Meter)
    pack = only_pack(sweep_in(tmp_path), tmp_path)
    folder = TrialFolder(Path(pack.launch.trials_folder) / pack.trial_ids[0])

    def joules(*, is_resumed: bool) -> float:
        def reports() -> Iterator[Report]:
            folder.prepare(keep=is_resumed)
            yield Report(pack.pack_id, 1, 1, 1.0)
            yield Report(pack.pack_id, 2, 0, 2.0, finished=(MemberResult(trial_id="t", outcome="stable"),))

        *_, last = worker._with_usage(reports(), pack, Launcher())
        return last.finished[0].joules

    assert [joules(is_resumed=is_resumed) for is_resumed in (False, True, False)] == [10.0, 20.0, 10.0]
