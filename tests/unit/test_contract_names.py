"""Names that users and their scripts rely on. A change here needs a line in CHANGELOG.md."""

import inspect
import sqlite3
from dataclasses import fields
from pathlib import Path
from typing import get_args

from remedy_cases import LOWER, all_cells, answer, forked, in_cell
from sweep_cases import ledger_at, record, sweep_of
from typer.main import get_command

import orchestrator
from objectives.action import Action
from objectives.action import Kind as Action_kinds
from objectives.base import OBJECTIVES
from objectives.control import SIGNALS, Rule
from objectives.entries import Intervention
from orchestrator import answers
from orchestrator.answers.remedies import RemediesAnswer
from orchestrator.api.results import SweepResults
from orchestrator.base.columns import METRICS
from orchestrator.base.vocabulary import OUTCOMES, Outcome
from orchestrator.causes.remedies.remedy import KINDS
from orchestrator.cli import app
from orchestrator.detection.config import SlowConfig, StoppingConfig
from orchestrator.detection.run_alarms import ALARM_KINDS
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.logs.columns import MetricsConfig, ScoreConfig
from orchestrator.maps.cells import REDUCTIONS
from orchestrator.maps.edge_line import EDGE_COLUMNS, Kind
from orchestrator.maps.front import FRONT_COLUMNS, MARGIN, STEPS
from orchestrator.maps.front import Kind as front_kinds
from orchestrator.search.by_optuna import MARGIN as METRIC_OF_EDGE
from orchestrator.search.by_optuna import SEARCHES
from orchestrator.sweepfile.custom_trainer import GIVEN, PARTS
from orchestrator.sweepfile.entries import DATA_SEED
from orchestrator.sweepfile.sections import (
    EVENTS,
    AxisSection,
    BatchSection,
    BudgetConfig,
    CheckpointConfig,
    CustomTrainerSection,
    KeepConfig,
    NotifyConfig,
    ResourcesConfig,
    ResumeConfig,
    SampleSection,
    SearchSection,
    SeedsSection,
    SweepFile,
    TelemetryConfig,
    TrackingConfig,
    ValidateConfig,
    WorkersSection,
    keys_of,
)
from orchestrator.sweepfile.ties import FUNCTIONS

SWEEP_OPTIONS = {"--axis", "--drop", "--set", "--seeds", "--steps", "--name", "--results", "--allow-import"}
LOG_OPTIONS = {"--step", "--loss", "--grad-norm"}
FORK_OPTIONS = {"--fork", "--try", "--replicates", "--pairs", "--no-pairs", "--executor", "--allow-import"}
COMMON_FIELDS = [
    "steps", "lr", "warmup", "beta1", "beta2", "beta2_half_life", "eps", "second_moment_start",
    "second_moment_scale", "weight_decay", "weight_decay_kind", "clip", "adagc", "adagc_warmup", "zclip",
    "zclip_warmup", "batch_size", "optimizer", "schedule", "schedule_power", "decay_share", "final_lr_fraction",
    "warmup_shape", "rollback", "rollback_every", "ema", "merge_last", "merge_every",
    "interventions", "control", "radam_threshold", "adabelief_eps",
    "adafactor_decay", "adafactor_clip", "adafactor_eps", "adafactor_smallest", "stableadamw_clip", "spam_threshold",
    "spam_interval", "spam_warmup", "spam_grace", "sophia_clip", "sophia_eps", "sophia_interval", "adam8bit_block",
    "adam8bit_smallest", "muon_momentum", "muon_nesterov", "muon_steps", "muon_scale",
    "lcm_adam_period", "lcm_adam_least", "lcm_adam_change",
]  # fmt: skip


def options(command) -> set[str]:
    names = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return {name for name in names if name.startswith("--")} - {"--help"}


