import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from custom_cases import SWEEP as OWN_SWEEP
from custom_cases import TRAIN
from diagnosis_cases import (
    PLANTED,
    SWEEP,
    Case,
    calm,
    diagnosed,
    over_the_threshold,
    planted_sweep,
    preconditioner_decay,
    risen,
    row_of,
    short_memory,
    sweep_of_text,
    warmup_too_short,
)
from tiers import thinned

from orchestrator.base.errors import InputError
from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.base.intervals import fisher
from orchestrator.base.space import Cell
from orchestrator.causes.advice import Reason, advise, broken_step, check, reasons_not_finite
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.mechanisms.mechanism import Move
from orchestrator.causes.small_sweeps import small_sweep
from orchestrator.render.answer import to_json
from orchestrator.render.blocks import File
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import read_document

NOWHERE = Path("nowhere")


def said(case, mechanism: str, folder: Path = NOWHERE) -> list[str]:
    lines = diagnosed(case.evidence(), mechanism, folder).lines()
    return [line[2:] for line in lines[lines.index("advice:") + 1 :]]


def test_every_mechanism_has_advice_with_setting_direction_and_reason() -> None:
    for mechanism in MECHANISMS.values():
        assert mechanism.moves
        for move in mechanism.moves:
            assert move.setting
            assert move.reason
            assert move.direction in ("lower", "raise", "switch")


def test_advice_is_checked_against_the_nearest_cell_of_the_sweep() -> None:
    case = preconditioner_decay()
    for seed in range(3):
        case = case.sister("stable", seed=seed, beta2=0.99)
    lines = said(case, "preconditioner_decay")
    assert lines[0].startswith("lower beta2: ")
    assert lines[1] == "  beta2 0.999 -> 0.99 at these settings: 3 of 3 seeds stable, final loss 2.6 -> 2.6"


def test_of_words_which_have_no_order_the_stable_one_is_compared_with_the_trials_own_cell_alone() -> None:
    case = calm("diverged", 300, {"precision": "float16"})
    case = with_seeds(case, "spiked", range(1, 6))
    case = with_seeds(case, "stable", range(6), precision="bfloat16")
    for num_words, one_of in ((1, case), (2, with_seeds(case, "spiked", range(6), precision="float32"))):
        (found,) = (one for one in advise(one_of.evidence(), "half_precision_overflow", NOWHERE) if one.stable)
        assert found.move.direction == "switch"
        assert found.p_value == pytest.approx(num_words * fisher(6, 6, 0, 6))


def test_a_cell_that_learned_too_little_is_said_to_be_degraded_not_just_unstable() -> None:
    case = preconditioner_decay().sister("stable", beta2=0.99).sister("stable", beta2=0.95)
    near = next(sister for sister in case.sisters if sister.config["beta2"] == 0.99)
    sisters = tuple(replace(s, learned_share=0.1) if s is near else s for s in case.sisters)
    lines = said(replace(case, sisters=sisters), "preconditioner_decay")
    assert "beta2 0.999 -> 0.99 at these settings: 0 of 1 seeds stable (degraded), final loss" in lines[2]


def test_the_stable_cell_comes_first_and_a_nearer_one_that_is_not_stable_after_it() -> None:
    case = preconditioner_decay().sister("spiked", 50, beta2=0.99).sister("stable", beta2=0.95)
    proven, refuted = said(case, "preconditioner_decay")[1:3]
    assert "beta2 0.999 -> 0.95 at these settings: 1 of 1 seeds stable" in proven
    assert "beta2 0.999 -> 0.99 at these settings: 0 of 1 seeds stable" in refuted


def test_proven_advice_comes_first_untested_next_and_refuted_advice_is_marked_but_not_shown() -> None:
    case = preconditioner_decay().sister("spiked", 50, beta2=0.99).sister("stable", lr=1e-4)
    case = with_seeds(case, "spiked", range(1, 6))
    case = with_seeds(case, "stable", range(6), eps=1e-4)
    answer = diagnosed(case.evidence(), "preconditioner_decay", NOWHERE)
    standings = [(advice.move.setting, advice.standing) for advice in answer.advice]
    assert standings == [("eps", "proven"), ("lr", "suggested"), ("eps", "untested"), ("beta2", "refuted")]
    assert [row["standing"] for row in json.loads(to_json(answer))["advice"]] == [standing for _, standing in standings]
    lines = said(case, "preconditioner_decay")
    assert not any("beta2: " in line for line in lines)
    assert [line for line in lines if "chance" in line] == ["  so few seeds may be chance (p = 0.14)"]


