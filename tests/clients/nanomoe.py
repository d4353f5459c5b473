"""As nanoMoE: nanoGPT with experts, whose settings it prints as dictionaries with losses in their names.

Its loss includes one of the router's logits. It logs every ten iterations and goes on at NaN.
"""

import sys
import time
from ast import literal_eval

import numpy as np
from toy import Adam, Net, Text, clipped

config = {
    "out_dir": "out", "eval_interval": 500, "log_interval": 10, "batch_size": 32, "learning_rate": 6e-4, "n_exp": 4,
    "max_iters": 50000, "beta2": 0.95, "grad_clip": 1.0, "use_aux_loss": True, "use_router_z_loss": True,
    "aux_loss_weight": 0.01, "router_z_loss_weight": 0.001, "seed": 1337,
}  # fmt: skip
for argument in sys.argv[1:]:
    key, value = argument.removeprefix("--").split("=")
    try:
        attempt = literal_eval(value)
    except (SyntaxError, ValueError):
        attempt = value
    assert type(attempt) is type(config[key])
    print(f"Overriding: {key} = {attempt}")
    config[key] = attempt
print(config)
print("\n\n")
print({name: value for name, value in config.items() if "loss" in name or name == "n_exp"})
print("\n\n")

draw, data, num_experts = np.random.default_rng(config["seed"]), Text(), config["n_exp"]
experts = [Net(seed) for seed in range(num_experts)]
router = np.random.default_rng(0).normal(size=(16, num_experts)) / 4
optimizer = Adam([router, *(weight for expert in experts for weight in expert.weights)], beta2=config["beta2"])


def losses(x, y):
    """The loss with the router's, and the gradients; each letter goes to the expert with the largest logit."""
    logits = x @ router
    chosen = logits.argmax(axis=1)
    gradients, total = [np.zeros_like(weight) for weight in optimizer.weights], 0.0
    for i, expert in enumerate(experts):
        rows = np.flatnonzero(chosen == i)
        if len(rows):
            loss, own = expert.loss(x[rows], y[rows])
            total += loss * len(rows) / len(y)
            gradients[1 + 2 * i : 3 + 2 * i] = [g * len(rows) / len(y) for g in own]
    with np.errstate(all="ignore"):
        log_z = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)) + logits.max(axis=1)
        shares = np.exp(logits - log_z[:, None])
        weight = config["router_z_loss_weight"]
        gradients[0] = x.T @ (2 * weight * log_z[:, None] * shares / len(y))
        return total + weight * float((log_z**2).mean()), gradients


iter_num, t0 = 0, time.time()
while True:
    if iter_num % config["eval_interval"] == 0:
        valid = losses(*data.batch(np.random.default_rng(5), 500))[0]
        print(f"step {iter_num}: train loss {valid:.4f}, val loss {valid:.4f}")
        if iter_num > 0:
            print(f"saving checkpoint to {config['out_dir']}")
    loss, gradients = losses(*data.batch(draw, config["batch_size"]))
    optimizer.step(clipped(gradients, config["grad_clip"])[0], config["learning_rate"])
    dt, t0 = time.time() - t0, time.time()
    if iter_num % config["log_interval"] == 0:
        print(f"iter {iter_num}: loss {loss:.4f}, time {dt * 1000:.2f}ms, mfu {-100.0 if iter_num < 5 else 1.5:.2f}%")
    iter_num += 1
    if iter_num > config["max_iters"]:
        break
