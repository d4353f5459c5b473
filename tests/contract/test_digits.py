"""The example of an objective of one's own keeps the promises of those that ship."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from objectives.base import Way
from objectives.conformance import ObjectiveConformance

# An objective is found by the name of its module; a sweep puts its folder on the path too.
sys.path.append(str(Path(__file__).parents[2] / "sweeps" / "trainers"))
from digits import OBJECTIVE, DigitsConfig


class TestDigits(ObjectiveConformance):
    objective = OBJECTIVE
    small = {"channels": 4, "batch_size": 4}


def test_each_member_is_an_ordinary_convolutional_network() -> None:
    trainer = OBJECTIVE.start([DigitsConfig(steps=5, channels=4)] * 2, [0, 1], "cpu", Way(2))
    trainer.step()
    images, labels = trainer.images[1437:], trainer.labels[1437:]
    for k, found in enumerate(trainer.validate([0, 1])):
        filters, offsets, head = (trainer.weights[name][k].detach() for name in ("filters", "offsets", "head"))
        maps = F.leaky_relu(F.conv2d(images, filters.T.reshape(4, 1, 3, 3), offsets), 0.1)
        torch.testing.assert_close(found, F.cross_entropy(F.avg_pool2d(maps, 2).flatten(1) @ head, labels))
