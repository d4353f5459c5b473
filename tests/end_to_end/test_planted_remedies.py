"""Sweeps whose cause of instability was planted: forks find a remedy that makes a move against that cause."""

from pathlib import Path

import pytest
from remedy_cases import find_remedies

from orchestrator.api.running import run_lines
from orchestrator.causes.remedies.request import RemedyRequest
from orchestrator.render.text import show
from orchestrator.sweepfile.spec import load_sweep

CAUSES = Path(__file__).parents[2] / "sweeps/causes"
# The sweeps that take at most a minute or two; results/reference/remedies/README.md has their tables.
PLANTED = {
    "no_warmup": "warmup_too_short",
    "short_memory": "short_memory",
    "epsilon_floor": "epsilon_floor",
    "router_collapse": "router_collapse",
}
# Nothing balances the experts of a transformer, and most of them end without a token to speak of.
EXPERTS = """
name: experts
objective: gpt
steps: 150
seeds: [0]
fixed: {experts: 8, depth: 1, width: 16, lr: 0.003, beta2: 0.95, warmup: 10, batch_size: 8}
tracking: {enabled: false}
"""


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.slow
def test_the_remedy_with_the_lowest_loss_makes_a_move_against_the_planted_cause(name: str, tmp_path: Path) -> None:
    sweep = load_sweep(CAUSES / f"{name}.yaml")
    assert show(run_lines(sweep, tmp_path, "inline")) == 0
    found = find_remedies(tmp_path / sweep.name, None, {}, RemedyRequest(at=("0",), replicates=6, pairs=False))
    assert found.control_repeats is True
    assert found.cause == PLANTED[name]
    assert found.best is not None
    assert found.is_called_for(found.best)
    assert found.agrees is True


@pytest.mark.slow
def test_a_balance_saves_the_router_of_a_transformer_and_a_lower_learning_rate_does_not(tmp_path: Path) -> None:
    (tmp_path / "experts.yaml").write_text(EXPERTS)
    sweep = load_sweep(tmp_path / "experts.yaml")
    assert show(run_lines(sweep, tmp_path, "inline")) == 0
    request = RemedyRequest(("balance_weight=1.0", "lr=x0.5"), at=("0",), replicates=6, pairs=False)
    found = find_remedies(tmp_path / sweep.name, None, {}, request)
    assert found.cause == "router_collapse"
    assert found.best is not None
    assert found.best.name == "balance_weight 1"
    assert found.is_called_for(found.best)
