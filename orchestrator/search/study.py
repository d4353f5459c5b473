"""Plain trials as an Optuna study: in memory for its evaluators, or in a file for its dashboard."""

from __future__ import annotations

import contextlib
import datetime
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import InputError, Problem

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


@dataclass(frozen=True, slots=True)
class StudyTrial:
    """A trial of a study: its parameters, and with a result its ``values``, one for each metric.

    ``state`` is Optuna's: complete, fail, running or waiting. ``intermediate`` are values by step. Times are seconds
    since 1970; only one that waits has not started.
    """

    state: str
    parameters: Mapping[str, Any]
    values: tuple[float, ...] | None
    attributes: Mapping[str, Any]
    intermediate: Mapping[int, float]
    started_s: float | None
    finished_s: float | None


def study_file(
    name: str, metrics: Sequence[str], parameters: Sequence[Parameter], trials: Sequence[StudyTrial]
) -> bytes:
    """The SQLite file of a study to minimise ``metrics`` with these ``trials``, in the schema of the Optuna installed.

    The same arguments give the same file.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions = {parameter.name: distribution(parameter) for parameter in parameters}
    # In memory, so that no file is synced to disk for every trial, and none is left behind half-written.
    storage = optuna.storages.RDBStorage("sqlite:///:memory:")
    try:
        study = optuna.create_study(storage=storage, study_name=name, directions=["minimize"] * len(metrics))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(list(metrics))
        for number, trial in enumerate(trials):
            study.add_trial(_frozen(number, trial, distributions))
        storage.remove_session()
        with contextlib.closing(storage.engine.raw_connection()) as connection:
            assert connection.driver_connection is not None
            return bytes(connection.driver_connection.serialize())
    finally:
        storage.engine.dispose()


def _frozen(
    number: int, trial: StudyTrial, distributions: Mapping[str, optuna.distributions.BaseDistribution]
) -> optuna.trial.FrozenTrial:
    import optuna

    return optuna.trial.FrozenTrial(
        number=number,
        trial_id=number,
        state=optuna.trial.TrialState[trial.state.upper()],
        value=None,
        values=trial.values,
        datetime_start=_date(trial.started_s),
        datetime_complete=_date(trial.finished_s),
        params=dict(trial.parameters),
        distributions={name: distributions[name] for name in trial.parameters},
        user_attrs=dict(trial.attributes),
        system_attrs={},
        intermediate_values=dict(trial.intermediate),
    )


def _date(seconds: float | None) -> datetime.datetime | None:
    return None if seconds is None else datetime.datetime.fromtimestamp(seconds)


def study_trials(url: str, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number of each trial of the study ``name`` in the storage at ``url``, and its parameters, values and state.

    Without a name the only study. Raises InputError where there is no such study.
    """
    import optuna
    from sqlalchemy.pool import NullPool

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    source = f"optuna:{url}"
    try:
        # Without a pool each connection is closed after its use, also that of a file which is no database.
        storage = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})
        names = optuna.get_all_study_names(storage)
    except Exception as error:  # every library of databases has errors of its own
        message = f"cannot be read: {str(error).splitlines()[0]}"
        raise InputError(Problem(source, "", message, "write optuna:sqlite:///PATH#STUDY")) from None
    if name not in names and (name or len(names) != 1):
        what = f"has no study {name!r}" if name else f"has {len(names)} studies"
        raise InputError(Problem(source, "", what, f"name one after #: {', '.join(names[:8])}"))
    trials = optuna.load_study(study_name=name or names[0], storage=storage).get_trials(deepcopy=False)
    storage.remove_session()
    for trial in trials:
        results = trial.values or []
        values = {"value": results[0]} if len(results) == 1 else {f"values.{i}": one for i, one in enumerate(results)}
        yield trial.number, {**trial.params, **values, "state": trial.state.name.lower(), "trial": trial.number}
