"""States of weights that a sweep keeps."""

from pathlib import Path

import pytest
import torch
from pack_cases import SMALL
from sweep_cases import sweep_of

from objectives.base import OBJECTIVES
from objectives.models.facts.sizes import bytes_per_weight, num_weights
from orchestrator.base.errors import InputError, StorageError
from orchestrator.base.files import LEDGER
from orchestrator.base.states import STATES, kept_steps
from orchestrator.driver.keeping import kept_bytes
from orchestrator.driver.packing import rounding_of
from orchestrator.driver.planning import check_runnable
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.worker.kept_states import kept_weights, weights_of_row

BASE = "name: case\nobjective: quadratic\naxes: {lr: {values: [0.1, 1.0]}}\nfixed: {dimension: 5}\n"
KEPT = "tracking: {enabled: false}\nkeep: {every: 10, last: 2}\nsteps: "
FORMS = [
    {},
    {"norm": None, "tie_embeddings": True},
    {"norm": "rms", "bias": True, "mlp": "swiglu", "qk_norm": True, "kv_heads": 1, "position": "rope"},
    {"bias": True, "norm_place": "post", "position": None},
    {"experts": 4, "shared_experts": 1, "mlp": "swiglu"},
]


@pytest.mark.parametrize("changes", FORMS, ids=str)
def test_the_number_of_weights_is_known_without_a_model(changes: dict) -> None:
    config = OBJECTIVES["gpt"].config_of({**SMALL["gpt"], "steps": 4, **changes})
    trainer = OBJECTIVES["gpt"].module
    weights = __import__(trainer, fromlist=["initial_weights"]).initial_weights(config, 0)
    assert num_weights(config) == sum(weight.numel() for weight in weights.values())


@pytest.mark.parametrize("steps", [20, 25, 40])
def test_a_sweep_keeps_the_last_states_and_the_last_of_all(tmp_path: Path, steps: int) -> None:
    sweep = sweep_of(f"{KEPT}{steps}\n", BASE)
    assert run_sweep(sweep, tmp_path / "case", InlineExecutor).exit_code == 0
    due = [*range(10, steps, 10), steps][-2:]
    sizes = 0
    for trial in sweep.trials:
        assert kept_steps(tmp_path / "case", trial.trial_id) == due
        config = sweep.objective.config_of(trial.config)
        alone = sweep.objective.start([config], [trial.seed], "cpu", rounding_of(sweep, trial).plan(1))
        for step in range(1, steps + 1):
            alone.step()
            if step in due:
                kept = kept_weights(tmp_path / "case", trial.trial_id, step)
                assert kept.keys() == {"x"}
                assert torch.equal(kept["x"], weights_of_row(alone, 0)["x"])
                sizes += (tmp_path / "case" / STATES / trial.trial_id / f"step-{step}.pt").stat().st_size
    assert sizes <= kept_bytes(sweep) < 3 * sizes


def test_a_lost_trial_keeps_no_state_from_after_its_end(tmp_path: Path) -> None:
    base = BASE.replace("1.0", "60.0").replace("5}", "5, optimizer: sgd}")
    sweep = sweep_of(f"{KEPT}100\n".replace("last: 2", "last: 9"), base)
    run_sweep(sweep, tmp_path / "case", InlineExecutor)
    with LedgerReader(tmp_path / "case" / LEDGER) as ledger:
        (lost,) = (row for row in ledger.trials() if row.outcome == "diverged")
    assert lost.steps_done is not None
    assert lost.steps_done % 10
    assert kept_steps(tmp_path / "case", lost.trial_id) == [*range(10, lost.steps_done, 10)]


def test_states_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    sweep = sweep_of(f"{KEPT}40\n".replace("last: 2", "last: 2, disk_mib: 0.0001"), BASE)
    with pytest.raises(InputError, match=r"keep\.disk_mib") as refused:
        check_runnable(sweep, tmp_path / "case")
    (problem,) = refused.value.problems
    assert problem.key == "keep.disk_mib"
    assert kept_bytes(sweep) == 2 * 2 * (5 * 8 + 4096)


def test_a_transformer_that_goes_on_in_float64_keeps_its_weights_so() -> None:
    wide = {"interventions": [{"at": 2, "precision": "float64"}]}
    configs = [OBJECTIVES["gpt"].config_of({**SMALL["gpt"], "steps": 4, **changes}) for changes in ({}, wide)]
    assert [bytes_per_weight(config) for config in configs] == [4, 8]


def test_a_damaged_state_and_one_of_another_trial_are_refused(tmp_path: Path) -> None:
    sweep = sweep_of(f"{KEPT}20\n", BASE)
    run_sweep(sweep, tmp_path / "case", InlineExecutor)
    first, second = (trial.trial_id for trial in sweep.trials)
    file = tmp_path / "case" / STATES / first / "step-20.pt"
    other = (tmp_path / "case" / STATES / second / "step-20.pt").read_bytes()
    content = file.read_bytes()
    numbers = kept_weights(tmp_path / "case", first, 20)["x"].numpy().tobytes()
    assert numbers in content
    for changed in (other, content[: len(content) // 2], content.replace(numbers, numbers[::-1])):
        file.write_bytes(changed)
        with pytest.raises(StorageError, match=first):
            kept_weights(tmp_path / "case", first, 20)
    with pytest.raises(InputError, match="these are kept: 10, 20"):
        kept_weights(tmp_path / "case", first, 15)
