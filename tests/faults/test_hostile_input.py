import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import BASE, QUADRATIC, ledger_at, record, sweep_of
from tiers import examples, thinned

from orchestrator.base.errors import InputError, SweepError, printable
from orchestrator.detection.config import StoppingConfig
from orchestrator.ledger.reader import LedgerReader
from orchestrator.logs.columns import Columns
from orchestrator.logs.files import find_logs, read_log
from orchestrator.maps.replay import Curve, detect, replay_logs
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.sections import SECTIONS, keys_of
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

DATA = Path(__file__).parents[1] / "data" / "logs"
MAX_SECONDS = 3.0  # of the processor; under one on an idle machine, and a busy one is slower
MAX_PROCESS_SECONDS = 5.0
MAX_MIB = 300
MAX_MESSAGE = 25_000  # twenty problems, each with a key, a message and a remedy
ANY = Columns()
EDGE = (
    QUADRATIC.replace("beta1: {values: [0.0, 0.5]}", "beta1: {log1m: [0.5, 0.99], num: 2}")
    + "stopping: {window: 20, patience: null}\n"
)
GPT = "name: case\nobjective: gpt\nsteps: 20\n"


def fuzz(max_examples: int) -> settings:
    return settings(derandomize=True, max_examples=examples(max_examples), database=None)


def assert_clear(error: SweepError) -> None:
    message = printable(str(error))
    assert message.strip()
    assert all(c.isprintable() or c == "\n" for c in message)


def refusal(read: Callable[[], Any]) -> SweepError | None:
    """What ``read`` was refused with, if it was; it takes little time of this process either way."""
    start = time.process_time()
    try:
        read()
    except SweepError as error:
        refused: SweepError | None = error
        assert_clear(error)
    else:
        refused = None
    assert time.process_time() - start < MAX_SECONDS
    return refused


def sweep_from(text: str, overrides: Overrides = Overrides()) -> Sweep:
    return build_sweep(parse_document(text, "case.yaml"), overrides)


# --- sweep files ---------------------------------------------------------------------------------

