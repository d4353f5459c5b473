"""Train with JAX and optax. docs/from-trainer-to-map.md sweeps it."""

import argparse
import random
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--b2", type=float, default=0.999)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()

rows = jnp.array(list(Path(random.__file__).read_bytes()))
keys = jax.random.split(jax.random.key(arguments.seed), 4)
params = {
    "embed": jax.random.normal(keys[0], (256, 16)),
    "hidden": jax.random.normal(keys[1], (8 * 16, 64)) / 12,
    "head": jax.random.normal(keys[2], (64, 256)) / 8,
}
optimizer = optax.adamw(arguments.lr, b2=arguments.b2)


def loss_fn(params, batch):
    """Return the mean loss of a batch."""
    h = jax.nn.leaky_relu(params["embed"][batch[:, :8]].reshape(-1, 8 * 16) @ params["hidden"])
    return optax.softmax_cross_entropy_with_integer_labels(h @ params["head"], batch[:, 8]).mean()


@jax.jit
def train_step(params, state, key):
    """Take one step of AdamW on a random batch."""
    starts = jax.random.randint(key, (32, 1), 0, len(rows) - 8)
    loss, grads = jax.value_and_grad(loss_fn)(params, rows[starts + jnp.arange(9)])
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, {"loss": loss, "grad_norm": optax.global_norm(grads)}


state, waiting = optimizer.init(params), None
for step in range(arguments.steps):
    params, state, metrics = train_step(params, state, jax.random.fold_in(keys[3], step))
    print(f"step={step} " + " ".join(f"{name}={value:.5f}" for name, value in metrics.items()))
