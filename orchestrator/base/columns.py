"""The columns of every table and the metrics of maps, for tables, trackers, the report and the docs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.base.trial_result import RESULT_COLUMNS, Column

# The columns of trials.csv and `load().trials`, in this order, with the configuration's fields after trial_id.
TRIAL_COLUMNS = (
    *(column for column in RESULT_COLUMNS if column.in_tables),
    Column("saved_steps", "steps", "steps that early stopping saved: steps - steps_done"),
)

# The headline readings of a trial, computed from its telemetry; empty without it. They follow TRIAL_COLUMNS in
# trials.csv and `load().trials`. The second half is the second half of the trained steps.
READING_COLUMNS = (
    Column(
        "edge_crossings", "",
        "times that the curvature lambda_max rose over 2 / lr in the second half of training (needs telemetry)",
        "median times over the threshold 2 / lr, second half", is_tracked=True,
    ),
    Column(
        "late_edge_ratio", "",
        "curvature over its threshold: median of lambda_max * lr / 2 in the second half of training, 1 at the "
        "threshold; lambda_max belongs to the Hessian preconditioned as in the step (needs telemetry.curvature)",
        "median curvature over its threshold, lambda_max * lr / 2, second half", is_tracked=True,
    ),
    Column(
        "last_edge_ratio", "", "last reading of lambda_max * lr / 2, 1 at the threshold (needs telemetry.curvature)",
        "median curvature over its threshold, lambda_max * lr / 2, last reading", is_tracked=True,
    ),
    Column(
        "late_update_over_lr", "",
        "median of the update's RMS over the learning rate of its step in the second half of training; 1 is sign "
        "descent (needs telemetry)",
        "median RMS of the update over the learning rate, second half", is_tracked=True,
    ),
    Column(
        "late_v_lag", "",
        "median of the gradient's squared norm over the sum of v in the second half of training (needs telemetry)",
        "median v-lag, |g|^2 / sum v, second half", is_tracked=True,
    ),
    Column(
        "late_router_gini", "",
        "median Gini coefficient of the router's loads in the second half of training, 0 for even loads (needs "
        "telemetry)",
        "median Gini coefficient of the router's loads, second half", is_tracked=True,
    ),
)  # fmt: skip

# Metrics of a map that are computed from a trial's curves on demand.
CURVE_METRIC_COLUMNS = (
    Column(
        "spike_score", "share of steps",
        "share of steps whose loss or gradient norm is over the mean plus 6 deviations of the last 128",
        "median spike score: share of steps over 6 sigma of the last 128",
    ),
    Column(
        "loss_ratio_steps", "steps",
        "steps whose loss is above 1.2 times the least loss before, or not finite",
        "median number of steps over 1.2 times the least loss before",
    ),
    *READING_COLUMNS,
)  # fmt: skip

# The first columns of a curve; an objective may report more.
TRACE_COLUMNS = (
    Column("step", "step", "number of the update, from 0"),
    Column("loss", "loss", "training loss of the step's batch, before the update", is_tracked=True),
    Column("grad_norm", "", "norm of the gradient of all parameters, before clipping", is_tracked=True),
    Column("update_norm", "", "norm of the change that the step made to all parameters", is_tracked=True),
    Column("lr", "", "learning rate of the step, by the schedule", is_tracked=True),
)

# Metrics that menus show first; other columns with a title follow in the order of their table.
_FIRST = (
    "final_loss", "validation_loss", "best_validation_loss", "best_validation_step", "best_loss", "peak_loss",
    "peak_factor", "off_share", "learned_share", "lr_regret",
)  # fmt: skip
_BY_NAME = {column.name: column for column in (*TRIAL_COLUMNS, *CURVE_METRIC_COLUMNS)}

# What a map can show of a cell besides its fraction of stable seeds, with the title of the median.
METRICS: Mapping[str, str] = {
    name: _BY_NAME[name].title for name in dict.fromkeys([*_FIRST, *_BY_NAME]) if _BY_NAME[name].title
}
# The numbers of a finished trial, and the texts that a tracker has as tags.
RESULTS = tuple(column.name for column in TRIAL_COLUMNS if column.is_metric)
TAGS = tuple(column.name for column in TRIAL_COLUMNS if column.is_tracked and not column.is_metric)
FRACTION_TITLE = "fraction of stable seeds"

# The columns of map.csv and `load().map()` after those of the axes; one row per cell.
MAP_COLUMNS = (
    Column("num_seeds", "", "seeds that the sweep asks for"),
    Column("num_finished", "", "seeds that have an outcome and were not pruned"),
    Column(
        "state", "",
        "stable (all seeds asked for are), degraded, collapsed, spiked, diverged, stalled, unknown, pruned, errored or "
        "not_run",
    ),
    Column(
        "cell_lr_health", "",
        "majority label of its seeds' learning rates; on disagreement right if any seed says so, else unknown",
    ),
    Column("fraction_stable", "share", "stable seeds of the finished ones; degraded and collapsed ones are not"),
    Column("fraction_low", "share", "lower end of the 95 % Wilson interval of fraction_stable"),
    Column("fraction_high", "share", "upper end of the 95 % Wilson interval of fraction_stable"),
    Column("num_stable", "", "stable seeds, without degraded and collapsed ones"),
    Column(
        "num_degraded", "",
        "stable seeds, and stalled ones with too slow a learning rate, that learned less than half of what the sweep's "
        "best trial did",
    ),
    Column("num_collapsed", "", "stable seeds whose router has collapsed"),
    Column("num_spiked", "", "spiked seeds"),
    Column("num_diverged", "", "diverged seeds"),
    Column("num_stalled", "", "stalled seeds, without degraded ones"),
    Column("num_pruned", "", "seeds that were stopped as slow"),
    Column("num_risen", "", "seeds that gave up more than a quarter of what they had learned in a slow rise"),
    Column("num_errored", "", "seeds that ended with an error and have no outcome"),
    Column("total_spikes", "", "num_spikes of all finished seeds"),
    *(
        Column(f"median_{name}", _BY_NAME[name].unit, f"median of {name} over the finished seeds that have it")
        for name in METRICS
    ),
)  # fmt: skip


def title(name: str) -> str:
    """Return the title of a metric of maps; an unknown ``name`` is one that the training reported."""
    return METRICS.get(name, f"median {name}, last value")


def meaning(name: str) -> str:
    """Return meaning and unit of a column of trials or metric of maps; unknown names are from a custom trainer."""
    if name not in _BY_NAME:
        return f"last value of {name} that the trainer printed"
    column = _BY_NAME[name]
    return f"{column.meaning} ({column.unit})" if column.unit else column.meaning


def names(columns: Iterable[Column]) -> list[str]:
    """Return the names of ``columns``, in order."""
    return [column.name for column in columns]


def markdown_table(columns: Iterable[Column]) -> str:
    """Return the definitions of ``columns`` as docs/maps.md has them; a star marks metrics of MLflow."""
    rows = (f"| `{c.name}`{'*' if c.is_metric else ''} | {c.meaning} |" for c in columns)
    return "\n".join(["| column | meaning |", "| --- | --- |", *rows]) + "\n"
