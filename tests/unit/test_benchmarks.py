"""The benchmark compares like with like: the same losses, honest counts, the named figures."""

import dataclasses
import functools
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gpt_cases import short_text
from scipy.stats import spearmanr
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import arms, end_to_end, figures, gpu_rounds, muon, pruning, sizes, sweep_files, throughput
from benchmarks.crew import Crew, CrewFailed, count_steps, interleaved, rotated
from benchmarks.plain_gpt import PlainGpt, PlainTrainer, Style, losses
from benchmarks.vmapped_gpt import VmappedTrainer
from objectives.base import OBJECTIVES, ExecutionPlan, GptConfig
from objectives.models.gpt_model import initial_weights
from objectives.optimizers.rules.muon import orthogonalised
from orchestrator.base.files import LEDGER
from orchestrator.detection.config import SlowConfig
from orchestrator.driver.packing import make_packs
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

ROOT = Path(__file__).parents[2]
STEPS = 6
SHAPE = {"steps": STEPS, "width": 12, "heads": 3, "context": 10, "batch_size": 4, "depth": 2}


@pytest.fixture
def text(tmp_path: Path) -> tuple[str]:
    return short_text(tmp_path)


def packed_losses(configs: list[GptConfig], seeds: list[int]) -> torch.Tensor:
    """Losses of a pack, (T, K)."""
    trainer = OBJECTIVES["gpt"].start(configs, seeds, "cpu", ExecutionPlan(len(configs)))
    return torch.stack([trainer.step()["loss"] for _ in range(STEPS)])


@pytest.mark.parametrize("optimizer", ["default", "foreach", "fused"])
def test_the_plain_trainer_has_the_losses_of_a_pack(text, optimizer) -> None:
    numbers = [
        {"lr": 3e-3, "beta2": 0.9, "eps": 1e-6, "warmup": 4},
        {"lr": 1e-2, "beta2": 0.99, "clip": 0.3, "weight_decay": 0.1},
    ]
    configs = [GptConfig(text=text, **number, **SHAPE) for number in numbers]
    packed = packed_losses(configs, [0, 1])
    plain = torch.tensor([list(losses(c, s, Style(optimizer), "cpu")) for c, s in zip(configs, [0, 1], strict=True)]).T
    assert plain.shape == (STEPS, 2)
    torch.testing.assert_close(plain, packed, rtol=1e-5, atol=0)
    # They have trained, each on its own: a loop that never updates would agree with nobody else.
    assert (plain[0] - plain[-1] > 0.02).all()
    assert (plain[-1, 0] - plain[-1, 1]).abs() > 1e-3


@pytest.mark.parametrize("preset", ["small", "llama"])
def test_the_plain_model_is_that_of_a_pack_also_far_from_small_weights(text, preset, monkeypatch) -> None:
    def large(shape: GptConfig, seed: int) -> dict[str, torch.Tensor]:
        return {name: weight * (1 if "norm" in name else 20) for name, weight in initial_weights(shape, seed).items()}

    # Activations near zero do not tell one GELU from another, nor one softmax.
    for module in ("objectives.models.gpt", "benchmarks.plain_gpt"):
        monkeypatch.setattr(f"{module}.initial_weights", large)
    config = GptConfig(text=text, lr=1e-3, preset=preset, **SHAPE)
    plain = torch.tensor(list(losses(config, 0, Style("default"), "cpu")))
    torch.testing.assert_close(plain, packed_losses([config], [0])[:, 0], rtol=2e-6, atol=0)


@pytest.mark.parametrize("preset", ["small", "llama"])
def test_the_vmapped_trainer_has_the_losses_of_a_pack(text, preset) -> None:
    shape = {"text": text, "warmup": 3, "preset": preset, **SHAPE}
    configs = [GptConfig(lr=lr, beta2=beta2, **shape) for lr, beta2 in [(3e-3, 0.9), (1e-2, 0.99)]]
    trainer = VmappedTrainer(configs, [1, 0], "cpu", is_compiled=False)
    vmapped = torch.tensor([trainer.step() for _ in range(STEPS)])
    torch.testing.assert_close(vmapped, packed_losses(configs, [1, 0]), rtol=1e-5, atol=0)
    assert (vmapped[0] - vmapped[-1] > 0.02).all()


def test_a_plain_trial_ends_when_its_loss_is_not_finite(text) -> None:
    curve = list(losses(GptConfig(text=text, lr=1e30, **SHAPE), 0, Style("default"), "cpu"))
    assert len(curve) < STEPS
    assert not math.isfinite(curve[-1])
    assert all(math.isfinite(loss) for loss in curve[:-1])


@pytest.mark.parametrize("size", [*sizes.SIZES[:3], *sizes.LLAMA], ids=lambda size: size.name)
def test_the_flops_on_paper_are_those_that_torch_counts(size) -> None:
    model = PlainGpt(GptConfig(steps=1, **size.fields)).requires_grad_()
    tokens = torch.zeros(size.batch_size, size.context + 1, dtype=torch.int64)
    # The kernel that multiplies whole squares and keeps them for the backward pass: nothing is done twice.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens).backward()
    assert counter.get_total_flops() == sizes.flops_per_member_step(size)


