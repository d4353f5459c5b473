"""What a worker measures of the machine for its trials: energy that members share, and memory."""

from dataclasses import replace

import pytest
from pack_cases import pack_with

from orchestrator.base.consumption import peak_memory
from orchestrator.base.packs import Checkpoint, Pack, Paused
from orchestrator.base.trial_result import MemberResult
from orchestrator.worker import packed_run
from orchestrator.worker import run as worker

STEP_J = 6.0


class Meter:
    """A meter that counts so many joules each time, as its callers see one."""

    source = "rapl"
    num_taken = 0

    def __init__(self, gpus: float) -> None:
        pass

    def take(self) -> float:
        type(self).num_taken += 1
        return STEP_J


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> type[Meter]:
    monkeypatch.setattr(Meter, "num_taken", 0)
    monkeypatch.setattr(packed_run, "EnergyMeter", Meter)
    return Meter


def results_of(pack: Pack, **options) -> tuple[dict[str, MemberResult], list]:
    reports = list(worker.run_pack(pack, **options))
    return {result.trial_id: result for report in reports for result in report.finished}, reports


def test_trials_share_what_the_counters_measured_and_nothing_is_lost(meter: type[Meter]) -> None:
    """Two at a time, of which one is lost at once: a third begins in its place."""
    changes = [{"lr": 1e-2}, {"lr": 1e3, "beta1": 0.0, "noise": 0.0}, {"lr": 1e-2}]
    results, reports = results_of(pack_with("quadratic", changes, 2, [0, 0, 1], steps=200))
    joules = {trial_id: result.joules for trial_id, result in results.items()}
    assert sum(joules.values()) == pytest.approx(STEP_J * (meter.num_taken - 1))  # without what the start took
    assert joules["trial1"] < joules["trial0"]
    assert reports[0].environment["energy"] == "rapl"
    assert all(result.peak_memory > 1 for result in results.values())


def test_energy_of_an_earlier_attempt_counts(meter: type[Meter]) -> None:
    pack = replace(pack_with("quadratic", [{"lr": 1e-2}], 1, [0], steps=400), checkpoint_steps=50)
    _, reports = results_of(pack, wants_pause=lambda: True, pace=packed_run.Pace(report_s=0.0))
    assert isinstance(reports[-1].ending, Paused)
    checkpoint: Checkpoint = reports[-1].checkpoint
    before = meter.num_taken - 1
    results, _ = results_of(replace(pack, resume=checkpoint))
    assert results["trial0"].joules > STEP_J * before


def test_a_pack_has_no_peak_of_what_its_process_did_before() -> None:
    block = bytearray(int(peak_memory() + 256) * 2**20)
    before = peak_memory()
    del block
    results, _ = results_of(pack_with("quadratic", [{"lr": 1e-2}], 1, [0]))
    assert results["trial0"].peak_memory < before - 128


def test_without_a_counter_the_energy_of_a_trial_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Meter, "take", lambda _: None)
    monkeypatch.setattr(Meter, "source", "")
    monkeypatch.setattr(packed_run, "EnergyMeter", Meter)
    results, reports = results_of(pack_with("quadratic", [{"lr": 1e-2}], 1, [0]))
    assert results["trial0"].joules is None
    assert "energy" not in reports[0].environment
