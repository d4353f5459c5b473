from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from objectives.base import OBJECTIVES, Way
from orchestrator.worker import ways
from orchestrator.worker.ways import Measurement, choose_way, known_choice

GPT, QUADRATIC = OBJECTIVES["gpt"], OBJECTIVES["quadratic"]
TINY = GPT.config_class(steps=100, width=8, heads=2, context=8, batch_size=2, depth=1)
EDGE = QUADRATIC.config_class(steps=100)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def machine(monkeypatch) -> Callable[..., list[Way]]:
    """A machine with known speeds: which ways it has measured so far."""

    def of(
        rates: Mapping[int, float],
        compiled: float = 0.0,
        onednn: float = 0.0,
        compile_s: float = 20.0,
        size: int = 1000,
    ) -> list[Way]:
        measured: list[Way] = []

        def measure(objective, config, device, way: Way) -> Measurement:
            measured.append(way)
            rate = compiled if way.compiled else onednn if way.kernels == "onednn" else rates[way.width]
            return Measurement(way, rate, compile_s if way.compiled else 0.01, size)

        monkeypatch.setattr(ways, "measure", measure)
        monkeypatch.setattr(ways, "free_memory", lambda device: 10**12)
        return measured

    return of


def chosen(objective=QUADRATIC, config=EDGE, members: int = 1000, steps_ahead: int = 0, cpus: int = 1) -> Way:
    return choose_way(objective, config, "cpu", cpus, members, steps_ahead).way


@pytest.mark.parametrize(
    ("rates", "width"),
    [
        ({1: 100, 4: 300, 16: 900, 32: 1500}, 32),
        ({1: 100, 4: 300, 16: 900, 32: 930}, 16),
        ({1: 100, 4: 300, 16: 310, 32: 9000}, 4),
        ({1: 100, 4: 104}, 1),
        ({1: 100, 4: 50}, 1),
    ],
    ids=["the widest is fastest", "nearly as fast", "ends where it gains nothing", "one nearly as fast", "alone"],
)
def test_the_fastest_width_is_taken_and_the_narrowest_of_those_nearly_as_fast(machine, rates, width: int) -> None:
    measured = machine(rates)
    assert chosen() == Way(width)
    assert [way.width for way in measured] == list(rates)[: len(measured)]


def test_no_wider_than_the_members_that_there_are_to_fill_it(machine) -> None:
    measured = machine({1: 100, 4: 300, 16: 900, 32: 1500})
    assert chosen(members=12) == Way(16)
    assert measured == [Way(1), Way(4), Way(16)]
    assert chosen(members=3) == Way(4), "from the cache, by what three members can fill"
    assert chosen(members=1) == Way(1)


def test_a_structure_that_few_members_began_is_measured_further_when_many_come(machine) -> None:
    measured = machine({1: 100, 4: 300, 16: 900, 32: 910})
    assert chosen(members=1) == Way(1)
    assert measured == [Way(1)]
    assert chosen(members=100) == Way(16)
    assert measured == [Way(1), Way(4), Way(16), Way(32)], "what was known is not measured again"
    assert chosen(members=100) == Way(16)
    assert len(measured) == 4, "it gained nothing any more, so that is all"


def test_what_was_measured_is_not_measured_again(machine, cache: Path) -> None:
    measured = machine({1: 100, 4: 300, 16: 310})
    first = choose_way(QUADRATIC, EDGE, "cpu", 1, 1000, 0)
    assert len(measured) == 3
    assert choose_way(QUADRATIC, EDGE, "cpu", 1, 1000, 0) == first
    numbers = {"steps": 7, "lr": 0.5, "clip": 1.0, "schedule": "cosine", "curvature": 3.0}
    assert chosen(config=QUADRATIC.config_class(**numbers)) == first.way
    assert len(measured) == 3
    assert [path.name for path in cache.glob("*.json")] == ["ways.json"], "SWEEP_CACHE says where"


@pytest.mark.parametrize("change", ["another shape", "another objective", "other cpus"])
def test_what_the_speed_depends_on_is_measured_for_itself(machine, change: str) -> None:
    measured = machine({1: 100, 4: 100})
    chosen()
    before = len(measured)
    if change == "another shape":
        chosen(config=QUADRATIC.config_class(steps=100, dimension=5))
    elif change == "another objective":
        chosen(OBJECTIVES["function_fit"], OBJECTIVES["function_fit"].config_class(steps=100))
    else:
        chosen(cpus=2)
    assert len(measured) == 2 * before


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b'{"KEY": null}', b'{"KEY": [{"way": 1}]}', b'{"KEY": 7}',
                b'{"KEY": [{"way": {"width": 1, "colour": "red"}, "compile_s": 1}]}'],
)  # fmt: skip
def test_a_cache_that_is_broken_is_ignored_and_written_anew(machine, cache: Path, content: bytes) -> None:
    machine({1: 100, 4: 100})
    chosen()
    (key,) = json.loads((cache / "ways.json").read_bytes())
    (cache / "ways.json").write_bytes(content.replace(b"KEY", key.encode()))
    assert known_choice(QUADRATIC, EDGE, "cpu", 1, 100, 0) is None
    measured = machine({1: 100, 4: 300, 16: 100})
    assert chosen() == Way(4)
    assert len(measured) == 3
    assert known_choice(QUADRATIC, EDGE, "cpu", 1, 100, 0).way == Way(4)


