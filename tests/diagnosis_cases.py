"""Made-up trials whose cause is known, as the ledger would have them: rows, curves and telemetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.answers.diagnose import DiagnoseAnswer
from orchestrator.base.files import FROZEN_SWEEP, LEDGER, atomic_write
from orchestrator.base.packs import Completed, Report
from orchestrator.base.space import Cell
from orchestrator.base.trial_result import MemberResult, TrialResult
from orchestrator.causes.diagnosis import rank
from orchestrator.causes.evidence import Evidence, gather
from orchestrator.causes.mechanisms.mechanism import Finding
from orchestrator.causes.series import Series, series
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import make_packs
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

# Shapes: N steps, M readings.

CONFIG: dict[str, Any] = {
    "steps": 400, "lr": 0.01, "warmup": 40, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0,
    "clip": None, "batch_size": 8, "context": 32, "optimizer": "adamw", "schedule": "constant",
    "precision": "float32", "qk_norm": False, "z_loss": 0.0, "corrupted": 0.0,
}  # fmt: skip
GROUPS = ("all", "embedding", "attention", "mlp", "norm", "head")
_EVERY, _CURVATURE = 10, 20


def row_of(
    outcome: str | None, onset: int | None = None, config: Mapping[str, Any] | None = None, **changes
) -> TrialResult:
    """A finished trial's row with unremarkable numbers."""
    full = {**CONFIG, **(config or {})}
    last = changes.get("steps_done", full["steps"])
    episodes = () if outcome in ("stable", "stalled") or onset is None else ((onset, None),)
    if outcome == "spiked":
        episodes = ((onset, min(onset + 30, last - 1)),)
    row = {
        "trial_id": "0123456789abcdef", "cell": Cell(lr=full["lr"], beta2=full["beta2"]), "seed": 0, "config": full,
        "objective": "gpt", "status": "finished", "outcome": outcome, "onset_step": onset, "num_spikes": 0,
        "steps": full["steps"], "steps_done": last, "initial_loss": 5.5, "best_loss": 2.5, "final_loss": 2.6,
        "peak_loss": None, "validation_loss": None, "episodes": episodes, "reason": "because",
    }  # fmt: skip
    return TrialResult(**{**row, **changes})


def noise(num: int, seed: int = 0) -> np.ndarray:
    """Normal noise, (N,)."""
    return np.random.default_rng(seed).standard_normal(num)


@dataclass(frozen=True)
class Case:
    """A trial in the making: a calm run of which parts are replaced."""

    row: TrialResult
    trace: dict[str, np.ndarray]
    telemetry: dict[str, np.ndarray]
    sisters: tuple[TrialResult, ...] = ()
    same_data: tuple[Series, ...] = ()

    def evidence(self, **options: Any) -> Evidence:
        """What the mechanisms see of it."""
        return gather(self.row, self.trace, self.telemetry, (self.row, *self.sisters), self.same_data, **options)

    def sister(self, outcome: str, onset: int | None = None, seed: int = 0, **config: Any) -> Case:
        """The same case beside a trial with other settings."""
        changes = {**self.row.config, **config}
        other = row_of(outcome, onset, changes, seed=seed, trial_id=f"{len(self.sisters) + 1:016x}")
        return replace(self, sisters=(*self.sisters, replace(other, objective=self.row.objective)))

    def with_trace(self, **columns: np.ndarray) -> Case:
        """Other curves."""
        return replace(self, trace={**self.trace, **columns})

    def reading(self, **columns: np.ndarray | float) -> Case:
        """Other readings; a number stands for all of a column. A name's double underscore is a slash."""
        size = len(self.telemetry["step"])
        named = {name.replace("__", "/"): np.broadcast_to(value, size).copy() for name, value in columns.items()}
        return replace(self, telemetry={**self.telemetry, **named})

    def without_telemetry(self) -> Case:
        """As in an older ledger."""
        return replace(self, telemetry={})


