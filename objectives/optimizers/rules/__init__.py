"""Update rules: how a gradient becomes a step, one optimizer per file, each for K members at once."""

from __future__ import annotations

import importlib

from objectives.optimizers.facts import OPTIMIZERS
from objectives.optimizers.rules.rule import UpdateRule


def rule_of(optimizer: str, *, native: bool = False) -> type[UpdateRule]:
    """Return the update rule of an optimizer in the table; its C++ twin if ``native`` and it has one."""
    facts = OPTIMIZERS[optimizer]
    module, _, name = ((native and facts.native_rule) or facts.rule).partition(":")
    rule: type[UpdateRule] = getattr(importlib.import_module(module), name)
    return rule
