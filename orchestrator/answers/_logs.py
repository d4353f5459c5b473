"""Options about logs, as the parts that read and judge logs take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.base.errors import InputError, Problem

if TYPE_CHECKING:
    from orchestrator.detection.config import StoppingConfig
    from orchestrator.logs.columns import MetricsConfig


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


def stopping_of(sets: Sequence[str]) -> StoppingConfig:
    """Return the detector's settings for logs, changed by `--set stopping.KEY=VALUE`. Raises InputError."""
    from pydantic import ValidationError

    from orchestrator.detection.config import StoppingConfig
    from orchestrator.sweepfile.overrides import parse_set

    changes = {}
    for text in sets:
        path, value = parse_set(text)
        if len(path) != 2 or path[0] != "stopping":
            raise InputError(Problem(f"--set {text}", "", "is not a key of stopping", "write e.g. stopping.window=100"))
        changes[path[1]] = value
    try:
        return StoppingConfig(**changes)
    except ValidationError as error:
        details = error.errors()[0]
        key = ".".join(str(part) for part in details["loc"])
        known = f"keys: {', '.join(StoppingConfig.model_fields)}" if details["type"] == "extra_forbidden" else ""
        raise InputError(Problem("--set", f"stopping.{key}", details["msg"], known)) from None
