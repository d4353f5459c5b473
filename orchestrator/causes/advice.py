"""What to change: moves checked against cells, small sweeps for what no cell answers, reasons for a broken run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from objectives.base import OBJECTIVES
from objectives.fields import inert_fields
from orchestrator.base.errors import InputError
from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.base.query import flat, hidden, named, reported
from orchestrator.base.space import format_value
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS, is_known
from orchestrator.causes.diagnosis import Diagnosis
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.mechanisms.mechanism import LOWER_LR, Move, just, scaled
from orchestrator.causes.moments import number_of
from orchestrator.maps.neighbours import Neighbour, above, below, neighbours
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.settings import settings_of
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import Document, read_document, text_of

Judgement = Literal["yes", "no", "not known"]
Standing = Literal["proven", "untested", "refuted"]
_STANDINGS: tuple[Standing, ...] = ("proven", "untested", "refuted")

# The smallest number above zero of a precision, and the smallest with all its digits (IEEE 754; bfloat16 has the
# exponent of float32). A smaller eps is zero there, or nearly.
SMALLEST = {"float16": (6.0e-8, 6.1e-5), "bfloat16": (9.2e-41, 1.2e-38), "float32": (1.4e-45, 1.2e-38)}
LARGEST = {"float16": "65504", "bfloat16": "3e38", "tf32": "3e38", "float32": "3e38"}
_NEAR = 1  # steps between two trials that break at the same data: a gradient breaks one step before a loss
CURVATURE_EVERY = 20  # steps; expensive, but these sweeps are small
_LONGEST_NAME, _LONGEST = 28, 64  # characters of the sweep's name within a small one's, and of the latter
_SHOWN_OF_ID = 6
_UNUSED = ("sample", "search", "budget", "tie", "zip", "keep", "max_trials")  # keys of a whole sweep
_NUM_SEEDS = 3  # of the run that shows whether the data break it

_LOWER_LR = Move("lr", "lower", "most runs that break take steps that are too long", scaled("lr", 0.5, 0.1))
_MORE_BITS = Move("precision", "switch", "numbers that 16 bits cannot hold", just("bfloat16", "float32"))
_RAISE_EPS = Move("eps", "raise", "an eps that rounds to zero divides by zero", just(1e-7, 1e-4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A move, and the evidence for it in the sweep's cells.

    ``here`` is the trial's cell, ``nearest`` the next cell in the direction of the move, ``stable`` the next stable one
    there or None. ``sweep_file`` is a small sweep to try if no cell answers; if it cannot be written, it is None and
    ``refusal`` says why.
    """

    move: Move = flat()
    here: Neighbour | None
    nearest: Neighbour | None
    stable: Neighbour | None
    sweep_file: str | None = named("sweep")
    refusal: str = ""

    @reported
    def standing(self) -> Standing:
        """Proven by a stable cell in the direction of the move, refuted if all known cells there are not stable."""
        return "proven" if self.stable is not None else "untested" if self.nearest is None else "refuted"


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

    What the sweep's own cells prove comes first, then what they do not test, then what they refute.
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
    else:
        candidates = (below if move.direction == "lower" else above)(known, own)
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
    return Advice(
        move=move,
        here=next((cell for cell in cells if cell.value == own), None),
        nearest=nearest,
        stable=next((cell for cell in candidates if cell.is_stable), None),
        sweep_file=sweep_file,
        refusal=refusal,
    )


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


# --- the small sweep for a question that no cell of a sweep answers ---