def test_the_flops_of_muon_on_paper_are_those_that_torch_counts() -> None:
    size = sizes.SIZES[2]
    config = GptConfig(steps=1, optimizer="muon", **size.fields)
    shapes = [w.shape for name, w in initial_weights(config, 0).items() if name[0].isdigit() and w.ndim == 2]
    with FlopCounterMode(display=False) as counter:
        for shape in shapes:
            orthogonalised(torch.ones(1, *shape), config.muon_steps)
    assert counter.get_total_flops() == muon.newton_schulz_flops(size, config.muon_steps)


def test_ratios_have_the_promised_names_and_more_is_better() -> None:
    assert figures.ratios({}, {}) == dict.fromkeys(
        [
            "main_vs_ray_default",
            "main_vs_ray_reuse_actors",
            "d16_vs_best_eager",
            "d32_vs_best_eager",
            "d64_vs_best_eager",
            "d128_vs_best_eager",
            "llama_d32_vs_best_eager",
            "llama_d64_vs_best_eager",
        ]
    )
    speeds = {"d32": {"ours": 30.0, "eager default": 8.0, "eager fused": 10.0, "compiled": 20.0, "vmap": 25.0}}
    found = figures.ratios(speeds, {"ours": 10.0, "ray default": 60.0, "ray reuse_actors": 25.0, "optuna": 1.0})
    assert {name: value for name, value in found.items() if value is not None} == {
        "main_vs_ray_default": 6.0,
        "main_vs_ray_reuse_actors": 2.5,
        "d32_vs_best_eager": 3.0,
    }


def test_ratios_on_a_gpu_take_the_best_of_each_kind() -> None:
    medians = {"serial eager default": 1.0, "serial eager fused": 2.0, "serial compiled": 5.0, "stack 4 eager": 20.0}
    medians |= {"stack 8 compiled": 40.0, "2 processes eager fused": 4.0, "2 processes compiled": 8.0}
    assert gpu_rounds.ratios(medians) == {"vs_serial_eager": 20.0, "vs_serial_compiled": 8.0, "vs_processes": 5.0}
    assert set(gpu_rounds.ratios({"stack 4 eager": 1.0}).values()) == {None}


def test_a_crew_counts_what_its_processes_do_together() -> None:
    # Arms whose every piece of work is one member-step, and three.
    crew = Crew(functools.partial, [(int, 1), (int, 3)])
    try:
        windows = interleaved({"crew": crew}, rounds=2, seconds=0.2, say=lambda _: None)["crew"]
    finally:
        crew.close()
    assert len(windows) == 2
    for window in windows:
        assert all(0.2 <= seconds < 5 for seconds in window["seconds"])
        assert all(steps > 100 for steps in window["member_steps"])
        assert window["member_steps"][1] % 3 == 0
        rates = [n / s for n, s in zip(window["member_steps"], window["seconds"], strict=True)]
        assert window["member_steps_per_second"] == pytest.approx(sum(rates))


def test_a_crew_that_cannot_start_says_why_in_one_line() -> None:
    with pytest.raises(CrewFailed, match=r"^ValueError: .*'no number'$"):
        Crew(int, [("no number",)])


def test_rounds_begin_with_different_arms() -> None:
    assert [rotated(["a", "b", "c"], i) for i in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


def test_our_arm_counts_the_member_steps_of_a_real_pack(text, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path))
    fixed = {**SHAPE, "text": list(text)}
    del fixed["steps"]
    sweep = arms.sweep_of_text(sweep_files.grid_text("tiny", fixed, arms.ENDLESS, (2, 2), [0]))
    pack = make_packs(sweep, sweep.trials, 1)[0]
    # A number of members said: nothing is probed or compiled.
    advance = arms.OurPack(dataclasses.replace(pack, width=2))
    steps, seconds = count_steps(advance, 0.01)
    assert steps > 0
    assert steps % 2 == 0, "two at a time"
    assert seconds > 0


def test_every_size_is_compared_on_as_many_stable_trials_as_the_main_sweep_has() -> None:
    main = throughput.main_file(throughput.parse(["--only", "main"]), Path())
    num_trials = len(throughput.load_sweep(main).trials)
    for size in sizes.COMPARED:
        sweep = arms.stable_sweep(size, steps=10)
        assert len(sweep.trials) == num_trials == 144
        assert not sweep.stopping.early_stop
        assert {trial.config["width"] for trial in sweep.trials} == {size.width}


@pytest.mark.parametrize(("wanted", "found"), [(3, 3), (6, 6), (24, 18), (100, 84), (144, 144), (999, 144)])
def test_fewer_trials_of_the_main_sweep_are_a_smaller_grid_of_it(tmp_path, wanted, found) -> None:
    chosen = throughput.parse(["--main-trials", str(wanted)])
    whole = throughput.load_sweep(throughput.main_file(throughput.parse([]), tmp_path))
    thinned = throughput.load_sweep(throughput.main_file(chosen, tmp_path))
    assert len(thinned.trials) == found
    assert {trial.trial_id for trial in thinned.trials} <= {trial.trial_id for trial in whole.trials}


