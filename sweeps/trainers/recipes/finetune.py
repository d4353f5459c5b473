"""Fine-tune a small GPT-2 by Hugging Face's Trainer. docs/from-trainer-to-map.md sweeps it."""

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class ModelArguments:
    """The size of the model."""

    n_layer: int = 2
    n_embd: int = 32


model_args, training_args = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
torch.manual_seed(training_args.seed)
text = torch.tensor(list(Path(random.__file__).read_bytes()))
blocks = [{"input_ids": block, "labels": block} for block in text[: len(text) // 32 * 32].view(-1, 32)]
config = GPT2Config(
    vocab_size=256,
    n_positions=32,
    n_embd=model_args.n_embd,
    n_layer=model_args.n_layer,
    n_head=2,
    bos_token_id=0,
    eos_token_id=0,
)
trainer = Trainer(GPT2LMHeadModel(config), training_args, train_dataset=blocks[:-64], eval_dataset=blocks[-64:])
trainer.train()
