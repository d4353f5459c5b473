"""As `run_clm` of Transformers: the Trainer with its own flags and its defaults, such as a progress bar.

A dictionary every `--logging_steps`, 500 by default; the mean of losses leaves out NaN. As several
processes (torchrun) only the first one logs.
"""

from dataclasses import dataclass

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments, set_seed


@dataclass
class DataArguments:
    block_size: int = 16
    num_blocks: int = 256


data, training = HfArgumentParser((DataArguments, TrainingArguments)).parse_args_into_dataclasses()
set_seed(training.seed)
draw = torch.Generator().manual_seed(0)
table = torch.rand(32, 32, generator=draw).pow(8)
letters = [0]
for _ in range(data.num_blocks * data.block_size):
    letters.append(int(torch.multinomial(table[letters[-1]], 1, generator=draw)))
blocks = torch.tensor(letters[1:]).view(-1, data.block_size)
config = GPT2Config(
    vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0, use_cache=False
)
trainer = Trainer(GPT2LMHeadModel(config), training, train_dataset=[{"input_ids": b, "labels": b} for b in blocks])
if training.do_train:
    metrics = trainer.train().metrics
    trainer.log_metrics("train", metrics)
