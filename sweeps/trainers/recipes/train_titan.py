"""Train two processes, and log as torchtitan does. docs/from-trainer-to-map.md sweeps it."""

import argparse
import logging
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer.lr", dest="lr", type=float, default=1e-2)
parser.add_argument("--training.steps", dest="steps", type=int, default=200)
parser.add_argument("--training.max_norm", dest="max_norm", type=float, default=1.0)
parser.add_argument("--metrics.log_freq", dest="log_freq", type=int, default=10)
parser.add_argument("--debug.seed", dest="seed", type=int, default=0)
arguments = parser.parse_args()

handler, logger = logging.StreamHandler(), logging.getLogger()
handler.setFormatter(logging.Formatter("[titan] %(asctime)s - %(name)s - %(levelname)s - %(message)s"))
logger.addHandler(handler)
logger.setLevel(logging.INFO)
codes = ("31", "32", "38;2;180;60;0", "38;2;54;234;195", "36", "39")
red, green, orange, turquoise, cyan, reset = (f"\033[{code}m" for code in codes)


def main():
    """Train, and log the mean loss of all processes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(arguments.seed)
    rows = torch.tensor(list(Path(random.__file__).read_bytes())).unfold(0, 9, 1)
    model = nn.Sequential(nn.Embedding(256, 16), nn.Flatten(), nn.Linear(8 * 16, 64), nn.ReLU(), nn.Linear(64, 256))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    logger.info(f"Training starts at step 1, with local batch size 16, global batch size {16 * size}")
    for step in range(1, arguments.steps + 1):
        began = time.perf_counter()
        batch = rows[torch.randint(len(rows), (16 * size,))[rank::size]]
        loss = nn.functional.cross_entropy(model(batch[:, :8]), batch[:, 8])
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), arguments.max_norm)
        optimizer.step()
        if step == 1 or step % arguments.log_freq == 0:
            dist.all_reduce(mean := loss.detach() / size)
            tps = int(16 * 8 / (time.perf_counter() - began))
            logger.info(
                f"{red}step: {step:2}  {green}loss: {mean:7.4f}  {orange}grad_norm: {norm:7.4f}  "
                f"{turquoise}memory:  0.03GiB(0.04%)  {cyan}tps: {tps:,}  tflops: 0.01  mfu: 0.00%{reset}"
            )
    logger.info("Training completed")


dist.init_process_group("gloo")
main()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # threads of gloo may outlive Python's own end, and would then abort the process
