"""A loss or gradient that is not finite: what to look at, step by step, with the evidence or the run that tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from orchestrator.base.errors import InputError
from orchestrator.base.space import format_value
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.advice import Advice, advice_lines, check, refusal_of
from orchestrator.causes.evidence import Evidence, number_of
from orchestrator.causes.mechanisms.moves import Move, just, scaled
from orchestrator.causes.small_sweep import written_sweep

Says = Literal["yes", "no", "not known"]

# The smallest number above zero that a precision holds, and the one that it keeps all its digits for (IEEE 754; the
# exponent of bfloat16 is that of float32). A smaller eps is zero there, or nearly.
SMALLEST = {"float16": (6.0e-8, 6.1e-5), "bfloat16": (9.2e-41, 1.2e-38), "float32": (1.4e-45, 1.2e-38)}
LARGEST = {"float16": "65504", "bfloat16": "3e38", "tf32": "3e38", "float32": "3e38"}
_NEAR = 1  # steps between two trials that break at the same data: a gradient breaks one step before a loss
_MOST_SEEDS = 3  # of the run that tells whether it is the data

_LOWER_LR = Move("lr", "lower", "most runs that break take steps that are too long", scaled("lr", 0.5, 0.1))
_MORE_BITS = Move("precision", "switch", "numbers that 16 bits cannot hold", just("bfloat16", "float32"))
_RAISE_EPS = Move("eps", "raise", "an eps that rounds to zero divides by zero", just(1e-7, 1e-4))


@dataclass(frozen=True, slots=True)
class Branch:
    """One possible reason: whether the evidence ``says`` so, the evidence in words, and what to change or to run.

    ``sweep_file`` is a small sweep that would tell where it is not about a setting.
    """

    key: str
    title: str
    says: Says
    evidence: tuple[str, ...]
    advice: Advice | None = None
    sweep_file: str | None = None


def broken_step(evidence: Evidence) -> int | None:
    """The first step whose loss or gradient was not finite; None for a trial that ended on finite ones."""
    trial = evidence.trial
    if trial.outcome != "diverged" or trial.final_loss is not None:
        return None
    last = min((int(curve.step_N[-1]) for curve in (evidence.loss, evidence.grad_norm) if len(curve)), default=-1)
    return last + 1


def branches(evidence: Evidence, folder: Path) -> list[Branch]:
    """What to look at in a trial that is no longer finite, the commonest first; empty for any other trial."""
    step = broken_step(evidence)
    if step is None:
        return []
    return [
        _learning_rate(evidence, folder),
        _precision(evidence, folder),
        _data(evidence, folder, step),
        _epsilon(evidence, folder),
    ]


def _learning_rate(evidence: Evidence, folder: Path) -> Branch:
    title = "the learning rate: half of it, or a tenth"
    if evidence.number("lr") is None:
        return Branch("lr", title, "not known", ("the sweep file has no field lr: name it so, and it can be varied",))
    advice = check(evidence, _LOWER_LR, folder)
    if advice is None or advice.nearest is None:
        return Branch("lr", title, "not known", ("no cell of this sweep has a lower learning rate",), advice)
    if advice.stable is not None:
        value = format_value(advice.stable.value)
        return Branch("lr", title, "yes", (f"with lr {value} the same cell is stable",), advice)
    return Branch("lr", title, "no", ("no lower learning rate is stable either",), advice)


def _precision(evidence: Evidence, folder: Path) -> Branch:
    title = "loss scale and precision"
    precision, said = evidence.config.get("precision"), []
    skipped, scale = evidence.column("is_skipped"), evidence.column("loss_scale").smallest()
    if len(skipped):
        said.append(f"{int(skipped.value_N.sum())} updates were skipped")
    if scale is not None:
        said.append(f"loss scale down to {scale:g}")
    if precision is None:
        text = "the precision is not known: a field named precision in the sweep file says it, and can be varied"
        return Branch("precision", title, "not known", (text, *said))
    said.insert(0, f"precision {precision}" + (f", which ends at {LARGEST[precision]}" if precision in LARGEST else ""))
    if precision not in ("float16", "bfloat16"):
        return Branch("precision", title, "no", tuple(said))
    advice = check(evidence, replace(_MORE_BITS, values=just(*_wider(precision))), folder)
    if advice is None or advice.nearest is None:
        return Branch("precision", title, "not known", (*said, "no cell has another precision"), advice)
    said.append(f"with another precision {'it is stable' if advice.stable else 'it is not stable either'}")
    return Branch("precision", title, "yes" if advice.stable else "no", tuple(said), advice)


def _wider(precision: str) -> Sequence[str]:
    return ("bfloat16", "float32") if precision == "float16" else ("float32",)


def _data(evidence: Evidence, folder: Path, step: int) -> Branch:
    """Whether trials that see the same data, those of the same seed, break at the same step."""
    title, trial = f"the data of step {step}", evidence.trial
    same = [row for row in evidence.sisters if _is_other(row, trial) and row.seed == trial.seed and _reached(row, step)]
    others = [row for row in evidence.sisters if _is_other(row, trial) and row.seed != trial.seed]
    said = []
    text = evidence.batch_text(step)
    if text is not None:
        said.append(f"the batch of step {step}: {text}")
    broke = [row for row in same if _broke_at(row, step)]
    elsewhere = [row for row in others if _broke_at(row, step)]
    if same:
        said.append(f"{len(broke)} of {len(same)} other trials of seed {trial.seed} that came as far broke there too")
    if elsewhere:
        said.append(f"so did {len(elsewhere)} of other seeds: their data are the same there, or it is not the data")
    if broke and 2 * len(broke) >= len(same):
        said.append("look at that batch; it counts only if the order of the data follows the seed")
        return Branch("data", title, "yes", tuple(said))
    if same:
        return Branch("data", title, "no", tuple(said))
    seeds = [trial.seed, *(trial.seed + i for i in range(1, _MOST_SEEDS))]
    said.append(f"no other trial of seed {trial.seed} came as far; seeds with other data would tell")
    try:
        return Branch(
            "data", title, "not known", tuple(said),
            sweep_file=written_sweep(folder, trial, "seeds", None, [], seeds),
        )  # fmt: skip
    except InputError as error:
        return Branch("data", title, "not known", (*said, f"a small sweep would be refused: {refusal_of(error)}"))


def _is_other(row: TrialResult, trial: TrialResult) -> bool:
    return row.trial_id != trial.trial_id and row.outcome is not None


def _reached(row: TrialResult, step: int) -> bool:
    return row.steps_done is not None and row.steps_done >= step


def _broke_at(row: TrialResult, step: int) -> bool:
    ended = row.outcome == "diverged" and row.final_loss is None and row.onset_step is not None
    return ended and abs((row.steps_done or 0) - 1 - step) <= _NEAR


def _epsilon(evidence: Evidence, folder: Path) -> Branch:
    title = "eps, for the precision"
    eps, precision = number_of(evidence.config_in_force, "eps"), evidence.config.get("precision")
    if eps is None:
        text = "eps is not known" if evidence.is_adam is not False else "the optimizer has none"
        return Branch("eps", title, "not known" if evidence.is_adam is not False else "no", (text,))
    if precision not in SMALLEST:
        text = f"eps {format_value(eps)}; the precision is " + ("not known" if precision is None else str(precision))
        return Branch("eps", title, "not known" if precision is None else "no", (text,))
    smallest, exact = SMALLEST[precision]
    if eps >= exact:
        return Branch("eps", title, "no", (f"eps {format_value(eps)} is above {exact:g}, as small as {precision} is",))
    what = "is zero" if eps < smallest else "has lost digits"
    said = f"eps {format_value(eps)} {what} in {precision}, whose numbers end at {smallest:g}"
    note = "it counts where the optimizer's own numbers have that precision"
    return Branch("eps", title, "not known", (said, note), check(evidence, _RAISE_EPS, folder))


def not_finite_lines(found: Sequence[Branch], step: int | None, outcome: str) -> Iterator[str]:
    """The branches in words, in their order; of the small sweeps the first is printed."""
    if not found:
        return
    yield f"not finite from step {step} on; to look at, in this order:"
    shown = False
    for number, branch in enumerate(found, 1):
        yield f"  {number}. {branch.title}: {branch.says}"
        yield from (f"     {text}" for text in branch.evidence)
        if branch.says == "no":
            continue
        sweep_file = branch.sweep_file
        if branch.advice is not None:
            if branch.advice.nearest is not None:
                yield from (f"     {line.strip()}" for line in advice_lines([branch.advice], outcome)[1:])
            elif branch.advice.refusal:
                yield f"     a small sweep would be refused: {branch.advice.refusal}"
            sweep_file = branch.advice.sweep_file
        if sweep_file is not None and not shown:
            yield from ("     this sweep would tell:", "", *(f"        {line}" for line in sweep_file.splitlines()), "")
            shown = True
        elif sweep_file is not None:
            yield "     a small sweep would tell, see below"


def branches_json(found: Sequence[Branch]) -> list[dict[str, Any]]:
    """The branches as plain data."""
    return [
        {"branch": one.key, "says": one.says, "evidence": list(one.evidence), "sweep": sweep_of(one)} for one in found
    ]


def sweep_of(branch: Branch) -> str | None:
    """The small sweep that would tell."""
    return branch.advice.sweep_file if branch.advice is not None else branch.sweep_file
