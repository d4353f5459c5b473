"""What every objective promises; the suite is objectives/conformance.py."""

from pathlib import Path
from typing import Any

import pytest
from tiers import thinned

from objectives.base import OBJECTIVES
from objectives.conformance import ObjectiveConformance
from objectives.optimizers.facts import OPTIMIZERS

DOCS = str(Path(__file__).parents[2] / "docs" / "*.md")
ROUTER_FIELDS = ("balance_weight", "router_z_loss", "router_noise", "router_lr", "router_init", "capacity")
# Those of AdamW act in kernels of their own.
OPTIMIZER_FIELDS = {
    name for facts in OPTIMIZERS.values() if facts.name != "adamw" for name in facts.fields.model_fields
}
NUM_TURNS = 5  # classes with a ``turn``: together they have every optimizer
# Precisions, and sizes of packs: the smallest, an odd one and the largest by default.
READINGS = [(precision, sizes) for precision in ("float32", "bfloat16", "float16") for sizes in ((2, 5), (3, 8))]
# The training loop is one for all objectives: TestGpt tests it by default, and each other objective a part.
FEWER = {"size": [2, 31], "index": [[1, 3]], "rows": [[3, 0]], "schedule": ["constant", "wsd"]}
STARTS = [("adamw", "random"), ("sgd", "data")]


class SomeByDefault:
    """What an objective tests by default; the rest is among the slow tests."""

    turn: int | None = None  # which optimizers; None for all besides, and each third optimizer

    @classmethod
    def runs_by_default(cls, arguments: dict[str, Any]) -> bool:
        """Whether a test with these arguments does."""
        if "number" in arguments:
            return arguments["number"] % (3 if cls.turn is None else NUM_TURNS) == (cls.turn or 0)
        if cls.turn is None:
            return True
        if "start" in arguments:
            return (arguments["optimizer"], arguments["start"]) in STARTS
        return all(value in FEWER.get(name, [value]) for name, value in arguments.items())

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "field" in metafunc.fixturenames:
            fields = sorted(self.objective.per_member_fields | set(self.values))
            metafunc.parametrize("field", thinned(fields, self.has_by_default))

    def has_by_default(self, field: str) -> bool:
        """By default only fields that no other objective has."""
        return field not in TestGpt.objective.per_member_fields


