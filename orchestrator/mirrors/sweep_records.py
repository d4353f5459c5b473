"""The tracker's records of a sweep and its cells, from the ledger."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from statistics import median
from typing import Any

from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis, Cell, format_value, is_number
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import DEGRADED, MARKS, OSCILLATING, OUTCOMES, RIGHT, TOO_SLOW
from orchestrator.base.words import count
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.schema import PackRow
from orchestrator.maps.audit import Audit, audit
from orchestrator.maps.axes import led
from orchestrator.maps.cells import CellSummary, cell_summary, stable_share
from orchestrator.maps.curve_metrics import OF_TELEMETRY, measured
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.recommendation import Recommendation, recommended
from orchestrator.maps.sensitivity import sensitivity_of_values
from orchestrator.maps.sentence import sentence_of
from orchestrator.maps.stability_map import StabilityMap
from orchestrator.maps.table import SweepTable
from orchestrator.mirrors.records import cell_key, log_columns, loss_columns, map_params, plain, shown_value
from orchestrator.mirrors.tracker import MAP_AXES, CellKey, CellRecord, SweepRecord, Text
from orchestrator.sweepfile.settings import settings_of

_UNFINISHED = ("planned", "running", "interrupted", "lost")
_LR_METRICS = {"lr_too_slow": TOO_SLOW, "lr_oscillating": OSCILLATING, "lr_right": RIGHT}  # 1 if it applies, else 0
_MEDIANS = (
    "final_loss", "validation_loss", "best_loss", "score", "peak_factor", "off_share", "learned_share", "lr_regret",
    "onset_step", *OF_TELEMETRY,
)  # fmt: skip
_MOST_ROWS = 20  # of the map: with more, their edges are not logged one by one


def sweep_record(table: SweepTable) -> SweepRecord:
    """Return the tracker's record of a sweep."""
    packs = table.ledger.packs()
    facts, rows = table.facts, table.trials
    environment = packs[-1].environment if packs else {}
    axes, ties = table.axes, table.ties
    fixed = _fixed(rows, ties)
    tags = {
        "objective": facts.get("objective", ""),
        "sweep_version": facts.get("sweep_version", ""),
        MAP_AXES: ",".join(map_params([axis for axis in axes if axis.name not in led(axes)])),
        **{f"fixed.{key}": shown_value(value) for key, value in fixed.items()},
        **{f"environment.{key}": value for key, value in environment.items() if key != "pid"},
    }
    cells, advice = _cells(table), recommended(table)
    num_finished = sum(row.status == "finished" for row in rows)
    metrics = {**_counts(rows), **_map_metrics(table, cells, advice), **_costs(table.ledger, packs)}
    if advice is not None and "edge_low" in metrics:
        tags["edge_axis"] = advice.stability.along.name
    return SweepRecord(
        tags=tags,
        git_commit=facts.get("git_commit", ""),
        shares={row.trial_id: shares for row in rows if (shares := _shares(row))},
        settings={
            "sweep": facts.get("name", ""),
            "objective": facts.get("objective", ""),
            **{axis.name: _range_text(axis) for axis in axes},
            **{f"tie.{name}": text for name, text in ties.items()},
            **{key: shown_value(value) for key, value in fixed.items()},
        },
        metrics=metrics,
        cells=cells,
        finished_s=max((row.finished_at or 0 for row in rows), default=0),
        is_over=not any(row.status in _UNFINISHED for row in rows),
        num_finished=num_finished,
        texts=_texts(packs),
        description=_description(table, num_finished, metrics, advice),
    )


def _description(
    table: SweepTable, num_finished: int, metrics: Mapping[str, float], advice: Recommendation | None
) -> list[str]:
    """Say where the edge is and which setting to take, and how much of the sweep is stable."""
    lines = [sentence_of(table, found=advice).text, f"{count(num_finished, 'trial')} finished."]
    if "stable_fraction" in metrics:
        lines.append(f"**{metrics['stable_fraction']:.0%} of the seeds are stable**, the mean of the cells.")
    return lines


def _shares(row: TrialResult) -> dict[str, float]:
    """Return the results of a trial that depend on other trials."""
    shares: dict[str, float] = {}
    if row.learned_share is not None:
        shares |= {"learned_share": row.learned_share, DEGRADED: float(row.is_degraded)}
    if row.lr_regret is not None:
        shares["lr_regret"] = row.lr_regret
    if row.lr_health is not None:
        shares |= {name: float(row.lr_health == word) for name, word in _LR_METRICS.items()}
    return shares


