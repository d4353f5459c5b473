"""How large the weights of the built-in objectives are, as known without torch."""

from __future__ import annotations

from objectives.models.facts.function_fit import FunctionFitConfig
from objectives.models.facts.gpt import GptConfig
from objectives.models.facts.quadratic import QuadraticConfig
from objectives.models.facts.router import RouterConfig
from objectives.training_config import TrainingConfig

_NUM_BYTES = 256


def num_weights(config: TrainingConfig) -> int | None:
    """Return the number of weights of one member; None for an objective of the user's own."""
    if isinstance(config, GptConfig):
        return _of_gpt(config)
    if isinstance(config, FunctionFitConfig):
        return 3 * config.width + 1
    if isinstance(config, QuadraticConfig):
        return config.dimension
    return config.experts if isinstance(config, RouterConfig) else None


def bytes_per_weight(config: TrainingConfig) -> int:
    """Return the bytes of a weight: float32 in a transformer that stays in it, else float64."""
    is_wide = any(entry.precision == "float64" for entry in config.interventions)
    return 4 if isinstance(config, GptConfig) and not is_wide else 8


def _of_gpt(config: GptConfig) -> int:
    width, hidden = config.width, config.mlp_width
    channels = width // config.heads
    gain = 0 if config.norm is None else width * (1 + config.has_norm_offsets)
    qkv = width + 2 * config.num_kv_heads * channels
    offsets, gains = (qkv + width if config.bias else 0), (2 * channels if config.qk_norm else 0)
    attention = width * qkv + width * width + offsets + gains
    num_in = 2 if config.mlp == "swiglu" else 1
    mlp = (num_in + 1) * width * hidden + (num_in * hidden + width if config.bias else 0)
    if config.experts:
        mlp = mlp * (config.experts + config.shared_experts) + width * config.experts
    outside = _NUM_BYTES * width * (1 if config.tie_embeddings else 2) + (gain if config.has_final_norm else 0)
    positions = config.context * width if config.position == "learned" else 0
    return config.depth * (attention + mlp + 2 * gain) + outside + positions