def with_seeds(case: Case, outcome: str, seeds: Iterable[int], **config: Any) -> Case:
    """The case with a sister of each seed in one cell."""
    for seed in seeds:
        case = case.sister(outcome, None if outcome == "stable" else 50, seed=seed, **config)
    return case


@pytest.mark.parametrize(
    ("p_stable", "num_seeds"),
    thinned(itertools.product((0.2, 0.5, 0.8), (1, 2, 3, 6)), lambda case: case in ((0.2, 1), (0.8, 2), (0.5, 3))),
)
def test_cells_that_are_stable_by_chance_prove_an_advice_in_at_most_five_per_cent(
    p_stable: float, num_seeds: int
) -> None:
    rng, proven = np.random.default_rng(38), []
    rates, memories = [3e-4, 1e-3, 1e-2, 3e-2], [0.9, 0.95, 0.99]
    cells = [{}, *({"lr": rate} for rate in rates), *({"beta2": beta2} for beta2 in memories), {"eps": 1e-4}]
    for _ in range(60):
        case = preconditioner_decay()
        for cell in cells:
            for seed in range(num_seeds if cell else num_seeds - 1):  # the trial itself is not stable
                outcome = "stable" if rng.random() < p_stable else "spiked"
                case = case.sister(outcome, None if outcome == "stable" else 50, seed + (not cell), **cell)
        advice = advise(case.evidence(), "preconditioner_decay", NOWHERE)
        proven.append(any(one.standing == "proven" for one in advice))
    assert np.mean(proven) <= 0.05


def test_a_cell_whose_seeds_are_not_all_trained_refutes_nothing() -> None:
    case = preconditioner_decay().sister("stable", beta2=0.99).sister("planned", seed=1, beta2=0.99)
    planned = replace(case.sisters[-1], outcome=None, status="planned")
    case = replace(case, sisters=(*case.sisters[:-1], planned))
    advice = {item.move.setting: item.standing for item in advise(case.evidence(), "preconditioner_decay", NOWHERE)}
    assert advice["beta2"] == "untested"


@pytest.mark.parametrize(("loss", "is_said"), [(3.0, True), (2.0, False)])
def test_a_spike_is_no_failure_where_the_spiked_cell_has_the_lower_loss(loss: float, is_said: bool) -> None:
    case = preconditioner_decay().sister("stable", beta2=0.95)
    case = replace(case, sisters=(replace(case.sisters[0], final_loss=loss),))
    text = "  a spike is not a failure: the cell that spikes has the lower final loss"
    assert (text in said(case, "preconditioner_decay")) is is_said
    assert text not in said(replace(case, row=replace(case.row, outcome="diverged")), "preconditioner_decay")


def test_a_loss_that_is_not_finite_is_told_so() -> None:
    case = over_the_threshold()
    case = replace(case, row=replace(case.row, final_loss=None))
    lines = diagnosed(case.evidence(), "over_the_threshold", NOWHERE).lines()
    assert any("final loss not finite -> 2.6" in line for line in lines)


def test_eps_is_advised_on_in_both_directions_and_never_as_a_rule() -> None:
    case = preconditioner_decay().sister("stable", eps=1e-4).sister("stable", eps=1e-12)
    lines = " ".join(said(case, "preconditioner_decay"))
    assert "raise eps" in lines
    assert "lower eps" in lines
    assert "papers disagree" in lines
    assert "eps 1e-8 -> 0.0001 at these settings: 1 of 1 seeds stable" in lines
    assert "eps 1e-8 -> 1e-12 at these settings: 1 of 1 seeds stable" in lines


