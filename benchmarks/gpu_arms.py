"""The arms of the GPU comparison; needs torch and the objectives, nothing of the orchestrator."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.crew import Advance, Window, count_steps
from benchmarks.plain_gpt import PlainTrainer, Style
from benchmarks.sizes import Size
from objectives.base import OBJECTIVES, ExecutionPlan, GptConfig

NUM_SEEDS = 3
# The worker of sweep looks at the metrics of its pack as often.
_STEPS_PER_LOOK = 10
_WARM_STEPS = 3
_PEAK_WIDTH = {"cuda": 8192, "cpu": 1024}
# Learning rates of a stack run from the first to the second, evenly on a log scale: all of them stable.
_LR = (1e-4, 1e-3)
STYLES = {
    "eager default": Style("default"),
    "eager fused": Style("fused"),
    "compiled": Style("fused", is_compiled=True, compile_mode="reduce-overhead"),
}


class Here:
    """An arm that runs in this process, measured like a crew of one."""

    def __init__(self, make: Callable[..., Advance], *arguments: Any) -> None:
        started = time.perf_counter()
        self._advance: Advance | None = make(*arguments)
        self._advance()
        self.start_seconds = time.perf_counter() - started
        for _ in range(_WARM_STEPS):
            self._advance()

    def measure(self, seconds: float) -> Window:
        """Train for ``seconds``, to the end of the current piece of work."""
        assert self._advance is not None
        steps, took = count_steps(self._advance, seconds)
        return Window(steps / took, [steps], [took])

    def close(self) -> None:
        """Release the memory."""
        self._advance = None


def free_memory() -> None:
    """Release memory that no living tensor uses."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def member_configs(size: Size, num_members: int, precision: str) -> list[GptConfig]:
    """Trials that differ in the learning rate."""
    low, high = _LR
    return [
        GptConfig(
            steps=1_000_000,
            lr=low * (high / low) ** (k / max(1, num_members - 1)),
            warmup=10,
            precision=precision,
            **size.fields,
        )
        for k in range(num_members)
    ]


def stack(size: Size, precision: str, device: str, num_members: int, is_compiled: bool) -> Advance:
    """A pack as sweep trains it: metrics stay on the device and are read every ten steps."""
    configs = member_configs(size, num_members, precision)
    seeds = [k % NUM_SEEDS for k in range(num_members)]
    trainer = OBJECTIVES["gpt"].start(configs, seeds, device, ExecutionPlan(num_members, is_compiled))
    curve: list[torch.Tensor] = []

    def advance() -> int:
        metrics = [trainer.step() for _ in range(_STEPS_PER_LOOK)]
        values = [value.double() for row in metrics for value in row.values()]
        curve.append(torch.stack(values).cpu())
        return num_members * _STEPS_PER_LOOK

    return advance


def plain(size: Size, precision: str, device: str, style_name: str) -> Advance:
    """One trial of the plain trainer, which reads its loss at every step."""
    torch.set_num_threads(1)
    (config,) = member_configs(size, 1, precision)
    trainer, curve = PlainTrainer(config, 0, STYLES[style_name], device), []

    def advance() -> int:
        curve.extend(trainer.step() for _ in range(_STEPS_PER_LOOK))
        return _STEPS_PER_LOOK

    return advance


def measured_peak(device: str, precision: str, seconds: float) -> float:
    """Operations per second of large square matrix products in ``precision``."""
    width = _PEAK_WIDTH[device]
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    a, b = (torch.randn(width, width, device=device, dtype=dtype) for _ in range(2))

    def advance() -> int:
        product = torch.mm(a, b)
        _ = product[0, 0].item()  # waits for the device
        return 1

    count_steps(advance, seconds / 4)
    products, took = count_steps(advance, seconds)
    return products * 2 * width**3 / took


def device_facts(device: str) -> dict[str, Any]:
    """The device's name and the versions; nothing that identifies the machine."""
    from benchmarks.machine import cpu_model

    name = torch.cuda.get_device_name() if device == "cuda" else cpu_model()
    facts = {"device": device, "name": name, "torch": torch.__version__, "cuda": torch.version.cuda}
    if device == "cuda":
        facts["memory_gib"] = round(torch.cuda.get_device_properties(0).total_memory / 2**30)
    return facts
