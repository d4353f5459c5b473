"""A custom objective, to copy: a small convolutional network on scikit-learn's handwritten digits.

K members train as one pack. This file says what one member is; PackedTrainer does the rest: optimizer,
schedule, clipping, members that come and go, checkpoints. docs/custom-trainer.md checks it.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from objectives.base import ExecutionPlan, Objective, TrainingConfig, per_member, structural
from objectives.training.packed import PackedTrainer, Weights

# Shapes: K members, N images of 8 x 8, B of them in a batch, C channels, P = 6 x 6 windows in an image.

DIGITS = load_digits()
NUM_TRAINING = 1437  # of 1797; the others, by other writers, are held out


class DigitsConfig(TrainingConfig):  # already has steps, lr, warmup, beta1, beta2, clip and more
    """A small convolutional network on scikit-learn's handwritten digits."""

    # A product's last bits depend on the memory alignment of a member's matrix: use whole blocks of 16 bytes.
    batch_size: int = structural(32, "images", "images per step", ge=2, le=NUM_TRAINING, multiple_of=2)
    channels: int = structural(16, "channels", "filters of the convolution", ge=4, le=1024, multiple_of=4)
    # Members of a pack may differ in it, since it changes no shape.
    smoothing: float = per_member(
        0.0, "", "share of each label that is spread over all digits", off=True, ge=0.0, lt=1.0
    )


class DigitsTrainer(PackedTrainer):
    """A convolution of 3 x 3, average pooling of 2 x 2 and a linear layer."""

    def __init__(self, configs: list[DigitsConfig], seeds: list[int], device: str, plan: ExecutionPlan) -> None:
        super().__init__(configs, seeds, device, plan)
        self.images = torch.tensor(DIGITS.images / 16, dtype=torch.float32, device=self.device)[:, None]
        self.labels = torch.tensor(DIGITS.target, device=self.device)

    def initial_weights(self, seed: int) -> Weights:
        """Weights of one member, a function of its seed."""
        C, generator = self.structure.channels, torch.Generator().manual_seed(seed)
        return {
            "filters": torch.randn(9, C, generator=generator) / 3,
            "offsets": torch.zeros(C),
            "head": torch.randn(9 * C, 10, generator=generator) / (9 * C) ** 0.5,
        }

    def losses(self) -> torch.Tensor:
        """Loss of each member on its own batch, (K,)."""
        # `draw` passes each member's own generator; the global one of torch would mix the members.
        size = (self.structure.batch_size,)
        index_KB = self.draw(lambda generator: torch.randint(NUM_TRAINING, size, generator=generator))
        # `field` has the value of each member that is in the pack now; members come and go.
        return self.of_each_member(cross_entropy, self.images[index_KB], self.labels[index_KB], self.field("smoothing"))

    @torch.no_grad()
    def validate(self, rows: list[int]) -> torch.Tensor:
        """Loss on the held-out images of the members in ``rows``."""
        index_KN = torch.arange(NUM_TRAINING, len(self.images)).expand(self.num_members, -1)
        plain_K = torch.zeros(self.num_members)
        return self.of_each_member(cross_entropy, self.images[index_KN], self.labels[index_KN], plain_K)[list(rows)]


def cross_entropy(
    weights: Weights, images: torch.Tensor, labels: torch.Tensor, smoothing: torch.Tensor
) -> torch.Tensor:
    """Loss of one member, written as for a single model; `of_each_member` turns it into one stacked model."""
    # conv2d would work too, but its rounding depends on the size of the pack; that of a product does not.
    windows_BP9 = F.unfold(images, kernel_size=3).mT
    # Leaky, since a dead network would count as stalled where this one diverges.
    maps_BPC = F.leaky_relu(windows_BP9 @ weights["filters"] + weights["offsets"], 0.1)
    pooled_BC33 = F.avg_pool2d(maps_BPC.mT.unflatten(2, (6, 6)), kernel_size=2)
    log_p_BD = F.log_softmax(pooled_BC33.flatten(1) @ weights["head"], dim=1)
    hit_B = log_p_BD.gather(1, labels[:, None])[:, 0]
    return -((1 - smoothing) * hit_B + smoothing * log_p_BD.mean(1)).mean()


start = DigitsTrainer  # called with the members' configurations and seeds, the device and the execution plan
OBJECTIVE = Objective("digits", DigitsConfig, "digits", spike_rise=0.1, can_compile=False)