def run_with(curves: dict) -> end_to_end.Run:
    return end_to_end.Run(1.0, 1.0, None, 1.0, 1, curves)


def test_losses_of_two_arms_are_compared_on_every_trial() -> None:
    one, other = end_to_end.trial_key({"lr": 0.1}, 0), end_to_end.trial_key({"lr": 0.1}, 1)
    ours = run_with({one: [5.0, 4.0], other: [5.0, 4.0]})
    assert end_to_end.largest_difference(ours, run_with({one: [5.0, 4.0], other: [5.0, 5.0]})) == pytest.approx(0.2)
    assert end_to_end.largest_difference(ours, ours) == 0
    assert end_to_end.largest_difference(ours, run_with({one: [5.0, 4.0]})) == math.inf
    assert end_to_end.largest_difference(ours, run_with({one: [math.nan, 4.0], other: [5.0, 4.0]})) == math.inf
    # Late losses of a chaotic run are not compared.
    late = [5.0] * end_to_end.CHECKED_STEPS
    assert end_to_end.curve_difference([*late, 1.0], [*late, 9.0]) == 0


def test_the_first_cell_is_finished_with_its_last_seed() -> None:
    finished = [({"lr": 1}, 5.0), ({"lr": 2}, 6.0), ({"lr": 1}, 9.0), ({"lr": 2}, 7.0)]
    assert end_to_end.first_cell(finished) == 7.0


def test_what_was_not_run_is_null_in_the_file(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(throughput, "compare_sweeps", lambda *_: {})
    for name in (*throughput.MALLOC, "SWEEP_CACHE", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, "restored after this test")
    file = tmp_path / "bench.json"
    assert throughput.main(["--quick", "--only", "main", "--json", str(file)]) == 0
    written = json.loads(file.read_text())
    assert written["ratios"] == dict.fromkeys(figures.RATIOS)
    assert written["machine"]["cores"] >= 1
    assert str(ROOT) not in file.read_text()
    assert "not run" in capsys.readouterr().out


def test_the_plain_trainer_refuses_what_it_cannot_do(text) -> None:
    with pytest.raises(ValueError, match="AdamW"):
        PlainTrainer(GptConfig(text=text, optimizer="sgd", **SHAPE), 0, Style("default"), "cpu")
    for field, words in (("qk_norm", "queries and keys"), ("norm", "norms"), ("position", "positions")):
        with pytest.raises(ValueError, match=words):
            PlainGpt(GptConfig(text=text, **{field: True if field == "qk_norm" else None}, **SHAPE))


def test_pruning_in_replay_is_pruning_in_training(tmp_path: Path) -> None:
    """A sweep that is trained with pruning, one pack after the other, prunes as its replay says."""

    def trained(name: str, slow: str) -> Path:
        text = (
            f"name: {name}\nobjective: quadratic\nsteps: 60\nseeds: [0, 1]\nfixed: {{optimizer: sgd, beta1: 0.0}}\n"
            f"axes: {{lr: {{values: [0.5, 0.02, 0.3, 0.01, 3.0, 0.4, 0.005, 0.2]}}}}\nstopping: {{slow: {slow}}}\n"
            "resources: {pack: 4}\ntracking: {enabled: false}\n"
        )
        run_sweep(build_sweep(parse_document(text, name)), tmp_path / name, InlineExecutor)
        return tmp_path / name

    slow = SlowConfig(method="median", startup_trials=2, warmup_steps=6)
    plain = pruning.stored(trained("plain", "null"))
    found = pruning.pruned(plain, slow, 4, 1)
    with LedgerReader(trained("slow", "{method: median, startup_trials: 2, warmup_steps: 6}") / LEDGER) as ledger:
        rows = ledger.trials()
    assert [(row.cell, row.seed) for row in rows] == [(row.cell, row.seed) for row in plain.rows]
    results = [found[row.trial_id] for row in plain.rows]
    assert [(row.outcome, row.steps_done, row.rung_losses, row.reason) for row in rows] == [
        (result.outcome, result.steps_done, result.rung_losses, result.reason) for result in results
    ]
    one = pruning.balance(plain.rows, found)
    assert one.num_pruned == sum(row.outcome == "pruned" for row in rows) > 0
    assert one.saved == 1 - sum(row.steps_done or 0 for row in rows) / sum(row.steps_done or 0 for row in plain.rows)
    assert one.kept_best
    never = pruning.balance(plain.rows, pruning.pruned(plain, slow.model_copy(update={"startup_trials": 99}), 4, 1))
    assert (never.num_pruned, never.saved, never.correlation) == (0, 0.0, pytest.approx(1.0))


def test_rank_correlation_is_that_of_ranks() -> None:
    a, b = np.array([1.0, 2.0, 2.0, 9.0]), np.array([3.0, 5.0, 4.0, 400.0])
    assert pruning.spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert pruning.spearman(a, -b) == pytest.approx(spearmanr(a, -b).statistic)
