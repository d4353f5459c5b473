"""A custom objective on text, to copy: a small network that predicts a byte from the three before it.

It has the texts, dirt, duplicates, filters, domains and curricula of `gpt`, since its configuration has FeedFields.
"""

import torch
import torch.nn.functional as F

from objectives.base import Objective, structural
from objectives.models.facts.feed import DATA_FIELDS, FeedFields
from objectives.models.text_trainer import TextTrainer, batch_text

__all__ = ["OBJECTIVE", "batch_text", "start"]

# Shapes of one member: B sequences, T bytes of context, 3 bytes before each, W channels.


class NextByteConfig(FeedFields):  # already has text, noise_share, domains, curriculum and more
    """A network that predicts a byte from the three before it."""

    width: int = structural(16, "channels", "channels of an embedding", ge=4, le=1024, multiple_of=4)


class NextByteTrainer(TextTrainer[NextByteConfig]):
    """Embeddings of three bytes, a hidden layer, and a head (Bengio et al. 2003)."""

    groups = {"embedding": "embedding", "hidden": "hidden", "head": "head"}

    def initial_weights(self, seed: int) -> dict[str, torch.Tensor]:
        """Weights of one member, a function of its seed."""
        W, generator = self.structure.width, torch.Generator().manual_seed(seed)
        return {
            "embedding": torch.randn(256, W, generator=generator),
            "hidden": torch.randn(3 * W, 4 * W, generator=generator) / (3 * W) ** 0.5,
            "head": torch.randn(4 * W, 256, generator=generator) / (4 * W) ** 0.5,
        }

    def byte_losses(self, weights: dict[str, torch.Tensor], tokens_BS: torch.Tensor) -> torch.Tensor:
        """Loss of each byte but the first of one member's sequences, (B, T)."""
        before_BT3 = F.pad(tokens_BS[:, :-1], (2, 0)).unfold(1, 3, 1)
        hidden_BTW = torch.tanh(F.embedding(before_BT3, weights["embedding"]).flatten(2) @ weights["hidden"])
        log_p_BT256 = F.log_softmax(hidden_BTW @ weights["head"], dim=2)
        return -log_p_BT256.gather(2, tokens_BS[:, 1:, None])[..., 0]


start = NextByteTrainer
OBJECTIVE = Objective(
    "next_byte",
    NextByteConfig,
    "next_byte",
    spike_rise=0.1,
    can_compile=False,
    data_fields=DATA_FIELDS,
    # `keep` needs it, to refuse what does not fit on the disk.
    num_weights=lambda config: 1280 * config.width + 12 * config.width**2,
)
