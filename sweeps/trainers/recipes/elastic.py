"""Train by DDP in any number of processes, from a checkpoint on if there is one. docs/custom-trainer.md sweeps it.

The global batch stays the same: rows are drawn for all processes, and each takes its micro batches.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def batch(step, micro, accumulation):
    """Return the micro batches of this process, of which the last column is noise."""
    rank, num = dist.get_rank(), dist.get_world_size()
    rows = torch.randn(num * accumulation * micro, 5, generator=torch.Generator().manual_seed(step))
    return rows.reshape(num, accumulation, micro, 5)[rank]


def train(lr, micro, accumulation, steps, checkpoint):
    """Print the mean loss of the global batch at each step, and write a checkpoint every 20 steps."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    first = 0
    if os.path.exists(checkpoint):
        first, weights, momenta = torch.load(checkpoint)
        model.module.load_state_dict(weights)
        optimizer.load_state_dict(momenta)
    for step in range(first, steps):
        losses = torch.zeros(())
        for rows in batch(step, micro, accumulation):
            loss = (model(rows[:, :4]) - rows.sum(1, keepdim=True)).square().mean() / accumulation
            loss.backward()  # DDP takes the mean over the processes
            losses += loss.detach() / dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(losses)
        if dist.get_rank() == 0:
            print(f"step {step} loss {losses.item():.8f}")
            if step % 20 == 19:
                torch.save((step + 1, model.module.state_dict(), optimizer.state_dict()), f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)


dist.init_process_group("gloo")
train(float(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5])
dist.destroy_process_group()
