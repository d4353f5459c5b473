"""The lines of PyTorch that do a remedy, beside the interventions that do it in a pack."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from by_hand_cases import SIZE, Hand, by_hand, with_interventions
from diagnosis_cases import calm

from objectives.base import TrainingConfig
from objectives.entries import RESETS
from orchestrator.causes.remedies.remedy import Remedy
from orchestrator.causes.remedies.request import parse_remedies, usual_remedies
from orchestrator.causes.remedies.snippets import snippet_of

STEPS, START = 60, 30
REMEDIES = [
    "lr=x0.5", "lr=x0.1", "lr=0.002", "lr=x0.25:10", "lr=0.002:10", "lr=x0.25:10:8", "beta1=0.7", "beta2=0.9",
    "beta2=0.95:10", "beta1=x0.5:5", "eps=1e-3", "eps=x1e5", "eps=1e-3:10", "weight_decay=0.5", "weight_decay=x2:5",
    "clip=0.3", "clip=2:10", "zclip=0.5", "rescale=4", "lr=x0.5+clip=1", "lr=x0.5+rescale=4+beta2=0.9",
    *(f"reset={name}" for name in RESETS),
]  # fmt: skip


def executed(lines: str) -> Hand:
    """What runs the lines before each step of an optimizer, in one loop that keeps its names."""
    code, loop = compile(lines, "snippet", "exec"), {"torch": torch, "scheduler": None}

    def before(step: int, optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> None:
        loop.update(step=step, optimizer=optimizer, model=torch.nn.ParameterList([weight]))
        exec(code, loop)

    return before


def changed(remedy: Remedy) -> set[str]:
    """The fields that a remedy sets, and what else it does."""
    return {name for entry in remedy.entries for name in (*entry, *entry.get("set", ()))}


@pytest.mark.parametrize("text", REMEDIES)
def test_the_lines_of_a_remedy_do_in_torch_what_the_remedy_does_in_a_fork(text: str) -> None:
    (remedy,) = parse_remedies([text])
    entries = [{**entry, "at": entry["at"] + START} for entry in remedy.entries]
    own = TrainingConfig(steps=STEPS, lr=0.01, weight_decay=0.1, interventions=tuple(entries))
    grads = torch.randn(STEPS, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grads *= 1 + torch.rand(STEPS, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    lines = snippet_of(remedy, START)
    assert lines is not None
    done = by_hand(own, grads, executed(lines))
    torch.testing.assert_close(done, with_interventions(own, grads), rtol=1e-9, atol=1e-11)
    unchanged = by_hand(own, grads, lambda *_: None)
    assert torch.equal(unchanged[:START], done[:START])
    assert not torch.allclose(unchanged[-1], done[-1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("make", [
    lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.99**step),
    lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
    lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, STEPS),
])  # fmt: skip
def test_a_scheduler_goes_on_below_the_lowered_rate(make) -> None:
    def rates(lines: str) -> list[float]:
        weight = torch.nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.AdamW([weight], lr=0.01)
        scheduler, found, code = make(optimizer), [], compile(lines, "snippet", "exec")
        for step in range(STEPS):
            weight.grad = torch.ones(3)
            exec(code, {"step": step, "optimizer": optimizer, "scheduler": scheduler})
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return found

    (remedy,) = parse_remedies(["lr=x0.25:10:5"])
    changed, own = rates(snippet_of(remedy, START)), rates("")
    ratios = [a / b for a, b in zip(changed, own, strict=True)]
    assert ratios[:START] == [1.0] * START
    assert ratios[START : START + 10] == pytest.approx([0.25] * 10)
    assert ratios[START + 10 : START + 16] == pytest.approx([0.25 * (1 + (i + 1) / 6 * 3) for i in range(6)])
    assert ratios[START + 16 :] == pytest.approx([1.0] * (STEPS - START - 16))


def test_batches_are_left_out_of_an_iterator() -> None:
    lines, batches, seen = snippet_of(Remedy(({"at": 0, "skip": 3},)), 4), iter(range(20)), []
    for step in range(8):
        exec(lines, {"step": step, "batches": batches})
        seen.append(next(batches))
    assert seen == [0, 1, 2, 3, 7, 8, 9, 10]


def test_the_weights_become_the_mean_of_those_before_five_steps_and_training_goes_on_from_it() -> None:
    lines = snippet_of(parse_remedies(["mean=5:3"])[0], 20)
    model, seen = torch.nn.ParameterList([torch.zeros(2, 3), torch.zeros(4)]), []
    loop: dict[str, Any] = {"torch": torch, "model": model}
    for step in range(25):
        seen.append([weight.detach().clone() for weight in model])
        loop["step"] = step
        exec(lines, loop)
        for weight in model:
            weight.data += step + 1.0
    for number, weight in enumerate(model):
        mean = torch.stack([seen[step][number] for step in (8, 11, 14, 17, 20)]).mean(0)
        assert torch.equal(seen[21][number], mean + 21.0)
        assert torch.equal(weight, mean + sum(range(21, 26)))


def test_a_mean_of_more_states_than_there_were_has_no_lines() -> None:
    assert snippet_of(parse_remedies(["mean=5:10"])[0], 39) is None


@pytest.mark.parametrize(
    ("text", "number"), [("micro_batches=x2", 8), ("micro_batches=6", 6), ("micro_batches=x0.5", 2)]
)
def test_a_step_adds_up_more_micro_batches(text: str, number: int) -> None:
    names = {"step": 4, "micro_batches": 4}
    exec(snippet_of(parse_remedies([text])[0], 4), names)
    assert names["micro_batches"] == number


def test_every_usual_remedy_has_lines() -> None:
    configs = [{"beta2": 0.95, "micro_batches": 2, "accumulate": 8}, {"beta2": 0.999, "eps": 1e-3, "clip": None}]
    cases = [calm("diverged", 300, config, steps_done=400) for config in configs]
    usual = [remedy for case in cases for remedy in usual_remedies(case.evidence())]
    assert {"mean", "micro_batches", "zclip"} <= {name for remedy in usual for name in changed(remedy)}
    assert [remedy.name for remedy in usual if snippet_of(remedy, 200) is None] == []


def test_a_clipping_that_there_is_gets_tighter() -> None:
    names: Mapping[str, Any] = {"step": 4, "max_norm": 2.0}
    exec(snippet_of(parse_remedies(["clip=x0.5"])[0], 4), names)
    assert names["max_norm"] == 1.0


@pytest.mark.parametrize("text", ["micro_batches=x2:50", "clip=none", "beta2_half_life=1000", "adagc=1.05"])
def test_what_plain_torch_does_not_have_has_no_lines(text: str) -> None:
    assert snippet_of(parse_remedies([text])[0], 4) is None


@pytest.mark.parametrize("text", REMEDIES)
def test_the_lines_are_about_ten(text: str) -> None:
    (remedy,) = parse_remedies([text])
    lines = snippet_of(remedy, START)
    assert lines is not None
    assert len(lines.splitlines()) <= 18
