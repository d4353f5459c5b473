"""`sweep export weights`: a trial's weights as safetensors, with its configuration and a module that loads them."""

from __future__ import annotations

import json
import math
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

from objectives.base import OBJECTIVES, ExecutionPlan, GptConfig, Objective, TrainingConfig
from orchestrator.base.environment import check_installed
from orchestrator.base.errors import EXIT_OK, InputError, Problem, did_you_mean
from orchestrator.base.files import FROZEN_SWEEP, LEDGER, atomic_write
from orchestrator.base.states import kept_steps
from orchestrator.base.trial_result import TrialResult
from orchestrator.ledger.reader import LedgerReader
from orchestrator.render.text import Lines
from orchestrator.sweepfile.spec import load_sweep

WEIGHTS, CONFIG, MODULE, HELD_OUT = "weights.safetensors", "config.json", "model.py", "held_out.bin"


def export_weights(
    folder: Path, trial_id: str | None, step: int | None, output: Path | None, *, allow_import: bool = False
) -> Lines:
    """Write the weights of a trial after ``step``, or its last ones, and say where. Raises InputError.

    They come with their configuration; of a transformer without experts also with a module in plain torch and the text
    that its validation loss is of.
    """
    check_installed("sweep export weights", "safetensors")
    from safetensors.torch import save

    from orchestrator.worker.kept_states import kept_weights

    with LedgerReader(folder / LEDGER) as ledger:
        trial = _trial(ledger, trial_id, folder)
    known = kept_steps(folder, trial.trial_id)
    step = known[-1] if step is None and known else step or trial.steps
    weights = dict(kept_weights(folder, trial.trial_id, step))
    target = output or folder / "weights" / f"{trial.trial_id}-{step}"
    objective = OBJECTIVES.get(trial.objective) or _custom(folder, allow_import)
    config = objective.config_of(trial.config)
    facts = _facts(trial, step, objective, config, weights)
    atomic_write(target / WEIGHTS, save(weights, metadata={"format": "pt", "trial": trial.trial_id}))
    atomic_write(target / CONFIG, json.dumps(facts, indent=2).encode() + b"\n")
    yield f"wrote {target / WEIGHTS}: {sum(weight.numel() for weight in weights.values()):,} weights of step {step:,}"
    yield f"wrote {target / CONFIG}: validation loss {facts['validation_loss']}"
    if isinstance(config, GptConfig) and not config.experts:
        from objectives.models import plain_gpt
        from objectives.models.data import validation_sequences

        atomic_write(target / HELD_OUT, validation_sequences(config).byte().numpy().tobytes())
        shutil.copyfile(plain_gpt.__file__, target / MODULE)
        yield f"wrote {target / MODULE}: `python {target / MODULE}` computes that loss from {HELD_OUT} in plain torch"
    else:
        yield f"{MODULE} is for transformers without experts: load the weights with safetensors.torch.load_file"
    return EXIT_OK


def _custom(folder: Path, allow_import: bool) -> Objective:
    """The packed objective of a sweep; no other trainer of the user's own keeps states."""
    objective = load_sweep(folder / FROZEN_SWEEP, allow_import=allow_import).objective
    assert isinstance(objective, Objective)
    return objective


def _trial(ledger: LedgerReader, wanted: str | None, folder: Path) -> TrialResult:
    """The trial with an id or an unambiguous prefix of one, or else the one with the lowest validation loss."""
    trials = ledger.trials(removed=True)
    if wanted is None:
        best = min(
            (trial for trial in trials if trial.validation_loss is not None and kept_steps(folder, trial.trial_id)),
            key=lambda trial: trial.validation_loss or 0.0,
            default=None,
        )
        if best is None:
            remedy = "`keep: {every: 50, last: 10}` in the sweep file of a new --name keeps them while it trains"
            raise InputError(Problem(str(folder), "", "no trial with a validation loss kept its weights", remedy))
        return best
    found = [trial for trial in trials if trial.trial_id.startswith(wanted)]
    if len(found) != 1:
        message = f"is {'not a trial' if not found else f'a prefix of {len(found)} trials'} of {folder.name}"
        remedy = did_you_mean(wanted, [trial.trial_id for trial in trials]) or "trials.csv lists them"
        raise InputError(Problem("--trial", wanted, message, remedy))
    return found[0]


def _facts(
    trial: TrialResult, step: int, objective: Objective, config: TrainingConfig, weights: dict[str, Any]
) -> dict[str, Any]:
    import torch

    from orchestrator.worker.kept_states import set_weights

    try:
        with closing(objective.start([config], [trial.seed], "cpu", ExecutionPlan(1))) as trainer:
            set_weights(trainer, 0, weights)
            loss = float(torch.as_tensor(trainer.validate([0]))[0])
    except ValueError as error:
        raise InputError(Problem(str(trial.trial_id), "text", str(error), "put the text where it was")) from None
    derived = {}
    if isinstance(config, GptConfig):
        derived = {
            "attention_scale": config.attention_scale,
            "branch_scale": config.branch_scale,
            "width_factor": config.size_factors.width,
        }
    return {
        "trial_id": trial.trial_id,
        "step": step,
        "seed": trial.seed,
        "objective": objective.name,
        "validation_loss": loss if math.isfinite(loss) else None,
        "facts": derived,
        "config": config.model_dump(mode="json"),
    }
