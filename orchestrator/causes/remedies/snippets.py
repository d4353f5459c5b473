"""The remedies as lines of PyTorch, to be put before `optimizer.step()` in a loop of training.

They use the names `step`, `optimizer` and `model` of that loop, `scheduler` (may be None) for the learning rate,
`batches`, an iterator, for batches that are skipped, `max_norm` for a clipping that is there already, and
`micro_batches` for the number whose gradients a step adds up. ``{start}`` is the step of the checkpoint from which the
training goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from objectives.entries import factor_of
from orchestrator.causes.remedies.remedy import Remedy, held_by

# A scheduler multiplies the rate of a group, or computes it anew from its base_lrs.
_RATE = """\
if {when}:
{first}    for number, group in enumerate(optimizer.param_groups):
        {keep}ratio = {ratio}
        group["lr"] *= ratio
        if scheduler is not None:
            group["initial_lr"] *= ratio
            scheduler.base_lrs[number] *= ratio
"""
_KEEP_RATE = 'group["old_lr"] = group.get("initial_lr", group["lr"])\n        '
_FIELD = """\
if {when}:
{first}    for group in optimizer.param_groups:
        {keep}group["{name}"] = {value}
"""
_BETA = """\
if {when}:
{first}    for group in optimizer.param_groups:
        betas = list(group["betas"])
        {keep}betas[{index}] = {value}
        group["betas"] = tuple(betas)
"""
_CLIP = """\
if {when}:
    torch.nn.utils.clip_grad_norm_(model.parameters(), {value})
"""
_CLIP_TIMES = """\
if step == {start}:
    max_norm *= {factor}
"""
# ZClip (Kumar et al., arXiv 2504.02507), with the mean and the variance of the norms after it.
_ZCLIP = """\
if step == {start}:
    seen, mean, variance = 0, 0.0, 0.0
if step >= {start}:
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")))
    score = (norm - mean) / (variance**0.5 + 1e-6)
    if seen >= 25 and score > {value}:
        norm = min(norm, mean + {value} * variance**0.5 / (score / {value}))
        torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
    weight = 0.03 if seen >= 25 else 1 / (seen + 1)
    before, mean = norm - mean, mean + weight * (norm - mean)
    square = (norm - mean) * (norm - mean if seen >= 25 else before)
    seen, variance = seen + 1, variance + weight * (square - variance)
"""
_SKIP = """\
if step == {start}:  # before the batch of this step is drawn
    for _ in range({number}):
        next(batches)
"""
_MICRO_BATCHES = """\
if step == {start}:  # before the batches of this step are drawn
    micro_batches = {value}
"""
_MEAN = """\
if step in range({first}, {start} + 1, {apart}):  # before the loss; go on from a checkpoint of step {first} or before
    states = states if step > {first} else []
    states.append([weight.detach().clone() for weight in model.parameters()])
if step == {start}:
    for weight, *earlier in zip(model.parameters(), *states):
        weight.data.copy_(torch.stack(earlier).mean(0))
"""
_RESETS = {
    "moments": """\
if step == {start}:
    optimizer.state.clear()
""",
    "first_moment": """\
if step == {start}:
    for state in optimizer.state.values():
        state["exp_avg"].zero_()
""",
    "second_moment": """\
if step == {start}:
    for state in optimizer.state.values():
        state["exp_avg_sq"].zero_()
""",
}
_RESCALE = """\
if step == {start}:
    for state in optimizer.state.values():
        state["exp_avg_sq"].mul_({factor})