def test_a_cache_that_cannot_be_written_is_done_without(machine, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "file" / "cache"))
    measured = machine({1: 100, 4: 300, 16: 100})
    assert chosen() == chosen() == Way(4)
    assert len(measured) == 6


def test_widths_end_where_half_of_the_free_memory_does(machine, monkeypatch) -> None:
    rates = {1: 100, 4: 300, 16: 900, 32: 2000}
    measured = machine(rates, size=1000)
    monkeypatch.setattr(ways, "free_memory", lambda device: 20_000)
    assert chosen() == Way(4), "16 members need 16000 of the 10000 bytes"
    assert measured == [Way(1), Way(4)]


def test_one_member_at_a_time_is_tried_even_where_memory_is_short(machine, monkeypatch) -> None:
    machine({1: 100}, size=10**15)
    monkeypatch.setattr(ways, "free_memory", lambda device: 0)
    assert chosen() == Way(1)


def test_other_kernels_are_tried_where_packs_are_narrow_and_taken_where_faster(machine) -> None:
    measured = machine({1: 100, 4: 101}, onednn=150)
    assert chosen(GPT, TINY) == Way(1, kernels="onednn")
    assert measured[-1] == Way(1, kernels="onednn")


@pytest.mark.parametrize("onednn", [50, 104])
def test_kernels_that_are_hardly_faster_are_not_taken(machine, onednn: float) -> None:
    machine({1: 100, 4: 101}, onednn=onednn)
    assert chosen(GPT, TINY) == Way(1)


def test_kernels_are_not_tried_where_wide_packs_pay_or_there_are_none(machine) -> None:
    measured = machine({1: 100, 4: 300, 16: 900, 32: 910})
    chosen(GPT, TINY)
    assert {way.kernels for way in measured} == {"default"}
    measured = machine({1: 100, 4: 100})
    chosen()
    assert {way.kernels for way in measured} == {"default"}


NARROW = {1: 100, 4: 300, 16: 310}


def test_compiling_is_tried_only_for_steps_enough_to_pay_for_it(machine) -> None:
    measured = machine(NARROW, compiled=600, compile_s=40.0)
    # At the expected gain of a quarter, 300 a second save 1/1500 s each, and compiling takes 25 s and a quarter more.
    expected_break_even = 31.25 * 1500
    assert chosen(GPT, TINY, steps_ahead=int(expected_break_even) - 10) == Way(4)
    assert not [way for way in measured if way.compiled]
    assert chosen(GPT, TINY, steps_ahead=int(expected_break_even) + 10) == Way(4, compiled=True)
    assert measured[-1] == Way(4, compiled=True)


def test_what_compiling_gains_is_measured_once_and_then_known(machine) -> None:
    measured = machine(NARROW, compiled=600, compile_s=40.0)
    assert chosen(GPT, TINY, steps_ahead=10**6).compiled
    before = len(measured)
    # A cached compilation takes a quarter of 40 s, each step saves 1/300 - 1/600 s: 6000 steps.
    assert not chosen(GPT, TINY, steps_ahead=5990).compiled
    assert chosen(GPT, TINY, steps_ahead=6010).compiled
    assert len(measured) == before


def test_a_machine_without_a_compiler_trains_eager_and_the_reason_says_why(machine, monkeypatch) -> None:
    machine(NARROW, compiled=600)
    working = ways.measure

    def measure(objective, config, device, way: Way) -> Measurement:
        failure = "eager, as compilation failed: no g++" if way.compiled else ""
        return replace(working(objective, config, device, way), failure=failure)

    monkeypatch.setattr(ways, "measure", measure)
    choice = choose_way(GPT, TINY, "cpu", 1, 1000, 10**7)
    assert choice.way == Way(4)
    assert choice.reason.endswith("compilation failed: no g++")


def test_compiling_that_gains_nothing_is_not_taken_however_long_the_sweep(machine) -> None:
    measured = machine(NARROW, compiled=290)
    choice = choose_way(GPT, TINY, "cpu", 1, 1000, 10**9)
    assert choice.way == Way(4)
    assert measured[-1] == Way(4, compiled=True)
    assert "would pay" not in choice.reason
    assert "4 at a time compiled: 290" in choice.reason


def test_an_objective_that_cannot_be_compiled_never_is(machine) -> None:
    measured = machine(NARROW, compiled=10_000)
    assert chosen(steps_ahead=10**9) == Way(4)
    assert not [way for way in measured if way.compiled]
    assert "compil" not in choose_way(QUADRATIC, EDGE, "cpu", 1, 1000, 10**9).reason


