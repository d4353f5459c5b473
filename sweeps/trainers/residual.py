"""A residual network on a toy task, with readings by layer, by depth and of its logits."""

import torch
import torch.nn.functional as F

from objectives.base import Objective, TrainingConfig, per_member, structural
from objectives.training.packed import PackedTrainer, Weights

# Shapes: K members, B points of 8 numbers in a batch, W channels, 4 classes.


class ResidualConfig(TrainingConfig):
    """A residual network that tells which of four numbers is the largest."""

    batch_size: int = structural(32, "points", "points per step", ge=2, le=4096, multiple_of=2)
    depth: int = structural(6, "blocks", "residual blocks", ge=2, le=64)
    width: int = structural(16, "channels", "channels of the residual stream", ge=4, le=1024, multiple_of=4)
    head_lr: float = per_member(1.0, "of lr", "learning rate of the layer group head", off=True, ge=0)


class ResidualTrainer(PackedTrainer):
    """A linear layer, residual blocks and a linear layer."""

    # Layer groups, by the beginning of a weight's name.
    groups = {"in": "input", "block": "blocks", "out": "head"}

    @property
    def blocks(self) -> list[str]:
        """The beginnings of the names of each block's weights, from the input to the output."""
        return [f"block{i}." for i in range(self.structure.depth)]

    def initial_weights(self, seed: int) -> Weights:
        """Weights of one member, a function of its seed."""
        W, generator = self.structure.width, torch.Generator().manual_seed(seed)
        blocks = {f"{block}weight": torch.randn(W, W, generator=generator) / W for block in self.blocks}
        ends = [torch.randn(*size, generator=generator) / size[0] ** 0.5 for size in ((8, W), (W, 4))]
        return {"in": ends[0], **blocks, "out": ends[1]}

    def batch(self) -> torch.Tensor:
        """The points of this step, (K, B, 8): the same at each call within a step."""
        return self.draw(lambda generator: torch.randn(self.structure.batch_size, 8, generator=generator))

    def losses(self) -> torch.Tensor:
        """Loss of each member on its own batch, (K,)."""
        return self.of_each_member(cross_entropy, self.batch())

    @torch.no_grad()
    def own_readings(self, rows: slice | torch.Tensor) -> dict[str, torch.Tensor]:
        """Mean size of log Z of the members in ``rows`` before a step."""
        return {"log_z": self.of_each_member(logits, self.batch()).logsumexp(2).abs().mean(1)[rows]}

    @torch.no_grad()
    def validate(self, rows: list[int]) -> torch.Tensor:
        """Loss on points that no member trains on."""
        held_out = torch.randn(256, 8, generator=torch.Generator().manual_seed(-1))
        return self.of_each_member(cross_entropy, held_out.expand(self.num_members, -1, -1))[list(rows)]


def logits(weights: Weights, points: torch.Tensor) -> torch.Tensor:
    """Logits of one member, (B, 4)."""
    stream_BW = points @ weights["in"]
    for name in weights:
        if name.startswith("block"):
            stream_BW = stream_BW + torch.tanh(stream_BW @ weights[name])
    return stream_BW @ weights["out"]


def cross_entropy(weights: Weights, points: torch.Tensor) -> torch.Tensor:
    """Loss of one member."""
    return F.cross_entropy(logits(weights, points), points[:, :4].argmax(1))


start = ResidualTrainer
OBJECTIVE = Objective("residual", ResidualConfig, "residual", spike_rise=0.1, can_compile=False, has_logits=True)
