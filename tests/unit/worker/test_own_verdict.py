"""A trainer that ends itself since it diverged has a result, in whichever words it says so; a crash has none."""

from dataclasses import replace

import pytest

from orchestrator.worker.own_verdict import Losses, first_to_fail, own_verdict, question_of

HEALTHY = Losses(first=4.0, last=3.0, have_diverged=False, are_complete=False)
GROWN = Losses(first=4.0, last=9.0, have_diverged=False, are_complete=False)
TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 9, in <module>']
SAID = {
    "DETR, MAE": ["{'loss': nan}", "Loss is nan, stopping training"],
    "a tensor": ["Loss is tensor(nan, device='cuda:0'), stopping training"],
    "Lightning's early stopping": [
        "Monitored metric train_loss = nan is not finite. Previous best value was 2.156. Signaling Trainer to stop."
    ],
    "infinite": ["loss is inf at step 40"],
    "fairseq's scale": [
        *TRACEBACK,
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
    ],
    "fairseq's gradients": [*TRACEBACK, "FloatingPointError: gradients are Nan/Inf"],
    "numpy": [*TRACEBACK, "FloatingPointError: overflow encountered in multiply"],
    "an assert": [*TRACEBACK, "    assert not torch.isnan(loss).any()", "AssertionError"],
    "an assert of finiteness": [*TRACEBACK, "    assert math.isfinite(loss), loss", "AssertionError: inf"],
    "anomaly detection": ["RuntimeError: Function 'PowBackward0' returned nan values in its 0th output."],
    "sampling": ["RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"],
    "a distribution": [
        "ValueError: Expected parameter logits of distribution Categorical(...) to satisfy the constraint",
        "IndependentConstraint(Real(), 1), but found invalid values:",
        "tensor([[nan, nan], [nan, nan]])",
    ],
    "Megatron": ["AssertionError: Rank 3: found NaN in local forward loss calculation."],
    "Lightning": ["ValueError: The loss returned in `training_step` is nan."],
    "Lightning's weights": ["ValueError: Detected nan and/or inf values in `layer.weight`."],
    "an error of its own": ["ValueError: encountered NaN loss at step 12"],
    "a farewell": ["NaN loss detected, aborting"],
    "an assert after a condition": [*TRACEBACK, "    if step: assert math.isfinite(loss)", "AssertionError"],
    "Keras": ["Batch 20: Invalid loss, terminating training"],
    "Composer": ["RuntimeError: Train loss contains a NaN."],
    "TensorFlow": ["InvalidArgumentError: Gradient for dense is NaN : Tensor had NaN values"],
    "DeepSpeed's scale": [
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
    ],
    "plain words": ["Training diverged at step 30"],
}
NOT_SAID = {
    "memory": [*TRACEBACK, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"],
    "a skipped batch": ["loss is nan, skipping this batch", "RuntimeError: no such layer"],
    "an assert about a shape": [*TRACEBACK, "    assert x.shape == y.shape", "AssertionError"],
    "a summary": ["diverged: False", "training diverged: no", "RuntimeError: cannot save"],
    "a name": ["ValueError: unknown option nan_loss_policy"],
    "an overflow elsewhere": ["OverflowError: cannot serialize a bytes object larger than 4 GiB"],
}


@pytest.mark.parametrize("lines", SAID.values(), ids=SAID)
def test_the_usual_words_say_that_a_training_diverged(lines: list[str]) -> None:
    assert own_verdict(1, HEALTHY, lines, None) is not None
    assert own_verdict(0, HEALTHY, lines, None) is not None  # it ended early


@pytest.mark.parametrize("lines", NOT_SAID.values(), ids=NOT_SAID)
def test_other_words_say_no_such_thing(lines: list[str]) -> None:
    assert own_verdict(1, HEALTHY, lines, None) is None


def test_words_of_a_run_that_reached_its_end_or_was_killed_from_outside_do_not_count() -> None:
    words = ["Loss is nan, stopping training"]
    whole = Losses(first=4.0, last=3.0, have_diverged=False, are_complete=True)
    assert own_verdict(0, whole, words, None) is None
    assert own_verdict(-9, HEALTHY, words, None) is None
    assert own_verdict(143, HEALTHY, words, None) is None


def test_the_line_that_says_so_is_the_reason() -> None:
    assert own_verdict(1, HEALTHY, ["a", "  Loss is nan, stopping training", "b"], None) == (
        "it stopped itself: Loss is nan, stopping training"
    )


def test_a_pattern_of_the_sweep_file_counts_with_any_exit_code() -> None:
    lines, whole = ["gave up: boom", "saved"], Losses(4.0, 3.0, have_diverged=False, are_complete=True)
    for code, losses in ((0, whole), (0, HEALTHY), (3, HEALTHY)):
        assert own_verdict(code, losses, lines, r"boom$") == "it said that it diverged: gave up: boom"
        assert own_verdict(code, losses, lines, "bang") is None


def test_losses_that_say_so_count_where_the_run_failed() -> None:
    high = Losses(first=4.0, last=679.0, have_diverged=False, are_complete=False)
    lost = Losses(first=4.0, last=3.0, have_diverged=True, are_complete=False)
    overflow = [*TRACEBACK, "OverflowError: math range error"]
    assert own_verdict(1, high, ["KeyError: 3"], None) is not None
    assert own_verdict(1, lost, ["KeyError: 3"], None) is not None
    assert own_verdict(1, GROWN, overflow, None) is not None
    assert own_verdict(1, HEALTHY, overflow, None) is None
    assert own_verdict(1, GROWN, ["KeyError: 3"], None) is None
    assert own_verdict(0, high, [], None) is None
    assert own_verdict(1, Losses(None, None, have_diverged=False, are_complete=False), overflow, None) is None
    assert "diverged_if" in question_of(overflow)
    assert question_of(["KeyError: 3"]) == ""


@pytest.mark.parametrize(
    "line",
    [
        "NaN loss at step {}, skipping batch",
        "Skipping step {} due to non-finite loss",
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to 1",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 0.5",
        "step {}: loss is nan, ignoring it",
    ],
)
def test_a_trainer_that_skips_every_step_until_its_end_has_diverged(line: str) -> None:
    skipped = [line.format(step) for step in range(100, 110)]
    said = own_verdict(0, HEALTHY, skipped, None)
    assert said == f"until its end it skipped what was not finite: {skipped[-1]}"
    assert own_verdict(0, HEALTHY, [*skipped, *(f"step {step} loss 2.0" for step in range(30))], None) is None
    assert own_verdict(0, HEALTHY, ["step 1 loss 2.0", *skipped[:2], "done"], None) is None
    assert own_verdict(0, replace(HEALTHY, are_complete=True), skipped, None) is None


@pytest.mark.parametrize(
    ("codes", "rank"),
    [([0, None], None), ([1, None, 1], 0), ([1, -9], 1), ([None, 137, 1], 1), ([1, -6], 0), ([0, 1], 1)],
)
def test_a_process_that_was_killed_explains_why_the_others_failed(codes: list[int | None], rank: int | None) -> None:
    assert first_to_fail(codes) == rank
