"""Values of every field of every objective, and what a field needs to act."""

from typing import Any

from objectives.optimizers.facts import OPTIMIZERS

# Two values that a field can have, on every objective that has it.
VALUES: dict[str, list[Any]] = {
    "interventions": [[], [{"at": 1, "set": {"lr": "x0.5"}}]],
    "control": [[], [{"on": "step", "above": 0, "do": [{"lr": "x0.5"}], "every": 1}]],
    "lr": [0.01, 0.02], "warmup": [0, 2], "beta1": [0.5, 0.9], "beta2": [0.9, 0.99], "beta2_half_life": [None, 50.0],
    "eps": [1e-8, 1e-4], "second_moment_start": ["zero", "data"], "second_moment_scale": [0.5, 1.0],
    "weight_decay": [0.0, 0.1], "weight_decay_kind": ["decoupled", "coupled"], "clip": [None, 1.0],
    "adagc": [None, 1.5], "adagc_warmup": [1, 2], "zclip": [None, 2.5], "zclip_warmup": [2, 3], "batch_size": [2, 4],
    "optimizer": ["adamw", "torch.optim.NAdam"], "schedule": ["constant", "wsd"], "schedule_power": [1.0, 2.0],
    "decay_share": [0.2, 0.5],
    "final_lr_fraction": [0.0, 0.1], "warmup_shape": ["linear", "cosine"], "rollback": [None, 1],
    "rollback_every": [1, 2], "ema": [None, 0.5], "merge_last": [None, 2], "merge_every": [1, 2],
    "depth": [1, 2], "width": [8, 16], "heads": [1, 2], "context": [8, 16], "precision": ["float32", "bfloat16"],
    "loss_scale": [1.0, 8.0], "loss_scale_growth": [1, 2], "qk_norm": [False, True], "norm": ["layer", "rms"],
    "parametrisation": ["standard", "mup"], "base_width": [8, 16], "base_depth": [1, 2], "preset": [None, "llama"],
    "kv_heads": [None, 1], "position": ["learned", "rope"], "rope_theta": [20.0, 100.0], "mlp": ["gelu", "swiglu"],
    "bias": [False, True], "tie_embeddings": [False, True], "embedding_scale": [1.0, 2.0],
    "logit_softcap": [None, 1.0], "attention_softcap": [None, 1.0], "qk_clip": [None, 1.0],
    "residual_depth": [None, "inverse"],
    "experts": [2, 4], "top_k": [1, 2], "gate": ["softmax", "sigmoid"], "shared_experts": [0, 1],
    "balance": [None, "aux"], "balance_weight": [None, 0.1], "balance_step": [0.001, 0.1], "router_z_loss": [0.0, 0.1],
    "router_noise": [0.0, 0.5], "router_lr": [0.1, 1.0], "router_init": [0.1, 1.0], "capacity": [None, 1.0],
    "norm_place": ["pre", "post"], "residual_scale": [0.5, 1.0], "init": ["gpt2", "he"],
    "init_deviation": [0.02, 0.1], "dropout": [0.0, 0.5],
    "z_loss": [0.0, 1e-4], "embedding_grad": [0.1, 1.0], "embedding_lr": [0.0, 1.0], "attention_lr": [0.0, 1.0],
    "mlp_lr": [0.0, 1.0], "norm_lr": [0.0, 1.0], "head_lr": [0.0, 1.0], "accumulate": [1, 2],
    "micro_batches": [None, 1.0],
    "recompute": [False, True], "corrupted": [0.0, 0.5], "context_start": [2, 4], "context_steps": [1, 2],
    "text": [["en.txt"], ["fr.txt"]], "validation_batches": [1, 2],
    "separator": [None, "\n\n"], "duplicated_share": [0.0, 0.1], "duplicated_times": [1, 2], "noise_share": [0.0, 0.1],
    "noise_kind": ["shuffled", "markup"], "dedup": [None, "exact"], "quality": [None, "compression"],
    "quality_keep": [0.5, 0.8],
    "burst_at": [None, 2], "burst_length": [1, 2], "shift_at": [2, 4], "shift_text": [["en.txt"], ["fr.txt"]],
    "mix_share": [0.1, 0.5], "mix_text": [["en.txt"], ["fr.txt"]],
    "domains": [{"en.txt": 1.0, "fr.txt": 2.0}, {"en.txt": 2.0, "fr.txt": 1.0}], "domain_temperature": [0.5, 1.0],
    "curriculum": [None, "compression"], "curriculum_from": [0.2, 0.5], "curriculum_to": [0.5, 1.0],
    "curriculum_steps": [1, 2], "curriculum_reversed": [False, True],
    "num_points": [10, 20],
    "a": [1.0, 2.0], "b": [1.0, 2.0], "beta": [1.0, 2.0], "spread": [0.0, 0.1],
    "dimension": [2, 4], "curvature": [1.0, 2.0], "noise": [0.0, 0.1], "power": [2.0, 3.0],
    **{name: list(values[:2]) for one in OPTIMIZERS.values() for name, values in one.examples.items()},
}  # fmt: skip
# The other settings that a field needs: a rule rejects it without them, or nothing reads it.
NEEDS: dict[str, dict[str, Any]] = {
    "second_moment_scale": {"second_moment_start": "random"}, "adagc_warmup": {"adagc": 1.5},
    "zclip_warmup": {"zclip": 2.5}, "schedule_power": {"schedule": "polynomial"}, "decay_share": {"schedule": "wsd"},
    "final_lr_fraction": {"schedule": "linear"}, "warmup_shape": {"warmup": 2},
    "weight_decay_kind": {"weight_decay": 0.1}, "rollback_every": {"rollback": 1},
    "merge_every": {"merge_last": 2},
    "loss_scale": {"precision": "float16"}, "loss_scale_growth": {"precision": "float16"},
    "context_start": {"context_steps": 2}, "context_steps": {"context_start": 2}, "burst_length": {"burst_at": 2},
    "separator": {"dedup": "exact"}, "duplicated_times": {"duplicated_share": 0.1}, "noise_kind": {"noise_share": 0.1},
    "quality_keep": {"quality": "compression"},
    "shift_at": {"shift_text": ["en.txt"]}, "shift_text": {"shift_at": 2},
    "mix_share": {"mix_text": ["en.txt"]}, "mix_text": {"mix_share": 0.5},
    "domain_temperature": {"domains": {"en.txt": 1.0, "fr.txt": 2.0}}, "curriculum": {"separator": "\n"},
    **{f"curriculum_{name}": {"curriculum": "compression", "separator": "\n"}
       for name in ("from", "to", "steps", "reversed")},
    "micro_batches": {"accumulate": 2}, "rope_theta": {"position": "rope"},
    "parametrisation": {"base_width": 4}, "base_width": {"parametrisation": "mup"},
    "base_depth": {"parametrisation": "completep", "base_width": 4},
    **{field: {"experts": 4} for field in
       ("top_k", "gate", "shared_experts", "balance", "balance_weight", "router_z_loss", "router_noise", "router_lr",
        "router_init", "capacity")},
    "balance_step": {"experts": 4, "balance": "loss_free"},
}  # fmt: skip


def needs_of(field: str) -> dict[str, Any]:
    """Return the other settings that ``field`` needs to act."""
    owner = next((one.name for one in OPTIMIZERS.values() if field in one.fields.model_fields), None)
    return NEEDS.get(field, {} if owner is None else {"optimizer": owner})
