"""The built-in transformer: byte-level and decoder-only, with K members as one stacked model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from objectives.base import ExecutionPlan, GptConfig
from objectives.instruments.curvature import Hessian
from objectives.models.ahead import STEPS_PER_DRAW, Ahead
from objectives.models.batch_gradient import LossScaler, MicroBatches
from objectives.models.data import Corpus, held_out_batches
from objectives.models.feed import Feed
from objectives.models.gpt_experts import STACKS
from objectives.models.gpt_gradient import losses_and_gradient
from objectives.models.gpt_hessian import NativeHessian
from objectives.models.gpt_knobs import Knobs, context_lengths, dropout_keys
from objectives.models.gpt_model import (
    Forward,
    attention_logits,
    cross_entropy,
    depth_of,
    forward,
    forward_readings,
    group_of,
    initial_weights,
    routings_of,
    with_init,
)
from objectives.models.gpt_native import NativeGpt
from objectives.models.gpt_qk_clip import clip_queries_and_keys
from objectives.models.gpt_router import Routers, probe_size
from objectives.native.cache import kernel_folder
from objectives.optimizers.native_optimizer import NativeOptimizer
from objectives.optimizers.packed_optimizer import Rows
from objectives.stacking import Compiled, index_on, rows_of_blocks, seeded_generator, sent
from objectives.training.packed import PackedTrainer, Weights
from objectives.training.ranks import Ranks

# Shapes: K members, R observed ones, B sequences, T bytes of context, n parameters per member.

_DROPOUT_PURPOSE, _NOISE_PURPOSE = 10, 13  # of random streams, among a seed's streams
_MOST_SEQUENCES_READ = 2  # of a batch, in the readings of a forward pass: a whole batch would take much memory


def _keys_ahead(seed: int, step: int) -> torch.Tensor:
    """Return a seed's 32-bit keys for dropout at a step and the steps after it, int64 (N,)."""
    steps = range(step, step + STEPS_PER_DRAW)
    return torch.tensor([seeded_generator(seed, _DROPOUT_PURPOSE, later).initial_seed() % 2**32 for later in steps])


def choose_products(structure: GptConfig, device: torch.device, plan: ExecutionPlan) -> None:
    """Choose tf32 or float32 on a GPU, for all packs of the process: one in float64 has no say."""
    if device.type != "cpu" and not plan.float64:
        torch.set_float32_matmul_precision("high" if structure.precision == "tf32" else "highest")


