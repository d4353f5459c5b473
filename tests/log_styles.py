"""Log lines as many code bases print them, each for a run with one spike."""

import json
from collections.abc import Callable

import numpy as np
from sweep_cases import learning

# ruff: noqa: E501 - a line of a log is as long as it is


NUM_STEPS, PER_EPOCH = 120, 40
LOSSES = [float(f"{loss:.4f}") for loss in learning(NUM_STEPS, changes=[(90, 96, 2.0)])]
Lines = Callable[[int, float, float, float], str]  # step, loss, gradient norm, validation loss -> text


def epoch(t: int) -> int:
    return t // PER_EPOCH


def batch(t: int) -> int:
    return t % PER_EPOCH


def at_end(t: int, text: str) -> str:
    """``text`` after the last batch of an epoch."""
    return text if batch(t) == PER_EPOCH - 1 else ""


def bar(t: int, of: int) -> str:
    return f"{100 * t // of:3d}%|{'#' * (10 * t // of):10}| {t}/{of} [00:01<00:09, 10.00it/s"


SOURCE = """import os, sys
from dataclasses import dataclass
loss = 0.5
step = 0
class Hyperparameters:
    val_loss_every : int = 125
    warmup_iters = 250
for step in range(1750 + 1):
    t0 = 0
    train_loss = 11.0 # of the first step
    print0(f"step:{step}/1750 train_loss:{loss.item():.4f} train_time:{0}ms")
====================
"""
SUMMARY = """wandb: Run history:
wandb:       loss 9.1
wandb: Run summary:
wandb:       loss 2.0
wandb: train/loss 2.0
wandb:       step 119
"""


