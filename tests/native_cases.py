"""Structures and packs by which the C++ kernels of the transformer are checked."""

import itertools

import torch
from gpt_cases import DENSE, KNOBS, LLAMA, SEEDS
from pack_cases import trainer_of

from objectives.base import ExecutionPlan, GptConfig
from objectives.models.gpt import GptTrainer

# None fills whole vectors, rows of a tile or chunks of sequences.
ODD = {"steps": 10, "width": 20, "heads": 2, "context": 24, "batch_size": 7, "depth": 2}
EVEN = {"steps": 10, "width": 32, "heads": 2, "context": 64, "batch_size": 4, "depth": 1}
STRUCTURES = [
    {"norm": norm, "norm_place": place, "qk_norm": qk_norm}
    for norm, place, qk_norm in itertools.product(["layer", "rms"], ["pre", "post", "output"], [False, True])
]
STRUCTURES += [{"norm": None, "qk_norm": False}, {"norm": None, "qk_norm": True}]
STRUCTURES += [model for model in DENSE if GptConfig(**ODD | model).has_native_kernels]
STRUCTURES += [LLAMA | {"tie_embeddings": True, "qk_norm": True, "norm_place": "output", "embedding_scale": 2.0}]

# A sum over its positions is longer than a block of terms.
LONG = {"steps": 10, "width": 8, "heads": 2, "context": 300, "batch_size": 2, "depth": 1}


def pack_of(text, shape: dict, plan: ExecutionPlan | None = None, **fields) -> GptTrainer:
    """Members with every knob, with weights as after some training."""
    configs = [GptConfig(text=text, **(shape | fields | knobs)) for knobs in KNOBS]
    trainer = trainer_of("gpt", configs, SEEDS, plan)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        trainer._params_Kn += 0.2 * torch.randn(trainer._params_Kn.shape, generator=generator)
    return trainer
