"""Mixtures of experts against a transformer that a user would write for one run."""

import itertools
import math
from functools import partial

import pytest
import torch
from curve_cases import assert_resumes, assert_same, curves, of_member, trained_as_alone
from expert_cases import MEMBERS, MODELS, SEEDS, SHAPE, plain_noise
from gpt_cases import plain_keys, plain_model
from pack_cases import everyone, trainer_of
from pydantic import ValidationError

from objectives.base import ExecutionPlan, GptConfig, RowSpec
from objectives.control import Rule
from objectives.instruments.curvature import GradientGraph
from objectives.interventions import Intervention
from objectives.models.data import held_out_batches
from objectives.models.gpt import GptTrainer

BIAS = "router_bias"


def experts_pack(text, num_steps: int = 0, members=MEMBERS, **fields) -> GptTrainer:
    """A pack of members that differ in their routers, some steps away from initial weights and biases."""
    configs = [GptConfig(text=text, **(SHAPE | fields | own)) for own in members]
    trainer = trainer_of("gpt", configs, list(SEEDS[: len(members)]))
    for _ in range(num_steps):
        trainer.step()
    return trainer


def tokens_of(trainer: GptTrainer) -> torch.Tensor:
    return trainer.batches.batch(trainer.cohorts())[trainer.cohort_of_member_K]


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_each_member_is_a_transformer_whose_experts_compute_only_their_own_tokens(text, model: dict) -> None:
    trainer = experts_pack(text, num_steps=3, **model)
    trainer.weights = {name: w.detach().double().requires_grad_() for name, w in trainer.weights.items()}
    tokens_KBS = tokens_of(trainer)
    trained_K = trainer.losses().detach()
    shown_K, grad_Kn = trainer.losses_and_gradient()
    for member, (config, seed) in enumerate(zip(trainer.configs, SEEDS, strict=True)):
        plain = plain_model(trainer, member, torch.float64)
        for layer, block in enumerate(plain.blocks):
            block.mixture.bias_E = trainer.memory[BIAS][member, layer].double()
            block.mixture.noise_NE = plain_noise(config, seed, 3, layer) if config.router_noise else None
        shown = plain(tokens_KBS[member], step=3, keys=plain_keys(seed, 3, SHAPE["batch_size"]))
        loss = shown + sum(block.mixture.added_loss() for block in plain.blocks)
        loss.backward()
        expected = plain.gradients()
        assert set(trainer.weights) == set(expected)
        torch.testing.assert_close(trained_K[member], loss.detach(), rtol=1e-10, atol=0)
        torch.testing.assert_close(shown_K[member], shown.detach(), rtol=1e-10, atol=0)
        for piece in trainer.layout.pieces:
            found, wanted = grad_Kn[member, piece.start : piece.end], expected[piece.name].flatten()
            assert (found - wanted).norm() <= 1e-9 * wanted.norm(), f"gradient of {piece.name} of member {member}"


# What routers do in training.


def test_the_bias_of_an_expert_moves_by_its_step_against_its_load(text) -> None:
    trainer = experts_pack(text, top_k=2)
    bias_KLE = torch.zeros_like(trainer.memory[BIAS])
    for step in range(4):
        for member in (2, 5):
            config, plain = trainer.configs[member], plain_model(trainer, member)
            for layer, block in enumerate(plain.blocks):
                block.mixture.bias_E = bias_KLE[member, layer].clone()
            plain(tokens_of(trainer)[member], step=step, keys=[])
            for layer, block in enumerate(plain.blocks):
                count_E = block.mixture.count_E
                mean = SHAPE["batch_size"] * SHAPE["context"] * 2 / SHAPE["experts"]
                bias_KLE[member, layer] += config.balance_step * (mean - count_E).sign()
        trainer.step()
        assert torch.equal(trainer.memory[BIAS], bias_KLE), f"after step {step}"
    assert bias_KLE[[2, 5]].abs().sum() > 0


