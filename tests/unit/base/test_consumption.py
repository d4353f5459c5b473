"""Energy from counters in a folder like RAPL's and from a stand-in for NVML; memory of this process."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.base import consumption
from orchestrator.base.consumption import EnergyMeter, Nvml, Rapl, peak_device_memory, peak_memory, reset_peaks

RANGE = 262_143_328_850


def zone(folder: Path, name: str, kind: str, microjoules: int) -> Path:
    path = folder / name
    path.mkdir()
    (path / "name").write_text(f"{kind}\n")
    (path / "max_energy_range_uj").write_text(f"{RANGE}\n")
    (path / "energy_uj").write_text(f"{microjoules}\n")
    return path / "energy_uj"


@pytest.fixture
def counters(tmp_path: Path) -> dict[str, Path]:
    """The counters of a machine with two processors, one with memory, as Linux shows them."""
    kinds = {
        "intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1": "package-1",
        "intel-rapl:2": "psys", "intel-rapl-mmio:0": "package-0",
    }  # fmt: skip
    (tmp_path / "intel-rapl").mkdir()
    return {name: zone(tmp_path, name, kind, 1_000_000) for name, kind in kinds.items()}


def add(counter: Path, joules: float) -> None:
    counter.write_text(str(int(counter.read_text()) + int(joules * 1e6)))


def test_processors_and_their_memory_count_once(tmp_path: Path, counters: dict[str, Path]) -> None:
    rapl = Rapl(tmp_path)
    for joules, counter in enumerate(counters.values(), start=1):
        add(counter, joules)
    assert rapl.take() == pytest.approx(1 + 3 + 4)  # both packages and the memory
    assert rapl.take() == 0


def test_a_counter_that_wraps_goes_on(tmp_path: Path, counters: dict[str, Path]) -> None:
    counters["intel-rapl:0"].write_text(str(RANGE - 2_000_000))
    rapl = Rapl(tmp_path)
    counters["intel-rapl:0"].write_text("5000000")
    assert rapl.take() == pytest.approx(7.0)


def test_without_a_counter_the_energy_is_unknown(tmp_path: Path, counters: dict[str, Path]) -> None:
    assert EnergyMeter(folder=tmp_path / "none").take() is None
    counters["intel-rapl:1"].unlink()  # as of a machine where one cannot be read
    meter = EnergyMeter(folder=tmp_path)
    assert meter.take() is None
    assert meter.source == ""


def test_a_process_gets_the_share_of_its_processor_time(
    tmp_path: Path, counters: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stat, own_s = tmp_path / "stat", [10.0]
    stat.write_text("cpu  1000 0 500 9000 10 0 0 0 0 0\ncpu0 ...\n")  # in hundredths of a second
    monkeypatch.setattr(consumption, "_STAT", stat)
    monkeypatch.setattr(time, "process_time", lambda: own_s[0])
    meter = EnergyMeter(folder=tmp_path)
    add(counters["intel-rapl:0"], 80.0)
    stat.write_text("cpu  1300 0 600 9900 10 0 0 0 0 0\ncpu0 ...\n")
    own_s[0] = 11.0  # a second of four
    assert meter.source == "rapl"
    assert meter.take() == pytest.approx(20.0)


def nvml(millijoules: dict[str, int]) -> SimpleNamespace:
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: str(index),
        nvmlDeviceGetHandleByUUID=lambda name: name,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: millijoules[handle],
    )


def test_a_gpu_is_counted_by_its_number_or_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    millijoules = {"3": 1000, "GPU-7f": 5000}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(millijoules))
    counter = Nvml(["3", "GPU-7f"])
    millijoules.update({"3": 4000, "GPU-7f": 6500})
    assert counter.take() == pytest.approx(4.5)


def test_a_pack_on_a_part_of_a_gpu_gets_this_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    millijoules = {"1": 0}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(millijoules))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    meter = EnergyMeter(0.25, folder=tmp_path)
    millijoules["1"] = 8000
    assert (meter.source, meter.take()) == ("nvml", pytest.approx(2.0))


def test_what_a_counter_missed_comes_with_its_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    millijoules = {"0": 1000}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(millijoules))
    counter = Nvml(["0"])
    del millijoules["0"]  # as of a GPU that is lost for a moment
    assert counter.take() == 0
    millijoules["0"] = 4000
    assert counter.take() == pytest.approx(3.0)


@pytest.mark.parametrize(("visible", "joules"), [(None, 10.0), ("3,2", 7.0), ("", 0.0)])
def test_as_many_gpus_count_as_a_pack_asked_for(
    visible: str | None, joules: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    millijoules = dict.fromkeys("01234", 0)
    monkeypatch.setitem(sys.modules, "pynvml", nvml(millijoules))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    meter = EnergyMeter(4, folder=tmp_path)
    millijoules.update({"0": 1000, "1": 2000, "2": 3000, "3": 4000, "4": 9000})
    assert (meter.take() or 0.0) == pytest.approx(joules)


def test_a_gpu_that_does_not_count_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml({}))
    assert not Nvml(["0"]).is_known


def test_the_memory_of_a_process_is_its_highest() -> None:
    before = peak_memory()
    block = bytearray(int(before + 64) * 2**20)  # larger than ever before
    assert peak_memory() >= before + 64
    del block
    assert peak_memory() >= before + 64
    assert peak_device_memory() is None


def test_peaks_begin_again_for_the_next_pack_of_a_process() -> None:
    block = bytearray(int(peak_memory() + 64) * 2**20)
    before = peak_memory()
    del block
    reset_peaks()
    assert peak_memory() < before - 32
