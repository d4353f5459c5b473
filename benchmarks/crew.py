"""Processes that do the same work at the same time, and their throughput in a time window."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

# Trains a little and returns the number of member-steps.
Advance = Callable[[], int]
# Single-threaded processes of every arm on the CPU.
WORKERS = 2
# Steps until memory is warm and every kernel has been chosen, beyond the first one.
_WARM_SECONDS = 1.0
_START_TIMEOUT_S = 900.0
_END_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Window:
    """The result of a crew in one window: member-steps per second over all processes."""

    member_steps_per_second: float
    member_steps: list[int]
    seconds: list[float]


class CrewFailed(RuntimeError):
    """A process of a crew failed; the message is its own error."""


class Crew:
    """Persistent processes, started by spawn, that train only while they are measured.

    ``start_seconds`` is the time until all have finished their first piece of work: imports, building, probing,
    compiling. The warm-up after it is not counted. ``notes`` are messages from the processes.
    """

    def __init__(self, make: Callable[..., Advance], arguments: Sequence[tuple[Any, ...]]) -> None:
        context = multiprocessing.get_context("spawn")
        started = time.perf_counter()
        self._pipes: list[Connection] = []
        self._processes = []
        for one in arguments:
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, make, one), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        try:
            self.notes = self._gather()
            self.start_seconds = time.perf_counter() - started
            self._ask(_WARM_SECONDS)
            self._gather()
        except BaseException:
            self.close()
            raise

    def measure(self, seconds: float) -> Window:
        """Let all processes train for ``seconds``; each finishes the piece of work that it has started."""
        self._ask(seconds)
        counts = self._gather()
        steps, times = [count[0] for count in counts], [count[1] for count in counts]
        return Window(sum(n / t for n, t in zip(steps, times, strict=True)), steps, times)

    def close(self) -> None:
        """End all processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_END_TIMEOUT_S)  # it sees the closed pipe at its next read
            process.terminate()
            process.join()

    def _ask(self, seconds: float) -> None:
        for pipe in self._pipes:
            pipe.send(seconds)

    def _gather(self) -> list[Any]:
        answers = []
        for pipe in self._pipes:
            try:
                if not pipe.poll(_START_TIMEOUT_S):
                    raise CrewFailed(f"no answer within {_START_TIMEOUT_S:.0f} s")
                answer = pipe.recv()
            except (EOFError, ConnectionError):
                raise CrewFailed("a process died without a word: out of memory?") from None
            if isinstance(answer, Exception):
                raise answer
            answers.append(answer)
        return answers


def count_steps(advance: Advance, seconds: float) -> tuple[int, float]:
    """Member-steps done in at least ``seconds``, and the exact time they took.

    It is the time of this process's single thread on its core, so other work on the machine changes little.
    """
    steps, started = 0, time.process_time()
    while (elapsed := time.process_time() - started) < seconds:
        steps += advance()
    return steps, elapsed


def interleaved(crews: dict[str, Crew], rounds: int, seconds: float, say: Callable[[str], None]) -> dict[str, list]:
    """Windows of each crew, one per round; every round starts with another crew."""
    windows: dict[str, list[dict[str, Any]]] = {name: [] for name in crews}
    for i in range(rounds):
        for name in rotated(list(crews), i):
            window = crews[name].measure(seconds)
            windows[name].append(asdict(window))
            say(f"  round {i + 1}/{rounds}  {name:<24} {window.member_steps_per_second:10,.1f} member-steps/s")
    return windows


def rotated(names: Sequence[str], by: int) -> list[str]:
    """``names`` rotated by ``by``, so that no arm always runs at the same time of a round."""
    start = by % max(1, len(names))
    return [*names[start:], *names[:start]]


def _serve(pipe: Connection, make: Callable[..., Advance], arguments: tuple[Any, ...]) -> None:
    try:
        advance = make(*arguments)
        advance()
        pipe.send(getattr(advance, "note", ""))
        while True:
            pipe.send(count_steps(advance, pipe.recv()))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the parent has closed the connection
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        pipe.send(CrewFailed(f"{type(error).__name__}: {lines[0][:300]}"))
