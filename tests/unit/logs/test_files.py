import builtins
import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from event_cases import event_file, scalar
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiers import examples

from orchestrator.base.errors import InputError
from orchestrator.logs import files as logs
from orchestrator.logs.columns import Columns
from orchestrator.logs.files import find_logs, read_log
from orchestrator.logs.tables import Log

DATA = Path(__file__).parents[2] / "data" / "logs"
ANY = Columns()

# One curve, written in every format.
STEP = list(range(0, 400, 10))
LOSS = [round(2 + 9 * 0.9**i + 0.01 * (i % 7), 4) for i in range(len(STEP))]
NORM = [round(15 / (1 + i) + 0.1, 4) for i in range(len(STEP))]


def each(line: str, end: str = "\n") -> str:
    """``line`` for every point of the curve."""
    return "".join(
        line.format(step=step, loss=loss, norm=norm, i=i, pct=100 * step / 400) + end
        for i, (step, loss, norm) in enumerate(zip(STEP, LOSS, NORM, strict=True))
    )


def dicts(step: str, loss: str, norm: str) -> list[dict]:
    return [{step: s, loss: x, norm: g} for s, x, g in zip(STEP, LOSS, NORM, strict=True)]


NANO_GPT = (
    """Overriding config with config/train_shakespeare_char.py:
# train a miniature character-level shakespeare model
eval_interval = 250 # keep frequent because we'll overfit
learning_rate = 1e-3 # with baby networks can afford to go a bit higher
max_iters = 5000

tokens per iteration will be: 16,384
found vocab_size = 65 (inside data/shakespeare_char/meta.pkl)
number of parameters: 10.65M
num decayed parameter tensors: 26, with 10,740,096 parameters
compiling the model... (takes a ~minute)
step 0: train loss 4.2874, val loss 4.2823
"""
    + each("iter {step}: loss {loss}, time 23.4ms, mfu 12.3%").replace(
        "iter 250:", "step 250: train loss 2.1, val loss 2.2\nsaving checkpoint to out\niter 250:"
    )
    + "step 400: train loss 1.9, val loss 2.1\n"
)
TITAN = (
    "[rank0]:[titan] 2025-01-02 10:11:12,123 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss: {loss:8}  "
    "\x1b[38;2;180;60;0mgrad_norm: {norm:7}  \x1b[33mmemory: 10.00GiB(12.64%)  \x1b[34mtps: 1,234  \x1b[36mmfu: 40.1%"
    "\x1b[39m"
)
LLM_C = (
    "step {step:4}/19560 | loss {loss} (+nanz)| norm {norm} (+1.21z)| lr 1.00e-06 | 312.57 ms | 52.3% bf16 MFU | "
    "1677 tok/s"
)
MEGATRON = (
    " iteration {step:8}/  500000 | consumed samples: {step:12} | elapsed time per iteration (ms): 1.2 | "
    "learning rate: 1.0E-04 | global batch size:   512 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {norm} | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |"
)
OLMO = (
    "2024-05-01 10:00:00.123\thost:0\tolmo.train:967\tINFO\t[step={step}/1000,epoch=0]\n"
    "    train/CrossEntropyLoss={loss}\n    train/Perplexity=54,123\n"
    "    throughput/total_tokens=4,194,304\n    optim/total_grad_norm={norm}"
)
WANDB = (
    '"Step","{run} - train/loss","{run} - train/loss__MIN","{run} - train/loss__MAX"\n'
    + each('"{step}","{loss}","0.5","99"').replace("{", "{{").replace("}", "}}")
)  # fmt: skip
FAIRSEQ = "epoch 001: {step:4} / 1000 loss={loss}, ppl=40.2, wps=12345, num_updates={step}, lr=1e-05, gnorm={norm}"


@dataclass(frozen=True)
class Written:
    """The curve in a format, and the columns that are to be found in it."""

    file: str
    content: str | bytes
    step: str | None
    loss: str
    grad_norm: str | None = None

    @property
    def columns(self) -> Columns:
        return Columns(self.step, self.loss, self.grad_norm)


