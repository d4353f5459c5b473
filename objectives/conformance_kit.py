"""Tools of the conformance suite: field values, small configurations, curves and comparisons."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from objectives.base import ExecutionPlan, Kernels, Objective, RowSpec, Trainer, TrainingConfig
from objectives.control import Rule
from objectives.entries import Intervention
from objectives.optimizers.facts import OPTIMIZERS, facts_of

STEPS = 12
METRICS = ("loss", "grad_norm", "update_norm", "lr")
# Values for three members of the fields that every objective has.
COMMON_VALUES: Mapping[str, Sequence[Any]] = {
    "lr": [1e-3, 1e-2, 3e-1],
    "warmup": [0, 3, 12],
    "beta1": [0.0, 0.9, 0.99],
    "beta2": [0.5, 0.95, 0.9999],
    "beta2_half_life": [None, 3e1, 3e3],
    "eps": [1e-12, 1e-8, 1e-2],
    "second_moment_scale": [0.0, 1.0, 1e2],
    "weight_decay": [0.0, 0.1, 1.0],
    "clip": [None, 1e-1, 1e-3],
    "adagc": [None, 0.9, 0.3],
    "adagc_warmup": [1, 5, 100],
    "zclip": [None, 1e-2, 3e-1],
    "zclip_warmup": [2, 5, 25],
    "rollback": [None, 0, 3],
    "ema": [None, 0.5, 0.9],
    "interventions": [
        (),
        (Intervention(at=3, set={"lr": "x0.5"}),),
        (Intervention(at=2, set={"lr": "x0.1"}, over=4, lasts=6), Intervention(at=5, reset="moments", skip=2)),
    ],
    "control": [
        (),
        (
            Rule(on="step", above=3, do=({"lr": "x0.5"},), every=1),
            Rule(on="step", above=4, do=({"mean": 2, "apart": 2},), every=1),
        ),
        (Rule(on="grad_norm", above=0, do=({"lr": "x0.1"}, {"skip": 2}), every=1, after=8, at_most=2, lasts=1),),
    ],
    **{name: values for facts in OPTIMIZERS.values() for name, values in facts.examples.items()},
}
# The fields among them with no effect on their own, and the changes that they need to have one.
COMMON_NEEDS: Mapping[str, Mapping[str, Any]] = {
    "second_moment_scale": {"second_moment_start": "first_gradient"},
    "adagc": {"adagc_warmup": 2},
    "adagc_warmup": {"adagc": 0.5},
    # At this learning rate norms rise, and are clipped.
    "zclip": {"zclip_warmup": 2, "lr": 3.0},
    "zclip_warmup": {"zclip": 1e-2, "lr": 3.0},
    "rollback": {"lr": 1e300},
    **{
        name: {"optimizer": facts.name, **facts.needs.get(name, {})}
        for facts in OPTIMIZERS.values()
        for name in facts.fields.model_fields
    },
}
# The fields among them that no step reads.
COMMON_IDLE = ("ema",)
# Fields with two values that may give the same run: with the same data at all steps, skipping changes nothing.
ALIKE = ("rollback",)
SCHEDULES = ("constant", "linear", "cosine", "polynomial", "wsd")
# For tests with changing members: the runs of each phase, row by row, and its steps. Run 0 is lost at once, and a new
# member takes over its row; 1 and 2 move between rows.
RUNS = [({"lr": 1e300}, 0), ({"lr": 1e-2, "zclip": 0.1, "zclip_warmup": 2}, 1), ({"lr": 3e-2, "clip": 0.05}, 1),
        ({"lr": 1e-3, "warmup": 6, "adagc": 0.9, "adagc_warmup": 2}, 0),
        ({"lr": 1e-2, "weight_decay": 1.0}, 7)]  # fmt: skip
PHASES = [([0, 1], 3), ([0, 1, 2], 2), ([3, 2, 1], 4), ([2, 4, 3], 3)]

Curves = Mapping[str, np.ndarray]  # per metric, (T, K)


class ConformanceKit:
    """Helpers of the tests of one objective; ``ObjectiveConformance`` documents the attributes."""

    objective: Objective
    small: Mapping[str, Any] = {}
    values: Mapping[str, Sequence[Any]] = {}
    needs: Mapping[str, Mapping[str, Any]] = {}
    idle: Collection[str] = ()
    has_noise: bool = True
    learning: Mapping[str, Any] = {}
    is_exact: bool = True
    rtol: float = 2e-5
    kernels: Kernels = "default"

    def start(self, changes: Sequence[Mapping[str, Any]], seeds: Sequence[int] | None = None) -> Trainer:
        """Start an eager pack on the CPU, with one member for each of ``changes``; all with seed 0 by default."""
        configs = [self.config_of(change) for change in changes]
        plan = ExecutionPlan(len(configs), kernels=self.kernels if configs[0].has_native_kernels else "default")
        return self.objective.start(configs, list(seeds or [0] * len(configs)), "cpu", plan)

    def config_of(self, change: Mapping[str, Any]) -> TrainingConfig:
        """Return a small configuration with ``change``."""
        return self.objective.config_class(**{"steps": STEPS, "lr": 1e-2, **self.small, **change})

    def values_of(self, field: str) -> Sequence[Any]:
        """Return three values of ``field`` for the members."""
        name, values = self.objective.name, {**COMMON_VALUES, **self.values}.get(field, [])
        if field not in self.objective.per_member_fields:
            pytest.fail(
                f"{name} has no field {field} that may differ inside a pack, but `values` names it", pytrace=False
            )
        if len(values) != 3 or any(values[i] == values[i - 1] for i in range(3)):
            advice = f"give it three different values, values = {{{field!r}: [...]}}"
            pytest.fail(f"{name} lets {field} differ inside a pack: {advice}", pytrace=False)
        return values

    def start_of(self, optimizer: str, start: str) -> str:
        """Return this start of the second moment, or the only one for an optimizer without a second moment."""
        return start if facts_of(optimizer).can_start_second_moment else "zero"

    def needs_of(self, field: str) -> dict[str, Any]:
        """Return the changes that ``field`` needs to have an effect."""
        return dict({**COMMON_NEEDS, **self.needs}.get(field, {}))

    def keep(self, trainer: Trainer, index: Sequence[int], changes: Sequence[Mapping], seeds: Sequence[int]) -> None:
        """Drop all members except those at ``index``."""
        trainer.arrange([RowSpec(self.config_of(changes[i]), seeds[i], i) for i in index])

    def rows_of(
        self, now: Sequence[int], before: Sequence[int], shared: Mapping[str, Any] | None = None
    ) -> list[RowSpec]:
        """Rows for the runs ``now``; the runs of ``before`` continue."""
        configs = [self.config_of({**(shared or {}), **RUNS[run][0]}) for run in now]
        sources = [before.index(run) if run in before else None for run in now]
        return [RowSpec(config, RUNS[run][1], row) for config, run, row in zip(configs, now, sources, strict=True)]

    def assert_close(self, actual: Curves, expected: Curves) -> None:
        """Assert equality up to rounding: a batched product may sum in another order than a single one."""
        for name, values in expected.items():
            np.testing.assert_allclose(actual[name], values, rtol=self.rtol, atol=1e-9, err_msg=name)

    def assert_alike(self, actual: Curves, expected: Curves) -> None:
        """Assert equality bit for bit, or up to rounding if the objective promises no more."""
        if self.is_exact:
            assert_identical(actual, expected, "in another pack; with is_exact = False rounding may differ")
        else:
            self.assert_close(actual, expected)

    def assert_same_readings_alone(self, sizes: Sequence[int], shared: Mapping[str, Any]) -> None:
        """Assert that members with the changes ``shared`` have the same readings alone as in packs of ``sizes``."""
        changes = [{**shared, "lr": 1e-3 * (1 + k), "warmup": k % 3} for k in range(max(sizes))]
        seeds = [k % 3 for k in range(max(sizes))]
        alone = [_all_readings(self.start([change], [seed])) for change, seed in zip(changes, seeds, strict=True)]
        for size in sizes:
            together = _all_readings(self.start(changes[:size], seeds[:size]))
            for k in range(size):
                assert alone[k].keys() == together.keys()
                assert_identical(members(together, [k]), alone[k], f"member {k} of {size}")


def curves(trainer: Trainer, num_steps: int = STEPS) -> Curves:
    """Train the next steps and return their metrics."""
    rows = [trainer.step() for _ in range(num_steps)]
    return {name: torch.stack([torch.as_tensor(row[name]) for row in rows]).double().numpy() for name in METRICS}


def _all_readings(trainer: Trainer, num_steps: int = 3) -> Curves:
    """Train the next steps; return metrics, telemetry with the curvature if there is any, and the validation."""
    everybody = list(range(trainer.num_members))
    rows: list[Mapping[str, Any]] = []
    for _ in range(num_steps):
        if hasattr(trainer, "observed_step"):
            metrics, telemetry = trainer.observed_step(everybody, everybody, 3)
            rows.append({**metrics, **telemetry})
        else:
            rows.append(trainer.step())
    readings = {name: torch.stack([torch.as_tensor(row[name]) for row in rows]).double().numpy() for name in rows[0]}
    return {**readings, "validation": validation(trainer)[None]}


def validation(trainer: Trainer, rows: Sequence[int] | None = None) -> np.ndarray:
    """Return the held-out losses of ``rows``, or of all."""
    return torch.as_tensor(trainer.validate(list(range(trainer.num_members)) if rows is None else rows)).numpy()


def members(curves: Curves, index: Sequence[int], since: int = 0) -> Curves:
    """Return the curves of the members at ``index``, from step ``since``."""
    return {name: values[since:, list(index)] for name, values in curves.items()}


def assert_identical(actual: Curves, expected: Curves, when: str) -> None:
    """Assert equality bit for bit, including NaN."""
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values, err_msg=f"{name}, {when}")


def leaves(value: Any) -> Iterator[Any]:
    """Yield all values in nested dictionaries, and their keys."""
    if type(value) is dict:
        for key, inner in value.items():
            yield key
            yield from leaves(inner)
    else:
        yield value