# --- cells -----------------------------------------------------------------------------------------


def _cells(table: SweepTable) -> list[CellRecord]:
    logs, name = log_columns(table.axes), table.name
    members: dict[str, list[TrialResult]] = {}
    keys: dict[str, CellKey] = {}
    for row in table.trials:
        key = cell_key(row, logs, name, table.ties)
        keys.setdefault(key.cell_id, key)
        members.setdefault(key.cell_id, []).append(row)
    readings = measured(table, OF_TELEMETRY)
    made = {cell_id: cell_summary(trials, measured=readings) for cell_id, trials in members.items()}
    distances = GridMap(table).distances_to_edge()
    sensitivity = _sensitivities(table)
    return [
        CellRecord(
            key=keys[cell_id],
            metrics={
                **_cell_metrics(made[cell_id], trials, name),
                **({"distance_to_edge": distances[cell]} if (cell := trials[0].cell) in distances else {}),
                **sensitivity(trials[0].cell),
            },
            finished_s=max((row.finished_at or 0 for row in trials), default=0),
            is_over=not any(row.status in _UNFINISHED for row in trials),
        )
        for cell_id, trials in members.items()
        if any(row.status != "planned" for row in trials)
    ]


def _cell_metrics(cell: CellSummary, rows: Sequence[TrialResult], sweep: str) -> dict[str, float]:
    metrics: dict[str, float] = {}
    if cell.fraction_stable is not None and cell.interval is not None:
        low, high = cell.interval
        metrics = {"stable_fraction": cell.fraction_stable, "stable_fraction_low": low, "stable_fraction_high": high}
        # With the sweep's name, since MLflow charts a metric for every run that has it, and low values in blue.
        metrics[f"unstable_fraction/{sweep}"] = 1 - cell.fraction_stable
    metrics |= {f"num_{label}": float(cell.outcomes.get(label, 0)) for label in (*OUTCOMES, *MARKS)}
    metrics["num_risen"] = float(cell.num_risen)
    if cell.lr_health is not None:
        metrics |= {name: float(cell.lr_health == word) for name, word in _LR_METRICS.items()}
    metrics |= {name: value for name in _MEDIANS if (value := cell.medians[name]) is not None}
    initials = [row.initial_loss for row in rows if row.initial_loss is not None]
    has_diverged = cell.outcomes.get("diverged", 0) * 2 > cell.num_finished
    initial = median(initials) if initials else None
    return metrics | loss_columns(cell.medians["final_loss"], initial, has_diverged=has_diverged)


def _sensitivities(table: SweepTable) -> Callable[[Cell], dict[str, float]]:
    """Return a function from a cell to the cost of a wrong learning rate at its other settings, if known."""
    try:
        settings = sensitivity_of_values(table).settings
    except InputError:
        settings = ()
    costs = {each.setting: each.value for each in settings}
    names = list(settings[0].setting) if settings else []

    def of_cell(cell: Cell) -> dict[str, float]:
        value = costs.get(cell.only(names))
        return {} if value is None else {"lr_sensitivity": value}

    return of_cell


# --- the sweep -------------------------------------------------------------------------------------


def _counts(rows: Sequence[TrialResult]) -> dict[str, float]:
    labels = Counter(row.label for row in rows)
    counts = {f"num_{label}": float(labels[label]) for label in (*OUTCOMES, *MARKS)}
    return counts | {"num_trials": len(rows)} | _audit_counts(audit(rows, None))


def _map_metrics(table: SweepTable, cells: Sequence[CellRecord], advice: Recommendation | None) -> dict[str, float]:
    """Return the size of the stable region, the edge, the recommendation and the cost of a wrong learning rate."""
    metrics: dict[str, float] = {}
    share = stable_share(table.by_cell().values())
    if share is not None:
        metrics["stable_fraction"] = share
        states = list(table.states().values())
        metrics["stable_cells"] = sum(state == "stable" for state in states) / len(states)
    if advice is not None:
        metrics |= _edges(advice.stability)
    if advice is not None and (chosen := advice.chosen) is not None:
        metrics |= {f"recommended_{name}": float(v) for name, v in chosen.setting.items() if is_number(v)}
        metrics["recommended_loss" if advice.measure.is_loss else "recommended_score"] = chosen.loss
        if math.isfinite(chosen.margin):
            metrics["recommended_margin"] = chosen.margin
    costs = [cell.metrics["lr_sensitivity"] for cell in cells if "lr_sensitivity" in cell.metrics]
    return metrics | ({"lr_sensitivity": median(costs)} if costs else {})


