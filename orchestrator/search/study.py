"""Plain trials as an Optuna study: in memory to evaluate importances, in a file for its dashboard, or read from one."""

from __future__ import annotations

import contextlib
import datetime
import random
import sqlite3
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import database_copy
from orchestrator.search.fanova import variance_shares

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a study: a range of numbers, linear or logarithmic, or one of ``choices``."""

    name: str
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    choices: tuple[str | float | bool | None, ...] | None = None

    @property
    def is_single(self) -> bool:
        """Whether it has one value."""
        return self.low == self.high if self.choices is None else len(self.choices) == 1

    def columns(self, values: Sequence[Any]) -> list[list[float]]:
        """Return values of a linear range in [0, 1], or of choices a column for each, 1 where it was chosen."""
        if self.choices is None:
            return [[(value - self.low) / (self.high - self.low) for value in values]]
        return [[float(value == choice) for value in values] for choice in self.choices]


def distribution(parameter: Parameter) -> optuna.distributions.BaseDistribution:
    """Return Optuna's description of ``parameter``."""
    import optuna

    if parameter.choices is not None:
        return optuna.distributions.CategoricalDistribution(parameter.choices)
    return optuna.distributions.FloatDistribution(parameter.low, parameter.high, log=parameter.is_log)


@dataclass(frozen=True, slots=True)
class StudyTrial:
    """A trial of a study: its parameters and, with a result, its ``values``, one for each metric.

    ``state`` is Optuna's: complete, fail, running or waiting. ``intermediate`` are values by step. Times are seconds
    since 1970; only a waiting trial has no start.
    """

    state: str
    parameters: Mapping[str, Any]
    values: tuple[float, ...] | None
    attributes: Mapping[str, Any]
    intermediate: Mapping[int, float]
    started_s: float | None
    finished_s: float | None


