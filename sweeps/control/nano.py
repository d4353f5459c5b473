"""A small GPT in the manner of nanoGPT, written anew in plain torch, without norms, in a loop that follows rules.

    python nano.py --lr=0.04
    sweep run sweeps/control/loop.yaml

Alone it has the rules below, in a sweep those of the sweep's `control`.
"""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn

from orchestrator import Watch

# Shapes: B sequences, T positions, D width, H heads, C channels of a head.

LAYERS, HEADS, WIDTH, CONTEXT, BATCH, VOCABULARY, WARMUP = 2, 4, 64, 48, 12, 256, 20
ESCALATION = {"on": "grad_norm", "above": 2, "every": 1, "at_most": 8, "cool_down": 5, "calm": 60}
RULES = [{**ESCALATION, "do": [{"skip": 1}, {"lr": "x0.5"}, {"back": 20, "lr": "x0.5"}]}]


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Return the residual stream after this block."""
        parts = self.qkv(x_BTD).split(WIDTH, dim=2)
        query, key, value = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed_BHTC = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x_BTD = x_BTD + self.out(mixed_BHTC.transpose(1, 2).flatten(2))
        return x_BTD + self.mlp(x_BTD)


class GPT(nn.Module):
    """A transformer whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def forward(self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of the targets."""
        x_BTD = self.tokens(tokens_BT) + self.positions.weight
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return F.cross_entropy((x_BTD @ self.tokens.weight.T).flatten(0, 1), targets_BT.flatten())


def main() -> None:
    """Train, and print how it went."""
    parser = argparse.ArgumentParser(description="train a small GPT with rules")
    parser.add_argument("--lr", type=float, default=0.04)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with open(argparse.__file__, "rb") as file:  # a text that every Python has
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    torch.manual_seed(options.seed)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.999), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARMUP))
    watch = Watch(control=RULES)
    watch.keep(model, optimizer, scheduler)
    for step in range(options.steps):
        start_B = torch.randint(len(text) - CONTEXT - 1, (BATCH,))
        data_BS = text[start_B[:, None] + torch.arange(CONTEXT + 1)]
        loss = model(data_BS[:, :-1], data_BS[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), math.inf)
        action = watch.report(step, loss, norm)
        if action:
            break
        watch.apply(optimizer, action)
        optimizer.step()
        scheduler.step()
    print(f"{watch.verdict().outcome} after {watch.record().num_steps} steps, loss {watch.record().recent_loss:.3f}")


if __name__ == "__main__":
    main()
