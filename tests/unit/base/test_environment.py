import importlib
import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest

from orchestrator.base import environment
from orchestrator.base.environment import EXTRAS, check_installed, install_command, is_installed, missing_library_error
from orchestrator.base.errors import InputError

cli = importlib.import_module("orchestrator.cli.app")  # the package has an attribute of this name
PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


def distribution(module: str) -> str:
    """The name under which a module is installed."""
    return {"sklearn": "scikit-learn"}.get(module, module)


@pytest.mark.parametrize("library", EXTRAS)
def test_each_library_comes_with_its_extra_and_not_with_the_package_alone(library: str) -> None:
    of_extra = " ".join(PROJECT["optional-dependencies"][EXTRAS[library]])
    assert distribution(library) in of_extra
    assert not [line for line in PROJECT["dependencies"] if line.startswith(distribution(library))]


def test_an_extra_that_is_told_is_one_of_the_package() -> None:
    assert set(EXTRAS.values()) <= set(PROJECT["optional-dependencies"])


def test_what_is_to_be_installed_are_the_packages_of_an_extra_since_sweep_may_not_be_published(monkeypatch) -> None:
    needs = ["rich>=13", "torch<3,>=2; extra == 'run'", "ray[tune]>=2; extra == 'run'", "wandb; extra == 'wandb'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: needs)
    assert install_command("torch") == "pip install 'torch<3,>=2' 'ray[tune]>=2'"
    assert install_command("wandb") == "pip install wandb"
    monkeypatch.setattr(environment, "installed_version", lambda name: None)
    assert install_command("torch") == "pip install torch", "where sweep runs from its source"


def test_what_needs_a_missing_library_is_refused_with_its_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not is_installed("torch")
    with pytest.raises(InputError, match=r"(?s)training gpt needs the package torch.*pip install .*torch"):
        check_installed("training gpt", "torch")
    check_installed("a table", "numpy")


def test_the_command_line_names_the_extra_of_a_module_that_is_not_there_and_hides_no_other(monkeypatch, capsys) -> None:
    def raising(name: str):
        def run(prog_name: str) -> None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        return run

    monkeypatch.setattr(cli, "app", raising("optuna.importance"))
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    told = "error: this needs the package optuna, which is not installed\n    remedy: pip install "
    assert capsys.readouterr().err.startswith(told)
    assert missing_library_error(ModuleNotFoundError(name="some_module")) is None
    monkeypatch.setattr(cli, "app", raising("some_module"))
    with pytest.raises(ModuleNotFoundError):
        cli.main()
