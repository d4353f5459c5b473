"""Train a small GPT on bytes, in the style of nanoGPT. docs/from-trainer-to-map.md sweeps it."""

import random
import sys
import time
from pathlib import Path

import torch
from torch import nn

out_dir, init_from = "out", "scratch"  # each of these is a setting: --name=value
n_layer, n_head, n_embd, block_size, batch_size = 2, 2, 32, 32, 8
learning_rate, beta2, weight_decay, grad_clip = 1e-3, 0.95, 0.1, 1.0
max_iters, warmup_iters, eval_interval, log_interval, seed = 200, 10, 50, 1, 1337
for argument in sys.argv[1:]:
    name, value = argument.removeprefix("--").split("=", 1)
    globals()[name] = type(globals()[name])(value)

torch.manual_seed(seed)
text = torch.tensor(list(Path(random.__file__).read_bytes()))
train_data, val_data = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]


class GPT(nn.Module):
    """A transformer over bytes; its output is the loss."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, n_embd), nn.Embedding(block_size, n_embd)
        block = {"dim_feedforward": 4 * n_embd, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(n_embd, n_head, **block) for _ in range(n_layer))
        self.head = nn.Sequential(nn.LayerNorm(n_embd), nn.Linear(n_embd, 256))
        self.mask = nn.Transformer.generate_square_subsequent_mask(block_size)

    def forward(self, x, y):
        """Mean cross-entropy of the next bytes."""
        h = self.wte(x) + self.wpe.weight
        for block in self.blocks:
            h = block(h, src_mask=self.mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


def get_batch(data):
    """Draw texts and the byte after each of their bytes."""
    starts = torch.randint(len(data) - block_size, (batch_size,))
    xy = data[starts[:, None] + torch.arange(block_size + 1)]
    return xy[:, :-1], xy[:, 1:]


model, iter_num, checkpoint = GPT(), 0, Path(out_dir, "ckpt.pt")
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, beta2), weight_decay=weight_decay)
if init_from == "resume":
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    iter_num = saved["iter_num"]
while True:
    began = time.time()
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * min(1, (iter_num + 1) / (warmup_iters + 1))
    if iter_num % eval_interval == 0:
        with torch.no_grad():
            losses = [sum(model(*get_batch(data)).item() for _ in range(4)) / 4 for data in (train_data, val_data)]
        print(f"step {iter_num}: train loss {losses[0]:.4f}, val loss {losses[1]:.4f}")
        checkpoint.parent.mkdir(exist_ok=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}, checkpoint)
    loss = model(*get_batch(train_data))
    loss.backward()
    if grad_clip:
        nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad()
    if iter_num % log_interval == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}, time {(time.time() - began) * 1000:.2f}ms, mfu -100.00%")
    iter_num += 1
    if iter_num > max_iters:
        break