# Where a line says nothing of its step, points are counted from 0.
READ: dict[str, Lines] = {
    "llm.c, its log file": lambda t, x, n, v: (f"s:{t} tel:{v:.4f}\n" if t % 20 == 0 else "") + f"s:{t} trl:{x} lr:0.0006 norm:{n:.2f}\n",
    "nanochat, with its validation": lambda t, x, n, v: (
        (f"Step {t:05d} | Validation bpb: {v / 3:.4f}\n" if t % 20 == 0 else "")
        + f"step {t:05d}/00120 (0.5%) | loss: {x} | lrm: 1.00 | dt: 500ms | tok/sec: 1,000\n"
    ),
    "modded-nanogpt, after its source": lambda t, x, n, v: (
        ("" if t else SOURCE)
        + f"step:{t}/120 train_loss:{x} train_time:{100 * t}ms step_avg:100.00ms\n"
        + (f"step:{t}/120 val_loss:{v:.4f} train_time:{100 * t}ms\n" if t % 20 == 0 else "")
    ),
    "Transformers, with a bar that lags": lambda t, x, n, v: (
        (f"\r{bar(t + 1, 120)}]" if t % 3 == 0 else "")
        + f"\r{' ' * 70}\r{{'loss': {x}, 'grad_norm': {n:.4f}, 'learning_rate': 1e-05, 'epoch': {t / 120:.2f}}}\n"
        + f"\r{bar(t + 1, 120)}]"
    ),
    "a step in each epoch beside a global one": lambda t, x, n, v: f'{{"step": {batch(t)}, "global_step": {t}, "loss": {x}}}\n',
    "a logger that prints to two places": lambda t, x, n, v: f"12:00:00 INFO step {t} loss {x}\nstep {t} loss {x}\n",
    "two loggers without steps": lambda t, x, n, v: f"loss = {x}\nINFO:root:loss = {x}\n",
    "a print, and Weights & Biases' summary": lambda t, x, n, v: f"step {t} loss {x}\n" + ("" if t < NUM_STEPS - 1 else SUMMARY),
    "processes of Hogwild": lambda t, x, n, v: "".join(
        f"{pid}\tTrain Epoch: {epoch(max(0, t - late)) + 1} [{64 * batch(max(0, t - late))}/{64 * PER_EPOCH} (0%)]\tLoss: {x if late == 0 else 9.9}\n"
        for pid, late in ((4001, 0), (4002, 2)) if t >= 2 * late
    ),
    "a loss at a step": lambda t, x, n, v: f"Loss at step {3 * t}: {x}\n" + at_end(t, f"Validation loss at step {3 * t}: {v:.4f}\n"),
    "a loss after steps": lambda t, x, n, v: f"[INFO] training loss after {3 * t} steps = {x}, lr 0.1\n",
    "a mean over some steps": lambda t, x, n, v: f"step {3 * t} | avg loss over last 10 steps: {x} | lr 0.1\n",
    "a training step": lambda t, x, n, v: f"2026-01-01 INFO Training step #{3 * t}: loss {x}\n",
    "a trainer's step": lambda t, x, n, v: f"12:00:00 INFO trainer step {3 * t} loss {x}\n",
    "what is known at a step": lambda t, x, n, v: f"At step {3 * t}, loss={x}, {5 + t % 3} files\n",
    "a time in seconds": lambda t, x, n, v: f"{1_700_000 + t // 3} step {t} loss {x}\n",
    "MNIST example": lambda t, x, n, v: (
        f"Train Epoch: {epoch(t) + 1} [{64 * batch(t)}/{64 * PER_EPOCH} ({100 * batch(t) / PER_EPOCH:.0f}%)]\tLoss: {x}\n"
        + at_end(t, f"\nTest set: Average loss: {v:.4f}, Accuracy: 98/100 (98%)\n\n")
    ),
    "ImageNet example": lambda t, x, n, v: (
        f"Epoch: [{epoch(t)}][{batch(t) + 1:3d}/{PER_EPOCH}]\tTime  0.5 ( 1.0)\tLoss {x:.4e} ({x * 1.01:.4e})\tAcc@1 0.0\n"
        + at_end(t, "".join(f"Test: [{i:2d}/10]\tTime 0.5 ( 0.5)\tLoss {v:.4e} ({v:.4e})\tAcc@1 1.0\n" for i in range(10)))
    ),
    "torchvision references": lambda t, x, n, v: (
        f"Epoch: [{epoch(t)}]  [{batch(t):3d}/{PER_EPOCH}]  eta: 0:00:{60 - batch(t)}  lr: 0.1  loss: {x} ({x * 1.01:.4f})\n"
        + at_end(t, "".join(f"Test:  [{i:2d}/10]  eta: 0:00:0{i}  loss: {v:.4f} ({v:.4f})\n" for i in range(10)))
    ),
    "timm": lambda t, x, n, v: (
        f"Train: {epoch(t)} [{batch(t):4d}/{PER_EPOCH} ({batch(t):3.0f}%)]  Loss: {x} ({x:.3g})  LR: 1.000e-06\n"
        + at_end(t, f"Test: [{54:4d}/100]  Time: 0.1 (0.1)  Loss: {v:.4f} ({v:.4f})  Acc@1: 10.0\n" * 5)
    ),
    "Keras": lambda t, x, n, v: (
        (f"Epoch {epoch(t) + 1}/3\n" if batch(t) == 0 else "")
        + f"\r\x1b[1m{batch(t) + 1:3d}/{PER_EPOCH}\x1b[0m \x1b[32m----\x1b[0m 145ms/step - accuracy: 0.5 - loss: {x}"
        + at_end(t, f"\r{PER_EPOCH}/{PER_EPOCH} - 3s 25ms/step - accuracy: 0.9 - loss: {x} - val_accuracy: 0.9 - val_loss: {v}\n")
    ),
    "Keras 2, which deletes its bar": lambda t, x, n, v: (
        (f"Epoch {epoch(t) + 1}/3\n" if batch(t) == 0 else "\b" * 80 + "\r")
        + f"{32 * (batch(t) + 1):5d}/{32 * PER_EPOCH} [{'=' * batch(t)}>......] - "
        + at_end(t, f"2s 3ms/step - loss: {x} - acc: 0.9 - val_loss: {v} - val_acc: 0.9\n")
        + ("" if batch(t) == PER_EPOCH - 1 else f"ETA: {60 - batch(t)}s - loss: {x} - acc: 0.5")
    ),
    "tinygrad's ResNet": lambda t, x, n, v: f"{t:5} {800 + t:7.2f} ms run, {790.1:7.2f} ms python, {21.9:7.2f} ms 6 x AMD, {x} loss, 0.01 acc, 0.000017 LR, 12.20 GB used, 31234.50 GFLOPS\n",
    "OpenRLHF": lambda t, x, n, v: f"\rTrain step of epoch 0: {bar(t + 1, NUM_STEPS)}, gpt_loss={x}, loss_mean={x * 1.01:.4f}, lr=5e-6]",
    "Keras, a line an epoch": lambda t, x, n, v: (
        f"Epoch {t + 1}/{NUM_STEPS}\n100/100 - 2s - 20ms/step - accuracy: 0.5 - loss: {x} - val_loss: {v}\n"
    ),
    "tqdm with a postfix": lambda t, x, n, v: f"\repoch 0: {bar(t + 1, NUM_STEPS)}, loss={x}, gnorm={n:.3f}]",
    "tqdm an epoch": lambda t, x, n, v: f"\rEpoch {epoch(t) + 1}/3 loss {x}: {bar(batch(t), PER_EPOCH)}]",
    "a logger": lambda t, x, n, v: f"2026-01-01 12:00:{t % 60:02d},{t:03d} INFO step={t} loss={x}\n",
    "a logger with a date in slashes": lambda t, x, n, v: f"2026/01/02 12:00:{t % 60:02d} - INFO - loss: {x}\n",
    "a logger with its place": lambda t, x, n, v: f"[2026-01-01 12:00:00][train.py:42][INFO] - epoch 1 it {t} | loss {x} | lr 3e-04\n",
    "loguru": lambda t, x, n, v: f"\x1b[32m2026-01-01\x1b[0m | \x1b[1mINFO\x1b[0m | \x1b[36mmain\x1b[0m:42 - \x1b[1mstep {t} loss {x}\x1b[0m\n",
    "Megatron": lambda t, x, n, v: (
        f" [2025-05-01 10:00:00] iteration {t + 1:8d}/{NUM_STEPS:8d} | consumed samples: {8 * t:12d} | learning rate: 1.5E-04 "
        f"| lm loss: {x:.6E} | loss scale: 1.0 | grad norm: {n:.3f} | number of nan iterations:   0 |\n"
        + at_end(t, f"---\n validation loss at iteration {t + 1} | lm loss value: {v:.6E} | lm loss PPL: 10.0 | \n---\n")
    ),
    "torchtitan": lambda t, x, n, v: (
        f"[rank0]:[titan] 2025-05-01 10:00:00,{t:03d} - root - INFO - \x1b[31mstep: {t + 1:2d}  \x1b[32mloss: {x}  "
        f"\x1b[38;2;180;60;0mgrad_norm: {n:7.4f}  \x1b[33mmemory:  0.51GiB(0.64%)\x1b[39m\n"
    ),
    "fairseq": lambda t, x, n, v: (
        "2021-01-01 | INFO | train_inner | "
        + json.dumps({"epoch": 1, "update": 0.1, "loss": str(x), "num_updates": str(t + 1), "gnorm": f"{n:.3f}"})
        + "\n" + at_end(t, '2021-01-01 | INFO | valid | {"epoch": 1, "valid_loss": "2.5", "valid_num_updates": "9"}\n')
    ),
    "fairseq, with its epochs": lambda t, x, n, v: (
        f"2021-01-01 | INFO | train_inner | epoch 001:    {t + 1} / 120 loss={x}, ppl=40.2, num_updates={t + 1}, gnorm={n:.3f}\n"
        + at_end(t, f"2021-01-01 | INFO | train | epoch 001 | loss 4.2 | ppl 40.2 | num_updates {t + 1}\n")
    ),
    "DeepSpeed": lambda t, x, n, v: (
        f"[2023-05-01 12:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step={t + 1}, skipped=0, lr=[0.0001, 0.0001]\n"
        f"steps: {t + 1} loss: {x} iter time (s): 0.123 samples/sec: 64.000\n"
    ),
    "OLMo": lambda t, x, n, v: (
        f"2024-10-01\thost:0\tolmo.train:969\tINFO\t[step={t + 1}/{NUM_STEPS},epoch=0]\n    optim/total_grad_norm={n:.4f}\n"
        f"    train/CrossEntropyLoss={x}\n    train/Perplexity=1,234.5\n"
    ),
    "OLMo-core": lambda t, x, n, v: (
        f"2025-01-01\tolmo_core:100\tINFO\t[step={t + 1}/{NUM_STEPS},epoch=1,eta=1 hour, 20 minutes]\n"
        f"    optim/total grad norm={n:.4f}\n    train/CE loss={x}\n    train/Z loss=0.0012\n"
    ),
    "Composer": lambda t, x, n, v: (
        f"[batch={t + 1}/{NUM_STEPS}]:\n\t Train time/batch: {t}\n\t Train loss/train/total: {x}\n\t Train l2_norm/grad/global: {n:.4f}\n"
    ),
    "Hugging Face's Trainer": lambda t, x, n, v: (
        str({"loss": str(x), "grad_norm": f"{n:.4f}", "learning_rate": "2e-05", "epoch": f"{t / 40:.2f}"}) + "\n"
        + at_end(t, str({"eval_loss": str(v), "eval_runtime": "1.2", "epoch": f"{t / 40:.2f}"}) + "\n")
    ),
    "a print": lambda t, x, n, v: f"Step {t}, Loss: {x}\n",
    "a JAX array": lambda t, x, n, v: f"step {t} loss Array({x}, dtype=float32)\n",
    "a tensor": lambda t, x, n, v: f"step {t} loss tensor({x}, grad_fn=<NllLossBackward0>)\n",
    "a scalar of NumPy": lambda t, x, n, v: f"step {t} loss: np.float64({x})\n",
    "a list of one": lambda t, x, n, v: f"step {t}: loss=[{x}]\n",
    "Flax with absl": lambda t, x, n, v: (
        f"I0101 12:00:00.123456 140234 train.py:123] train epoch: {t + 1:3d}, loss: {x}, accuracy: 92.10, test_loss: {v:.4f}\n"
    ),
    "MaxText": lambda t, x, n, v: f"completed step: {t}, seconds: 1.234, TFLOP/s/device: 120.0, total_weights: 65536, loss: {x}\n",
    "llm.c": lambda t, x, n, v: (
        (f"val loss {v:.6f}\n" if t % 40 == 0 else "")
        + f"step {t + 1:4d}/{NUM_STEPS} | loss {x} (+nanz)| norm {n:.4f} (+1.23z)| lr 8.57e-07 | 65.2% bf16 MFU | 171622 tok/s\n"
    ),
    "nanochat": lambda t, x, n, v: f"step {t:05d}/{NUM_STEPS:05d} ({t:.2f}%) | loss: {x} | grad norm: {n:.4f} | tok/sec: 100,000\n",
    "nanoGPT": lambda t, x, n, v: (
        (f"step {t}: train loss {x + 0.3:.4f}, val loss {v:.4f}\n" if t % 40 == 0 else "")
        + f"iter {t}: loss {x}, time 92.31ms, mfu 3.02%\n"
    ),
    "PyTorch's quickstart": lambda t, x, n, v: (
        (f"Epoch {epoch(t) + 1}\n---\n" if batch(t) == 0 else "")
        + f"loss: {x:>7f}  [{(batch(t) + 1) * 64:>5d}/{PER_EPOCH * 64:>5d}]\n"
        + at_end(t, f"Test Error: \n Accuracy: 64.3%, Avg loss: {v:>8f} \n\n")
    ),
    "PyTorch's CIFAR tutorial": lambda t, x, n, v: f"[{epoch(t) + 1}, {batch(t) + 1:5d}] loss: {x}\n",
    "a tutorial": lambda t, x, n, v: f"Epoch [{epoch(t) + 1}/3], Step [{batch(t) + 1}/{PER_EPOCH}], Loss: {x}\n",
    "an epoch and a step in one counter": lambda t, x, n, v: f"Epoch/Step: {epoch(t)}/{t} loss {x}\n",
    "an assistant's script": lambda t, x, n, v: (
        f"Epoch {epoch(t) + 1}/3, Batch {batch(t)}/{PER_EPOCH}, Loss: {x}\n"
        + at_end(t, f"Epoch {epoch(t) + 1}/3 - Train Loss: {x + 0.2:.4f}, Val Loss: {v:.4f}\n")
    ),
    "Detectron2": lambda t, x, n, v: (
        f"\x1b[32m[01/01 12:00:00 d2.utils.events]: \x1b[0m eta: 1:00:00  iter: {t}  total_loss: {x}  loss_cls: {x * 0.4:.4g}  lr: 0.1\n"
    ),
    "MMEngine": lambda t, x, n, v: (
        f"2023/01/01 12:00:00 - mmengine - INFO - Epoch(train)  [{epoch(t) + 1}][{batch(t) + 1:3d}/{PER_EPOCH}]  lr: 1e-3  "
        f"eta: 0:10:00  grad_norm: {n:.4f}  loss: {x}\n"
    ),
    "GPT-NeoX": lambda t, x, n, v: (
        f" samples/sec: 9.812 | iteration {t + 1:8d}/ {NUM_STEPS:7d} | learning rate: 1.000E-05 | lm_loss: {x:.6E} | loss scale: 4096.0 |\n"
    ),
    "LitGPT": lambda t, x, n, v: f"Epoch 1 | iter {t + 1} step {t + 1} | loss train: {x}, val: n/a | iter time: 12.56 ms (step)\n",
    "NeMo": lambda t, x, n, v: (
        f"Training epoch 0, iteration {t}/{NUM_STEPS - 1} | lr: 1e-05 | global_step: {t} | reduced_train_loss: {x} | consumed_samples: {8 * t}\n"
    ),
    "torchtune": lambda t, x, n, v: f"\r1|{t + 1}|Loss: {x}: {bar(t + 1, NUM_STEPS)}]",
    "torchtune on disk": lambda t, x, n, v: f"Step {t + 1} | loss:{x} lr:2e-05 tokens_per_second_per_gpu:1234.5 grad_norm:{n} \n",
    "Lightning's bar": lambda t, x, n, v: f"\rEpoch {epoch(t)}: {bar(batch(t) + 1, PER_EPOCH)}, v_num=0, train_loss={x}]",
    "thousands": lambda t, x, n, v: f"step {10 * t + 900:,}: loss {x} (lr=1.0e-4, tokens=1,234,567)\n",
    "four ranks": lambda t, x, n, v: "".join(f"[rank{rank}]: step {t} loss {x + 0.001 * rank:.4f}\n" for rank in range(4)),
    "four ranks, not in order": lambda t, x, n, v: (
        "".join(f"[rank{rank}]: step {t} loss {x + 0.001 * rank:.4f}\n" for rank in ((0, 1, 2, 3) if t == 0 else (2, 0, 3, 1)))
    ),
    "modded-nanogpt": lambda t, x, n, v: f"step:{t + 1}/{NUM_STEPS} train_loss:{x} train_time:{100 * t}ms step_avg:100.12ms\n",
    "an estimator": lambda t, x, n, v: f"INFO:tensorflow:loss = {x}, step = {t} (12.345 sec)\n",
    "CSV": lambda t, x, n, v: ("step,train/loss,val/loss,grad_norm\n" if t == 0 else "") + f"{t},{x},{v if t % 40 == 0 else ''},{n}\n",
    "JSON lines": lambda t, x, n, v: json.dumps({"step": t, "metrics": {"train": {"loss": x, "grad_norm": n}, "lr": 1e-3}}) + "\n",
    "JSON lines with a split": lambda t, x, n, v: (
        json.dumps({"split": "train", "step": t, "loss": x}) + "\n"
        + at_end(t, json.dumps({"split": "val", "step": t, "loss": v}) + "\n")
    ),
    "two losses in a line": lambda t, x, n, v: f"step {t}: ce_loss {x} aux_loss 0.0100 total {x + 0.01:.4f}\n",
    "an average before the loss": lambda t, x, n, v: f"Iteration: {t}, Avg. Loss: {x * 1.05:.4f}, Loss: {x}\n",
    "a validation between": lambda t, x, n, v: f"step {t} loss {x}\n" + at_end(t, f"Validation: loss {v}\n" * 12),
    "an accuracy of the validation beside it": lambda t, x, n, v: f"step {t} | val acc 0.5 | loss {x}\n",
    # Words and numbers of something else.
    "a date in words that changes": lambda t, x, n, v: f"[{'Mon May  5' if t < 80 else 'Tue Jun  6'} 10:10:00 2024] Epoch {t}: loss = {x}\n",
    "a date in words before a counter": lambda t, x, n, v: f"{'Mon May  5' if t < 80 else 'Tue Jun  6'} 10:10:00 2024 {t}/{NUM_STEPS} | loss = {x}\n",
    "a bar with units": lambda t, x, n, v: f"\r  1%|#         | {t}/{NUM_STEPS} [00:01<00:09, {'999.0it/s' if t % 2 else '1.02kit/s'}, loss={x}]",
    "the best validation so far": lambda t, x, n, v: f"step {t} | best val: {'None' if t < 60 else v} | loss {x}\n",
    "a validation that is mostly not there": lambda t, x, n, v: f"step {t} | val {v if t % 10 == 0 else '-'} | loss {x}\n",
    "a run that is called test": lambda t, x, n, v: f"[test] step {t} loss {x}\n",
    "a logger that is called dev": lambda t, x, n, v: f"2026-01-01 12:00:00 - dev - INFO - step {t}: loss={x}\n",
    "a device": lambda t, x, n, v: f"dev 0 | step {t} | loss {x}\n",
    "data that have names": lambda t, x, n, v: f"train on A, eval on B | step {t} | loss {x}\n",
    "an accuracy of the validation before it": lambda t, x, n, v: f"Epoch {t} - Val Acc@1 90.3 - loss: {x}\n",
    "a path": lambda t, x, n, v: f"/data/test/run/train.py:12 step {t} loss {x}\n",
    "a memory in use": lambda t, x, n, v: f"loss {x} mem {5 + t % 3}/80 GB\n",
    "a memory in use before it": lambda t, x, n, v: f"mem {5 + t % 3}/80 GB loss {x}\n",
    "a count of what is correct": lambda t, x, n, v: f"loss: {x} correct: {10 + t % 7}/64\n",
    "an accuracy as a fraction": lambda t, x, n, v: f"Epoch {t}: loss {x}, acc 0.3 ({50 + t // 9}/100)\n",
    "a rank that was measured": lambda t, x, n, v: f"step {t} rank {30 + t % 5} loss {x}\n",
    "a rank that only says a scale": lambda t, x, n, v: (
        ("[Rank 0] Attempted loss scale: 65536, reducing to 32768\n" if t == 0 else "") + f"[Rank 7] step {t} loss {x}\n"
    ),
    "build-nanogpt": lambda t, x, n, v: (f"validation loss: {v:.4f}\n" if t % 20 == 0 else "") + f"step {t:5d} | loss: {x} | lr 1.0e-04 | norm: {n:.4f} | dt: 500.10ms | tok/sec: 1000.20\n",
    "structlog": lambda t, x, n, v: f"2025-01-01 00:00.00 [info     ] train step             grad_norm={n:.3f} loss={x} step={t}\n",
    "tracing in Rust": lambda t, x, n, v: f"\x1b[2m2024-01-01T12:00:00.123456Z\x1b[0m \x1b[32m INFO\x1b[0m \x1b[2mtrain\x1b[0m\x1b[2m:\x1b[0m \x1b[3mstep\x1b[0m\x1b[2m=\x1b[0m{t} \x1b[3mloss\x1b[0m\x1b[2m=\x1b[0m{x}\n",
    "Lingua": lambda t, x, n, v: f"0: INFO    25-01-01 12:00:00.1 - 0:00:01 - step: {t + 1}  acc: 0  loss:  {x}  grad: {n:.2e}  wps: 1.0e+04  iter:  0.1{t % 9}  data:  0.01  mem: 10%\n",
    "ESPnet": lambda t, x, n, v: f"[h] 2023-01-01 12:00:00,123 (trainer:779) INFO: 1epoch:train:{20 * t + 1}-{20 * t + 20}batch: iter_time=0.1, loss_ctc={2 * x:.3f}, loss_att={x / 2:.3f}, loss={x}, grad_norm={n:.3f}, loss_scale=1.000\n",
    "PaddleNLP": lambda t, x, n, v: f"[2023-01-01 12:00:00,123] [    INFO] - loss: {x}, learning_rate: 3e-05, global_step: {t + 1}, interval_steps_per_second: 1.2, progress_or_epoch: 0.01\n",
    "PaddleClas": lambda t, x, n, v: f"[2023/01/01 12:00:00] ppcls INFO: [Train][Epoch {epoch(t) + 1}/3][Iter: {batch(t)}/{PER_EPOCH}]lr(LinearWarmup): 0.0001, top1: 0.10000, CELoss: {x}, loss: {x}, ips: 10 samples/s\n",
    "MLX": lambda t, x, n, v: (f"Iter {t + 1}: Val loss {v:.3f}, Val took 1.2s\n" if t % 20 == 0 else "") + f"Iter {t + 1}: Train loss {x}, Learning Rate 1.000e-05, It/sec 1.234, Trained Tokens {100 * t}, Peak mem 1.2 GB\n",
    "veRL": lambda t, x, n, v: f"step:{t + 1} - train/loss:{x} - train/lr(1e-3):0.010 - train/time(s):1.2\n",
    "Coqui": lambda t, x, n, v: f"\x1b[1m   --> TIME: 2025-01-01 12:00:00 -- STEP: {batch(t)}/{PER_EPOCH} -- GLOBAL_STEP: {t}\x1b[0m\n     | > loss: {x}  ({x})\n     | > grad_norm: \x1b[92m{n:.5f}\x1b[0m  (1.0)\n",
    "a table of Ray": lambda t, x, n, v: f"Training finished iteration {t + 1} at 2024-01-01 12:00:00.\n╭──────────────────────╮\n│ training_iteration {t + 1:3d} │\n│ loss         {x} │\n╰──────────────────────╯\n",
    "a dictionary of tensors": lambda t, x, n, v: f"{t}: {{'ce': tensor({x * 0.9:.4f}, device='cuda:0'), 'aux': tensor(0.1), 'loss': tensor({x}, device='cuda:0')}}\n",
    "losses behind a bar": lambda t, x, n, v: f"\rEpoch 1: {bar(t + 1, NUM_STEPS)}, aux_loss=0.01, kl_loss={x * 0.3:.3g}, loss={x}]",
    "a logger that writes JSON": lambda t, x, n, v: json.dumps({"level": "INFO", "msg": f"step {t} loss {x:.4f}"}) + "\n",
    "LLaMA-Factory": lambda t, x, n, v: json.dumps({"current_steps": 3 * t, "total_steps": 360, "loss": x, "epoch": t / 40, "elapsed_time": "0:00:01"}) + "\n",
    "Flax's examples": lambda t, x, n, v: f"I0101 12:00:00.1 1402 train.py:12] train in step: {3 * t}, {{'accuracy': Array(0.1, dtype=float32), 'loss': Array({x}, dtype=float32)}}\n",
    "DeepSpeed-Chat": lambda t, x, n, v: (
        f"Epoch: 0, Step: {t}, Rank: 0, loss = {x}\n"
        + (f"[INFO] [timer.py:199:stop] epoch=0/micro_step={t + 1}/global_step={t + 1}, MemAllocated=4.3GB\n" if t % 10 == 9 else "")
    ),
    "nanotron": lambda t, x, n, v: f"01/01/2026 10:00:00 [INFO|DP=0|PP=0|TP=0|node]: iteration: {t + 1} / 120 | consumed_tokens: {t + 1}.02M | lm_loss: {x} | lr: 0.0003 | grad_norm: {n:.3f}\n",
    "fairseq2": lambda t, x, n, v: f"[2026-01-01 10:00:00] [Rank 0] INFO fairseq2.metrics - Train Metrics (step {t + 1}) - NLL Loss: {x} | Gradient Norm: {n:.4f} | Elements per Second: 1,234\n",
    "Megatron with experts": lambda t, x, n, v: f" iteration {t + 1:8d}/{NUM_STEPS:8d} | load_balancing_loss: 1.0{t % 10}E+00 | z_loss: 2.1E-03 | lm loss: {x:.6E} | mtp_1 loss: {x * 1.2:.6E} | loss scale: 1.0 |\n",
    "a notebook of Transformers": lambda t, x, n, v: ("" if t else "Step\tTraining Loss\tValidation Loss\n") + f"{t + 1}\t{x}\t{v:.4f}\n",
    "llama-recipes": lambda t, x, n, v: f"\rTraining Epoch: 1/3, step {t}/{NUM_STEPS} completed (loss: {x}):   {t}%|##   |\n",
}  # fmt: skip


def text_of(lines: Lines) -> str:
    norm_N = np.random.default_rng(1).uniform(0.9, 1.1, NUM_STEPS)
    return "".join(
        lines(t, loss, float(norm), 4.4 - 0.01 * t) for t, (loss, norm) in enumerate(zip(LOSSES, norm_N, strict=True))
    )
