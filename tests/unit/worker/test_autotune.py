import ctypes
import functools
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from objectives.base import OBJECTIVES, ExecutionPlan, Rounding
from orchestrator.worker import machine as autotune
from orchestrator.worker import machine as machines
from orchestrator.worker.machine import Machine, Measurement, cached_choice, choose_plan, measure

GPT, QUADRATIC = OBJECTIVES["gpt"], OBJECTIVES["quadratic"]
TINY = GPT.config_class(steps=100, width=8, heads=2, context=8, batch_size=2, depth=1)
EDGE = QUADRATIC.config_class(steps=100)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Known:
    """A machine with known speeds, the last of them for wider packs too, and the plans that were measured on it."""

    def __init__(
        self,
        rates: Mapping[int, float],
        size: int = 1000,
        free_bytes: int = 10**12,
        error_from: tuple[int, str] = (10**6, ""),
    ) -> None:
        """From a width on, measuring raises the error ``error_from`` names."""
        self.rates, self.size, self.error_from = rates, size, error_from
        self.measured: list[int] = []
        self.kernels: set[str] = set()
        self.machine = Machine(self._measure, lambda device: free_bytes)

    def _measure(self, objective, config, device, width: int, kernels: str) -> Measurement:
        self.kernels.add(kernels)
        first, error = self.error_from
        if width >= first:
            raise RuntimeError(error)
        self.measured.append(width)
        return Measurement(width, self.rates.get(width, list(self.rates.values())[-1]), self.size)

    def choice(self, objective=QUADRATIC, config=EDGE, members: int = 1000, cpus: int = 1, rounding=Rounding()):
        return choose_plan(objective, config, "cpu", cpus, members, rounding, machine=self.machine)

    def chosen(self, *arguments, **options) -> ExecutionPlan:
        return self.choice(*arguments, **options).plan


@pytest.mark.parametrize(
    ("rates", "width"),
    [
        ({1: 100, 4: 300, 16: 900, 32: 1500, 64: 1900, 128: 2500, 256: 4000, 512: 6000}, 512),
        ({1: 100, 4: 300, 16: 900, 32: 930, 64: 940}, 16),
        ({1: 100, 4: 300, 16: 900, 32: 500, 64: 1500, 128: 1510, 256: 1520}, 64),
        ({1: 100, 4: 300, 16: 310, 32: 310}, 4),
        ({1: 100, 4: 104, 16: 104}, 1),
        ({1: 100, 4: 50, 16: 20}, 1),
    ],
    ids=["the widest is fastest", "nearly as fast", "one was disturbed", "four", "one nearly as fast", "alone"],
)
def test_the_fastest_width_is_taken_and_the_narrowest_of_those_nearly_as_fast(rates, width: int) -> None:
    machine = Known(rates)
    assert machine.chosen() == ExecutionPlan(width)
    assert machine.measured == list(rates), "then it gains nothing"


def test_no_wider_than_the_members_that_there_are_to_fill_it() -> None:
    machine = Known({1: 100, 4: 300, 16: 900, 32: 1500})
    assert machine.chosen(members=12) == ExecutionPlan(16)
    assert machine.measured == [1, 4, 16]
    assert machine.chosen(members=3) == ExecutionPlan(4), "from the cache, by what three members can fill"
    assert machine.chosen(members=1) == ExecutionPlan(1)


def test_a_structure_that_few_members_began_is_measured_further_when_many_come() -> None:
    machine = Known({1: 100, 4: 300, 16: 900, 32: 910})
    assert machine.chosen(members=1) == ExecutionPlan(1)
    assert machine.measured == [1]
    assert machine.chosen(members=100) == ExecutionPlan(16)
    assert machine.measured == [
        1,
        4,
        16,
        32,
        64,
    ], "what was known is not measured again"
    assert machine.chosen(members=100) == ExecutionPlan(16)
    assert len(machine.measured) == 5, "it gained nothing any more, so that is all"


def test_what_was_measured_is_not_measured_again(cache: Path) -> None:
    machine = Known({1: 100, 4: 300, 16: 310})
    first = machine.choice(QUADRATIC, EDGE)
    assert len(machine.measured) == 4
    assert machine.choice(QUADRATIC, EDGE) == first
    numbers = {"steps": 7, "lr": 0.5, "clip": 1.0, "schedule": "cosine", "curvature": 3.0}
    assert machine.chosen(config=QUADRATIC.config_class(**numbers)) == first.plan
    assert len(machine.measured) == 4
    assert [path.name for path in cache.glob("*.json")] == ["plans.json"], "SWEEP_CACHE says where"


