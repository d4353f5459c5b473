"""What is printed beside the lines of a log is read as no loss: source code, and the configuration of a run."""

import json
from pathlib import Path

import pytest
from log_styles import LOSSES, NUM_STEPS, READ, SOURCE, text_of

from orchestrator.logs.columns import Columns, MetricsConfig
from orchestrator.logs.files import read_log, read_logs
from orchestrator.logs.point_maker import Point
from orchestrator.logs.streams import MetricStream

STEPLESS = "".join(f"loss {loss}\n" for loss in LOSSES)
OBJECTS = "".join(json.dumps({"loss": loss, "lr": 0.1}) + "\n" for loss in LOSSES)
DICTS = "".join(f"{{'loss': {loss}, 'learning_rate': 0.1, 'epoch': {t / 9:.2f}}}\n" for t, loss in enumerate(LOSSES))
PLAIN = text_of(READ["a print"])
CODE = {
    "a statement with its block on the line": 'if step % 10 == 0: print("loss 3.3")',
    "a loop with its block on the line": "for t in range(3): loss = 3.3",
    "an assert": 'assert loss < 3.3, "loss 3.3"',
    "a call": '    logging.info("loss 3.3")',
    "a string on its own line": '        f"loss 3.3 at {step}",',
    "a comment": "# reaches loss 3.28 at step 1750",
    "a docstring": 'def f(x):\n    """Reach\n    loss 3.28\n    step 4 loss 3.1\n    """',
    "an argument": "    Schedule(\n        loss=3.3,\n    )",
    "imports with names": "import numpy as np, os\nloss = 3.3",
}


@pytest.mark.parametrize("code", CODE)
def test_no_line_of_a_source_at_the_head_of_a_log_is_a_loss(tmp_path: Path, code: str) -> None:
    for text in (
        f"{SOURCE}{PLAIN}",
        f"import torch\n{CODE[code]}\n{PLAIN}",
        f"import torch\n{CODE[code]}\n{'=' * 100}\n{PLAIN}",
    ):
        path = tmp_path / "train.log"
        path.write_text(text)
        assert read_log(path, Columns()).loss_N.tolist() == LOSSES
        assert [point.loss for point in points_of(text)] == LOSSES


def test_a_line_that_a_warning_quotes_is_no_source_that_hides_what_follows() -> None:
    text = "x.py:3: UserWarning: slow\n  return f(x)\n" + "".join(f"loss = {loss}\n" for loss in LOSSES)
    assert [point.loss for point in points_of(text)] == LOSSES


def test_a_line_that_begins_with_a_return_is_of_the_log() -> None:
    assert [point.loss for point in points_of("".join(f"return: 3.5 loss: {loss}\n" for loss in LOSSES))] == LOSSES


SETTINGS = {
    "a namespace": "Namespace(arch='transformer', loss=1.0, lr=[0.0005], bf16=False, max_update=300)\n",
    "a logged namespace": "2024-01-02 10:00:00 | INFO | Namespace(arch='t', loss=1.0, lr=0.5, fp16=None, tpu=False)\n",
    "nested dictionaries": "{'_name': None, 'all': {'seed': 1, 'loss': 1.0}, 'model': {'_name': 'gpt', 'dim': 64}}\n",
    "a dictionary": "{'loss': 1.0, 'lr': 0.1, 'model': 'gpt'}\n",
    "an object": '{"loss": 1.0, "lr": 0.1, "model": {"name": "gpt", "layers": 4}}\n',
    "one of each process": 2 * "[0] Namespace(arch='transformer', loss=1.0, lr=0.1)\n",
    "an object on many lines": '{\n  "lr": 0.1,\n  "loss": 1.0,\n  "steps": 120\n}\n',
    "a call on many lines": "Config(\n  lr=0.1,\n  loss=1.0,\n)\n",
    "with words for its loss": "TrainConfig(loss_weight=1.0, name='x', steps=120)\n",
}
LOGS = {"a print": PLAIN, "no steps": STEPLESS, "dictionaries": DICTS, "objects": OBJECTS}


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_configuration_at_the_head_of_a_log_is_not_its_first_loss(tmp_path: Path, settings: str, log: str) -> None:
    path, text = tmp_path / "train.log", SETTINGS[settings] + LOGS[log]
    path.write_text(text)
    assert [point.loss for point in points_of(text)] == LOSSES
    assert read_log(path, Columns()).loss_N.tolist() == LOSSES


