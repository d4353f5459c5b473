"""A loss or gradient that is not finite: four possible reasons, each with the evidence or the run that would decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from orchestrator.base.errors import InputError
from orchestrator.base.space import format_value
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.advice import Advice, advice_lines, check, refusal_of
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms.mechanism import Move, just, scaled
from orchestrator.causes.moments import number_of
from orchestrator.causes.small_sweep import small_sweep

Answer = Literal["yes", "no", "not known"]

# The smallest number above zero of a precision, and the smallest with all its digits (IEEE 754; bfloat16 has the
# exponent of float32). A smaller eps is zero there, or nearly.
SMALLEST = {"float16": (6.0e-8, 6.1e-5), "bfloat16": (9.2e-41, 1.2e-38), "float32": (1.4e-45, 1.2e-38)}
LARGEST = {"float16": "65504", "bfloat16": "3e38", "tf32": "3e38", "float32": "3e38"}
_NEAR = 1  # steps between two trials that break at the same data: a gradient breaks one step before a loss
_NUM_SEEDS = 3  # of the run that shows whether the data break it

_LOWER_LR = Move("lr", "lower", "most runs that break take steps that are too long", scaled("lr", 0.5, 0.1))
_MORE_BITS = Move("precision", "switch", "numbers that 16 bits cannot hold", just("bfloat16", "float32"))
_RAISE_EPS = Move("eps", "raise", "an eps that rounds to zero divides by zero", just(1e-7, 1e-4))


@dataclass(frozen=True, slots=True)
class Reason:
    """One possible reason: the ``answer`` of the evidence, the evidence in words, and what to change or to run.

    ``sweep_file`` is a small sweep that would decide a question that is not about a setting.
    """

    key: str
    title: str
    answer: Answer
    evidence: tuple[str, ...]
    advice: Advice | None = None
    sweep_file: str | None = None

    @property
    def deciding_sweep(self) -> str | None:
        """The small sweep that would decide."""
        return self.advice.sweep_file if self.advice is not None else self.sweep_file


def broken_step(evidence: Evidence) -> int | None:
    """The first step whose loss or gradient was not finite; None for a trial that ended on finite numbers."""
    trial = evidence.trial
    if trial.outcome != "diverged" or trial.final_loss is not None:
        return None
    last = min((int(curve.step_N[-1]) for curve in (evidence.loss, evidence.grad_norm) if len(curve)), default=-1)
    return last + 1


def reasons_not_finite(evidence: Evidence, folder: Path) -> list[Reason]:
    """The possible reasons for a trial that is no longer finite, the most common first; empty for any other trial."""
    step = broken_step(evidence)
    if step is None:
        return []
    return [
        _learning_rate(evidence, folder),
        _precision(evidence, folder),
        _data(evidence, folder, step),
        _epsilon(evidence, folder),
    ]


def _learning_rate(evidence: Evidence, folder: Path) -> Reason:
    title = "learning rate, halved or a tenth"
    if evidence.number("lr") is None:
        text = "the sweep file has no field lr; under that name it can be varied"
        return Reason("lr", title, "not known", (text,))
    advice = check(evidence, _LOWER_LR, folder)
    if advice is None or advice.nearest is None:
        return Reason("lr", title, "not known", ("no cell of this sweep has a lower learning rate",), advice)
    if advice.stable is not None:
        text = f"with lr {format_value(advice.stable.value)} the same cell is stable"
        return Reason("lr", title, "yes", (text,), advice)
    return Reason("lr", title, "no", ("no lower learning rate is stable either",), advice)


def _precision(evidence: Evidence, folder: Path) -> Reason:
    title = "loss scale and precision"
    precision = evidence.config.get("precision")
    skipped, scale = evidence.column("is_skipped"), evidence.column("loss_scale").smallest()
    words = [f"{int(skipped.value_N.sum())} updates were skipped"] if len(skipped) else []
    words += [f"loss scale down to {scale:g}"] if scale is not None else []
    if precision is None:
        text = "the precision is not known; as a field named precision in the sweep file it can be varied"
        return Reason("precision", title, "not known", (text, *words))
    limit = f", which ends at {LARGEST[precision]}" if precision in LARGEST else ""
    words = [f"precision {precision}{limit}", *words]
    if precision not in ("float16", "bfloat16"):
        return Reason("precision", title, "no", tuple(words))
    wider = ("bfloat16", "float32") if precision == "float16" else ("float32",)
    advice = check(evidence, replace(_MORE_BITS, values=just(*wider)), folder)
    if advice is None or advice.nearest is None:
        return Reason("precision", title, "not known", (*words, "no cell has another precision"), advice)
    words.append(f"with another precision {'it is stable' if advice.stable else 'it is not stable either'}")
    return Reason("precision", title, "yes" if advice.stable else "no", tuple(words), advice)


def _data(evidence: Evidence, folder: Path, step: int) -> Reason:
    """Whether trials with the same seed, which see the same data, break at the same step."""
    title, trial = f"the data of step {step}", evidence.trial
    others = [row for row in evidence.sisters if row.trial_id != trial.trial_id and row.outcome is not None]
    same_seed = [row for row in others if row.seed == trial.seed and row.steps_done is not None]
    reached = [row for row in same_seed if (row.steps_done or 0) >= step]
    broke = [row for row in reached if _broke_at(row, step)]
    elsewhere = [row for row in others if row.seed != trial.seed and _broke_at(row, step)]
    text = evidence.batch_text(step)
    words = [f"the batch of step {step}: {text}"] if text is not None else []
    if reached:
        words.append(
            f"{len(broke)} of the {len(reached)} other trials of seed {trial.seed} that came as far broke there"
        )
    if elsewhere:
        words.append(f"so did {len(elsewhere)} of other seeds: they share these data, or the data are not the reason")
    if broke and 2 * len(broke) >= len(reached):
        words.append("look at that batch; this counts only if the order of the data follows the seed")
        return Reason("data", title, "yes", tuple(words))
    if reached:
        return Reason("data", title, "no", tuple(words))
    seeds = [trial.seed, *(trial.seed + i for i in range(1, _NUM_SEEDS))]
    words.append(f"no other trial of seed {trial.seed} came as far; seeds with other data would show it")
    try:
        sweep_file = small_sweep(folder, trial, "seeds", None, [], seeds)
    except InputError as error:
        return Reason("data", title, "not known", (*words, f"a small sweep is refused: {refusal_of(error)}"))
    return Reason("data", title, "not known", tuple(words), sweep_file=sweep_file)


def _broke_at(row: TrialResult, step: int) -> bool:
    ended = row.outcome == "diverged" and row.final_loss is None and row.onset_step is not None
    return ended and abs((row.steps_done or 0) - 1 - step) <= _NEAR


def _epsilon(evidence: Evidence, folder: Path) -> Reason:
    title = "eps, for the precision"
    eps, precision = number_of(evidence.config_in_force, "eps"), evidence.config.get("precision")
    if eps is None and evidence.is_adam is False:
        return Reason("eps", title, "no", ("the optimizer has none",))
    if eps is None:
        return Reason("eps", title, "not known", ("eps is not known",))
    own = f"eps {format_value(eps)}"
    if precision is None:
        return Reason("eps", title, "not known", (f"{own}; the precision is not known",))
    if precision not in SMALLEST:
        return Reason("eps", title, "no", (f"{own}; the precision is {precision}",))
    smallest, exact = SMALLEST[precision]
    if eps >= exact:
        return Reason(
            "eps", title, "no", (f"{own} is above {exact:g}, the smallest number with all digits in {precision}",)
        )
    what = "is zero" if eps < smallest else "has lost digits"
    text = f"{own} {what} in {precision}, whose numbers end at {smallest:g}"
    note = "it counts if the optimizer's own numbers have that precision"
    return Reason("eps", title, "not known", (text, note), check(evidence, _RAISE_EPS, folder))


def not_finite_lines(reasons: Sequence[Reason], step: int | None, outcome: str) -> Iterator[str]:
    """The reasons in words, in their order, with the first small sweep."""
    if not reasons:
        return
    yield f"not finite from step {step}; possible reasons, in this order:"
    is_file_shown = False
    for number, reason in enumerate(reasons, 1):
        yield f"  {number}. {reason.title}: {reason.answer}"
        yield from (f"     {text}" for text in reason.evidence)
        if reason.answer == "no":
            continue
        if (advice := reason.advice) is not None and advice.nearest is not None:
            yield from (f"     {line.strip()}" for line in advice_lines([advice], outcome)[1:])
        elif advice is not None and advice.refusal:
            yield f"     a small sweep is refused: {advice.refusal}"
        if reason.deciding_sweep is not None and is_file_shown:
            yield "     a small sweep would decide, see below"
        elif reason.deciding_sweep is not None:
            yield from ("     this sweep would decide:", "")
            yield from (f"        {line}" for line in reason.deciding_sweep.splitlines())
            yield ""
            is_file_shown = True


def reasons_json(reasons: Sequence[Reason]) -> list[dict[str, Any]]:
    """The reasons as plain data."""
    return [
        {
            "branch": reason.key,
            "says": reason.answer,
            "evidence": list(reason.evidence),
            "sweep": reason.deciding_sweep,
        }
        for reason in reasons
    ]
