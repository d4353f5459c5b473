"""Settings by which the sweeps of an MLflow experiment differ become params of all their runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_PAGE = 1000
_LEVEL = "tags.`sweep.level`"
# What a sweep's runs have been given so far, a tag of its own run.
_GIVEN = "sweep.told_apart_by"
_NEVER = ("sweep", "seed")
_OBJECTIVE = "objective"


def tell_apart(client: Any, experiment_id: str, sign_of_life: Callable[[], None]) -> None:
    """Give the runs of cells and trials the settings that are not equal in all sweeps of the experiment.

    Sweeps of other objectives have other settings: only the objective itself tells them apart. A sweep's axes are
    params of its runs already. Nothing is written where nothing new differs.
    """
    sweeps = list(_runs(client, experiment_id, f"{_LEVEL} = 'sweep'"))
    of_objective: dict[str, list[Any]] = {}
    for sweep in sweeps:
        of_objective.setdefault(sweep.data.params.get(_OBJECTIVE, ""), []).append(sweep)
    for sweep in sweeps:
        alike = of_objective[sweep.data.params.get(_OBJECTIVE, "")]
        names = sorted(differing(run.data.params for run in alike) | ({_OBJECTIVE} if len(of_objective) > 1 else set()))
        given = sweep.data.tags.get(_GIVEN, "")
        # Trials that came since then have nothing yet: without a list of them all are looked at while it trains.
        if given == _text(names, sweep) or not names:
            continue
        folder = sweep.data.tags.get("sweep.folder", "")
        wanted = {name: sweep.data.params[name] for name in names if name in sweep.data.params}
        # Another process may write the same at this moment, which MLflow refuses; then it is there.
        with contextlib.suppress(Exception):
            for run in _runs(client, experiment_id, f"{_LEVEL} != 'sweep' and tags.`sweep.folder` = '{folder}'"):
                for name in wanted.keys() - run.data.params.keys():
                    client.log_param(run.info.run_id, name, wanted[name], synchronous=True)
                sign_of_life()
            client.set_tag(sweep.info.run_id, _GIVEN, _text(names, sweep))


def differing(settings: Iterable[Mapping[str, str]]) -> set[str]:
    """Names of settings that have more than one value among those that have them."""
    values: dict[str, set[str]] = {}
    for each in settings:
        for name, value in each.items():
            values.setdefault(name, set()).add(value)
    return {name for name, found in values.items() if len(found) > 1 and name not in _NEVER}


def _text(names: list[str], sweep: Any) -> str:
    return f"{', '.join(names)} at {sweep.data.metrics.get('steps_trained', 0):g} steps"[:5000]


def _runs(client: Any, experiment_id: str, query: str) -> Iterator[Any]:
    token = None
    while True:
        page = client.search_runs([experiment_id], query, max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
