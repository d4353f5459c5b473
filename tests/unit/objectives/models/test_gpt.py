import hashlib
import itertools
import math
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from curve_cases import assert_same, curves, of_member, trained_as_alone
from gpt_cases import DENSE, INITS, KNOBS, NUM_BYTES, SEEDS, PlainGpt, plain_keys, plain_model
from pack_cases import everyone, trainer_of
from tiers import one_of, thinned

from objectives.base import GptConfig
from objectives.instruments.curvature import GradientGraph
from objectives.models.gpt import GptTrainer
from objectives.models.gpt_knobs import Knobs, dropout_keys, is_kept, may_attend
from objectives.models.gpt_model import attention_logits, depth_of, forward_readings, initial_weights
from objectives.training.packed import PackedTrainer

SHAPE = {"steps": 10, "width": 12, "heads": 3, "context": 10, "batch_size": 4, "depth": 2}
# Shapes of the model that differ in more than size.
MODELS = [
    {},
    {"qk_norm": True},
    {"norm": "rms"},
    {"norm_place": "post"},
    {"norm_place": "output"},
    {"norm": "rms", "norm_place": "output", "qk_norm": True},
    {"norm": "rms", "norm_place": "post", "recompute": True},
    {"norm": None, "init": "fan_in"},
    {"norm": None, "init": "he", "qk_norm": True, "recompute": True},
    *DENSE,
]
METRICS = ("loss", "grad_norm", "update_norm", "lr")


def knobs_pack(text, num_steps: int = 0, **fields) -> GptTrainer:
    """A pack of all knobs, some steps away from the tiny initial weights."""
    configs = [GptConfig(text=text, lr=1e-2, **(SHAPE | fields | knobs)) for knobs in KNOBS]
    trainer = trainer_of("gpt", configs, list(SEEDS))
    for _ in range(num_steps):
        trainer.step()
    return trainer


def tokens_of(trainer: GptTrainer) -> torch.Tensor:
    """The text that each member trains on now."""
    return trainer.batches.batch(trainer.cohorts())[trainer.cohort_of_member_K]


# Double precision is not how it trains, but there the two must agree to the last digits.
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    thinned([(torch.float32, 1e-4), (torch.float64, 1e-12)], lambda case: case[0] == torch.float64),
    ids=["f32", "f64"],
)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_each_member_is_an_ordinary_transformer_with_its_own_knobs(text, model: dict, dtype, tolerance) -> None:
    trainer = knobs_pack(text, num_steps=3, **model)
    trainer.weights = {name: w.detach().to(dtype).requires_grad_() for name, w in trainer.weights.items()}
    tokens_KBS = tokens_of(trainer)
    losses = trainer.losses()
    grads = torch.autograd.grad(losses.sum(), list(trainer.weights.values()))
    for member, seed in enumerate(SEEDS):
        plain = plain_model(trainer, member, dtype)
        loss = plain(tokens_KBS[member], step=3, keys=plain_keys(seed, 3, SHAPE["batch_size"]))
        loss.backward()
        expected = plain.gradients()
        assert set(trainer.weights) == set(expected)
        torch.testing.assert_close(losses[member], loss.detach(), rtol=tolerance, atol=0, check_dtype=False)
        for name, found in zip(trainer.weights, grads, strict=True):
            error = (found[member] - expected[name]).norm() / expected[name].norm()
            assert error < tolerance, f"gradient of {name} of member {member}: off by {error:.1e} of its norm"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_neighbours_with_knobs_change_no_bit_of_a_member_without(text, precision: str) -> None:
    shape = {"text": text, "lr": 1e-2, "steps": 10, "width": 16, "context": 16, "precision": precision}
    plain, wild = GptConfig(**shape), [GptConfig(**shape, corrupted=0.5, **knobs) for knobs in KNOBS[1:]]
    for accumulate in (1, 2):
        changes = {"accumulate": accumulate}
        alone = trainer_of("gpt", [plain.model_copy(update=changes)], [3])
        configs = [config.model_copy(update=changes) for config in (wild[0], plain, *wild[1:])]
        among = trainer_of("gpt", configs, [0, 3, 3, 1, 2])
        expected, found = curves(alone, 4), curves(among, 4)
        assert_same(of_member(found, 1), expected)
        assert torch.equal(among.validate([1]), alone.validate([0]))