@pytest.mark.parametrize("change", ["another shape", "another objective", "other cpus"])
def test_what_the_speed_depends_on_is_measured_for_itself(change: str) -> None:
    machine = Known({1: 100, 4: 100})
    machine.chosen()
    before = len(machine.measured)
    if change == "another shape":
        machine.chosen(config=QUADRATIC.config_class(steps=100, dimension=5))
    elif change == "another objective":
        machine.chosen(OBJECTIVES["function_fit"], OBJECTIVES["function_fit"].config_class(steps=100))
    else:
        machine.chosen(cpus=2)
    assert len(machine.measured) == 2 * before


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b'{"KEY": null}', b'{"KEY": [{"width": 1}]}', b'{"KEY": 7}',
                b'{"KEY": [{"plan": {"width": 1, "compiled": false}, "compile_s": 1}]}'],
)  # fmt: skip
def test_a_cache_that_is_broken_is_ignored_and_written_anew(cache: Path, content: bytes) -> None:
    machine = Known({1: 100, 4: 100})
    machine.chosen()
    (key,) = json.loads((cache / "plans.json").read_bytes())
    (cache / "plans.json").write_bytes(content.replace(b"KEY", key.encode()))
    assert cached_choice(QUADRATIC, EDGE, "cpu", 1, 100, Rounding()) is None
    machine = Known({1: 100, 4: 300, 16: 100})
    assert machine.chosen() == ExecutionPlan(4)
    assert len(machine.measured) == 4
    assert cached_choice(QUADRATIC, EDGE, "cpu", 1, 100, Rounding()).plan == ExecutionPlan(4)


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "file" / "cache"))
    machine = Known({1: 100, 4: 300, 16: 100})
    assert machine.chosen() == machine.chosen() == ExecutionPlan(4)
    assert len(machine.measured) == 8


def test_widths_end_where_half_of_the_free_memory_does() -> None:
    rates = {1: 100, 4: 300, 16: 900, 32: 2000}
    machine = Known(rates, size=1000, free_bytes=20_000)
    assert machine.chosen() == ExecutionPlan(4), "16 members need 16000 of the 10000 bytes"
    assert machine.measured == [1, 4]


def test_one_member_at_a_time_is_tried_even_where_memory_is_short() -> None:
    machine = Known({1: 100}, size=10**15, free_bytes=0)
    assert machine.chosen() == ExecutionPlan(1)


NARROW = {1: 100, 4: 300, 16: 310}


def test_native_packs_are_measured_for_themselves() -> None:
    eager, native = Known({1: 100, 4: 300, 16: 310, 32: 310}), Known({1: 500, 16: 510, 64: 515, 128: 900})
    rounding = Rounding(kernels="native")
    assert eager.chosen(GPT, TINY) == ExecutionPlan(4)
    choice = native.choice(GPT, TINY, rounding=rounding)
    assert choice.plan == ExecutionPlan(1, kernels="native")
    assert choice.member_steps_per_second == 500
    assert (eager.kernels, native.kernels) == ({"default"}, {"native"})
    assert native.measured == [1, 16, 64]
    assert cached_choice(GPT, TINY, "cpu", 1, 1000, rounding) == choice


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("kernels", ["default", "onednn"])
def test_measurements_choose_the_width_alone_and_no_bit(is_compiled: bool, kernels) -> None:
    rounding = Rounding(is_compiled, kernels)
    for rates, width in ((NARROW, 4), ({1: 100, 4: 300, 16: 900, 32: 900}, 16), ({1: 100, 4: 50, 16: 20}, 1)):
        machine = Known(rates)
        config = GPT.config_class(steps=100, width=8 * width, heads=2)
        plan = machine.chosen(GPT, config, rounding=rounding)
        assert plan.rounding == rounding, "a compiled pack has two rows at least: one alone rounds differently"
        assert plan.width == (max(2, width) if is_compiled else width)
        assert cached_choice(GPT, config, "cpu", 1, 1000, rounding).plan == plan


def test_the_reason_names_the_choice_and_the_curve() -> None:
    machine = Known({1: 100, 4: 3000, 16: 3010})
    reason = machine.choice(GPT, TINY).reason
    assert reason == (
        "4 at a time, 30.0 times as fast as 1: member-steps/s a worker, measured: "
        "1 at a time: 100, 4 at a time: 3,000, 16 at a time: 3,010, 32 at a time: 3,010"
    )
    compiled = machine.choice(GPT, TINY, rounding=Rounding(compiled=True))
    assert compiled.reason.startswith("4 at a time compiled, ")
    assert compiled.member_steps_per_second is None, "its own speed is not measured"


