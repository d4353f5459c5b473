"""Members that go back on a spike, beside a plain loop over one run with an optimizer of torch."""

import copy
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from curve_cases import Curves, assert_resumes, curves
from pack_cases import trainer_of
from pydantic import ValidationError
from tiers import one_of

from objectives.base import ExecutionPlan, GptConfig, QuadraticConfig, RowSpec, data_step
from objectives.models.data import BatchStream, load_corpus
from objectives.models.drawn import corruption_draw
from objectives.models.gpt_model import cross_entropy
from objectives.models.quadratic import QuadraticTrainer
from objectives.stacking import seeded_generator
from objectives.training.packed import DATA_PURPOSE, WEIGHT_PURPOSE
from objectives.training.rollback import DEVIATIONS, LEAST_HISTORY, MOST_IN_A_ROW, WINDOW, is_above_window

METRICS = ("loss", "grad_norm", "update_norm", "lr")
EVERY = 20
# What the loss of a batch is multiplied by, by the step of its data.
Shocks = Mapping[int, float]


class ShockedTrainer(QuadraticTrainer):
    """A quadratic some of whose batches are bad."""

    shocks_of: Callable[[int], Shocks]  # by seed

    def losses(self) -> torch.Tensor:
        heights = [self.shocks_of(seed).get(step, 1.0) for seed, step in self.cohorts()]
        return super().losses() * torch.tensor(heights, dtype=torch.float64)[self.cohort_of_member_K]


def config(rollback: int | None = None, **changes: Any) -> QuadraticConfig:
    defaults = {"steps": 400, "noise": 1.0, "lr": 1e-2, "dimension": 4, "rollback_every": EVERY}
    return QuadraticConfig(**{**defaults, "rollback": rollback, **changes})


def pack(configs: Sequence[QuadraticConfig], seeds: Sequence[int], shocks: Shocks) -> ShockedTrainer:
    """All of whose members meet the same bad batches."""
    trainer = ShockedTrainer(configs, seeds, "cpu", ExecutionPlan(len(configs)))
    trainer.shocks_of = lambda seed: shocks
    return trainer


def steps_back(found: Curves, k: int = 0) -> list[int]:
    return found["rolled_back"][:, k].nonzero()[:, 0].tolist()


def assert_alike(found: Curves, expected: Curves, k: int = 0, of: int = 0) -> None:
    """Bit for bit, NaN included."""
    for name in METRICS:
        torch.testing.assert_close(found[name][:, k], expected[name][:, of], rtol=0, atol=0, equal_nan=True, msg=name)


# The rule.


def is_spike(losses: Sequence[float], loss: float) -> bool:
    """The rule on a plain list of the losses before."""
    before = losses[-WINDOW:]
    if len(losses) < LEAST_HISTORY:
        return False
    mean = math.fsum(before) / len(before)
    deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in before) / (len(before) - 1))
    return loss > mean + DEVIATIONS * deviation


def window_of(losses: Sequence[float]) -> torch.Tensor:
    """The last losses, each at its number of order modulo the length of the window."""
    window_W = torch.full((WINDOW,), math.nan, dtype=torch.float64)
    for i, loss in enumerate(losses):
        window_W[i % WINDOW] = loss
    return window_W


@pytest.mark.parametrize("num_losses", [0, 1, 63, 64, 65, 127, 128, 129, 300])
def test_a_spike_is_six_deviations_above_the_mean_of_the_losses_before(num_losses: int) -> None:
    losses = (5 + torch.randn(num_losses, generator=seeded_generator(num_losses), dtype=torch.float64)).tolist()
    mean = statistics.fmean(losses[-WINDOW:]) if losses else 5.0
    deviation = statistics.stdev(losses[-WINDOW:]) if len(losses) > 1 else 1.0
    heights = [-20.0, 0.0, 5.9, 5.9999, 6.0001, 6.1, 50.0, math.nan]
    candidates = [mean + height * deviation for height in heights]
    found = is_above_window(
        torch.tensor(candidates, dtype=torch.float64),
        window_of(losses).expand(len(heights), -1),
        torch.full((len(heights),), num_losses),
    )
    assert found.tolist() == [is_spike(losses, loss) for loss in candidates]
    assert any(found.tolist()) == (num_losses >= LEAST_HISTORY)


