"""The trials of a sweep with the labels of their learning rates that need curves."""

from __future__ import annotations

import numpy as np

from orchestrator.base.trial_result import TrialResult
from orchestrator.detection.relative import step_noise
from orchestrator.ledger.reader import LedgerReader, with_lr_health

# The noise of trials by id and attempt.
KnownNoise = dict[tuple[str, str | None], float]


def judged_trials(ledger: LedgerReader, known: KnownNoise | None = None) -> list[TrialResult]:
    """Return the trials of a sweep, labelled also by their curves, see ``lr_health``.

    Curves whose noise is ``known`` are not read again, and the others are put there.
    """
    noise = {} if known is None else known

    def noise_of(trial: TrialResult) -> float:
        attempt = (trial.trial_id, trial.pack_id)
        if attempt not in noise:
            noise[attempt] = step_noise(ledger.trace(trial.trial_id, ("loss",)).get("loss", np.empty(0)))
        return noise[attempt]

    return with_lr_health(ledger.trials(), ledger.axes_zipped_with_lr(), noise_of)
