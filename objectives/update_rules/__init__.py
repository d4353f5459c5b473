"""Update rules: how a gradient becomes a step, one optimizer a file, each for K members at once."""

from __future__ import annotations

from collections.abc import Mapping

from objectives.update_rules.adabelief import AdaBelief
from objectives.update_rules.adafactor import Adafactor
from objectives.update_rules.adam8bit import Adam8bit
from objectives.update_rules.adamw import AdamW
from objectives.update_rules.lion import Lion
from objectives.update_rules.radam import RAdam
from objectives.update_rules.rule import UpdateRule
from objectives.update_rules.sgd import Sgd
from objectives.update_rules.sophia import Sophia
from objectives.update_rules.spam import Spam
from objectives.update_rules.stableadamw import StableAdamW

RULES: Mapping[str, type[UpdateRule]] = {
    "adamw": AdamW,
    "sgd": Sgd,
    "radam": RAdam,
    "adabelief": AdaBelief,
    "adafactor": Adafactor,
    "lion": Lion,
    "stableadamw": StableAdamW,
    "spam": Spam,
    "sophia": Sophia,
    "adam8bit": Adam8bit,
}
