"""What is said of a custom trainer that is started again, and of one that is resumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.causes.remedies.answer import Remedies
from orchestrator.causes.remedies.repeats import Difference


def repeats_lines(found: Remedies) -> Iterator[str]:
    """Whether the control repeats the trial, whether a fork that is left alone does, and what had no effect."""
    if found.control_repeats:
        yield "control: started again from its seed, the trainer repeats the trial's losses bit for bit"
    else:
        yield (
            "control: started again from its seed, the trainer does NOT repeat the trial's losses"
            f"{_how(found.control_difference)}; the forks below are compared with each other all the same"
        )
    exact = [one.fork_step for one in found.repeats.resumed if one.differs is None]
    if exact:
        yield f"resumed and left alone, it repeats the trial bit for bit: from {_steps(exact)}"
    for one in found.repeats.resumed:
        if one.differs is not None:
            yield (
                f"resumed at step {one.fork_step} and left alone, it does NOT repeat the trial{_how(one.differs)}: to "
                "be resumed is a change by itself, and a remedy has to do better than that"
            )
    steps: dict[str, list[int]] = {}
    for name, step in found.repeats.without_effect:
        steps.setdefault(name, []).append(step)
    for name, at in steps.items():
        yield (
            f"{name} had no effect from {_steps(at)}: the losses are those of the fork that is left alone. Either it "
            "does not act there, or the trainer takes the value from its checkpoint, as optimizers do, and not from "
            "its arguments"
        )


def _how(differs: Difference | None) -> str:
    if differs is None:
        return ", but in other columns alone"
    by = f", by up to {differs.largest:.2g} of the loss before the onset" if differs.largest else ""
    return f": they differ from step {differs.step} on{by}"


def _steps(steps: Sequence[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"
