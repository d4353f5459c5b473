"""Train as torchrun starts it, in several processes. docs/custom-trainer.md sweeps it."""

import sys

import torch
import torch.distributed as dist


def train(rank, lr, steps):
    """Print the mean loss of both processes at each step."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(steps):
        x = torch.randn(2, 8, 4)[rank]
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(mean := loss.detach())
        if rank == 0:
            print(f"step {step} loss {mean.item() / 2:.6f}")


dist.init_process_group("gloo")
train(dist.get_rank(), float(sys.argv[1]), int(sys.argv[2]))
dist.destroy_process_group()