# What every question has: the answer in a file, as JSON, and where results are.
SHARED = {"--output", "--json", "--results"}
QUESTIONS = {
    "audit": set(),
    "boundary": {"--along", "--across", "--where", "--reduce", "--degraded", "--level"},
    "cause": {"--trial", "--cell", "--each-cell", "--replicates", "--executor", "--allow-import"},
    "check": SWEEP_OPTIONS - {"--results"} | {"--losses", "--timeout"},
    "compare": {"--by", "--base", "--x", "--y", "--reduce", "--degraded"},
    "data": SWEEP_OPTIONS - {"--results"} | {"--separator"},
    "diagnose": {"--trial", "--cell", "--full"},
    "doctor": {"--strict", "--fix"},
    "edge": {"--along", "--across", "--by", "--where", "--degraded"},
    "explain": {"--x", "--y"},
    "front": {"--metric", "--against", "--along", "--target", "--degraded", "--maximize", "--minimize"},
    "importance": set(),
    "list": set(),
    "locate": LOG_OPTIONS | {"--config", "--at", "--log", "--pattern", "--format", "--degraded"},
    "map": {"--x", "--y", "--metric", "--where", "--reduce", "--by", "--degraded"},
    "merge": {"--cells", "--stable", "--along", "--seed", "--method", "--anyway"},
    "plan": SWEEP_OPTIONS - {"--results"},
    "predict": {"--at", "--along", "--where", "--lr", "--assume", "--far", "--anyway", "--degraded"}
    | {"--confirm", "--executor", "--allow-import"},
    "recommend": {"--margin", "--metric", "--degraded", "--maximize", "--minimize", "--paste"},
    "remedies": FORK_OPTIONS | {"--cell"},
    "remedy": FORK_OPTIONS | {"--trial", "--cell"},
    "replay": LOG_OPTIONS
    | {"--set", "--faint", "--figures", "--no-figures", "--norm-rises", "--no-norm-rises", "--pattern", "--format"}
    | {"--fail-on", "--beside"},
    "sensitivity": {"--along", "--range"},
    "status": {"--watch"},
    "survival": {"--by", "--until", "--where"},
    "warn": set(),
}
ACTIONS = {
    "run": SWEEP_OPTIONS
    | {"--executor", "--address", "--cpus", "--gpus", "--pack", "--parallel", "--slurm", "--tracking-uri"}
    | {"--retry-errored", "--notify-test", "--page", "--port", "--refine", "--factor", "--trials", "--along"},
    "init": {"--objective", "--command", "--axis", "--drop", "--set", "--seeds", "--steps", "--from", "--output"}
    | {"--trainer", "--for", "--trials", "--preset", "--goal"},
    "watch": LOG_OPTIONS
    | {
        "--steps",
        "--every",
        "--json",
        "--page",
        "--on",
        "--notify",
        "--run",
        "--run-on",
        "--exit-on",
        "--stalled-after",
    }
    | {"--beside", "--set", "--results", "--pattern", "--format"},
    "objectives": {"--match"},
    "import": {"--name", "--axis", "--outcome", "--loss", "--seed", "--map", "--diverged-above", "--where", "--mapping"}
    | {"--step", "--run", "--from-path", "--set", "--replace", "--json", "--results", "--maximize", "--minimize"}
    | {"--merge"},
    "report": {"--results"},
    "gc": {"--exports", "--dry-run", "--results"},
    "mcp": {"--allow-run", "--results"},
    "sync": {"--results", "--tracking-uri", "--to"},
    "ui": {"--results", "--tracking-uri", "--port"},
    "page": {"--results", "--port", "--open"},
}


def test_commands_and_options() -> None:
    commands = get_command(app).commands
    export = commands["export"].commands
    assert {name: options(commands[name]) for name in commands if name != "export"} == {
        **ACTIONS, **{name: own | SHARED for name, own in QUESTIONS.items()},
    }  # fmt: skip
    assert {name: options(command) for name, command in export.items()} == {
        "heatmap": QUESTIONS["map"] | SHARED, "optuna": {"--results"},
        "weights": {"--trial", "--step", "--output", "--allow-import", "--results"},
    }  # fmt: skip


