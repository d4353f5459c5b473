"""Options that several questions have, each with one meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.query import cell_conditions, conditions, option

if TYPE_CHECKING:
    from orchestrator.logs.columns import MetricsConfig


def x_option() -> Any:
    """The horizontal axis of a map."""
    return option(None, "horizontal axis; the first by default", metavar="AXIS")


def y_option() -> Any:
    """The vertical axis of a map."""
    return option(None, "vertical axis; the second by default", metavar="AXIS")


def along_option(help: str = "the axis along which edges and margins lie; the first by default") -> Any:
    """The axis of edges and margins."""
    return option(None, help, metavar="AXIS")


def where_option() -> Any:
    """A selection of cells."""
    return option({}, "only cells with this value of another axis; repeatable", metavar="AXIS=VALUE", read=conditions)


def by_option(help: str) -> Any:
    """The axis for each of whose values there is one of something."""
    return option(None, help, metavar="AXIS")


def reduce_option() -> Any:
    """Which cell represents the axes that are not shown."""
    return option("worst", "for axes that are not shown: take their worst, median or best cell")


def degraded_option() -> Any:
    """Whether a degraded cell is over the edge."""
    return option(False, "count degraded cells as over the edge: stable, but learned less than half")


def metric_option(default: str | None, help: str) -> Any:
    """A metric of maps."""
    return option(default, help, metavar="METRIC")


def trial_option() -> Any:
    """A trial."""
    return option(None, "the trial's id, or an unambiguous prefix", metavar="ID")


def cell_option(help: str = "the most typical trial of this cell: beta2=0.999,eps=1e-8") -> Any:
    """The values of a cell."""
    return option(None, help, metavar="AXIS=VALUE,...", read=cell_conditions)


def step_option() -> Any:
    """The column of steps in a log."""
    return option(None, "the column of steps", metavar="NAME")


def loss_option() -> Any:
    """The column of losses in a log."""
    return option(None, "the column of training losses", metavar="NAME")


def grad_norm_option() -> Any:
    """The column of gradient norms in a log."""
    return option(None, "the column of gradient norms", metavar="NAME")


def pattern_option() -> Any:
    """How a line of a log reads."""
    return option(None, r"named groups: `it (?P<step>\d+) L=(?P<loss>\S+)`", metavar="REGEX")


def format_option() -> Any:
    """The format of a log."""
    return option("auto", "text, json, csv or tensorboard, if auto guesses wrong")


def try_option() -> Any:
    """Remedies to try on forks of a trial."""
    help = "remedies: lr=x0.5,x0.25, lr=x0.25:50:20, skip=5, lr=x0.5+clip=1; the usual ones by default; repeatable"
    return option((), help, metavar="FIELD=VALUE,...")


def fork_option() -> Any:
    """Steps to fork a trial at."""
    return option((), "fork before this step: 100, -50 (before the onset), onset; repeatable", metavar="STEP")


def replicates_option() -> Any:
    """Forks of each remedy."""
    help = "forks of each remedy: the first has the trial's data, the others have other batches"
    return option(3, help, minimum=1, maximum=100)


def executor_option() -> Any:
    """Where forks train."""
    return option("inline", "inline to train in this process, ray or slurm")


def allow_import_option() -> Any:
    """Whether code that a sweep file names may be imported."""
    return option(False, "import the Python code that the sweep file names")


def log_metrics(pattern: str | None, format_: str, loss: str | None) -> MetricsConfig:
    """Return the pattern and the format of logs as options give them. Raises InputError."""
    from pydantic import ValidationError

    from orchestrator.logs.columns import MetricsConfig
    from orchestrator.logs.line_formats import compiled_pattern

    try:
        metrics = MetricsConfig.model_validate({"pattern": pattern, "format": format_, "loss": loss})
    except ValidationError as error:
        details = error.errors()[0]
        remedy = "see `sweep replay --help`"
        raise InputError(Problem(f"--{details['loc'][0]}", "", details["msg"], remedy)) from None
    if metrics.pattern is not None:
        compiled_pattern(metrics)
    return metrics