class TestGpt(SomeByDefault, ObjectiveConformance):
    objective = OBJECTIVES["gpt"]
    small = {
        "width": 8,
        "heads": 2,
        "context": 8,
        "batch_size": 2,
        "shift_text": (str(Path(__file__).parents[2] / "CHANGELOG.md"),),
        "mix_text": (DOCS,),
    }
    values = {
        "corrupted": [0.0, 0.5, 1.0],
        "burst_at": [None, 0, 3],
        "burst_length": [0, 1, 5],
        "shift_at": [None, 2, 4],
        "mix_share": [0.0, 0.3, 0.9],
        "domain_temperature": [0.3, 1.0, 10.0],
        "curriculum_from": [0.1, 0.5, 1.0],
        "curriculum_to": [0.3, 0.7, 1.0],
        "curriculum_steps": [2, 6, 12],
        "context_start": [None, 2, 4],
        "context_steps": [2, 6, 12],
        "loss_scale": [1.0, 1e3, 2.0**40],
        "loss_scale_growth": [1, 3, 100],
        "residual_scale": [0.0, 1.0, 3.0],
        "residual_depth": [None, "inverse_sqrt", "inverse"],
        "init": ["gpt2", "fan_in", "xavier"],
        "init_deviation": [1e-3, 0.02, 0.3],
        "dropout": [0.0, 0.1, 0.9],
        "z_loss": [0.0, 1e-4, 1.0],
        "embedding_grad": [0.0, 0.1, 10.0],
        "embedding_lr": [0.0, 0.1, 10.0],
        "attention_lr": [0.0, 0.1, 10.0],
        "mlp_lr": [0.0, 0.1, 10.0],
        "norm_lr": [0.0, 0.1, 10.0],
        "head_lr": [0.0, 0.1, 10.0],
        "micro_batches": [1.0, 3.0, None],
        "balance": [None, "aux", "loss_free"],
        "balance_weight": [None, 0.1, 10.0],
        "balance_step": [0.0, 1e-2, 1.0],
        "router_z_loss": [0.0, 0.1, 10.0],
        "router_noise": [0.0, 0.1, 1.0],
        "router_lr": [0.0, 1.0, 10.0],
        "router_init": [0.0, 1.0, 100.0],
        "capacity": [None, 1.0, 0.3],
    }
    needs = {
        **{field: {"experts": 4} for field in ROUTER_FIELDS},
        "balance": {"experts": 4, "balance_step": 0.1},
        "balance_step": {"experts": 4, "balance": "loss_free"},
        "burst_length": {"burst_at": 2},
        "domain_temperature": {"domains": {"tables": 3.0, DOCS: 1.0}},
        **{f"curriculum_{name}": {"curriculum": "compression", "text": (DOCS,)} for name in ("from", "to")},
        "curriculum_steps": {"curriculum": "length"},
        "context_start": {"context_steps": 6},
        "context_steps": {"context_start": 2},
        "loss_scale": {"precision": "float16"},
        "micro_batches": {"accumulate": 4, "batch_size": 4},
        "residual_depth": {"depth": 3},
        # The text is Python's own: here norms rise with that of every version.
        "zclip": {"zclip_warmup": 2, "lr": 30.0},
        "zclip_warmup": {"zclip": 1e-2, "lr": 30.0},
        "loss_scale_growth": {"precision": "float16", "loss_scale": 2.0**18},
    }

    def has_by_default(self, field: str) -> bool:
        return field not in OPTIMIZER_FIELDS  # TestFunctionFit has those

    @pytest.mark.parametrize(
        ("precision", "sizes"), thinned(READINGS, lambda case: case[1] == (2, 5) and case[0] != "bfloat16"), ids=str
    )
    def test_readings_of_micro_batches_and_of_every_precision_are_the_same_alone(
        self, precision: str, sizes: tuple[int, ...]
    ) -> None:
        self.assert_same_readings_alone(sizes, {"precision": precision, "accumulate": 4, "batch_size": 8})


class TestGptWithNativeKernels(TestGpt):
    kernels = "native"

    turn = 0

    def has_by_default(self, field: str) -> bool:
        """What no kernel computes is trained as by TestGpt."""
        changes = [self.needs_of(field) | {field: value} for value in self.values_of(field)]
        acts_in_kernels = any(self.config_of(change).has_native_kernels for change in changes)
        return acts_in_kernels and field not in OPTIMIZER_FIELDS

    @pytest.mark.parametrize(
        ("precision", "sizes"), thinned(READINGS, lambda case: case == ("float32", (2, 5))), ids=str
    )
    def test_readings_of_micro_batches_and_of_every_precision_are_the_same_alone(
        self, precision: str, sizes: tuple[int, ...]
    ) -> None:
        self.assert_same_readings_alone(sizes, {"precision": precision, "accumulate": 4, "batch_size": 8})


@pytest.mark.slow
class TestGptWithoutNorms(ObjectiveConformance):
    objective = OBJECTIVES["gpt"]
    small = {**TestGpt.small, "norm": None, "init": "fan_in"}
    values = TestGpt.values
    needs = {
        **TestGpt.needs,
        "init_deviation": {"init": "gpt2"},
        "norm_lr": {"qk_norm": True},
        "zclip": {"zclip_warmup": 2, "lr": 3.0},
        "zclip_warmup": {"zclip": 1e-2, "lr": 3.0},
        # Gradients are larger than with norms: of the usual scale, two values skip the same steps.
        "loss_scale_growth": {"precision": "float16", "loss_scale": 2.0**15},
    }


@pytest.mark.slow
class TestGptOfToday(ObjectiveConformance):
    objective = OBJECTIVES["gpt"]
    small = {
        **TestGpt.small, "norm": "rms", "position": "rope", "mlp": "swiglu", "kv_heads": 1,
        "bias": True, "embedding_scale": 2.0, "logit_softcap": 5.0, "attention_softcap": 5.0, "qk_clip": 0.2,
    }  # fmt: skip
    values = TestGpt.values
    # Capped logits keep norms from rising at the learning rates of the others.
    needs = {**TestGpt.needs, "zclip": {"zclip_warmup": 2, "lr": 0.3}, "zclip_warmup": {"zclip": 1e-2, "lr": 1.0}}