def test_settings_that_a_trial_does_not_have_and_moves_that_are_made_are_left_out() -> None:
    evidence = calm("diverged", 300, {"corrupted": 0.0, "qk_norm": True, "z_loss": 1e-4}).evidence()
    assert [one.move.setting for one in advise(evidence, "bad_batch", NOWHERE)] == ["clip", "batch_size"]
    assert [one.move.setting for one in advise(evidence, "logit_growth", NOWHERE)] == ["lr"]
    quadratic = replace(calm("diverged", 300), row=replace(row_of("diverged", 300), config={"steps": 400, "lr": 0.1}))
    assert [one.move.setting for one in advise(quadratic.evidence(), "over_the_threshold", NOWHERE)] == ["lr"]


# --- the small sweep that would tell -------------------------------------------------------------


@pytest.mark.parametrize("name", PLANTED)
def test_every_small_sweep_that_is_printed_is_one_that_runs(name: str, tmp_path: Path) -> None:
    case = replace(PLANTED[name](), sisters=())
    shown = advise(case.evidence(), name, planted_sweep(tmp_path / "planted"))
    assert shown, "there is something to try"
    for one in shown:
        assert one.sweep_file is not None, one.move.setting
        sweep = sweep_of_text(one.sweep_file)
        (axis,) = sweep.axes
        own = case.evidence().config[one.move.setting]
        assert axis.name == one.move.setting
        assert own in axis.values, "the trial's own cell is there to compare with"
        others = [value for value in axis.values if value != own]
        if one.move.direction == "lower":
            assert all(own is None or value < own for value in others)
        elif one.move.direction == "raise":
            assert all(value > own for value in others)
        assert (sweep.seeds, sweep.telemetry.curvature) == ((0, 1), 20)
        assert sweep.name == f"planted_{one.move.direction}_{one.move.setting}_012345"


def test_the_small_sweep_has_the_trials_own_cell_at_every_other_setting(tmp_path: Path) -> None:
    folder = planted_sweep(tmp_path / "planted")
    trial = row_of("diverged", 3)
    cell = {"lr": 3.0, "warmup": 150}
    trial = replace(trial, cell=cell, config={**trial.config, **cell})
    sweep = sweep_of_text(small_sweep(folder, trial, "lower", "beta2", [0.9]))
    assert (dict(sweep.fixed), sweep.axes[0].values) == ({"lr": 3.0, "warmup": 150}, (0.95, 0.9))
    assert {trial.config["warmup"] for trial in sweep.trials} == {150}
    again = sweep_of_text(small_sweep(folder, trial, "again", None, []))
    assert (again.axes, again.name, len(again.trials)) == ((), "planted_again_012345", 2)


def test_every_small_sweep_is_named_with_the_file_that_the_command_writes(tmp_path: Path) -> None:
    case = replace(warmup_too_short(), sisters=())
    answer = diagnosed(case.evidence(), "warmup_too_short", planted_sweep(tmp_path / "planted"))
    files = [block for block in answer.blocks() if isinstance(block, File)]
    named = [line.split(": ")[1] for line in answer.lines() if "this sweep would: " in line]
    assert named == [str(file.path) for file in files]
    assert [file.content for file in files] == [advice.sweep_file for advice in answer.advice]
    assert len(files) == 3


def test_a_longer_warmup_is_tried_up_to_the_rule_and_never_beyond_half_of_the_run(tmp_path: Path) -> None:
    case = replace(warmup_too_short(), sisters=())
    (first, *_) = advise(case.evidence(), "warmup_too_short", planted_sweep(tmp_path / "planted"))
    assert sweep_of_text(first.sweep_file).axes[0].values == (0, 50, 100)
    long_memory = replace(case, row=replace(case.row, config={**case.row.config, "beta2": 0.9999}))
    (first, *_) = advise(long_memory.evidence(), "warmup_too_short", tmp_path / "planted")
    assert sweep_of_text(first.sweep_file).axes[0].values == (0, 200)


def test_without_the_sweep_file_a_built_in_objective_is_written_from_its_trial() -> None:
    trial = replace(row_of("diverged", 3, {"lr": 3.0}), objective="gpt", seed=4)
    del trial.config["context"]
    sweep = sweep_of_text(small_sweep(NOWHERE, trial, "lower", "lr", [1.0]))
    assert (sweep.seeds, sweep.axes[0].values, sweep.steps) == ((4,), (3.0, 1.0), 400)