SIZES = [
    {"width": 12, "heads": 3, "context": 7, "batch_size": 1, "depth": 1},
    {"width": 8, "heads": 2, "context": 8, "batch_size": 1, "depth": 2},
    {"width": 4, "heads": 1, "context": 2, "batch_size": 1, "depth": 2, "norm": "rms", "qk_norm": True},
    {"width": 8, "heads": 2, "context": 8, "batch_size": 1, "depth": 2, "norm": None, "init": "fan_in"},
    {"width": 12, "heads": 3, "context": 7, "batch_size": 1, "depth": 1, "position": "rope", "mlp": "swiglu",
     "kv_heads": 1, "logit_softcap": 2.0, "attention_softcap": 1.0, "bias": True, "tie_embeddings": True},
]  # fmt: skip


@pytest.mark.parametrize(
    ("precision", "sizes"),
    # By default each shape in one precision, and each precision.
    thinned(
        list(itertools.product(["float32", "bfloat16", "float16"], SIZES)),
        lambda case: (
            (case[0], SIZES.index(case[1]))
            in (("float16", 0), ("float32", 1), ("bfloat16", 2), ("float16", 3), ("bfloat16", 4))
        ),
    ),
    ids=lambda value: f"width {value['width']} {value.get('norm', '')}" if isinstance(value, dict) else value,
)
def test_who_shares_a_pack_changes_no_bit_in_any_precision(text, precision: str, sizes: dict) -> None:
    """One member takes less than torch's products of 16 bits need to change libraries, and 17 of them take more."""
    shared = {"text": text, "steps": 100, "precision": precision, "init_deviation": 0.5, "validation_batches": 1}
    configs = [GptConfig(lr=3e-3 * (1 + k), **shared, **sizes) for k in range(17)]
    seeds = [k % 3 for k in range(17)]
    together = trainer_of("gpt", configs, seeds)
    expected, held_out = curves(together, 6), together.validate(everyone(together))
    for rows in [[k] for k in range(17)] + [[2, 11], [16, 0, 5, 3]]:
        apart = trainer_of("gpt", [configs[k] for k in rows], [seeds[k] for k in rows])
        found = curves(apart, 6)
        for name in METRICS:
            # The gradient of a step that is skipped in float16 is not finite.
            assert torch.equal(found[name].nan_to_num(), expected[name][:, rows].nan_to_num()), f"{name} of {rows}"
        assert torch.equal(apart.validate(everyone(apart)), held_out[rows]), f"validation of {rows}"
    assert expected["loss"].isfinite().all()


def test_knobs_with_their_neutral_values_are_not_there(text) -> None:
    config = GptConfig(
        text=text, steps=1, z_loss=0.0, residual_scale=1.0, dropout=0.0, context=8, context_start=8, context_steps=5
    )
    assert trainer_of("gpt", [config, config], [0, 1])._batch()[1] == Knobs()


# Dropout.


def test_dropout_keeps_the_share_that_it_should_and_sees_no_pattern() -> None:
    keys_KB = dropout_keys(torch.tensor([5, 6, 7]), 40)
    knobs = Knobs(dropout_K=torch.tensor([0.0, 0.25, 0.9], dtype=torch.float64), dropout_key_KB=keys_KB)
    kept_KXBn = torch.stack([is_kept(knobs, branch, 1000) for branch in range(4)], dim=1).double()
    assert kept_KXBn[0].all()
    for share, kept_XBn in ((0.25, kept_KXBn[1]), (0.9, kept_KXBn[2])):
        deviation = math.sqrt(share * (1 - share))
        assert kept_XBn.mean() == pytest.approx(1 - share, abs=4 * deviation / math.sqrt(160_000))
        # Neighbours in place, sequences of a batch, and sublayers know nothing of each other.
        for size in range(3):
            one, other = (
                kept_XBn.narrow(size, 1, kept_XBn.shape[size] - 1),
                kept_XBn.roll(1, size).narrow(size, 1, kept_XBn.shape[size] - 1),
            )
            correlation = ((one - 1 + share) * (other - 1 + share)).mean() / deviation**2
            assert abs(correlation) < 4 / math.sqrt(one.numel())


