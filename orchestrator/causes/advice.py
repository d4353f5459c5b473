"""What to change: moves checked against cells, small sweeps for what no cell answers, reasons for a broken run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from orchestrator.base.errors import InputError
from orchestrator.base.intervals import CONFIDENCE, fisher, holm
from orchestrator.base.query import flat, hidden, named, reported
from orchestrator.base.space import format_value
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import is_known
from orchestrator.causes.diagnosis import Diagnosis
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.mechanisms.mechanism import LOWER_LR, Move, just, scaled
from orchestrator.causes.moments import number_of
from orchestrator.causes.small_sweeps import small_sweep
from orchestrator.maps.neighbours import Neighbour, above, below, neighbours, null_of

Judgement = Literal["yes", "no", "not known"]
Standing = Literal["proven", "suggested", "untested", "refuted"]
_STANDINGS: tuple[Standing, ...] = ("proven", "suggested", "untested", "refuted")

# The smallest number above zero of a precision, and the smallest with all its digits (IEEE 754; bfloat16 has the
# exponent of float32). A smaller eps is zero there, or nearly.
SMALLEST = {"float16": (6.0e-8, 6.1e-5), "bfloat16": (9.2e-41, 1.2e-38), "float32": (1.4e-45, 1.2e-38)}
LARGEST = {"float16": "65504", "bfloat16": "3e38", "tf32": "3e38", "float32": "3e38"}
_NEAR = 1  # steps between two trials that break at the same data: a gradient breaks one step before a loss
_NUM_SEEDS = 3  # of the run that shows whether the data break it

_LOWER_LR = Move("lr", "lower", "most runs that break take steps that are too long", scaled("lr", 0.5, 0.1))
_MORE_BITS = Move("precision", "switch", "numbers that 16 bits cannot hold", just("bfloat16", "float32"))
_RAISE_EPS = Move("eps", "raise", "an eps that rounds to zero divides by zero", just(1e-7, 1e-4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A move, and the evidence for it in the sweep's cells.

    ``here`` is the trial's cell, ``nearest`` the next cell in the direction of the move, ``stable`` the next stable one
    there or None. ``p_value`` is the chance that as many seeds are stable in that direction if the setting does
    nothing, corrected for the cells there and for the moves; None without a stable cell. ``sweep_file`` is a small
    sweep to try if no cell answers; if it cannot be written, it is None and ``refusal`` says why.
    """

    move: Move = flat()
    here: Neighbour | None
    nearest: Neighbour | None
    stable: Neighbour | None
    p_value: float | None = None
    sweep_file: str | None = named("sweep")
    refusal: str = ""

    @reported
    def standing(self) -> Standing:
        """Suggested by a stable cell in the direction of the move, proven if more than chance, refuted without one."""
        if self.stable is None or self.p_value is None:
            return "untested" if self.nearest is None else "refuted"
        return "proven" if self.p_value <= 1 - CONFIDENCE else "suggested"


def advised(diagnosis: Diagnosis, folder: Path) -> tuple[list[Advice], list[Reason]]:
    """The advice for a trial of the sweep in ``folder``, and the possible reasons for a loss that is not finite.

    Leaves out advice on a setting that one of the reasons advises on. A stable trial gets no advice.
    """
    advice = []
    if diagnosis.evidence.outcome != "stable":
        mechanism = diagnosis.cause.mechanism if diagnosis.cause is not None else None
        advice = advise(diagnosis.evidence, mechanism, folder)
    reasons = reasons_not_finite(diagnosis.evidence, folder)
    covered = {reason.advice.move.setting for reason in reasons if reason.advice is not None}
    return [item for item in advice if item.move.setting not in covered], reasons


def advise(evidence: Evidence, mechanism: str | None, folder: Path) -> list[Advice]:
    """What to change in a trial of the sweep in ``folder`` that ``mechanism`` led off its trend.

    What the sweep's own cells prove comes first, then what they suggest, what they do not test, and what they refute.
    Without a known mechanism, a lower learning rate if the sweep shows that to be stable. Leaves out settings that do
    not act in the trial, and settings that already have the advised value.
    """
    if mechanism is not None:
        moves = MECHANISMS[mechanism].moves
    else:
        lower = below(evidence.cells("lr"), evidence.config.get("lr"))
        moves = (LOWER_LR,) if evidence.onset is not None and any(cell.is_stable for cell in lower) else ()
    checked = [check(evidence, move, folder) for move in moves if _acts(evidence, move.setting)]
    advice = [advice for advice in checked if advice is not None]
    corrected = holm([one.p_value for one in advice])
    advice = [replace(one, p_value=p_value) for one, p_value in zip(advice, corrected, strict=True)]
    return sorted(advice, key=lambda item: _STANDINGS.index(item.standing))