ALIAS_BOMB = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'lol'}]\n" for i in range(12))
HUGE_GRID = BASE + (
    "axes:\n  lr: {log: [1e-8, 1e-1], num: 1000}\n"
    "  beta1: {linear: [0, 0.9], num: 1000}\n  beta2: {linear: [0, 0.9], num: 1000}\n"
)
DEEP = "[" * 100_000
REFUSED = {
    "an alias bomb": ALIAS_BOMB,
    "a grid of a billion cells": HUGE_GRID,
    "a billion sampled cells": BASE + "axes: {lr: {log: [1e-8, 1]}}\nsample: {method: sobol, num: 1000000000}\n",
    "a million sampled cells": BASE + "axes: {lr: {log: [1e-8, 1]}}\nsample: {method: random, num: 1000000}\n",
    "a seed of sampling that no generator takes": BASE
    + "axes: {lr: {log: [1e-8, 1]}}\nsample: {method: random, num: 3, seed: 999999999999999999}\n",
    "5 MB of text": "a" * 5_000_000,
    "5 MB of keys": "".join(f"k{i}: 1\n" for i in range(500_000)),
    "deep brackets": DEEP,
    "deep braces": "{" * 100_000,
    "deep dashes": "- " * 100_000,
    "deep question marks": "? " * 100_000,
    "deep indentation": "".join(f"{' ' * i}a:\n" for i in range(600)),
    "a key of 100,000 characters": BASE + f'? "{"k" * 100_000}"\n: 1\n',
    "a name of 200,000 characters": BASE.replace("case", "a" * 200_000),
    "a name of 300 characters": BASE.replace("case", "a" * 300),
    "a name that is a path": BASE.replace("case", "../x"),
    "a name with a NUL": BASE.replace("case", '"a\\0b"'),
    "a NUL": BASE + "\0",
    "a name with terminal escapes": BASE.replace("case", '"\\e[2J\\e]0;owned\\a"'),
    "a name that ends in a new line": BASE.replace("case", '"case\\n"'),
    "a name that turns the text around": BASE.replace("case", '"\\u202Eesac"'),
    "lone surrogates": BASE + "x: \ud800\n",
    "a tag that runs code": BASE + "x: !!python/object/apply:os.system [echo owned]\n",
    "a tag of 200,000 characters": "!" * 200_000,
    "a number that takes long to tell from text": BASE + "x: " + "1" * 200_000 + "x\n",
    "an exponent that takes long to tell from text": BASE + "x: " + "1" * 100_000 + "e" + "1" * 100_000 + "x\n",
    "a number of 200,000 digits": BASE + "fixed: {lr: " + "9" * 200_000 + "}\n",
    "steps of 200,000 digits": "name: case\nobjective: quadratic\nsteps: " + "9" * 200_000,
    "tokens of 200,000 digits": "name: case\nobjective: gpt\ntokens: " + "9" * 200_000,
    "a share of 200,000 digits": BASE + "fixed: {warmup: " + "9" * 200_000 + "%}\n",
    "a share with 200,000 places": BASE + "fixed: {warmup: 0." + "1" * 200_000 + "%}\n",
    "a share that is a few spaces": BASE + "fixed: {warmup: '" + " " * 200_000 + "%'}\n",
    "a batch of 200,000 digits": BASE + "batch: {global: " + "9" * 200_000 + "}\n",
    "a learning rate that is not a number": BASE + "fixed: {lr: .nan}\n",
    "an axis that ends nowhere": BASE + "axes: {lr: {log: [1e-8, .inf], num: 3}}\n",
    "an axis too wide for its steps": BASE + "axes: {batch_size: {linear: [-1e308, 1e308], num: 3}}\n",
    "an axis too wide for its factors": BASE + "axes: {batch_size: {log: [1e-300, 1e300], num: 3}}\n",
    "a key twice": BASE + "steps: 30\n",
    "a merge key": BASE + "<<: {steps: 30}\n",
    "two documents": BASE + "---\n" + BASE,
    "15,000 unknown keys": BASE + "".join(f"unknown{i}: 1\n" for i in range(15_000)),
    "15,000 unknown fields": BASE + "fixed:\n" + "".join(f"  lrr{i}: 1\n" for i in range(15_000)),
    "12,000 unknown axes": BASE + "axes:\n" + "".join(f"  lrr{i}: {{num: 1}}\n" for i in range(12_000)),
    "12,000 axes that are none": BASE + "axes:\n" + "".join(f"  lrr{i}: 1\n" for i in range(12_000)),
    "30,000 values": BASE + "axes: {lr: {values: [" + ",".join(f"{i}.5" for i in range(30_000)) + "]}}\n",
    "nested values": BASE + "axes: {lr: {values: " + "[" * 15 + "1" + "]" * 15 + "}}\n",
    "a text file of an unknown user": GPT + "fixed: {text: ['~nobody-here/x']}\n",
    "a text file with a name too long": GPT + f"fixed: {{text: ['{'a' * 300}']}}\n",
    "a text file with a NUL": GPT + 'fixed: {text: ["\\0"]}\n',
    "a pattern of text files with a NUL": GPT + 'fixed: {text: ["a\\0/*"]}\n',
    "a pattern of text files with a name too long": GPT + f"fixed: {{text: ['{'a' * 300}/*']}}\n",
    "a pattern of text files 3,000 folders deep": GPT + f"fixed: {{text: ['{'**/' * 3_000}']}}\n",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_sweep_file_is_refused_at_once_with_a_message_that_fits_a_screen(name: str) -> None:
    error = refusal(lambda: sweep_from(REFUSED[name]))
    assert isinstance(error, InputError)
    assert len(printable(str(error))) < MAX_MESSAGE


NASTY = (
    "1e-8", "1e400", "-1e400", "1e-400", ".nan", ".inf", "-.inf", "0", "-1", "1000000000", "9" * 18, "9" * 19, "007",
    "0x10", "1_000", "12:30", "null", "~", "yes", "true", "''", "'1e-8'", "../x", "/etc/passwd", '"a\\0b"',
    '"\\e[31mred"', '"\\u202Ex"', '"\\U0010FFFF"', "a" * 300, "é", "日本", "[]", "{}", "[1]", "[[1]]", "[1, 1]",
    "[0.1, 0.2]", "[1e-8, 1e-1]", "[0.1, 1e308]", "[-1e308, 1e308]", "[0, .nan]", "[null, 1]", "[true, false]",
    "{values: [1]}", "{values: []}", "{values: [null]}", "{values: [1, 1.0]}", "{linear: [0, 1], num: 3}",
    "{log: [1e-8, 1], num: 1000000000}", "{log: [0, 1], num: 3}", "{log1m: [0.5, 0.9999], num: 4}",
    "{log1m: [0, 1], num: 2}", "{linear: [1, 9], num: 2, x: 1}", "{method: sobol, num: 3}", "{method: random, num: 0}",
    "{method: random, num: 2, seed: -1}", "{method: random, num: 2, seed: 99999999999}", "*a", "&a 1",
    "!!python/object:os.system x", "!!binary aGk=", "!x y", "!!float 1", "? x", "- 1", "|", ">", "@", "`", "%", "#",
    "[", "]", "{", "}", "'", '"', "a: b: c", "quadratic", "gpt", "function_fit", "adamw", "sgd", "auto", "x\n",
)  # fmt: skip
FIELDS = ("lr", "beta1", "beta2", "eps", "clip", "warmup", "batch_size", "optimizer", "steps", "text", "depth", "width")
TOP_KEYS = (*keys_of(SECTIONS[()]), "Axes", "unknown", "<<", "'a.b'", '"\\0"', "null", "1", "é", "[x]", "{x: 1}")


def inner_keys(section: str) -> Sequence[str]:
    if section in ("axes", "fixed"):
        return FIELDS
    known = SECTIONS.get((section,))
    return (*known.model_fields, "unknown") if known else FIELDS


@st.composite
def sweep_files(draw: st.DrawFn) -> str:
    value = st.sampled_from(NASTY)
    lines = [] if draw(st.integers(0, 3)) == 0 else [BASE.rstrip()]
    for section in draw(st.lists(st.sampled_from(TOP_KEYS), max_size=5)):
        if draw(st.booleans()):
            lines.append(f"{section}: {draw(value)}")
            continue
        keys = draw(st.lists(st.sampled_from(inner_keys(section)), max_size=4))
        lines.append(f"{section}:" + "".join(f"\n  {key}: {draw(value)}" for key in keys))
    return "\n".join(lines) + "\n"


@fuzz(300)
@given(text=sweep_files())
def test_any_mixture_of_keys_and_hostile_values_is_a_sweep_or_is_refused(text: str) -> None:
    refusal(lambda: sweep_from(text))


@fuzz(300)
@given(text=st.one_of(st.text(), st.text(st.sampled_from("-?:,[]{}#&*!|>'\"%@` \t\n\\~<01e.a\0\x1b\u2028\ud800"))))
def test_any_text_is_a_sweep_file_or_is_refused(text: str) -> None:
    refusal(lambda: sweep_from(text))
    refusal(lambda: sweep_from(BASE + text))


Edit = tuple[str, float, int]
EDITS = st.lists(
    st.tuples(st.sampled_from(["delete", "insert", "twice", "flip"]), st.floats(0, 1), st.integers(0, 255)),
    min_size=1,
    max_size=6,
)


def mutated(content: bytes, edits: Sequence[Edit]) -> bytes:
    """``content`` with a few bytes or pieces deleted, inserted, doubled or flipped."""
    for kind, where, number in edits:
        at = int(where * len(content))
        before, piece, after = content[:at], content[at : at + 1 + number % 40], content[at + 1 + number % 40 :]
        if kind == "delete":
            content = before + after
        elif kind == "insert":
            content = before + bytes([number]) + piece + after
        elif kind == "twice":
            content = before + piece + piece + after
        elif piece:
            content = before + bytes([piece[0] ^ (1 << number % 8)]) + piece[1:] + after
    return content


VALID = (EDGE, (Path(__file__).parents[2] / "sweeps" / "beta2_eps.yaml").read_text())


@fuzz(250)
@given(which=st.integers(0, len(VALID) - 1), edits=EDITS)
def test_a_mutated_sweep_file_is_a_sweep_or_is_refused(which: int, edits: list[Edit]) -> None:
    text = mutated(VALID[which].encode(), edits).decode("utf-8", "surrogateescape")
    refusal(lambda: sweep_from(text))


SET_KEYS = (*TOP_KEYS, "fixed.lr", "axes.lr", "axes.lr.values", "sample.num", "stopping.window", ".")


@fuzz(250)
@given(
    axes=st.lists(st.tuples(st.sampled_from([*FIELDS, "", "a=b"]), st.sampled_from(NASTY)), max_size=2),
    sets=st.lists(st.tuples(st.sampled_from(SET_KEYS), st.sampled_from(NASTY)), max_size=3),
    seeds=st.one_of(st.none(), st.text(max_size=5), st.sampled_from(["1,1", "-1", "1e3", "9" * 30, ",", "nan"])),
    scale=st.sampled_from(["values", "linear", "log", "log1m", "x", "\x1b"]),
    name=st.one_of(st.none(), st.text(max_size=5)),
)
def test_any_options_make_a_sweep_or_are_refused(
    axes: list[tuple[str, str]],
    sets: list[tuple[str, str]],
    seeds: str | None,
    scale: str,
    name: str | None,
) -> None:
    overrides = Overrides(
        axes=tuple(f"{field}={scale}:{value}" for field, value in axes),
        sets=tuple(f"{key}={value}" for key, value in sets),
        seeds=seeds,
        name=name,
    )
    refusal(lambda: sweep_from(EDGE, overrides))


@pytest.mark.parametrize(
    "text",
    ["fixed.lr" + ".a" * 50_000 + "=1", "a" * 100_000, "fixed.lr=" + "[" * 50_000, "fixed.lr=\x1b[2J", "name=\udc80"],
    ids=["a deep key", "no value", "deep brackets", "terminal escapes", "bytes that are no text"],
)
def test_a_hostile_setting_is_refused(text: str) -> None:
    assert isinstance(refusal(lambda: sweep_from(EDGE, Overrides(sets=(text,)))), InputError)


# --- logs ----------------------------------------------------------------------------------------


def judged(path: Path) -> None:
    """Read a log and, where it is short, judge it; all that is written of it is finite."""
    log = read_log(path, ANY)
    replayed = replay_logs([log] if len(log.step_N) <= 500 else [], StoppingConfig())
    json.dumps([one.summary() for one in replayed], allow_nan=False)


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def nested(depth: int, name: str = "a") -> bytes:
    return (f'{{"{name}":' * depth + "1" + "}" * depth).encode()


def spelling(name: bytes, number: int) -> bytes:
    """``name`` with the bits of ``number`` as capitals."""
    return bytes(c - 32 if number >> k & 1 and 97 <= c <= 122 else c for k, c in enumerate(name))


JSON_LINE = b'{"step": 1, "loss": 2}\n'
TEXT_LINE = b"step 1 loss 2\n"
HOSTILE_LOGS = {
    "JSON 100,000 deep": ("a.json", b"[" * 100_000),
    "JSON lines 100,000 deep": ("a.jsonl", JSON_LINE + b"[" * 100_000 + b"\n" + nested(100_000)),
    "JSON lines 900 deep": ("a.jsonl", JSON_LINE + nested(900)),
    "a name of 100,000 characters that 1,000 others begin with": (
        "a.jsonl", JSON_LINE + json.dumps({"n" * 100_000: {f"a{i}": 1 for i in range(1_000)}}).encode(),
    ),
    "a name of 100,000 characters at the head of 900 levels": (
        "a.jsonl", JSON_LINE + b'{"' + b"n" * 100_000 + b'":' + nested(300) + b"}",
    ),
    "10,000 spellings of a step": (
        "a.jsonl",
        b"".join(b'{"%s": 1, "loss": 2}\n' % spelling(b"train/global_step", i) for i in range(10_000)),
    ),
    "digits that are no number in a table": ("a.csv", b"step,loss\n0," + b"1" * 100_000 + b"x\n"),
    "digits that are no number in JSON": ("a.jsonl", JSON_LINE + b'{"loss": "' + b"1" * 1_000_000 + b'x"}\n'),
    "an integer of 100,000 digits": ("a.jsonl", JSON_LINE + b'{"loss": ' + b"1" * 100_000 + b"}\n"),
    "words and spaces": ("a.log", TEXT_LINE + b"1a a a" + b" " * 3_900 + b"(\n"),
    "words and spaces in a header": ("a.log", b"1a a a" + b" " * 60_000 + b"(,1\na,b\n"),
    "words and brackets": ("a.log", TEXT_LINE + (b"a a a (" * 550 + b"\n") * 20),
    "words and dashes": ("a.log", TEXT_LINE + (b"a-" * 1_990 + b"1\n") * 50),
    "words and slashes": ("a.log", TEXT_LINE + (b"a/a " * 990 + b"1\n") * 50),
    "words and commas": ("a.log", TEXT_LINE + b"a 1" + b",111" * 990 + b"xxxxx\n"),
    "colours": ("a.log", TEXT_LINE + (b"\x1b[" + b"1;" * 1_990 + b"\n") * 50),
    "a comment that ends in the middle of a line": ("a.csv", b"#a\x0bstep,loss\x0b1,2\n"),
    "comments alone": ("a.csv", b"#step,loss\n#1,2\n"),
    "a header alone": ("a.csv", b"step,loss\n"),
    "a quote that never ends": ("a.csv", b'step,loss\n0,"1\n' + b"0,1\n" * 50_000),
    "30,000 columns": ("a.csv", b",".join(b"c%d" % i for i in range(30_000)) + b"\n" + b",".join([b"1"] * 30_000)),
    "numbers beyond all numbers": ("a.csv", b"step,loss,grad_norm\n1e400,1e400,-1e400\nnan,nan,nan\n-1e400,1e308,1\n"),
    "steps beyond all integers": ("a.csv", b"step,loss\n1e18,1\n9007199254740993,1\n-1e300,1\n"),
    "digits of other scripts": ("a.csv", "step,loss\n1,٣\n2,४\n³,②\n".encode()),
    "NULs": ("a.csv", b"step,loss\n" + b"\0" * 1_000),
    "NULs far down": ("a.csv", b"step,loss\n" + (b"1,2" + b" " * 300 + b"\n") * 300 + b"\0" * 1_000),
    "bytes that are no text": ("a.csv", b"step,loss\n1,2\n" + bytes(range(128, 256)) * 100),
    "half a UTF-16 character": ("a.csv", b"\xff\xfe" + "step,loss\n1,2\n".encode("utf-16-le") + b"\x00\xd8\x00"),
    "an empty file": ("a.csv", b""),
    "a new line": ("a.csv", b"\n"),
    "a JSON null": ("a.json", b"null"),
    "a history that is none": ("trainer_state.json", b'{"log_history": [1, null, [], {"loss": null}, {"loss": {}}]}'),
    "a history that is text": ("trainer_state.json", b'{"log_history": "loss"}'),
    "a record of an exabyte": ("events.out.tfevents.1", b"\x18" + b"\0" * 11 + b"brain.Event:2" + b"\xff" * 500),
    "a record that is longer than its file": (
        "events.out.tfevents.1",
        (DATA / "tensorboard" / "events.out.tfevents.1700000000.host.1.0").read_bytes() + b"\0\0\0\x20" + b"\0" * 8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_LOGS)
def test_a_hostile_log_is_read_or_refused_at_once(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, *HOSTILE_LOGS[name])
    error = refusal(lambda: judged(path))
    if error is not None:
        assert len(printable(str(error))) < MAX_MESSAGE


REAL_LOGS = sorted(path for path in DATA.rglob("*") if path.is_file() and path.suffix != ".md")
WRITTEN_LOGS = {
    "a.csv": b"".join([b"step,loss,grad_norm\n", *(b"%d,%d.5,1e-%d\n" % (i, 40 - i, i) for i in range(40))]),
    "a.tsv": b"".join([b"step\tloss\tgrad_norm\n", *(b"%d\t%d.5\t1\n" % (i, 40 - i) for i in range(40))]),
    "a.jsonl": b"".join(b'{"step": %d, "train": {"loss": %d.5}, "x": NaN}\n' % (i, 40 - i) for i in range(40)),
}
SEEDS = {path.name: path.read_bytes() for path in REAL_LOGS} | WRITTEN_LOGS


@fuzz(250)
@given(name=st.sampled_from(sorted(SEEDS)), edits=EDITS)
def test_a_mutated_log_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, edits: list[Edit]
) -> None:
    path = written(tmp_path_factory.getbasetemp(), name, mutated(SEEDS[name], edits))
    refusal(lambda: judged(path))


WORDS = (b"step", b"loss", b"grad_norm", b",", b"\t", b";", b"\n", b"\r", b"\x0b", b"\x0c", b"\x1c", b"\x85",
         "\u2028".encode(), b"#", b'"', b"'", b"{", b"}", b"[", b"]", b":", b"=", b"(", b" ", b"1", b"-2.5", b"1e400",
         b"nan", b"NaN", b"-inf", b"Infinity", b"1,234", b"\0", b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[31m",
         b"\\", b'{"step": 1, "loss": 2}', b'"log_history"', b"brain.Event:2", b"null", b"true")  # fmt: skip


@fuzz(250)
@given(
    content=st.one_of(st.binary(), st.lists(st.sampled_from(WORDS), max_size=40).map(b"".join)),
    name=st.sampled_from(["a.csv", "a.tsv", "a.json", "a.jsonl", "a.txt", "trainer_state.json", "x.tfevents.1"]),
)
def test_any_bytes_are_a_log_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    path = written(tmp_path_factory.getbasetemp(), name, content)
    refusal(lambda: judged(path))


@fuzz(100)
@given(
    losses=st.lists(st.one_of(st.floats(), st.sampled_from([1e308, -1e308, 5e-324, 1e100, -1e101])), min_size=1),
    norms=st.lists(st.floats(), max_size=3),
)
def test_any_numbers_are_judged_without_a_warning(
    tmp_path_factory: pytest.TempPathFactory, losses: list[float], norms: list[float]
) -> None:
    rows = [f"{i},{loss},{norms[i] if i < len(norms) else ''}\n" for i, loss in enumerate(losses * 8)]
    path = written(tmp_path_factory.getbasetemp(), "n.csv", "".join(["step,loss,grad_norm\n", *rows]).encode())
    assert refusal(lambda: judged(path)) is None


HOSTILE_NAMES = (
    "new\nline.csv", "quote\"'`$(reboot).csv", "escape\x1b[2J\x07.csv", "back\\slash.csv", "csv..csv", "--loss.csv",
    "é" * 120 + ".csv", "日" * 80 + ".csv", "\u202egpj.csv", "[bold]x.csv", " .csv", b"\xff\xfe.csv",
)  # fmt: skip


def hostile_path(folder: Path, name: str | bytes) -> Path:
    return folder / (os.fsdecode(name) if isinstance(name, bytes) else name)


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
@pytest.mark.parametrize("content", [b"", b"\0", b"step,x\n1,2\n"], ids=["empty", "binary", "no loss"])
def test_a_hostile_file_name_is_shown_harmlessly(name: str | bytes, content: bytes, tmp_path: Path) -> None:
    path = hostile_path(tmp_path, name)
    path.write_bytes(content)
    assert find_logs(tmp_path) == [path]
    assert isinstance(refusal(lambda: read_log(path, ANY)), InputError)


def test_a_folder_of_links_in_circles_and_folders_that_look_like_logs_is_walked(tmp_path: Path) -> None:
    for name in ("x.csv", "x.csv/y.jsonl", "z"):
        (tmp_path / name).mkdir()
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    (tmp_path / "there.csv").symlink_to("back.csv")
    (tmp_path / "back.csv").symlink_to("there.csv")
    (tmp_path / "z" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "nowhere.csv").symlink_to(tmp_path / "missing.csv")
    assert isinstance(refusal(lambda: find_logs(tmp_path)), InputError)
    (tmp_path / "x.csv" / "real.csv").write_bytes(b"step,loss\n1,2\n")
    assert find_logs(tmp_path) == [tmp_path / "x.csv" / "real.csv"]


@pytest.mark.parametrize(
    "name",
    ["a\0b", "x" * 10_000, "../" * 2_000 + "x.csv", "loop.csv", "loop.csv/x.csv", "file.csv/x.csv", "\udcff"],
    ids=["a NUL", "too long", "far up", "a circle", "below a circle", "below a file", "no text"],
)
def test_a_hostile_path_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    (tmp_path / "file.csv").write_bytes(b"step,loss\n1,2\n")
    assert isinstance(refusal(lambda: find_logs(tmp_path / name)), InputError)


def test_a_device_and_a_pipe_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    for path in (tmp_path / "pipe.csv", Path("/dev/zero"), Path("/dev/null")):
        assert isinstance(refusal(lambda path=path: read_log(path, ANY)), InputError)


def test_curves_are_judged_a_stretch_at_a_time_so_that_a_long_one_does_not_widen_all() -> None:
    lengths = [100, *[1] * 40, 16, 17, 50]
    curves = [Curve(np.arange(n), {"loss": np.full(n, 2.0) + np.arange(n) % 2}) for n in lengths]
    together = detect(curves, StoppingConfig(), points_at_once=16)
    assert [record.num_steps for record in together] == lengths
    assert together[-1] == detect(curves[-1:], StoppingConfig())[0]


# --- the ledger ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound_ledger(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("sound")
    sweep = sweep_of("axes: {lr: {values: [0.1, 0.2, 0.3, 0.4]}}\n")
    with ledger_at(folder) as ledger:
        record(ledger, sweep, ["stable", "spiked", "diverged", "errored"])
        assert len(ledger.trials()) == 4
    return (folder / "ledger.db").read_bytes()


def read_all(path: Path) -> None:
    with LedgerReader(path) as ledger:
        for row in ledger.trials():
            ledger.trace(row.trial_id)
            ledger.trial(row.trial_id)
        ledger.facts()
        ledger.packs()
        ledger.statuses()
        ledger.state()
        ledger.integrity()
        ledger.resumable()
        ledger.member_steps_per_second()


def damaged_ledger(folder: Path, content: bytes) -> Path:
    shutil.rmtree(folder / "damaged", ignore_errors=True)
    (folder / "damaged").mkdir()
    return written(folder / "damaged", "ledger.db", content)


@fuzz(100)
@given(edits=EDITS)
def test_a_mutated_ledger_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, sound_ledger: bytes, edits: list[Edit]
) -> None:
    path = damaged_ledger(tmp_path_factory.getbasetemp(), mutated(sound_ledger, edits))
    refusal(lambda: read_all(path))


@pytest.mark.parametrize("seed", range(4))
def test_a_ledger_with_damaged_cells_is_read_or_refused(tmp_path: Path, sound_ledger: bytes, seed: int) -> None:
    chance = random.Random(seed)
    written_places = [i for i, byte in enumerate(sound_ledger) if byte]
    strange: dict[str, int] = {}
    for _ in range(50):
        content = bytearray(sound_ledger)
        for at in chance.sample(written_places, 4):
            content[at] = chance.randrange(256)
        path = damaged_ledger(tmp_path, bytes(content))
        try:
            refusal(lambda path=path: read_all(path))
        except Exception as error:
            found = f"{type(error).__name__}: {error}"[:80]
            strange[found] = strange.get(found, 0) + 1
    assert strange == {}


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
@pytest.mark.parametrize("tail", ["cut", "zeros", "noise"])
def test_a_ledger_with_a_damaged_tail_is_read_or_refused(
    tmp_path: Path, sound_ledger: bytes, share: float, tail: str
) -> None:
    kept = int(share * len(sound_ledger))
    num_lost = len(sound_ledger) - kept
    rest = {"cut": b"", "zeros": bytes(num_lost), "noise": random.Random(kept).randbytes(num_lost)}[tail]
    path = damaged_ledger(tmp_path, sound_ledger[:kept] + rest)
    refusal(lambda: read_all(path))


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.db").mkdir()
    (tmp_path / "loop.db").symlink_to("loop.db")
    written(tmp_path, "empty.db", b"")
    written(tmp_path, "noise.db", random.Random(0).randbytes(8192))
    written(tmp_path, "text.db", b"step,loss\n1,2\n" * 1000)
    for name in ("folder.db", "loop.db", "empty.db", "noise.db", "text.db", "missing.db", "x" * 300):
        assert refusal(lambda name=name: read_all(tmp_path / name)) is not None, name


# --- whole processes -----------------------------------------------------------------------------

_MEASURE = """
import resource, subprocess, sys, time
start = time.monotonic()
code = subprocess.run(sys.argv[1:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"\\n{code} {used.ru_utime + used.ru_stime} {used.ru_maxrss // 1024}")
"""


def run_measured(*arguments: str, cwd: Path) -> tuple[int, float, int, str, str]:
    """Exit code, CPU seconds, MiB, output and errors of `sweep` with ``arguments``."""
    command = [sys.executable, "-c", _MEASURE, sys.executable, "-m", "orchestrator.cli", *arguments]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    output, _, measured = done.stdout.rstrip("\n").rpartition("\n")
    code, seconds, mib = measured.split()
    return int(code), float(seconds), int(mib), output, done.stderr


def assert_harmless(text: str) -> None:
    assert "Traceback" not in text
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text) is None


