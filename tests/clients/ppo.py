"""As CleanRL's PPO: it prints returns, and steps of the environment; its losses go to event files below runs/.

The agent walks among eight places until it falls off an end; each step gives 1, so that more is better. A policy that
is not finite ends it with the error of PyTorch's distributions.
"""

import argparse
import os
import time

import numpy as np
from tensorboardX import SummaryWriter
from toy import Adam

parser = argparse.ArgumentParser()
parser.add_argument("--exp-name", default=os.path.basename(__file__)[: -len(".py")])
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--env-id", default="Walk-v1")
parser.add_argument("--total-timesteps", type=int, default=500000)
parser.add_argument("--learning-rate", type=float, default=2.5e-4)
parser.add_argument("--num-envs", type=int, default=4)
parser.add_argument("--num-steps", type=int, default=32)
args = parser.parse_args()
PLACES, WIDTH, LONGEST, GAMMA, LAMBDA, CLIP = 8, 8, 60, 0.99, 0.95, 0.2

batch_size = args.num_envs * args.num_steps
writer = SummaryWriter(f"runs/{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}")
draw = np.random.default_rng(args.seed)
weights = [draw.normal(size=(PLACES, WIDTH)) / 3, draw.normal(size=(WIDTH, 3)) / 3]  # to two logits and a value
optimizer = Adam(weights, beta2=0.999, eps=1e-5)
place, length = np.full(args.num_envs, PLACES // 2), np.zeros(args.num_envs, dtype=int)


def value(at):
    return (weights[0] @ weights[1][:, 2])[at]


def log_probabilities(at):
    logits = (weights[0] @ weights[1][:, :2])[at]
    logits -= logits.max(axis=-1, keepdims=True)
    if not np.isfinite(logits).all():
        raise ValueError(
            f"Expected parameter logits (Tensor of shape {logits.shape}) of distribution Categorical(...) to satisfy "
            "the constraint IndependentConstraint(Real(), 1), but found invalid values:\ntensor([[nan, nan],"
        )
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


global_step, start_time = 0, time.time()
num_iterations = args.total_timesteps // batch_size
for iteration in range(1, num_iterations + 1):
    lr = (1.0 - (iteration - 1.0) / num_iterations) * args.learning_rate
    states, actions, dones = (np.zeros((args.num_steps, args.num_envs), dtype=int) for _ in range(3))
    for step in range(args.num_steps):
        global_step += args.num_envs
        states[step] = place
        actions[step] = draw.random(args.num_envs) < np.exp(log_probabilities(place))[:, 1]
        slips = draw.random(args.num_envs) < 0.1
        place, length = place + np.where(actions[step] ^ slips, 1, -1), length + 1
        dones[step] = (place < 0) | (place >= PLACES) | (length >= LONGEST)
        for env in np.flatnonzero(dones[step]):
            print(f"global_step={global_step}, episodic_return={np.array([float(length[env])])}")
            writer.add_scalar("charts/episodic_return", float(length[env]), global_step)
            place[env], length[env] = PLACES // 2, 0
    old_values, old_log_p = value(states), np.take_along_axis(log_probabilities(states), actions[..., None], -1)[..., 0]
    advantages, last = np.zeros(states.shape), np.zeros(args.num_envs)
    for t in reversed(range(args.num_steps)):
        following = value(place) if t == args.num_steps - 1 else old_values[t + 1]
        delta = 1.0 + GAMMA * following * (1 - dones[t]) - old_values[t]
        advantages[t] = last = delta + GAMMA * LAMBDA * (1 - dones[t]) * last
    returns = advantages + old_values
    for _ in range(4):
        order = draw.permutation(batch_size)
        for rows in np.split(order, 4):
            s, a, adv = states.ravel()[rows], actions.ravel()[rows], advantages.ravel()[rows]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            log_p = log_probabilities(s)
            ratio = np.exp(np.clip(log_p[np.arange(len(rows)), a] - old_log_p.ravel()[rows], -20, 20))
            pg_loss = np.maximum(-adv * ratio, -adv * np.clip(ratio, 1 - CLIP, 1 + CLIP)).mean()
            v_loss = 0.5 * ((value(s) - returns.ravel()[rows]) ** 2).mean()
            is_free = np.where(adv > 0, ratio < 1 + CLIP, ratio > 1 - CLIP)
            towards = (np.eye(2)[a] - np.exp(log_p)) * (-adv * ratio * is_free)[:, None] / len(rows)
            error = np.column_stack([towards, 0.5 * (value(s) - returns.ravel()[rows]) / len(rows)])
            seen = np.eye(PLACES)[s]
            gradients = [seen.T @ error @ weights[1].T, weights[0].T @ (seen.T @ error)]
            norm = np.sqrt(sum((g**2).sum() for g in gradients))
            optimizer.step([g * min(1.0, 0.5 / (norm + 1e-6)) for g in gradients], lr)
    writer.add_scalar("charts/learning_rate", lr, global_step)
    writer.add_scalar("losses/value_loss", v_loss, global_step)
    writer.add_scalar("losses/policy_loss", pg_loss, global_step)
    print("SPS:", int(global_step / (time.time() - start_time)))
    writer.add_scalar("charts/SPS", int(global_step / (time.time() - start_time)), global_step)
writer.close()