def test_a_trainer_of_ones_own_gets_a_sweep_file_for_the_settings_that_it_takes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "mine.yaml").write_text(OWN_SWEEP)
    sweep = build_sweep(read_document(tmp_path / "mine.yaml"))
    (tmp_path / FROZEN_SWEEP).write_text(sweep.text)
    config = {"steps": 60, "lr": 3.0, "warmup": 0}
    trial = replace(row_of("diverged", 3), objective="command", cell=Cell(lr=3.0), config=config)
    text = small_sweep(tmp_path, trial, "lower", "lr", [1.0])
    assert sweep_of_text(text).objective.folder == str(tmp_path)
    assert "telemetry" not in text, "nothing is read of such a trainer"
    with pytest.raises(InputError, match="no part of the command uses"):
        small_sweep(tmp_path, trial, "raise", "warmup", [50])
    evidence = replace(calm("diverged", 3), row=trial).evidence()
    lines = diagnosed(evidence, "over_the_threshold", tmp_path).lines()
    assert "a small sweep is refused: axes.warmup: no part of the command uses {warmup}" in " ".join(lines)


def test_a_setting_of_the_sweep_file_is_never_said_not_to_be_taken(tmp_path: Path) -> None:
    """What is refused is refused for another reason, such as a script that is no longer there."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "mine.yaml").write_text(OWN_SWEEP)
    config = {"steps": 60, "lr": 3.0}
    trial = replace(row_of("diverged", 3), objective="command", cell=Cell(lr=3.0), config=config)
    evidence = replace(calm("diverged", 3), row=trial).evidence()
    lines = " ".join(diagnosed(evidence, "over_the_threshold", tmp_path).lines())
    assert "takes no such setting" not in lines
    assert "is refused: " in lines


def test_without_a_cause_a_lower_learning_rate_is_advised_where_it_is_stable() -> None:
    case = risen(calm("diverged", 200), 200, 9.0)
    assert advise(case.evidence(), None, NOWHERE) == []
    (one,) = advise(case.sister("stable", lr=0.001).evidence(), None, NOWHERE)
    assert (one.move.setting, one.move.direction, one.stable.value) == ("lr", "lower", 0.001)


def test_a_frozen_file_that_is_not_a_sweep_is_refused(tmp_path: Path) -> None:
    for text in ("[1, 2]", "name: x\n", "fixed: 3\n", SWEEP.replace("gpt", "nonsense"), "\0"):
        (tmp_path / FROZEN_SWEEP).write_text(text)
        with pytest.raises(InputError):
            small_sweep(tmp_path, row_of("diverged", 3), "lower", "lr", [1.0])


def test_a_move_without_a_value_to_try_is_no_advice() -> None:
    evidence = calm("diverged", 3).evidence()
    assert check(evidence, Move("lr", "raise", "because", lambda evidence: [1e-9]), NOWHERE) is None


def test_a_half_life_is_moved_in_place_of_the_beta2_that_it_takes_the_place_of() -> None:
    for planted, direction in ((short_memory, "raise"), (preconditioner_decay, "lower")):
        plain, key = planted(), planted.__name__
        settings = [one.move.setting for one in advise(plain.evidence(), key, NOWHERE)]
        assert settings[0] == "beta2"
        assert "beta2_half_life" not in settings
        config = {**plain.row.config, "beta2_half_life": 1000.0}
        timed = advise(replace(plain, row=replace(plain.row, config=config)).evidence(), key, NOWHERE)
        assert (timed[0].move.setting, timed[0].move.direction) == ("beta2_half_life", direction)
        assert "beta2" not in [one.move.setting for one in timed]


@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.3), (0.9, 0.7), (0.95, 0.9), (0.8, 0.6), (0.9999, 0.9)])
def test_what_is_advised_against_a_short_memory_is_on_the_other_side_of_the_rule(
    beta1: float, beta2: float, tmp_path: Path
) -> None:
    case = short_memory()
    case = replace(case, row=replace(case.row, config={**case.row.config, "beta1": beta1, "beta2": beta2}))
    folder = planted_sweep(tmp_path / "planted")
    longer, less, _ = advise(replace(case, sisters=()).evidence(), "short_memory", folder)
    (_, *longer_memories), (_, *less_momenta) = (sweep_of_text(one.sweep_file).axes[0].values for one in (longer, less))
    assert len(longer_memories) == len(less_momenta) == 2
    assert all(value > beta1**2 for value in longer_memories)
    assert all(value**2 < beta2 for value in less_momenta)


def test_a_small_sweep_of_related_axes_has_the_values_that_the_trial_was_trained_with(tmp_path: Path) -> None:
    body = (
        "name: tied\nobjective: quadratic\nsteps: 20\n"
        "axes:\n  lr: {values: [0.1, 0.2]}\n  curvature: {values: [1, 4]}\n  optimizer: {values: [sgd, adamw]}\n"
        "  beta2: {values: [0.9, 0.99], when: {optimizer: adamw}}\n"
        "zip: [[lr, curvature]]\ntie: {lr: lr / curvature, warmup: curvature}\nkeep: {every: 5}\n"
    )
    sweep = sweep_of_text(body)
    (tmp_path / FROZEN_SWEEP).write_text(sweep.text)
    trial = next(each for each in sweep.trials if dict(each.cell) == {**each.cell, "curvature": 4, "optimizer": "sgd"})
    row = replace(row_of("diverged", 3), objective="quadratic", cell=trial.cell, config=trial.config)
    again = sweep_of_text(small_sweep(tmp_path, row, "again", None, []))
    assert dict(again.fixed) == {"curvature": 4.0, "lr": 0.05, "optimizer": "sgd", "warmup": 4}
    lower = sweep_of_text(small_sweep(tmp_path, row, "lower", "lr", [0.01]))
    assert [each.config["lr"] for each in lower.trials if each.seed == 0] == [0.05, 0.01]
    assert again.trials[0].config == trial.config
    assert again.keep is None


BROKEN = 150


def broken(**config: Any) -> Case:
    """A run whose loss is not finite at step 150."""
    case = calm("diverged", BROKEN, config, steps_done=BROKEN + 1, final_loss=None)
    loss_N = case.trace["loss"].copy()
    loss_N[BROKEN] = np.nan
    return case.with_trace(loss=loss_N)


def sister(case: Case, number: int, seed: int = 0, steps_done: int = 400, loss: float | None = 2.6, **config) -> Case:
    """The same case beside a trial that broke after ``steps_done`` steps, or ended at ``loss``."""
    outcome, onset = ("diverged", steps_done - 1) if loss is None else ("stable", None)
    row = row_of(
        outcome, onset, {**case.row.config, **config}, seed=seed, steps_done=steps_done, final_loss=loss,
        trial_id=f"{number:016x}",
    )  # fmt: skip
    return replace(case, sisters=(*case.sisters, replace(row, objective=case.row.objective)))


def of(case: Case, key: str, folder: Path = NOWHERE) -> Reason:
    return next(one for one in reasons_not_finite(case.evidence(), folder) if one.key == key)


def test_a_trial_that_ended_on_finite_numbers_has_no_reasons() -> None:
    finite = risen(calm("diverged", 60, steps_done=120), 60, 9.0)
    assert reasons_not_finite(finite.evidence(), NOWHERE) == []
    assert "not finite from" not in str(diagnosed(finite.evidence()))
    assert broken_step(broken().evidence()) == BROKEN


def test_the_order_is_learning_rate_precision_data_and_eps() -> None:
    answer = diagnosed(broken().evidence())
    assert [reason.key for reason in answer.not_finite] == ["lr", "precision", "data", "eps"]
    lines = answer.lines()
    lines = lines[lines.index("not finite from step 150; possible reasons, in this order:") :]
    assert [line.split(".")[0].strip() for line in lines if line.startswith("  ") and line[2].isdigit()] == list("1234")
    assert [one["branch"] for one in answer.to_plain()["not_finite"]] == ["lr", "precision", "data", "eps"]


def test_a_stable_cell_at_a_lower_learning_rate_says_yes_and_one_that_breaks_too_says_no() -> None:
    assert of(sister(broken(), 1, lr=0.001), "lr").answer == "yes"
    assert of(sister(broken(), 1, steps_done=40, loss=None, lr=0.001), "lr").answer == "no"
    untold = of(broken(), "lr")
    assert untold.answer == "not known"
    assert sweep_of_text(untold.sweep).axes[0].values == (0.01, 0.005, 0.001)


@pytest.mark.parametrize(
    ("precision", "says"), [("float32", "no"), ("float16", "not known"), ("bfloat16", "not known"), (None, "not known")]
)
def test_sixteen_bits_may_be_too_few_until_a_cell_with_more_tells(precision: str | None, says: str) -> None:
    assert of(broken(precision=precision), "precision").answer == says


def test_a_cell_of_another_precision_tells() -> None:
    half = broken(precision="float16")
    assert of(sister(half, 1, precision="float32"), "precision").answer == "yes"
    assert of(sister(half, 1, steps_done=40, loss=None, precision="float32"), "precision").answer == "no"


def test_it_is_the_data_where_trials_of_the_seed_break_at_the_same_step() -> None:
    together = sister(sister(broken(), 1, steps_done=BROKEN + 1, loss=None, lr=1e-3), 2, seed=1, lr=1e-3)
    assert of(together, "data").answer == "yes"
    passed = sister(broken(), 1, lr=1e-3)
    assert of(passed, "data").answer == "no"
    earlier = sister(broken(), 1, steps_done=40, loss=None, lr=1e-3)
    assert of(earlier, "data").answer == "not known", "it never saw that batch"
    assert sweep_of_text(of(broken(), "data").sweep).seeds == (0, 1, 2)


@pytest.mark.parametrize(
    ("precision", "eps", "says", "words"),
    [
        ("float16", 1e-8, "not known", "is zero in float16"),
        ("float16", 1e-6, "not known", "has lost digits in float16"),
        ("float16", 1e-4, "no", "is above"),
        ("bfloat16", 1e-8, "no", "is above"),
        ("float32", 1e-8, "no", "is above"),
        ("float32", 1e-40, "not known", "has lost digits"),
        (None, 1e-8, "not known", "precision is not known"),
    ],
)
def test_eps_is_judged_by_what_the_precision_holds(precision: str | None, eps: float, says: str, words: str) -> None:
    found = of(broken(precision=precision, eps=eps), "eps")
    assert (found.answer, words in " ".join(found.evidence)) == (says, True)


def test_a_trainer_of_ones_own_has_every_reason_with_evidence_or_the_run_that_tells(tmp_path: Path) -> None:
    """NaN at lr 3, and no other field is known."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "mine.yaml").write_text(OWN_SWEEP)
    (tmp_path / FROZEN_SWEEP).write_text(build_sweep(read_document(tmp_path / "mine.yaml")).text)
    config = {"steps": 400, "lr": 3.0}
    case = broken()
    case = replace(case, row=replace(case.row, objective="command", cell=Cell(lr=3.0), config=config), telemetry={})
    found = reasons_not_finite(case.evidence(), tmp_path)
    assert [one.answer for one in found] == ["not known"] * 4
    assert all(one.evidence for one in found)
    assert sweep_of_text(found[0].sweep).axes[0].values == (3.0, 1.5, 0.3)
    assert sweep_of_text(found[2].sweep).seeds == (0, 1, 2)
    stable = replace(case.row, trial_id="1", outcome="stable", onset_step=None, final_loss=2.0, steps_done=400)
    stable = replace(stable, cell=Cell(lr=0.1), config={**config, "lr": 0.1})
    told = reasons_not_finite(replace(case, sisters=(stable,)).evidence(), tmp_path)
    assert [one.answer for one in told] == ["yes", "not known", "no", "not known"]
    text = str(diagnosed(replace(case, sisters=(stable,)).evidence(), folder=tmp_path))
    assert "lr 3 -> 0.1 at these settings: 1 of 1 seeds stable" in text


def test_without_any_curve_the_reasons_are_there_all_the_same() -> None:
    case = broken()
    empty: Evidence = replace(case, trace={"step": np.zeros(0), "loss": np.zeros(0)}, telemetry={}).evidence()
    assert broken_step(empty) == 0
    assert len(reasons_not_finite(empty, NOWHERE)) == 4
