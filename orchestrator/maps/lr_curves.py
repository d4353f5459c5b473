"""What the curves say about learning rates that their final losses leave open: whether the loss shakes for nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import OSCILLATING, RIGHT
from orchestrator.detection.lr_health import LEAST_DIFFERENCE, LrRow, lr_rows
from orchestrator.ledger.reader import LedgerReader

# Shapes: N steps.

# Step-to-step noise of this many times that of the next lower learning rate, on the same batches. The noise of batches
# grows by less: with the level of the loss.
SHAKING = 3.0
_TAIL = 0.25  # of the steps
_FEWEST = 8  # losses
_TO_DEVIATION = 1 / (0.6745 * np.sqrt(6.0))  # of independent normal losses, from the median size of second differences


# The noise of trials by id and attempt.
KnownNoise = dict[tuple[str, str | None], float]


def judged_trials(ledger: LedgerReader, known: KnownNoise | None = None) -> list[TrialResult]:
    """The trials of a sweep, with the words on their learning rates that need curves.

    A trial whose learning rate is right by its final loss is oscillating all the same where its loss shakes for
    nothing: from step to step ``SHAKING`` times as much as at the next lower learning rate with the same seed, by an
    amount that matters, without ending lower than that. Curves whose noise is ``known`` are not read again, and the
    others are put there.
    """
    rows, noise = ledger.trials(), {} if known is None else known
    shaking = {trial_id for row in lr_rows(rows, ledger.beside_lr()) for trial_id in _shaking(ledger, row, noise)}
    return [replace(row, lr_health=OSCILLATING) if row.trial_id in shaking else row for row in rows]


def _shaking(ledger: LedgerReader, row: LrRow, known: KnownNoise) -> list[str]:
    found = []
    for trials in row.calm.values():
        for lower, trial in itertools.pairwise(trials):
            if trial.lr_health != RIGHT or lower.final_loss is None or trial.final_loss is None:
                continue
            if row.differs(lower.final_loss, trial.final_loss, trial.initial_loss):
                continue  # it pays for its noise
            own, others = _noise_of(ledger, trial, known), _noise_of(ledger, lower, known)
            if own > SHAKING * others and own > LEAST_DIFFERENCE * abs(trial.final_loss):
                found.append(trial.trial_id)
    return found


def _noise_of(ledger: LedgerReader, trial: TrialResult, known: KnownNoise) -> float:
    attempt = (trial.trial_id, trial.pack_id)
    if attempt not in known:
        known[attempt] = step_noise(ledger.trace(trial.trial_id, ("loss",)).get("loss", np.empty(0)))
    return known[attempt]


def step_noise(loss_N: np.ndarray) -> float:
    """The noise of the loss from step to step over its last quarter, as a standard deviation; 0 where it is short.

    From second differences, which a smooth descent hardly has.
    """
    tail = loss_N[len(loss_N) - int(len(loss_N) * _TAIL) :]
    finite = tail[np.isfinite(tail)]
    if len(finite) < _FEWEST:
        return 0.0
    return float(np.median(np.abs(np.diff(finite, 2))) * _TO_DEVIATION)