def calm(outcome: str = "stable", onset: int | None = None, config: Mapping[str, Any] | None = None, **changes) -> Case:
    """A healthy run: the loss falls from 5.5 to 2.5, curvature is at 0.3 of its threshold, all groups move alike."""
    row = row_of(outcome, onset, config, **changes)
    full, num = row.config, row.steps_done
    step_N = np.arange(num)
    lr_N = full["lr"] * np.minimum(1.0, (step_N + 1) / max(1, full["warmup"]))
    loss_N = 2.5 + 3.0 * np.exp(-step_N / 20) + 0.05 * noise(num)
    norm_N = (0.5 + 1.5 * np.exp(-step_N / 20)) * np.exp(0.2 * noise(num, 1))
    trace = {"step": step_N, "loss": loss_N, "grad_norm": norm_N, "update_norm": 50 * lr_N, "lr": lr_N}
    step_M = np.arange(0, num, _EVERY)
    telemetry: dict[str, np.ndarray] = {"step": step_M}
    for group in GROUPS:
        telemetry |= {
            f"grad_rms_over_eps/{group}": np.full(len(step_M), 1e5),
            f"update_to_weight/{group}": np.full(len(step_M), 0.01),
            f"share_below_eps/{group}": np.zeros(len(step_M)),
            f"direction_rms/{group}": np.maximum(0.25, 1 - step_M / 30),
            f"update_rms/{group}": lr_N[step_M] * np.maximum(0.25, 1 - step_M / 30),
            f"v_lag/{group}": np.full(len(step_M), 0.5),
        }
    for part in ("shallow", "middle", "deep"):
        telemetry |= {
            f"update_rms/{part}": telemetry["update_rms/all"].copy(),
            f"grad_norm/{part}": norm_N[step_M] / 2,
        }
    is_curved_M = step_M % _CURVATURE == 0
    threshold_M = 2 / lr_N[step_M]
    telemetry |= {
        "attention_logit": np.linspace(0.1, 20, len(step_M)),
        "log_z": np.full(len(step_M), 5.6),
        "clip_factor": np.ones(len(step_M)),
        "loss_scale": np.ones(len(step_M)),
        "is_skipped": np.zeros(len(step_M)),
        "curvature_threshold": np.where(is_curved_M, threshold_M, np.nan),
        "lambda_max": np.where(is_curved_M, 0.3 * threshold_M, np.nan),
        "lambda_grad": np.where(is_curved_M, 0.1 * threshold_M, np.nan),
    }
    return Case(row, trace, telemetry)


def risen(case: Case, onset: int, height: float, growth: float = 1.5) -> Case:
    """The case with a loss and a gradient that grow by ``growth`` a step from ``onset`` on, up to ``height``."""
    step_N = case.trace["step"]
    rise_N = np.where(step_N >= onset, np.minimum(height, growth ** np.clip(step_N - onset, 0, 200)), 0.0)
    grown_N = np.minimum(height, growth ** np.clip(step_N - onset + 8, -20, 200))
    norm_N = np.where(step_N >= onset - 8, np.maximum(case.trace["grad_norm"], grown_N), case.trace["grad_norm"])
    return case.with_trace(loss=case.trace["loss"] + rise_N, grad_norm=norm_N)


def ratios(case: Case, ratio_M: Sequence[float] | np.ndarray) -> Case:
    """The case with these curvatures over the threshold, at the steps where it was measured."""
    threshold_M = case.telemetry["curvature_threshold"]
    both = {"lambda_max": np.asarray(ratio_M) * threshold_M, "lambda_grad": 0.8 * np.asarray(ratio_M) * threshold_M}
    return case.reading(**both)


# --- one planted cause each ----------------------------------------------------------------------


def over_the_threshold() -> Case:
    """A learning rate that is too high whatever the warmup, which is as long as the rule asks for."""
    case = risen(calm("diverged", 35, {"lr": 3.0, "warmup": 40}, steps_done=120), 35, 50.0)
    case = ratios(case, np.where(case.telemetry["step"] >= 20, 4.0, 0.8))
    return case.sister("stable", lr=0.1).sister("diverged", 60, warmup=150)


def warmup_too_short() -> Case:
    """A learning rate that is too high for the first steps, and for them alone."""
    case = risen(calm("diverged", 3, {"lr": 0.1, "warmup": 0, "beta2": 0.98}, steps_done=160), 3, 20.0)
    case = ratios(case, np.where(case.telemetry["step"] < 20, 8.0, 0.5))
    return case.sister("stable", warmup=100).sister("stable", lr=0.01)


def preconditioner_decay() -> Case:
    """Small gradients for long, then one that grows by half at each step from 12 steps before the onset."""
    onset = 250
    case = calm("spiked", onset, {"beta2": 0.999, "lr": 0.01, "warmup": 40})
    step_N = case.trace["step"]
    norm_N = np.where(step_N < 60, case.trace["grad_norm"], 0.02 * np.exp(0.1 * noise(len(step_N), 2)))
    grown_N = 0.02 * 1.5 ** np.clip(step_N - (onset - 12), 0, 20) * np.where(step_N > onset + 8, 0.2, 1.0)
    norm_N = np.where((step_N >= onset - 12) & (step_N < onset + 30), grown_N, norm_N)
    rise_N = np.where((step_N >= onset) & (step_N < onset + 30), np.minimum(6.0, 0.5 * (step_N - onset + 1)), 0.0)
    step_M = case.telemetry["step"]
    return ratios(case.with_trace(loss=case.trace["loss"] + rise_N, grad_norm=norm_N), np.where(step_M > 200, 1.1, 0.4))