WRITTEN = {
    "CSV": Written("a.csv", "step,loss,grad_norm\n" + each("{step},{loss},{norm}"), "step", "loss", "grad_norm"),
    "CSV of pandas, with an index": Written(
        "a.csv", ",Step,Train Loss\n" + each("{i},{step},{loss}"), "Step", "Train Loss"
    ),
    "CSV with comments and empty lines": Written(
        "a.csv", "# lr 0.1, seed 2\n\niter,loss,layer 1 norm\n" + each("{step},{loss},3.5\n"), "iter", "loss"
    ),
    "CSV with empty cells": Written(
        "a.csv", "step,loss,val_loss\n" + each("{step},{loss},\n{step},,1.5"), "step", "loss"
    ),
    "CSV with a mark of its encoding": Written(
        "a.csv", b"\xef\xbb\xbf" + ("step,loss\r\n" + each("{step},{loss}", "\r\n")).encode(), "step", "loss"
    ),
    "CSV with words": Written(
        "a.csv", "run,step,loss\n" + each("fluent-river-12,{step},{loss}"), "step", "loss"
    ),
    "TSV": Written("a.tsv", "step\ttrain/loss\tnorm\n" + each("{step}\t{loss}\t{norm}"), "step", "train/loss", "norm"),
    "semicolons": Written("a.csv", "step;loss;gnorm\n" + each("{step};{loss};{norm}"), "step", "loss", "gnorm"),
    "semicolons and decimal commas": Written(
        "a.csv", "step;loss\n" + each("{step};{loss}").replace(".", ","), "step", "loss"
    ),
    "CSV of W&B": Written(
        "a.csv", WANDB.format(run="fluent-river-12"), "Step", "fluent-river-12 - train/loss"
    ),
    "CSV of W&B, a run named after its rate": Written(
        "a.csv", WANDB.format(run="lr 1e-3"), "Step", "lr 1e-3 - train/loss"
    ),
    "JSON lines": Written(
        "a.jsonl", "\n".join(map(json.dumps, dicts("step", "loss", "grad_norm"))), "step", "loss", "grad_norm"
    ),
    "JSON lines, nested, among others": Written(
        "a.jsonl",
        '{"config": {"lr": 0.1, "name": "x", "resume": true}}\n'
        + each('{{"iteration": {step}, "train": {{"loss": {loss}, "grad_norm": "{norm}"}}, "ids": [1, 2]}}')
        + '{"val": {"loss": 3.5}}\n',
        "iteration", "train/loss", "train/grad_norm",
    ),
    "JSON lines under a banner": Written(
        "a.log", "starting\n" + each('{{"step": {step}, "loss": {loss}, "grad_norm": {norm}}}'),
        "step", "loss", "grad_norm",
    ),
    "JSON list": Written("a.json", json.dumps(dicts("_step", "train_loss", "gnorm")), "_step", "train_loss", "gnorm"),
    "JSON list, indented": Written(
        "a.txt", json.dumps(dicts("step", "loss", "norm"), indent=2), "step", "loss", "norm"
    ),
    "JSON lists by name": Written(
        "a.json", json.dumps({"name": "x", "steps": STEP, "loss": LOSS, "norm": NORM}), "steps", "loss", "norm"
    ),
    "nanoGPT": Written("a.txt", NANO_GPT, "iter", "loss"),
    "nanoGPT, a redirect on Windows": Written(
        "a.txt", NANO_GPT.replace("\n", "\r\n").encode("utf-16"), "iter", "loss"
    ),
    "llm.c": Written("main.log", each(LLM_C), "step", "loss", "norm"),
    "modded-nanogpt": Written(
        "a.txt",
        "import os\nimport torch\n@dataclass\nclass Hyperparameters:\n    num_iterations : int = 6200 # of updates\n"
        "step:0/6200 val_loss:10.8258 train_time:0ms step_avg:nanms\n"
        + each("step:{step}/6200 train_loss:{loss} train_time:123ms step_avg:12.3ms"),
        "step", "train_loss",
    ),
    "Megatron": Written("a.log", each(MEGATRON), "iteration", "lm_loss", "grad_norm"),
    "torchtitan": Written("a.log", each(TITAN), "step", "loss", "grad_norm"),
    "nanochat": Written(
        "a.log", each("step {step:05d}/16704 ({pct:.2f}%) | loss: {loss} | lrm: 1.00 | dt: 500ms | tok/sec: 1,677"),
        "step", "loss",
    ),
    "OLMo": Written(
        "a.log", each(OLMO), "step", "train/crossentropyloss", "optim/total_grad_norm"
    ),
    "fairseq": Written("a.log", each(FAIRSEQ), "num_updates", "loss", "gnorm"),
    "tqdm": Written(
        "a.err", each("\r{pct:3.0f}%|##   | {step}/400 [00:01<00:09, 9.9it/s, loss={loss}]", ""), "counter", "loss"
    ),
    "logging": Written("a.log", each("2025-01-02 10:11:12,123 INFO step {step} loss {loss}"), "step", "loss"),
    "prints of a dict": Written(
        "a.log", each("{{'loss': {loss}, 'grad_norm': {norm}, 'epoch': 0.1, 'step': {step}}}"),
        "step", "loss", "grad_norm",
    ),
}  # fmt: skip