class GptTrainer(PackedTrainer[GptConfig]):
    """A transformer: by default GPT-2's without biases and with an untied head.

    The loss is the mean next-byte cross-entropy of the batch in nats, plus z_loss * mean(log^2 Z). With ``accumulate``,
    loss and gradient are means over that many micro-batches or fewer, equal up to rounding. In float16 a member's loss
    is scaled before the backward pass, and a step whose gradient overflows is skipped for that member.
    """

    stacks = STACKS
    takes_float64 = True
    ranks: Ranks | None = None  # the processes that share each batch, if there are several

    def __init__(self, configs: Sequence[GptConfig], seeds: Sequence[int], device: str, plan: ExecutionPlan) -> None:
        self._feed = Feed(configs[0], torch.device(device))
        super().__init__(configs, seeds, device, plan)
        self.corpus = self._feed.corpora()[0]
        self.batches = self._feed.stream(self._feed.texts[0])
        self._dropout_keys = Ahead(_keys_ahead, self.device)
        is_on_cpu = self.device.type == "cpu"
        choose_products(self.structure, self.device, plan)
        # The hand-written passes are for CPUs: a GPU has fused attention, autocast and experts need autograd.
        self._by_hand = is_on_cpu and self.structure.has_gradient_by_hand
        self._differentiate: Callable[..., tuple[torch.Tensor, torch.Tensor]] = losses_and_gradient
        self._forward: Callable[..., Forward] = functools.partial(forward, self.structure)
        self._native: NativeGpt | None = None
        if plan.kernels == "native":
            if not self._by_hand or plan.compiled:
                kind = "experts" if self.structure.experts else self.structure.precision
                raise ValueError(f"native kernels are for float32 on a CPU, not for {kind} on {device}")
            self._native = NativeGpt(self.structure, self.layout, kernel_folder(), self._params_Kn.dtype)
        elif plan.compiled and self._by_hand:
            self._differentiate = Compiled(losses_and_gradient)
        elif plan.compiled:
            # At these sizes a GPU spends more time on launching kernels than on running them, so record a CUDA graph.
            mode = None if is_on_cpu else "reduce-overhead"
            self._forward = Compiled(self._forward, mode=mode)

    def initial_weights(self, seed: int) -> Weights:
        """Return one member's weights as drawn from its seed."""
        return initial_weights(self.structure, seed)

    def own_weights(self, drawn: Weights, config: GptConfig) -> Weights:
        """Return the drawn weights, scaled by the member's ``init``."""
        return with_init(drawn, config)

    def group_of(self, name: str) -> str:
        """Return embedding, attention, mlp, router, norm or head."""
        return group_of(name)

    def depth_of(self, name: str) -> str | None:
        """Return the third of the blocks (shallow, middle or deep), or None outside blocks."""
        return depth_of(name, self.structure.depth)

    def memory_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the loss scale in float16, averages of the noise scale with micro-batches, and state of routers."""
        names = (
            *(LossScaler.MEMORY if self.structure.precision == "float16" else ()),
            *(MicroBatches.MEMORY if self.structure.accumulate > 1 else ()),
        )
        return {**dict.fromkeys(names, ()), **Routers.memory_shapes(self.structure)}

    def members_changed(self) -> None:
        """Read the hyperparameters of the current members."""
        self._fixed = Knobs(
            z_loss_K=self._numbers_of("z_loss", 0.0),
            residual_scale_K=self._numbers_of("branch_scale", 1.0),
            dropout_K=self._numbers_of("dropout", 0.0),
        )
        context = self.structure.context
        lengths = [config.lengths for config in self.configs]
        self._lengths_3K = torch.tensor(lengths, dtype=torch.int64, device=self.device).T
        self._cuts = any(min(start, end) < context for start, end, _ in lengths)
        self._feed.set_members(self.configs)
        self._scaler = LossScaler(self.configs, self.memory) if self.structure.precision == "float16" else None
        self._parts = MicroBatches(self.configs, self.memory, self.device) if self.structure.accumulate > 1 else None
        self._routers = Routers(self.configs, self.memory, self.device) if self.structure.experts else None
        self._drawn: tuple[int, torch.Tensor, Knobs] | None = None

    def numbers_changed(self, acting: Mapping[int, GptConfig]) -> None:
        """Update the numbers of micro-batches, of the second text, and of routers."""
        self._feed.change(acting)
        if self._parts is not None:
            self._parts.change(acting)
        if self._routers is not None:
            self._routers.change(acting)

    def losses(self) -> torch.Tensor:
        """Return each member's loss on this step's data, shape (K,), in nats."""
        return self._forward(self.weights, *self._batch()).trained_K

    def losses_of(self, weights: Weights, rows: torch.Tensor) -> torch.Tensor:
        """Return the loss on this step's data for the members in ``rows``: float32, eager, twice differentiable.

        The caller must choose an attention backend that is twice differentiable.
        """
        # Without recomputation: otherwise each second derivative would repeat the forward pass.
        structure = self.structure.model_copy(update={"precision": "float32", "recompute": False})
        tokens_KBS, knobs = self._batch()
        return cross_entropy(
            structure, weights, tokens_KBS[rows], knobs.of_rows(rows).with_factor(len(rows), self.device)
        )

    def hessian_of(self, params_Rn: torch.Tensor, rows: torch.Tensor) -> Hessian:
        """Return the Hessian, by the kernel where it trains whole batches, whose sequences weigh the same."""
        if self._native is None or self._parts is not None:
            return super().hessian_of(params_Rn, rows)
        tokens_KBS, knobs = self._batch()
        return NativeHessian(
            self.structure, self.layout, kernel_folder(), params_Rn, tokens_KBS[rows], knobs.of_rows(rows)
        )

    def losses_and_gradient(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each member's loss, (K,), and gradient, (K, n), on this step's data."""
        tokens_KBS, knobs = self._batch()
        if self._clips_queries:
            self._attention_logits = attention_logits(self.structure, self.weights, tokens_KBS, knobs)

        def differentiate(first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
            if self.ranks is None:
                return self._loss_and_gradient(tokens_KBS[:, first:end], knobs.of_sequences(first, end), first)
            parts = [(tokens_KBS[:, a:z].clone(), knobs.of_sequences(a, z)) for a, z in self.ranks.bounds(first, end)]
            return self.ranks.mean(self._params_Kn, parts, self._loss_and_gradient, is_new=first == 0)

        if self._parts is None and self.ranks is None:
            loss_K, grad_Kn = self._loss_and_gradient(tokens_KBS, knobs)
        elif self._parts is None:
            loss_K, grad_Kn = differentiate(0, tokens_KBS.shape[1])
        else:
            loss_K, grad_Kn = self._parts.mean(differentiate)
        if self._scaler is not None:
            self.held_K = self._scaler.update(loss_K, grad_Kn)
        return loss_K, grad_Kn

    def serve(self, ranks: Ranks) -> None:
        """Compute gradients of parts of another process's batches until it ends: raises RankLost."""
        ranks.serve(self._params_Kn, self._loss_and_gradient)

    def after_update(self) -> None:
        """Shrink queries and keys by ``qk_clip``, and change the biases of routers.

        A member that the optimizer left alone keeps its own, as do frozen weights and weights whose norm is kept.
        """
        acting_K = self.optimizer.alive_K if self.held_K is None else self.optimizer.alive_K & ~self.held_K
        if self._clips_queries:
            holder, largest_LKH = self.optimizer.holder, self._attention_logits
            clip_queries_and_keys(self.structure, self.weights, largest_LKH, acting_K, holder)
        if self._routers is not None:
            self._routers.update(acting_K, self.optimizer.holder)

    @property
    def _clips_queries(self) -> bool:
        return self.structure.qk_clip is not None or bool(self.optimizer.holder.capped)

    def steps_ahead(self, count: int) -> list[dict[str, torch.Tensor]]:
        """Do ``count`` steps, and return the metrics of each; where it can, the kernel trains one member at a time."""
        metrics: list[dict[str, torch.Tensor]] = []
        while (left := count - len(metrics)) > 0:
            ahead = min(left, self._num_alike())
            metrics += self._by_kernel(ahead) if ahead > 1 else [self.step()]
        return metrics

    def _num_alike(self) -> int:
        """Return how many of the next steps the kernel can take at once: none may need more than it has."""
        optimizer, is_whole = self.optimizer, self._native is not None and self._parts is None
        can_step = is_whole and isinstance(optimizer, NativeOptimizer) and optimizer.can_step_ahead
        can_step = can_step and not (optimizer.holder.acts or optimizer.holder.capped or self.repeats_a_batch)
        can_step = can_step and not (self._control.has_rules or self._restarts.acts)
        can_step = can_step and not (self._averages.acts or self.ranks)
        if not can_step or self._rollback is not None or type(self) is not GptTrainer:
            return 0
        return self._changes.num_steps_before(self.num_steps)

    def _by_kernel(self, count: int) -> list[dict[str, torch.Tensor]]:
        assert self._native is not None
        assert isinstance(self.optimizer, NativeOptimizer)
        tokens_TKBS, knobs = self._tokens(count), [self._knobs(ahead) for ahead in range(count)]
        steps = self.optimizer.begin_steps(count)
        self._native.train(self._params_Kn, tokens_TKBS, knobs, steps)
        self.num_steps += count
        return self.optimizer.end_steps(steps)

    def own_metrics(self) -> dict[str, torch.Tensor]:
        """Return, in float16, the step's ``loss_scale``, and ``is_skipped`` (0 or 1)."""
        if self._scaler is None or self.held_K is None:
            return {}
        return {"loss_scale": self._scaler.used_K, "is_skipped": self.held_K}

    def signals(self) -> dict[str, torch.Tensor]:
        """Return noise scale over batch size, AdaScale's gain, whether the loss scale fell (0 or 1), uneven loads."""
        found = {} if self._parts is None else self._parts.signals()
        if self._routers is not None:
            found |= self._routers.signals()
        if self._scaler is not None:
            found["loss_scale_falls"] = self._scaler.scale_K < self._scaler.used_K
        return found

    def own_readings(self, rows: Rows) -> dict[str, torch.Tensor]:
        """Return ``attention_logit`` and ``log_z`` of this forward pass, and ``noise_scale`` of the steps before.

        With experts also the readings of the routers, whose loads are of the whole batch; with several texts
        ``domain_loss``, the loss on the held-out part of each.
        """
        tokens_KBS, knobs = self._batch()
        tokens_RBS = tokens_KBS[rows, :_MOST_SEQUENCES_READ]
        knobs = knobs.of_rows(rows).of_sequences(0, tokens_RBS.shape[1])
        noise = {} if self._parts is None else {"noise_scale": self._parts.noise_scale()[rows]}
        noise |= self._domain_losses(torch.arange(self.num_members, device=self.device)[rows])
        if self._native is not None:
            _, logit_R, log_z_R = self._native.readings(self._params_Kn[rows], tokens_RBS, knobs)
            return {"attention_logit": logit_R, "log_z": log_z_R} | noise
        weights = {name: weight.detach()[rows] for name, weight in self.weights.items()}
        routers = {} if self._routers is None else self._router_readings(weights, rows)
        return forward_readings(self.structure, weights, tokens_RBS, knobs) | noise | routers

    def _router_readings(self, weights: Weights, rows: Rows) -> dict[str, torch.Tensor]:
        """Return the readings of the routers of ``rows``, whose ``weights`` these are."""
        assert self._routers is not None
        tokens_KBS, knobs = self._batch()
        routings = routings_of(self.structure, weights, tokens_KBS[rows], knobs.of_rows(rows))
        num_sequences, num_positions = probe_size(self.structure)
        held_out = held_out_batches(self.corpus, 1, self.structure.batch_size, self.structure.context)
        probe_BS = sent(held_out[0, :num_sequences, : num_positions + 1], self.device)
        validating = self._routers.of_validation(self._fixed.of_validation()).of_rows(rows)
        probe_RBS = probe_BS.expand(len(routings[0].logits_KNE), -1, -1)
        probed = routings_of(self.structure, weights, probe_RBS, validating)
        routers = [weights[f"{layer}.router"] for layer in range(self.structure.depth)]
        return self._routers.readings(routings, probed, routers, rows)

    def validate(self, rows: Sequence[int]) -> torch.Tensor:
        """Return the mean next-byte cross-entropy on held-out text, in nats, for ``rows``; no dropout, no z-loss.

        With several domains it is the mean of their losses, whatever their weights are.
        """
        index = index_on(self.device, tuple(rows))
        if len(self._feed.texts) == 1:
            return self._held_out_loss(self.corpus, index)
        return functools.reduce(torch.add, self._domain_losses(index).values()) / len(self._feed.texts)

    def _domain_losses(self, index: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: self._held_out_loss(corpus, index) for name, corpus in self._feed.readings().items()}

    @torch.no_grad()
    def _held_out_loss(self, corpus: Corpus, index: torch.Tensor) -> torch.Tensor:
        structure, num_rows, knobs = self.structure, len(index), self._fixed.of_validation()
        knobs = (knobs if self._routers is None else self._routers.of_validation(knobs)).of_rows(index)
        batches = held_out_batches(corpus, structure.validation_batches, structure.batch_size, structure.context)
        if self._native is not None:
            tokens_RBS = batches.flatten(0, 1).expand(num_rows, -1, -1)
            return self._native.readings(self._params_Kn[index], tokens_RBS, knobs)[0]
        weights = {name: weight[index] for name, weight in self.weights.items()}
        tokens = (sent(tokens_BS, self.device).expand(num_rows, -1, -1) for tokens_BS in batches)
        losses = (cross_entropy(structure, weights, tokens_KBS, knobs) for tokens_KBS in tokens)
        # One by one: torch's sum over a stack orders batches by how many members there are.
        return functools.reduce(torch.add, losses) / structure.validation_batches

    def describe(self) -> Mapping[str, str]:
        """Return the text that was trained on."""
        return self._feed.describe()

    def _loss_and_gradient(
        self, tokens_KBS: torch.Tensor, knobs: Knobs, first: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return loss and gradient on a part of the batch, which begins with its sequence ``first``."""
        if self._native is not None:
            return self._native.losses_and_gradient(self._params_Kn, tokens_KBS, knobs)
        if self._by_hand:
            weights = {name: weight.detach() for name, weight in self.weights.items()}
            with torch.no_grad():
                return self._differentiate(weights, tokens_KBS, self.structure, self.plan.kernels, knobs)
        loss_K, shown_K, load_KLE = self._forward(self.weights, tokens_KBS, knobs)
        if self._routers is not None:
            assert load_KLE is not None
            share_KB = None if self._parts is None else self._parts.share_of_sequence
            self._routers.count(load_KLE, share_KB, first)
        # Members do not mix, so the gradient of the sum has each member's gradient.
        summed = (loss_K if self._scaler is None else self._scaler.scaled(loss_K)).sum()
        grad_Kn = rows_of_blocks(torch.autograd.grad(summed, list(self.weights.values())))
        if self._scaler is not None:
            self._scaler.unscale(grad_Kn)
        # A recorded CUDA graph overwrites this loss with the next one.
        return shown_K.detach().clone(), grad_Kn

    def _batch(self) -> tuple[torch.Tensor, Knobs]:
        """Return this step's bytes and knobs, even after the optimizer's step counter has advanced."""
        if self._drawn is None or self._drawn[0] != self.num_steps:
            self._drawn = self.num_steps, self._tokens(1)[0], self._knobs()
        _, tokens_KBS, knobs = self._drawn
        return tokens_KBS, knobs

    def _tokens(self, count: int) -> torch.Tensor:
        """Return the bytes of each member in the next ``count`` steps, (T, K, B, S) with S = context + 1."""
        return self._feed.tokens(self.cohorts, self.cohort_of_member_K, count)

    def _knobs(self, ahead: int = 0) -> Knobs:
        """Return the knobs of each member ``ahead`` steps after this one."""
        knobs = self._fixed
        if knobs.dropout_K is not None:
            key_K = self._dropout_keys.take(self.cohorts(ahead))[0, self.cohort_of_member_K]
            key_KB = dropout_keys(key_K, self.structure.batch_size)
            knobs = replace(knobs, dropout_key_KB=key_KB)
        if self._cuts:
            start_K, end_K, steps_K = self._lengths_3K
            knobs = replace(knobs, context_K=context_lengths(start_K, steps_K, self.optimizer.step_K + ahead, end_K))
        if self._parts is not None:
            knobs = replace(knobs, sequence_share_KB=self._parts.share_of_sequence)
        if self._routers is not None:
            knobs = self._routers.knobs(knobs, lambda sample: self.draw(sample, _NOISE_PURPOSE))
        return knobs

    def _numbers_of(self, field: str, neutral: float) -> torch.Tensor | None:
        values = [getattr(config, field) for config in self.configs]
        return None if all(value == neutral for value in values) else self._tensor(values, torch.float64)

    def _tensor(self, values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


start = GptTrainer  # called by Objective.start
