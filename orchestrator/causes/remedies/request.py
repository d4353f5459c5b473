"""What to try on the forks of a trial: the options `--try` and `--fork`, or the usual remedies and steps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from objectives.entries import HELD, RESETS, SAME, factor_of
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import is_number
from orchestrator.base.vocabulary import COLLAPSED
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.remedies.remedy import Entry, Remedy
from orchestrator.causes.remedies.results import StableCell

ONSET = "onset"
BEFORE_ONSET = (200, 50, 10, 0)  # steps
_PLUS = re.compile(r"\+(?=[a-z_0-9.]+=)")
_FORM = "write FIELD=VALUE,VALUE such as lr=x0.5,x0.25, skip=1,5, mean=5:10, reset=moments or rescale=4"
_LATER = (0.25, 0.5)  # of a run without an onset
_FOR = 50  # steps of a change that returns, and of its ramp back
_SHORT_BETA2, _LONG_BETA2 = 0.95, 0.99
_HIGHEST_EPS, _EPS_FACTOR = 1e-6, 100
_ZCLIP = 2.5  # deviations, as in the paper on ZClip (arXiv 2504.02507)
_TIGHT = 0.3  # of the median gradient norm
_MEAN_OF = 5  # states before the fork, 10 steps apart


@dataclass(frozen=True, slots=True)
class RemedyRequest:
    """What to try: texts of `--try` and `--fork`, empty for the usual; ``replicates`` of each; ``pairs`` of remedies.

    With ``each_cell`` it is meant for many trials: fewer remedies are usual, a remedy or step that a trial does not
    accept is left out instead of refused, a remedy that fails with the trial's own data is not tried with other data,
    and only what is named is tried on stable neighbours.
    """

    tried: Sequence[str] = ()
    at: Sequence[str] = ()
    replicates: int = 3
    pairs: bool = True
    allow_import: bool = False
    each_cell: bool = False


# --- options ---


def parse_remedies(texts: Iterable[str]) -> list[Remedy]:
    """Parse the remedies of `--try` options, in order, without duplicates. Raises InputError.

    ``lr=x0.5,x0.25`` are two remedies. A value may have a length: ``lr=x0.25:50`` for 50 steps, and ``lr=x0.25:50:20``
    with a ramp of 20 steps back. ``lr=x0.5+skip=5`` is one remedy of two changes.
    """
    remedies: dict[str, Remedy] = {}
    for text in texts:
        combinations: list[tuple[Entry, ...]] = [()]
        for part in _PLUS.split(text):
            changes = _changes(part, text)
            combinations = [(*before, *change) for before in combinations for change in changes]
        for entries in combinations:
            remedies.setdefault(Remedy(entries).name, Remedy(entries))
    return list(remedies.values())


def _changes(part: str, text: str) -> list[tuple[Entry, ...]]:
    name, equals, values = (word.strip() for word in part.partition("="))
    if not equals or not name or not values:
        raise _refusal(text, "is not FIELD=VALUE")
    if "=" in values:
        remedy = f"write {name}=VALUE,VALUE for two remedies of a field, or --try twice"
        raise _refusal(text, "has a second = after a comma", remedy)
    return [_change(name, value.strip(), text) for value in values.split(",")]


def _change(name: str, value: str, text: str) -> tuple[Entry, ...]:
    if name == "skip":
        return ({"at": 0, "skip": _whole(value, text, "batches to skip")},)
    if name == "mean":
        number, *apart = (_whole(part, text, "states or steps") for part in value.split(":", 1))
        return ({"at": 0, "mean": number, **({"apart": apart[0]} if apart else {})},)
    if name == "reset":
        if value not in RESETS:
            raise _refusal(text, f"cannot reset {value!r}", f"one of {', '.join(RESETS)}")
        return ({"at": 0, "reset": value},)
    if name == "rescale":
        rescale = _number(value.removeprefix("x"), text)
        if rescale <= 0:
            raise _refusal(text, f"{value!r} must be a factor above 0", "write e.g. rescale=4")
        return ({"at": 0, "rescale": rescale},)
    value, *lengths = value.split(":")
    group, _, key = name.rpartition(".")
    if (held := _held(group, key, value)) is not None:
        if len(lengths) > 1:
            raise _refusal(text, "has no ramp back", f"write {name}={value}:50 for 50 steps")
        return ({"at": 0, **held, **({"lasts": _whole(lengths[0], text, "steps")} if lengths else {})},)
    if len(lengths) > 2:
        raise _refusal(text, "has more than a value, a length and a ramp", "write lr=x0.25:50:20")
    number = _value(value, text)
    entry: dict[str, Any] = {"at": 0, "set": {name: number}}
    steps = [_whole(length, text, "steps") for length in lengths]
    if len(steps) < 2:
        return (entry | ({"lasts": steps[0]} if steps else {}),)
    times = factor_of(number)
    if times is None:
        raise _refusal(text, "only a factor has a ramp back", f"write {name}=x0.5:50:20")
    return entry, {"at": steps[0], "set": {name: f"x{1 / times:.12g}"}, "over": steps[1]}


def _held(group: str, key: str, value: str) -> dict[str, Any] | None:
    """The entry of ``freeze=mlp``, ``mlp.norm=hold`` and the like; None for a field."""
    if key == "freeze":
        return {"freeze": value}
    if (key in HELD and value == HELD[key]) or (key, value) in (("precision", "float64"), ("data", SAME)):
        return {key: value, **({"group": group} if group else {})}
    if group and key == "weight_decay" and value.replace(".", "", 1).isdigit():
        return {key: float(value), "group": group}
    return None


def _refusal(text: str, message: str, remedy: str = _FORM) -> InputError:
    return InputError(Problem("--try", text, message, remedy))


def _value(value: str, text: str) -> Any:
    if value.startswith("x"):
        if not factor_of(value):
            raise _refusal(text, f"{value!r} must be a factor above 0", "write e.g. lr=x0.5")
        return value
    return None if value == "none" else _number(value, text)


def _number(value: str, text: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _refusal(text, f"{value!r} is not a number")
    return number


def _whole(value: str, text: str, unit: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        message = f"{value!r} must be a positive number of {unit}"
        raise _refusal(text, message, "write a whole number of at least 1")
    return int(value)


def parse_fork_steps(texts: Sequence[str], onset: int | None, steps: int, *, leaves_out: bool = False) -> list[int]:
    """Parse the steps of `--fork` options: ``100`` from the start, ``-50`` before the onset, ``onset`` itself.

    Returns them ascending. ``steps`` is the length of the run. Raises InputError for a step outside the run, unless
    ``leaves_out`` drops it.
    """
    fork_steps = set()
    for word in (word.strip() for text in texts for word in text.split(",")):
        if not (word == ONSET or re.fullmatch(r"-?[0-9]{1,9}", word)):
            message = "is neither a step nor a number of steps before the onset"
            raise InputError(Problem("--fork", word, message, "write 100, -50 or onset"))
        is_relative = word == ONSET or word.startswith("-")
        if is_relative and onset is None:
            if not leaves_out:
                remedy = "give a step from the start, such as --fork 100"
                raise InputError(Problem("--fork", word, "counts from the onset, and this trial has none", remedy))
            continue
        step = (onset or 0) + (0 if word == ONSET else int(word)) if is_relative else int(word)
        if 0 <= step < steps:
            fork_steps.add(step)
        elif not leaves_out:
            at_onset = f", the onset is at step {onset}" if onset is not None else ""
            message = f"is outside the run: its steps are 0 to {steps - 1}{at_onset}"
            lowest = f", --fork -{onset} is its start" if onset is not None else ""
            raise InputError(Problem("--fork", word, message, f"choose a step of the run{lowest}"))
    return sorted(fork_steps)


# --- the usual remedies and steps ---


def usual_remedies(evidence: Evidence, stable_cells: Iterable[StableCell] = ()) -> list[Remedy]:
    """The usual remedies for a trial, then the values of nearby ``stable_cells``, without duplicates.

    The gentlest of a kind comes first. The run may refuse some: a cell may differ in a setting that is fixed in a run.
    """
    of_cells = [_set(cell.setting, float(cell.value)) for cell in stable_cells if is_number(cell.value)]
    remedies = [Remedy(tuple(entries)) for entries in (*_usual(evidence), *of_cells)]
    return list({remedy.name: remedy for remedy in remedies}.values())


def core_remedies(evidence: Evidence, stable_cells: Iterable[StableCell] = ()) -> list[Remedy]:
    """The usual remedies to try in every cell of a map: one or two of a kind, and the values of ``stable_cells``.

    Leaves out a quarter of the learning rate, one that returns, ZClip, a mean of earlier weights, a single skipped
    batch, and changes of the second moment alone.
    """
    return [remedy for remedy in usual_remedies(evidence, stable_cells) if not any(map(_is_redundant, remedy.entries))]


def _is_redundant(entry: Entry) -> bool:
    """Whether another usual remedy does about the same."""
    changes = entry.get("set", {})
    return (
        changes.get("lr") == "x0.25"
        or "zclip" in changes
        or entry.get("skip") == 1
        or entry.get("reset") == "second_moment"
        or "mean" in entry
        or "rescale" in entry
    )


def usual_steps(evidence: Evidence) -> list[int]:
    """The start, and 200, 50, 10 and 0 steps before the onset, as far as the run goes back.

    For a run that stalled or has no onset: its start, its first quarter and its half.
    """
    last = evidence.trial.steps - 1
    if evidence.ending_onset is None or evidence.outcome == "stalled":
        return sorted({0, *(int(share * evidence.trial.steps) for share in _LATER)})
    onset = min(evidence.ending_onset, last)
    return sorted({0, *(onset - before for before in BEFORE_ONSET if onset >= before)})


def _usual(evidence: Evidence) -> Iterator[Sequence[Entry]]:
    config = evidence.config
    if evidence.outcome == "stalled" and evidence.onset is None:
        yield from (_set("lr", "x3"), _set("lr", "x10"))
    if evidence.outcome == COLLAPSED:
        yield from _of_routers(evidence)
    yield from (_set("lr", "x0.5"), _set("lr", "x0.25"), _set("lr", "x0.1"))
    yield [*_set("lr", "x0.25"), {"at": _FOR, "set": {"lr": "x4"}, "over": _FOR}]
    beta1, beta2, eps = evidence.beta1, evidence.number("beta2"), evidence.number("eps")
    if "beta1" in config and beta1:
        yield _set("beta1", float(f"{max(0.0, 1 - 3 * (1 - beta1)):.6g}"))
    if beta2 is not None and evidence.memory_setting == "beta2":
        shorter = _SHORT_BETA2 if beta2 > _SHORT_BETA2 else 1 - min(0.5, 3 * (1 - beta2))
        yield _set("beta2", float(f"{shorter:.6g}"))
        longer = _LONG_BETA2 if beta2 < _LONG_BETA2 else 1 - 0.1 * (1 - beta2)
        yield _set("beta2", float(f"{longer:.6g}"))
    if eps is not None:
        if eps < _HIGHEST_EPS:
            yield _set("eps", min(eps * _EPS_FACTOR, _HIGHEST_EPS))
        else:
            yield from (_set("eps", f"x{_EPS_FACTOR}"), _set("eps", "x0.01"), _set("eps", "x1e-4"))
    usual_norm, clip = evidence.grad_norm.between(0, evidence.until).median(), evidence.number("clip")
    for share in (1.0, _TIGHT) if usual_norm else ():
        threshold = float(f"{share * (usual_norm or 0.0):.2g}")
        if threshold > 0 and (clip is None or threshold < clip):
            yield _set("clip", threshold)
    if config.get("zclip") is None:
        yield _set("zclip", _ZCLIP)
    used, drawn = evidence.number("micro_batches"), evidence.number("accumulate")
    if used is not None and drawn is not None and used < drawn:
        yield _set("micro_batches", "x2")
    yield [{"at": 0, "mean": _MEAN_OF}]
    yield [{"at": 0, "skip": 1}]
    yield [{"at": 0, "skip": 5}]
    if "beta1" in config or "beta2" in config:
        yield [{"at": 0, "reset": "moments"}]
    if evidence.memory is not None:
        yield [{"at": 0, "reset": "second_moment"}]
        yield [{"at": 0, "rescale": 4.0}]


def _of_routers(evidence: Evidence) -> Iterator[Sequence[Entry]]:
    """Changes of a router's own fields, as far as the trial has them: a run may refuse some."""
    if evidence.trial.objective == "router":
        yield from (_set("b", "x2"), _set("b", "x4"), _set("a", "x0.5"), _set("a", "x0.25"))
    if "router_lr" in evidence.config:
        yield from (_set("router_lr", "x0.3"), _set("router_lr", "x0.1"))
    for name, value in (("balance_weight", 1.0), ("router_z_loss", 1e-2), ("router_noise", 1.0)):
        if name in evidence.config:
            yield _set(name, value)


def _set(name: str, value: float | str) -> Sequence[Entry]:
    return [{"at": 0, "set": {name: value}}]
