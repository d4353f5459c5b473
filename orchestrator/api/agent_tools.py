"""What agents may ask: a tool for each question about sweeps, with its schema, and with leave the ones that train.

Names, descriptions and schemas come from the questions. Sweeps are named by folders of ``results``, logs lie below the
folder where the server was started, and no option that names another file is offered.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from inspect import cleandoc
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from orchestrator import answers
from orchestrator.api.agent_tool import Reply, Tool, check_names, log_below, schema_of_object
from orchestrator.api.agent_watch import watch_tool
from orchestrator.api.asking import subject_of
from orchestrator.base.environment import OWN_PYTHON
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.base.query import Query
from orchestrator.ledger.reader import origin_notes
from orchestrator.render.answer import Answer, to_json

READ_ONLY = (
    "status", "list", "map", "boundary", "recommend", "locate", "predict", "diagnose", "explain", "compare", "edge",
    "sensitivity", "importance", "front", "survival", "warn", "audit", "replay",
)  # fmt: skip
# Options that name files, run code, train, or wait, and patterns that may take for ever.
_LEFT_OUT = {
    "config", "log", "figures", "no_figures", "executor", "allow_import", "confirm", "watch", "beside", "pattern",
}  # fmt: skip
_MOST_CHARACTERS = 200_000  # of an answer
_MOST_TRIALS, _MOST_MINUTES = 10_000, 7 * 24 * 60
_GRACE_S = 60.0
_SUBJECT: Mapping[str, tuple[str, dict[str, Any]]] = {
    "sweep": ("name", {"type": "string", "description": "name of a sweep, as `list` has it"}),
    "sweeps": ("names", {"type": "array", "items": {"type": "string"}, "description": "names of sweeps"}),
    "logs": ("paths", {"type": "array", "items": {"type": "string"}, "description": "logs below the server's folder"}),
}


def tools_of(results: Path, *, allows_run: bool) -> dict[str, Tool]:
    """Return the tools by name; ``allows_run`` adds the ones that train."""
    found = [*(_question(name, results) for name in READ_ONLY), watch_tool(results)]
    return {tool.name: tool for tool in [*found, *(_training_tools(results) if allows_run else [])]}


# --- questions ---------------------------------------------------------------------------------------


def _question(name: str, results: Path) -> Tool:
    kind = answers.query_class(name)
    types, properties, required = kind.types(), {}, []
    if kind.subject in _SUBJECT:
        key, schema = _SUBJECT[kind.subject]
        properties[key], required = dict(schema), [key]
    options = {key: each for key, each in kind.options().items() if key not in _LEFT_OUT}
    for key, option in options.items():
        schema = _schema_of(types[key])
        schema |= {"minimum": option.minimum} if option.minimum is not None else {}
        schema |= {"maximum": option.maximum} if option.maximum is not None else {}
        metavar = f" ({option.metavar})" if option.metavar else ""
        properties[key] = {**schema, "description": f"{option.help}{metavar}"}

    def call(arguments: Mapping[str, Any]) -> Reply:
        values = {key: value for key, value in arguments.items() if key in options}
        return _asked(kind.from_texts(values), arguments, results)

    return Tool(name, cleandoc(kind.__doc__ or ""), schema_of_object(properties, required), call)


def _schema_of(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a field, as the command line reads it."""
    members = [each for each in get_args(kind) if each is not type(None)] if isinstance(kind, UnionType) else [kind]
    (inner,) = members
    simple = {bool: "boolean", int: "integer", float: "number"}
    if inner in simple:
        return {"type": simple[inner]}
    is_mapping = get_origin(inner) in (dict, Mapping) and not isinstance(kind, UnionType)
    is_listed = inner == tuple[str, ...] or is_mapping
    return {"type": "array", "items": {"type": "string"}} if is_listed else {"type": "string"}


def _asked(query: Query[Any], arguments: Mapping[str, Any], results: Path) -> Reply:
    given = {**arguments, "results": results}
    if query.subject == "logs":
        given["paths"] = [str(log_below(text)) for text in arguments["paths"]]
    elif query.subject in _SUBJECT:
        check_names([arguments["name"]] if query.subject == "sweep" else arguments["names"], results)
    with ExitStack() as stack:
        subject, folders = subject_of(query, given, stack)
        answer = query.ask(subject)
        return _reply(answer, [] if query.says_origin else origin_notes(*folders))


def _reply(answer: Answer, notes: Iterable[str] = ()) -> Reply:
    text = "\n".join([*answer.lines(), *notes])
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}\n... cut off: ask for less, e.g. with `where`"
    data = json.loads(to_json(answer.to_plain()))
    if len(json.dumps(data)) > _MOST_CHARACTERS:
        return Reply(f"{text}\nThe data are too many to send: ask for less, or read them with `--json`.")
    return Reply(text, data if isinstance(data, dict) else {"result": data})