def test_a_bias_counts_the_micro_batches_that_its_member_trains_on_and_no_others(text) -> None:
    fields = {"balance": "loss_free", "batch_size": 4}
    members = ({"micro_batches": 1.0}, {"micro_batches": None})
    parts = experts_pack(text, members=members, accumulate=2, **fields)
    whole = experts_pack(text, members=({}, {}), **fields)
    tokens_KBS = tokens_of(whole)
    half = experts_pack(text, members=({}, {}), **(fields | {"batch_size": 2}))
    half._drawn = (0, tokens_KBS[:, :2], half._knobs())
    for trainer in (parts, whole, half):
        trainer.step()
    assert torch.equal(parts.memory[BIAS][1], whole.memory[BIAS][1])
    assert torch.equal(parts.memory[BIAS][0], half.memory[BIAS][0])
    assert not torch.equal(half.memory[BIAS][0], whole.memory[BIAS][0])


def test_a_member_that_is_lost_keeps_its_bias_and_touches_nobody(text) -> None:
    trainer = experts_pack(text, members=({"balance": "loss_free", "lr": 1e300}, {"balance": "loss_free"}))
    for _ in range(3):
        trainer.step()
    lost = trainer.memory[BIAS][0].clone()
    trainer.step()
    assert torch.equal(trainer.memory[BIAS][0], lost)
    assert not trainer.optimizer.alive_K[0]
    assert trainer.optimizer.alive_K[1]


def test_noise_is_a_function_of_seed_and_step_and_every_layer_has_its_own(text) -> None:
    members = ({"router_noise": 0.5}, {"router_noise": 1.0}, {"router_noise": 0.5})
    trainer, again = (experts_pack(text, members=members) for _ in range(2))
    first = trainer._batch()[1].router_draw_KBLTE
    assert torch.equal(first[0], first[2])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[:, :, 0], first[:, :, 1])
    for _ in range(2):
        trainer.step()
        again.step()
    assert torch.equal(trainer._batch()[1].router_draw_KBLTE, again._batch()[1].router_draw_KBLTE)
    assert not torch.equal(trainer._batch()[1].router_draw_KBLTE, first)
    assert first.std().item() == pytest.approx(1, abs=0.1)


def test_validation_has_the_bias_of_training_and_neither_noise_nor_capacity_nor_added_losses(text) -> None:
    trainer = experts_pack(text, num_steps=3, top_k=2)
    found = trainer.validate(everyone(trainer))
    for member in everyone(trainer):
        plain = plain_model(trainer, member)
        for layer, block in enumerate(plain.blocks):
            block.mixture.bias_E = trainer.memory[BIAS][member, layer]
            block.mixture.config = trainer.configs[member].model_copy(update={"capacity": None})
        with torch.no_grad():
            losses = [plain(tokens_BS) for tokens_BS in held_out(trainer)]
        assert found[member].item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)


def held_out(trainer: GptTrainer) -> torch.Tensor:
    config = trainer.structure
    return held_out_batches(trainer.corpus, config.validation_batches, config.batch_size, config.context)


def test_a_router_whose_rate_is_zero_stays_as_it_began(text) -> None:
    trainer = experts_pack(text, members=({"router_lr": 0.0}, {}))
    before = trainer.weights["1.router"].detach().clone()
    trainer.step()
    assert torch.equal(trainer.weights["1.router"][0], before[0])
    assert not torch.equal(trainer.weights["1.router"][1], before[1])
    assert {name: trainer.group_of(name) for name in ("0.router", "0.mlp_in", "0.mlp_out")} == {
        "0.router": "router", "0.mlp_in": "mlp", "0.mlp_out": "mlp",
    }  # fmt: skip


# Optimizers, for which an expert is a matrix.


def test_a_random_second_moment_has_the_fans_of_one_expert(text) -> None:
    trainer = experts_pack(text, members=({}, {}), second_moment_start="random", width=16, heads=2, experts=8)
    pieces = {piece.name: piece for piece in trainer.layout.pieces}
    piece = pieces["0.mlp_in"]
    mean = trainer.optimizer.states["second_moment"][:, piece.start : piece.end].mean().item()
    assert mean == pytest.approx(1 / (16 + 64), rel=0.05)


def test_muon_orthogonalises_every_expert_by_itself(text) -> None:
    trainer = experts_pack(text, members=({}, {}), optimizer="muon", width=16, heads=2)
    before = trainer.weights["0.mlp_in"].detach().clone()
    trainer.step()
    step_KEDF = trainer.weights["0.mlp_in"].detach() - before
    values = torch.linalg.svdvals(step_KEDF / SHAPE["lr"] / 2)  # scale sqrt(64 / 16)
    is_used_KE = step_KEDF.flatten(2).any(2)
    largest = values[is_used_KE].amax(1)
    assert len(largest) > 2
    assert ((largest > 0.6) & (largest < 1.3)).all()


