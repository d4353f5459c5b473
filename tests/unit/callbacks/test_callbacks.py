"""The callbacks in the real trainers, on models of a few hundred parameters."""

import functools
import importlib
import itertools
import json
import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiers import one_of

from orchestrator.base.errors import InputError
from orchestrator.callbacks import gradient_norm
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.rows import read_rows
from orchestrator.detection.watch import TRIAL_VARIABLE, Watch

# Every library is imported by the tests that need it: it takes seconds, and all workers collect all tests.

QUICK = StoppingConfig(patience=5)
NUM_STEPS, POISONED_STEP = 30, 7
TEXT = b"the quick brown fox jumps over the lazy dog and comes back for more of the same. " * 8


@pytest.fixture
def rows_of_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this process one that a sweep runs; where its rows go."""
    file, rows = tmp_path / "trial.json", tmp_path / "rows.jsonl"
    stopping = QUICK.resolved(0.1, 1).model_dump()
    asked = {"trial_id": "t1", "config": {"lr": 0.01}, "seed": 0, "steps": NUM_STEPS, "stopping": stopping}
    file.write_text(json.dumps({**asked, "rows": str(rows), "folder": str(tmp_path)}))
    monkeypatch.setenv(TRIAL_VARIABLE, str(file))
    return rows


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float, float | None]]:
    """What watches are told, as it comes."""
    told: list[tuple[int, float, float | None]] = []
    report = Watch.report

    def listen(watch: Watch, step: int, loss: Any, grad_norm: Any = None) -> bool:
        told.append((step, float(loss), None if grad_norm is None else float(grad_norm)))
        return report(watch, step, loss, grad_norm)

    monkeypatch.setattr(Watch, "report", listen)
    return told


def batches_of_bytes(num: int, length: int = 16) -> list[torch.Tensor]:
    """Sequences of the text, as tokens below 32."""
    tokens = torch.tensor(list(TEXT)) % 32
    starts = [7 * i % (len(tokens) - length) for i in range(num)]
    return [tokens[start : start + length] for start in starts]


# Hugging Face


@pytest.fixture
def hugging_face() -> Iterator[SimpleNamespace]:
    with warnings.catch_warnings():
        # Accelerate asks for pinned memory, which a machine without an accelerator does not have.
        warnings.filterwarnings("ignore", "'pin_memory' argument is set as true", UserWarning)
        import transformers

        from orchestrator.callbacks.transformers import StabilityCallback

        yield SimpleNamespace(
            **{name: getattr(transformers, name) for name in ("Trainer", "TrainerCallback", "TrainingArguments")},
            GPT2Config=transformers.GPT2Config,
            GPT2LMHeadModel=transformers.GPT2LMHeadModel,
            StabilityCallback=StabilityCallback,
        )


@pytest.fixture
def hf_trainer(hugging_face: SimpleNamespace, tmp_path: Path) -> Callable[..., Any]:
    """A Trainer of a tiny GPT-2 on the CPU."""

    def make(*callbacks: Any, trainer_class: type | None = None, options: dict | None = None, **changes: Any) -> Any:
        torch.manual_seed(0)
        config = hugging_face.GPT2Config(
            n_layer=1, n_embd=8, n_head=1, vocab_size=32, n_positions=16,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        arguments = {
            "output_dir": str(tmp_path / "out"), "max_steps": NUM_STEPS, "per_device_train_batch_size": 4,
            "learning_rate": 1e-2, "lr_scheduler_type": "constant", "logging_steps": 10, "report_to": [],
            "save_strategy": "no", "use_cpu": True, "disable_tqdm": True,
        }  # fmt: skip
        data = [{"input_ids": row, "labels": row} for row in batches_of_bytes(64)]
        return (trainer_class or hugging_face.Trainer)(
            model=hugging_face.GPT2LMHeadModel(config),
            args=hugging_face.TrainingArguments(**(arguments | changes)),
            train_dataset=data,
            eval_dataset=data[:8],
            callbacks=list(callbacks),
            **(options or {}),
        )

    return make


@pytest.fixture
def hf_poison(hugging_face: SimpleNamespace) -> Any:
    """A callback that breaks the model, so that the loss of one step is the first that is not finite."""

    class Poison(hugging_face.TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            if state.global_step == POISONED_STEP:
                with torch.no_grad():
                    next(model.parameters()).fill_(math.nan)

    return Poison()


def test_a_healthy_run_of_a_trainer_ends_by_itself(
    hugging_face: SimpleNamespace, hf_trainer: Callable, reports: list
) -> None:
    callback = hugging_face.StabilityCallback()
    trainer = hf_trainer(callback, logging_steps=1, max_grad_norm=0.05)
    trainer.train()
    assert trainer.state.global_step == NUM_STEPS
    assert callback.watch.verdict().outcome == "stable"
    assert [step for step, _, _ in reports] == list(range(NUM_STEPS))
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [loss for _, loss, _ in reports] == pytest.approx([entry["loss"] for entry in logs], abs=1e-6)
    assert [norm for _, _, norm in reports] == pytest.approx([entry["grad_norm"] for entry in logs], rel=1e-5)
    assert min(norm for _, _, norm in reports) > 0.05  # which they are clipped to


def test_the_trainer_is_left_as_it_was(hugging_face: SimpleNamespace, hf_trainer: Callable) -> None:
    trainer = hf_trainer(hugging_face.StabilityCallback(), max_steps=1)
    trainer.train()
    assert "training_step" not in vars(trainer)
    assert "clip_grad_norm_" not in vars(trainer.accelerator)


def test_an_absurd_learning_rate_is_stopped_early_in_a_trainer(
    hugging_face: SimpleNamespace, hf_trainer: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    callback = hugging_face.StabilityCallback(QUICK)
    trainer = hf_trainer(callback, learning_rate=10.0)
    with caplog.at_level(logging.WARNING, "orchestrator.callbacks.transformers"):
        trainer.train()
    assert callback.watch.record().lost == "far"
    assert callback.watch.verdict().outcome == "diverged"
    assert trainer.state.global_step == callback.watch.record().num_steps < NUM_STEPS
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("orchestrator")]
    assert message == f"training stops after {trainer.state.global_step} steps: {callback.watch.lost_reason}"


def test_a_trainer_stops_at_the_step_whose_loss_is_not_finite_though_its_log_hides_that(
    hugging_face: SimpleNamespace, hf_trainer: Callable, hf_poison: Any
) -> None:
    callback = hugging_face.StabilityCallback()
    trainer = hf_trainer(callback, hf_poison, logging_nan_inf_filter=True)
    result = trainer.train()
    assert trainer.state.global_step == POISONED_STEP + 1
    assert callback.watch.record().lost_step == POISONED_STEP
    assert callback.watch.lost_reason == "the loss is not finite"
    assert math.isfinite(result.training_loss)


def own_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return 2 * torch.nn.functional.cross_entropy(logits, targets, reduction="sum") / num_items_in_batch


@pytest.mark.parametrize(
    ("options", "changes"),
    one_of(
        4,
        [
            ({}, {}),
            ({}, {"label_smoothing_factor": 0.1}),
            ({"compute_loss_func": own_loss}, {}),
            ({}, {"max_steps": 5, "gradient_accumulation_steps": 6, "per_device_train_batch_size": 3}),
        ],
    ),
    ids=["the model's", "smoothed labels", "a function", "a short last step of an epoch"],
)
def test_accumulated_gradients_are_one_report_with_the_loss_that_the_trainer_logs(
    hugging_face: SimpleNamespace, hf_trainer: Callable, reports: list, options: dict, changes: dict
) -> None:
    changes = {"max_steps": 4, "gradient_accumulation_steps": 3, "logging_steps": 1} | changes
    trainer = hf_trainer(hugging_face.StabilityCallback(), options=options, **changes)
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert [step for step, _, _ in reports] == list(range(changes["max_steps"]))
    assert [loss for _, loss, _ in reports] == pytest.approx(logged, abs=1e-6)


@pytest.mark.slow
def test_evaluation_in_training_is_not_reported(
    hugging_face: SimpleNamespace, hf_trainer: Callable, reports: list
) -> None:
    changes = {"max_steps": 6, "seed": 1, "logging_steps": 1}
    hf_trainer(hugging_face.StabilityCallback(), **changes).train()
    without, reports[:] = list(reports), []
    trainer = hf_trainer(hugging_face.StabilityCallback(), eval_strategy="steps", eval_steps=2, **changes)
    trainer.train()
    assert sum("eval_loss" in entry for entry in trainer.state.log_history) == 3
    assert reports == without


def test_a_trainer_reports_to_the_sweep_that_runs_it(
    hugging_face: SimpleNamespace, hf_trainer: Callable, hf_poison: Any, rows_of_trial: Path
) -> None:
    callback = hugging_face.StabilityCallback()
    hf_trainer(callback, hf_poison, max_steps=callback.watch.steps, learning_rate=callback.watch.config["lr"]).train()
    rows = read_rows(rows_of_trial)
    assert [row["step"] for row in rows] == list(range(POISONED_STEP + 1))
    assert math.isnan(rows[-1]["loss"])
    assert all(set(row) == {"step", "loss", "grad_norm"} for row in rows)


@pytest.mark.slow
def test_each_training_of_a_trainer_is_a_run_of_its_own(
    hugging_face: SimpleNamespace, hf_trainer: Callable, reports: list
) -> None:
    callback = hugging_face.StabilityCallback()
    trainer = hf_trainer(callback, max_steps=5)
    trainer.train()
    first = callback.watch
    trainer.train()
    assert [step for step, _, _ in reports] == 2 * list(range(5))
    assert first.record().num_steps == callback.watch.record().num_steps == 5


@pytest.mark.slow
def test_a_training_after_one_that_raised_is_heard_once(
    hugging_face: SimpleNamespace, hf_trainer: Callable, reports: list
) -> None:
    class Failing(hugging_face.TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            raise ConnectionError

    failing = Failing()
    trainer = hf_trainer(
        hugging_face.StabilityCallback(), failing, max_steps=2, gradient_accumulation_steps=2, logging_steps=1
    )
    with pytest.raises(ConnectionError):
        trainer.train()
    trainer.remove_callback(failing)
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert [loss for _, loss, _ in reports] == pytest.approx(logged, abs=1e-6)
    assert "training_step" not in vars(trainer)


def test_a_wrapper_that_someone_else_put_around_a_trainer_stays(
    hugging_face: SimpleNamespace, hf_trainer: Callable, reports: list
) -> None:
    trainer = hf_trainer(hugging_face.StabilityCallback(), max_steps=2)
    calls, inner = [], trainer.training_step

    @functools.wraps(inner)
    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(1)
        return inner(*args, **kwargs)

    trainer.training_step = counted
    trainer.train()
    assert trainer.training_step is counted
    assert len(calls) == len(reports) == 2


def test_a_trainer_whose_loss_cannot_be_seen_is_refused(hugging_face: SimpleNamespace, hf_trainer: Callable) -> None:
    callback = hugging_face.StabilityCallback()
    with pytest.raises(InputError, match=r"works in a transformers\.Trainer only"):
        callback.on_train_begin(None, None, None)
    with pytest.raises(InputError, match="without `training_step`"):
        callback.on_step_end(None, None, None)


HALVE = {"on": "step", "above": 4, "every": 1, "do": [{"lr": "x0.5"}, {"skip": 2}], "cool_down": 4, "at_most": 2}
# What the update of each step is of its usual size.
SHARES = [1.0] * 5 + [0.5] * 5 + [0.0] * 2 + [0.5] * (NUM_STEPS - 12)


def sizes_of_updates(weights: list[torch.Tensor]) -> list[float]:
    return [float((new - old).norm()) for old, new in itertools.pairwise(weights)]


class Weights:
    """Copies of some weights, before and after each update of an optimizer."""

    def __init__(self, weight: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        self.copies = [weight.detach().clone()]
        optimizer.register_step_post_hook(lambda *_: self.copies.append(weight.detach().clone()))


def test_the_updates_of_a_trainer_follow_rules(
    hugging_face: SimpleNamespace, hf_trainer: Callable, reports: list
) -> None:
    trained = {}
    for name, rules in (("plain", None), ("ruled", [HALVE])):
        callback = hugging_face.StabilityCallback(control=rules)
        trainer = hf_trainer(callback, optim="sgd", lr_scheduler_type="linear", max_grad_norm=1e9)
        trainer.create_optimizer()
        weights = Weights(trainer.model.transformer.wte.weight, trainer.optimizer)
        trainer.train()
        trained[name] = sizes_of_updates(weights.copies)
        assert [step for step, _, _ in reports] == list(range(NUM_STEPS))
        reports.clear()
    assert [one["did"] for one in callback.watch.fired] == [
        {"at": 5, "set": {"lr": "x0.5"}}, {"at": 10, "skip": 2},
    ]  # fmt: skip
    assert trained["ruled"][:6] == pytest.approx([*trained["plain"][:5], trained["plain"][5] / 2], rel=1e-4)
    assert [size == 0 for size in trained["ruled"]] == [share == 0 for share in SHARES]


def test_a_trainer_goes_back_from_a_broken_update(
    hugging_face: SimpleNamespace, hf_trainer: Callable, hf_poison: Any
) -> None:
    rules = [{"on": "not_finite", "above": 0, "every": 1, "do": {"back": 4}}]
    callback = hugging_face.StabilityCallback(control=rules)
    hf_trainer(callback, hf_poison).train()
    assert [one["did"] for one in callback.watch.fired] == [{"at": POISONED_STEP, "back": 5}]
    assert callback.watch.verdict().outcome == "stable"
    assert callback.watch.record().num_steps == NUM_STEPS


@pytest.mark.slow
def test_the_rules_of_a_trainer_go_on_after_its_checkpoint(
    hugging_face: SimpleNamespace, hf_trainer: Callable, tmp_path: Path
) -> None:
    saves = {"save_strategy": "steps", "save_steps": 8}
    whole = hugging_face.StabilityCallback(control=[HALVE])
    hf_trainer(whole, **saves).train()
    again = hugging_face.StabilityCallback(control=[HALVE])
    hf_trainer(again, **saves).train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-8"))
    assert again.watch.fired == whole.watch.fired
    assert again.watch.record() == whole.watch.record()


def test_a_trainer_follows_the_rules_of_the_sweep_that_runs_it(
    hugging_face: SimpleNamespace, hf_trainer: Callable, rows_of_trial: Path
) -> None:
    file = rows_of_trial.with_name("trial.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "control": [HALVE]}))
    hf_trainer(hugging_face.StabilityCallback()).train()
    rows = read_rows(rows_of_trial)
    assert [row["step"] for row in rows if "fired" in row] == [5, 10]
    assert [row["step"] for row in rows if row.get("rolled_back")] == [10, 11]


# Lightning


@pytest.fixture
def lightning() -> Iterator[SimpleNamespace]:
    with warnings.catch_warnings():
        import lightning.pytorch as pl

        from orchestrator.callbacks.lightning import StabilityCallback

        # Lightning's use of what torch has deprecated.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        # Lightning's advice on how to load data faster, and on a step that only some tests validate with.
        warnings.filterwarnings("ignore", "The `srun` command is available")  # on machines with Slurm
        warnings.filterwarnings("ignore", r"The '\w+' does not have many workers")
        warnings.filterwarnings("ignore", "You defined a `validation_step` but have no `val_dataloader`")
        warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before the epoch ended")
        yield SimpleNamespace(pl=pl, StabilityCallback=StabilityCallback)


@pytest.fixture
def module(lightning: SimpleNamespace) -> Callable[..., Any]:
    """A Lightning module that predicts the next byte from one."""

    class Bigram(lightning.pl.LightningModule):
        def __init__(self, lr: float = 0.1, optimization: str = "automatic", poisoned: int | None = None) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table = torch.nn.Embedding(32, 32, sparse=optimization == "sparse")
            self.lr, self.optimization, self.poisoned = lr, optimization, poisoned
            self.automatic_optimization = optimization not in ("manual", "silent")
            self.losses, self.num_validations = [], 0

        def loss(self, batch: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.table(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

        def training_step(self, batch, batch_idx):
            if batch_idx == self.poisoned:
                with torch.no_grad():
                    self.table.weight.fill_(math.nan)
            if self.optimization == "skipping" and batch_idx % 2:
                return None
            loss = self.loss(batch)
            self.losses.append(float(loss.detach()))
            if self.automatic_optimization:
                return {"loss": loss}
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            return loss if self.optimization == "manual" else None

        def validation_step(self, batch, batch_idx):
            self.num_validations += 1

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    return Bigram


@pytest.fixture
def fit(lightning: SimpleNamespace) -> Callable[..., Any]:
    """Train a module on the CPU; returns the trainer."""

    def run(module: Any, callback: Any, validates: bool = False, num_batches: int = NUM_STEPS, **changes: Any) -> Any:
        arguments = {
            "accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False, "enable_checkpointing": False,
            "enable_progress_bar": False, "enable_model_summary": False, "callbacks": [callback],
        }  # fmt: skip
        trainer = lightning.pl.Trainer(**(arguments | changes))
        train = torch.utils.data.DataLoader(batches_of_bytes(4 * num_batches), batch_size=4)
        validation = torch.utils.data.DataLoader(batches_of_bytes(4), batch_size=4) if validates else None
        trainer.fit(module, train, validation)
        return trainer

    return run


def test_a_healthy_run_of_lightning_ends_by_itself(
    lightning: SimpleNamespace, module: Callable, fit: Callable, reports: list
) -> None:
    callback = lightning.StabilityCallback()
    model = module(lr=1.0)
    trainer = fit(model, callback, gradient_clip_val=0.01)
    assert trainer.global_step == NUM_STEPS
    assert callback.watch.verdict().outcome == "stable"
    assert [step for step, _, _ in reports] == list(range(NUM_STEPS))
    assert [loss for _, loss, _ in reports] == pytest.approx(model.losses)
    assert min(norm for _, _, norm in reports) > 0.01  # which they are clipped to


def test_a_rising_gradient_norm_is_logged_as_a_note_in_lightning(
    lightning: SimpleNamespace, module: Callable, fit: Callable, caplog: pytest.LogCaptureFixture, monkeypatch
) -> None:
    monkeypatch.setattr(Watch, "note", property(lambda watch: "it rose" if watch.record().num_steps == 5 else None))
    with caplog.at_level(logging.WARNING, "orchestrator.callbacks.lightning"):
        fit(module(lr=1e-3), lightning.StabilityCallback(QUICK))
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("orchestrator")]
    assert messages == ["note: it rose"]


def test_an_absurd_learning_rate_is_stopped_early_in_lightning(
    lightning: SimpleNamespace, module: Callable, fit: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    callback = lightning.StabilityCallback(QUICK)
    with caplog.at_level(logging.WARNING, "orchestrator.callbacks.lightning"):
        trainer = fit(module(lr=1e6), callback)
    assert callback.watch.record().lost == "far"
    assert callback.watch.verdict().outcome == "diverged"
    assert trainer.global_step == callback.watch.record().num_steps < NUM_STEPS
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("orchestrator")]
    assert message == f"training stops after {trainer.global_step} steps: {callback.watch.lost_reason}"


@pytest.mark.parametrize("optimization", ["automatic", "manual", "sparse"])
def test_lightning_stops_at_the_step_whose_loss_is_not_finite(
    lightning: SimpleNamespace, module: Callable, fit: Callable, optimization: str
) -> None:
    callback = lightning.StabilityCallback()
    trainer = fit(module(optimization=optimization, poisoned=POISONED_STEP), callback)
    assert trainer.global_step == POISONED_STEP + 1
    assert callback.watch.record().lost_step == POISONED_STEP
    assert callback.watch.lost_reason == "the loss is not finite"


def test_accumulated_gradients_are_one_report_with_their_mean_loss(
    lightning: SimpleNamespace, module: Callable, fit: Callable, reports: list
) -> None:
    model = module()
    fit(model, lightning.StabilityCallback(), num_batches=8, accumulate_grad_batches=3, max_epochs=2)
    sizes = [3, 3, 2, 3, 3, 2]  # an epoch ends with a step of what is left
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    means = [sum(model.losses[end - size : end]) / size for end, size in zip(ends, sizes, strict=True)]
    assert [step for step, _, _ in reports] == list(range(len(sizes)))
    assert [loss for _, loss, _ in reports] == pytest.approx(means)


def test_validation_is_not_reported(lightning: SimpleNamespace, module: Callable, fit: Callable, reports: list) -> None:
    model = module()
    fit(model, lightning.StabilityCallback(), validates=True, val_check_interval=10)
    assert model.num_validations > NUM_STEPS // 10
    assert [loss for _, loss, _ in reports] == pytest.approx(model.losses)


def test_lightning_reports_to_the_sweep_that_runs_it(
    lightning: SimpleNamespace, module: Callable, fit: Callable, rows_of_trial: Path
) -> None:
    callback = lightning.StabilityCallback()
    fit(module(lr=callback.watch.config["lr"], poisoned=POISONED_STEP), callback, max_steps=callback.watch.steps)
    rows = read_rows(rows_of_trial)
    assert [row["step"] for row in rows] == list(range(POISONED_STEP + 1))
    assert math.isnan(rows[-1]["loss"])
    assert all(set(row) == {"step", "loss", "grad_norm"} for row in rows)


def test_batches_that_lightning_skips_are_not_reported(
    lightning: SimpleNamespace, module: Callable, fit: Callable, reports: list
) -> None:
    warnings.filterwarnings("ignore", "`training_step` returned `None`")  # that is what this is about
    model = module(optimization="skipping")
    fit(model, lightning.StabilityCallback())
    assert [step for step, _, _ in reports] == list(range(0, NUM_STEPS, 2))
    assert [loss for _, loss, _ in reports] == pytest.approx(model.losses)


def test_manual_optimization_that_keeps_its_loss_is_refused(
    lightning: SimpleNamespace, module: Callable, fit: Callable
) -> None:
    with pytest.raises(InputError, match=r"only if `training_step` returns it[^$]*remedy: return the loss"):
        fit(module(optimization="silent"), lightning.StabilityCallback())


def test_each_fit_of_lightning_is_a_run_of_its_own(lightning: SimpleNamespace, module: Callable, fit: Callable) -> None:
    callback = lightning.StabilityCallback()
    fit(module(poisoned=POISONED_STEP), callback)
    assert callback.watch.is_lost
    fit(module(), callback)
    assert callback.watch.record().num_steps == NUM_STEPS
    assert not callback.watch.is_lost


# Accelerate, and what the callbacks share


@pytest.mark.parametrize("optimization", ["automatic", "manual"])
def test_the_updates_of_lightning_follow_rules(
    optimization: str, lightning: SimpleNamespace, module: Callable, fit: Callable, reports: list
) -> None:
    trained = {}
    for name, rules in (("plain", None), ("ruled", [HALVE])):
        callback = lightning.StabilityCallback(control=rules)
        model = module(optimization=optimization)
        optimizer = model.configure_optimizers()
        model.configure_optimizers = lambda optimizer=optimizer: optimizer
        weights = Weights(model.table.weight, optimizer)
        fit(model, callback)
        trained[name] = sizes_of_updates(weights.copies)
        assert [step for step, _, _ in reports] == list(range(NUM_STEPS))
        assert [loss for _, loss, _ in reports] == pytest.approx(model.losses)
        reports.clear()
    late = int(optimization == "manual")  # reports come after their updates
    first = 5 + late
    halved = [*trained["plain"][:first], trained["plain"][first] / 2]
    assert trained["ruled"][: first + 1] == pytest.approx(halved, rel=1e-4)
    assert [size == 0 for size in trained["ruled"]] == [share == 0 for share in ([1.0] * late + SHARES)[:NUM_STEPS]]


def test_accumulated_gradients_follow_rules_as_one_step(
    lightning: SimpleNamespace, module: Callable, fit: Callable, reports: list
) -> None:
    callback, model = lightning.StabilityCallback(control=[HALVE]), module()
    fit(model, callback, accumulate_grad_batches=3)
    assert [step for step, _, _ in reports] == list(range(NUM_STEPS // 3))
    means = [sum(model.losses[i : i + 3]) / 3 for i in range(0, NUM_STEPS, 3)]
    assert [loss for _, loss, _ in reports] == pytest.approx(means)


def test_lightning_goes_back_from_a_broken_update(lightning: SimpleNamespace, module: Callable, fit: Callable) -> None:
    rules = [{"on": "not_finite", "above": 0, "every": 1, "do": {"back": 4}}]
    callback = lightning.StabilityCallback(control=rules)
    fit(module(poisoned=POISONED_STEP), callback)
    assert [one["did"] for one in callback.watch.fired] == [{"at": POISONED_STEP, "back": 5}]
    assert callback.watch.verdict().outcome == "stable"


def test_the_rules_of_lightning_go_on_after_its_checkpoint(
    lightning: SimpleNamespace, module: Callable, fit: Callable, tmp_path: Path
) -> None:
    whole, first, again = (lightning.StabilityCallback(control=[HALVE]) for _ in range(3))
    fit(module(), whole)
    fit(module(), first, max_steps=8).save_checkpoint(tmp_path / "kept.ckpt")
    trainer = lightning.pl.Trainer(
        accelerator="cpu", devices=1, max_steps=NUM_STEPS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[again],
    )  # fmt: skip
    data = torch.utils.data.DataLoader(batches_of_bytes(4 * NUM_STEPS), batch_size=4)
    trainer.fit(module(), data, ckpt_path=tmp_path / "kept.ckpt", weights_only=False)
    assert again.watch.fired == whole.watch.fired
    record = again.watch.record()  # its data begin anew, so that only the first 8 losses are the same
    assert (record.num_steps, record.initial_loss) == (NUM_STEPS, whole.watch.record().initial_loss)


@pytest.mark.parametrize(("lr", "outcome"), [(5.0, "stable"), (1e6, "diverged")])
def test_a_loop_with_accelerate_reports_by_itself(lr: float, outcome: str, rows_of_trial: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    table = torch.nn.Embedding(32, 32)
    data = torch.utils.data.DataLoader(batches_of_bytes(8 * NUM_STEPS), batch_size=4)
    model, optimizer, data = accelerator.prepare(table, torch.optim.SGD(table.parameters(), lr=lr), data)
    watch, step = Watch(), 0
    for batch in data:
        with accelerator.accumulate(model):
            logits = model(batch[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            if watch.report(step, loss, norm):
                break
            step += 1
    assert watch.verdict().outcome == outcome
    assert (watch.record().num_steps < NUM_STEPS) == watch.is_lost == (outcome == "diverged")
    assert len(read_rows(rows_of_trial)) == watch.record().num_steps


def test_a_norm_is_that_of_all_gradients_together() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2, 2)) for _ in range(3)]
    assert gradient_norm(parameters) is None
    parameters[0].grad = torch.full((2, 2), 2.0)
    # A sparse gradient may name one place twice.
    parameters[1].grad = torch.sparse_coo_tensor([[1, 1]], [[1.0, 0.0], [2.0, 0.0]], (2, 2), check_invariants=True)
    assert float(gradient_norm(parameters)) == pytest.approx(5.0)


def test_a_norm_takes_in_gradients_that_are_spread_over_processes() -> None:
    from torch import distributed
    from torch.distributed.tensor import DTensor, Shard

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        spread = torch.nn.Parameter(DTensor.from_local(torch.zeros(4), mesh, [Shard(0)]))
        spread.grad = DTensor.from_local(torch.full((4,), 2.0), mesh, [Shard(0)])
        plain = torch.nn.Parameter(torch.zeros(1))
        plain.grad = torch.tensor([3.0])
        norm = gradient_norm([spread, plain])
        assert type(norm) is torch.Tensor
        assert float(norm) == pytest.approx(5.0)
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_a_callback_without_its_library_says_how_to_get_it(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"orchestrator.callbacks.{library}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install .*{library}"):
        importlib.import_module(f"orchestrator.callbacks.{library}")