def small_sweep(
    folder: Path,
    trial: TrialResult,
    change: str,
    setting: str | None,
    values: Sequence[Any],
    seeds: Sequence[int] | None = None,
) -> str:
    """A sweep file with the trial's cell and the same cell with other ``values`` of ``setting``; it measures curvature.

    Made from the file of the sweep in ``folder``: same objective, stopping and, unless given, ``seeds``. Its name
    contains ``change``, raise or lower, and the start of the trial's id. Without a ``setting`` it trains the cell
    alone. Raises InputError if the file is missing or does not accept the setting. The file of a custom packed
    objective is not checked: only its code, which is not imported here, knows its fields.
    """
    document = cell_alone(folder, trial)
    data = document.data
    fixed, facts, axes = dict(data["fixed"]), _mapping(data, "facts"), {}
    if setting is not None:
        own = {**settings_of(trial.objective, trial.config), **facts, **fixed}.get(setting)
        fixed.pop(setting, None)
        if setting in facts:
            data["facts"] = {name: value for name, value in facts.items() if name != setting}
        axes = {setting: {"values": [own, *(value for value in values if value != own)]}}
    if trial.objective not in CUSTOM_KINDS:
        data["telemetry"] = {**_mapping(data, "telemetry"), "curvature": CURVATURE_EVERY}
    document.data = {**data, "axes": axes, "fixed": fixed} | ({} if seeds is None else {"seeds": list(seeds)})
    tried = change if setting is None else f"{change}_{setting}"
    name = f"{str(data.get('name', 'sweep'))[:_LONGEST_NAME]}_{tried}_{trial.trial_id[:_SHOWN_OF_ID]}"[:_LONGEST]
    if "packed" in _mapping(data, "objective"):  # only its code, which nobody allowed to import, could check the file
        return text_of({**document.data, "name": name})
    return build_sweep(document, Overrides(name=name)).text


def cell_alone(folder: Path, trial: TrialResult) -> Document:
    """The file of the sweep in ``folder`` reduced to the trial's cell: its settings in ``fixed``, without axes.

    Same objective, seeds and stopping; no search, sample, budget or ties. Not checked. Raises InputError if the file
    is missing.
    """
    document = _document(folder, trial)
    data = document.data
    settings = settings_of(trial.objective, trial.config)
    tied = {name: settings[name] for name in _mapping(data, "tie") if name in settings}
    cell = {name: settings.get(name, value) for name, value in _existing(data, trial).items()}
    given, inert = {**_mapping(data, "fixed"), **cell, **tied}, _inert(trial)
    fixed = {name: value for name, value in given.items() if name not in inert}
    kept = {key: value for key, value in data.items() if key not in _UNUSED}
    document.data = {**kept, "axes": {}, "fixed": fixed}
    return document


def _existing(data: Mapping[str, Any], trial: TrialResult) -> dict[str, Any]:
    """The trial's cell without axes that do not exist in it."""
    axes = _mapping(data, "axes")
    conditional = {name for name in axes if "when" in _mapping(axes, name)}
    return {name: value for name, value in trial.cell.items() if value is not None or name not in conditional}


def _inert(trial: TrialResult) -> set[str]:
    """The fields without effect in the trial, which its sweep file must not name."""
    objective = OBJECTIVES.get(trial.objective)
    if objective is None:
        return set()
    try:
        return inert_fields(objective.config_of(trial.config))
    except ValidationError:  # a configuration of an older version
        return set()


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The section ``key``; empty if it is not a mapping, an error that ``build_sweep`` reports if it matters."""
    section = data.get(key)
    return section if isinstance(section, Mapping) else {}


def _document(folder: Path, trial: TrialResult) -> Document:
    """Read the sweep file of ``folder``, or make one from the trial of a built-in objective. Raises InputError."""
    objective = OBJECTIVES.get(trial.objective)
    if (folder / FROZEN_SWEEP).is_file() or objective is None:
        return read_document(folder / FROZEN_SWEEP)
    fields = objective.config_class.model_fields
    wanted = fields.keys() - {"steps", *_inert(trial)}
    config = {key: value for key, value in trial.config.items() if key in wanted}
    fixed = {key: value for key, value in config.items() if value != fields[key].default and value != []}
    data = {"name": folder.name, "objective": objective.name, "steps": trial.steps, "fixed": fixed}
    return Document(str(folder), {**data, "seeds": [trial.seed]})


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