LISTED = {
    "YAML": "lr: 3e-4\nloss_scale: 1024\nmodel:\n  name: gpt\n  loss: 1.0\nmax_steps: 120\nstep: 0\n",
    "equals": "lr=3e-4\nloss = 1.0\nepochs = 3\nmodel = gpt\n",
    "columns": "lr        : 3e-4\nloss      : 1.0\nnum_steps : 120\n",
    "a list": "Hyperparameters:\n  - lr: 3e-4\n  - loss_coef: 1.0\n  - step: 0\n",
    "JSON": '{\n  "lr": 0.1,\n  "trainer": {\n    "loss": 1.0\n  },\n  "steps": 120\n}\n',
    "a line": "Config: lr=3e-4 loss=1.0 steps=120 batch=64\n",
    "a call": "TrainConfig(lr=0.0003, loss=1.0, train_steps=120)\n",
}
PROCESSES = ("", "[rank{}]: ", "{}: ", "[1,{}]<stdout>:", "2026-01-01 10:00:00,123 INFO [rank{}] ", "(Worker pid={}) ")


@pytest.mark.parametrize("log", ["a print", "no steps"])
@pytest.mark.parametrize("listed", LISTED)
def test_settings_that_several_processes_list_are_no_losses_and_no_steps(listed: str, log: str) -> None:
    lines, first_lines = LISTED[listed].splitlines(), "".join(LOGS[log].splitlines(keepends=True)[:25])
    for process in PROCESSES:
        one_by_one = "".join(f"{process.format(rank)}{line}\n" for rank in range(3) for line in lines)
        mixed = "".join(f"{process.format(rank)}{line}\n" for line in lines for rank in range(3))
        for settings in (one_by_one, mixed) if process else (LISTED[listed],):
            points = points_of(settings + first_lines)
            assert [(point.step, point.loss) for point in points] == list(enumerate(LOSSES[:25])), settings


@pytest.mark.parametrize("log", ["a print", "no steps"])
def test_settings_that_a_second_run_lists_are_left_out_too(tmp_path: Path, log: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(LISTED["YAML"] + LOGS[log] + LISTED["YAML"].replace("3e-4", "1e-3") + LOGS[log])
    assert {log.loss_N.max() for log in read_logs(path, Columns())} == {max(LOSSES)}
    assert sum(len(log.loss_N) for log in read_logs(path, Columns())) == 2 * NUM_STEPS


@pytest.mark.parametrize("every", ["step: {}\nloss: {}\nlr: 0.1\nepoch: 0\n", "loss {1}\n", "lr: 0.1\nloss: {1}\n"])
def test_a_log_of_one_number_a_line_is_no_list_of_settings(every: str) -> None:
    for last in ("", "0.1\n", "val_loss 3.0\n" * 3):
        text = "".join(every.format(t, loss) + last for t, loss in enumerate(LOSSES))
        assert [point.loss for point in points_of(text)] == LOSSES


def test_the_configuration_of_a_second_run_in_the_file_is_left_out_too(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(2 * (SETTINGS["a namespace"] + PLAIN))
    log = read_log(path, Columns())
    assert log.loss_N.tolist() == LOSSES
    assert "2 runs" in log.notes[-1]


def test_a_configuration_without_a_log_is_no_loss() -> None:
    for settings in ("a namespace", "a logged namespace"):
        assert points_of(SETTINGS[settings]) == []
    assert [point.loss for point in points_of("step 1\n{'loss': 3.5, 'lr': 0.1}\n")] == [3.5]


def test_objects_with_words_are_a_log_when_they_recur() -> None:
    text = "".join(f"{{'loss': {loss}, 'lr': 0.1, 'phase': 'a', 'host': 'b'}}\n" for loss in LOSSES)
    assert [point.loss for point in points_of(text)] == LOSSES


@pytest.mark.parametrize("line", ["loss nan", "{'loss': nan, 'lr': 0.1}", "{'loss': nan, 'lr': 0.1, 'phase': 'a'}"])
def test_a_loss_that_does_not_change_is_seen_while_it_is_printed(line: str) -> None:
    assert MetricStream(MetricsConfig()).feed(30 * f"{line}\n".encode())


def points_of(text: str) -> list[Point]:
    """Return the points of a log that arrives in pieces."""
    stream, content = MetricStream(MetricsConfig()), text.encode()
    pieces = (content[at : at + 77] for at in range(0, len(content), 77))
    return [point for piece in pieces for point in stream.feed(piece)] + stream.finish()
