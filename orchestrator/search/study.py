"""Plain trials as an Optuna study: in memory for its evaluators, or in a file for its dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a study: a range of numbers, on a logarithmic scale or not, or with ``choices`` one of them."""

    name: str
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    choices: tuple[str | float | bool | None, ...] | None = None


def distribution(parameter: Parameter) -> optuna.distributions.BaseDistribution:
    """Optuna's description of ``parameter``."""
    import optuna

    if parameter.choices is not None:
        return optuna.distributions.CategoricalDistribution(parameter.choices)
    return optuna.distributions.FloatDistribution(parameter.low, parameter.high, log=parameter.is_log)


def study_in_memory(
    parameters: Mapping[str, optuna.distributions.BaseDistribution], results: list[tuple[Mapping[str, Any], float]]
) -> optuna.Study:
    """A study to minimise of complete trials: values of ``parameters``, and the result."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    for values, result in results:
        study.add_trial(
            optuna.trial.create_trial(params=dict(values), distributions=dict(parameters), value=float(result))
        )
    return study