def test_a_library_gets_every_expert_as_a_matrix(text) -> None:
    trainer = experts_pack(text, members=({},), optimizer="torch.optim.NAdam")
    plain = experts_pack(text, members=({},), optimizer="torch.optim.NAdam")
    sizes = {tuple(p.shape) for p in trainer.optimizer.rule.members[0]._params}
    assert {len(size) for size in sizes} == {1, 2}
    for _ in range(3):
        trainer.step()
    plain.load_state_dict(trainer.state_dict())
    assert torch.equal(plain.step()["loss"], trainer.step()["loss"])


# Packs, checkpoints, forks and interventions.

EVEN = {"width": 16, "heads": 2, "context": 16, "experts": 4}


@pytest.mark.parametrize("model", [{}, {"top_k": 2, "gate": "sigmoid", "shared_experts": 1}], ids=str)
def test_members_with_different_routers_share_a_pack_and_train_bit_for_bit_as_alone(text, model: dict) -> None:
    configs = [GptConfig(text=text, **(SHAPE | EVEN | model | own)) for own in MEMBERS]
    trained_as_alone(partial(trainer_of, "gpt"), configs, SEEDS, 5)


def test_biases_and_rules_on_routers_resume_to_the_bit(text, tmp_path) -> None:
    changes = {"interventions": (Intervention(at=3, set={"balance_weight": 0.5, "router_lr": "x0.1"}, lasts=6),)}
    rules = {"control": (Rule(on="step", above=4, do=({"router_noise": 0.5},), every=1),)}
    own = ({"balance": "loss_free"}, {"balance": "loss_free"} | changes, {"balance": "loss_free"} | rules, changes)
    configs = [GptConfig(text=text, **(SHAPE | EVEN | one)) for one in own]
    assert_resumes(partial(trainer_of, "gpt"), configs, SEEDS[:4], 7, 12, tmp_path)


def test_a_rule_balances_the_load_once_it_is_uneven(text) -> None:
    rule = Rule(on="router_gini", above=0.5, do=({"balance_weight": 10.0},), every=1)
    own = {"router_lr": 30.0, "steps": 60}
    trainer = experts_pack(text, members=({"control": (rule,), **own}, own), **EVEN)
    for _ in range(60):
        trainer.step()
    (fired,) = trainer.fired(0)
    assert fired["value"] > 0.5
    assert fired["did"]["set"] == {"balance_weight": 10.0}
    _, readings = trainer.observed_step(everyone(trainer), [], 1)
    assert readings["router_gini"][0] < readings["router_gini"][1] - 0.1


def test_a_fork_goes_on_with_its_bias_and_a_new_member_begins_without(text) -> None:
    own = ({"balance": "loss_free"}, {})
    trainer, straight = (experts_pack(text, 5, own, **EVEN) for _ in range(2))
    kept, switched = trainer.configs[0], trainer.configs[0].model_copy(update={"balance_step": 0.1})
    trainer.arrange([RowSpec(kept, SEEDS[0], None), RowSpec(kept, SEEDS[0], 0), RowSpec(switched, SEEDS[0], 0)])
    assert torch.equal(trainer.memory[BIAS][1], straight.memory[BIAS][0])
    assert not trainer.memory[BIAS][0].any()
    expected = curves(straight, 4)
    found = curves(trainer, 4)
    assert_same(of_member(found, 1), of_member(expected, 0))
    assert not torch.equal(trainer.memory[BIAS][1], trainer.memory[BIAS][2])


@pytest.mark.parametrize(
    ("field", "value"), [("balance_weight", 1.0), ("router_z_loss", 1.0), ("router_noise", 1.0), ("capacity", 0.2)]
)
def test_an_intervention_switches_a_knob_of_the_router_on_for_its_member_alone(text, field: str, value: float) -> None:
    later = {"interventions": (Intervention(at=3, set={field: value}),)}
    trainer = experts_pack(text, members=({}, later, {}), **EVEN)
    plain, always = (experts_pack(text, members=({}, own, {}), **EVEN) for own in ({}, {field: value}))
    before, unchanged = curves(trainer, 3), curves(plain, 3)
    assert_same(before, unchanged)
    always.load_state_dict(trainer.state_dict())
    after, without = curves(trainer, 3), curves(plain, 3)
    assert_same(after, curves(always, 3))
    assert_same(of_member(after, 0), of_member(without, 0))
    assert not torch.equal(after["grad_norm"][:, 1], without["grad_norm"][:, 1])


