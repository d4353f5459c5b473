"""What a custom objective imports, and the table of the built-in objectives; free of torch."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace

from objectives.fields import per_member, structural
from objectives.held import data_seed
from objectives.models.facts import OBJECTIVES
from objectives.models.facts.function_fit import FunctionFitConfig
from objectives.models.facts.gpt import GptConfig
from objectives.models.facts.quadratic import QuadraticConfig
from objectives.models.facts.router import RouterConfig
from objectives.protocol import ExecutionPlan, Kernels, Objective, RankLost, Rounding, RowSpec, Trainer, data_step
from objectives.training_config import TrainingConfig

__all__ = [
    "OBJECTIVES",
    "ExecutionPlan",
    "FunctionFitConfig",
    "GptConfig",
    "Kernels",
    "Objective",
    "QuadraticConfig",
    "RankLost",
    "Rounding",
    "RouterConfig",
    "RowSpec",
    "Trainer",
    "TrainingConfig",
    "data_seed",
    "data_step",
    "load_objective",
    "per_member",
    "structural",
]


def load_objective(reference: str, folder: str = "") -> Objective:
    """Return the built-in objective with this name, or the custom one at ``module:name`` in ``folder``.

    Importing the module runs its code, and raises whatever that code raises. Raises TypeError for anything but an
    objective.
    """
    if ":" not in reference:
        return OBJECTIVES[reference]
    module_name, _, name = reference.partition(":")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    objective = getattr(importlib.import_module(module_name), name)
    if not isinstance(objective, Objective):
        raise TypeError(f"{name} is {type(objective).__name__}, not an Objective")
    return replace(objective, reference=reference, folder=folder)
