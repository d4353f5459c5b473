"""Presets: fields of the built-in transformer that make a known model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Preset = Literal["llama", "gpt2", "small"]

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Touvron et al., arXiv 2302.13971.
    "llama": {"norm": "rms", "norm_place": "pre", "position": "rope", "mlp": "swiglu", "bias": False,
              "tie_embeddings": False},
    # Radford et al., 2019.
    "gpt2": {"norm": "layer", "norm_place": "pre", "position": "learned", "mlp": "gelu", "bias": True,
             "tie_embeddings": True},
    # The default: GPT-2 without offsets, and with a head of its own.
    "small": {"norm": "layer", "norm_place": "pre", "position": "learned", "mlp": "gelu", "bias": False,
              "tie_embeddings": False},
}  # fmt: skip


def expanded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with the fields of their ``preset`` in place of it; fields that are given keep their values."""
    given = dict(values)
    preset = given.pop("preset", None)
    return {**PRESETS[preset], **given} if preset in PRESETS else dict(values)
