"""The remedies of a trial as text of 80 columns, and as JSON."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.base.space import format_value
from orchestrator.causes.diagnosis import Diagnosis
from orchestrator.causes.mechanisms.catalogue import title_of
from orchestrator.causes.remedies.custom import is_custom, why_unforkable
from orchestrator.causes.remedies.reading import has_remedies, read_remedies
from orchestrator.causes.remedies.remedy import NO_CHANGE
from orchestrator.causes.remedies.repeats import Difference
from orchestrator.causes.remedies.results import Cost, Remedies, Tally
from orchestrator.ledger.reader import LedgerReader

WIDTH = 80
_CELL, _LEAST_NAME = 13, 15  # columns
_LONGEST_LOSS = 6  # characters
_MOST_COSTS = 6  # lines
_OTHER_DATA, _RESUMED = f"{NO_CHANGE}, other data", f"{NO_CHANGE}, resumed"


def remedies_lines(found: Remedies) -> Iterator[str]:
    """The control, the table, the cheapest remedy, from when on it is too late, the cost, and the diagnosis."""
    for line in _before(found):
        yield from _wrapped(line)
    if found.tallies:
        yield ""
        yield from table(found)
        yield ""
    for line in _after(found):
        yield from _wrapped(line)


def table(found: Remedies) -> Iterator[str]:
    """Saved replicates and median final loss, by remedy and fork step."""
    steps, most = found.fork_steps, (WIDTH - _LEAST_NAME) // _CELL
    for first in range(0, len(steps), most):
        yield from _table(found, steps[first : first + most])


def _table(found: Remedies, steps: Sequence[int]) -> Iterator[str]:
    width = WIDTH - len(steps) * _CELL
    yield from (line.rstrip() for line in _heads(found, steps, width))
    rows = [(name, [found.at(name, step) for step in steps]) for name in found.names]
    alone = [next((one for one in found.unchanged if one.fork_step == step), None) for step in steps]
    for name, cells in [*([(alone_name(found), alone)] if any(alone) else []), *rows]:
        if not any(cells):
            continue
        words = "".join(_cell(tally).rjust(_CELL) for tally in cells)
        if len(name) > width:
            yield name
            name = ""
        yield f"{name:<{width}}{words}"


def alone_name(found: Remedies) -> str:
    """The name of the forks without a remedy."""
    return _RESUMED if found.is_custom else _OTHER_DATA


def _alone(found: Remedies) -> str:
    """What a fork without a remedy undergoes all the same."""
    return "being resumed" if found.is_custom else "other data"


def _heads(found: Remedies, steps: Sequence[int], width: int) -> Iterator[str]:
    yield f"{'fork at step':<{width}}" + "".join(str(step).rjust(_CELL) for step in steps)
    if found.onset is not None:
        yield f"{'from the onset':<{width}}" + "".join(f"{step - found.onset:+d}".rjust(_CELL) for step in steps)


def _cell(tally: Tally | None) -> str:
    if tally is None:
        return "-"
    return tally.counts + ("" if tally.final_loss is None else f" {short_loss(tally.final_loss)}")


def short_loss(value: float) -> str:
    """A loss in at most six characters where it is positive: 2.41, or 6.3e-4."""
    text = f"{value:.3g}"
    return text if len(text) <= _LONGEST_LOSS else re.sub(r"e([+-])0*", r"e\1", f"{value:.1e}").replace("e+", "e")


def _before(found: Remedies) -> Iterator[str]:
    if found.control_repeats is None:
        yield "control: no result yet"
    elif found.is_custom:
        yield from repeats_lines(found)
    elif found.control_repeats:
        yield "control: an unchanged fork repeats the trial bit for bit"
    else:
        yield f"control: an unchanged fork does NOT repeat the trial's curve to the bit{_because(found)}"
    if found.num_missing:
        yield f"{found.num_missing} forks have no result yet; the same command trains them"
    if found.tallies:
        any_recovered = any(one.recovered for one in (*found.tallies, *found.unchanged))
        several = " (+N: left the trend and came back)" if any_recovered else ""
        yield f"replicates saved{several}, and median final loss:"


def _because(found: Remedies) -> str:
    differs = [f"{name} was {before} and is {now}" for name, (before, now) in found.control_differs.items()]
    why = f": {', '.join(differs)}" if differs else ""
    return f"{why}; the forks below are compared with each other all the same"


def _after(found: Remedies) -> Iterator[str]:
    if found.control is not None:
        yield f"control: {found.control.label}, final loss {_loss(found.control.final_loss)}"
    if found.stable_cells:
        cells = [f"{one.setting} {format_value(one.value)}: {_loss(one.final_loss)}" for one in found.stable_cells[:4]]
        yield f"nearest stable cells: final loss with {', '.join(cells)}"
    if not found.tallies:
        yield "no remedy was tried"
        return
    if not found.replicates_differ:
        yield "replicates are all alike: data has no part in this training, so each count is of one run"
    yield from _cheapest(found)
    yield from _passed(found)
    yield from _too_late(found)
    yield from _costs(found)
    yield from _diagnosis(found)
    yield f"steps trained after the forks: {found.spent_steps:,}"


def _cheapest(found: Remedies) -> Iterator[str]:
    best = found.cheapest
    if best is None:
        most = found.best_partial
        if most is not None:
            best_of_them = f"{most.remedy.name} from {_step(found, most)}"
            yield f"no remedy saved every replicate; at most {_saved(found, most)}: {best_of_them}"
        elif any(one.saved for one in found.tallies):
            yield f"no remedy saved more replicates than {_alone(found)} alone"
        else:
            yield "no remedy saved any replicate"
        return
    yield (
        f"cheapest: {best.remedy.name} from {_step(found, best)}: saved {_saved(found, best)}, "
        f"final loss {_loss(best.final_loss)}"
    )
    lowest = found.best
    if lowest is not None and lowest != best:
        yield (
            f"lowest loss: {lowest.remedy.name} from {_step(found, lowest)}: saved {lowest.saved} of {lowest.tried}, "
            f"final loss {_loss(lowest.final_loss)}"
        )
    alone = None if found.control is None else found.control.final_loss
    if found.trial.outcome == "spiked" and alone is not None and alone < (lowest or best).comparable_loss:
        yield "left alone it ends lower than with any remedy that saves it: a spike is not a failure"


def _passed(found: Remedies) -> Iterator[str]:
    """Where nothing saves the run to its end: what avoids its first spike, with the same data."""
    passed = [one for one in found.tallies if one.own_passed]
    if found.cheapest is not None or not passed:
        return
    last = max(one.fork_step for one in passed)
    names = [one.remedy.name for one in passed if one.fork_step == last]
    yield (f"past this spike, though others follow: with the trial's own data {_some(names)} from step {last} on")


def _too_late(found: Remedies) -> Iterator[str]:
    last, late = found.last_helpful_step, found.too_late_step
    if last is None:
        yield f"nothing helped more than {_alone(found)} alone, from any of these steps"
    elif late is None:
        yield f"even from the last fork, at step {last}, something helped: no step was too late"
    else:
        yield f"too late from step {late} on: step {last} is the last fork from which anything helped"


def _costs(found: Remedies) -> Iterator[str]:
    if found.neighbour is None or not found.costs:
        why = "not measured yet" if found.neighbour is not None else "not known, no stable cell has this seed beside it"
        yield from [f"cost where nothing is wrong: {why}"] if found.cheapest else []
        return
    there = found.neighbour.cell.name
    own = found.costs[0].own_loss
    yield f"cost where nothing is wrong, in the stable trial {there} (final loss {_loss(own)}):"
    best = None if found.cheapest is None else (found.cheapest.remedy.name, found.cheapest.fork_step)

    def place(harm: Cost) -> tuple[bool, float]:
        return (harm.name, harm.fork_step) != best, math.inf if harm.final_loss is None else harm.final_loss

    for harm in sorted(found.costs, key=place)[:_MOST_COSTS]:
        yield f"  {harm.name} from step {harm.fork_step}: {_harm(harm)}"
    if (more := len(found.costs) - _MOST_COSTS) > 0:
        yield f"  and {more} more, which --json has"


def _harm(harm: Cost) -> str:
    bad = "" if harm.outcome == "stable" else f", and it is {harm.outcome}"
    if harm.final_loss is None or harm.own_loss is None:
        return f"final loss {_loss(harm.final_loss)}{bad}"
    change = harm.final_loss - harm.own_loss
    share = f" ({change / abs(harm.own_loss):+.1%})" if harm.own_loss else ""
    return f"final loss {_loss(harm.final_loss)}{share}{bad}"


def _diagnosis(found: Remedies) -> Iterator[str]:
    if found.cause is None:
        yield "the diagnosis names no cause that a remedy could contradict"
        return
    called = list(dict.fromkeys(one.remedy.name for one in found.tallies if found.is_called_for(one)))
    title = title_of(found.cause)
    if not called:
        yield f"diagnosis: {title}; no remedy against that was tried"
    elif found.agrees and found.last_helpful_step is None:
        passed = [one.remedy.name for one in found.tallies if one.own_passed and found.is_called_for(one)]
        yield f"diagnosis: {title}; what it calls for got past this spike: {_some(passed)}"
    elif found.agrees is None:
        yield f"diagnosis: {title}; nothing helped, so the forks neither confirm nor contradict it"
    elif found.agrees:
        helped = [one.remedy.name for one in found.tallies if found.helped(one) and found.is_called_for(one)]
        yield f"diagnosis: {title}; what it calls for helped: {_some(helped)}"
    else:
        others = [one.remedy.name for one in found.tallies if found.helped(one)]
        yield (
            f"the remedies CONTRADICT the diagnosis: against {title} it calls for {_some(called)}, which did not help "
            f"from any step, while {_some(others)} did"
        )


def _some(names: Sequence[str]) -> str:
    first = list(dict.fromkeys(names))
    more = f" and {len(first) - 3} more" if len(first) > 3 else ""
    return "; ".join(first[:3]) + more


def _saved(found: Remedies, tally: Tally) -> str:
    """With an interval, where replicates are runs of their own."""
    if not found.replicates_differ:
        return f"{tally.saved} of {tally.tried}"
    low, high = tally.interval
    return f"{tally.saved} of {tally.tried} (95 % interval {low:.0%} to {high:.0%})"


def _step(found: Remedies, tally: Tally) -> str:
    if found.onset is None:
        return f"step {tally.fork_step} on"
    before = found.onset - tally.fork_step
    where = "at the onset" if before == 0 else f"{abs(before)} {'before' if before > 0 else 'after'} the onset"
    return f"step {tally.fork_step} on ({where})"


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _wrapped(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def remedies_json(found: Remedies) -> dict[str, Any]:
    """The remedies as plain data."""
    best = found.cheapest
    return {
        "sweep": found.sweep,
        "trial_id": found.trial.trial_id,
        "onset_step": found.onset,
        "cause": found.cause,
        "control_repeats": found.control_repeats,
        "control_differs": {name: list(both) for name, both in found.control_differs.items()},
        "control": None if found.control is None else _row_json(found.control),
        "remedies": [_tally_json(found, one) for one in found.tallies],
        "other_data": [_tally_json(found, one) for one in found.unchanged],
        "cheapest": None if best is None else best.remedy.name,
        "cheapest_step": None if best is None else best.fork_step,
        "best": None if found.best is None else found.best.remedy.name,
        "best_step": None if found.best is None else found.best.fork_step,
        "last_helpful_step": found.last_helpful_step,
        "too_late_step": found.too_late_step,
        "agrees_with_diagnosis": found.agrees,
        "beside": [{"setting": o.setting, "value": o.value, "final_loss": o.final_loss} for o in found.stable_cells],
        "neighbour": None if found.neighbour is None else found.neighbour.trial_id,
        "costs": [{name: getattr(harm, name) for name in Cost.__slots__} for harm in found.costs],
        "replicates_differ": found.replicates_differ,
        "num_missing": found.num_missing,
        "control_difference": _difference_json(found.control_difference),
        "resumed": [
            {"fork_step": one.fork_step, "differs": _difference_json(one.differs)} for one in found.repeats.resumed
        ],
        "without_effect": [{"name": name, "fork_step": step} for name, step in found.repeats.without_effect],
    }


def _difference_json(one: Difference | None) -> dict[str, Any] | None:
    return None if one is None else {"step": one.step, "largest": one.largest if math.isfinite(one.largest) else None}


def _row_json(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("outcome", "onset_step", "final_loss")}


def _tally_json(found: Remedies, tally: Tally) -> dict[str, Any]:
    low, high = tally.interval
    fields = ("fork_step", "tried", "saved", "recovered", "final_loss", "own_loss", "own_passed", "spent_steps")
    return {
        "name": tally.remedy.name,
        "outcomes": dict(tally.outcomes),
        **{name: getattr(tally, name) for name in fields},
        "low": low,
        "high": high,
        "helped": found.helped(tally),
        "called_for": found.is_called_for(tally),
    }


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


def remedy_lines(ledger: LedgerReader, found: Diagnosis) -> Iterator[str]:
    """The answer of the trial's forks; without forks the command that trains them, where they can be trained."""
    folder, trial = ledger.path.parent, found.trial
    if found.evidence.outcome == "stable" or (is_custom(trial) and why_unforkable(folder, trial) is not None):
        return
    if has_remedies(folder, trial.trial_id):
        yield "remedies, tried on forks of this trial:"
        yield from (f"  {line}".rstrip() for line in remedies_lines(read_remedies(ledger, found)))
    elif (folder / FROZEN_SWEEP).is_file():
        yield "what would have saved it, by experiment:"
        yield f"  sweep remedy {folder.name} --trial {trial.trial_id}"
