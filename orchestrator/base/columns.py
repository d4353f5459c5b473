"""The definition of every column and metric, used by tables, MLflow, the report and the docs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name on disk, its unit ("" for text and for plain numbers) and its meaning.

    ``title`` names the median over a cell's seeds, for columns that a map can show. ``is_in_mlflow`` says whether a
    trial's run in MLflow has it as a metric.
    """

    name: str
    unit: str
    meaning: str
    title: str = ""
    is_in_mlflow: bool = False


# The columns of trials.csv and `load().trials`, in this order, with the configuration's fields after trial_id.
TRIAL_COLUMNS = (
    Column("trial_id", "", "hash of the full resolved configuration"),
    Column("seed", "", "seed of the initial weights and of the order of the data"),
    Column("status", "", "what the infrastructure did: planned, running, finished, interrupted, lost or errored"),
    Column(
        "outcome", "", "what the training did: stable, spiked, diverged, stalled, unknown or pruned; empty without one"
    ),
    Column(
        "onset_step", "step",
        "where it first left its trend (spiked), where the divergence began (diverged), the first step (stalled)",
        "median onset step", is_in_mlflow=True,
    ),
    Column(
        "num_spikes", "", "times that the loss left its trend, whether or not it came back", "median number of spikes",
        is_in_mlflow=True,
    ),
    Column("steps", "steps", "length of the training as configured"),
    Column(
        "steps_done", "steps", "steps trained; fewer than steps where the trial was stopped early",
        "median steps trained", is_in_mlflow=True,
    ),
    Column("initial_loss", "loss", "first finite training loss", is_in_mlflow=True),
    Column(
        "best_loss", "loss", "lowest median of ten training losses in a row, those off the trend left out",
        "median best loss", is_in_mlflow=True,
    ),
    Column(
        "final_loss", "loss", "median of the last ten training losses; empty where loss or gradient became not finite",
        "median final loss", is_in_mlflow=True,
    ),
    Column(
        "peak_loss", "loss", "highest training loss off the trend; empty where it never left its trend",
        "median peak of the spikes",
    ),
    Column(
        "peak_factor", "", "tallest excursion off the trend, as a factor of the level before it",
        "median height of the tallest spike, as a factor", is_in_mlflow=True,
    ),
    Column("off_share", "share", "share of the steps off the trend", "median share of steps off the trend", True),
    Column(
        "risen_share", "share",
        "of what it had learned, given up in a slow rise; empty where it is less than a quarter, or where it came back",
        is_in_mlflow=True,
    ),
    Column(
        "norm_rises", "steps",
        "where the median of 10 gradient norms had risen to 1.5 times that of 128; a note, which changes no outcome",
    ),
    Column("fired", "", "what the rules of its control did, and why; empty without control"),
    Column(
        "learned_share", "share",
        "what it learned of what the sweep's best trial did: (start - final loss) / (start - best final loss); the "
        "start is the initial loss, at most the lower quartile of the sweep's",
        "median share learned of what the best trial did", is_in_mlflow=True,
    ),
    Column(
        "lr_health", "",
        "whether its learning rate is right, by the trials beside it: too slow (raise it), oscillating (lower it), "
        "right or unknown; empty where no learning rate is an axis, and where the outcome says more",
    ),
    Column(
        "lr_regret", "loss",
        "loss left on the table: its final loss less the lowest at any learning rate with the same seed and settings",
        "median loss left on the table by the learning rate", is_in_mlflow=True,
    ),
    Column(
        "validation_loss", "loss", "mean loss on held-out data after the last step; empty where there is none",
        "median validation loss", is_in_mlflow=True,
    ),
    Column(
        "best_validation_loss", "loss", "lowest of its validation losses, during training and after the last step",
        "median best validation loss", is_in_mlflow=True,
    ),
    Column(
        "best_validation_step", "step", "the update after which it had its lowest validation loss",
        "median step of the best validation loss", is_in_mlflow=True,
    ),
    Column(
        "overfit_step", "step",
        "from where on its validation loss rose to the end while its training loss stayed on its trend; a note, which "
        "changes no outcome",
        is_in_mlflow=True,
    ),
    Column("reason", "", "why it has this outcome, or what went wrong"),
    Column("num_attempts", "", "how often its training was started"),
    Column("saved_steps", "steps", "steps that early stopping saved: steps - steps_done"),
)  # fmt: skip

