"""What interventions hold, compared with plain torch: frozen groups, norms, a still v, one batch, float64."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from curve_cases import assert_resumes, assert_same, curves, of_member, trained_as_alone
from gpt_cases import is_transposed, name_in_pack, plain_model
from pack_cases import trainer_of

from objectives.base import (
    ExecutionPlan,
    FunctionFitConfig,
    GptConfig,
    QuadraticConfig,
    RouterConfig,
    RowSpec,
    TrainingConfig,
)
from objectives.models.gpt import GptTrainer, choose_products
from objectives.models.gpt_model import attention_logits
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.stacking import Layout
from objectives.training.members import Changes
from objectives.training.packed import PackedTrainer

STEPS, AT, SIZE = 30, 10, 16
LAYOUT = Layout({"a": (SIZE,), "b": (4, 4)}, {"a": "first", "b": "second"})
Weights = dict[str, torch.Tensor]


def start() -> torch.Tensor:
    return torch.linspace(-1, 1, 2 * SIZE, dtype=torch.float64)


def gradients() -> torch.Tensor:
    return torch.randn(STEPS, 2 * SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def packed(own: TrainingConfig) -> torch.Tensor:
    """Parameters after each step of a pack of two, of which one has the interventions, (T, n)."""
    members = [own.model_copy(update={"interventions": ()}), own]
    optimizer = PackedOptimizer(start().repeat(2, 1), members, LAYOUT, compiled=False, seeds=[0, 0])
    changes, history = Changes(members, [0, 0]), []
    for step, grad in enumerate(gradients()):
        changes.before_step(step, optimizer, [0, 0])
        optimizer.step(torch.ones(2, dtype=torch.float64), grad.repeat(2, 1))
        history.append(optimizer.params_Kn[1].clone())
    return torch.stack(history)


class ByHand:
    """A loop over torch.optim.AdamW with a parameter group for each of the two weights, changed by hand."""

    def __init__(self, own: TrainingConfig) -> None:
        self.a, self.b = (torch.nn.Parameter(part.clone()) for part in start().split(SIZE))
        kind = torch.optim.Adam if own.weight_decay_kind == "coupled" else torch.optim.AdamW
        groups = [{"params": [self.a]}, {"params": [self.b]}]
        self.optimizer = kind(
            groups, lr=own.lr, betas=(own.beta1, own.beta2), eps=own.eps, weight_decay=own.weight_decay
        )
        self.clip, self.memory = own.clip, dict[str, Any]()

    def run(self, before: Callable[["ByHand", int], None], after: Callable[["ByHand", int], None]) -> torch.Tensor:
        history = []
        for step, grad in enumerate(gradients()):
            for weight, part in zip((self.a, self.b), grad.split(SIZE), strict=True):
                weight.grad = part.clone() if weight.requires_grad else None
            before(self, step)
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_([self.a, self.b], self.clip)
            self.optimizer.step()
            after(self, step)
            history.append(torch.cat([self.a.detach(), self.b.detach()]).clone())
        return torch.stack(history)


def nothing(loop: ByHand, step: int) -> None:
    pass


def rate_of_zero(loop: ByHand, step: int) -> None:
    loop.optimizer.param_groups[0]["lr"] = 0.0 if AT <= step < AT + 8 else 0.01


def without_gradient(loop: ByHand, step: int) -> None:
    if step >= AT:
        loop.a.requires_grad_(False)
        loop.a.grad = None


def decay_of_second(loop: ByHand, step: int) -> None:
    loop.optimizer.param_groups[1]["weight_decay"] = 0.3 if AT <= step < AT + 8 else 0.1


def remember_norm(loop: ByHand, step: int) -> None:
    if step == AT:
        loop.memory["norm"] = loop.b.detach().norm()


@torch.no_grad()
def projected(loop: ByHand, step: int) -> None:
    if AT <= step < AT + 8:
        loop.b.mul_(loop.memory["norm"] / loop.b.norm())


def remember_v(loop: ByHand, step: int) -> None:
    """Keep the weights, and what AdamW divides by after step AT - 1, bias-corrected."""
    loop.memory["weights"] = [weight.detach().clone() for weight in (loop.a, loop.b)]
    for name, weight in (("a", loop.a), ("b", loop.b)):
        if step == AT:
            state = loop.optimizer.state[weight]
            loop.memory[name] = state["exp_avg_sq"].clone(), (state["exp_avg_sq"] / (1 - 0.99**AT)).sqrt() + 1e-8


@torch.no_grad()
def divided_by_the_same(loop: ByHand, step: int) -> None:
    """Take the step again: the momentum that AdamW has now, over the divisor of step AT."""
    if not step >= AT:
        return
    for name, weight, old in zip("ab", (loop.a, loop.b), loop.memory["weights"], strict=True):
        state, (second, divisor) = loop.optimizer.state[weight], loop.memory[name]
        momentum = state["exp_avg"] / (1 - 0.9 ** (step + 1))
        weight.copy_(old * (1 - 0.01 * 0.1) - 0.01 * momentum / divisor)
        state["exp_avg_sq"].copy_(second)


@pytest.mark.parametrize(
    ("entry", "before", "after"),
    [
        ({"freeze": "first", "lasts": 8}, rate_of_zero, nothing),
        ({"freeze": "first", "moments": "stop"}, without_gradient, nothing),
        ({"weight_decay": 0.3, "group": "second", "lasts": 8}, decay_of_second, nothing),
        ({"norm": "hold", "group": "second", "lasts": 8}, remember_norm, projected),
        ({"optimizer": "sgd_like"}, remember_v, divided_by_the_same),
    ],
    ids=["freeze", "freeze and stop", "weight_decay", "norm", "sgd_like"],
)
@pytest.mark.parametrize("clip", [None, 2.0])
def test_what_an_intervention_holds_is_held_by_hand_in_torch(
    entry: Mapping[str, Any], before: Any, after: Any, clip: float | None
) -> None:
    own = TrainingConfig(
        steps=STEPS, lr=0.01, weight_decay=0.1, beta2=0.99, clip=clip, interventions=({"at": AT, **entry},)
    )
    expected, found = ByHand(own).run(before, after), packed(own)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    unchanged = ByHand(own).run(nothing, nothing)
    assert torch.allclose(unchanged[:AT], found[:AT], rtol=1e-11, atol=1e-13)
    assert not torch.allclose(unchanged[AT], found[AT], rtol=1e-6, atol=0)


def test_a_group_has_a_coupled_decay_of_its_own() -> None:
    entry = {"at": AT, "weight_decay": 0.3, "group": "second", "lasts": 8}
    own = TrainingConfig(steps=STEPS, lr=0.01, weight_decay=0.1, weight_decay_kind="coupled", interventions=(entry,))
    expected = ByHand(own).run(decay_of_second, nothing)
    torch.testing.assert_close(packed(own), expected, rtol=1e-11, atol=1e-13)


# The transformer: by torch and by the native kernel.

SHAPE = {"steps": STEPS, "width": 16, "heads": 2, "context": 16, "batch_size": 2, "depth": 2, "lr": 1e-2}
KINDS: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "freeze": [{"at": 6, "freeze": "mlp", "lasts": 5}, {"at": 8, "freeze": "deep", "moments": "stop"}],
    "decay": [{"at": 6, "weight_decay": 0.5, "group": "attention"}],
    "norm": [{"at": 6, "norm": "hold"}],
    "sgd_like": [{"at": 6, "optimizer": "sgd_like", "lasts": 6}],
    "data": [{"at": 6, "data": "same", "lasts": 4}, {"at": 12, "data": "other", "lasts": 2}],
    "attention": [{"at": 6, "attention": "capped"}],
    "precision": [{"at": 6, "precision": "float64"}],
    "precision later": [{"at": 9, "precision": "float64"}, {"at": 11, "set": {"lr": "x0.5"}, "reset": "moments"}],
}


def pack(text, configs, seeds, kernels: str = "native") -> PackedTrainer:
    return trainer_of("gpt", configs, seeds, ExecutionPlan(len(configs), kernels=kernels))


def configs_of(text, **fields: Any) -> list[GptConfig]:
    return [GptConfig(text=text, **(SHAPE | fields), interventions=tuple(entries)) for entries in KINDS.values()]


@pytest.mark.parametrize("kernels", ["default", "native"])
def test_a_member_that_holds_something_trains_as_it_does_alone(text, kernels: str) -> None:
    configs = configs_of(text)
    trained_as_alone(partial(pack, text, kernels=kernels), configs, [0] * len(configs), 16)


@pytest.mark.parametrize("stop", [5, 6, 12])
def test_what_is_held_goes_on_from_a_checkpoint_to_the_bit(stop: int, text, tmp_path: Path) -> None:
    configs = configs_of(text)
    assert_resumes(partial(pack, text), configs, [1] * len(configs), stop, 16, tmp_path)


def test_forks_that_hold_something_equal_the_runs_from_the_start(text) -> None:
    configs = configs_of(text)
    trainer = pack(text, [configs[0], configs[-1]], [2, 2])
    curves(trainer, 6)
    trainer.arrange([RowSpec(one, 2, 0) for one in configs])
    after = curves(trainer, 5)
    trainer.arrange([RowSpec(one, 2, row) for row, one in reversed(list(enumerate(configs)))])
    later = curves(trainer, 5)
    for k, one in enumerate(configs):
        straight = curves(pack(text, [one], [2]), 16)
        assert_same(of_member(after, k), {name: values[6:11] for name, values in straight.items()})
        assert_same(of_member(later, len(configs) - 1 - k), {name: values[11:] for name, values in straight.items()})


def test_the_native_kernel_takes_steps_ahead_only_where_nothing_is_held(text) -> None:
    configs = configs_of(text)
    ahead, one_by_one = (pack(text, configs, [0] * len(configs)) for _ in range(2))
    found = ahead.steps_ahead(16)
    expected = curves(one_by_one, 16)
    assert_same({name: torch.stack([row[name] for row in found]) for name in found[0]}, expected)


@pytest.mark.parametrize("kernels", ["default", "native"])
def test_a_member_in_float64_is_a_plain_model_in_float64_from_that_step(text, kernels: str) -> None:
    """It takes up weights and moments of the step; the gradient is autograd's, the optimizer torch's."""
    config = GptConfig(text=text, **SHAPE, weight_decay=0.1, interventions=({"at": 6, "precision": "float64"},))
    before = pack(text, [config.model_copy(update={"interventions": ()})], [0], kernels)
    wide = pack(text, [config], [0], kernels)
    assert_same(curves(wide, 6), curves(before, 6))
    plain = plain_model(before, 0, torch.float64)
    own = {name_in_pack(name): (name, weight) for name, weight in plain.named_parameters()}
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    for piece in before.layout.pieces:
        name, weight = own[piece.name]
        moments = [
            before.optimizer.states[f"{kind}_moment"][0, piece.start : piece.end] for kind in ("first", "second")
        ]
        moments = [
            moment.view(piece.shape).T if is_transposed(name) else moment.view(piece.shape) for moment in moments
        ]
        first, second = (moment.double().clone() for moment in moments)
        optimizer.state[weight] = {"step": torch.tensor(6.0), "exp_avg": first, "exp_avg_sq": second}
    for step in range(6, 12):
        wide.step()
        loss = plain(before.batches.batch([(0, step)])[0], step=step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    (part,) = wide._wide
    for name, weight in part.trainer.weights.items():
        other, found = own[name][1].detach(), weight[0].detach()
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, other.T if is_transposed(own[name][0]) else other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("float64", "expected"), [(False, ["high"]), (True, [])])
def test_a_pack_in_float64_leaves_the_products_of_float32_on_a_gpu_as_they_are(
    float64: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", chosen.append)
    config = GptConfig(**SHAPE, precision="tf32")
    structure = config.in_float64() if float64 else config
    choose_products(structure, torch.device("cuda"), ExecutionPlan(1, float64=float64))
    choose_products(structure, torch.device("cpu"), ExecutionPlan(1, float64=float64))
    assert chosen == expected


def test_a_member_leaves_float16_and_its_loss_scale_for_float64(text) -> None:
    fields = {**SHAPE, "text": text, "precision": "float16"}
    trainer = pack(
        text, [GptConfig(**fields, interventions=tuple(KINDS["precision"])), GptConfig(**fields)], [0, 0], "default"
    )
    found = curves(trainer, 10)
    assert torch.equal(found["loss"][:6, 0], found["loss"][:6, 1])
    assert not torch.equal(found["loss"][7:, 0], found["loss"][7:, 1])
    assert found["loss"].isfinite().all()
    assert found["loss_scale"][6:, 0].isnan().all()
    assert found["is_skipped"][6:, 0].sum() == 0


def test_attention_is_capped_as_qk_clip_caps_it(text) -> None:
    fields = {**SHAPE, "text": text, "init_deviation": 2.0}
    capped = pack(text, [GptConfig(**fields, interventions=({"at": 0, "attention": "capped"},))], [0])
    clipped = pack(text, [GptConfig(**fields, qk_clip=100.0)], [0], "default")
    free = pack(text, [GptConfig(**fields)], [0])
    for trainer in (capped, clipped, free):
        curves(trainer, 4)
    for name, weight in capped.weights.items():
        torch.testing.assert_close(weight, clipped.weights[name], rtol=1e-4, atol=1e-5)
    tokens = free.batches.batch([(0, 4)])
    assert attention_logits(free.structure, free.weights, tokens).max() > 200
    assert attention_logits(capped.structure, capped.weights, tokens).max() < 200


@pytest.mark.parametrize("clip", [{"qk_clip": 100.0}, {}])
@pytest.mark.parametrize(
    ("entry", "layers"),
    [({"freeze": "attention"}, [0, 1]), ({"freeze": "deep"}, [1]), ({"norm": "hold", "group": "shallow"}, [0])],
)
def test_clipping_of_queries_leaves_what_is_held(text, clip: Any, entry: Mapping[str, Any], layers: list[int]) -> None:
    capped = () if clip else ({"at": 0, "attention": "capped"},)
    fields = {**SHAPE, **clip, "text": text, "init_deviation": 2.0}
    configs = [GptConfig(**fields, interventions=entries) for entries in (({"at": 0, **entry}, *capped), capped)]
    held = pack(text, configs, [0, 0], "default")
    norms = {layer: held.weights[f"{layer}.qkv"].detach().norm(dim=(1, 2)) for layer in range(2)}
    held.step()
    for layer in range(2):
        share_K = held.weights[f"{layer}.qkv"].detach().norm(dim=(1, 2)) / norms[layer]
        assert [share < 0.9 for share in share_K.tolist()] == [layer not in layers, True]
        if layer in layers:
            assert share_K[0] == pytest.approx(1, abs=1e-6)


def test_rules_of_control_hold_what_interventions_hold(text) -> None:
    changes = [{"freeze": "mlp"}, {"precision": "float64"}, {"weight_decay": 0.5, "group": "mlp"}, {"data": "same"}]
    rules = [{"on": "step", "above": 3, "every": 1, "do": change} for change in changes]
    by_rule = [GptConfig(text=text, **SHAPE, control=(rule,)) for rule in rules]
    by_hand = [GptConfig(text=text, **SHAPE, interventions=({"at": 5, **change},)) for change in changes]
    seeds = [0] * len(changes)
    assert_same(curves(pack(text, by_rule, seeds), 10), curves(pack(text, by_hand, seeds), 10))


class Wide(GptTrainer):
    """A trainer of one's own that does not say whether it takes double precision."""

    takes_float64 = False