def test_the_masks_of_a_step_are_functions_of_seed_and_step_and_a_larger_share_drops_more(text) -> None:
    shape = SHAPE | {"text": text}
    configs = [GptConfig(dropout=dropout, **shape) for dropout in (0.2, 0.5, 0.2, 0.2)]
    trainer = trainer_of("gpt", configs, [0, 0, 1, 0])

    def masks() -> torch.Tensor:
        return is_kept(trainer._batch()[1], 0, 120)

    first = masks()
    assert torch.equal(first[0], first[3])
    assert not torch.equal(first[0], first[2])
    assert (first[1] <= first[0]).all()
    assert not torch.equal(first[0], first[1])
    trainer.step()
    assert not torch.equal(masks()[0], first[0])
    alone = trainer_of("gpt", configs[:1], [0])
    assert torch.equal(is_kept(alone._batch()[1], 0, 120)[0], first[0])


def test_validation_is_the_cross_entropy_without_dropout_z_loss_and_short_context(text) -> None:
    trainer = knobs_pack(text, num_steps=3, validation_batches=3)
    content = Path(text[0]).read_bytes()
    held_out = torch.tensor(list(content[int(0.9 * len(content)) :]))
    starts = torch.linspace(0, len(held_out) - SHAPE["context"] - 1, 3 * SHAPE["batch_size"]).long()
    tokens = torch.stack([held_out[i : i + SHAPE["context"] + 1] for i in starts])
    with torch.no_grad():
        expected = torch.stack([plain_model(trainer, member)(tokens) for member in everyone(trainer)])
    torch.testing.assert_close(trainer.validate(everyone(trainer)), expected, rtol=1e-6, atol=0)


# Blocks of context.


def test_attention_stays_within_a_block_of_context() -> None:
    found = may_attend(torch.tensor([5, 2, 1]), 5).int().tolist()
    assert found[0] == torch.ones(5, 5).tril().int().tolist()
    assert found[1] == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]]
    assert found[2] == torch.eye(5).int().tolist()


def test_a_context_that_has_grown_to_all_of_it_trains_like_one_that_always_was(text) -> None:
    shape = SHAPE | {"text": text, "lr": 1e-2, "width": 8, "heads": 2, "context": 8}
    grown = trainer_of("gpt", [GptConfig(**shape, context_start=2, context_steps=3)], [0])
    curves(grown, 3)
    whole = trainer_of("gpt", [GptConfig(**shape)], [0])
    whole.load_state_dict(grown.state_dict())
    expected, found = curves(whole, 3), curves(grown, 3)
    assert torch.equal(found["loss"], expected["loss"])
    assert torch.equal(found["grad_norm"], expected["grad_norm"])


# Initial weights.


def test_initial_weights_have_the_deviation_of_their_member(text) -> None:
    deviations = [0.02, 0.1, 0.002]
    configs = [GptConfig(text=text, init_deviation=deviation, **(SHAPE | {"width": 48})) for deviation in deviations]
    trainer = trainer_of("gpt", configs, [0, 0, 1])
    drawn = [initial_weights(configs[0], seed) for seed in (0, 0, 1)]
    for name, weight in trainer.weights.items():
        for member, deviation in enumerate(deviations):
            if name.endswith("norm"):
                assert (weight[member] == 1).all()
                continue
            torch.testing.assert_close(weight[member].detach(), drawn[member][name] * (deviation / 0.02))
            residual = math.sqrt(2 * SHAPE["depth"]) if name.endswith("_out") else 1.0
            tolerance = 4 / math.sqrt(2 * weight[member].numel())
            assert weight[member].std().item() == pytest.approx(deviation / residual, rel=tolerance), name
    assert all(torch.equal(trainer.weights[name][0], drawn[0][name]) for name in drawn[0])