@pytest.mark.slow
class TestGptWithOneTableOfBytes(ObjectiveConformance):
    objective = OBJECTIVES["gpt"]
    small = {**TestGpt.small, "tie_embeddings": True, "position": None, "qk_norm": True, "norm_place": "output"}
    values = TestGpt.values
    needs = {
        **TestGpt.needs,
        "head_lr": {"tie_embeddings": False},
        "loss_scale_growth": {"precision": "float16", "loss_scale": 2.0**13},
    }


@pytest.mark.slow
class TestGptOfExperts(ObjectiveConformance):
    objective = OBJECTIVES["gpt"]
    small = {
        **TestGpt.small, "experts": 4, "top_k": 2, "shared_experts": 1, "balance": "loss_free", "balance_step": 0.05,
        "router_noise": 0.1, "capacity": 1.0,
    }  # fmt: skip
    values = TestGpt.values
    needs = {**TestGpt.needs, "loss_scale_growth": {"precision": "float16", "loss_scale": 2.0**20}}

    @pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
    def test_readings_of_micro_batches_and_of_every_precision_are_the_same_alone(self, precision: str) -> None:
        self.assert_same_readings_alone([2, 3, 5, 8], {"precision": precision, "accumulate": 4, "batch_size": 8})


class TestFunctionFit(SomeByDefault, ObjectiveConformance):
    turn = 1
    objective = OBJECTIVES["function_fit"]
    small = {"width": 8, "num_points": 20}

    def has_by_default(self, field: str) -> bool:
        return field in OPTIMIZER_FIELDS or super().has_by_default(field)


class TestQuadratic(SomeByDefault, ObjectiveConformance):
    turn = 2
    objective = OBJECTIVES["quadratic"]
    small = {"noise": 0.1}
    values = {"curvature": [0.5, 1.0, 4.0], "noise": [0.0, 0.1, 1.0]}
    learning = {"noise": 0.0}
    idle = ("muon_momentum",)  # it has no matrix


class TestSuperquadratic(SomeByDefault, ObjectiveConformance):
    turn = 3
    objective = OBJECTIVES["quadratic"]
    small = {"noise": 0.1, "power": 3.0}
    values = TestQuadratic.values
    learning = TestQuadratic.learning
    idle = TestQuadratic.idle


class TestRouter(SomeByDefault, ObjectiveConformance):
    turn = 4
    objective = OBJECTIVES["router"]
    small = {"optimizer": "adamw", "batch_size": 4, "experts": 3, "spread": 0.3}
    values = {
        "a": [0.0, 1.0, 4.0], "b": [0.5, 1.0, 2.0], "beta": [0.5, 1.0, 4.0], "spread": [0.0, 1e-3, 1.0],
        # Scores and gradients are larger than those of a network.
        "adafactor_clip": [1e-3, 0.1, 1.0], "adafactor_eps": [1e-30, 1e2, 1e4],
        "adafactor_smallest": [1e-3, 1e2, 1e3], "sophia_eps": [1e-12, 1.0, 1e2],
    }  # fmt: skip
    needs = {
        "sophia_eps": {"optimizer": "sophia", "sophia_clip": 1e3},
        # At this learning rate norms rise, and are clipped.
        "zclip": {"zclip_warmup": 2, "lr": 30.0},
        "zclip_warmup": {"zclip": 1e-2, "lr": 30.0},
    }
    idle = ("muon_momentum",)  # it has no matrix
    learning = {"batch_size": None}


@pytest.mark.slow
class TestMeanFieldRouter(ObjectiveConformance):
    objective = OBJECTIVES["router"]
    small = {"optimizer": "adamw", "spread": 0.3}
    values = TestRouter.values
    needs = TestRouter.needs
    idle = TestRouter.idle


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_that_ships_is_tested_here(name: str) -> None:
    assert OBJECTIVES[name] in [case.objective for case in ObjectiveConformance.__subclasses__()]
