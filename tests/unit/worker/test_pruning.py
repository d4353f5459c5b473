"""Slow members of a pack: who shares it, how often it is updated and whether it dies change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from pack_cases import SMALL, STOPPING, assert_the_same, curve, pack_with, results

from orchestrator.base.packs import Pack, Report, RungThreshold
from orchestrator.detection.config import SlowConfig
from orchestrator.worker import run as worker
from orchestrator.worker.packed_run import Pace

EACH_LOOK = Pace(report_s=0.0)
# The middle of what the members below have at these steps, so that some are above it.
THRESHOLDS = {
    "gpt": (RungThreshold(15, 5.2, 5), RungThreshold(25, 4.05, 5)),
    "function_fit": (RungThreshold(15, 1.0, 5), RungThreshold(25, 0.8, 5)),
    "quadratic": (RungThreshold(15, 0.3, 5), RungThreshold(25, 0.002, 5)),
}
LRS = {
    "gpt": (1e-3, 3e-2, 1e-2, 1e300, 3e-3, 1e-2, 3e-1),
    "function_fit": (1e-4, 3e-2, 1e-2, 1e300, 3e-3, 1e-3, 3e-1),
    "quadratic": (0.01, 0.5, 0.1, 1e200, 0.05, 0.3, 1.0),
}


def slow_pack(objective: str, **stopping) -> Pack:
    pack = pack_with(objective, [{"lr": lr} for lr in LRS[objective]], 7, [0, 0, 1, 2, 0, 1, 2])
    slow = {"slow": SlowConfig(method="median", startup_trials=0), **stopping}
    return replace(pack, stopping=STOPPING.model_copy(update=slow).model_dump(), rung_thresholds=THRESHOLDS[objective])


def whole(reports: Sequence[Report]) -> tuple[dict, dict]:
    assert not [report.error for report in reports if report.error]
    found = results(reports)
    return found, {t: np.stack([curve(reports, t, column) for column in ("step", "loss")]) for t in found}


@pytest.mark.parametrize("objective", SMALL)
@pytest.mark.parametrize("audit", [0.0, 0.5])
def test_who_shares_a_pack_changes_nothing_about_who_is_pruned(objective: str, audit: float) -> None:
    pack = slow_pack(objective, audit=audit)
    alone = [replace(pack, members=(member,), width=1) for member in pack.members]
    expected = whole([report for one in alone for report in worker.run_pack(one)])
    outcomes = {finished.outcome for finished in expected[0].values()}
    assert {"pruned", "diverged"} < outcomes
    for width, update_steps in ((7, 10), (3, 1), (2, 40)):
        reports = list(worker.run_pack(replace(pack, width=width), pace=Pace(update_steps=update_steps)))
        assert_the_same(whole(reports), expected)
    for finished in expected[0].values():
        is_pruned = finished.slow_step is not None and not finished.is_audited
        assert (finished.outcome == "pruned") == is_pruned
        if is_pruned:
            assert (
                finished.steps_done == finished.slow_step + 1 in {threshold.steps for threshold in pack.rung_thresholds}
            )
            assert finished.validation_loss is None
        assert all(loss == float(loss) for loss in finished.rung_losses)


def test_a_pruned_member_leaves_its_pack_so_that_its_steps_are_saved() -> None:
    trained = [
        list(worker.run_pack(pack))[-1].member_steps
        for pack in (slow_pack("quadratic"), replace(slow_pack("quadratic"), rung_thresholds=()))
    ]
    assert trained[0] < trained[1]


@pytest.mark.parametrize("num_reports", [1, 2, 4])
def test_a_pack_that_dies_goes_on_with_the_bars_that_it_had(num_reports: int) -> None:
    pack = replace(slow_pack("quadratic"), checkpoint_steps=5, width=4)
    undisturbed = whole(list(worker.run_pack(pack, pace=EACH_LOOK)))
    seen, last = [], None
    for report in worker.run_pack(pack, pace=EACH_LOOK):
        seen.append(report)
        last = report.checkpoint or last
        if len(seen) >= num_reports and last is not None:
            break
    assert last is not None
    done = frozenset(finished.trial_id for report in seen for finished in report.finished)
    # By now other trials have ended, which would have set other thresholds.
    others = tuple(RungThreshold(threshold.steps, 0.0, 99) for threshold in pack.rung_thresholds)
    going_on = replace(pack, resume=last, skip=done, rung_thresholds=others)
    after = list(worker.run_pack(going_on, pace=EACH_LOOK))
    assert {**results(seen), **results(after)} == undisturbed[0]
