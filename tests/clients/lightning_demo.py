"""As a demo of Lightning: a module that logs to the progress bar, and a Trainer with its own loggers and intervals.

Without a terminal the bar prints hardly a loss. The CSV logger writes a row every `log_every_n_steps`, 50 by default.
"""

import argparse

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from toy import Text

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=20.0)
parser.add_argument("--max_steps", type=int, default=200)
parser.add_argument("--default_root_dir", default=".")
parser.add_argument("--log_every_n_steps", type=int, default=50)
parser.add_argument("--gradient_clip_val", type=float, default=0.25)
args = parser.parse_args()


class LanguageModel(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Embedding(16, 16), nn.Linear(16, 16), nn.Linear(16, 16))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.cross_entropy(self.model(batch[0]), batch[1]), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=args.lr)


lightning.seed_everything(42)
letters = torch.tensor(Text(2400).letters)
pairs = torch.utils.data.TensorDataset(letters[:-1], letters[1:])
training, validation = torch.utils.data.random_split(pairs, [2000, 400])
trainer = lightning.Trainer(
    max_steps=args.max_steps,
    accelerator="cpu",
    gradient_clip_val=args.gradient_clip_val,
    log_every_n_steps=args.log_every_n_steps,
    default_root_dir=args.default_root_dir,
    logger=CSVLogger(args.default_root_dir),
)
loader = torch.utils.data.DataLoader(training, batch_size=20, shuffle=True)
trainer.fit(LanguageModel(), loader, torch.utils.data.DataLoader(validation, batch_size=400))
