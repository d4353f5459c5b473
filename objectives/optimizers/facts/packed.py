"""The optimizers that train whole packs, one after the other: their own fields, and their facts."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from objectives.fields import Settings, per_member, structural, unless, when
from objectives.optimizers.facts.optimizer import Optimizer, always, never

_RULES = "objectives.optimizers.rules"

# Loshchilov & Hutter, arXiv 1711.05101.
ADAMW = Optimizer(
    "adamw",
    f"{_RULES}.adamw:AdamW",
    native_rule="objectives.optimizers.rules.native_adamw:NativeAdamW",
    can_start_second_moment=True,
    can_keep_v=True,
    divides_by_root=always,
    averages_squares=always,
    v_follows_from_norms=True,
)

# With momentum, as an average of the gradients.
SGD = Optimizer("sgd", f"{_RULES}.sgd:Sgd", reads=("beta1",), second_moments=(), has_v=False, divides_by_root=never)


class RAdamFields(BaseModel):
    """The length of the average beyond which RAdam (Liu et al., arXiv 1908.03265) divides by its root."""

    radam_threshold: float = per_member(
        5.0,
        "steps",
        "RAdam: length of the second moment's average beyond which its root divides the step; 4 in the paper",
        acts=when("optimizer", "radam"),
        ge=4,
    )


def _divides_in_the_end(settings: Settings) -> bool | None:
    """Return False if the average always stays too short for the division."""
    beta2, threshold = settings.get("beta2"), settings.get("radam_threshold")
    return None if beta2 is None or threshold is None else 2 / (1 - beta2) - 1 > threshold


RADAM = Optimizer(
    "radam",
    f"{_RULES}.radam:RAdam",
    RAdamFields,
    can_start_second_moment=True,
    divides_by_root=always,
    averages_squares=_divides_in_the_end,
    examples={"radam_threshold": (4.0, 5.0, 50.0)},
)


class AdaBeliefFields(BaseModel):
    """The own epsilon of AdaBelief (Zhuang et al., arXiv 2010.07468), which is added twice."""

    adabelief_eps: float = per_member(
        1e-16, "1", "AdaBelief: added to the second moment and to its root", acts=when("optimizer", "adabelief"), gt=0
    )


ADABELIEF = Optimizer(
    "adabelief",
    f"{_RULES}.adabelief:AdaBelief",
    AdaBeliefFields,
    reads=("beta1", "beta2"),
    can_start_second_moment=True,
    examples={"adabelief_eps": (1e-16, 1e-8, 1e-3)},
)

_ADAFACTOR = when("optimizer", "adafactor")


class AdafactorFields(BaseModel):
    """Decay, clipping and lower bounds of the step of Adafactor (Shazeer & Stern, arXiv 1804.04235)."""

    adafactor_decay: float = per_member(
        0.8, "1", "Adafactor: exponent c of the second moment's decay 1 - t^-c", acts=_ADAFACTOR, ge=0
    )
    adafactor_clip: float | None = per_member(
        1.0,
        "1",
        "Adafactor: largest root mean square of a weight's update; null for no clipping",
        acts=_ADAFACTOR,
        gt=0,
    )
    adafactor_eps: float = per_member(
        1e-15, "gradient", "Adafactor: smallest root of the second moment", acts=_ADAFACTOR, gt=0
    )
    adafactor_smallest: float = per_member(
        1e-3,
        "1",
        "Adafactor: lower bound of the root mean square of a weight, which multiplies lr",
        acts=_ADAFACTOR,
        ge=0,
    )


ADAFACTOR = Optimizer(
    "adafactor",
    f"{_RULES}.adafactor:Adafactor",
    AdafactorFields,
    reads=(),
    keeps_columns=False,
    first_moments=(),
    second_moments=("row_moment", "column_moment", "entry_moment"),
    examples={
        "adafactor_decay": (0.0, 0.8, 1.5),
        "adafactor_clip": (None, 1.0, 1e-2),
        "adafactor_eps": (1e-15, 1e-1, 1e1),
        "adafactor_smallest": (1e-3, 1e0, 1e1),
    },
)

# Chen et al., arXiv 2302.06675. beta2 is the decay of the momentum; there is no second moment.
LION = Optimizer(
    "lion",
    f"{_RULES}.lion:Lion",
    reads=("beta1", "beta2"),
    second_moments=(),
    has_divisor=False,
    has_v=False,
    divides_by_root=never,
)


class StableAdamWFields(BaseModel):
    """Clipping of the update of StableAdamW (Wortsman et al., arXiv 2304.13013)."""

    stableadamw_clip: float | None = per_member(
        1.0,
        "1",
        "StableAdamW: largest root mean square of a weight's g / sqrt(v); null for no clipping",
        acts=when("optimizer", "stableadamw"),
        gt=0,
    )


STABLEADAMW = Optimizer(
    "stableadamw",
    f"{_RULES}.stableadamw:StableAdamW",
    StableAdamWFields,
    can_start_second_moment=True,
    can_keep_v=True,
    divides_by_root=always,
    averages_squares=always,
    examples={"stableadamw_clip": (None, 0.5, 1e-2)},
)

_SPAM = when("optimizer", "spam")


class SpamFields(BaseModel):
    """Clipping of entries, and resets of the moments, in SPAM (Huang et al., arXiv 2501.06842)."""

    spam_threshold: float | None = per_member(
        5000.0, "1", "SPAM: largest g^2 / v per entry; null for no clipping", acts=_SPAM, gt=0
    )
    spam_interval: int | None = per_member(
        500, "steps", "SPAM: steps between two resets of the moments; null for none", acts=_SPAM, ge=1
    )
    spam_warmup: int = per_member(
        150, "steps", "SPAM: warmup after a reset", acts=_SPAM & unless("spam_interval", None), ge=0
    )
    spam_grace: int = per_member(
        20,
        "steps",
        "SPAM: steps without clipping of entries, at the start and after a reset",
        acts=_SPAM & unless("spam_threshold", None),
        ge=2,
    )


SPAM = Optimizer(
    "spam",
    f"{_RULES}.spam:Spam",
    SpamFields,
    can_start_second_moment=True,
    divides_by_root=always,
    averages_squares=always,
    examples={
        "spam_threshold": (None, 1.0, 1e-2),
        "spam_interval": (None, 5, 3),
        "spam_warmup": (0, 2, 20),
        "spam_grace": (2, 4, 20),
    },
    needs={
        "spam_threshold": {"spam_grace": 2},
        "spam_warmup": {"spam_interval": 4},
        "spam_grace": {"spam_threshold": 1e-2},
    },
)

_SOPHIA = when("optimizer", "sophia")


class SophiaFields(BaseModel):
    """Sophia (Liu et al., arXiv 2305.14342): clipping, and the Hessian's diagonal, its lower bound and interval."""

    sophia_clip: float = per_member(0.01, "1", "Sophia: largest m / h per entry", acts=_SOPHIA, gt=0)
    sophia_eps: float = per_member(1e-12, "1", "Sophia: smallest h", acts=_SOPHIA, gt=0)
    sophia_interval: int = structural(
        10, "steps", "Sophia: steps between two estimates of the Hessian's diagonal h", acts=_SOPHIA, ge=1
    )


