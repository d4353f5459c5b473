"""The optimizers of torch and pytorch_optimizer on this machine, read from their source, free of torch.

Planning a sweep is instant because it imports neither library; errors in a name are reported all the same.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path

# Where each library lists its optimizers, and what to install for it.
_LISTS = {"torch": "optim", "pytorch_optimizer": "optimizer"}
_INSTALL = {"torch": "torch", "pytorch_optimizer": "sweep-stability[optimizers]"}
_BASES = ("Optimizer", "BaseOptimizer")
# Arguments of a constructor that sweep has values for.
_GIVEN = ("params", "lr", "betas", "eps", "momentum", "weight_decay")
REMEDY = "name another one, or train with it in a trainer of your own"


@cache
def problem_with(name: str) -> tuple[str, str] | None:
    """The problem with the optimizer ``library.NAME`` and a remedy; None if no problem is known.

    It must be installed, be a class, need only parameters to construct, and step without a closure.
    """
    library, class_name = name.split(".")[0], name.split(".")[-1]
    found = importlib.util.find_spec(library)
    if found is None or found.origin is None:
        return f"{library} is not installed", f"pip install '{_INSTALL[library]}'"
    package = Path(found.origin).parent
    classes = _imported_classes(package / _LISTS[library] / "__init__.py", library)
    if class_name not in classes:
        return f"{name} is no optimizer of {library}", f"there are: {', '.join(_nearest(class_name, classes))}"
    source = package.joinpath(*classes[class_name].split(".")[1:])
    methods = _methods(source.with_suffix(".py"), class_name)
    needed = [argument for argument in _required(methods.get("__init__")) if argument not in _GIVEN]
    if needed:
        return f"{name} cannot be made from parameters alone: it needs {', '.join(needed)}", REMEDY
    if _required(methods.get("step")):
        return f"{name} needs a closure that computes the loss again", REMEDY
    return None


def _nearest(name: str, names: Iterable[str]) -> list[str]:
    """The closest spellings among ``names``, ignoring case."""
    spelt = {other.lower(): other for other in names}
    return [spelt[other] for other in get_close_matches(name.lower(), spelt, n=5, cutoff=0.0)]


def _imported_classes(path: Path, library: str) -> dict[str, str]:
    """Names of the classes that a package imports from its own modules, and those modules."""
    tree = ast.parse(path.read_bytes())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: node.module
        for node in imports
        for alias in node.names
        if node.module is not None
        and node.module.startswith(f"{library}.{_LISTS[library]}.")
        and alias.name[0].isupper()
        and alias.name not in _BASES
    }


def _methods(path: Path, class_name: str) -> dict[str, ast.FunctionDef]:
    """The functions of a class as written in the source; none where the class is elsewhere."""
    if not path.is_file():
        return {}
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return {inner.name: inner for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return {}


def _required(function: ast.FunctionDef | None) -> list[str]:
    """Arguments without a default, but for ``self``."""
    if function is None:
        return []
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    without = positional[1 : len(positional) - len(arguments.defaults)]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [argument.arg for argument in [*without, *(one for one, default in keywords if default is None)]]
