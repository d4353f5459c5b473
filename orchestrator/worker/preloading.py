"""Which modules a process imports before it forks trials: the installed ones that a script imports at its top.

The user's own modules are left to each trial, which executes them anew; so their state is that of a fresh process.
"""

from __future__ import annotations

import ast
import importlib.util
import sysconfig
from collections.abc import Generator, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

# What the process of a Python function imports itself.
FUNCTION = "orchestrator.worker.function"
_OF_A_FUNCTION = ("orchestrator.detection.watch",)
_INSTALLED = ("site-packages", "dist-packages")
_ENVIRONMENT = ("environ", "putenv", "setenv")


def modules_to_preload(command: Sequence[str], preload: str | Sequence[str]) -> list[str]:
    """The modules to import for ``command``, python SCRIPT or python -m MODULE: those named, or those found for "auto".

    Relative names are looked up as this process would import them.
    """
    is_function = list(command[1:3]) == ["-m", FUNCTION]
    first = list(_OF_A_FUNCTION) if is_function else []
    if not isinstance(preload, str):
        return [*first, *preload]
    if is_function:
        file = _file_of(command[3].partition(":")[0])
    elif command[1] == "-m":
        file = _file_of(f"{command[2]}.__main__") or _file_of(command[2])
    else:
        file = Path(command[1])
    return list(dict.fromkeys([*first, *(_found(file, set()) if file is not None else ())]))


def _found(file: Path, seen: set[Path]) -> Generator[str, None, bool]:
    """Installed modules that ``file`` and the own modules that it imports import at their top, in their order.

    Ends with whether the environment is changed there: what is imported afterwards may depend on it.
    """
    if file in seen:
        return False
    seen.add(file)
    try:
        statements = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    for statement in _at_import(statements):
        if _touches_environment(statement):
            return True
        for name in _names(statement):
            spec = _spec(name.partition(".")[0])
            if spec is None:
                continue
            if _is_installed(spec):
                yield name
            elif (own := _file_of(name)) is not None and (yield from _found(own, seen)):
                return True
    return False


def _at_import(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when a module is imported, with those inside of ``if`` and ``try``."""
    for statement in statements:
        if isinstance(statement, ast.Try):
            yield from _at_import([*statement.body, *statement.orelse, *statement.finalbody])
        elif isinstance(statement, ast.If):
            if "TYPE_CHECKING" not in ast.dump(statement.test):
                yield from _at_import([*statement.body, *statement.orelse])
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement


def _touches_environment(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return False
    return any(
        getattr(node, "attr", None) in _ENVIRONMENT or getattr(node, "id", None) in _ENVIRONMENT
        for node in ast.walk(statement)
    )


def _names(statement: ast.stmt) -> list[str]:
    """The full names of the modules that a statement imports."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        return [statement.module]
    return []


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def _is_installed(spec: ModuleSpec) -> bool:
    """Whether a module belongs to Python or to an installed package, and not to the user."""
    places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
    if not places:
        return True  # built in or frozen
    paths = [Path(place) for place in places if place]
    standard = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    return any(
        any(part in _INSTALLED for part in path.parts) or any(path.is_relative_to(folder) for folder in standard)
        for path in paths
    )


def _file_of(name: str) -> Path | None:
    """The file of a module of the user, found without importing its package."""
    first, *rest = name.split(".")
    spec = _spec(first)
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.has_location and spec.origin else None
    for place in spec.submodule_search_locations or ():
        inner = Path(place).joinpath(*rest)
        for file in (inner.with_suffix(".py"), inner / "__init__.py"):
            if file.is_file():
                return file
    return None