def study_file(
    name: str,
    metrics: Sequence[str],
    parameters: Sequence[Parameter],
    trials: Sequence[StudyTrial],
    maximized: Sequence[str] = (),
) -> bytes:
    """Return the SQLite file of a study in the schema of the installed Optuna.

    It minimises its ``metrics``, except the ``maximized`` ones.

    The same arguments give the same file.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions = {parameter.name: distribution(parameter) for parameter in parameters}
    # In memory, so that no file is synced to disk for every trial or left half-written.
    storage = optuna.storages.RDBStorage("sqlite:///:memory:")
    try:
        study_direction = optuna.study.StudyDirection
        directions = [
            study_direction.MAXIMIZE if metric in maximized else study_direction.MINIMIZE for metric in metrics
        ]
        study = optuna.create_study(storage=storage, study_name=name, directions=directions)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(list(metrics))
        for number, trial in enumerate(trials):
            study.add_trial(_frozen_trial(number, trial, distributions))
        storage.remove_session()
        with contextlib.closing(storage.engine.raw_connection()) as connection:
            assert connection.driver_connection is not None
            return bytes(connection.driver_connection.serialize())
    finally:
        storage.engine.dispose()


def _frozen_trial(
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


# What a study optimises, by the columns of its values: a name, and whether it is maximized, None if that is not set.
Directions = dict[str, tuple[str, bool | None]]
ReadTrials = list[tuple[int, dict[str, Any]]]


def read_study(url: str, name: str) -> tuple[Directions, ReadTrials]:
    """Return directions, and number and parameters with values and state of each trial, of a study stored at ``url``.

    Without a ``name``, the storage must have exactly one study. Raises InputError if there is no such study. A file is
    copied first, since Optuna writes its version to what it opens.
    """
    if not url.startswith("sqlite"):
        return _study_in(url, url, name)
    path, remedy = Path(url.partition(":///")[2]), "write optuna:sqlite:///PATH#STUDY"
    if not path.is_file():
        raise InputError(Problem(f"optuna:{url}", "", f"no such file: {path}", remedy))
    try:
        with database_copy(path, "studies") as copy:
            return _study_in(url, f"sqlite:///{copy}", name)
    except (sqlite3.Error, OSError) as error:
        raise InputError(Problem(f"optuna:{url}", "", f"cannot be read: {error}", remedy)) from None


def _study_in(url: str, opened: str, name: str) -> tuple[Directions, ReadTrials]:
    """Return the study in the storage at ``opened``, which has what is at ``url``."""
    import optuna
    from sqlalchemy.pool import NullPool

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    source = f"optuna:{url}"
    try:
        # Without a pool each connection is closed after its use, even to a file that is not a database.
        engine = {"poolclass": NullPool}
        storage = optuna.storages.RDBStorage(opened, engine_kwargs=engine, skip_table_creation=True)
        names = optuna.get_all_study_names(storage)
    except Exception as error:  # every database library has its own errors
        message = f"cannot be read: {str(error).splitlines()[0]}"
        raise InputError(Problem(source, "", message, "write optuna:sqlite:///PATH#STUDY")) from None
    if name not in names and (name or len(names) != 1):
        what = f"has no study {name!r}" if name else f"has {len(names)} studies"
        raise InputError(Problem(source, "", what, f"name one after #: {', '.join(names[:8])}"))
    study = optuna.load_study(study_name=name or names[0], storage=storage)
    trials = study.get_trials(deepcopy=False)
    columns = [f"values.{i}" for i in range(len(study.directions))] if len(study.directions) != 1 else ["value"]
    titles = study.metric_names or columns
    is_maximized = {optuna.study.StudyDirection.MAXIMIZE: True, optuna.study.StudyDirection.MINIMIZE: False}
    known = map(is_maximized.get, study.directions)
    directions = dict(zip(columns, zip(titles, known, strict=True), strict=True))
    storage.remove_session()
    return directions, [
        (
            trial.number,
            {
                **trial.params,
                **dict(zip(columns, trial.values or (), strict=False)),
                "state": trial.state.name.lower(),
                "trial": trial.number,
            },
        )
        for trial in trials
    ]


_Item = TypeVar("_Item")

EVALUATORS = ("ped_anova", "fanova")
MOST_FANOVA, MOST_PED_ANOVA = 500, 20_000  # trials that they look at
_SEED = 0  # of the random forest of fANOVA, and of those trials


def importances(
    parameters: Sequence[Parameter], rows: Sequence[Mapping[str, Any]], results: Sequence[float], best: float
) -> dict[str, dict[str, float] | None]:
    """Return, by evaluator, the share of each parameter in the variation of ``results``; None if nothing varies.

    ``rows`` have a value for each of ``parameters``; ``results`` are finite, and lower is better. PED-ANOVA (Watanabe
    et al. 2023, arXiv 2304.10255) measures how the values of the ``best`` fraction of the trials, in (0, 1), differ
    from all; fANOVA (Hutter et al. 2014) how much of the variance each parameter explains alone. Of many trials
    they look at random ones with the best and the worst. The order of the rows does not matter.
    """
    from orchestrator.search.ped_anova import ped_anova

    if len(set(results)) < 2:
        return dict.fromkeys(EVALUATORS)
    distributions = {parameter.name: distribution(parameter) for parameter in parameters}
    pairs = sorted(
        zip(rows, results, strict=True),
        key=lambda pair: (*(str(pair[0][parameter.name]) for parameter in parameters), pair[1]),
    )
    pairs = _drawn(pairs, MOST_PED_ANOVA, key=lambda pair: pair[1])
    return {"ped_anova": ped_anova(distributions, pairs, best), "fanova": _fanova(parameters, pairs)}


def _fanova(parameters: Sequence[Parameter], pairs: list[tuple[Mapping[str, Any], float]]) -> dict[str, float] | None:
    columns: list[list[float]] = []
    used, places = sorted((each for each in parameters if not each.is_single), key=lambda each: each.name), []
    drawn = _drawn(pairs, MOST_FANOVA, key=lambda pair: pair[1])
    for parameter in used:
        found = parameter.columns([row[parameter.name] for row, _ in drawn])
        places.append(range(len(columns), len(columns) + len(found)))
        columns += found
    results = np.array([result for _, result in drawn])
    shares = variance_shares(np.array(columns).T, results, places, _SEED) if used else None
    if shares is None or not sum(shares) > 0:
        return None
    known = {parameter.name: share / sum(shares) for parameter, share in zip(used, shares, strict=True)}
    return {parameter.name: known.get(parameter.name, 0.0) for parameter in parameters}


def _drawn(items: list[_Item], most: int, key: Callable[[_Item], float]) -> list[_Item]:
    """Return the items, or ``most`` random ones with the least and the greatest."""
    if len(items) <= most:
        return items
    return [min(items, key=key), max(items, key=key), *random.Random(_SEED).sample(items, most - 2)]
