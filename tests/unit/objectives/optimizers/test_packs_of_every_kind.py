"""What holds for the members of a pack, whatever optimizer, clipping and start of the second moment they have."""

import pytest
import torch
from rule_cases import EVERYONE, KINDS, STEPS, Members, take_due_hessians
from tiers import one_of, thinned

# Packs train in float32; float64 is for remedies of the number format.
DTYPES = pytest.mark.parametrize(
    "dtype", thinned([torch.float64, torch.float32], lambda dtype: dtype == torch.float32), ids=["f64", "f32"]
)
ALL_KINDS = list(KINDS)


@DTYPES
@pytest.mark.parametrize("kind", KINDS)
def test_a_member_alone_has_the_bits_that_it_has_in_a_pack(kind, dtype) -> None:
    own = Members(kind, dtype)
    together = own.trained()
    for rows in ([0], [1], [2], [3], [4], [1, 4], [4, 0, 2]):
        apart = own.trained(rows)
        assert torch.equal(apart.params_Kn, together.params_Kn[rows])
        for name, state in apart.states.items():
            assert torch.equal(state, together.states[name][rows]), name


@pytest.mark.parametrize("kind", one_of(3, KINDS))
def test_members_of_different_ages_are_each_at_their_own_step(kind) -> None:
    """What comes now and then, such as a reset or a Hessian, comes by a member's own age."""
    own, before, after = Members(kind), [0, 1, 2], [2, 3, 1, 4]
    own.grads[2, 0, 5] = torch.nan  # so that a fresh one takes the place of a lost one
    packed = own.trained(before, 6)
    rows = torch.tensor([before.index(k) if k in before else -1 for k in after])
    params = torch.where((rows < 0)[:, None], own.start_Kn[after], packed.params_Kn[rows])
    packed.arrange(rows, params, [own.configs[k] for k in after], after)
    for step in range(15):
        ages = [step + 6 if k in before else step for k in after]
        assert packed.age_K.tolist() == ages
        own.step(packed, ages, after)
    for row, k in enumerate(after):
        assert torch.equal(packed.params_Kn[[row]], own.trained([k], 21 if k in before else 15).params_Kn)


@pytest.mark.parametrize(
    ("kind", "where"),
    # By default one of the two, in turn.
    thinned(
        [(kind, where) for kind in KINDS for where in ("loss", "gradient")],
        lambda case: (case[1] == "loss") == (ALL_KINDS.index(case[0]) % 2 == 0),
    ),
)
def test_a_member_that_is_not_finite_is_masked_and_touches_nobody(kind, where) -> None:
    own, victim, others = Members(kind, torch.float32), 2, [0, 1, 3, 4]
    expected, packed = own.trained(num_steps=12), own.trained(num_steps=3)
    kept = packed.params_Kn[victim].clone()
    own.hessians[3:, victim] = torch.nan
    for step in range(3, 12):
        loss, grad = torch.ones(len(EVERYONE)), own.grads[step].clone()
        (loss if where == "loss" else grad[:, 5])[victim] = torch.nan
        take_due_hessians(packed, own.hessians[step])
        metrics = packed.step(loss, grad)
    assert torch.equal(packed.params_Kn[others], expected.params_Kn[others])
    assert torch.equal(packed.params_Kn[victim], kept)
    assert all(torch.isnan(value[victim]) for value in metrics.values())


@DTYPES
@pytest.mark.parametrize(
    ("kind", "stop"),
    # By default one of the two, in turn.
    thinned(
        [(kind, stop) for kind in KINDS for stop in (3, 11)],
        lambda case: (case[1] == 3) == (ALL_KINDS.index(case[0]) % 2 == 0),
    ),
)
def test_an_optimizer_that_was_saved_goes_on_bit_for_bit(kind, dtype, stop, tmp_path) -> None:
    own = Members(kind, dtype)
    expected, stopped = own.trained(), own.trained(num_steps=stop)
    state = stopped.state_dict()
    torch.save(state, tmp_path / "state.pt")
    kept = stopped.params_Kn.clone()
    own.train(stopped, range(3))  # what is done after the snapshot must not leak into it
    for saved in (state, torch.load(tmp_path / "state.pt", weights_only=True)):
        resumed = own.trained(num_steps=2)  # nor what it has done so far
        resumed.params_Kn.copy_(kept)
        resumed.load_state_dict(saved)
        assert torch.equal(own.train(resumed, range(stop, STEPS)).params_Kn, expected.params_Kn)


@pytest.mark.parametrize("kind", one_of(3, KINDS))
def test_a_member_that_is_held_goes_on_as_if_the_step_had_not_been_taken(kind) -> None:
    own = Members(kind, torch.float32, warmup=0)
    straight, held, loss = own.packed(), own.packed(), torch.ones(len(EVERYONE))
    wanted = [straight.params_Kn.clone()]
    for grad in own.grads:
        straight.step(loss, grad.clone())
        wanted.append(straight.params_Kn.clone())
    # Members are held now and then; what they then see is anything but a number.
    generator, taken = torch.Generator().manual_seed(2), [0 for _ in EVERYONE]
    for _ in range(STEPS):
        held_K = torch.rand(len(EVERYONE), generator=generator) < 0.4
        grad = own.grads[taken, [*EVERYONE]]
        grad[held_K, 5] = float("inf")
        metrics = held.step(loss, grad, held_K=held_K)
        taken = [age + (not is_held) for age, is_held in zip(taken, held_K.tolist(), strict=True)]
        for k, age in enumerate(taken):
            assert torch.equal(held.params_Kn[k], wanted[age][k])
        assert not metrics["update_norm"][held_K].any()
        assert torch.equal(torch.isinf(metrics["grad_norm"]), held_K)
    assert held.alive_K.all()
    assert held.age_K.tolist() == taken
    assert 0 < min(taken) <= max(taken) < STEPS