def sharpening() -> Case:
    """Curvature that grows from step 100 on, and passes its threshold 60 steps before the loss rises."""
    case = risen(calm("diverged", 300, steps_done=360), 300, 5.0, growth=1.3)
    return ratios(case, 0.3 * np.maximum(1.0, (case.telemetry["step"] - 100.0) / 40))


def short_memory() -> Case:
    """Momentum that outlives v: from step 60 on steps grow, and 40 steps later the loss."""
    case = risen(calm("diverged", 100, {"beta2": 0.7}, steps_done=160), 100, 20.0)
    rate_M = case.trace["lr"][case.telemetry["step"]]
    return case.reading(update_rms__all=rate_M * np.maximum(0.5, 1.1 ** (case.telemetry["step"] - 50.0)))


def epsilon_floor() -> Case:
    """Gradients a hundredth of eps, and a loss that hardly moves."""
    case = calm("stalled", None, {"eps": 1.0})
    case = case.with_trace(loss=5.5 - 1e-4 * case.trace["step"])
    for group in GROUPS:
        case = case.reading(**{f"grad_rms_over_eps__{group}": 0.01, f"share_below_eps__{group}": 1.0})
    return case


def learning_rate_too_low() -> Case:
    """A loss that hardly moves, beside a cell that learns at a higher learning rate."""
    case = calm("stalled", None, {"lr": 1e-6, "warmup": 0}, final_loss=5.49)
    return case.with_trace(loss=5.5 - 1e-5 * case.trace["step"]).sister("stable", lr=1e-3)


def bad_batch() -> Case:
    """One step whose loss is twice its neighbours', and one more that is half-way."""
    case = calm("spiked", 200)
    loss_N, norm_N = case.trace["loss"].copy(), case.trace["grad_norm"].copy()
    loss_N[200:202] += (4.0, 1.5)
    norm_N[200] = 6.0
    return case.with_trace(loss=loss_N, grad_norm=norm_N)


def half_precision_overflow() -> Case:
    """A calm loss in float16 that is not finite from one step to the next, after skipped updates."""
    case = calm("diverged", 150, {"precision": "float16"}, steps_done=151, final_loss=None)
    loss_N = case.trace["loss"].copy()
    loss_N[150] = np.nan
    step_M = np.union1d(case.telemetry["step"], np.arange(140, 151))
    places = np.searchsorted(step_M, case.telemetry["step"])
    telemetry = {"step": step_M}
    for name, values in case.telemetry.items():
        if name != "step":
            telemetry[name] = np.full(len(step_M), np.nan)
            telemetry[name][places] = values
    telemetry["is_skipped"] = np.where(step_M >= 140, 1.0, 0.0)
    telemetry["loss_scale"] = np.where(step_M >= 140, 2.0 ** (150 - step_M), 1024.0)
    return replace(case.with_trace(loss=loss_N), telemetry=telemetry)


def logit_growth() -> Case:
    """Attention logits that grow over the whole run, and a late rise that nothing else explains."""
    case = risen(calm("diverged", 300, steps_done=360), 300, 5.0, growth=1.3)
    return case.reading(attention_logit=np.geomspace(0.1, 5e4, len(case.telemetry["step"])))


def layers_out_of_step() -> Case:
    """Embeddings that hardly move for the second half of the run, and a late rise that nothing else explains."""
    case = risen(calm("diverged", 300, steps_done=360), 300, 5.0, growth=1.3)
    moved_M = np.where(case.telemetry["step"] < 150, 0.01, 1e-5)
    return case.reading(update_to_weight__embedding=moved_M)


def shallow_stall() -> Case:
    """Shallow blocks that take a fiftieth of the step of the deep ones from step 100 on, and new data from step 200."""
    case = calm("diverged", 200, {"depth": 6}, steps_done=300)
    step_N, step_M = case.trace["step"], case.telemetry["step"]
    norm_N = np.where(step_N >= 200, 10.0, case.trace["grad_norm"])
    case = case.with_trace(loss=np.where(step_N >= 200, 8.0, case.trace["loss"]), grad_norm=norm_N)
    stalled_M = np.where((step_M >= 100) & (step_M < 200), 0.02, 1.0)
    return case.reading(
        update_rms__shallow=case.telemetry["update_rms/deep"] * stalled_M,
        grad_norm__shallow=case.telemetry["grad_norm/deep"] * stalled_M,
    )