def test_a_trainer_that_does_not_declare_float64_refuses_it(text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objectives.models.gpt.start", Wide)
    with pytest.raises(ValueError, match="takes_float64 = True in Wide"):
        pack(text, [GptConfig(text=text, **SHAPE, interventions=({"at": 6, "precision": "float64"},))], [0])


def test_batches_stand_still_and_the_stream_goes_on_where_it_would_be() -> None:
    entries = ({"at": 4, "data": "same", "lasts": 3}, {"at": 9, "data": "other", "lasts": 2})
    trainer = trainer_of("quadratic", [QuadraticConfig(steps=30, noise=1.0, interventions=entries)], [5])
    seen = []
    for _ in range(13):
        trainer._begin_step()
        seen += trainer.cohorts()
        trainer.num_steps += 1
    assert [step for _, step in seen] == [0, 1, 2, 3, 3, 3, 3, 7, 8, 9, 10, 11, 12]
    assert [seed == 5 for seed, _ in seen] == [True] * 9 + [False] * 2 + [True] * 2


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"freeze": "router"}, "choose from all, embedding, attention, mlp, norm, head, shallow, deep"),
        ({"norm": "hold", "group": "router"}, "does not have"),
        ({"at": 0, "optimizer": "sgd_like"}, "choose a later step"),
        ({"at": 0, "data": "same"}, "none came before"),
        ({"data": "more"}, "same, other, or the number"),
        ({"group": "mlp", "reset": "moments"}, "has a group"),
        ({"moments": "stop", "skip": 1}, "weights that it freezes"),
        ({"precision": "float64", "lasts": 3}, "lasts also to data, freeze"),
        ({"freeze": "mlp", "over": 3}, "sets no field"),
    ],
)
def test_an_entry_without_a_meaning_is_refused(text, entry: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GptConfig(text=text, **SHAPE, interventions=({"at": 6, **entry},))


@pytest.mark.parametrize("reset", ["moments", "second_moment"])
@pytest.mark.parametrize("at", [6, 8, 9])
def test_a_second_moment_that_is_kept_is_not_reset(text, reset: str, at: int) -> None:
    kept, later = {"at": 6, "optimizer": "sgd_like", "lasts": 4}, {"at": 10, "reset": reset}
    GptConfig(text=text, **SHAPE, interventions=(kept, later, {"at": at, "reset": "first_moment"}))
    with pytest.raises(ValueError, match=f"interventions at {at} cannot reset"):
        GptConfig(text=text, **SHAPE, interventions=(kept, {"at": at, "reset": reset}))


@pytest.mark.parametrize(
    "entry",
    [{"freeze": "router"}, *({**what, "group": "router"} for what in ({"norm": "hold"}, {"weight_decay": 0.5}))],
)
def test_a_router_of_experts_is_held_without_the_other_weights(text, entry: Mapping[str, Any]) -> None:
    fields = {**SHAPE, "text": text, "experts": 2}
    held, free = (
        pack(text, [GptConfig(**fields, interventions=own)], [0], "default") for own in (({"at": 0, **entry},), ())
    )
    norms = {name: weight.norm() for name, weight in held.weights.items()}
    for trainer in (held, free):
        trainer.step()
    changed = {name for name, weight in held.weights.items() if not torch.equal(weight, free.weights[name])}
    assert changed == {"0.router", "1.router"}
    is_kept = [torch.isclose(held.weights[name].norm(), norms[name], rtol=1e-6) for name in sorted(changed)]
    assert is_kept == ["weight_decay" not in entry] * 2


@pytest.mark.parametrize(
    ("settings", "entry"),
    [
        ({"optimizer": "lion"}, {"optimizer": "sgd_like"}),
        ({"optimizer": "adafactor"}, {"freeze": "mlp", "moments": "stop"}),
        ({"qk_norm": True}, {"attention": "capped"}),
        ({"optimizer": "torch.optim.Adam"}, {"precision": "float64"}),
        ({"tie_embeddings": True}, {"freeze": "head"}),
    ],
)
def test_settings_without_what_an_entry_holds_refuse_it(text, settings: Any, entry: Mapping[str, Any]) -> None:
    GptConfig(text=text, **SHAPE, **settings)
    with pytest.raises(ValueError, match="interventions at 6"):
        GptConfig(text=text, **SHAPE, **settings, interventions=({"at": 6, **entry},))


@pytest.mark.parametrize("entry", [{"freeze": "xyz"}, {"norm": "hold", "group": "router"}, {"precision": "float64"}])
@pytest.mark.parametrize("config_class", [QuadraticConfig, FunctionFitConfig, RouterConfig])
def test_small_objectives_refuse_groups_and_another_precision(config_class: Any, entry: Mapping[str, Any]) -> None:
    config_class(steps=30, interventions=({"at": 6, "freeze": "all"},))
    with pytest.raises(ValueError, match="interventions at 6"):
        config_class(steps=30, interventions=({"at": 6, **entry},))
