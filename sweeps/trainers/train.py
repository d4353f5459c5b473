"""Train a small byte-level GPT in one process or, under torchrun, in several.

python train.py --learning_rate=3e-3 --max_iters=500
torchrun --nproc_per_node=2 train.py --batch_size=16
"""

import math
import os
import signal
import sys
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

# Each of these is a setting: --name=value on the command line overrides it.
out_dir, init_from = "out", "scratch"  # init_from=resume continues from out_dir/ckpt.pt
data = ""  # a text file; without one, sources of Python's standard library
n_layer, n_head, n_embd, block_size = 2, 4, 64, 32
batch_size = 8  # sequences per iteration, over all processes
learning_rate, warmup_iters, max_iters = 3e-3, 10, 200
beta1, beta2, eps, weight_decay, grad_clip = 0.9, 0.95, 1e-8, 0.1, 1.0  # grad_clip=0: no clipping
log_interval, eval_interval, eval_iters = 1, 100, 4
seed, threads, device = 0, 1, "auto"  # auto, cpu or cuda


def configure(arguments):
    """Override settings from the command line."""
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        kind = type(globals().get(name))
        try:
            if kind not in (int, float, str) or name.startswith("_") or not argument.startswith(f"--{name}="):
                raise ValueError("no such setting, or not --name=value")
            globals()[name] = kind(value)
        except ValueError as error:
            print(f"{argument}: {error}", file=sys.stderr)
            sys.exit(2)


class Block(nn.Module):
    """Pre-norm attention, then a pre-norm MLP."""

    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd, bias=False), nn.LayerNorm(n_embd, bias=False)
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd, bias=False), nn.Linear(n_embd, n_embd, bias=False)
        self.up, self.down = nn.Linear(n_embd, 4 * n_embd, bias=False), nn.Linear(4 * n_embd, n_embd, bias=False)

    def forward(self, x):
        """Activations (B, T, n_embd) to the same shape."""
        q, k, v = self.qkv(self.ln_1(x)).unflatten(-1, (3, n_head, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class GPT(nn.Module):
    """Decoder-only transformer over bytes."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f, self.head = nn.LayerNorm(n_embd, bias=False), nn.Linear(n_embd, 256, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:  # projections to the residual stream start smaller in deeper models
                is_residual = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * n_layer) if is_residual else 0.02)

    def forward(self, x, y):
        """Mean cross-entropy of y, the bytes that follow x; both (B, T)."""
        h = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.ln_f(h)).flatten(0, 1), y.flatten())


def make_optimizer(model):
    """AdamW that decays matrices, not gains."""
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": weight_decay},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]  # fmt: skip
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(beta1, beta2), eps=eps, fused=True)


def set_learning_rate(optimizer, iter_num):
    """Linear warmup, then constant."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * min(1.0, (iter_num + 1) / (warmup_iters + 1))


def load_text():
    """Bytes to train on, and a tenth held out."""
    files = [Path(data)] if data else sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-z]*.py"))
    text = b"".join(file.read_bytes() for file in files)
    text = torch.frombuffer(bytearray(text if data else text[:500_000]), dtype=torch.uint8)
    return text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]


def random_starts(text, generator, rank, world_size):
    """Start positions of this rank's sequences of an iteration: its part of a batch that all ranks draw equally."""
    starts = torch.randint(len(text) - block_size, (batch_size,), generator=generator)
    return starts.chunk(world_size)[rank]


def batch(text, starts, place):
    """Inputs and targets, both (B, T), of the sequences at ``starts``."""
    xy = text[starts[:, None] + torch.arange(block_size + 1)].long().to(place)
    return xy[:, :-1], xy[:, 1:]


@torch.no_grad()
def evaluate(model, text, place):
    """Mean loss on sequences evenly spaced over ``text``, always the same ones."""
    starts = torch.linspace(0, len(text) - block_size - 1, eval_iters * batch_size).long()
    return sum(model(*batch(text, part, place)).item() for part in starts.split(batch_size)) / eval_iters


def start():
    """Rank, number of ranks and device, from torchrun's environment variables."""
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if batch_size % world_size or init_from not in ("scratch", "resume"):
        sys.exit(f"batch_size={batch_size} must be a multiple of {world_size} processes, init_from scratch or resume")
    has_gpus = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    place = torch.device(("cuda" if has_gpus else "cpu") if device == "auto" else device)
    if place.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    if world_size > 1:
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    torch.set_num_threads(threads)
    torch.manual_seed(seed)  # the same weights on every rank
    return rank, world_size, place


def main():
    """Train, print, and save checkpoints; returns the exit code."""
    rank, world_size, place = start()
    training, held_out = load_text()
    model, generator, first = GPT().to(place), torch.Generator().manual_seed(seed), 0
    optimizer, checkpoint = make_optimizer(model), Path(out_dir, "ckpt.pt")
    if init_from == "resume":
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        for group, decay in zip(optimizer.param_groups, (weight_decay, 0.0), strict=True):
            group.update(betas=(beta1, beta2), eps=eps, weight_decay=decay)  # as they are given now, not as saved
        generator.set_state(saved["generator"])
        first = saved["iter"]
    replica = nn.parallel.DistributedDataParallel(model) if world_size > 1 else model

    terminated, is_stopping = [], False
    signal.signal(signal.SIGTERM, lambda number, _: terminated.append(number))
    for iter_num in range(first, max_iters + 1):
        is_due = iter_num % eval_interval == 0 or iter_num == max_iters
        if rank == 0 and is_due:
            losses = [evaluate(model, text, place) for text in (training, held_out)]
            print(f"step {iter_num}: train loss {losses[0]:.4f}, val loss {losses[1]:.4f}", flush=True)
        if rank == 0 and (is_due or is_stopping) and iter_num > first:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter": iter_num}
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            torch.save(state | {"generator": generator.get_state()}, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)  # if killed, either the old or the new file is complete
        if iter_num == max_iters or is_stopping:
            break
        began = time.perf_counter()
        set_learning_rate(optimizer, iter_num)
        loss = replica(*batch(training, random_starts(training, generator, rank, world_size), place))
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), grad_clip or math.inf)
        optimizer.step()
        told = torch.stack([loss.detach(), torch.tensor(float(len(terminated)), device=place)])
        if world_size > 1:
            dist.all_reduce(told)  # all ranks must stop at the same iteration, or some would wait for the others
        is_stopping = told[1].item() > 0
        if rank == 0 and iter_num % log_interval == 0:
            loss, passed_ms = told[0].item() / world_size, (time.perf_counter() - began) * 1000
            print(f"iter {iter_num}: loss {loss:.4f}, norm {norm:.4f}, time {passed_ms:.2f}ms", flush=True)
    return 128 + signal.SIGTERM if is_stopping else 0


if __name__ == "__main__":
    configure(sys.argv[1:])
    code = main()
    if dist.is_initialized():
        dist.destroy_process_group()  # at the end, when no model needs it
        sys.stdout.flush()
        os._exit(code)  # threads of gloo may outlive Python's own end, and would then abort the process
    sys.exit(code)
