"""The import direction of the design, read off the source."""

import ast
import importlib
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from orchestrator import answers

ROOT = Path(__file__).parents[2]
PACKAGES = ("orchestrator", "objectives")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
# The one room that knows a library.
ROOMS = {
    "ray": {"orchestrator.executors"},
    "mlflow": {"orchestrator.mirrors"},
    "optuna": {"orchestrator.search"},
    "apprise": {"orchestrator.mirrors"},
    "typer": {"orchestrator.cli"},
    "mcp": {"orchestrator.api"},
}
# The modules that know it; a new one is a decision.
IMPORTERS = {
    "ray": {"orchestrator.executors.ray_ranks", "orchestrator.executors.ray_start", "orchestrator.executors.ray_tune"},
    "mlflow": {
        f"orchestrator.mirrors.{name}"
        for name in ("mlflow", "mlflow_client", "mlflow_runs", "mlflow_server", "mlflow_store", "mlflow_template")
    },
    "optuna": {f"orchestrator.search.{name}" for name in ("by_optuna", "ped_anova", "study")},
    "submitit": {"orchestrator.executors.slurm"},
    "tensorboardX": {"orchestrator.logs.event_files", "orchestrator.mirrors.tensorboard"},
    "mcp": {"orchestrator.api.agent_server"},
    "wandb": {"orchestrator.mirrors.wandb", "orchestrator.mirrors.wandb_service"},
    "apprise": {"orchestrator.mirrors.notifier"},
    "transformers": {"orchestrator.callbacks.transformers"},
    "lightning": {"orchestrator.callbacks.lightning"},
    "typer": {f"orchestrator.cli.{name}" for name in ("app", "options", "training", "upkeep")},
}

MOST_LINES = 400
# Each room imports only rooms above it in this list. A room within a room is a place of its own.
FLOOR_PLAN = (
    "objectives",
    "objectives.native",
    "objectives.draws",
    "objectives.fields",
    "objectives.optimizers.facts",
    "objectives.entries",
    "objectives.interventions",
    "objectives.held",
    "objectives.control",
    "objectives.action",
    "objectives.rule_words",
    "objectives.rule_clocks",
    "objectives.loop_config",
    "objectives.policy",
    "objectives.training_config",
    "objectives.protocol",
    "objectives.models.facts",
    "objectives.base",
    "objectives.stacking",
    "objectives.instruments",
    "objectives.optimizers",
    "objectives.training",
    "objectives.models",
    "objectives.conformance_kit",
    "objectives.conformance",
    "orchestrator.base",
    "orchestrator.sweepfile.strict_yaml",
    "orchestrator.surface",
    "orchestrator.search",
    "orchestrator.logs",
    "orchestrator.detection",
    "orchestrator.callbacks",
    "orchestrator.sweepfile",
    "orchestrator.ledger",
    "orchestrator.maps",
    "orchestrator.worker",
    "orchestrator.executors",
    "orchestrator.driver",
    "orchestrator.mirrors",
    "orchestrator.importing",
    "orchestrator.causes",
    "orchestrator.health",
    "orchestrator.render",
    "orchestrator.answers",
    "orchestrator.pages",
    "orchestrator.api",
    "orchestrator",
    "orchestrator.cli",
)


@cache
def imports_of(module: str, *, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(MODULES[module].read_text())
    found: set[str] = set()
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def ours(module: str) -> set[str]:
    return {name for name in imports_of(module) if name in MODULES and name != module}


@pytest.mark.parametrize("library", IMPORTERS)
def test_a_heavy_library_has_its_importers_and_no_other(library: str) -> None:
    assert importers_of(library) == IMPORTERS[library]


@pytest.mark.parametrize("library", ROOMS)
def test_a_library_is_known_in_one_room(library: str) -> None:
    assert {room_of(module) for module in importers_of(library)} == ROOMS[library]


def importers_of(library: str) -> set[str]:
    return {m for m in MODULES if any(name.split(".")[0] == library for name in imports_of(m))}


def test_objectives_import_nothing_from_the_orchestrator() -> None:
    for module in MODULES:
        if module.startswith("objectives"):
            assert not {name for name in imports_of(module) if name.startswith("orchestrator")}, module


def test_the_orchestrator_imports_torch_nowhere_at_module_level() -> None:
    for module in MODULES:
        if module.startswith("orchestrator") or module == "objectives.base":
            top = {name.split(".")[0] for name in imports_of(module, top_level_only=True)}
            assert "torch" not in top, module


def test_imports_have_no_cycle() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"cycle: {' -> '.join((*path, module))}"
        if module not in done:
            for imported in ours(module):
                visit(imported, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


def room_of(module: str) -> str:
    """The package below the top level, or the file there, or a room within it that the floor plan names."""
    parts = module.split(".")
    return next((room for n in (3, 2) if (room := ".".join(parts[:n])) in FLOOR_PLAN), ".".join(parts[:2]))


def test_every_room_is_in_the_floor_plan() -> None:
    assert {room_of(module) for module in MODULES} == {*FLOOR_PLAN}


def test_a_room_imports_only_rooms_that_stand_before_it_in_the_floor_plan() -> None:
    wrong = [
        f"{module} imports {imported}"
        for module in MODULES
        for imported in ours(module)
        if room_of(imported) != room_of(module) and imported not in PACKAGES
        if FLOOR_PLAN.index(room_of(imported)) > FLOOR_PLAN.index(room_of(module))
    ]
    assert wrong == []


def test_every_file_can_be_read_in_one_sitting() -> None:
    lengths = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert {module: length for module, length in lengths.items() if length > MOST_LINES} == {}


def test_no_test_below_unit_starts_a_process(refused_starts: list[str]) -> None:
    for start in (lambda: subprocess.run(["true"]), os.fork, lambda: os.system("true")):
        with pytest.raises(AssertionError, match="a unit test starts a process"):
            start()
    assert len(refused_starts) == 3
    refused_starts.clear()


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
# To add a ...: the kind, its files, and the line that it needs.
ADDITIONS = re.findall(
    r"^\| ([a-z ]+) \| (.+) \| (.+) \|$",
    CONTRIBUTING.partition("## To add a ...")[2].partition("\n## ")[0],
    re.MULTILINE,
)[1:]


def test_contributing_says_how_to_add_each_kind_of_part() -> None:
    kinds = ["tracker", "optimizer", "executor", "mechanism", "objective", "sample method", "search", "answer"]
    assert [kind for kind, _, _ in ADDITIONS] == kinds


@pytest.mark.parametrize(("kind", "files", "line"), ADDITIONS, ids=[kind for kind, _, _ in ADDITIONS])
def test_what_an_addition_touches_exists_and_its_table_has_entries(kind: str, files: str, line: str) -> None:
    places = [name for name in re.findall(r"`([^`]+)`", f"{files} {line}") if "/" in name]
    assert all((ROOT / name).exists() for name in places), places
    assert len(re.findall(r"\b(?:a module|its \w+|a function)\b", files)) <= 2
    if line == "-":
        assert kind == "answer"
        entries = answers.names()
    else:
        table = re.match(r"`([A-Z]+)` in `([^`]+)`$", line)
        module = table[2].removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        entries = getattr(importlib.import_module(module), table[1])
    assert entries
    assert all(isinstance(name, str) for name in entries)


def test_contributing_lists_every_room() -> None:
    rows = set(re.findall(r"^\| `(\w+)/(\w*)(?:/|\.py)?` \|", CONTRIBUTING, re.MULTILINE))
    for package in PACKAGES:
        rooms = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert rooms <= {room for where, room in rows if where == package}