def test_what_a_plan_says_is_what_a_worker_takes_and_nothing_is_measured_for_it() -> None:
    machine = Known(NARROW)
    assert cached_choice(GPT, TINY, "cpu", 1, 100, Rounding()) is None
    assert not machine.measured
    for members in (100, 1, 2):
        taken = machine.choice(GPT, TINY, members)
        before = len(machine.measured)
        assert cached_choice(GPT, TINY, "cpu", 1, members, Rounding()) == taken
        assert len(machine.measured) == before


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path: Path) -> None:
    assert machines.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("SWEEP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert machines.cache_folder() == tmp_path / "xdg" / "sweep"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert machines.cache_folder() == tmp_path / "home" / ".cache" / "sweep"


def test_a_process_is_prepared_with_a_compiler_cache_and_without_a_word(monkeypatch, cache: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    machines.prepare_process()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "elsewhere", "the user's wish comes first"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    machines.prepare_process()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(cache / "compiled")


@pytest.mark.parametrize("error", [OSError("no C library"), AttributeError("mallopt")])
def test_a_machine_without_glibc_is_prepared_too(monkeypatch, error: Exception) -> None:
    def fail(_):
        raise error

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    monkeypatch.setattr(ctypes, "CDLL", fail)
    machines.prepare_process()


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


def test_a_measurement_is_as_fast_as_its_fastest_part(monkeypatch) -> None:
    from objectives.models import quadratic

    class Disturbed(Trainer):
        """Its second timed step is slow, as if another program had run."""

        def step(self) -> dict[str, Sequence[float]]:
            if self.log.count("step") == 2:
                time.sleep(0.2)
            return super().step()

    monkeypatch.setattr(quadratic, "start", lambda *arguments: Disturbed([], None))
    assert measure(QUADRATIC, EDGE, "cpu", 4, seconds=0.0).member_steps_per_second > 4 / 0.2


@pytest.mark.parametrize(("threads", "is_own_time"), [(1, True), (2, False)])
def test_on_one_thread_the_time_that_others_take_does_not_count(monkeypatch, threads: int, is_own_time: bool) -> None:
    import torch

    from objectives.models import quadratic

    class Waiting(Trainer):
        """Waits in each step, as if other programs had the processor."""

        def step(self) -> dict[str, Sequence[float]]:
            time.sleep(0.05)
            return super().step()

    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(quadratic, "start", lambda *arguments: Waiting([], None))
    found = measure(QUADRATIC, EDGE, "cpu", 4, seconds=0.0).member_steps_per_second
    assert (found > 2 * 4 / 0.05) == is_own_time


@pytest.mark.parametrize("failure", [None, RuntimeError("kaput")])
def test_a_measurement_trains_a_throwaway_pack_of_that_way_and_closes_it(monkeypatch, failure) -> None:
    from objectives.models import quadratic

    log: list = []

    def start(configs, seeds, device, plan) -> Trainer:
        log.append((list(configs), len(seeds), device, plan))
        return Trainer(log, failure)

    monkeypatch.setattr(quadratic, "start", start)
    if failure is None:
        found = measure(QUADRATIC, EDGE, "cpu", 4, seconds=0.0)
        assert found.width == 4
        assert found.member_steps_per_second > 0
        assert found.bytes_per_member >= 0
        assert log.count("step") == 4, "one to begin with and one in each part that is timed"
    else:
        with pytest.raises(RuntimeError, match="kaput"):
            measure(QUADRATIC, EDGE, "cpu", 4, seconds=0.0)
    assert log[0] == ([EDGE] * 4, 4, "cpu", ExecutionPlan(4))
    assert log[-1] == "close"


def test_a_real_machine_is_measured_in_a_moment_and_remembered(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {i}: the {i % 7}th of {i % 11}\n" for i in range(1000)))
    config = TINY.model_copy(update={"text": (str(path),)})
    quick = Machine(measure=functools.partial(measure, seconds=0.02))
    choice = choose_plan(GPT, config, "cpu", 1, 8, machine=quick)
    known = autotune.load_measurements(GPT, config, "cpu", 1)
    assert [m.width for m in known][:2] == [1, 4]
    assert all(m.member_steps_per_second > 0 for m in known)
    assert choice.plan in [ExecutionPlan(m.width) for m in known]
    assert choose_plan(GPT, config, "cpu", 1, 8, machine=Machine(measure=None)) == choice, "nothing is measured again"


MEMORY = "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"


def test_a_width_that_memory_does_not_hold_ends_the_measurement() -> None:
    machine = Known({1: 100, 4: 300, 16: 900}, error_from=(16, MEMORY))
    assert machine.chosen(members=100) == ExecutionPlan(4)


def test_any_other_failure_of_a_measurement_is_one() -> None:
    machine = Known({1: 100}, error_from=(4, "shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        machine.chosen(members=100)
