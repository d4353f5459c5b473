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

# Muon with QK-clip under one name, and the largest logit of Kimi K2 (arXiv 2507.20534).
MUONCLIP, _LARGEST_LOGIT = "muonclip", 100.0


def expanded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with the fields of their ``preset`` in place of it; fields that are given keep their values.

    The optimizer ``muonclip`` becomes ``muon`` with ``qk_clip``. Raises ValueError for one without.
    """
    given = dict(values)
    if given.get("optimizer") == MUONCLIP:
        if given.setdefault("qk_clip", _LARGEST_LOGIT) is None:
            raise ValueError("optimizer muonclip is muon with qk_clip, which is null: write muon")
        given["optimizer"] = "muon"
    if given.get("preset") not in PRESETS:
        return given
    preset = given.pop("preset")
    return {**PRESETS[preset], **given}
