"""Which parameter moves a result: the evaluators of Optuna, asked over plain trials."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.search.study import Parameter, distribution, study_in_memory

if TYPE_CHECKING:
    import optuna

EVALUATORS = ("ped_anova", "fanova")
_SEED = 0  # of the random forest of fANOVA


def importances(
    parameters: Sequence[Parameter], rows: Sequence[Mapping[str, Any]], results: Sequence[float], best: float
) -> dict[str, dict[str, float] | None]:
    """By evaluator the share of each parameter in what moves ``results``, lower being better; None where nothing does.

    ``rows`` have a value for each of ``parameters``, ``results`` are finite. PED-ANOVA (Watanabe et al. 2023, arXiv
    2304.10255) asks how far the ``best`` share of the trials, in (0, 1), has other values than all; fANOVA (Hutter et
    al. 2014) how much of the variance each parameter explains on its own. The order of the rows does not matter.
    """
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator

    if len(set(results)) < 2:
        return dict.fromkeys(EVALUATORS)
    distributions = {parameter.name: distribution(parameter) for parameter in parameters}
    pairs = sorted(
        zip(rows, results, strict=True),
        key=lambda pair: (*(str(pair[0][parameter.name]) for parameter in parameters), pair[1]),
    )
    study = study_in_memory(distributions, pairs)
    made: dict[str, optuna.importance.BaseImportanceEvaluator] = {
        "ped_anova": PedAnovaImportanceEvaluator(target_quantile=best),
        "fanova": FanovaImportanceEvaluator(seed=_SEED),
    }
    return {name: _shares(study, made[name], list(distributions)) for name in EVALUATORS}


def _shares(
    study: optuna.Study, evaluator: optuna.importance.BaseImportanceEvaluator, names: Sequence[str]
) -> dict[str, float] | None:
    """The importances, adding up to one. Optuna itself gives equal shares where all of them are zero."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # PED-ANOVA says so where the best trials are all trials.
        warnings.filterwarnings("ignore", "Target and region quantiles select the same set")
        try:
            found = optuna.importance.get_param_importances(study, evaluator=evaluator, normalize=False)
        except RuntimeError:  # fANOVA's, where its trees see no variance
            return None
    total = sum(found.values())
    return {name: float(found[name] / total) for name in names} if total > 0 else None