def test_keys_of_a_sweep_file() -> None:
    assert keys_of(SweepFile) == [
        "name", "objective", "steps", "tokens", "seeds", "axes", "fixed", "interventions", "control", "tie", "facts",
        "batch", "zip", "sample", "search", "budget", "stopping", "resources", "checkpoint", "keep", "validate",
        "telemetry", "tracking", "notify", "max_trials",
    ]  # fmt: skip
    assert list(AxisSection.model_fields) == ["values", "linear", "log", "log1m", "num", "when"]
    assert FUNCTIONS == ("min", "max", "round", "sqrt")
    assert list(SampleSection.model_fields) == ["method", "num", "seed"]
    assert list(SearchSection.model_fields) == [
        "method", "trials", "seed", "batch", "along", "precision", "level", "refines", "metric", "stable",
    ]  # fmt: skip
    assert METRIC_OF_EDGE == MARGIN == "margin"
    assert SEARCHES == ("edge", "tpe", "gp", "nsga2", "cmaes", "random", "qmc")
    assert list(SeedsSection.model_fields) == ["start", "up_to", "where"]
    assert list(KeepConfig.model_fields) == ["every", "last", "disk_mib"]
    assert list(BudgetConfig.model_fields) == ["trials", "member_steps", "minutes", "gpu_hours", "until"]
    assert keys_of(WorkersSection) == ["min", "max"]
    assert keys_of(BatchSection) == ["global", "micro", "accumulation", "workers"]
    assert dict(PARTS) == {"global": "global_batch", "micro": "micro_batch", "accumulation": "accumulation"}
    assert list(ResourcesConfig.model_fields) == [
        "cpus", "gpus", "pack", "compile", "kernels", "parallel", "workers", "gpus_per_worker", "grams_per_kwh",
        "stall_timeout_s",
    ]  # fmt: skip
    assert list(CustomTrainerSection.model_fields) == [
        "command", "python", "packed", "folder", "environment", "preload", "metrics", "resume", "diverged_if",
        "grace_s",
    ]  # fmt: skip
    assert list(MetricsConfig.model_fields) == [
        "file",
        "format",
        "pattern",
        "step",
        "loss",
        "grad_norm",
        "validation_loss",
        "every",
        "also",
        "score",
    ]
    assert list(ScoreConfig.model_fields) == ["name", "pattern", "maximize", "initial"]
    assert list(ResumeConfig.model_fields) == ["checkpoint", "arguments"]
    assert {
        "steps", "seed", "trial", "folder", "config", "command", "python", "environment", "metrics", "workers",
    } == GIVEN  # fmt: skip
    assert DATA_SEED == "data_seed"  # gives replicates of a fork other data
    assert list(CheckpointConfig.model_fields) == ["every_s", "every_steps"]
    assert list(ValidateConfig.model_fields) == ["every"]
    assert list(TelemetryConfig.model_fields) == ["every", "curvature", "products", "by", "curves"]
    assert list(TrackingConfig.model_fields) == ["enabled", "to", "uri", "experiment", "every"]
    assert list(NotifyConfig.model_fields) == ["url_from", "on"]
    assert EVENTS == ("finished", "failed", "stalled", "diverged")
    assert list(StoppingConfig.model_fields) == [
        "early_stop", "audit", "slow", "window", "min_history", "spike_sigma", "spike_rise", "spike_steps",
        "spike_mass", "recovery_steps", "lost_fraction", "lost_rise", "patience", "gradient_patience",
        "validation_patience", "stall_drop", "stall_steps",
    ]  # fmt: skip
    assert list(SlowConfig.model_fields) == [
        "method", "startup_trials", "warmup_steps", "interval_steps", "reduction",
    ]  # fmt: skip