def _acts(evidence: Evidence, setting: str) -> bool:
    """Whether the trial uses the setting, and not another one instead."""
    if setting in ("beta2", "beta2_half_life") and setting != evidence.memory_setting:
        return False
    return setting in evidence.config


def check(evidence: Evidence, move: Move, folder: Path) -> Advice | None:
    """Check a move against the sweep's cells, or write a small sweep if there are none; None if already done."""
    own = evidence.config[move.setting]
    cells = neighbours(evidence.sisters, evidence.trial, move.setting)
    known = [cell for cell in cells if is_known(cell.state)]
    if move.direction == "switch":
        candidates = [cell for cell in known if cell.value != own]
    elif move.direction == "lower":
        candidates = below(known, own)
    else:
        candidates = above(known, own, null_of(move.setting))
    nearest = candidates[0] if candidates else None
    sweep_file, refusal = None, ""
    if nearest is None:
        values = _values(own, move, evidence)
        if not values:
            return None
        try:
            sweep_file = small_sweep(folder, evidence.trial, move.direction, move.setting, values)
        except InputError as error:
            refusal = refusal_of(error)
    stable = next((cell for cell in candidates if cell.is_stable), None)
    return Advice(
        move=move,
        here=next((cell for cell in cells if cell.value == own), None),
        nearest=nearest,
        stable=stable,
        p_value=None if stable is None else _chance(known, candidates, stable, is_ordered=move.direction != "switch"),
        sweep_file=sweep_file,
        refusal=refusal,
    )


def _chance(
    known: Sequence[Neighbour], candidates: Sequence[Neighbour], stable: Neighbour, *, is_ordered: bool
) -> float:
    """The chance that so many more seeds are stable from ``stable`` on than elsewhere, if the setting does nothing.

    Fisher's exact test, times the number of ``candidates`` among which ``stable`` was found. Words have no order: only
    the stable one counts, against cells that cannot be chosen.
    """
    far = candidates[candidates.index(stable) :] if is_ordered else [stable]
    near = [cell for cell in known if cell not in (far if is_ordered else candidates)]
    hits, other_hits = (sum(cell.num_stable for cell in cells) for cells in (far, near))
    num, other_num = (sum(cell.num_finished for cell in cells) for cells in (far, near))
    return min(1.0, len(candidates) * fisher(hits, num, other_hits, other_num))


def refusal_of(error: InputError) -> str:
    """The key and message of an error, without its file and remedy."""
    first = error.problems[0]
    return first if isinstance(first, str) else ": ".join(part for part in (first.key, first.message) if part)


def _values(own: Any, move: Move, evidence: Evidence) -> list[Any]:
    """The values of a small sweep that lie in the direction of the move."""
    values = list(dict.fromkeys(move.values(evidence)))
    if move.direction == "switch":
        return [value for value in values if value != own]
    is_lower = move.direction == "lower"
    return [value for value in values if own is None or (value < own if is_lower else value > own)]


# --- a loss or gradient that is not finite ---


@dataclass(frozen=True, slots=True)
class Reason:
    """One possible reason: the ``answer`` of the evidence, the evidence in words, and what to change or to run.

    ``sweep_file`` is a small sweep that would decide a question that is not about a setting.
    """

    key: str = named("branch")
    title: str = hidden()
    answer: Judgement = named("says")
    evidence: tuple[str, ...] = named("evidence")
    advice: Advice | None = hidden(default=None)
    sweep_file: str | None = hidden(default=None)

    @reported
    def sweep(self) -> str | None:
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
        Reason("lr", "learning rate, halved or a tenth", *_learning_rate(evidence, folder)),
        Reason("precision", "loss scale and precision", *_precision(evidence, folder)),
        _data(evidence, folder, step),
        Reason("eps", "eps, for the precision", *_epsilon(evidence, folder)),
    ]


