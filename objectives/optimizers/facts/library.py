"""Facts about the optimizers of torch and pytorch_optimizer, from their names and their source on this machine.

Planning a sweep imports neither library, so it is instant, and still reports errors in a name.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from objectives.fields import Settings
from objectives.optimizers.facts.optimizer import Optimizer

# They divide by the root of an average of g^2, as Adam does.
_WITH_AVERAGED_SQUARES = ("Adam", "AdamW", "NAdam", "StableAdamW")
# The package in which each library lists its optimizers, and what to install for it.
_LISTS = {"torch": "optim", "pytorch_optimizer": "optimizer"}
_INSTALL = {"torch": "torch", "pytorch_optimizer": "pytorch-optimizer"}
_BASES = ("Optimizer", "BaseOptimizer")
# Constructor arguments that sweep has values for.
_GIVEN = ("params", "lr", "betas", "eps", "momentum", "weight_decay")
REMEDY = "choose another one, or use it in a custom trainer"


def _divides_by_root(settings: Settings) -> bool | None:
    name = str(settings.get("optimizer")).lower()
    return False if name.endswith("sgd") else True if "adam" in name else None


def _averages_squares(settings: Settings) -> bool | None:
    return True if str(settings.get("optimizer")).rpartition(".")[2] in _WITH_AVERAGED_SQUARES else None


LIBRARY = Optimizer(
    "of a library",
    "objectives.optimizers.foreign:ForeignRule",
    can_be_stacked=False,
    keeps_columns=False,
    first_moments=(),
    second_moments=(),
    has_divisor=False,
    has_v=False,
    divides_by_root=_divides_by_root,
    averages_squares=_averages_squares,
)


@cache
def problem_with(name: str) -> tuple[str, str] | None:
    """Return the problem with the optimizer ``library.NAME`` and a remedy, or None if no problem is known.

    It must be installed, be a class, need only parameters to construct, and step without a closure.
    """
    library, class_name = name.split(".")[0], name.split(".")[-1]
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        return f"{library} is not installed", f"pip install '{_INSTALL[library]}'"
    package = Path(spec.origin).parent
    classes = _imported_classes(package / _LISTS[library] / "__init__.py", library)
    if class_name not in classes:
        return f"{library} has no optimizer {name}", f"there are: {', '.join(_nearest(class_name, classes))}"
    source = package.joinpath(*classes[class_name].split(".")[1:])
    if name == "torch.optim.Muon":
        return (
            f"{name} takes matrices alone",
            "choose another one, such as muon, which trains the other weights by AdamW",
        )
    methods = _methods(source.with_suffix(".py"), class_name)
    needed = [argument for argument in _required(methods.get("__init__")) if argument not in _GIVEN]
    if needed:
        return f"{name} cannot be made from parameters alone: it needs {', '.join(needed)}", REMEDY
    if _required(methods.get("step")):
        return f"{name} needs a closure that computes the loss again", REMEDY
    return None


def _nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return the closest spellings among ``names``, ignoring case."""
    spelt = {other.lower(): other for other in names}
    return [spelt[other] for other in get_close_matches(name.lower(), spelt, n=5, cutoff=0.0)]


def _imported_classes(path: Path, library: str) -> dict[str, str]:
    """Return the classes that a package imports from its own modules, and those modules."""
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
    """Return the functions of a class as written in its source; empty if the class is elsewhere."""
    if not path.is_file():
        return {}
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return {inner.name: inner for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return {}


def _required(function: ast.FunctionDef | None) -> list[str]:
    """Return the arguments without a default, except ``self``."""
    if function is None:
        return []
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    without = positional[1 : len(positional) - len(arguments.defaults)]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [argument.arg for argument in [*without, *(keyword for keyword, default in keywords if default is None)]]
