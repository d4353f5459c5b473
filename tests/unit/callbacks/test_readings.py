"""The callbacks read the curvature of a Trainer and of a Lightning module, and change no bit of their training."""

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.base.errors import InputError

STEPS, EVERY = 9, 4


def lightning_run(tmp_path: Path, curvature: int | None, **changes: Any) -> tuple[Any, dict[str, torch.Tensor], list]:
    """The callback, the weights at the end and what the module logged."""
    with warnings.catch_warnings():
        import lightning.pytorch as pl

        from orchestrator.callbacks.lightning import StabilityCallback

        class Line(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
                self.automatic_optimization = not changes.get("manual", False)

            def training_step(self, batch: torch.Tensor, index: int) -> dict[str, torch.Tensor]:
                loss = (self.layers(batch) - batch.sum(1, keepdim=True)).square().mean()
                self.log("train", loss, on_step=False, on_epoch=True)
                return {"loss": loss}

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.Adam(self.parameters(), lr=0.01)

        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", "The `srun` command is available")
        warnings.filterwarnings("ignore", r"The '\w+' does not have many workers")
        callback, module = StabilityCallback(curvature=curvature), Line()
        rows = torch.randn(8 * STEPS, 4, generator=torch.Generator().manual_seed(1))
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False, callbacks=[callback],
            enable_progress_bar=False, enable_model_summary=False, precision=changes.get("precision", "32-true"),
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=8))
        return callback, module.state_dict(), trainer.logged_metrics["train"]


def trainer_run(tmp_path: Path, curvature: int | None, **changes: Any) -> tuple[Any, dict[str, torch.Tensor], list]:
    """As ``lightning_run``."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'pin_memory' argument is set as true", UserWarning)
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

        from orchestrator.callbacks.transformers import StabilityCallback

        torch.manual_seed(0)
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=32, n_positions=16, **ends))
        data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 32, (64, 16))]
        arguments = TrainingArguments(
            str(tmp_path), max_steps=STEPS, per_device_train_batch_size=4, learning_rate=1e-2, report_to=[],
            save_strategy="no", logging_steps=1, use_cpu=True, disable_tqdm=True, **changes,
        )  # fmt: skip
        callback = StabilityCallback(curvature=curvature)
        trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[callback])
        trainer.train()
        return callback, model.state_dict(), [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize(
    ("run", "changes"),
    [
        (lightning_run, {}),
        pytest.param(lightning_run, {"precision": "bf16-mixed"}, marks=pytest.mark.slow),
        pytest.param(trainer_run, {}, marks=pytest.mark.slow),
        (trainer_run, {"bf16": True, "gradient_accumulation_steps": 2, "label_smoothing_factor": 0.1}),
    ],
    ids=["lightning", "lightning bf16", "trainer", "trainer bf16"],
)
def test_the_curvature_is_read_and_nothing_else_changes(run: Any, changes: dict, tmp_path: Path) -> None:
    """Dropout and batch norm included, and what the trainer logs."""
    callback, read, read_log = run(tmp_path, EVERY, **changes)
    readings = callback.watch.readings  # of the last step, which is due
    assert math.isfinite(readings["lambda_crit"])
    assert readings["grad_norm/all"] > 0
    assert callback.watch.risk is not None
    _, plain, plain_log = run(tmp_path, None, **changes)
    assert all(torch.equal(read[name], plain[name]) for name in plain)
    assert read_log == plain_log


def test_manual_optimization_has_no_batch_to_read_the_curvature_of(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="automatic optimization"):
        lightning_run(tmp_path, EVERY, manual=True)