@pytest.mark.parametrize("level", [0.1, 1 / 3, 7e5])
def test_a_constant_loss_never_spikes_and_the_smallest_rise_above_it_does(level: float) -> None:
    for num_losses in range(LEAST_HISTORY, WINDOW + 10):
        loss_R = torch.tensor([level, level * (1 + 1e-6)], dtype=torch.float64)
        window_RW = window_of([level] * num_losses).expand(2, -1)
        assert is_above_window(loss_R, window_RW, torch.full((2,), num_losses)).tolist() == [False, True]


# A plain loop.


def reference(
    config: QuadraticConfig, seed: int, shocks: Shocks, num_steps: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One run with torch.optim.AdamW: losses and whether it went back of each step, its parameters at the end."""
    generator = seeded_generator(seed, WEIGHT_PURPOSE)
    start = torch.randn(config.dimension, generator=generator, dtype=torch.float64)
    x = torch.nn.Parameter(start / start.norm())
    betas = (config.beta1, config.beta2)
    optimizer = torch.optim.AdamW([x], lr=config.lr, betas=betas, eps=config.eps, weight_decay=0.0)
    losses: list[float] = []
    is_alive, num_skipped, in_a_row = True, 0, 0

    def snapshot() -> tuple:
        return x.detach().clone(), copy.deepcopy(optimizer.state_dict()), list(losses)

    good, pending = snapshot(), None
    rows = []
    for step in range(num_steps):
        height = shocks.get(step + num_skipped, 1.0)
        noise_generator = seeded_generator(seed, DATA_PURPOSE, step + num_skipped)
        noise = torch.randn(config.dimension, generator=noise_generator, dtype=torch.float64) * config.noise
        loss = height * config.curvature * float(x.detach().square().sum()) / 2
        was_alive = is_alive
        is_alive = is_alive and math.isfinite(loss)
        if is_alive:
            x.grad = height * config.curvature * x.detach() + noise
            optimizer.step()
        must_go_back = not is_alive or is_spike(losses, loss)
        if must_go_back:
            pending = None
        if must_go_back and in_a_row < MOST_IN_A_ROW:
            x.data.copy_(good[0])
            optimizer.load_state_dict(copy.deepcopy(good[1]))
            losses, is_alive = list(good[2]), True
            num_skipped += config.rollback
            in_a_row += 1
            rows.append((loss, 1.0))
        else:
            losses += [loss] * math.isfinite(loss)
            rows.append((loss if was_alive else math.nan, 0.0))
        if (step + 1) % config.rollback_every == 0:
            if pending is not None:
                good, in_a_row = pending, 0
            pending = snapshot()
    loss_N, back_N = torch.tensor(rows, dtype=torch.float64).T
    return loss_N, back_N, x.detach()


def random_shocks(share: float, heights: Sequence[float], first: int) -> Shocks:
    """Bad batches here and there from step ``first`` on, some of them in a row."""
    generator = seeded_generator(int(100 * share), 77)
    is_bad = torch.rand(600, generator=generator) < share
    kinds = torch.randint(len(heights), (600,), generator=generator).tolist()
    return {step: heights[kinds[step]] for step in is_bad.nonzero()[:, 0].tolist() if step >= first}


BAD, ODD = (1e2, 1e3, math.inf), (5.0, 8.0, 12.0, 20.0)


NUM_STEPS = 260
CASES: Sequence[tuple[str, Shocks, int]] = (
    ("one spike", {200: 1e4}, 17),
    ("not finite", {200: math.inf}, 0),
    ("before any other snapshot is good", {30: math.inf}, 1),
    ("at the very first step", {0: math.inf}, 17),
    ("too early to be judged", {50: 1e4}, 17),
    ("just before a snapshot is due", {199: 1e4}, 1),
    ("just after one was taken", {200: 1e4, 207: 1e4}, 0),
    ("in bad data for long", {step: 1e4 for step in range(150, 250)}, 17),
    ("more in a row than are taken back", {step: 1e4 for step in range(150, NUM_STEPS)}, 1),
    ("not finite, more in a row than are taken back", {step: math.inf for step in range(150, 600)}, 0),
    *((f"a share of {share} is bad", random_shocks(share, BAD, 0), 17) for share in (0.02, 0.1, 0.3)),
    *((f"a share of {share} is odd", random_shocks(share, ODD, 80), 1) for share in (0.1, 0.2)),
)


@pytest.fixture(scope="module")
def together() -> tuple[Curves, torch.Tensor]:
    """All cases as members of one pack: their curves, and their parameters at the end."""
    seeds = range(len(CASES))
    trainer = ShockedTrainer([config(rollback) for _, _, rollback in CASES], seeds, "cpu", ExecutionPlan(len(CASES)))
    trainer.shocks_of = lambda seed: CASES[seed][1]
    return curves(trainer, NUM_STEPS), trainer.weights["x"].detach()


@pytest.mark.parametrize("case", range(len(CASES)), ids=[name for name, _, _ in CASES])
def test_a_member_goes_back_as_a_plain_loop_does(together, case: int) -> None:
    found, params_KD = together
    name, shocks, rollback = CASES[case]
    loss_N, back_N, params_D = reference(config(rollback), case, shocks, NUM_STEPS)
    assert torch.equal(found["rolled_back"][:, case], back_N)
    torch.testing.assert_close(found["loss"][:, case], loss_N, rtol=1e-9, atol=1e-15, equal_nan=True)
    torch.testing.assert_close(params_KD[case], params_D)
    # What the case is there for.
    assert bool(back_N.any()) == (name != "too early to be judged")
    if "more in a row" in name:
        assert back_N.sum() == MOST_IN_A_ROW


# Back, bit for bit.


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_spike_restores_the_snapshot_and_skips_data_and_nothing_else(optimizer: str) -> None:
    schedule = {"optimizer": optimizer, "schedule": "cosine", "warmup": 30}
    trainer = pack([config(7, **schedule)], [3], {211: 1e4})
    curves(trainer, 180)  # the last snapshot before the spike that has been good for long enough
    snapshot = trainer.state_dict()
    assert steps_back(curves(trainer, 32)) == [31]
    after = trainer.state_dict()
    assert torch.equal(after["params"], snapshot["params"])
    for name in ("age", "alive"):
        assert torch.equal(after["optimizer"][name], snapshot["optimizer"][name])
    for name, state in snapshot["optimizer"]["states"].items():
        assert torch.equal(after["optimizer"]["states"][name], state), name
    for name in ("window", "num_seen"):
        assert torch.equal(after["rollback"][name], snapshot["rollback"][name]), name
    assert (after["ages"].tolist(), after["skipped"].tolist()) == ([212], [7])
    # A run without rollback that is put there trains on in the same way: at data step 212 + 7.
    plain = pack([config(None, **schedule)], [3], {})
    plain.load_state_dict({**snapshot, "ages": torch.tensor([219])})
    assert_alike(curves(trainer, 60), curves(plain, 60))


def test_a_norm_that_is_held_is_held_after_a_rollback_to_a_snapshot_from_before() -> None:
    trainer = pack([config(7, interventions=({"at": 205, "norm": "hold"},))], [3], {211: 1e4})
    curves(trainer, 205)
    norm = trainer.state_dict()["params"].norm()
    assert steps_back(curves(trainer, 20)) == [6]
    torch.testing.assert_close(trainer.state_dict()["params"].norm(), norm)


@pytest.mark.parametrize(
    "change",
    [
        {"interventions": ({"at": 5, "optimizer": "sgd_like"},)},
        {"control": ({"on": "loss", "above": 3, "do": {"optimizer": "sgd_like"}},)},
    ],
)
def test_a_second_moment_that_is_kept_cannot_go_back_to_a_snapshot(change: Mapping[str, Any]) -> None:
    config(None, **change)
    with pytest.raises(ValidationError, match="rollback = 7 and sgd_like exclude each other"):
        config(7, **change)


def test_the_data_of_a_step_are_those_of_its_number_and_of_what_was_skipped_before_it() -> None:
    trainer = pack([config(7), config(None)], [3, 3], {100: 1e4, 180: math.inf})
    num_back = 0
    for step in range(200):
        steps_of_data = [data_step(one, step, num_back) for one in trainer.configs]
        cohorts = trainer.cohorts()
        assert [cohorts[s] for s in trainer.cohort_of_member_K.tolist()] == [(3, data) for data in steps_of_data]
        num_back += int(trainer.step()["rolled_back"][0])
    assert num_back == 2


# Packs.

SHOCKS = {step: 1e4 for step in range(130, 138)} | {90: math.inf, 210: math.inf, 211: 1e5, 250: 1e5}
MEMBERS = [
    (config(0), 3),
    (config(None), 3),
    (config(5, lr=3e-2, warmup=40), 3),
    (config(5, beta2=0.9, zclip=4.0), 0),
    (config(None, noise=0.5), 7),
    (config(200), 0),
]


def test_members_of_a_mixed_pack_train_bit_for_bit_as_each_would_alone() -> None:
    together = curves(pack([one for one, _ in MEMBERS], [seed for _, seed in MEMBERS], SHOCKS), NUM_STEPS)
    numbers_back = []
    for k, (one, seed) in enumerate(MEMBERS):
        alone = curves(pack([one], [seed], SHOCKS), NUM_STEPS)
        assert_alike(together, alone, k)
        assert ("rolled_back" in alone) == (one.rollback is not None)
        numbers_back.append(len(steps_back(together, k)))
        assert steps_back(together, k) == (steps_back(alone) if one.rollback is not None else [])
    assert len(set(numbers_back)) > 2, numbers_back


def test_members_that_come_go_and_move_take_their_snapshots_along() -> None:
    # Who trains in each of the phases, row by row, and for how many steps.
    phases = [([0, 1], 95), ([2, 1, 0, 4], 45), ([4, 3, 2], 33), ([2, 5, 3, 4], 110), ([5, 2], 40)]
    before, found = phases[0][0], {}
    trainer = pack([MEMBERS[m][0] for m in before], [MEMBERS[m][1] for m in before], SHOCKS)
    for now, num_steps in phases:
        if now != before:
            rows = [before.index(m) if m in before else None for m in now]
            trainer.arrange([RowSpec(*MEMBERS[m], row) for m, row in zip(now, rows, strict=True)])
        news = curves(trainer, num_steps)
        for k, m in enumerate(now):
            found.setdefault(m, []).append({name: news[name][:, k : k + 1] for name in METRICS})
        before = now
    for m, (one, seed) in enumerate(MEMBERS):
        whole = {name: torch.cat([piece[name] for piece in found[m]]) for name in METRICS}
        assert_alike(whole, curves(pack([one], [seed], SHOCKS), len(whole["loss"])))


def test_both_parts_of_a_fork_go_back_to_what_they_were_before_it() -> None:
    shocks = {150: 1e4, 215: math.inf}
    trainer = pack([config(5)], [3], shocks)
    first = curves(trainer, 152)
    trainer.arrange([RowSpec(config(5, clip=1e9), 3, 0), RowSpec(config(None), 3, 0), RowSpec(config(5), 3, 0)])
    second = curves(trainer, NUM_STEPS - 152)
    alone = curves(pack([config(5)], [3], shocks), NUM_STEPS)
    assert steps_back(alone) == [150, 210]
    for k in (0, 2):
        assert_alike({name: torch.cat([first[name], second[name][:, [k]]]) for name in METRICS}, alone)
    assert second["loss"][-1, 1].isnan()


def test_a_member_that_takes_up_rollback_late_begins_with_what_it_is() -> None:
    shocks = {150: math.inf}
    trainer = pack([config(None)], [3], shocks)
    curves(trainer, 145)
    state = trainer.state_dict()
    trainer.arrange([RowSpec(config(5), 3, 0)])
    assert steps_back(curves(trainer, 6)) == [5]
    assert torch.equal(trainer.state_dict()["params"], state["params"])
    loaded = pack([config(5)], [3], shocks)
    loaded.load_state_dict(state)
    curves(loaded, 6)
    assert_alike(curves(loaded, 80), curves(trainer, 80))


def test_a_pack_without_rollback_holds_no_snapshots_and_reports_nothing_of_it() -> None:
    trainer = pack([config(None)] * 2, [3, 0], {})
    assert set(curves(trainer, 3)) == set(METRICS)
    assert "rollback" not in trainer.state_dict()


def test_a_step_that_is_observed_goes_back_as_any_other() -> None:
    seen, unseen = (pack([config(5), config(None)], [3, 3], {150: 1e4}) for _ in range(2))
    rows = [seen.observed_step([0, 1], [0], 2)[0] if step % 10 == 0 else seen.step() for step in range(200)]
    expected = curves(unseen, 200)
    for name in (*METRICS, "rolled_back"):
        torch.testing.assert_close(torch.stack([row[name] for row in rows]), expected[name], rtol=0, atol=0)
    assert steps_back(expected) == [150]


def test_an_optimizer_of_a_library_has_no_snapshots_to_go_back_to() -> None:
    with pytest.raises(
        ValidationError, match=r"rollback = 5 needs one of the optimizers adamw, .*, not torch.optim.NAdam"
    ):
        config(5, optimizer="torch.optim.NAdam")
    config(None, optimizer="torch.optim.NAdam")


# Checkpoints.


@pytest.mark.parametrize("stop", one_of(5, [64, 91, 131, 140, 212]))
def test_a_pack_resumes_in_the_middle_of_its_snapshots_bit_for_bit(stop: int, tmp_path) -> None:
    configs, seeds = [one for one, _ in MEMBERS], [seed for _, seed in MEMBERS]
    assert_resumes(partial(pack, shocks=SHOCKS), configs, seeds, stop, stop + 60, tmp_path)


# A transformer.


def test_a_transformer_that_meets_random_bytes_goes_back_and_trains_on_as_if_it_had_met_other_text() -> None:
    shape = {"width": 8, "heads": 2, "context": 16, "batch_size": 8, "depth": 1, "steps": 300, "lr": 1e-2}
    share, num_steps, num_skipped = 0.005, 240, 30
    bad = {seed: [t for t in range(num_steps + 60) if corruption_draw(seed, t) < share] for seed in range(400)}
    seed, (step,) = next((seed, ts) for seed, ts in bad.items() if len(ts) == 1 and 200 < ts[0] < 220)
    changes = [{"corrupted": share, "rollback": num_skipped}, {"corrupted": share}, {}, {"rollback": num_skipped}]
    configs = [GptConfig(**shape, rollback_every=25, **change) for change in changes]
    trainer = trainer_of("gpt", configs, [seed] * 4)
    curves(trainer, step)
    before = trainer.state_dict()["params"]
    assert torch.equal(before, before[:1].expand(4, -1)), "so far all of them are one run"
    trainer.arrange([RowSpec(one, seed, row) for row, one in enumerate(configs)])
    spike = trainer.step()
    assert spike["rolled_back"].tolist() == [1, 0, 0, 0]
    assert (spike["loss"][:2] > spike["loss"][2:] + 1).all()

    # It trains on: other text, at the level from before the spike.
    other_SBT = BatchStream(load_corpus(()), 8, 16, torch.device("cpu")).batch([(seed, step + 1 + num_skipped)])
    snapshot = {name: weight[:1].detach().clone() for name, weight in trainer.weights.items()}
    after = curves(trainer, num_steps - step)
    torch.testing.assert_close(after["loss"][0, 0], cross_entropy(configs[0], snapshot, other_SBT)[0])
    assert after["rolled_back"].sum() == 0
    assert after["loss"][:, 0].mean() == pytest.approx(float(after["loss"][:, 2].mean()), abs=0.3)
    assert not torch.equal(after["loss"][:, 1], after["loss"][:, 2])
    # Without a bad batch rollback changes no bit.
    assert torch.equal(after["loss"][:, 2], after["loss"][:, 3])