def _edges(stability: StabilityMap) -> dict[str, float]:
    """Return the bracket of each row's outermost edge along the map's axis, and their median on the axis's scale.

    For scattered cells, return the median 95 % interval of the fitted edge.
    """
    if not isinstance(stability, GridMap):
        return _fitted_edges(stability)
    try:
        rows = stability.rows()
    except InputError:  # its axes have no order
        return {}
    cells = stability.cells
    brackets = {
        row.setting: sorted((float(edge.low), float(edge.high)))
        for row in rows
        for edge in row.edges[-1:]
        if is_number(edge.low) and is_number(edge.high)
    }
    if not brackets:
        return {}
    metrics = {}
    for side, name in enumerate(("edge_low", "edge_high")):
        metrics[name] = _middle([bracket[side] for bracket in brackets.values()], cells.x)
        if cells.y is not None and len(brackets) <= _MOST_ROWS:
            of_rows = {setting[cells.y.name]: bracket[side] for setting, bracket in brackets.items()}
            metrics |= {f"{name}/{cells.y.name} {plain(format_value(y))}": value for y, value in of_rows.items()}
    return metrics


def _fitted_edges(surface: StabilityMap) -> dict[str, float]:
    last = [row.edges[-1] for row in surface.rows() if row.edges]
    ends = [(edge.low, edge.high) for edge in last if edge.at is not None]
    known = [(low, high) for low, high in ends if low is not None and high is not None]
    if not known:
        return {}
    low, high = (_middle(values, surface.along) for values in zip(*known, strict=True))
    return {"edge_low": low, "edge_high": high}


def _middle(values: Sequence[float], axis: Axis) -> float:
    """Return the median; the two middle values are averaged on the axis's scale."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low if low == high else axis.between(low, high) or (low + high) / 2


def _costs(ledger: LedgerReader, packs: Sequence[PackRow]) -> dict[str, float]:
    """Return steps trained, seconds summed over workers, and seconds during which any worker trained."""
    return {
        "steps_trained": float(sum(pack.member_steps for pack in packs)),
        "worker_seconds": sum(pack.seconds for pack in packs),
        "wall_seconds": ledger.training_seconds(),
    }


def _audit_counts(balance: Audit) -> dict[str, float]:
    """Return what early stopping saved, and how often it was wrong, if known."""
    counts: dict[str, float] = {
        "num_audited": balance.num_judged,
        "steps_saved": balance.steps_saved,
        "steps_audited": balance.steps_audited,
    }
    if balance.slow is not None:
        counts["num_pruned"] = balance.slow.num_pruned
    if balance.wrong_rate is not None and balance.wrong_interval is not None:
        counts |= {"num_wrong_stops": balance.num_wrong, "wrong_stop_rate": balance.wrong_rate}
        counts |= dict(zip(("wrong_stop_rate_low", "wrong_stop_rate_high"), balance.wrong_interval, strict=True))
    return counts


def _texts(packs: Sequence[PackRow]) -> list[Text]:
    """Return the texts that packs were trained on, as their workers found them."""
    environments = [pack.environment for pack in packs if "text_sha256" in pack.environment]
    return list(dict.fromkeys(Text(e["text"], e["text_sha256"], int(e["text_bytes"])) for e in environments))


def _fixed(rows: Sequence[TrialResult], ties: Container[str]) -> dict[str, Any]:
    """Return the settings that are neither axes nor tied, and so equal in all trials."""
    if not rows:
        return {}
    settings = settings_of(rows[0].objective, rows[0].config)
    return {key: value for key, value in settings.items() if key not in rows[0].cell and key not in ties}


def _range_text(axis: Axis) -> str:
    """Return a short text for the values of an axis."""
    values = axis.values
    if not values:
        return "" if axis.ends is None else f"{axis.ends[0]:g} .. {axis.ends[1]:g}"
    if len(values) <= 3:
        return ", ".join(map(format_value, values))
    return f"{format_value(values[0])} .. {format_value(values[-1])} ({count(len(values), 'value')})"
