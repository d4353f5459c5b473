"""What questions that train forks share: progress, the resources of the sweep, and whether forks repeat the trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.base.query import Say
from orchestrator.base.trial_result import MemberResult
from orchestrator.base.words import count, format_seconds, plural
from orchestrator.causes.remedies.results import Difference, Remedies
from orchestrator.driver.progress import Progress
from orchestrator.render.blocks import Block, Caution, Line
from orchestrator.sweepfile.sections import ResourcesConfig
from orchestrator.sweepfile.spec import load_sections

_SECONDS_PER_LINE = 10.0


class ProgressLines:
    """An observer of a run that says every ten seconds how far the forks are; each line starts with ``what``."""

    def __init__(self, say: Say, what: str = "") -> None:
        self._next, self._say, self._what = 0.0, say, what

    def began(self, progress: Progress) -> None:
        """Say how many forks will be trained."""
        self._next = progress.seconds + _SECONDS_PER_LINE
        self._say(f"{self._what}training {count(progress.to_train, 'run')}")

    def changed(self, progress: Progress, finished: Sequence[MemberResult]) -> None:
        """Say how many have ended, at most every ten seconds."""
        if progress.seconds >= self._next:
            self._next = progress.seconds + _SECONDS_PER_LINE
            over, num = progress.num_over, len(progress.statuses)
            self._say(f"{self._what}{over} of {num} runs have ended after {format_seconds(progress.seconds)}")

    def ended(self, progress: Progress) -> None:
        """Say what went wrong with a worker."""
        for note in progress.notes:
            self._say(note)


def resources_of(folder: Path) -> ResourcesConfig:
    """The resources that the sweep in ``folder`` was trained with."""
    frozen = folder / FROZEN_SWEEP
    return load_sections(frozen).resources if frozen.is_file() else ResourcesConfig()


def repeats(results: Remedies) -> Iterator[Block]:
    """Whether the control repeats the trial, and what a custom trainer ignores."""
    still = "the forks are compared with each other all the same"
    if results.tallies and not results.replicates_differ:
        yield Line("replicates are all alike: the data play no part in this training, so each count is of one run")
    if results.control_repeats is None:
        yield Line("control: no result yet")
    elif results.is_custom:
        yield from _custom_repeats(results, still)
    elif results.control_repeats:
        yield Line("control: an unchanged fork repeats the trial bit for bit")
    else:
        facts = [f"{name} was {before} and is {now}" for name, (before, now) in results.control_differs.items()]
        why = f": {', '.join(facts)}" if facts else ""
        yield Caution(f"an unchanged fork does NOT repeat the trial's curve bit for bit{why}; {still}", "control")


def _custom_repeats(results: Remedies, still: str) -> Iterator[Block]:
    if not results.control_repeats:
        how = _difference(results.control_difference)
        text = f"started again from its seed, the trainer does NOT repeat the trial's losses{how}; {still}"
        yield Caution(text, "control")
    # A count and no verdict: a trainer that draws at random may repeat the trial once by coincidence.
    exact = [fork.fork_step for fork in results.resumed if fork.differs is None]
    starts = (["its seed"] if results.control_repeats else []) + ([_steps(exact)] if exact else [])
    if starts:
        same, total = bool(results.control_repeats) + len(exact), 1 + len(results.resumed)
        runs = f"{same} of {total} {plural(total, 'run')}"
        yield Line(f"control: {runs} left alone had the trial's losses bit for bit: from {' and '.join(starts)}")
    for fork in results.resumed:
        if fork.differs is not None:
            text = f"at step {fork.fork_step} and left alone, it does NOT repeat the trial{_difference(fork.differs)}"
            yield Caution(f"{text}: resuming is a change by itself, and a remedy has to do better", "resumed")
    steps: dict[str, list[int]] = {}
    for ignored in results.without_effect:
        steps.setdefault(ignored.name, []).append(ignored.fork_step)
    for name, at in steps.items():
        yield Line(
            f"{name} had no effect from {_steps(at)}: the losses equal those without a remedy. Either it does not act "
            "there, or the trainer takes the value from its checkpoint, as optimizers do, and not from its arguments"
        )


def _difference(differs: Difference | None) -> str:
    if differs is None:
        return ", but only in other columns"
    by = f", by up to {differs.largest:.2g} of the loss before the onset" if differs.largest else ""
    return f": they differ from step {differs.step}{by}"


def _steps(steps: Sequence[int]) -> str:
    return f"{plural(len(steps), 'step')} {', '.join(map(str, steps))}"
