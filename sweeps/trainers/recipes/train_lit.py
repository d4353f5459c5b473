"""Train with Lightning, which logs to a CSV file. docs/from-trainer-to-map.md sweeps it."""

import argparse
import random
from pathlib import Path

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--max_steps", type=int, default=200)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", default="out")
arguments = parser.parse_args()


class NextByte(lightning.LightningModule):
    """Predict a byte from the eight before it."""

    def __init__(self):
        super().__init__()
        layers = [nn.Embedding(256, 16), nn.Flatten(), nn.Linear(8 * 16, 64), nn.ReLU(), nn.Linear(64, 256)]
        self.net = nn.Sequential(*layers)

    def training_step(self, batch, index):
        """Log the training loss, and return it."""
        loss = nn.functional.cross_entropy(self.net(batch[0][:, :8]), batch[0][:, 8])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        """Log the validation loss."""
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0][:, :8]), batch[0][:, 8]))

    def configure_optimizers(self):
        """Return AdamW at the trial's learning rate."""
        return torch.optim.AdamW(self.parameters(), lr=arguments.lr)


lightning.seed_everything(arguments.seed)
rows = torch.tensor(list(Path(random.__file__).read_bytes())).unfold(0, 9, 1)
training, validation = (torch.utils.data.TensorDataset(part) for part in (rows[:-1000], rows[-1000:]))
trainer = lightning.Trainer(
    max_steps=arguments.max_steps,
    val_check_interval=50,
    log_every_n_steps=1,
    accelerator="cpu",
    logger=CSVLogger(arguments.out, flush_logs_every_n_steps=1),
)
loader = torch.utils.data.DataLoader(training, 32, shuffle=True)
trainer.fit(NextByte(), loader, torch.utils.data.DataLoader(validation, 500))
