"""Fields and facts of the built-in transformer, free of torch."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from objectives.fields import Condition, per_member, structural, third_of_depth, unless, when
from objectives.models.facts.experts import ExpertFields
from objectives.models.facts.feed import DATA_FIELDS, FeedFields
from objectives.models.facts.parametrisation import Parametrisation, SizeFactors
from objectives.models.facts.presets import MUONCLIP, Preset, expanded
from objectives.models.facts.workers import check_workers
from objectives.protocol import Objective

_IN_FLOAT16 = when("precision", "float16")
_HAS_HEAD = when("tie_embeddings", False)
_FOLLOWS_SIZE = unless("parametrisation", "standard")
_ROTATES = when("position", "rope")
_HAS_GAINS = Condition(
    "norm is not null or qk_norm is true", lambda settings: settings["norm"] is not None or settings["qk_norm"]
)


class GptConfig(ExpertFields, FeedFields):
    """A byte-level decoder-only transformer on real text."""

    optimizer_aliases: ClassVar[tuple[str, ...]] = (MUONCLIP,)

    batch_size: int = structural(8, "sequences", "sequences of `context` bytes per step", ge=1, le=65_536)
    preset: Preset | None = structural(
        None, "kind", "llama, gpt2 or small: fills norm, position, mlp, bias and ties that are not given", off=True
    )
    depth: int = structural(2, "layers", "number of transformer blocks", ge=1, le=256)
    width: int = structural(32, "channels", "width of the residual stream; a multiple of heads", ge=2, le=16_384)
    heads: int = structural(2, "heads", "attention heads", ge=1, le=256)
    kv_heads: int | None = structural(
        None,
        "heads",
        "heads of keys and values, each shared by heads / kv_heads queries (Ainslie et al. 2023); null for heads",
        off=True,
        ge=1,
        le=256,
    )
    parametrisation: Parametrisation = structural(
        "standard", "kind", "how init, lr, eps and decay follow from width (mup) and from depth (completep)", off=True
    )
    base_width: int | None = structural(
        None,
        "channels",
        "width of the base model, which mup and completep leave alone",
        acts=_FOLLOWS_SIZE,
        ge=2,
        le=16_384,
    )
    base_depth: int | None = structural(
        None,
        "layers",
        "depth of the base model, which completep leaves alone",
        acts=when("parametrisation", "completep"),
        ge=1,
    )
    position: Literal["learned", "rope"] | None = structural(
        "learned", "kind", "learned table, rotated queries and keys (Su et al. 2021), or null for none", off=True
    )
    rope_theta: float = structural(10_000.0, "1", "base of the rotations' wavelengths", acts=_ROTATES, gt=1)
    mlp: Literal["gelu", "swiglu"] = structural(
        "gelu", "kind", "GELU of 4 widths, or SwiGLU (Shazeer 2020) of 8/3 widths with as many parameters", off=True
    )
    bias: bool = structural(
        False, "switch", "offsets in the matrices and layer norms of the blocks, as in GPT-2", off=True
    )
    tie_embeddings: bool = structural(False, "switch", "use the embedding table as the output head", off=True)
    embedding_scale: float = structural(
        1.0, "1", "factor on the embeddings of bytes; Gemma uses sqrt(width)", off=True, gt=0
    )
    logit_softcap: float | None = structural(
        None, "logits", "c of c tanh(x / c) on the output logits (Gemma 2: 30); null for none", off=True, gt=0
    )
    attention_softcap: float | None = structural(
        None, "logits", "c of c tanh(x / c) on the attention logits (Gemma 2: 50); null for none", off=True, gt=0
    )
    qk_clip: float | None = structural(
        None,
        "logits",
        "largest attention logit of a head, beyond which queries and keys shrink (Kimi K2: 100); null for none",
        off=True,
        gt=0,
    )
    precision: Literal["float32", "tf32", "bfloat16", "float16"] = structural(
        "float32", "kind", "precision of matrix products; tf32 acts on GPUs only, bfloat16 and float16 use autocast"
    )
    loss_scale: float = per_member(
        65_536.0, "1", "initial loss scale in float16, preferably a power of two", acts=_IN_FLOAT16, ge=1, le=1e30
    )
    loss_scale_growth: int = per_member(
        2000, "steps", "steps without overflow after which the loss scale doubles", acts=_IN_FLOAT16, ge=1
    )
    qk_norm: bool = structural(
        False,
        "switch",
        "normalise queries and keys per head (Wortsman et al. 2023), by RMS norm if norm is null",
        off=True,
    )
    norm: Literal["layer", "rms"] | None = structural(
        "layer", "kind", "layer norm or RMS norm; null for no norms in the blocks and at the end"
    )
    norm_place: Literal["pre", "post", "output"] = structural(
        "pre",
        "kind",
        "norm before each sublayer, after its residual sum, or on its output before the sum (OLMo 2)",
        acts=unless("norm", None),
    )
    residual_scale: float = per_member(
        1.0, "1", "factor on each sublayer's output before it is added to the residual stream", off=True, ge=0
    )
    residual_depth: Literal["inverse_sqrt", "inverse"] | None = per_member(
        None,
        "kind",
        "further factor on each sublayer's output: 1 / sqrt(2 depth), or 1 / depth as in depth-muP; null for none",
        off=True,
    )
    init: Literal["gpt2", "fan_in", "he", "xavier"] = per_member(
        "gpt2",
        "kind",
        "scale of initial matrices: GPT-2, 1 / fan-in, He or Xavier; embeddings are N(0, 1) except with gpt2",
        off=True,
    )
    init_deviation: float = per_member(
        0.02,
        "1",
        "standard deviation of initial weights; divided by sqrt(2 depth) for sublayers' output projections",
        acts=when("init", "gpt2"),
        gt=0,
    )
    dropout: float = per_member(
        0.0, "1", "share of each sublayer's output to drop during training", off=True, ge=0, lt=1
    )
    z_loss: float = per_member(
        0.0, "1", "weight of mean(log^2 Z) in the loss, with Z the softmax denominator", off=True, ge=0
    )
    embedding_grad: float = per_member(1.0, "1", "factor on the embeddings' gradient (GLM-130B)", off=True, ge=0)
    embedding_lr: float = per_member(1.0, "of lr", "learning rate of the embeddings", off=True, ge=0)
    attention_lr: float = per_member(1.0, "of lr", "learning rate of the attention matrices", off=True, ge=0)
    mlp_lr: float = per_member(1.0, "of lr", "learning rate of the MLP matrices", off=True, ge=0)
    norm_lr: float = per_member(1.0, "of lr", "learning rate of the norms' gains", acts=_HAS_GAINS, off=True, ge=0)
    head_lr: float = per_member(1.0, "of lr", "learning rate of the output head", acts=_HAS_HEAD, off=True, ge=0)
    accumulate: int = structural(
        1,
        "batches",
        "gradient accumulation: micro-batches per batch, with averaged gradients",
        off=True,
        ge=1,
    )
    micro_batches: float | None = per_member(
        None,
        "batches",
        "micro-batches of each batch to train on, rounded down; null for all",
        acts=unless("accumulate", 1),
        off=True,
        changes=True,
        ge=1,
    )
    recompute: bool = structural(False, "switch", "recompute activations in the backward pass to save memory", off=True)
    context_start: int | None = per_member(
        None, "bytes", "initial sequence length; null for the full context", off=True, ge=1
    )
    context_steps: int = per_member(
        0,
        "steps",
        "steps during which the sequence length grows from context_start to context",
        acts=unless("context_start", None),
        ge=0,
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, values: Any) -> Any:
        """Replace a preset by its fields, so that a trial records what was trained."""
        return expanded(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _sizes_fit_together(self) -> GptConfig:
        if self.width % self.heads:
            raise ValueError(f"width = {self.width} is not a multiple of heads = {self.heads}")
        if self.qk_clip is not None and self.qk_norm:
            raise ValueError(f"qk_clip = {self.qk_clip:g} has no effect with qk_norm, which undoes it")
        if self.heads % self.num_kv_heads:
            raise ValueError(f"heads = {self.heads} is not a multiple of kv_heads = {self.kv_heads}")
        if self.position == "rope" and self.width // self.heads % 2:
            raise ValueError(
                f"position = rope needs an even width / heads, not {self.width} / {self.heads}: it rotates pairs"
            )
        if self.parametrisation != "standard":
            self._check_parametrisation()
        if self.batch_size % self.accumulate:
            raise ValueError(f"batch_size = {self.batch_size} is not a multiple of accumulate = {self.accumulate}")
        if self.micro_batches is not None and 1 < self.accumulate < self.micro_batches:
            raise ValueError(f"micro_batches = {self.micro_batches:g} is more than accumulate = {self.accumulate}")
        if self.context_start is not None and self.context_start > self.context:
            raise ValueError(f"context_start = {self.context_start} is longer than context = {self.context}")
        if self.context_start is not None and not self.context_steps:
            raise ValueError(f"context_start = {self.context_start} needs context_steps above 0 to grow over")
        if self.context_start is not None and self.curriculum == "length":
            raise ValueError("curriculum = length and context_start both set the length of sequences: leave one out")
        return self

    def _check_parametrisation(self) -> None:
        """Raise ValueError where the table of factors does not hold."""
        kind = f"parametrisation = {self.parametrisation}"
        if self.base_width is None:
            raise ValueError(f"{kind} needs base_width: the width that it leaves alone, such as the smallest")
        if self.parametrisation == "completep" and self.base_depth is None:
            raise ValueError(f"{kind} needs base_depth: the depth that it leaves alone, such as the smallest")
        for name, needed in (("optimizer", "adamw"), ("init", "gpt2"), ("weight_decay_kind", "decoupled")):
            if getattr(self, name) != needed:
                raise ValueError(f"{kind} is defined for {name} {needed}, not {getattr(self, name)}")

    def weight_factor(self, purpose: str, name: str, group: str) -> float:
        """Return also the factor of ``parametrisation``."""
        return super().weight_factor(purpose, name, group) * self.size_factors.of_weight(purpose, name)

    @property
    def weight_groups(self) -> tuple[str, ...]:
        """The layer groups that these settings have, and the thirds of the depth with a block."""
        groups = ["embedding", "attention", "mlp", *(["router"] if self.experts else [])]
        groups += ["norm"] if self.norm is not None or self.qk_norm else []
        groups += [] if self.tie_embeddings else ["head"]
        return (*groups, *dict.fromkeys(third_of_depth(block, self.depth) for block in range(self.depth)))

    @property
    def takes_float64(self) -> bool:
        """A member may leave float32 or half precision; float16 with its scaled loss, too."""
        return True

    def in_float64(self) -> Self:
        """Return the configuration without half precision, whose products autocast would round."""
        return self.model_copy(update={"precision": "float32"})

    @property
    def can_cap_attention(self) -> bool:
        """Whether there are queries and keys to shrink, which neither a norm nor ``qk_clip`` bounds."""
        return not self.qk_norm and self.qk_clip is None

    @property
    def size_factors(self) -> SizeFactors:
        """The size over the base, as far as ``parametrisation`` goes by it."""
        if self.base_width is None or self.parametrisation == "standard":
            return SizeFactors()
        base_depth = self.base_depth if self.parametrisation == "completep" else None
        return SizeFactors(self.width / self.base_width, 1.0 if base_depth is None else self.depth / base_depth)

    @property
    def attention_scale(self) -> float:
        """The factor on products of queries and keys: 1 / sqrt(C), or 1 / C in mup and completep."""
        num_channels = self.width // self.heads
        return 1 / (math.sqrt(num_channels) if self.parametrisation == "standard" else num_channels)

    @property
    def place_of_norms(self) -> Literal["pre", "post", "output"] | None:
        """``norm_place``, or None in a model without norms."""
        return None if self.norm is None else self.norm_place

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm precedes the head. Post-norm blocks end with their own norm."""
        return self.place_of_norms in ("pre", "output")

    @property
    def has_norm_offsets(self) -> bool:
        """Whether norms have an offset and a gain: layer norms with ``bias``."""
        return self.bias and self.norm == "layer"

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def mlp_width(self) -> int:
        """Hidden channels of the MLP. SwiGLU's are a multiple of 4 near 8/3 widths: about 8 width^2 weights in all."""
        return 4 * self.width if self.mlp == "gelu" else 4 * round(2 * self.width / 3)

    @property
    def branch_scale(self) -> float:
        """The factor on each sublayer's output, by ``residual_scale``, ``residual_depth`` and ``parametrisation``."""
        by_depth = {None: 1.0, "inverse_sqrt": (2 * self.depth) ** -0.5, "inverse": 1 / self.depth}
        return self.residual_scale * by_depth[self.residual_depth] / self.size_factors.depth

    @property
    def lengths(self) -> tuple[int, int, int]:
        """The length of sequences at the start and in the end, and the steps between."""
        if self.context_start is None:
            return super().lengths
        return self.context_start, self.context, self.context_steps

    @property
    def has_gradient_by_hand(self) -> bool:
        """Whether a CPU computes gradients by hand-written passes rather than autograd."""
        return not self.experts and self.precision in ("float32", "tf32")

    @property
    def has_native_kernels(self) -> bool:
        """Whether the C++ kernel has the model, and float32, which a CPU also uses for tf32."""
        has_caps = any(cap is not None for cap in (self.logit_softcap, self.attention_softcap, self.qk_clip))
        return self.has_gradient_by_hand and not (has_caps or self.bias)

    @property
    def signals(self) -> tuple[str, ...]:
        """Also noise scale and gain with gradient accumulation, and falls of the loss scale in float16."""
        noise = ("noise_scale", "gain") if self.accumulate > 1 else ()
        return (*super().signals, *noise, *(("loss_scale_falls",) if self.precision == "float16" else ()))

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of each batch to train on, at most ``accumulate``."""
        return self.accumulate if self.micro_batches is None else min(int(self.micro_batches), self.accumulate)

    @property
    def tokens_per_step(self) -> int:
        """Bytes per step."""
        return self.batch_size // self.accumulate * self.num_micro_batches * self.context


GPT = Objective(
    "gpt",
    GptConfig,
    "objectives.models.gpt",
    spike_rise=0.1,
    can_compile=True,
    layer_groups=("embedding", "attention", "mlp", "head"),
    has_logits=True,
    check_workers=check_workers,
    data_fields=DATA_FIELDS,
    origins="objectives.models.origins",
)
