"""What is tried where nothing is asked for: the usual remedies of a run, and the steps to fork it at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from orchestrator.base.space import is_number
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.remedies.answer import Beside
from orchestrator.causes.remedies.remedy import Entry, Remedy

BEFORE_ONSET = (200, 50, 10, 0)  # steps
_LATER = (0.25, 0.5)  # of the run, where there is no onset
_FOR = 50  # steps of a change that returns, and of its ramp back
_SHORT_BETA2, _LONG_BETA2 = 0.95, 0.99
_HIGHEST_EPS, _EPS_FACTOR = 1e-6, 100
_ZCLIP = 2.5  # deviations, as in the paper on ZClip (arXiv 2504.02507)
_TIGHT = 0.3  # of the median gradient norm


def usual_remedies(evidence: Evidence, beside: Iterable[Beside] = ()) -> list[Remedy]:
    """The usual remedies that act in the trial, then the values of the stable cells ``beside`` it, each once.

    The gentlest of a kind comes first. No check that a run accepts them: a cell may differ in what is fixed in a run.
    """
    of_cells = [_set(cell.setting, float(cell.value)) for cell in beside if is_number(cell.value)]
    found = [Remedy(tuple(entries)) for entries in (*_usual(evidence), *of_cells)]
    return list({remedy.name: remedy for remedy in found}.values())


def few_remedies(evidence: Evidence, beside: Iterable[Beside] = ()) -> list[Remedy]:
    """Those of the usual remedies that are tried in every cell of a map: one or two of a kind, and the stable cells'.

    Left out are a quarter of the learning rate, one that returns, ZClip, a single skipped batch, and changes of the
    second moment alone.
    """
    return [one for one in usual_remedies(evidence, beside) if not any(map(_is_of_many, one.entries))]


def _is_of_many(entry: Entry) -> bool:
    """Whether another usual remedy does about the same."""
    changes = entry.get("set", {})
    return (
        changes.get("lr") == "x0.25"
        or "zclip" in changes
        or entry.get("skip") == 1
        or entry.get("reset") == "second_moment"
        or "rescale" in entry
    )


def usual_steps(evidence: Evidence) -> list[int]:
    """The start, and 200, 50, 10 and 0 steps before the onset, where there are as many.

    The start, a quarter and half of a run that stalled, and of one without an onset.
    """
    last = evidence.trial.steps - 1
    if evidence.onset is None or evidence.outcome == "stalled":
        return sorted({0, *(int(share * evidence.trial.steps) for share in _LATER)})
    onset = min(evidence.onset, last)
    return sorted({0, *(onset - before for before in BEFORE_ONSET if onset >= before)})


def _usual(evidence: Evidence) -> Iterator[Sequence[Entry]]:
    config, stalled = evidence.config, evidence.outcome == "stalled" and evidence.onset is None
    if stalled:
        yield from (_set("lr", "x3"), _set("lr", "x10"))
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
    yield [{"at": 0, "skip": 1}]
    yield [{"at": 0, "skip": 5}]
    if "beta1" in config or "beta2" in config:
        yield [{"at": 0, "reset": "moments"}]
    if evidence.memory is not None:
        yield [{"at": 0, "reset": "second_moment"}]
        yield [{"at": 0, "rescale": 4.0}]


def _set(name: str, value: float | str) -> Sequence[Entry]:
    return [{"at": 0, "set": {name: value}}]