@pytest.mark.parametrize("init", INITS)
def test_initial_weights_have_the_deviation_that_the_papers_give_their_matrix(text, init: str) -> None:
    shape = SHAPE | {"width": 48, "context": 48, "norm": None}
    D, V, residual = 48, NUM_BYTES, 0.02 / math.sqrt(2 * SHAPE["depth"])
    expected = {
        "gpt2": {"embedding": 0.02, "qkv": 0.02, "attention_out": residual, "mlp_in": 0.02, "mlp_out": residual,
                 "head": 0.02},
        "fan_in": {"embedding": 1, "qkv": D**-0.5, "attention_out": D**-0.5, "mlp_in": D**-0.5,
                   "mlp_out": (4 * D) ** -0.5, "head": D**-0.5},
        "he": {"embedding": 1, "qkv": D**-0.5, "attention_out": D**-0.5, "mlp_in": (2 / D) ** 0.5,
               "mlp_out": (4 * D) ** -0.5, "head": D**-0.5},
        "xavier": {"embedding": 1, "qkv": (2 / (D + D)) ** 0.5, "attention_out": (2 / (D + D)) ** 0.5,
                   "mlp_in": (2 / (D + 4 * D)) ** 0.5, "mlp_out": (2 / (D + 4 * D)) ** 0.5,
                   "head": (2 / (D + V)) ** 0.5},
    }[init]  # fmt: skip
    trainer = trainer_of("gpt", [GptConfig(text=text, init=init, **shape)], [0])
    assert not any("norm" in name for name in trainer.weights)
    for name, weight in trainer.weights.items():
        deviation = expected["embedding" if name == "position" else name.split(".")[-1]]
        tolerance = 4 / math.sqrt(2 * weight[0].numel())
        assert weight[0].std().item() == pytest.approx(deviation, rel=tolerance), name


@pytest.mark.parametrize("norm", ["layer", None])
def test_members_with_different_inits_share_a_pack_and_train_bit_for_bit_as_alone(text, norm: str | None) -> None:
    shape = SHAPE | {"text": text, "lr": 1e-2, "norm": norm, "width": 16, "heads": 2, "context": 16}
    configs = [GptConfig(init=init, **shape) for init in INITS]
    trained_as_alone(partial(trainer_of, "gpt"), configs, [3, 3, 0, 3], 4)


def test_without_norms_the_place_of_norms_changes_nothing_and_queries_have_the_root_mean_square(text) -> None:
    shape = SHAPE | {"text": text, "lr": 1e-2, "norm": None, "qk_norm": True, "init": "fan_in"}
    first, *others = (
        curves(trainer_of("gpt", [GptConfig(norm_place=place, **shape)], [0]), 3)["loss"]
        for place in ("pre", "post", "output")
    )
    assert all(torch.equal(loss, first) for loss in others)
    weights = set(trainer_of("gpt", [GptConfig(**shape)], [0]).weights)
    assert {name for name in weights if name.endswith("norm")} == {f"{i}.{z}_norm" for i in range(2) for z in "qk"}


@pytest.mark.parametrize(
    ("depth", "thirds"),
    [
        (1, ["middle"]),
        (2, ["shallow", "deep"]),
        (3, ["shallow", "middle", "deep"]),
        (4, ["shallow", "middle", "middle", "deep"]),
        (6, ["shallow"] * 2 + ["middle"] * 2 + ["deep"] * 2),
    ],
)
def test_blocks_belong_to_the_third_of_the_depth_that_their_middle_is_in(depth: int, thirds: list[str]) -> None:
    assert [depth_of(f"{block}.qkv", depth) for block in range(depth)] == thirds
    assert {depth_of(name, depth) for name in ("embedding", "position", "final_norm", "head")} == {None}


def test_readings_by_depth_are_those_of_the_weights_in_each_third(text) -> None:
    config = GptConfig(text=text, steps=9, depth=3, width=8, heads=2, context=8, batch_size=2)
    trainer, plain = (trainer_of("gpt", [config] * 2, [0, 1]) for _ in range(2))
    before = {name: weight.detach().clone() for name, weight in trainer.weights.items()}
    metrics, readings = trainer.observed_step([0, 1], [], 1)
    torch.testing.assert_close(metrics["loss"], plain.step()["loss"], rtol=0, atol=0)
    for third, block in (("shallow", 0), ("middle", 1), ("deep", 2)):
        names = [name for name in before if name.startswith(f"{block}.")]
        change_Kn = torch.cat([(trainer.weights[name] - before[name]).flatten(1) for name in names], dim=1)
        expected_K = change_Kn.double().square().mean(1).sqrt()
        torch.testing.assert_close(readings[f"update_rms/{third}"].double(), expected_K, rtol=1e-4, atol=0)
    of_blocks = sum(readings[f"grad_norm/{third}"].square() for third in ("shallow", "middle", "deep"))
    of_others = sum(readings[f"grad_norm/{group}"].square() for group in ("embedding", "head"))
    assert ((of_blocks + of_others) <= readings["grad_norm/all"].square() * (1 + 1e-5)).all()
    assert {name.split("/")[0] for name in readings if name.endswith("/deep")} == {"grad_norm", "update_rms"}