WORST = (
    "an alias bomb", "a grid of a billion cells", "5 MB of text", "5 MB of keys", "deep brackets",
    "a number that takes long to tell from text", "15,000 unknown keys", "a name with terminal escapes",
)  # fmt: skip


@pytest.mark.parametrize("name", thinned(WORST, {"an alias bomb", "5 MB of keys", "deep brackets"}.__contains__))
def test_the_command_refuses_a_hostile_sweep_file_in_little_time_and_memory(name: str, tmp_path: Path) -> None:
    (tmp_path / "case.yaml").write_text(REFUSED[name])
    code, seconds, mib, output, errors = run_measured("plan", "case.yaml", cwd=tmp_path)
    assert code == 2
    assert errors.startswith("error:")
    assert output == ""
    assert_harmless(errors)
    assert seconds < MAX_PROCESS_SECONDS
    assert mib < MAX_MIB


@pytest.mark.slow
def test_the_command_judges_a_folder_of_hostile_logs_in_little_time_and_memory(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    long = ("10,000 spellings of a step", "a quote that never ends")  # logs of so many points take long to judge
    short = {name: log for name, log in HOSTILE_LOGS.items() if name not in long}
    for i, (name, content) in enumerate(short.values()):
        (folder / str(i)).mkdir()
        written(folder / str(i), name, content)
    for name in HOSTILE_NAMES:
        hostile_path(folder, name).write_bytes(b"step,loss\n1,2\n2,1\n")
    written(folder, "long.log", TEXT_LINE + b"x" * 64 * 1024**2)
    written(folder, "long.csv", b"step,loss\n1,2\n" + b"x" * 64 * 1024**2)
    written(folder, "long.jsonl", JSON_LINE + b"[" + b"1," * 32 * 1024**2)
    code, seconds, mib, output, errors = run_measured("replay", "--no-figures", "logs", cwd=tmp_path)
    assert code == 0, errors
    assert_harmless(output + errors)
    assert "long.log" in output
    assert seconds < 4 * MAX_PROCESS_SECONDS
    assert mib < MAX_MIB
