"""Update rules: how a gradient becomes a step, one optimizer a file, each for K members at once."""

from __future__ import annotations

from collections.abc import Mapping

from objectives.optimizers.rules.adabelief import AdaBelief
from objectives.optimizers.rules.adafactor import Adafactor
from objectives.optimizers.rules.adam8bit import Adam8bit
from objectives.optimizers.rules.adamw import AdamW
from objectives.optimizers.rules.lion import Lion
from objectives.optimizers.rules.radam import RAdam
from objectives.optimizers.rules.rule import UpdateRule
from objectives.optimizers.rules.sgd import Sgd
from objectives.optimizers.rules.sophia import Sophia
from objectives.optimizers.rules.spam import Spam
from objectives.optimizers.rules.stableadamw import StableAdamW

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