def test_weights_belong_to_the_group_that_their_name_says(text) -> None:
    trainer = trainer_of("gpt", [GptConfig(text=text, steps=1, qk_norm=True, depth=1)], [0])
    assert {name: trainer.group_of(name) for name in trainer.weights} == {
        "embedding": "embedding",
        "position": "embedding",
        "0.attention_norm": "norm",
        "0.qkv": "attention",
        "0.q_norm": "norm",
        "0.k_norm": "norm",
        "0.attention_out": "attention",
        "0.mlp_norm": "norm",
        "0.mlp_in": "mlp",
        "0.mlp_out": "mlp",
        "final_norm": "norm",
        "head": "head",
    }


# Memory.


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_recomputed_activations_change_no_bit_and_are_computed_twice(text, precision: str, monkeypatch) -> None:
    calls = []
    gelu = F.gelu
    monkeypatch.setattr(F, "gelu", lambda x: calls.append(0) or gelu(x))
    kept, recomputed = (knobs_pack(text, precision=precision, recompute=recompute) for recompute in (False, True))
    expected, num_kept = curves(kept, 3), len(calls)
    found = curves(recomputed, 3)
    assert_same(found, expected)
    assert len(calls) - num_kept == 2 * num_kept


def test_recomputation_keeps_less_for_the_backward_pass(text) -> None:
    sizes = []
    for recompute in (False, True):
        trainer, kept = knobs_pack(text, depth=4, recompute=recompute), []

        def keep(tensor: torch.Tensor, kept: list = kept) -> torch.Tensor:
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            trainer.losses()
        sizes.append(sum(kept))
    assert sizes[1] < 0.5 * sizes[0]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_micro_batches_add_up_to_the_batch(text, precision: str) -> None:
    shape = {"text": text, "lr": 1e-2, **SHAPE, "precision": precision}
    tolerance = 1e-5 if precision == "float32" else 2e-2
    for accumulate in (2, 4):
        whole, pieces = (
            trainer_of("gpt", [GptConfig(**shape, corrupted=0.5, accumulate=n, **knobs) for knobs in KNOBS], SEEDS)
            for n in (1, accumulate)
        )
        for _ in range(3):
            expected, found = whole.losses_and_gradient(), pieces.losses_and_gradient()
            torch.testing.assert_close(found[0], expected[0], rtol=tolerance, atol=0)
            error_K = (found[1] - expected[1]).norm(dim=1) / expected[1].norm(dim=1)
            assert (error_K < tolerance).all()
            whole.step()
            pieces.load_state_dict(whole.state_dict() | {"memory": pieces.state_dict()["memory"]})


def test_micro_batches_that_do_not_divide_the_batch_are_refused() -> None:
    GptConfig(steps=1, batch_size=6, accumulate=3)
    with pytest.raises(ValueError, match="batch_size = 6 is not a multiple of accumulate = 4"):
        GptConfig(steps=1, batch_size=6, accumulate=4)


# Readings.


@pytest.mark.parametrize("model", MODELS[:2], ids=str)
def test_readings_are_the_largest_attention_logit_and_the_mean_size_of_log_z(text, model: dict) -> None:
    trainer = knobs_pack(text, **model)
    with torch.no_grad():
        for name, weight in trainer.weights.items():
            weight.mul_(1 if name.endswith("norm") else 20)
    tokens_KBS = tokens_of(trainer)
    found = forward_readings(trainer.structure, trainer.weights, tokens_KBS)
    assert {name: value.shape for name, value in found.items()} == {"attention_logit": (5,), "log_z": (5,)}
    for member in everyone(trainer):
        plain = PlainGpt(trainer.structure).take({name: weight[member] for name, weight in trainer.weights.items()})
        T, ones = SHAPE["context"], [1.0] * (2 * SHAPE["depth"])
        logits = plain.logits(tokens_KBS[member, :, :-1], ones).detach()
        earlier_TT = torch.ones(T, T, dtype=torch.bool).tril()
        largest = max(block.scores[..., earlier_TT].abs().max().item() for block in plain.blocks)
        assert found["attention_logit"][member].item() == pytest.approx(largest, rel=1e-5)
        log_z = logits.double().exp().sum(-1).log().abs().mean().item()
        assert found["log_z"][member].item() == pytest.approx(log_z, rel=1e-5)


