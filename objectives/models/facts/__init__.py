"""The table of objectives and the facts about them, free of torch; one objective per file.

A new objective is a file here with its fields and facts, a file in ``models`` with its training, and a line in the
table.
"""

from __future__ import annotations

from objectives.models.facts.function_fit import FUNCTION_FIT
from objectives.models.facts.gpt import GPT
from objectives.models.facts.quadratic import QUADRATIC
from objectives.models.facts.router import ROUTER
from objectives.protocol import Objective

OBJECTIVES: dict[str, Objective] = {objective.name: objective for objective in (GPT, FUNCTION_FIT, QUADRATIC, ROUTER)}