@pytest.mark.parametrize(("group", "layers"), [("router", [0, 1]), ("deep", [1]), ("all", [0, 1]), ("mlp", [])])
def test_a_router_that_is_frozen_keeps_its_bias_until_it_thaws(text, group: str, layers: list[int]) -> None:
    later = {"interventions": (Intervention(at=2, freeze=group, lasts=2),)}
    trainer = experts_pack(text, members=({"balance": "loss_free"}, {"balance": "loss_free"} | later), **EVEN)
    biases = []
    for _ in range(5):
        trainer.step()
        biases.append(trainer.memory[BIAS][1].clone())
    others = [layer for layer in range(2) if layer not in layers]
    for before, after in itertools.pairwise(biases[1:4]):
        assert torch.equal(before[layers], after[layers])
        assert (before[others] != after[others]).any(1).all()
    assert (biases[3] != biases[4]).any(1).all()


@pytest.mark.slow
def test_a_pack_that_is_captured_for_compilation_trains_as_an_eager_one(text, monkeypatch) -> None:
    torch_compile = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **_: torch_compile(function, fullgraph=True, backend="aot_eager")
    )
    members, fields = MEMBERS[2:5], EVEN | {"depth": 1, "top_k": 2}
    configs = [GptConfig(text=text, **(SHAPE | fields | own)) for own in members]
    compiled, eager = (trainer_of("gpt", configs, [0, 1, 2], ExecutionPlan(3, compiled=one)) for one in (True, False))
    found, expected = curves(compiled, 3), curves(eager, 3)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=2e-5, atol=1e-9, msg=name)
    assert torch.equal(compiled.memory[BIAS], eager.memory[BIAS])
    assert compiled._forward._compiled is not None


# Telemetry.


def test_readings_of_routers_are_of_the_worst_layer_and_follow_their_definitions(text) -> None:
    trainer = experts_pack(text, num_steps=3, members=({}, {"router_init": 30.0}), depth=3)
    tokens_KBS, before = tokens_of(trainer), {n: w.detach().clone() for n, w in trainer.weights.items()}
    plains = [plain_model(trainer, member) for member in everyone(trainer)]
    _, readings = trainer.observed_step(everyone(trainer), [], 1)
    for member, plain in enumerate(plains):
        inputs = {}
        for layer, block in enumerate(plain.blocks):
            block.mixture.register_forward_pre_hook(partial(keep_input, inputs, layer))
        plain(tokens_KBS[member], step=3, keys=[])
        layers = [definitions(block.mixture, inputs[layer]) for layer, block in enumerate(plain.blocks)]
        for name in layers[0]:
            worst = min if name == "router_entropy" else max
            values = [layer[name] for layer in layers]
            assert readings[name][member].item() == pytest.approx(worst(values), rel=1e-4, abs=1e-6), name
            for third, value in zip(("shallow", "middle", "deep"), values, strict=True):
                assert readings[f"{name}/{third}"][member].item() == pytest.approx(value, rel=1e-4, abs=1e-6)
    assert {n for n in readings if n.startswith("router_") and "/" not in n} == {*layers[0], "router_changed"}
    assert any(not torch.equal(w, before[n]) for n, w in trainer.weights.items())


@pytest.mark.parametrize(("depth", "num_columns"), [(3, 3), (4, 7)])
def test_a_third_of_a_deep_model_reads_as_its_worst_layer(text, depth: int, num_columns: int) -> None:
    trainer = experts_pack(text, members=({}, {"router_init": 30.0}), depth=depth)
    _, readings = trainer.observed_step(everyone(trainer), [], 1)
    gini = {name.partition("/")[2]: value for name, value in readings.items() if name.startswith("router_gini/")}
    assert len(gini) == num_columns
    if depth == 4:
        worst_of_two = torch.maximum(gini["1"], gini["2"])
        assert all(torch.equal(gini[a], b) for a, b in (("shallow", gini["0"]), ("middle", worst_of_two)))