# --- what trains -------------------------------------------------------------------------------------

_MINUTES = {"type": "number", "minimum": 0.01, "maximum": _MOST_MINUTES, "description": "ends it after these minutes"}
_TRIALS = {"type": "integer", "minimum": 1, "maximum": _MOST_TRIALS, "description": "trials of the sweep, at most"}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_OF_FILE = {
    "name": {"type": "string", "description": "name of a sweep in the results, or of one that ships"},
    "axis": {**_TEXTS, "description": "changes of axes: lr=log:1e-4,1e-1,7"},
    "fixed": {**_TEXTS, "description": "other settings: batch_size=16"},
    "seeds": {"type": "string", "description": "the seeds: 0,1,2"},
    "steps": {"type": "integer", "minimum": 1, "description": "length of each training run"},
    "as_name": {"type": "string", "description": "name of the sweep that is made, if something is changed"},
}


def _training_tools(results: Path) -> list[Tool]:
    """`plan`, `run`, `remedy` and `cause`, which take the name of a sweep and never a file, a command or a program."""

    def plan(arguments: Mapping[str, Any]) -> Reply:
        return _command(["plan", *_of_file(arguments, results)], results, 10.0)

    def run(arguments: Mapping[str, Any]) -> Reply:
        minutes, trials = arguments["minutes"], arguments["trials"]
        budget = ["--set", f"budget.trials={trials}", "--set", f"budget.minutes={minutes}"]
        command = ["run", *_of_file(arguments, results), "--executor", "inline", *budget]
        return _command(command, results, minutes)

    def forks_of(command: str) -> Callable[[Mapping[str, Any]], Reply]:
        def call(arguments: Mapping[str, Any]) -> Reply:
            check_names([arguments["name"]], results)
            words = [command, arguments["name"], f"--trial={arguments['trial']}"]
            return _command([*words, f"--replicates={arguments['replicates']}"], results, arguments["minutes"])

        return call

    budgeted = {**_OF_FILE, "trials": _TRIALS, "minutes": _MINUTES}
    of_trial = {
        "name": _SUBJECT["sweep"][1],
        "trial": {"type": "string", "description": "id of a trial"},
        "replicates": {"type": "integer", "minimum": 1, "maximum": 64, "description": "forks of each kind"},
        "minutes": _MINUTES,
    }
    forking = schema_of_object(of_trial, ["name", "trial", "replicates", "minutes"])
    saves = "Fork a trial and find what would have saved it, within a budget; the same call continues."
    proves = "Fork a trial without each mechanism to prove its cause, within a budget; the same call continues."
    return [
        Tool("plan", "Say what a sweep would train, and for how long.", schema_of_object(_OF_FILE, ["name"]), plan),
        Tool(
            "run",
            "Train the missing trials of a sweep within a budget. The same call with a larger budget continues.",
            schema_of_object(budgeted, ["name", "trials", "minutes"]),
            run,
            is_read_only=False,
        ),
        Tool("remedy", saves, forking, forks_of("remedy"), is_read_only=False),
        Tool("cause", proves, forking, forks_of("cause"), is_read_only=False),
    ]


def _of_file(arguments: Mapping[str, Any], results: Path) -> list[str]:
    """The arguments of a command about a sweep file. Raises InputError for another file, and for other keys."""
    from orchestrator.sweepfile.starter import shipped_sweeps

    name = arguments["name"]
    is_there = name in {path.parent.name for path in results.glob(f"*/{FROZEN_SWEEP}")}
    if not is_there and name not in shipped_sweeps():
        raise InputError(Problem("name", name, "is not a sweep, nor one that ships", "see the tool `list`"))
    words = [str(results / name) if is_there else name]
    words += [f"--axis={text}" for text in arguments.get("axis", ())]
    for text in arguments.get("fixed", ()):
        if not text.partition("=")[0].isidentifier():
            raise InputError(Problem("fixed", text, "is not NAME=VALUE", "write e.g. batch_size=16"))
        words.append(f"--set=fixed.{text}")
    options = {"seeds": "--seeds", "steps": "--steps", "as_name": "--name"}
    return [*words, *(f"{option}={arguments[key]}" for key, option in options.items() if key in arguments)]


def _command(words: list[str], results: Path, minutes: float) -> Reply:
    """Run a command of sweep in a process of its own, which is interrupted when its time is up."""
    command = [*OWN_PYTHON, "-m", "orchestrator.cli", *words, "--results", str(results)]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    note = ""
    try:
        text, _ = process.communicate(timeout=60 * minutes + _GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        note = "\nstopped: its time is up; the same call continues"
        try:
            text, _ = process.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
    shown = text if len(text) <= _MOST_CHARACTERS else f"...{text[-_MOST_CHARACTERS:]}"
    return Reply(f"{shown.strip()}{note}\nexit code {process.returncode}")