def test_readings_see_the_knobs_and_are_only_of_the_members_asked_for(text) -> None:
    trainer = knobs_pack(text, num_steps=2)
    rows = torch.tensor([3, 1])
    every, some = trainer.own_readings(torch.arange(5)), trainer.own_readings(rows)
    for name, value in some.items():
        torch.testing.assert_close(value, every[name][rows], rtol=1e-6, atol=0)
    neutral = forward_readings(trainer.structure, trainer.weights, tokens_of(trainer)[:, :2])  # as many as are read
    assert neutral["log_z"][0] == every["log_z"][0]
    assert (neutral["log_z"][1:] != every["log_z"][1:]).all()


def test_a_member_that_is_not_finite_is_read_as_such_and_its_neighbours_as_ever(text) -> None:
    trainer = knobs_pack(text, num_steps=1)
    clean = trainer.own_readings(torch.arange(5))
    with torch.no_grad():
        trainer.weights["0.qkv"][1] = math.nan
    dirty = trainer.own_readings(torch.arange(5))
    for name in clean:
        assert not math.isfinite(dirty[name][1])
        assert torch.equal(dirty[name][[0, 2, 3, 4]], clean[name][[0, 2, 3, 4]])


# Curvature.


@pytest.mark.parametrize("model", one_of(4, MODELS), ids=str)
def test_the_loss_of_any_shape_with_any_knob_has_a_second_derivative(text, model: dict) -> None:
    trainer = knobs_pack(text, num_steps=2, **model)
    rows = torch.tensor([4, 0, 1, 2, 3])
    params_Rn = trainer._params_Kn[rows].double()
    direction_Rn = torch.randn(params_Rn.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    direction_Rn[:, sum(piece.size for piece in trainer.layout.pieces) :] = 0

    def graph_at(params_Rn: torch.Tensor) -> GradientGraph:
        return GradientGraph(lambda weights: trainer.losses_of(weights, rows), params_Rn, trainer.weight_shapes)

    graph, step = graph_at(params_Rn), 1e-6
    found = graph.hessian_product(direction_Rn)
    ahead, behind = (graph_at(params_Rn + sign * step * direction_Rn).gradient_Rn for sign in (1, -1))
    expected = (ahead - behind) / (2 * step)
    assert ((found - expected).norm(dim=1) / expected.norm(dim=1) < 1e-5).all()
    # It is the loss that is trained: the same numbers, masks and lengths.
    loss_K, grad_Kn = PackedTrainer.losses_and_gradient(trainer)
    torch.testing.assert_close(graph.loss_R, loss_K[rows].double(), rtol=1e-5, atol=0)
    error_R = (graph.gradient_Rn - grad_Kn[rows]).norm(dim=1) / grad_Kn[rows].norm(dim=1)
    assert (error_R < 1e-4).all()


def test_curvature_of_a_step_belongs_to_its_own_batch_masks_and_lengths(text) -> None:
    watched, other = knobs_pack(text), knobs_pack(text)
    for step in range(3):
        expected = other.losses().detach()
        found = watched.losses_of(watched.weights, torch.arange(5)).detach()
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, msg=f"step {step}")
        watched.observed_step(everyone(watched), everyone(watched), 2)
        other.step()
    for name, weight in watched.weights.items():
        assert torch.equal(weight, other.weights[name])


# The text, and training on it.


def test_before_training_every_byte_is_about_as_likely(text) -> None:
    trainer = trainer_of("gpt", [GptConfig(text=text, **SHAPE)], [0])
    assert float(trainer.step()["loss"]) == pytest.approx(math.log(NUM_BYTES), abs=0.05)


def test_the_loss_falls_on_the_default_text() -> None:
    config = GptConfig(steps=60, lr=1e-2, width=16, context=16, batch_size=8)
    trainer = trainer_of("gpt", [config], [0])
    loss = torch.cat([trainer.step()["loss"] for _ in range(60)])
    # From ln 256 = 5.5 to below ln 64 = 4.2: it has learned which bytes there are at all.
    assert loss[:5].mean() > 5
    assert loss[-10:].mean() < math.log(64)
    assert trainer.validate(everyone(trainer)).item() < math.log(64)