@pytest.fixture
def log_of(tmp_path: Path) -> Callable[..., Log]:
    """Write a file and read it."""

    def read(content: str | bytes, file: str = "run.log", wanted: Columns = ANY) -> Log:
        path = tmp_path / file
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_log(path, wanted)

    return read


def assert_curve(log: Log, steps: Sequence[int], losses: Sequence[float], norms: Sequence[float] | None) -> None:
    np.testing.assert_array_equal(log.step_N, steps)
    np.testing.assert_array_equal(log.loss_N, losses)
    if norms is None:
        assert log.grad_norm_N is None
    else:
        np.testing.assert_array_equal(log.grad_norm_N, norms)


@pytest.mark.parametrize("name", WRITTEN)
def test_the_curve_is_found_in_every_format_at_the_first_try_with_every_digit(name: str, log_of) -> None:
    written = WRITTEN[name]
    log = log_of(written.content, written.file)
    assert log.columns == written.columns
    assert_curve(log, range(len(STEP)) if written.step is None else STEP, LOSS, NORM if written.grad_norm else None)
    assert log.notes == (("no column of steps: points are numbered from 0",) if written.step is None else ())


# --- files of real tools: tests/data/logs/README.md says how each was made


def test_an_event_file_of_tensorboard_is_read() -> None:
    (path,) = find_logs(DATA / "tensorboard")
    log = read_log(path, ANY)
    i = np.arange(60)
    assert log.columns == Columns("step", "train/loss", "train/grad_norm")
    assert_curve(log, 5 * i, np.float32(4.0 / (1 + 0.1 * i) + 0.001 * i), np.float32(2.0 / (1 + i)))
    assert log.notes == ()
    validation = read_log(path, Columns(loss="val/loss"))
    assert_curve(validation, [0, 100, 200], np.float32(4.5 / (1 + 0.1 * i[::20])), np.float32(2.0 / (1 + i[::20])))


def test_an_event_file_that_holds_tensors_is_read() -> None:
    (path,) = find_logs(DATA / "tensorboard_tensors")
    i = np.arange(20)
    assert_curve(read_log(path, ANY), i, np.float32(4.0 / (1 + 0.1 * i)), None)


def test_an_event_file_of_tensorboard_x_is_read_with_numbers_that_are_not_finite(tmp_path: Path) -> None:
    from tensorboardX import SummaryWriter

    losses = [3.5, 2.5, math.nan, math.inf, 2.25]
    with SummaryWriter(str(tmp_path)) as writer:
        for step, loss in enumerate(losses):
            writer.add_scalar("train_loss", loss, step)
            writer.add_scalar("lr", 0.1, step)
    (path,) = find_logs(tmp_path)
    log = read_log(path, ANY)
    assert log.columns == Columns("step", "train_loss", None)
    assert_curve(log, range(5), losses, None)


def test_a_metrics_csv_of_lightning_is_read() -> None:
    path = DATA / "lightning_metrics.csv"
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["train_loss"]]
    assert len(rows) == 48
    log = read_log(path, ANY)
    assert log.columns == Columns("step", "train_loss", "grad_norm")
    assert_curve(log, *([float(row[name]) for row in rows] for name in ("step", "train_loss", "grad_norm")))
    assert log.notes == ()


def test_a_trainer_state_of_transformers_and_what_it_prints_tell_the_same() -> None:
    history = json.loads((DATA / "trainer_state.json").read_text())["log_history"]
    rows = [row for row in history if "loss" in row]
    state = read_log(DATA / "trainer_state.json", ANY)
    assert state.columns == Columns("step", "loss", "grad_norm")
    assert_curve(state, *([row[name] for row in rows] for name in ("step", "loss", "grad_norm")))
    printed = read_log(DATA / "transformers_stdout.txt", ANY)
    assert printed.columns == Columns(None, "loss", "grad_norm")
    assert printed.step_N.tolist() == list(range(40))
    np.testing.assert_allclose(printed.loss_N, state.loss_N, rtol=5e-4)  # four digits are printed
    np.testing.assert_allclose(printed.grad_norm_N, state.grad_norm_N, rtol=5e-4)


