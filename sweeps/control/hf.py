"""A tiny GPT-2 in Hugging Face's Trainer, whose updates follow the rules of the sweep that runs the script.

sweep run sweeps/control/hf.yaml
"""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from orchestrator.callbacks.transformers import StabilityCallback

parser = argparse.ArgumentParser(description="train a tiny GPT-2")
parser.add_argument("--lr", type=float, default=0.3)
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()
with open(argparse.__file__, "rb") as file:  # a text that every Python has
    text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
rows = [{"input_ids": row, "labels": row} for row in text[: len(text) // 48 * 48].view(-1, 48)]
torch.manual_seed(options.seed)
drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
size = {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 48, "vocab_size": 256}
model = GPT2LMHeadModel(GPT2Config(**size, **drop, bos_token_id=0, eos_token_id=0))
settings = TrainingArguments(
    tempfile.mkdtemp(), max_steps=options.steps, learning_rate=options.lr, seed=options.seed, max_grad_norm=1e9,
    lr_scheduler_type="constant_with_warmup", warmup_steps=60, per_device_train_batch_size=12, save_strategy="no",
    report_to=[], use_cpu=True, disable_tqdm=True,
)  # fmt: skip
Trainer(model, settings, train_dataset=rows, callbacks=[StabilityCallback()]).train()
