"""As llm.c's train_gpt2cu: short flags, a table of settings, and lines that reach a pipe only in blocks of 4 KiB.

Scores of how unusual loss and norm are stand in brackets behind them. C writes some NaN as -nan. Nothing stops it.
"""

import io
import sys
import time
from collections import deque

import numpy as np
from toy import Adam, Net, Text, clipped

options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
lr, steps, every = float(options["-l"]), int(options["-x"]), int(options.get("-v", 20))
out = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "wb", closefd=False), 4096))
line = "+-----------------------+----------------------------------------------------+"
for name, value in (("learning rate (LR)", f"{lr:e}"), ("max_steps", steps), ("val_loss_every", every), ("seed", 1)):
    print(line, f"| {name:<21} | {value:<50} |", sep="\n", file=out)
print(line, file=out)
print("num_parameters: 124475904 => bytes: 248951808", file=out)
print("batch_size B=4 * seq_len T=64 * num_processes=1 and total_batch_size=256", file=out)


def c(value, form):
    return ("-nan" if np.isnan(value) else format(value, form)) if not np.isfinite(value) else format(value, form)


def z_score(window, value):
    if len(window) < 128:
        return "+nan"
    return f"{(value - np.mean(window)) / (np.std(window) + 1e-12):+.2f}"


model, text, draw = Net(1), Text(), np.random.default_rng(1)
optimizer, losses, norms, total = Adam(model.weights), deque(maxlen=128), deque(maxlen=128), 0.0
for step in range(steps + 1):
    if step % every == 0 or step == steps:
        valid = model.loss(*text.batch(np.random.default_rng(5), 500), with_gradient=False)
        print(f"val loss {c(valid, 'f')}", file=out)
    if step == steps:
        break
    began = time.time()
    loss, gradients = model.loss(*text.batch(draw, 64))
    gradients, norm = clipped(gradients, 1.0)
    optimizer.step(gradients, lr)
    ms = (time.time() - began) * 1000
    losses.append(loss)
    norms.append(norm)
    total += ms / 1000
    print(
        f"step {step + 1:4d}/{steps} | loss {c(loss, '7.6f')} ({z_score(losses, loss)}z)| norm {c(norm, '6.4f')} "
        f"({z_score(norms, norm)}z)| lr {lr:.2e} | {ms:.2f} ms | {45.1:.1f}% bf16 MFU | {256e3 / ms:.0f} tok/s",
        file=out,
    )
print(f"total average iteration time: {total / steps * 1000:f} ms", file=out)
out.flush()
