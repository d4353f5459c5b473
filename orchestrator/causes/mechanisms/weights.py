"""Weights that decay: before a normalisation their norm changes no output, and only the length of a relative step.

The loss does not depend on the norm of weights before a norm, so its curvature there grows as 1 / norm^2, and weight
decay shrinks the norm until the curvature reaches 2 / lr (arXiv 2607.21005): the step overshoots, the norm jumps up,
and it all begins again.
"""

from __future__ import annotations

from orchestrator.causes.evidence import ALL, Evidence
from orchestrator.causes.mechanisms import limits as at
from orchestrator.causes.mechanisms.mechanism import LOWER_LR, NO_ONSET, Finding, MakeFinding, Move, mechanism, scaled
from orchestrator.causes.mechanisms.removal import LEAD, Removal
from orchestrator.causes.moments import number_of
from orchestrator.causes.series import Series, joined, known


def _norms(evidence: Evidence) -> dict[str, Series]:
    """The RMS of each layer group's weights, from readings of its updates; without groups that have no norm to lose."""
    groups = [group for group in evidence.groups("update_to_weight") if group not in ("norm", "head")]
    found = {
        group: joined(
            evidence.column(f"update_rms/{group}"),
            evidence.column(f"update_to_weight/{group}"),
            lambda update_N, share_N: update_N / share_N,
        )
        for group in groups or [ALL]
    }
    return {group: norms for group, norms in found.items() if len(norms.between(0, evidence.until)) >= at.MIN_OVER}


def _held_norms(evidence: Evidence, began: int | None) -> Removal:
    """Keep norms as they were when the curvature was still far from its threshold."""
    steps = []
    for norms in _norms(evidence).values():
        before = norms.between(0, evidence.until)
        last = float(before.value_N[-1])
        large = before.step_N[before.value_N >= at.LARGE_NORM * last]
        steps += [int(large[-1])] if len(large) else []
    step = max(steps, default=max(0, evidence.until - LEAD))
    return Removal(step, ({"at": 0, "norm": "hold"},))


@mechanism(
    "norm collapse",
    label="norm",
    colour="#7F3C8D",
    moves=(
        Move("weight_decay", "lower", "norms shrink more slowly, or not at all", scaled("weight_decay", 0.3, 0.1)),
        LOWER_LR,
    ),
    removal=_held_norms,
)
def norm_collapse(evidence: Evidence, finding: MakeFinding) -> Finding:
    """Weight decay shrinks weights before a norm until the curvature, which grows as 1 / norm^2, meets the step.

    Supported if weights decay, the RMS of a layer group fell to less than half of its highest before the onset, and the
    curvature then came over its threshold near the onset. Excluded without weight decay, if no group's weights shrank,
    or if the model has no norms. A model of one's own has norms if a group is named `norm` or a setting `norm` says so;
    where neither does, what it would be is not known.
    """
    if evidence.onset is None:
        return finding("excluded", NO_ONSET)
    decay = number_of(evidence.config_in_force, "weight_decay")
    if decay is None and evidence.is_custom_trainer:
        return finding("unknown", "the weight decay is not known")
    if not decay:
        return finding("excluded", "weights do not decay")
    has_norms = _has_norms(evidence)
    if has_norms is False:
        return finding("excluded", "the model has no norms")
    found = _norms(evidence)
    if not found:
        return finding("unknown", "norms of weights were not read")
    shares = {group: _share_left(norms, evidence) for group, norms in found.items()}
    group = min(shares, key=lambda name: shares[name])
    numbers = [f"RMS of the weights of {group} down to {shares[group]:.2g} of its highest before the onset"]
    if shares[group] > at.NORM_KEPT:
        return finding("excluded", "no layer group's weights shrank before the onset", numbers)
    readings = evidence.threshold_ratio.between(0, evidence.until + 1).last(at.RECENT_READINGS)
    curvature = readings.largest()
    if curvature is not None:
        numbers.append(f"curvature up to {curvature:.3g} times its threshold at the last {len(readings)} readings")
    if shares[group] > at.NORM_COLLAPSED or curvature is None or curvature <= at.THRESHOLD:
        return finding("unknown", "weights shrank, and whether the step then overshot is not known", numbers)
    if has_norms is None:
        where = "`facts: {norm: layer}`" if evidence.is_custom_trainer else "a field `norm`, or a group `norm`,"
        reason = f"weights shrank until a step overshot, but whether the model has norms is not known: {where} says so"
        return finding("unknown", reason, numbers)
    before = found[group].between(0, evidence.until)
    began = before.began(lambda norm_N: norm_N < at.NORM_COLLAPSED * known(before.largest()))
    return finding("supported", "weights had shrunk until a step of this size overshot", numbers, began)


def _has_norms(evidence: Evidence) -> bool | None:
    """Whether weights stand before a norm; None for a model of one's own that does not say."""
    if evidence.objective is not None:
        has_field = "norm" in evidence.objective.config_class.model_fields
        norm = evidence.config.get("norm", "layer" if has_field else None)
        return norm is not None or bool(evidence.config.get("qk_norm"))
    if "norm" in evidence.config:
        return evidence.config["norm"] not in (None, False, "none", "no")
    return True if "norm" in evidence.groups("update_to_weight") else None


def _share_left(norms: Series, evidence: Evidence) -> float:
    """The last norm before the onset over the highest."""
    before = norms.between(0, evidence.until)
    return float(before.value_N[-1]) / known(before.largest())
