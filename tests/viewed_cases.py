"""A sweep with noisy curves, some of which diverge, to look at in a browser."""

from pathlib import Path

import numpy as np
from sweep_cases import finished, ledger_at, sweep_of

from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.base.packs import Completed, Report
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import make_packs
from orchestrator.pages.report import export_all

BODY = "seeds: [0, 1, 2]\naxes: {lr: {values: [0.1, 0.2, 0.4, 0.8]}, beta1: {values: [0.0, 0.5, 0.9]}}\n"
STEPS = 400
FIRST_BAD = {0.0: 0.8, 0.5: 0.8, 0.9: 0.4}  # the lowest learning rate that diverges, by momentum


def curve(seed: int, is_bad: bool) -> dict[str, np.ndarray]:
    steps = np.arange(STEPS)
    losses = 2 + 3 * np.exp(-steps / 60) + 0.1 * np.random.default_rng(seed).standard_normal(STEPS)
    if is_bad:
        losses[300:] *= np.exp((steps[300:] - 300) / 8)
    rates = np.minimum(1, (steps + 1) / 40) * (1 + np.cos(np.pi * steps / STEPS)) / 2
    return {"step": steps, "loss": losses, "grad_norm": losses / 3, "lr": rates}


def viewed_sweep(results: Path) -> Path:
    """A sweep with noisy curves, some of which diverge, and with a learning rate that rises and falls."""
    folder = results / "seen"
    folder.mkdir()
    sweep = sweep_of(BODY, f"name: seen\nobjective: quadratic\nsteps: {STEPS}\n")
    with ledger_at(folder) as ledger:
        ledger.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
        for pack in make_packs(sweep, sweep.trials, 1):
            ledger.start_pack(pack, "test")
            named = {trial.trial_id: trial for trial in sweep.trials}
            curves, done = {}, []
            for trial_id in pack.trial_ids:
                trial = named[trial_id]
                is_bad = trial.cell["lr"] >= FIRST_BAD[trial.cell["beta1"]]
                curves[trial_id] = curve(trial.seed, is_bad)
                changes = {"steps_done": STEPS, "final_loss": 900.0 if is_bad else 2 + trial.cell["lr"]}
                if is_bad:
                    changes |= {"onset_step": 300, "episodes": ((300, None),), "verdict_step": 350}
                done.append(finished(trial_id, "diverged" if is_bad else "stable", **changes))
            ledger.record(Report(pack.pack_id, STEPS, 0, 1.0, curves, tuple(done), Completed()))
    (folder / FROZEN_SWEEP).write_text(sweep.text)
    export_all(folder)
    return folder
