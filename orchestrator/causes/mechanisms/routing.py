"""A router of a mixture of experts that sends nearly all tokens to a few experts, which the loss hardly shows."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.base.words import count
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms.mechanism import (
    Finding,
    MakeFinding,
    Move,
    Values,
    just,
    mechanism,
    scaled,
)
from orchestrator.causes.mechanisms.removal import Removal, from_the_start
from orchestrator.detection.collapse import MOST_GINI, ROUTER_COLUMNS

_ROUTER = "router"  # the objective whose scores alone are trained
_FULL_BALANCE = 1.0  # weight of Switch's loss; all routers of moe_balance are even at it


def _of_scores(setting: str, *factors: float) -> Values:
    """Multiples of a setting of the objective ``router``; another objective may mean anything by such a name."""

    def values(evidence: Evidence) -> Sequence[float]:
        return scaled(setting, *factors)(evidence) if evidence.trial.objective == _ROUTER else []

    return values


@mechanism(
    "router collapse",
    label="router",
    colour="#6a3d9a",
    moves=(
        Move("balance", "switch", "makes crowded experts less likely to be chosen", just("aux", "loss_free")),
        Move("balance_weight", "raise", "penalises uneven loads", just(0.1, _FULL_BALANCE)),
        Move("router_lr", "lower", "lets experts learn before the router decides", scaled("router_lr", 0.3, 0.1)),
        Move("router_z_loss", "raise", "keeps the router's logits small", just(1e-3, 1e-2)),
        Move("router_noise", "raise", "sends tokens to experts that are not chosen yet", just(0.1, 1.0)),
        Move("b", "raise", "lets scores of experts decay faster than they grow", _of_scores("b", 2, 4)),
        Move("a", "lower", "lets scores of chosen experts grow less", _of_scores("a", 0.5, 0.25)),
    ),
    removal=lambda evidence, began: _even(evidence, began),
)
def router_collapse(evidence: Evidence, finding: MakeFinding) -> Finding:
    """Loads of experts far from even, or dead experts, throughout the end of the run and from before its onset.

    Supported as a trial is marked collapsed, if that began before the loss left its trend. Excluded without experts,
    which is not known of a custom trainer without readings.
    """
    gini, dead = (evidence.column(name) for name in ROUTER_COLUMNS)
    if not len(gini) and not len(dead):
        if evidence.is_custom_trainer or (evidence.number("experts") or 0) > 1:
            return finding("unknown", "no loads of experts were read")
        return finding("excluded", "nothing says that it has a router of experts")
    numbers = []
    if len(gini):
        numbers.append(f"Gini coefficient of the loads {gini.value_N[-1]:.2f} at the end, up to {gini.largest():.2f}")
    num_dead = int(dead.value_N[-1]) if len(dead) else 0
    if len(dead):
        numbers.append(f"{count(num_dead, 'dead expert')} at the end")
    since = evidence.trial.collapsed_step
    if since is None:
        return finding("excluded", f"at the end no expert was dead and the Gini not above {MOST_GINI:g}", numbers)
    if evidence.onset is not None and evidence.onset <= since:
        return finding("excluded", f"the loss had left its trend before it collapsed at step {since}", numbers)
    found = ["nearly all tokens to a few experts"] * bool(len(gini) and gini.value_N[-1] > MOST_GINI)
    if num_dead:
        found.append(f"hardly any {'' if found else 'token '}to {count(num_dead, 'expert')}")
    return finding("supported", f"the router sends {' and '.join(found)}", numbers, since)


def _even(evidence: Evidence, began: int | None) -> Removal | None:
    """Switch's loss at full weight; in the objective of scores alone, the use of an expert adds nothing to its score.

    A frozen router may send all tokens to a few experts, too.
    """
    setting, value = ("a", 0.0) if evidence.trial.objective == _ROUTER else ("balance_weight", _FULL_BALANCE)
    return from_the_start(setting, lambda _: value)(evidence, began)
