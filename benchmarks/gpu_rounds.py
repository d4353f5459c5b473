"""One size and precision on a GPU: arms are started, measured in interleaved rounds, and closed."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from benchmarks import gpu_arms
from benchmarks.crew import Crew, CrewFailed, rotated
from benchmarks.sizes import Size, flops_per_member_step

_SERIAL, _STACK, _PROCESSES = "serial", "stack", "processes"


def compare(
    size: Size, precision: str, peak: float, chosen: argparse.Namespace, say: Callable[[str], None]
) -> dict[str, Any]:
    """All arms at one size and precision: a row for each, and the ratio of the best stack to the best of the others."""
    # With compiled code of other sizes, torch would try dynamic shapes and finally fall back to eager.
    torch._dynamo.reset()
    styles = [name for name in gpu_arms.STYLES if not (chosen.eager_only and name == "compiled")]
    kinds = ["eager"] if chosen.eager_only else ["eager", "compiled"]
    arms = OpenArms(chosen.rounds, chosen.seconds, lambda text: say(f"  {size.name} {precision}: {text}"))
    shape = (size, precision, chosen.device)

    def open_stack(name: str) -> bool:
        _, num_members, kind = name.split()
        return arms.open(name, lambda: gpu_arms.Here(gpu_arms.stack, *shape, int(num_members), kind == "compiled"))

    def open_processes(count: int, style: str) -> bool:
        return arms.open(f"{count} {_PROCESSES} {style}", lambda: Crew(gpu_arms.plain, [(*shape, style)] * count))

    try:
        for style in styles:
            arms.open(f"{_SERIAL} {style}", lambda style=style: gpu_arms.Here(gpu_arms.plain, *shape, style))
        for num_members in chosen.members:
            # Together with the serial arms, one stack size after another: all at once would not fit.
            stacks = [f"{_STACK} {num_members} {kind}" for kind in kinds]
            opened = [open_stack(name) for name in stacks]
            if not any(opened):
                break  # larger stacks do not fit either
            arms.measure()
            arms.close(stacks)
        fastest = max((name for name in arms.windows if name.startswith(_STACK)), key=arms.speed, default=None)
        if chosen.processes and fastest and open_stack(fastest):
            for count in chosen.processes:
                for style in styles:
                    open_processes(count, style)
            arms.measure()
    finally:
        arms.close(list(arms.running))
    return {
        "size": size.name,
        "precision": precision,
        "arms": [*rows(arms, size, peak), *({"arm": name, "error": error} for name, error in arms.errors.items())],
        "ratios": ratios({name: arms.speed(name) for name in arms.windows}),
    }


class OpenArms:
    """Arms that are ready to be measured, and all windows so far; one that fails is recorded and left out."""

    def __init__(self, rounds: int, seconds: float, say: Callable[[str], None]) -> None:
        self._rounds, self._seconds, self._say = rounds, seconds, say
        self.running: dict[str, Any] = {}
        self.start_seconds: dict[str, float] = {}
        self.windows: dict[str, list[dict[str, Any]]] = {}
        self.errors: dict[str, str] = {}

    def open(self, name: str, make: Callable[[], Any]) -> bool:
        """Start an arm; returns whether that worked."""
        self._say(f"starting {name}")
        if self._noting_errors(name, lambda: self.running.update({name: make()})):
            self.start_seconds[name] = self.running[name].start_seconds
        return name in self.running

    def measure(self) -> None:
        """Some rounds over all running arms, each starting with another one."""
        for i in range(self._rounds):
            for name in rotated(list(self.running), i):
                self._noting_errors(name, lambda name=name: self._measure(name))

    def close(self, names: Sequence[str]) -> None:
        """Close these arms if they run."""
        for name in names:
            if name in self.running:
                self.running.pop(name).close()
        gpu_arms.free_memory()

    def speed(self, name: str) -> float:
        """Median member-steps per second."""
        return statistics.median(window["member_steps_per_second"] for window in self.windows[name])

    def _measure(self, name: str) -> None:
        self.windows.setdefault(name, []).append(asdict(self.running[name].measure(self._seconds)))

    def _noting_errors(self, name: str, act: Callable[[], None]) -> bool:
        failed = False
        try:
            act()
        except (RuntimeError, ValueError, CrewFailed) as error:  # out of memory, or a failed compilation
            self.errors[name] = f"{type(error).__name__}: {(str(error).strip() or '?').splitlines()[0][:200]}"
            failed = True
        if failed:
            # Outside the handler, which keeps the frames and tensors of the failed call alive.
            self.close([name])
        return not failed


def rows(arms: OpenArms, size: Size, peak: float) -> list[dict[str, Any]]:
    """One row for each arm that was measured."""
    found = []
    for name, windows in arms.windows.items():
        speeds = [window["member_steps_per_second"] for window in windows]
        found.append(
            {
                "arm": name,
                "member_steps_per_second": {"median": arms.speed(name), "min": min(speeds), "max": max(speeds)},
                "tokens_per_second": arms.speed(name) * size.tokens,
                "share_of_peak": arms.speed(name) * flops_per_member_step(size) / peak,
                "start_s": arms.start_seconds[name],
                "windows": windows,
            }
        )
    return found


def ratios(medians: Mapping[str, float]) -> dict[str, float | None]:
    """The best stack over the best of the others; None where one of the two was not measured."""

    def best(*words: str) -> float | None:
        return max((value for name, value in medians.items() if all(word in name for word in words)), default=None)

    ours = best(_STACK)
    others = {
        "vs_serial_eager": best(_SERIAL, "eager"),
        "vs_serial_compiled": best(_SERIAL, "compiled"),
        "vs_processes": best(_PROCESSES),
    }
    return {name: ours / theirs if ours and theirs else None for name, theirs in others.items()}
