"""Weights that leave sweep: what they are, and that plain torch computes their loss."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pack_cases import SMALL
from safetensors.torch import load_file
from sweep_cases import sweep_with_keys

from objectives.base import OBJECTIVES, ExecutionPlan
from objectives.models.plain_gpt import held_out_loss
from orchestrator.api.export_weights import _facts, export_weights
from orchestrator.base.errors import InputError
from orchestrator.base.states import kept_steps
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.worker.kept_states import kept_weights, weights_of_row

DOCS = str(Path(__file__).parents[3] / "docs" / "*.md")
FORMS: list[dict[str, Any]] = [
    {},
    {"norm": "rms", "norm_place": "output", "mlp": "swiglu", "qk_norm": True, "kv_heads": 1, "position": "rope"},
    {"norm_place": "post", "bias": True, "tie_embeddings": True, "logit_softcap": 3.0, "embedding_scale": 2.0},
    {"norm": None, "qk_norm": True, "position": None, "residual_depth": "inverse_sqrt", "attention_softcap": 2.0},
    {"parametrisation": "completep", "base_width": 4, "base_depth": 2},
    {"domains": {"tables": 1.0, DOCS: 3.0}},
    {"interventions": [{"at": 2, "precision": "float64"}]},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several kinds of transformers that kept their states."""
    folder = tmp_path_factory.mktemp("results")
    for number, changes in enumerate(FORMS):
        sweep = sweep_with_keys(
            name=f"form{number}", objective="gpt", steps=6, axes={"lr": {"values": [0.01]}},
            fixed={**SMALL["gpt"], "init": "gpt2", "init_deviation": 0.3, **changes},
            keep={"every": 3, "last": 2}, tracking={"enabled": False},
        )  # fmt: skip
        assert run_sweep(sweep, folder / f"form{number}", InlineExecutor).exit_code == 0
    return folder


@pytest.mark.parametrize("number", range(len(FORMS)))
def test_plain_torch_reproduces_the_validation_loss(folder: Path, tmp_path: Path, number: int) -> None:
    own = folder / f"form{number}"
    with LedgerReader(own / "ledger.db") as ledger:
        (trial,) = ledger.trials()
    assert kept_steps(own, trial.trial_id) == [3, 6]
    lines = list(export_weights(own, trial.trial_id, None, tmp_path))
    assert [Path(line.split()[1].rstrip(":")).name for line in lines] == [
        "weights.safetensors", "config.json", "model.py",
    ]  # fmt: skip
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["step"], config["trial_id"]) == (6, trial.trial_id)
    assert config["validation_loss"] == pytest.approx(trial.validation_loss, rel=1e-6)
    assert held_out_loss(tmp_path) == pytest.approx(trial.validation_loss, rel=2e-6)
    stored, kept = load_file(tmp_path / "weights.safetensors"), kept_weights(own, trial.trial_id, 6)
    assert stored.keys() == kept.keys()
    assert all(torch.equal(stored[name], kept[name]) for name in kept)


def test_an_earlier_state_has_its_own_loss(folder: Path, tmp_path: Path) -> None:
    with LedgerReader(folder / "form0" / "ledger.db") as ledger:
        (trial,) = ledger.trials()
    list(export_weights(folder / "form0", trial.trial_id, 3, tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["step"] == 3
    assert held_out_loss(tmp_path) == pytest.approx(config["validation_loss"], rel=2e-6)
    assert config["validation_loss"] != pytest.approx(trial.validation_loss, rel=1e-4)


def test_what_was_not_kept_is_refused(folder: Path) -> None:
    with LedgerReader(folder / "form0" / "ledger.db") as ledger:
        (trial,) = ledger.trials()
    with pytest.raises(InputError, match="these are kept: 3, 6"):
        list(export_weights(folder / "form0", trial.trial_id, 4, None))
    with pytest.raises(InputError, match="is not a trial of form0"):
        list(export_weights(folder / "form0", "unknown", 4, None))


def test_a_text_that_is_gone_is_named(folder: Path, tmp_path: Path) -> None:
    with LedgerReader(folder / "form0" / "ledger.db") as ledger:
        (trial,) = ledger.trials()
    config = OBJECTIVES["gpt"].config_of({**trial.config, "text": (str(tmp_path / "gone.txt"),)})
    with pytest.raises(InputError, match=r"gone\.txt"):
        _facts(trial, 6, OBJECTIVES["gpt"], config, {})


def test_other_objectives_have_no_loss_on_text() -> None:
    kind = OBJECTIVES["quadratic"]
    config = kind.config_of({"steps": 4})
    trainer = kind.start([config], [0], "cpu", ExecutionPlan(1))
    weights = weights_of_row(trainer, 0)
    trial = type("Row", (), {"trial_id": "a", "seed": 0})()
    assert _facts(trial, 4, kind, config, weights)["validation_loss"] is None
