"""Train with Lightning and sweep's callback. docs/custom-trainer.md runs it."""

import lightning
import torch

from orchestrator.callbacks.lightning import StabilityCallback


class Line(lightning.LightningModule):
    """A linear layer that learns the sum of its inputs."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        """Loss of a batch."""
        return ((self.layer(batch) - batch.sum(1, keepdim=True)) ** 2).mean()

    def configure_optimizers(self):
        """Its learning rate is too high."""
        return torch.optim.SGD(self.parameters(), lr=5.0)


data = torch.utils.data.DataLoader(torch.randn(800, 4), batch_size=8)
callback = StabilityCallback()
settings = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], **settings).fit(Line(), data)
print(callback.watch.verdict().outcome, "after", callback.watch.record().num_steps, "steps")