def test_fields_of_the_objectives() -> None:
    own = {name: list(objective.config_class.model_fields) for name, objective in OBJECTIVES.items()}
    assert own == {
        "gpt": [
            *COMMON_FIELDS,
            "separator",
            "duplicated_share",
            "duplicated_times",
            "noise_share",
            "noise_kind",
            "dedup",
            "quality",
            "quality_keep",
            "context",
            "text",
            "domains",
            "domain_temperature",
            "curriculum",
            "curriculum_from",
            "curriculum_to",
            "curriculum_steps",
            "curriculum_reversed",
            "corrupted",
            "burst_at",
            "burst_length",
            "shift_at",
            "shift_text",
            "mix_share",
            "mix_text",
            "validation_batches",
            "experts",
            "top_k",
            "gate",
            "shared_experts",
            "balance",
            "balance_weight",
            "balance_step",
            "router_z_loss",
            "router_noise",
            "router_lr",
            "router_init",
            "capacity",
            "preset",
            "depth",
            "width",
            "heads",
            "kv_heads",
            "parametrisation",
            "base_width",
            "base_depth",
            "position",
            "rope_theta",
            "mlp",
            "bias",
            "tie_embeddings",
            "embedding_scale",
            "logit_softcap",
            "attention_softcap",
            "qk_clip",
            "precision",
            "loss_scale",
            "loss_scale_growth",
            "qk_norm",
            "norm",
            "norm_place",
            "residual_scale",
            "residual_depth",
            "init",
            "init_deviation",
            "dropout",
            "z_loss",
            "embedding_grad",
            "embedding_lr",
            "attention_lr",
            "mlp_lr",
            "norm_lr",
            "head_lr",
            "accumulate",
            "micro_batches",
            "recompute",
            "context_start",
            "context_steps",
        ],
        "function_fit": [*COMMON_FIELDS, "width", "num_points"],
        "quadratic": [*COMMON_FIELDS, "dimension", "curvature", "noise", "power"],
        "router": [*COMMON_FIELDS, "experts", "a", "b", "beta", "spread"],
    }


def test_outcomes_and_map_metrics() -> None:
    assert set(get_args(Outcome)) == {*OUTCOMES, "unknown", "pruned"}
    assert OUTCOMES == ("stable", "spiked", "diverged", "stalled")
    assert ALARM_KINDS == ("spike", "lost", "warning", "stalled", "nan")
    assert list(METRICS) == [
        "final_loss", "validation_loss", "best_validation_loss", "best_validation_step", "best_loss", "peak_loss",
        "peak_factor", "off_share", "learned_share", "lr_regret", "onset_step", "num_spikes", "steps_done",
        "merged_loss", "ema_loss", "collapsed_step", "score", "nonfinite_share", "peak_memory", "joules",
        "spike_score", "loss_ratio_steps", "edge_crossings", "late_edge_ratio", "last_edge_ratio",
        "late_update_over_lr", "late_v_lag", "late_router_gini",
    ]  # fmt: skip
    assert tuple(REDUCTIONS) == ("worst", "median", "best")


def test_columns_and_kinds_of_an_edge() -> None:
    assert EDGE_COLUMNS == ("edge", "low", "high", "kind")
    assert get_args(Kind) == (
        "stable below", "stable above", "may cross", "stable throughout", "not stable throughout", "not known",
    )  # fmt: skip


def test_columns_and_kinds_of_a_front() -> None:
    assert STEPS == "steps"
    assert FRONT_COLUMNS == ("state", "num_seeds", "loss", "against", "kind", "limit")
    assert get_args(front_kinds) == ("front", "beaten", "island", "no candidate")


def test_columns_of_the_remedies_of_all_cells(tmp_path: Path) -> None:
    results = all_cells([in_cell(answer(forked(LOWER, 50, ["stable"])), 0.1)])
    assert tuple(RemediesAnswer.of(results, None, tmp_path).frame().columns) == (
        "lr", "beta2",  # the axes
        "trial_id", "seed", "outcome", "onset_step", "cause", "cheapest", "kind", "cheapest_step", "most", "most_step",
        "from_onset", "saved", "tried", "low", "high", "num_tried", "final_loss", "alone_loss", "neighbours",
        "neighbours_stable", "neighbour_cost", "agrees_with_diagnosis", "control_repeats",
        "num_forks", "num_missing", "spent_steps", "saves",
    )  # fmt: skip
    assert tuple(KINDS) == ("lr", "beta1", "beta2", "eps", "clip", "skip", "mean", "reset", "other")


