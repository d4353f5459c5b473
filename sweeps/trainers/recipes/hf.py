"""Train with the Hugging Face trainer and sweep's callback. docs/custom-trainer.md runs it."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from orchestrator.callbacks.transformers import StabilityCallback

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=16, n_positions=16, vocab_size=64))
text = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (64, 16))]
callback = StabilityCallback()
quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True}
settings = TrainingArguments(tempfile.mkdtemp(), max_steps=60, learning_rate=30.0, max_grad_norm=1e9, **quiet)
Trainer(model, settings, train_dataset=text, callbacks=[callback]).train()
print(callback.watch.verdict().outcome, "after", callback.watch.record().num_steps, "steps")
