"""Options that several questions have, each with one meaning.

Each is called for the field of a question: ``x: str | None = x_option()``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.measure import unjudged
from orchestrator.base.query import cell_conditions, conditions, option

if TYPE_CHECKING:
    from orchestrator.logs.columns import MetricsConfig

x_option = partial(option, None, "horizontal axis; the first by default", metavar="AXIS")
y_option = partial(option, None, "vertical axis; the second by default", metavar="AXIS")
# Selections of cells, and which cell represents the axes that are not shown.
where_option = partial(
    option, {}, "only cells with this value of another axis; repeatable", metavar="AXIS=VALUE", read=conditions
)
reduce_option = partial(option, "worst", "for axes that are not shown: take their worst, median or best cell")
degraded_option = partial(
    option, False, "count degraded cells as over the edge: none unstable, but learned less than half"
)
trial_option = partial(option, None, "the trial's id, or an unambiguous prefix", metavar="ID")

# How a log is read.
step_option = partial(option, None, "the column of steps", metavar="NAME")
loss_option = partial(option, None, "the column of training losses", metavar="NAME")
grad_norm_option = partial(option, None, "the column of gradient norms", metavar="NAME")
pattern_option = partial(option, None, r"named groups: `it (?P<step>\d+) L=(?P<loss>\S+)`", metavar="REGEX")
format_option = partial(option, "auto", "text, json, csv or tensorboard, if auto guesses wrong")

# Remedies, and the forks that try them.
try_option = partial(
    option,
    (),
    "remedies: lr=x0.5,x0.25, lr=x0.25:50:20, skip=5, lr=x0.5+clip=1; the usual ones by default; repeatable",
    metavar="FIELD=VALUE,...",
)
fork_option = partial(
    option, (), "fork before this step: 100, -50 (before the onset), onset; repeatable", metavar="STEP"
)
executor_option = partial(option, "inline", "inline to train in this process, ray or slurm")
allow_import_option = partial(option, False, "import the Python code that the sweep file names")

# Called with a help of their own.
by_option = partial(option, None, metavar="AXIS")  # the axis for each of whose values there is one of something
metric_option = partial(option, metavar="METRIC")


def direction_option(of: str) -> Any:
    """Whether more of a metric is better."""
    what = f"whether more of {of} is better, if that is a metric that a trainer printed (metrics: also)"
    return option(None, what, flag="--maximize", opposite="--minimize")


def along_option(help: str = "the axis along which edges and margins lie; the first by default") -> Any:
    """The axis of edges and margins."""
    return option(None, help, metavar="AXIS")


def replicates_option(
    default: int = 3, help: str = "forks of each remedy: the first has the trial's data, the others have other batches"
) -> Any:
    """How many forks of each kind."""
    return option(default, help, minimum=1, maximum=100)


def cell_option(help: str = "the most typical trial of this cell: beta2=0.999,eps=1e-8") -> Any:
    """The values of a cell."""
    return option(None, help, metavar="AXIS=VALUE,...", read=cell_conditions)


def log_metrics(pattern: str | None, format_: str, loss: str | None) -> MetricsConfig:
    """Return the pattern and the format of logs as options give them. Raises InputError."""
    from pydantic import ValidationError

    from orchestrator.logs.columns import MetricsConfig
    from orchestrator.logs.pattern import compiled_pattern

    try:
        metrics = MetricsConfig.model_validate({"pattern": pattern, "format": format_, "loss": loss})
    except ValidationError as error:
        details = error.errors()[0]
        remedy = "see `sweep replay --help`"
        raise InputError(Problem(f"--{details['loc'][0]}", "", details["msg"], remedy)) from None
    if metrics.pattern is not None:
        compiled_pattern(metrics)
    elif loss is not None and (message := unjudged(loss)) is not None:
        remedy = "name the column of losses; --pattern with a group (?P<loss>...) says that it is one"
        raise InputError(Problem(f"--loss {loss}", "", message, remedy))
    return metrics