def clipping_saturated() -> Case:
    """A threshold far below every gradient, and a late rise that nothing else explains."""
    return risen(calm("diverged", 300, {"clip": 1e-3}, steps_done=360), 300, 5.0, growth=1.3)


PLANTED = {
    "over_the_threshold": over_the_threshold,
    "warmup_too_short": warmup_too_short,
    "preconditioner_decay": preconditioner_decay,
    "sharpening": sharpening,
    "short_memory": short_memory,
    "epsilon_floor": epsilon_floor,
    "bad_batch": bad_batch,
    "learning_rate_too_low": learning_rate_too_low,
    "half_precision_overflow": half_precision_overflow,
    "logit_growth": logit_growth,
    "layers_out_of_step": layers_out_of_step,
    "clipping_saturated": clipping_saturated,
    "shallow_stall": shallow_stall,
}


def series_of(values: Sequence[float]) -> Series:
    """Readings of every step from 0 on."""
    return series(np.arange(len(values)), np.asarray(values, dtype=float))


# --- sweeps of them ------------------------------------------------------------------------------

SWEEP = """
name: planted
objective: gpt
steps: 400
seeds: [0, 1]
axes:
  lr: {values: [0.001, 0.01, 3.0]}
  warmup: {values: [40, 150]}
fixed: {beta2: 0.95}
tracking: {enabled: false}
"""


def record_cases(folder: Path, sweep: Sweep, cases: Sequence[Case | None]) -> Path:
    """The sweep with the curves, readings and results of a case for each of its trials; None has no result.

    The sweep file is in the folder too, as ``sweep run`` leaves it there. Returns the folder.
    """
    with LedgerWriter(folder / LEDGER) as ledger:
        ledger.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
        for trial, case in zip(sweep.trials, cases, strict=True):
            if case is None:
                continue
            (pack,) = make_packs(sweep, [trial], 1)
            ledger.start_pack(pack, "test")
            result = {field.name: getattr(case.row, field.name) for field in fields(MemberResult)}
            result |= {"trial_id": trial.trial_id}
            telemetry = {trial.trial_id: case.telemetry} if case.telemetry else {}
            ledger.record(
                Report(
                    pack.pack_id, 1, 0, 0.5, {trial.trial_id: case.trace}, (MemberResult(**result),), Completed(),
                    telemetry=telemetry,
                )
            )  # fmt: skip
            ledger.end_pack(pack.pack_id, "done", "errored", "a bug")
    atomic_write(folder / FROZEN_SWEEP, sweep.text)
    return folder


def sweep_of_text(text: str = SWEEP) -> Sweep:
    """A sweep without a folder."""
    return build_sweep(parse_document(text, "planted.yaml"))


def with_noise(case: Case, seed: int) -> Case:
    """The case with other noise in its losses."""
    return case.with_trace(loss=case.trace["loss"] + 0.01 * noise(len(case.trace["loss"]), 100 + seed))


def planted_sweep(folder: Path) -> Path:
    """Two seeds each: stable at the two lower learning rates, over the edge at the highest whatever the warmup."""
    settings = [{"lr": trial.cell["lr"], "warmup": trial.cell["warmup"]} for trial in sweep_of_text().trials]
    cases = []
    for i, setting in enumerate(settings):
        case = calm(config=setting, final_loss=2.6 - setting["lr"])
        if setting["lr"] > 1:
            onset = 33 + i
            config = {"lr": 3.0, "warmup": setting["warmup"]}
            case = risen(calm("diverged", onset, config, steps_done=120, final_loss=40.0), onset, 50.0)
            case = ratios(case, np.where(case.telemetry["step"] >= 20, 4.0, 0.8))
        cases.append(with_noise(case, i))
    return record_cases(folder, sweep_of_text(), cases)


def diagnosed(evidence: Evidence, cause: str | None = None, folder: Path = Path("nowhere")) -> DiagnoseAnswer:
    """The answer of `sweep diagnose` about a trial of the sweep in ``folder``, as if ``cause`` were found."""
    diagnosis = rank(evidence, "sweep", "given by its id")
    if cause is not None:
        diagnosis = replace(diagnosis, cause=Finding(cause, "supported", "it was planted"))
    return DiagnoseAnswer.of(diagnosis, folder)