def keep_input(inputs: dict, layer: int, _module, given: tuple) -> None:
    inputs[layer] = given[0].flatten(0, 1)


def definitions(mixture, x_ND: torch.Tensor) -> dict[str, float]:
    """Readings of one layer in plain loops."""
    logits = (x_ND @ mixture.router).detach().double()
    share, load, E = logits.softmax(1), sorted(mixture.count_E.tolist()), mixture.config.experts
    pairs = [(a, b) for a in load for b in load]
    rows = mixture.router.detach().T
    cosines = [torch.cosine_similarity(rows[i], rows[j], dim=0).item() for i in range(E) for j in range(i)]
    return {
        "router_load": load[-1] * E / sum(load),
        "router_gini": sum(abs(a - b) for a, b in pairs) / (2 * E * sum(load)),
        "router_dead": load.count(0),
        "router_entropy": (-(share * share.log()).sum(1).mean() / math.log(E)).item(),
        "router_similarity": sum(cosines) / len(cosines),
        "router_zsquared": logits.exp().sum(1).log().square().mean().item(),
    }


def test_the_share_of_tokens_that_changed_experts_is_since_the_last_reading_of_the_member(text) -> None:
    trainer = experts_pack(text, members=({}, {"router_lr": 0.0, "lr": 1e-30}, {"lr": 0.3}))
    _, first = trainer.observed_step(everyone(trainer), [], 1)
    assert first["router_changed"].isnan().all()
    for _ in range(5):
        trainer.step()
    state = trainer.state_dict()
    _, second = trainer.observed_step([2, 1], [], 1)
    assert second["router_changed"][0] > 0
    assert second["router_changed"][1] == 0
    resumed = experts_pack(text, members=({}, {"router_lr": 0.0, "lr": 1e-30}, {"lr": 0.3}))
    resumed.load_state_dict(state)
    _, again = resumed.observed_step([2, 1], [], 1)
    assert torch.equal(again["router_changed"], second["router_changed"])


def test_reading_changes_nothing_of_the_training(text) -> None:
    watched, plain = (experts_pack(text, 2) for _ in range(2))
    for _ in range(3):
        found, _ = watched.observed_step(everyone(watched), [0], 2)
        assert_same(found, plain.step())
    assert torch.equal(watched.memory[BIAS], plain.memory[BIAS])


def test_the_loss_that_curvature_differentiates_is_the_one_that_is_trained(text) -> None:
    trainer = experts_pack(text, num_steps=2, top_k=2)
    rows = torch.tensor([4, 0, 2, 5])
    loss_K = trainer.losses().detach()
    trainer.losses_and_gradient()
    trainer.after_update()  # a later bias must not enter
    params_Rn = trainer._params_Kn[rows].double()
    graph = GradientGraph(lambda weights: trainer.losses_of(weights, rows), params_Rn, trainer.weight_shapes)
    torch.testing.assert_close(graph.loss_R, loss_K[rows].double(), rtol=1e-5, atol=0)
    direction_Rn = torch.randn(params_Rn.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert graph.hessian_product(direction_Rn).isfinite().all()


# What is refused.


@pytest.mark.parametrize(
    ("fields", "words"), [({"experts": 1}, "experts = 1"), ({"experts": 2, "top_k": 3}, "top_k = 3 is more than")]
)
def test_numbers_of_experts_that_leave_no_choice_are_refused(fields: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        GptConfig(steps=1, **fields)


def test_null_experts_are_none_and_none_of_their_fields_acts() -> None:
    plain = GptConfig(steps=1)
    assert GptConfig(steps=1, experts=None, shared_experts=None) == plain
    assert not any("router" in name or "balance" in name or name == "top_k" for name in plain.acting())


def test_the_native_kernel_leaves_experts_to_torch(text) -> None:
    config = GptConfig(text=text, **SHAPE)
    assert not config.has_native_kernels
    with pytest.raises(ValueError, match="experts"):
        trainer_of("gpt", [config], [0], ExecutionPlan(1, kernels="native"))


@pytest.mark.parametrize("field", ["router_lr", "balance_weight", "router_noise"])
def test_a_router_field_cannot_be_set_in_a_model_without_experts(field: str) -> None:
    with pytest.raises(ValidationError, match=f"{field}: it acts only where experts is above 0"):
        GptConfig(steps=9, interventions=(Intervention(at=3, set={field: 0.1}),))