SOPHIA = Optimizer(
    "sophia",
    f"{_RULES}.sophia:Sophia",
    SophiaFields,
    reads=("beta1", "beta2", "beta2_half_life"),
    second_moments=("hessian",),
    has_v=False,
    examples={"sophia_clip": (1e-3, 1e-2, 1e0), "sophia_eps": (1e-12, 1e-1, 1e1), "sophia_interval": (1, 2, 10)},
)

_ADAM8BIT = when("optimizer", "adam8bit")


class Adam8bitFields(BaseModel):
    """Which weights have moments of 8 bits (Dettmers et al., arXiv 2110.02861), and how many entries share a scale."""

    adam8bit_block: int = structural(
        256, "entries", "adam8bit: entries that share a scale", acts=_ADAM8BIT, ge=32, multiple_of=32
    )
    adam8bit_smallest: int = structural(
        4096, "entries", "adam8bit: smallest weight with 8-bit moments", acts=_ADAM8BIT, ge=0
    )


# Where v is rounded down to zero, the step's length does not depend on beta2, so averages_squares stays False.
ADAM8BIT = Optimizer(
    "adam8bit",
    f"{_RULES}.adam8bit:Adam8bit",
    Adam8bitFields,
    keeps_columns=False,
    first_moments=("first_plain", "first_scales"),
    second_moments=("second_plain", "second_scales"),
    divides_by_root=always,
    examples={"adam8bit_block": (32, 64, 256), "adam8bit_smallest": (0, 100, 4096)},
)

