"""Train with Accelerate, on one process or several. docs/from-trainer-to-map.md sweeps it."""

import argparse
import os
import random
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--max_train_steps", type=int, default=200)
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()


def main(accelerator):
    """Train, and print the mean loss of all processes at each step."""
    set_seed(arguments.seed)
    rows = torch.tensor(list(Path(random.__file__).read_bytes())).unfold(0, 9, 1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Embedding(256, 16), nn.Flatten(), nn.Linear(8 * 16, 64), nn.ReLU(), nn.Linear(64, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (batch,) in enumerate(loader):
        if step == arguments.max_train_steps:
            break
        loss = nn.functional.cross_entropy(model(batch[:, :8]), batch[:, 8])
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = accelerator.gather(loss.detach()).mean().item()
        accelerator.print(f"step: {step}, loss: {mean:.4f}, grad_norm: {norm:.4f}")


accelerator = Accelerator(cpu=True)
main(accelerator)
accelerator.end_training()
sys.stdout.flush()
os._exit(0)  # threads of gloo may outlive Python's own end, and would then abort the process
