"""Packages that judge logs, each by its own code and at its defaults; optional, and left out where not installed.

A peer takes the losses and the gradient norms (or None) of a run and returns the points that it flags and whether it
calls the run diverged. All except trainpulse and trainscope read the whole log at once. None of them stops a run.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

Flags = list[bool]
Peer = Callable[[Sequence[float], Sequence[float] | None], tuple[Flags, bool]]


def _package(name: str) -> Any:
    """Import a package that is not installed with sweep."""
    return importlib.import_module(name)


def runmedic(losses: Sequence[float], norms: Sequence[float] | None) -> tuple[Flags, bool]:
    """runmedic: spikes above 8 robust deviations and 1.5 times the moving average.

    Its report names the first ten spikes only, so its condition is repeated here on its own averages and deviations.
    """
    model, checks, roles = (_package(f"runmedic.{name}") for name in ("model", "checks", "roles"))
    run = model.Run("log", "csv", "")
    for name, values in (("train_loss", losses), ("grad_norm", norms)):
        for step, value in enumerate(values or ()):
            run.get(name).add(step, value)
    run.finalize()
    context = checks.Ctx(run, roles.detect(run))
    found = {finding.check for finding in checks.run_checks(run, context.roles)}
    flags = [False] * len(losses)
    loss = context.finite("train_loss")
    loss = context.before_blowup(loss) if loss else None
    if loss and len(loss) >= 30:
        trend = checks.ema(loss.values, span=max(5, len(loss) // 20))
        before = [trend[0], *trend[:-1]]
        scores = checks.robust_z([value - level for value, level in zip(loss.values, before, strict=True)])
        for step, value, level, score in zip(loss.steps[1:], loss.values[1:], trend, scores[1:], strict=False):
            flags[int(step)] = score > 8 and level > 0 and value > 1.5 * level
    if "non_finite" in found:
        flags = [flag or not math.isfinite(value) for flag, value in zip(flags, losses, strict=True)]
    return flags, bool(found & {"divergence", "non_finite"})


def trainspotter(losses: Sequence[float], norms: Sequence[float] | None) -> tuple[Flags, bool]:
    """trainspotter: 6 robust deviations from the median of the last 21, and sustained growth at the end."""
    package = _package("trainspotter")
    run = package.Run()
    for name, values in (("train/loss", losses), ("train/grad_norm", norms)):
        for step, value in enumerate(values or ()):
            run.add_point(name, step, value)
    run.finalize()
    flags, is_lost = [False] * len(losses), False
    for finding in package.run_all(run):
        is_lost |= finding.detector == "divergence"
        if finding.metric == "train/loss" and finding.detector in ("spikes", "divergence"):
            last = finding.step_end if finding.detector == "spikes" else finding.step_start
            flags[finding.step_start : last + 1] = [True] * (last + 1 - finding.step_start)
    return flags, is_lost


def losslint(losses: Sequence[float], norms: Sequence[float] | None) -> tuple[Flags, bool]:
    """losslint: ten times the median of 25 around it, and an end at 1.25 times the start."""
    checks, parsing = _package("losslint.checks"), _package("losslint.parsing")
    run = parsing.RunLog(list(range(len(losses))), {"loss": list(losses)}, Path("log.csv"))
    with mock.patch.object(checks, "MAX_EXAMPLES", len(losses)):  # its findings name the first five
        findings = checks.run_all_checks(run)
    flags = [False] * len(losses)
    for finding in findings:
        for step in finding.details["steps"] if finding.check in ("nan_inf", "loss_spike") else ():
            flags[step] = True
    return flags, any(finding.check in ("nan_inf", "divergence") for finding in findings)


def trainpulse(losses: Sequence[float], norms: Sequence[float] | None) -> tuple[Flags, bool]:
    """trainpulse: five times the mean of the last 50; a loss or a norm that is critical is a divergence."""
    monitor = _package("trainpulse").Monitor()
    flags, is_lost = [False] * len(losses), False
    for step, loss in enumerate(losses):
        alerts = monitor.log("loss", step, loss)
        flags[step] = any(alert.detector in ("loss_spike", "nan_detector") for alert in alerts)
        if norms is not None:
            alerts += monitor.log("grad_norm", step, norms[step])
        is_lost |= any(alert.severity.value == "critical" for alert in alerts)
    return flags, is_lost


def trainscope_cusum(losses: Sequence[float], norms: Sequence[float] | None) -> tuple[Flags, bool]:
    """trainscope's change points: a cumulative sum of deviations above 6 in either direction."""
    detector = _package("trainscope.core.detectors.changepoint").ChangePointDetector()
    flags = [detector.update(loss) is not None for loss in losses]
    return flags, any(not math.isfinite(loss) for loss in losses)


PEERS: Mapping[str, Peer] = {
    "runmedic": runmedic,
    "trainspotter": trainspotter,
    "losslint": losslint,
    "trainpulse": trainpulse,
    "trainscope CUSUM": trainscope_cusum,
}


def available() -> tuple[dict[str, Peer], dict[str, str]]:
    """Return the installed peers by their names and versions, and why the others are missing."""
    there: dict[str, Peer] = {}
    missing: dict[str, str] = {}
    for name, peer in PEERS.items():
        try:
            peer([1.0, 1.0, 1.0], None)
            there[f"{name} {importlib.metadata.version(name.split()[0])}"] = peer
        except ImportError as error:
            missing[name] = str(error)
    return there, missing
