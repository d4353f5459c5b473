"""The names of ``search: {method: ...}``."""

from __future__ import annotations

from orchestrator.search.by_optuna import GENERATIONS, SAMPLERS, SPREADS

EDGE = "edge"
SEARCHES = (EDGE, *SAMPLERS, *GENERATIONS, *SPREADS)