def test_names_of_the_results_in_a_notebook(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep_of("axes: {lr: {values: [0.1, 1]}}\n"), ["stable", "diverged"])
    results = orchestrator.load(tmp_path / "case")
    questions = {query.query_name() for query in answers.query_classes("sweep")}
    assert {*dir(results)} == questions | {
        "ask", "axes", "compare", "folder", "map", "name", "plot", "sentence", "telemetry", "to_xarray", "trace",
        "trials",
    }  # fmt: skip
    assert list(inspect.signature(results.recommend).parameters)[-5:] == [
        "margin", "metric", "degraded", "maximize", "paste",
    ]  # fmt: skip
    assert list(inspect.signature(orchestrator.run).parameters) == [
        "sweep", "axis", "drop", "set", "seeds", "steps", "name", "results", "executor", "retry_errored",
        "allow_import",
    ]  # fmt: skip
    assert list(inspect.signature(SweepResults.map).parameters) == ["self", "x", "y", "where", "reduce"]


def test_columns_of_the_ledger(tmp_path: Path) -> None:
    LedgerWriter(tmp_path / "ledger.db").close()
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(trials)")]
    database.close()
    assert columns == [
        "trial_id", "position", "cell", "seed", "config", "objective", "status", "num_attempts", "outcome",
        "onset_step", "num_spikes", "steps", "steps_done", "initial_loss", "best_loss", "final_loss", "peak_loss",
        "peak_factor", "off_share", "risen_share", "validation_loss", "best_validation_loss", "best_validation_step",
        "overfit_step", "verdict_step", "slow_step", "plateau_step", "is_audited", "episodes", "norm_rises",
        "curve_digest", "rung_losses", "reason", "error", "pack_id", "started_at", "finished_at", "fired",
        "score", "initial_score", "num_nonfinite", "nonfinite_share", "num_skipped", "data_share", "peak_memory",
        "peak_device_memory", "joules", "collapsed_step", "merged_loss", "ema_loss",
    ]  # fmt: skip


def test_names_for_the_training_loops_of_others() -> None:
    assert set(orchestrator.__all__) == {
        "SpikeDetector", "StoppingConfig", "SweepResults", "TrainingLost", "Watch", "__version__", "load", "run",
    }  # fmt: skip
    detector = orchestrator.SpikeDetector()
    for loss in (3.0, 2.0, float("nan")):
        detector.update(loss, 1.0, 10)
    assert detector.record().lost == "not_finite"


def test_names_of_rules_and_of_what_a_loop_does_with_them() -> None:
    assert [*Intervention.model_fields] == [
        "at", "set", "over", "lasts", "reset", "rescale", "skip", "mean", "apart", "until", "data", "freeze", "moments",
        "group", "weight_decay", "norm", "optimizer", "attention", "precision",
    ]  # fmt: skip
    assert [*Rule.model_fields] == [
        "name", "on", "above", "readings", "do", "every", "after", "at_most", "cool_down", "over", "lasts", "calm",
    ]  # fmt: skip
    assert SIGNALS == (
        "step", "loss", "grad_norm", "curvature", "curvature_along_gradient", "v_lag", "noise_scale", "gain",
        "loss_scale_falls", "router_gini", "router_dead", "not_finite",
    )  # fmt: skip
    assert [field.name for field in fields(Action)] == [
        "step", "kind", "factor", "clip", "skip", "rollback_to", "reason", "words",
    ]  # fmt: skip
    assert get_args(Action_kinds) == ("none", "change", "skip", "rollback", "stop")
    assert {name for name in vars(orchestrator.Watch) if not name.startswith("_")} >= {
        "report", "apply", "keep", "fired", "has_rules", "state_dict", "load_state_dict", "telemetry", "verdict",
    }  # fmt: skip
    assert "control" in inspect.signature(orchestrator.Watch).parameters
