"""As nanoGPT: settings are globals, changed by a file that is printed and by --name=value of the same type.

A loss at each iteration in its own form, and those of an evaluation in another. Its seed is a constant. NaN stops
nothing.
"""

import math
import os
import pickle
import sys
import time
from ast import literal_eval

import numpy as np
from toy import Adam, Net, Text, clipped

out_dir = "out"
eval_interval = 2000
log_interval = 1
eval_iters = 20
always_save_checkpoint = True
init_from = "scratch"
batch_size = 12
learning_rate = 6e-4
max_iters = 600000
beta1 = 0.9
beta2 = 0.95
grad_clip = 1.0
decay_lr = True
warmup_iters = 2000
lr_decay_iters = 600000
min_lr = 6e-5
for argument in sys.argv[1:]:
    if "=" not in argument:
        print(f"Overriding config with {argument}:")
        with open(argument) as file:
            text = file.read()
        print(text)
        exec(text)
        continue
    key, value = argument.removeprefix("--").split("=")
    try:
        attempt = literal_eval(value)
    except (SyntaxError, ValueError):
        attempt = value
    assert type(attempt) is type(globals()[key])
    print(f"Overriding: {key} = {attempt}")
    globals()[key] = attempt

print(f"tokens per iteration will be: {batch_size * 1024:,}")
os.makedirs(out_dir, exist_ok=True)
data, draw, model, iter_num, best_val_loss = Text(), np.random.default_rng(1337), Net(1337), 0, 1e9
optimizer = Adam(model.weights, beta1, beta2)
print("Initializing a new model from scratch" if init_from == "scratch" else f"Resuming training from {out_dir}")
if init_from == "resume":
    with open(os.path.join(out_dir, "ckpt.pt"), "rb") as file:
        optimizer, iter_num, best_val_loss = pickle.load(file)
    model.weights = optimizer.weights
print(f"number of parameters: {512 / 1e6:.2f}M")
print("num decayed parameter tensors: 2, with 512 parameters")


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    if it > lr_decay_iters:
        return min_lr
    ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


def estimate_loss():
    return np.mean([model.loss(*data.batch(draw, batch_size), with_gradient=False) for _ in range(eval_iters)])


t0 = time.time()
while True:
    lr = get_lr(iter_num) if decay_lr else learning_rate
    if iter_num % eval_interval == 0:
        train_loss, val_loss = estimate_loss(), estimate_loss()
        print(f"step {iter_num}: train loss {train_loss:.4f}, val loss {val_loss:.4f}")
        if val_loss < best_val_loss or always_save_checkpoint:
            best_val_loss = val_loss
            if iter_num > 0:
                print(f"saving checkpoint to {out_dir}")
                with open(os.path.join(out_dir, "ckpt.pt"), "wb") as file:
                    pickle.dump((optimizer, iter_num, best_val_loss), file)
    loss, gradients = model.loss(*data.batch(draw, batch_size))
    optimizer.step(clipped(gradients, grad_clip)[0], lr)
    dt, t0 = time.time() - t0, time.time()
    if iter_num % log_interval == 0:
        print(f"iter {iter_num}: loss {loss:.4f}, time {dt * 1000:.2f}ms, mfu {-100.0 if iter_num < 5 else 1.5:.2f}%")
    iter_num += 1
    if iter_num > max_iters:
        break