_Answer = tuple[Judgement, tuple[str, ...], Advice | None]  # with its evidence in words


def _learning_rate(evidence: Evidence, folder: Path) -> _Answer:
    if evidence.number("lr") is None:
        return "not known", ("the sweep file has no field lr; under that name it can be varied",), None
    advice = check(evidence, _LOWER_LR, folder)
    if advice is None or advice.nearest is None:
        return "not known", ("no cell of this sweep has a lower learning rate",), advice
    if advice.stable is None:
        return "no", ("no lower learning rate is stable either",), advice
    return "yes", (f"with lr {format_value(advice.stable.value)} the same cell is stable",), advice


def _precision(evidence: Evidence, folder: Path) -> _Answer:
    precision = evidence.config.get("precision")
    skipped, scale = evidence.column("is_skipped"), evidence.column("loss_scale").smallest()
    words = [f"{int(skipped.value_N.sum())} updates were skipped"] if len(skipped) else []
    words += [f"loss scale down to {scale:g}"] if scale is not None else []
    if precision is None:
        text = "the precision is not known; as a field named precision in the sweep file it can be varied"
        return "not known", (text, *words), None
    limit = f", which ends at {LARGEST[precision]}" if precision in LARGEST else ""
    words = [f"precision {precision}{limit}", *words]
    if precision not in ("float16", "bfloat16"):
        return "no", tuple(words), None
    wider = ("bfloat16", "float32") if precision == "float16" else ("float32",)
    advice = check(evidence, replace(_MORE_BITS, values=just(*wider)), folder)
    if advice is None or advice.nearest is None:
        return "not known", (*words, "no cell has another precision"), advice
    words.append(f"with another precision {'it is stable' if advice.stable else 'it is not stable either'}")
    return "yes" if advice.stable else "no", tuple(words), advice


def _data(evidence: Evidence, folder: Path, step: int) -> Reason:
    """Whether trials with the same seed, which see the same data, break at the same step."""
    title, trial = f"the data of step {step}", evidence.trial
    others = [row for row in evidence.sisters if row.trial_id != trial.trial_id and row.outcome is not None]
    reached = [
        row for row in others if row.seed == trial.seed and row.steps_done is not None and row.steps_done >= step
    ]
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
    seeds = [trial.seed + i for i in range(_NUM_SEEDS)]
    words.append(f"no other trial of seed {trial.seed} came as far; seeds with other data would show it")
    try:
        sweep_file = small_sweep(folder, trial, "seeds", None, [], seeds)
    except InputError as error:
        return Reason("data", title, "not known", (*words, f"a small sweep is refused: {refusal_of(error)}"))
    return Reason("data", title, "not known", tuple(words), sweep_file=sweep_file)


def _broke_at(row: TrialResult, step: int) -> bool:
    ended = row.outcome == "diverged" and row.final_loss is None and row.onset_step is not None
    return ended and abs((row.steps_done or 0) - 1 - step) <= _NEAR


def _epsilon(evidence: Evidence, folder: Path) -> _Answer:
    eps, precision = number_of(evidence.config_in_force, "eps"), evidence.config.get("precision")
    if eps is None and evidence.is_adam is False:
        return "no", ("the optimizer has none",), None
    if eps is None:
        return "not known", ("eps is not known",), None
    own = f"eps {format_value(eps)}"
    if precision is None:
        return "not known", (f"{own}; the precision is not known",), None
    if precision not in SMALLEST:
        return "no", (f"{own}; the precision is {precision}",), None
    smallest, exact = SMALLEST[precision]
    if eps >= exact:
        return "no", (f"{own} is above {exact:g}, the smallest number with all digits in {precision}",), None
    what = "is zero" if eps < smallest else "has lost digits"
    text = f"{own} {what} in {precision}, whose numbers end at {smallest:g}"
    note = "it counts if the optimizer's own numbers have that precision"
    advice = check(evidence, _RAISE_EPS, folder)
    if advice is not None and advice.standing == "refuted":
        return "no", (text, "no higher eps is stable either"), advice
    return "not known", (text, note), advice