_MUON = when("optimizer", "muon")


class MuonFields(BaseModel):
    """Momentum and scale of Muon (Jordan et al. 2024), which trains the matrices; AdamW trains the rest."""

    muon_momentum: float = per_member(0.95, "1", "Muon: decay of the matrices' momentum", acts=_MUON, ge=0, lt=1)
    muon_nesterov: bool = structural(True, "switch", "Muon: Nesterov's momentum", acts=_MUON)
    muon_steps: int = structural(5, "steps", "Muon: Newton-Schulz steps per update", acts=_MUON, ge=1, le=20)
    muon_scale: Literal["rms", "original"] = structural(
        "rms",
        "kind",
        "Muon: factor on a matrix's update; 0.2 sqrt(larger side) as in Moonlight, or sqrt(max(1, out / in))",
        acts=_MUON,
    )


MUON = Optimizer(
    "muon",
    f"{_RULES}.muon:Muon",
    MuonFields,
    second_moments=("vector_moment",),
    has_divisor=False,
    has_v=False,
    divides_by_root=never,
    examples={
        "muon_momentum": (0.0, 0.8, 0.95),
        "muon_nesterov": (True, False, True),
        "muon_steps": (5, 3, 1),
        "muon_scale": ("rms", "original", "rms"),
    },
)

_LCM_ADAM = when("optimizer", "lcm_adam")


class LcmAdamFields(BaseModel):
    """How the learning rate of LCMAdam (Algorithms 17(5):185) goes up and down."""

    lcm_adam_period: float = per_member(
        110.0,
        "steps",
        "LCMAdam: steps from the largest rate to the least; 1.1 epochs in the paper",
        acts=_LCM_ADAM,
        ge=1,
    )
    lcm_adam_least: float = per_member(0.2, "of lr", "LCMAdam: least learning rate", acts=_LCM_ADAM, gt=0, le=1)
    lcm_adam_change: float = per_member(
        0.2, "of lr", "LCMAdam: largest change of the learning rate in a step", acts=_LCM_ADAM, gt=0
    )


LCM_ADAM = Optimizer(
    "lcm_adam",
    f"{_RULES}.lcm_adam:LcmAdam",
    LcmAdamFields,
    divides_by_root=always,
    examples={
        "lcm_adam_period": (1.5, 7.0, 110.0),
        "lcm_adam_least": (0.2, 0.5, 1.0),
        "lcm_adam_change": (0.01, 0.1, 0.3),
    },
    needs={"lcm_adam_least": {"lcm_adam_period": 5.0}, "lcm_adam_change": {"lcm_adam_period": 3.0}},
)

OPTIMIZERS: dict[str, Optimizer] = {
    optimizer.name: optimizer
    for optimizer in (
        ADAMW,
        SGD,
        RADAM,
        ADABELIEF,
        ADAFACTOR,
        LION,
        STABLEADAMW,
        SPAM,
        SOPHIA,
        ADAM8BIT,
        MUON,
        LCM_ADAM,
    )
}