"""
_FIELDS = ("eps", "weight_decay")
_BETAS = {"beta1": 0, "beta2": 1}


def snippet_of(remedy: Remedy, start: int) -> str | None:
    """Return the lines for ``remedy`` from the step ``start``; None if plain PyTorch has no such thing."""
    parts = [part for entry in remedy.entries for part in _parts(entry, start + entry["at"])]
    return None if None in parts or not parts else "".join(filter(None, parts))


def _parts(entry: Mapping[str, Any], start: int) -> Iterator[str | None]:
    lasts, over = entry.get("lasts"), entry.get("over", 0)
    for name, change in entry.get("set", {}).items():
        yield from [None] if lasts and over else _set(name, change, start, lasts, over)
    if entry.get("reset"):
        yield _RESETS[entry["reset"]].format(start=start)
    if entry.get("rescale") is not None:
        yield _RESCALE.format(start=start, factor=entry["rescale"])
    if held_by(entry):
        yield None
    if entry.get("mean"):
        yield _mean(entry["mean"], entry.get("apart", 10), start)
    if entry.get("skip"):
        yield _SKIP.format(start=start, number=entry["skip"])


def _mean(number: int, apart: int, start: int) -> str | None:
    first = start - (number - 1) * apart
    return _MEAN.format(first=first, start=start, apart=apart) if first >= 0 else None


def _set(name: str, change: Any, start: int, lasts: int | None, over: int) -> Iterator[str | None]:
    factor, end = factor_of(change), None if lasts is None else start + lasts
    if name == "clip":
        yield from _clip(change, factor, start, end)
    elif name == "micro_batches" and change is not None and end is None and not over:
        value = change if factor is None else f"round(micro_batches * {factor:g})"
        yield _MICRO_BATCHES.format(start=start, value=value)
    elif name == "zclip":
        yield None if change is None or factor is not None or lasts else _ZCLIP.format(start=start, value=change)
    elif name not in ("lr", *_FIELDS, *_BETAS) or change is None or (over and factor is None):
        yield None
    elif factor is not None:
        yield _times(name, factor, start, over)
        if end is not None:
            yield _times(name, 1 / factor, end, 0)
    else:
        yield _number(name, f"step == {start}", repr(change), keeps=end is not None)
        if end is not None:
            yield _back(name, f"step == {end}", change)


def _clip(change: Any, factor: float | None, start: int, end: int | None) -> Iterator[str | None]:
    if change is None or (factor is not None and end is not None):
        yield None
    elif factor is not None:
        yield _CLIP_TIMES.format(start=start, factor=factor)
    else:
        yield _CLIP.format(when=f"step >= {start}" if end is None else f"{start} <= step < {end}", value=change)


def _times(name: str, factor: float, start: int, over: int) -> str:
    """Lines that multiply a field, at once or from step to step of a ramp."""
    when, first, ratio = f"step == {start}", "", repr(factor)
    if over:
        when, first = f"{start} <= step <= {start + over}", f"    rise = {factor - 1!r} / {over + 1}\n"
        ratio = f"(1 + (step - {start - 1}) * rise) / (1 + (step - {start}) * rise)"
    if name == "lr":
        return _RATE.format(when=when, first=first, ratio=ratio, keep="")
    own = f"betas[{_BETAS[name]}]" if name in _BETAS else f'group["{name}"]'
    return _field(name, when, f"{own} * {ratio}", first=first)


def _number(name: str, when: str, value: str, *, keeps: bool) -> str:
    if name == "lr":
        ratio = f'{value} / group.get("initial_lr", group["lr"])'
        return _RATE.format(when=when, first="", ratio=ratio, keep=_KEEP_RATE if keeps else "")
    old = f"betas[{_BETAS[name]}]" if name in _BETAS else f'group["{name}"]'
    return _field(name, when, value, keep=f'group["old_{name}"] = {old}\n        ' if keeps else "")


def _field(name: str, when: str, value: str, first: str = "", keep: str = "") -> str:
    if name in _BETAS:
        return _BETA.format(when=when, first=first, index=_BETAS[name], value=value, keep=keep)
    return _FIELD.format(when=when, first=first, name=name, value=value, keep=keep)


def _back(name: str, when: str, value: Any) -> str:
    """The lines that undo ``_number``."""
    if name == "lr":
        return _RATE.format(when=when, first="", ratio=f'group.pop("old_lr") / {value!r}', keep="")
    return _number(name, when, f'group.pop("old_{name}")', keeps=False)