def test_training_and_validation_read_the_text_that_the_record_names(text) -> None:
    trainer = trainer_of("gpt", [GptConfig(text=text, **SHAPE)], [0])
    content = Path(text[0]).read_bytes()
    assert trainer.describe() == {
        "text": text[0],
        "text_sha256": hashlib.sha256(content).hexdigest(),
        "text_bytes": str(len(content)),
    }


def test_bfloat16_rounds_products_and_keeps_weights_in_single_precision(text) -> None:
    changes = {"text": text, "lr": 1e-2, "width": 32, "context": 16, "steps": 5}
    exact, rounded = (
        trainer_of("gpt", [GptConfig(precision=precision, **changes)] * 2, [0, 1])
        for precision in ("float32", "bfloat16")
    )
    for step in range(3):
        found, wanted = rounded.step(), exact.step()
        assert not torch.equal(found["loss"], wanted["loss"]), "bfloat16 changes nothing"
        torch.testing.assert_close(found["loss"], wanted["loss"], rtol=1e-2, atol=0)
        if step == 0:  # later gradients are of other weights
            assert not torch.equal(found["grad_norm"], wanted["grad_norm"]), "nor in the backward pass"
            torch.testing.assert_close(found["grad_norm"], wanted["grad_norm"], rtol=2e-2, atol=0)
    assert {weight.dtype for weight in rounded.weights.values()} == {torch.float32}


def test_validation_does_not_depend_on_the_seed_of_the_data(text) -> None:
    trainer = trainer_of("gpt", [GptConfig(text=text, **SHAPE)] * 2, [0, 1])
    with torch.no_grad():
        for weight in trainer.weights.values():
            weight[1] = weight[0]
    first, second = trainer.validate(everyone(trainer)).tolist()
    assert first == pytest.approx(second, rel=1e-6)


GOLDEN = {"loss": 5.541652, "grad_norm": 1.085077, "update_norm": 0.8286704, "lr": 0.01}


def test_one_golden_step(text) -> None:
    config = GptConfig(text=text, lr=1e-2, clip=1.0, weight_decay=0.1, **SHAPE)
    metrics = {name: float(value) for name, value in trainer_of("gpt", [config], [0]).step().items()}
    assert metrics == pytest.approx(GOLDEN, rel=1e-4), (
        "One step of the built-in transformer no longer gives the numbers that it gave. If you changed the\n"
        "model, its initial weights, the batches or the optimizer on purpose, every result in users'\n"
        "ledgers was made by another trainer: say so in CHANGELOG.md, change the pinned numbers here to\n"
        f"{metrics}, and make the reference map of the README again with `make run`. If not, this is a bug."
    )


# QK-clip.

CLIPPED = {"width": 16, "heads": 4, "depth": 2, "init_deviation": 0.6, "steps": 10, "context": 10, "batch_size": 4}


@pytest.mark.parametrize("model", [{}, {"kv_heads": 2, "position": "rope", "bias": True}], ids=str)
def test_qk_clip_brings_the_largest_logit_of_every_head_down_to_the_threshold(text, model: dict) -> None:
    config = GptConfig(text=text, lr=1e-30, **(CLIPPED | model))
    plain = trainer_of("gpt", [config, config], [0, 1])
    before = attention_logits(config, plain.weights, tokens_of(plain))
    own = config.model_copy(update={"qk_clip": before.flatten().median().item()})
    clipped, tokens_KBS = trainer_of("gpt", [own, own], [0, 1]), tokens_of(plain)
    clipped.step()
    after = attention_logits(config, clipped.weights, tokens_KBS)[0]  # later layers see other inputs then
    groups = before[0].unflatten(1, (own.num_kv_heads, -1)).amax(2)
    factor = (own.qk_clip / groups).clamp(max=1).repeat_interleave(own.heads // own.num_kv_heads, dim=1)
    assert (factor < 1).any()
    torch.testing.assert_close(after, before[0] * factor, rtol=1e-4, atol=0)


def test_qk_clip_beyond_all_logits_changes_no_bit(text) -> None:
    config = GptConfig(text=text, lr=1e-2, **CLIPPED)
    plain, clipped = (
        trainer_of("gpt", [config.model_copy(update={"qk_clip": clip})] * 2, [0, 1]) for clip in (None, 1e9)
    )
    assert_same(curves(clipped, 4), curves(plain, 4))
