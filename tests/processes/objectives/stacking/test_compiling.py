"""Steps that a compiler has compiled."""

from collections.abc import Iterator

import pytest
import torch
from pack_cases import trainer_of

from objectives.base import ExecutionPlan, GptConfig, QuadraticConfig
from objectives.training.packed import PackedTrainer

METRICS = ("loss", "grad_norm", "update_norm", "lr")
GPT = {"steps": 12, "depth": 1, "width": 8, "heads": 2, "context": 8, "batch_size": 2}


def curves(trainer: PackedTrainer, num_steps: int = 12) -> torch.Tensor:
    return torch.stack([torch.stack([row[name].double() for name in METRICS]) for row in steps(trainer, num_steps)])


def steps(trainer: PackedTrainer, num_steps: int) -> Iterator[dict[str, torch.Tensor]]:
    return (trainer.step() for _ in range(num_steps))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it loads its code generator
def test_a_machine_without_a_compiler_says_so_and_does_not_train_eager(monkeypatch, tmp_path) -> None:
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # or a kernel of another test would do
    torch._dynamo.reset()
    configs = [QuadraticConfig(steps=12, lr=lr, optimizer="sgd", noise=0.1) for lr in (0.1, 3.0)]
    with config.patch({"cpp.cxx": (None, "no-such-compiler"), "fx_graph_cache": False}):
        trainer = trainer_of("quadratic", configs, [0, 1], ExecutionPlan(2, compiled=True))
        with pytest.raises(RuntimeError, match=r"compilation failed: .*compiler"):
            curves(trainer)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_compiled_update_is_the_eager_one(optimizer: str) -> None:
    numbers = [{"lr": 0.1, "clip": 0.5}, {"lr": 3.0, "weight_decay": 0.1}, {"lr": 1e300, "beta1": 0.0}]
    configs = [QuadraticConfig(steps=30, optimizer=optimizer, curvature=2.0, noise=0.1, **n) for n in numbers]
    compiled, eager = (
        trainer_of("quadratic", configs, [0, 1, 0], ExecutionPlan(3, is_compiled)) for is_compiled in (True, False)
    )
    found, expected = curves(compiled, 30), curves(eager, 30)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert expected[-1, :, 2].isnan().all(), "a lost member is masked in the compiled update too"
    assert compiled.optimizer._advance._compiled is not None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_member_of_a_compiled_pack_has_the_same_bits_among_two_and_among_eight() -> None:
    configs = [GptConfig(**GPT, lr=1e-2 * (k + 1)) for k in range(8)]
    two, eight = (
        curves(trainer_of("gpt", configs[:width], [0] * width, ExecutionPlan(width, compiled=True)))[:, :, :2]
        for width in (2, 8)
    )
    torch.testing.assert_close(two, eight, rtol=0, atol=0)