# The headline readings of a trial, computed from its telemetry; empty without it. They follow TRIAL_COLUMNS in
# trials.csv and `load().trials`. The second half is that of the steps that were trained.
READING_COLUMNS = (
    Column(
        "edge_crossings", "",
        "times that the curvature lambda_max rose over 2 / lr in the second half of training (needs telemetry)",
        "median times over the edge of stability, second half", is_in_mlflow=True,
    ),
    Column(
        "late_edge_ratio", "",
        "distance to the edge of stability: median of lambda_max * lr / 2 in the second half of training, 1 at the "
        "edge; lambda_max is that of the Hessian preconditioned as in the step (needs telemetry.curvature)",
        "median distance to the edge, lambda_max * lr / 2 (1 at the edge), second half", is_in_mlflow=True,
    ),
    Column(
        "last_edge_ratio", "", "last reading of lambda_max * lr / 2, 1 at the edge (needs telemetry.curvature)",
        "median distance to the edge, lambda_max * lr / 2 (1 at the edge), last reading", is_in_mlflow=True,
    ),
    Column(
        "late_update_over_lr", "",
        "median of the update's RMS over the learning rate of its step in the second half of training; 1 is sign "
        "descent (needs telemetry)",
        "median RMS of the update over the learning rate, second half", is_in_mlflow=True,
    ),
    Column(
        "late_v_lag", "",
        "median of the gradient's squared norm over the sum of v in the second half of training (needs telemetry)",
        "median v-lag, |g|^2 / sum v, second half", is_in_mlflow=True,
    ),
)  # fmt: skip

# Metrics of a map that are computed from a trial's curves on demand.
CURVE_METRIC_COLUMNS = (
    Column(
        "spike_score", "share of steps",
        "share of steps at which loss or gradient norm is over the mean plus 6 deviations of the last 128",
        "median spike score: share of steps over 6 sigma of the last 128",
    ),
    *READING_COLUMNS,
)  # fmt: skip

# The first columns of a curve; an objective may report more.
TRACE_COLUMNS = (
    Column("step", "step", "number of the update, from 0"),
    Column("loss", "loss", "training loss of the step's batch, before the update", is_in_mlflow=True),
    Column("grad_norm", "", "norm of the gradient of all parameters, before clipping", is_in_mlflow=True),
    Column("update_norm", "", "norm of the change that the step made to all parameters", is_in_mlflow=True),
    Column("lr", "", "learning rate of the step, by the schedule", is_in_mlflow=True),
)

_MAPPED = (
    "final_loss", "validation_loss", "best_validation_loss", "best_validation_step", "best_loss", "peak_loss",
    "peak_factor", "off_share", "learned_share", "lr_regret", "onset_step", "num_spikes", "steps_done", "spike_score",
    *(column.name for column in READING_COLUMNS),
)  # fmt: skip
_BY_NAME = {column.name: column for column in (*TRIAL_COLUMNS, *CURVE_METRIC_COLUMNS)}

# What a map can show of a cell besides its fraction of stable seeds, with the title of the median.
METRICS: Mapping[str, str] = {name: _BY_NAME[name].title for name in _MAPPED}
# The numbers of a finished trial.
RESULTS = tuple(column.name for column in TRIAL_COLUMNS if column.is_in_mlflow)
FRACTION_TITLE = "fraction of stable seeds"

# The columns of map.csv and `load().map()` after those of the axes; one row per cell.
MAP_COLUMNS = (
    Column("num_seeds", "", "seeds that the sweep asks for"),
    Column("num_finished", "", "seeds that have an outcome and were not pruned"),
    Column(
        "state", "",
        "stable, degraded, spiked, diverged, stalled, unknown, pruned, errored or not_run; stable only when all seeds "
        "asked for are, degraded when all are and some learned less than half of what the sweep's best trial did",
    ),
    Column(
        "cell_lr_health", "",
        "the word of most of its seeds on the learning rate; where they disagree right if one says so, else unknown",
    ),
    Column("fraction_stable", "share", "stable seeds of the finished ones"),
    Column("fraction_low", "share", "lower end of the 95 % Wilson interval of fraction_stable"),
    Column("fraction_high", "share", "upper end of the 95 % Wilson interval of fraction_stable"),
    Column("num_stable", "", "seeds with the outcome stable, and degraded ones"),
    Column(
        "num_degraded", "",
        "seeds that learned less than half of what the sweep's best trial did: stable ones, and those that stalled "
        "since their learning rate is too slow",
    ),
    Column("num_spiked", "", "seeds with the outcome spiked"),
    Column("num_diverged", "", "seeds with the outcome diverged"),
    Column("num_stalled", "", "seeds with the outcome stalled, without those that are degraded"),
    Column("num_pruned", "", "seeds that were stopped since they were slow beside others"),
    Column("num_risen", "", "seeds that gave up more than a quarter of what they had learned in a slow rise"),
    Column("num_errored", "", "seeds that ended with an error and have no outcome"),
    Column("total_spikes", "", "num_spikes summed over the finished seeds"),
    *(
        Column(f"median_{name}", _BY_NAME[name].unit, f"median of {name} over the finished seeds that have it")
        for name in _MAPPED
    ),
)  # fmt: skip


def title(name: str) -> str:
    """The title of a metric of maps; any other ``name`` is one that a custom trainer printed."""
    return METRICS.get(name, f"median {name}, last value")


def meaning(name: str) -> str:
    """The meaning of a column of trials or metric of maps, with its unit; other names are of a custom trainer."""
    if name not in _BY_NAME:
        return f"last value of {name} that the trainer printed"
    column = _BY_NAME[name]
    return f"{column.meaning} ({column.unit})" if column.unit else column.meaning


def names(columns: Iterable[Column]) -> list[str]:
    """The names of ``columns``, in order."""
    return [column.name for column in columns]
