"""Stacking in torch itself: torch.func.vmap over the plain module, with a hand-written AdamW."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.plain_gpt import PlainGpt
from objectives.base import GptConfig
from objectives.models.data import BatchStream, load_corpus

# Shapes: K members.


class VmappedTrainer:
    """K trials as one vmapped model; learning rate, beta2 and epsilon differ between members."""

    def __init__(self, configs: Sequence[GptConfig], seeds: Sequence[int], device: str, *, is_compiled: bool) -> None:
        if any(config.clip is not None for config in configs):
            raise ValueError("the vmapped trainer does not clip")
        self.config, self.device = configs[0], torch.device(device)
        models = [PlainGpt(config) for config in configs]
        for model, config, seed in zip(models, configs, seeds, strict=True):
            model.start_from(config, seed)
        weights, _ = stack_module_state(models)
        angles = {name: buffer.to(self.device) for name, buffer in models[0].named_buffers()}
        self.weights = {name: weight.detach().to(self.device) for name, weight in weights.items()}
        skeleton = PlainGpt(self.config).to("meta")
        differentiate = vmap(
            grad_and_value(lambda weights, tokens: functional_call(skeleton, {**weights, **angles}, (tokens,)))
        )
        self._differentiate = torch.compile(differentiate) if is_compiled else differentiate
        self._first = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self._second = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self._numbers = {
            name: torch.tensor([getattr(c, name) for c in configs], dtype=torch.float64, device=self.device)
            for name in ("lr", "beta1", "beta2", "eps", "weight_decay")
        }
        # Members of one seed have the same batches: each is drawn once.
        self._distinct = sorted(set(seeds))
        self._row_of_member = torch.tensor([self._distinct.index(seed) for seed in seeds], device=self.device)
        self.batches = BatchStream(
            load_corpus(self.config.text), self.config.batch_size, self.config.context, self.device
        )
        self.num_steps = 0

    def step(self) -> list[float]:
        """Train one step; returns the loss of each member."""
        tokens = self.batches.batch([(seed, self.num_steps) for seed in self._distinct])[self._row_of_member]
        # vmap has no rule for fused attention and would loop over the members.
        with sdpa_kernel(SDPBackend.MATH):
            gradients, loss_K = self._differentiate(self.weights, tokens)
        self.num_steps += 1
        with torch.no_grad():
            self._update(gradients)
        return loss_K.tolist()

    def _update(self, gradients: dict[str, torch.Tensor]) -> None:
        number = self._numbers
        lr_K = number["lr"] * min(1.0, self.num_steps / max(1, self.config.warmup))
        step_size_K = lr_K / (1 - number["beta1"] ** self.num_steps)
        root_K = (1 - number["beta2"] ** self.num_steps).sqrt()
        for name, weight in self.weights.items():

            def along(value_K: torch.Tensor, num_axes: int = weight.ndim) -> torch.Tensor:
                # Double precision up to here: 1 - 0.999 has few digits left in single precision.
                return value_K.float().view(-1, *[1] * (num_axes - 1))

            gradient, first, second = gradients[name], self._first[name], self._second[name]
            first.lerp_(gradient, along(1 - number["beta1"]))
            second.mul_(along(number["beta2"])).add_(gradient.square().mul_(along(1 - number["beta2"])))
            denominator = second.sqrt().div_(along(root_K)).add_(along(number["eps"]))
            weight.mul_(along(1 - lr_K * number["weight_decay"])).sub_((first / denominator).mul_(along(step_size_K)))
