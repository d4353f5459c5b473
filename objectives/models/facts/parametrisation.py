"""How initial weights, learning rate, eps and decay follow from width and depth: standard, muP and CompleteP.

Let m be width / base_width and l be depth / base_depth. Factors on each kind of weight, for AdamW with decoupled decay
(Yang et al., arXiv 2203.03466; Dey et al., arXiv 2505.01618, table 1 with alpha = 1):

    mup, completep     init deviation   learning rate   eps        weight decay
    matrices           m^-1/2           1 / m           1 / (m l)  m
    their offsets, norms in blocks      1               1 / (m l)  1
    embeddings, final norm, head        1               1 / m      1

with l = 1 for mup. Attention logits are divided by the channels of a head rather than by their root, output logits by
m, and in completep what each sublayer adds by l; its output matrices start as at the base depth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Parametrisation = Literal["standard", "mup", "completep"]


@dataclass(frozen=True, slots=True)
class SizeFactors:
    """The factors of a model that is ``width`` and ``depth`` times as large as its base; 1 for the standard rule."""

    width: float = 1.0
    depth: float = 1.0

    def of_weight(self, purpose: str, name: str) -> float:
        """Return the factor on ``init``, ``lr``, ``eps`` or ``decay`` of the weight ``name``."""
        is_in_block = name[0].isdigit()
        if purpose == "eps":
            return 1 / (self.width * (self.depth if is_in_block else 1))
        if not is_in_block or name.endswith(("_bias", "norm")):
            return 1.0
        if purpose == "init":
            # The standard rule divides output matrices by the root of the depth.
            return math.sqrt((self.depth if name.endswith("_out") else 1) / self.width)
        return {"lr": 1 / self.width, "decay": self.width}.get(purpose, 1.0)
