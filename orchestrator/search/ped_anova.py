"""PED-ANOVA by Optuna, of trials that are given and not stored."""

from __future__ import annotations

import warnings
from collections.abc import Container, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState


class _GivenTrials(InMemoryStorage):
    """A storage whose trials are given all at once. Adding each one to a study would copy it with its distributions."""

    def __init__(self, trials: Sequence[FrozenTrial]) -> None:
        super().__init__()
        self._given = list(trials)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials, which have all ended with a value."""
        return self._given


def ped_anova(
    distributions: Mapping[str, BaseDistribution], pairs: Sequence[tuple[Mapping[str, Any], float]], best: float
) -> dict[str, float] | None:
    """Return the importances, which add up to one. Optuna itself gives equal shares if all are zero.

    ``pairs`` are settings with their results, of which the lower are better, and the fraction ``best`` is good.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=_GivenTrials([_trial(i, row, result, distributions) for i, (row, result) in enumerate(pairs)])
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # It warns if the best trials are all trials.
        warnings.filterwarnings("ignore", "Target and region quantiles select the same set")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=best)
        importance = optuna.importance.get_param_importances(study, evaluator=evaluator, normalize=False)
    total = sum(importance.values())
    return {name: float(importance[name] / total) for name in distributions} if total > 0 else None


def _trial(
    number: int, row: Mapping[str, Any], result: float, distributions: Mapping[str, BaseDistribution]
) -> FrozenTrial:
    return FrozenTrial(
        number=number,
        trial_id=number,
        state=TrialState.COMPLETE,
        value=float(result),
        datetime_start=None,
        datetime_complete=None,
        params=dict(row),
        distributions=dict(distributions),
        user_attrs={},
        system_attrs={},
        intermediate_values={},
    )
