"""Update rules: how a gradient becomes a step, one optimizer a file, each for K members at once."""

from __future__ import annotations

from collections.abc import Mapping

from objectives.update_rules.adamw import AdamW
from objectives.update_rules.rule import UpdateRule
from objectives.update_rules.sgd import Sgd

RULES: Mapping[str, type[UpdateRule]] = {"adamw": AdamW, "sgd": Sgd}
