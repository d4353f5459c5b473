"""Rules of control and what they did, in words for maps, tables and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from objectives.control import BY_GAIN, NO_RULES, QUANTILE, fields_of
from objectives.entries import change_in_words, length_in_words


def policy_in_words(rules: Sequence[Mapping[str, Any]], *, wants_details: bool = True) -> str:
    """Return a short text for a policy as plain data, e.g. ``curvature > 1: lr x0.5``; ``none`` without rules."""
    return " + ".join(_rule_in_words(rule, wants_details) for rule in rules) or NO_RULES


def _rule_in_words(rule: Mapping[str, Any], wants_details: bool) -> str:
    if rule.get("name"):
        return str(rule["name"])
    changes = rule["do"] if isinstance(rule["do"], list | tuple) else [rule["do"]]
    text = f"{rule['on']} > {rule['above']:g}: {', then '.join(map(_change_in_words, changes))}"
    if not wants_details:
        return text
    details = [length_in_words(rule).strip()]
    details += [f"{rule['readings']} readings"] if rule.get("readings", 1) > 1 else []
    details += [f"every {rule['every']}"] if "every" in rule else []
    details += [f"after {rule['after']}"] if rule.get("after") else []
    details += [f"{rule['at_most']} times"] if rule.get("at_most", 1) > 1 else []
    details += [f"cool down {rule['cool_down']}"] if rule.get("cool_down") else []
    details += [f"calm {rule['calm']}"] if rule.get("calm") else []
    return ", ".join([text, *filter(None, details)])


def _change_in_words(change: Mapping[str, Any]) -> str:
    words = change_in_words({**change, "set": fields_of(change)})
    quantile = f"clip to quantile {change[QUANTILE]:g}" if QUANTILE in change else ""
    return " + ".join(filter(None, [words, quantile, "lr by gain" if BY_GAIN in change else ""]))


def firing_in_words(fired: Mapping[str, Any]) -> str:
    """Return what a rule did, when and why: ``lr x0.5 at 106 (curvature 1.3 > 1 at step 105)``."""
    did = fired["did"]
    why = f"{fired['on']} {fired['value']:.3g} > {fired['above']:g} at step {fired['step']}"
    return f"{change_in_words(did)} at {did['at']}{length_in_words(did)} ({why})"