# --- which column is what


COLUMNS = {
    "the loss before the one of validation": ("val_loss,train_loss,step\n1,2,0\n", Columns("step", "train_loss")),
    "the total before its parts": ("step,ce_loss,aux_loss,loss\n0,1,2,3\n", Columns("step", "loss")),
    "a step rather than a batch of an epoch": ("batch,step,loss\n0,7,3\n", Columns("step", "loss")),
    "a loss by its only possible name": ("it,My Train-Loss,test_loss\n0,3,2\n", Columns("it", "My Train-Loss")),
    "names in any case": ("Global Step,LOSS,Grad-Norm\n0,3,1\n", Columns("Global Step", "LOSS", "Grad-Norm")),
    "no step": ("loss,lr\n3,1\n", Columns(None, "loss")),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_told_by_their_usual_names(name: str, log_of) -> None:
    content, columns = COLUMNS[name]
    assert log_of(content, "a.csv").columns == columns


def test_columns_can_be_named_by_the_user_loosely(log_of) -> None:
    text = "a,b,c,loss\n0,1,2,3\n5,6,7,8\n"
    assert_curve(log_of(text, wanted=Columns("a", "b", "c")), [0, 5], [1, 6], [2, 7])
    assert log_of("My Loss,s\n3,0\n", wanted=Columns("s", "my_loss")).columns == Columns("s", "My Loss")
    assert_curve(log_of("0,3.5\n10,2.5\n", wanted=Columns("column_1", "column_2")), [0, 10], [3.5, 2.5], None)


# --- what is not finite, not there, or there twice


NOT_FINITE = {
    "CSV": ("step,loss\n0,3\n1,nan\n2,inf\n3,-Infinity\n", "a.csv"),
    "JSON lines, literals": ('{"step": 0, "loss": 3}\n' + "".join(
        f'{{"step": {i + 1}, "loss": {word}}}\n' for i, word in enumerate(("NaN", "Infinity", "-Infinity"))
    ), "a.jsonl"),
    "JSON lines, strings": ('{"step": 0, "loss": 3}\n' + "".join(
        f'{{"step": {i + 1}, "loss": "{word}"}}\n' for i, word in enumerate(("NaN", "inf", "-inf"))
    ), "a.jsonl"),
    "JSON, too large a number": ('{"step": [0, 1, 2, 3], "loss": [3, NaN, 1e999, -1e999]}', "a.json"),
    "prints": ("step 0 loss 3\nstep 1 loss nan\nstep 2 loss inf\nstep 3 loss -inf\n", "a.log"),
    "prints with signs": ("step: 0, loss: 3\nstep: 1, loss: NaN\nstep: 2, loss: Inf\nstep: 3, loss: -Inf\n", "a.log"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_FINITE)
def test_losses_that_are_not_finite_stay_so(name: str, log_of) -> None:
    content, file = NOT_FINITE[name]
    assert_curve(log_of(content, file), range(4), [3, math.nan, math.inf, -math.inf], None)


def test_an_integer_of_any_length_is_infinite(log_of) -> None:
    assert log_of('{"step": 0, "loss": 1' + 400 * "0" + "}\n").loss_N.tolist() == [math.inf]
    assert log_of("step,loss\n0," + 200_000 * "1" + "\n", "a.csv").loss_N.tolist() == [math.inf]


def test_a_loss_that_is_not_finite_needs_no_digit_in_its_line(log_of) -> None:
    assert_curve(log_of("loss 3\nloss inf\nloss nan\nloss -inf\n"), range(4), [3, math.inf, math.nan, -math.inf], None)


def test_of_a_restarted_log_the_later_points_count_and_it_says_so(log_of) -> None:
    first = "".join(f"step {step} loss 9 norm 7\n" for step in range(0, 100, 10))
    second = "".join(f"step {step} loss {step} norm 3\n" for step in range(70, 200, 10))
    log = log_of(first + "resuming from step 70\n" + second)
    assert_curve(log, range(0, 200, 10), [9] * 7 + list(range(70, 200, 10)), [7] * 7 + [3] * 13)
    assert log.notes == ("3 points were written again at the same or an earlier step; the later ones count",)


def test_steps_that_begin_again_with_each_epoch_are_counted_on(log_of) -> None:
    rows = [(epoch, batch) for epoch in range(3) for batch in range(0, 500, 100)]
    text = "".join(f"epoch {epoch} batch {batch} loss {i} norm {i}\n" for i, (epoch, batch) in enumerate(rows))
    log = log_of(text + "epoch 3 batch 0 loss 15\nepoch 4 batch 0 loss 16\n")
    assert_curve(log, range(0, 1700, 100), range(17), [*range(15), 14, 14])
    assert log.notes == ("steps begin again with each epoch: they continue from the last one",)


def lines_of_ranks(num_ranks: int, block: int, late: int) -> str:
    """Lines of processes whose output comes in blocks; each process is ``late`` by some lines more than the last one.

    The loss of rank R at step I is I.R.
    """
    lines = [
        (i // block * block + late * rank, rank, f"step {10 * i} loss {i}.{rank} norm {i}.{rank}\n")
        for rank in range(num_ranks)
        for i in range(40)
    ]
    return "".join(line for _, _, line in sorted(lines, key=lambda line: line[:2]))


@pytest.mark.parametrize(("block", "late"), [(1, 0), (1, 1), (1, 4), (10, 0), (15, 3), (20, 0)])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_of_ranks_that_print_alike_the_first_line_of_a_step_counts(
    num_ranks: int, block: int, late: int, log_of
) -> None:
    text = lines_of_ranks(num_ranks, block, late)
    log = log_of(text)
    assert_curve(log, range(0, 400, 10), range(40), range(40))
    assert log.notes == (f"{num_ranks} processes printed each step: the first line of each counts",)
    killed = log_of(text[: int(0.97 * len(text))])
    assert killed.loss_N[:36].tolist() == list(range(36))


def test_lines_below_one_step_are_losses_of_their_own(log_of) -> None:
    log = log_of("".join(f"step {i}\n" + "".join(f"loss {i}.{j}\n" for j in range(4)) for i in range(40)))
    assert len(log.loss_N) == 160


def test_a_run_that_writes_the_same_steps_again_is_one_process(log_of) -> None:
    steps = [*range(60), *(step for _ in range(5) for step in range(50, 60))]
    log = log_of("".join(f"step {step} loss {i}\n" for i, step in enumerate(steps)))
    assert_curve(log, range(60), [*range(50), *range(100, 110)], None)


def lines_that_go_back(num: int, to: int = 30, last: int = 40) -> str:
    """Lines of a trainer that goes back to its checkpoint ``num`` times, and then ends."""
    steps = [*range(last), *(step for _ in range(num) for step in range(to, last))]
    return "".join(f"step {step} loss {2 + 8 * 0.9**step + 0.01 * (i % 7):.3f}\n" for i, step in enumerate(steps))


def test_a_run_that_goes_back_for_ever_has_lost_its_loss(log_of) -> None:
    log = log_of(lines_that_go_back(12))
    assert_steps_and_end(log, 40)
    assert "it went back 12 times from step 39 and came no further: taken as not finite" in log.notes


def assert_steps_and_end(log: Log, step: int) -> None:
    """The log has all steps up to the last one, whose loss is not finite."""
    assert log.step_N.tolist() == list(range(step + 1))
    assert math.isnan(log.loss_N[-1])
    assert np.isfinite(log.loss_N[:-1]).all()


def test_one_that_comes_further_in_the_end_has_not(log_of) -> None:
    log = log_of(lines_that_go_back(12, to=38) + "step 40 loss 2.1\nstep 41 loss 2.1\n")
    assert log.step_N.tolist() == list(range(42))
    assert np.isfinite(log.loss_N).all()


@pytest.mark.parametrize("text", [lines_that_go_back(9), lines_of_ranks(16, 10, 0), lines_of_ranks(16, 40, 0)])
def test_a_few_ways_back_and_lines_of_many_ranks_lose_no_run(text: str, log_of) -> None:
    assert np.isfinite(log_of(text).loss_N).all()


def test_steps_that_begin_again_all_the_time_are_none(log_of) -> None:
    log = log_of("".join(f"batch {i % 5} loss {i}\n" for i in range(20)))
    assert_curve(log, range(20), range(20), None)
    assert log.notes == ("batch goes back too often: points are numbered from 0",)


@pytest.mark.parametrize("steps", ["0.5 1.0 1.5", "0 nan 2", "0 1 1e300", "0 -inf 1"])
def test_steps_that_are_no_whole_numbers_are_none(steps: str, log_of) -> None:
    log = log_of("step,loss\n" + "".join(f"{step},{i}\n" for i, step in enumerate(steps.split())))
    assert_curve(log, range(3), range(3), None)
    assert log.notes == ("step is not an integer everywhere: points are numbered from 0",)


GAPS = {
    "norms now and then": ("step,loss,norm\n0,5,2\n1,5,\n2,5,\n3,5,4\n4,5,\n", [2, 2, 2, 4, 4]),
    "the first norm late": ("step,loss,norm\n0,5,\n1,5,3\n2,5,\n3,5,\n4,5,1\n", [3, 3, 3, 3, 1]),
    "a norm that is not finite": (
        "step,loss,norm\n0,5,2\n1,5,inf\n2,5,\n3,5,nan\n4,5,\n", [2, math.inf, 2, math.nan, 2],
    ),
    "lines after those of the losses": ("".join(f"step {i} loss 5\nnorm {i}\n" for i in range(5)), [0, 1, 2, 3, 4]),
    "lines long after those of the losses": (
        '{"step": 0, "loss": 5}\n' + "".join(f'{{"step": {i}, "loss": 5}}\n' for i in range(1, 5))
        + "".join(f'{{"step": {i}, "norm": {i}}}\n' for i in range(5)), [0, 1, 2, 3, 4],
    ),
    "no steps": ("loss 5\nloss 5\nnorm 3\nloss 5\nloss 5\nnorm 4\nloss 5\n", [3, 3, 3, 3, 4]),
}  # fmt: skip


@pytest.mark.parametrize("name", GAPS)
def test_gaps_of_gradient_norms_are_filled_with_the_last_one_that_was_finite(name: str, log_of) -> None:
    content, norms = GAPS[name]
    np.testing.assert_array_equal(log_of(content, "a.txt").grad_norm_N, norms)


def test_rows_of_another_length_are_left_out_and_counted(log_of) -> None:
    log = log_of("step,loss\n0,3\n1\n2,2\n3,2,2,2\n4,1\n")
    assert_curve(log, [0, 2, 4], [3, 2, 1], None)
    assert log.notes == ("not understood: 2 lines or records",)


def test_lines_of_json_that_are_broken_are_left_out_and_counted(log_of) -> None:
    log = log_of('{"step": 0, "loss": 3}\nresumed\n{"step": 1, "loss": 2}\n[1]\n{"step": 2, "lo')
    assert_curve(log, [0, 1], [3, 2], None)
    assert log.notes == ("not understood: 3 lines or records",)


def test_a_column_whose_name_is_too_long_is_left_out(log_of) -> None:
    log = log_of("step,loss," + 200_000 * "x" + "\n0,1,2\n", "a.csv", Columns(loss="loss"))
    assert_curve(log, [0], [1], None)


def test_objects_of_json_among_text_keep_their_nested_names(log_of) -> None:
    rows = "".join(f'{{"step": {i}, "val": {{"loss": 9}}, "train": {{"loss": {i}}}}}\n' for i in range(3))
    log = log_of("starting\n" + rows)
    assert log.columns.loss == "train/loss"
    assert_curve(log, range(3), range(3), None)


def test_a_table_may_have_colours_repeat_its_header_and_change_it(log_of) -> None:
    log = log_of("step,loss\n\x1b[31m0,1\x1b[0m\nstep,loss\n1,2\nloss,lr,step\n3,0.1,2\n4,0.1,3\n", "a.csv")
    assert_curve(log, range(4), range(1, 5), None)
    assert log.notes == ()


def test_a_quoted_cell_may_have_several_lines_and_a_quote_that_never_ends_costs_no_other_row(log_of) -> None:
    rows = 'step,loss,sample\n0,5,"To be, or\nnot ""to"" be\n7,7,7"\n1,4,x\n2,3,"never ended\n'
    log = log_of(rows + "".join(f"{i},1,x\n" for i in range(3, 300)), "a.csv")
    assert_curve(log, range(300), [5, 4, 3] + [1] * 297, None)
    assert log.notes == ()


def test_of_an_event_file_that_was_cut_off_everything_before_is_read(tmp_path: Path) -> None:
    content = next((DATA / "tensorboard").iterdir()).read_bytes()
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(content)
    whole = read_log(path, ANY)
    lengths = set()
    for cut in (len(content) // 3, len(content) // 2, len(content) // 2 + 7, len(content) - 3000):
        path.write_bytes(content[:cut])
        log = read_log(path, ANY)
        lengths.add(num := len(log.step_N))
        assert_curve(log, whole.step_N[:num], whole.loss_N[:num], log.grad_norm_N)
        np.testing.assert_array_equal(log.grad_norm_N[:-1], whole.grad_norm_N[: num - 1])  # the last may be lost
    assert 5 < min(lengths) < max(lengths) < 60
    assert log.notes == ("not understood: 1 line or record",)


def test_of_an_event_file_a_damaged_record_is_left_out_and_counted(log_of) -> None:
    log = log_of(event_file(scalar(0, "loss", 3), b"\xff" * 30, scalar(1, "loss", 2)), "events.out.tfevents.1")
    assert_curve(log, [0, 1], [3, 2], None)
    assert log.notes == ("not understood: 1 line or record",)


def test_of_a_scalar_that_comes_twice_in_a_step_the_later_one_counts(log_of) -> None:
    records = [scalar(0, "loss", 3), scalar(0, "grad_norm", 2), scalar(0, "loss", 9), scalar(1, "loss", 2)]
    log = log_of(event_file(*records), "events.out.tfevents.1")
    assert_curve(log, [0, 1], [9, 2], [2, 2])
    assert log.notes == ("1 point was written again at the same or an earlier step; the later ones count",)


# --- what is no log


def damaged_events() -> bytes:
    content = bytearray(next((DATA / "tensorboard").iterdir()).read_bytes())
    content[100:400] = b"\xff" * 300
    return bytes(content)


NO_LOGS = {
    "empty": ("", "a.log", "is empty"),
    "only spaces": ("  \n\n", "a.log", "holds no numbers with names"),
    "binary": (b"\x7fELF\0\0\0" * 99, "a.log", "is a binary file"),
    "prose": ("The quick brown fox jumps over the lazy dog.\nAnd so on.\n", "a.txt", "holds no numbers with names"),
    "numbers without names": ("3.2\n3.1\n3.0\n", "a.txt", "holds no numbers with names"),
    "several losses": ("step,loss_a,loss_b\n0,1,2\n", "a.csv", r"several may be the loss: loss_a, loss_b"),
    "losses of other data only": ("step,val_loss,test_loss\n0,1,2\n", "a.csv", "no column is a training loss"),
    "no loss": ('{"step": 1, "accuracy": 0.5}\n', "a.jsonl", "no column is a training loss"),
    "JSON that was cut off": ('{"log_history": [{"step": 1, "loss": 2}, {"st', "a.json", "is not JSON: "),
    "JSON of another kind": ('"loss"', "a.json", "holds no numbers with names"),
    "JSON that is too deep": ("[" * 99_999 + "]" * 99_999, "a.json", "is not JSON: "),
    "damaged events": (damaged_events(), "events.out.tfevents.1", "is a damaged event file|holds no numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_LOGS)
def test_what_is_no_log_is_refused_with_its_name_the_fault_and_a_remedy(name: str, log_of) -> None:
    content, file, message = NO_LOGS[name]
    with pytest.raises(InputError, match=message) as refused:
        log_of(content, file)
    (problem,) = refused.value.problems
    assert problem.where.endswith(f"/{file}")
    assert problem.remedy


def test_of_several_losses_the_user_picks_one(log_of) -> None:
    text = "step,loss_a,loss_b\n0,1,2\n5,3,4\n"
    with pytest.raises(InputError, match="say --loss NAME; columns: step, loss_a, loss_b"):
        log_of(text)
    assert_curve(log_of(text, wanted=Columns(loss="loss_b")), [0, 5], [2, 4], None)


@pytest.mark.parametrize(
    ("wanted", "option"),
    [(Columns(loss="x"), "--loss"), (Columns(step="x"), "--step"), (Columns(grad_norm="x"), "--grad-norm")],
)
def test_a_column_that_is_not_there_is_refused_with_those_that_are(wanted: Columns, option: str, log_of) -> None:
    with pytest.raises(InputError, match=f"{option}: no column 'x'\n.*columns: (step|loss), (step|loss)$"):
        log_of("step,loss\n0,3\n", wanted=wanted)


def test_of_many_columns_some_are_listed(log_of) -> None:
    names = [f"m{i}" for i in range(40)]
    with pytest.raises(InputError, match="m10, m11 and 28 more"):
        log_of(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")


def test_a_file_that_is_too_large_is_refused_before_it_is_read(log_of, monkeypatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 10)
    with pytest.raises(InputError, match=r"run\.log: is 0\.0 GiB, more than the 1 GiB that is read\n.*remedy: thin"):
        log_of("step 1 loss 2\n")


def test_a_file_that_cannot_be_read_is_refused_with_the_cause(log_of, monkeypatch) -> None:
    def refuse(path, *arguments, **options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(logs, "open", refuse, raising=False)  # the tests may run as root, who may read all
    with pytest.raises(InputError, match=r"run\.log: cannot be read: Permission denied\n.*remedy: "):
        log_of("step 1 loss 2\n")
    assert logs.open is not builtins.open


PIECES = ("step", "loss", " ", ": ", "=", ",", ";", "\t", "\n", "\r", "1", "-2.5", "1e999", "nan", "{", "}", "[", "]",
          '"', "'", "\\", "1,234", "#", "\x1b[31m", "\0", "é", "٣", "(", ")", "|", "train/loss", "_")  # fmt: skip


def assert_log_or_refused(path: Path) -> None:
    try:
        log = read_log(path, ANY)
    except InputError as error:
        refused = str(error)
    else:
        assert len(log.step_N) == len(log.loss_N) > 0
        assert (np.diff(log.step_N) > 0).all()
        return
    assert str(path) in refused


@settings(max_examples=examples(400))
@given(
    content=st.one_of(
        st.lists(st.sampled_from(PIECES), min_size=1).map("".join).map(str.encode), st.binary(min_size=1)
    ),
    suffix=st.sampled_from([".csv", ".json", ".jsonl", ".txt"]),
    head=st.sampled_from([b"", b"\xff\xfe", b"step,loss\n", b"step 1 loss 2\n", b'{"step": 1, "loss": 2}\n']),
)
@example(content=b"1,2\n", suffix=".csv", head=b"step,loss\n")
def test_any_file_is_a_log_or_is_refused(tmp_path_factory, content: bytes, suffix: str, head: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    path.write_bytes(head + content)
    assert_log_or_refused(path)


@settings(max_examples=examples(200))
@given(content=st.binary(max_size=200), cut=st.integers(0, 2000))
def test_any_event_file_is_a_log_or_is_refused(tmp_path_factory, content: bytes, cut: int) -> None:
    path = tmp_path_factory.getbasetemp() / "events.out.tfevents.any"
    path.write_bytes(next((DATA / "tensorboard").iterdir()).read_bytes()[: 24 + cut] + content)
    assert_log_or_refused(path)


# --- folders


def test_a_folder_is_walked_for_what_may_be_a_log_in_order(tmp_path: Path) -> None:
    names = ["b/metrics.CSV", "a.log", "b/events.out.tfevents.1.x", "c/d/state.json", "z.txt"]
    others = ["model.pt", ".hidden.csv", ".git/a.log", "b/.cache/c.log", "notes.md"]
    for name in names + others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [str(path.relative_to(tmp_path)) for path in find_logs(tmp_path)]
    assert found == sorted(names, key=lambda name: name.split("/"))
    assert find_logs(tmp_path / "notes.md") == [tmp_path / "notes.md"], "a file that is named is read"


def test_a_folder_below_a_hidden_one_or_above_this_one_is_walked(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / ".runs" / "here"
    folder.mkdir(parents=True)
    (tmp_path / ".runs" / "a.log").touch()
    monkeypatch.chdir(folder)
    assert [path.name for path in find_logs(tmp_path / ".runs")] == ["a.log"]
    assert [path.name for path in find_logs(Path("../../.runs"))] == ["a.log"]


@pytest.mark.parametrize("name", ["nothing", "x" * 999])
def test_a_path_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"{name}: no such file or folder\n.*remedy: "):
        find_logs(tmp_path / name)


def test_a_folder_without_logs_is_refused_with_what_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "model.pt").touch()
    with pytest.raises(InputError, match=rf"{tmp_path}: holds no logs\n.*\.csv, .*TensorBoard"):
        find_logs(tmp_path)
