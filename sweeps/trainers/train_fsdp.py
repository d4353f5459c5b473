"""Train the GPT of train.py sharded over processes with FSDP2, or whole in one; takes the same settings.

torchrun --nproc_per_node=2 train_fsdp.py --learning_rate=3e-3 --max_iters=40
"""

import math
import os
import sys

import torch
import torch.distributed as dist
import train


def shard(model, place, world_size):
    """Shard every weight over the ranks: each stores its part, and gathers a block when needed."""
    from torch.distributed.device_mesh import init_device_mesh  # a second to import: not for one process
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(place.type, (world_size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def main():
    """Train and print; a batch is split evenly over the ranks, so any number of ranks trains the same model."""
    if train.init_from != "scratch":
        sys.exit("train_fsdp.py saves nothing to go on from: --init_from must be scratch")
    rank, world_size, place = train.start()
    text, _ = train.load_text()
    model, generator = train.GPT().to(place), torch.Generator().manual_seed(train.seed)
    if world_size > 1:
        shard(model, place, world_size)  # before the optimizer is created, which must hold shards
    optimizer = train.make_optimizer(model)
    for iter_num in range(train.max_iters):
        train.set_learning_rate(optimizer, iter_num)
        starts = train.random_starts(text, generator, rank, world_size)
        loss = model(*train.batch(text, starts, place))
        optimizer.zero_grad()
        loss.backward()  # leaves each rank the mean over all ranks of its part of the gradient
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), train.grad_clip or math.inf)
        optimizer.step()
        loss = loss.detach()
        if world_size > 1:
            norm = norm.full_tensor()
            dist.all_reduce(loss)
        if rank == 0 and iter_num % train.log_interval == 0:
            print(f"iter {iter_num}: loss {loss.item() / world_size:.6f}, norm {norm.item():.6f}", flush=True)


if __name__ == "__main__":
    train.configure(sys.argv[1:])
    main()
    if dist.is_initialized():
        dist.destroy_process_group()  # out here, where no model needs it any more
        sys.stdout.flush()
        os._exit(0)  # threads of gloo may outlive Python's own end, and would then abort the process