def test_the_reason_names_the_choice_the_curve_and_what_compiling_would_need(machine) -> None:
    machine({1: 100, 4: 3000, 16: 3010})
    reason = choose_way(GPT, TINY, "cpu", 1, 1000, 0).reason
    assert reason.startswith("4 at a time (member-steps/s")
    for part in ("1 at a time: 100", "4 at a time: 3,000", "16 at a time: 3,010"):
        assert part in reason
    assert "compiling would pay from 468,750 member-steps" in reason
    assert "\n" not in reason


def test_what_a_plan_says_is_what_a_worker_takes_and_nothing_is_measured_for_it(machine) -> None:
    measured = machine(NARROW, compiled=600)
    assert known_choice(GPT, TINY, "cpu", 1, 100, 10**6) is None
    assert not measured
    for members, steps_ahead in ((100, 0), (100, 10**6), (1, 0), (2, 10**6)):
        taken = choose_way(GPT, TINY, "cpu", 1, members, steps_ahead)
        before = len(measured)
        assert known_choice(GPT, TINY, "cpu", 1, members, steps_ahead) == taken
        assert len(measured) == before


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path: Path) -> None:
    assert ways.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("SWEEP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert ways.cache_folder() == tmp_path / "xdg" / "sweep"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert ways.cache_folder() == tmp_path / "home" / ".cache" / "sweep"


def test_a_process_is_prepared_with_a_compiler_cache_and_without_a_word(monkeypatch, cache: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    ways.prepare_process()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "elsewhere", "the user's wish comes first"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    ways.prepare_process()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(cache / "compiled")


@pytest.mark.parametrize("error", [OSError("no C library"), AttributeError("mallopt")])
def test_a_machine_without_glibc_is_prepared_too(monkeypatch, error: Exception) -> None:
    def fail(_):
        raise error

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    monkeypatch.setattr(ctypes, "CDLL", fail)
    ways.prepare_process()


class Trainer:
    """Takes no time; notes what is asked of it."""

    def __init__(self, log: list, failure: Exception | None) -> None:
        self.log, self.failure = log, failure

    def step(self) -> dict[str, Sequence[float]]:
        if self.failure:
            raise self.failure
        self.log.append("step")
        return {"loss": [1.0]}

    def describe(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        self.log.append("close")


@pytest.mark.parametrize("failure", [None, RuntimeError("kaput")])
def test_a_measurement_trains_a_throwaway_pack_of_that_way_and_closes_it(monkeypatch, failure) -> None:
    from objectives.models import quadratic

    log: list = []

    def start(configs, seeds, device, way) -> Trainer:
        log.append((list(configs), len(seeds), device, way))
        return Trainer(log, failure)

    monkeypatch.setattr(ways, "_SECONDS_PER_WAY", 0.0)
    monkeypatch.setattr(quadratic, "start", start)
    if failure is None:
        found = ways.measure(QUADRATIC, EDGE, "cpu", Way(4))
        assert found.way == Way(4)
        assert found.member_steps_per_second > 0
        assert found.bytes_per_member >= 0
        assert log.count("step") == 3, "one to begin with and two that are timed"
    else:
        with pytest.raises(RuntimeError, match="kaput"):
            ways.measure(QUADRATIC, EDGE, "cpu", Way(4))
    assert log[0] == ([EDGE] * 4, 4, "cpu", Way(4))
    assert log[-1] == "close"


def test_a_real_machine_is_measured_in_a_moment_and_remembered(monkeypatch, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {i}: the {i % 7}th of {i % 11}\n" for i in range(1000)))
    config = TINY.model_copy(update={"text": (str(path),)})
    monkeypatch.setattr(ways, "_SECONDS_PER_WAY", 0.02)
    choice = choose_way(GPT, config, "cpu", 1, 8, 0)
    known = ways.load_measurements(GPT, config, "cpu", 1)
    assert [m.way for m in known][:2] == [Way(1), Way(4)]
    assert all(m.member_steps_per_second > 0 and m.compile_s > 0 for m in known)
    assert choice.way in [m.way for m in known]
    monkeypatch.setattr(ways, "measure", None)
    assert choose_way(GPT, config, "cpu", 1, 8, 0) == choice
    assert replace(choice.way, kernels="default").width in (1, 4)


MEMORY = "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"


def failing(error: str, at_width: int):
    """A measurement that fails with ``error`` from a width on."""
    measure = ways.measure

    def failing_measure(objective, config, device, way):
        if way.width >= at_width:
            raise RuntimeError(error)
        return measure(objective, config, device, way)

    return failing_measure


def test_a_width_that_memory_does_not_hold_ends_the_measurement(machine, monkeypatch) -> None:
    machine({1: 100, 4: 300, 16: 900})
    monkeypatch.setattr(ways, "measure", failing(MEMORY, at_width=16))
    assert chosen(members=100) == Way(4)


def test_any_other_failure_of_a_measurement_is_one(machine, monkeypatch) -> None:
    machine({1: 100})
    monkeypatch.setattr(ways, "measure", failing("shapes do not fit", at_width=4))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        chosen(members=100)
