"""A transformer that sweep trained, in plain torch. `python model.py` shows its held-out loss next to sweep's."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


class Model(torch.nn.Module):
    """The model whose weights and configuration are in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.facts, self.c = (json.loads((folder / "config.json").read_text())[key] for key in ("facts", "config"))
        weights = load_file(folder / "weights.safetensors")
        self.w = torch.nn.ParameterDict({name.replace(".", "/"): weight for name, weight in weights.items()})

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Apply a layer norm or an RMS norm."""
        is_layer = self.c["norm"] == "layer"
        out = F.layer_norm(x, x.shape[-1:]) if is_layer else F.rms_norm(x, x.shape[-1:], eps=1e-5)
        return out * self.w[name] + self.w.get(f"{name}_bias", 0)

    def product(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Multiply by a matrix of weights."""
        return x @ self.w[name] + self.w.get(f"{name}_bias", 0)

    def rotated(self, z: torch.Tensor) -> torch.Tensor:
        """Rotate pairs of channels by their positions."""
        T, C = z.shape[-2:]
        angle = torch.arange(T, dtype=torch.float64)[:, None] * self.c["rope_theta"] ** -(torch.arange(0, C, 2) / C)
        (a, b), cos, sin = z.chunk(2, -1), angle.cos().to(z), angle.sin().to(z)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        """Attend to earlier bytes."""
        (B, T, _), H, G = x.shape, self.c["heads"], self.c["kv_heads"] or self.c["heads"]
        z = self.product(x, f"{layer}/qkv").view(B, T, H + 2 * G, -1).transpose(1, 2)
        q, k, v = z[:, :H], z[:, H : H + G], z[:, H + G :]
        if self.c["qk_norm"]:
            q, k = self.norm(q, f"{layer}/q_norm"), self.norm(k, f"{layer}/k_norm")
        if self.c["position"] == "rope":
            q, k = self.rotated(q), self.rotated(k)
        k, v = (u.repeat_interleave(H // G, 1) for u in (k, v))
        score = capped(q @ k.transpose(-1, -2) * self.facts["attention_scale"], self.c["attention_softcap"])
        score = score.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -torch.inf)
        return self.product((score.softmax(-1) @ v).transpose(1, 2).reshape(B, T, -1), f"{layer}/attention_out")

    def mlp(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        """Apply the MLP of a block."""
        inner = self.product(x, f"{layer}/mlp_in")
        is_gated = self.c["mlp"] == "swiglu"
        hidden = F.silu(self.product(x, f"{layer}/mlp_gate")) * inner if is_gated else F.gelu(inner)
        return self.product(hidden, f"{layer}/mlp_out")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next byte, (B, T, 256)."""
        x = self.w["embedding"][tokens] * self.c["embedding_scale"]
        x = x + (self.w["position"][: tokens.shape[1]] if self.c["position"] == "learned" else 0)
        place = self.c["norm_place"] if self.c["norm"] else None
        for layer in range(self.c["depth"]):
            for sublayer, name in ((self.attention, "attention_norm"), (self.mlp, "mlp_norm")):
                out = sublayer(self.norm(x, f"{layer}/{name}") if place == "pre" else x, layer)
                out = self.norm(out, f"{layer}/{name}") if place == "output" else out
                x = x + out * self.facts["branch_scale"]
                x = self.norm(x, f"{layer}/{name}") if place == "post" else x
        x = (self.norm(x, "final_norm") if "final_norm" in self.w else x) / self.facts["width_factor"]
        head = self.w["head"] if "head" in self.w else self.w["embedding"].T
        return capped(x @ head, self.c["logit_softcap"])


def capped(x: torch.Tensor, cap: float | None) -> torch.Tensor:
    """Return cap * tanh(x / cap), or x without a cap."""
    return x if cap is None else cap * torch.tanh(x / cap)


@torch.no_grad()
def held_out_loss(folder: Path) -> float:
    """Return the mean cross-entropy on held_out.bin, in nats."""
    model, content = Model(folder), bytearray((folder / "held_out.bin").read_bytes())
    tokens = torch.frombuffer(content, dtype=torch.uint8).view(-1, model.c["context"] + 1).long()
    return float(F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()))


if __name__ == "__main__":
    here = Path(__file__).parent
    print(held_out_loss(here), json.loads((here / "config.json").read_text())["validation_loss"])
