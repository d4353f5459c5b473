import sys
from pathlib import Path

import pytest

from orchestrator.worker.fork_server import FUNCTION, modules_to_preload

PYTHON = sys.executable
WATCH = "orchestrator.detection.watch"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a user's modules, where this process looks first."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(folder: Path, script: str) -> list[str]:
    (folder / "script_of_a_user.py").write_text(script)
    return modules_to_preload([PYTHON, "script_of_a_user.py"], "auto")


def test_installed_modules_are_found_in_their_order_and_once(folder: Path) -> None:
    assert found(folder, "import json, numpy.linalg\nfrom scipy.stats import norm\nimport json\n") == [
        "json", "numpy.linalg", "scipy.stats",
    ]  # fmt: skip


def test_imports_in_try_and_if_count_and_those_of_functions_and_type_checkers_do_not(folder: Path) -> None:
    script = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import pandas
try:
    import numpy
except ImportError:
    import array
if True:
    import json
def later():
    import scipy
"""
    assert found(folder, script) == ["typing", "numpy", "json"]


def test_the_users_own_modules_are_looked_through_and_left_to_the_trial(folder: Path) -> None:
    (folder / "own_models").mkdir()
    (folder / "own_models" / "__init__.py").write_text("import json\n")
    (folder / "own_models" / "gpt.py").write_text("import numpy\nimport own_data\n")
    (folder / "own_data.py").write_text("import scipy\nimport own_models.gpt\n")
    assert found(folder, "from own_models.gpt import GPT\nimport own_data\n") == ["numpy", "scipy"]


@pytest.mark.parametrize(
    "change",
    ['os.environ["XLA_FLAGS"] = "--x"', 'os.environ.setdefault("A", "1")', 'os.putenv("A", "1")',
     'from os import environ\nenviron["A"] = "1"'],
)  # fmt: skip
def test_what_is_imported_after_a_change_of_the_environment_is_left_to_the_trial(folder: Path, change: str) -> None:
    assert "numpy" not in found(folder, f"import json, os\n{change}\nimport numpy\n")
    (folder / "own_settings.py").write_text(f"import os\n{change}\n")
    assert found(folder, "import json\nimport own_settings\nimport numpy\n")[:1] == ["json"]
    assert "numpy" not in found(folder, "import own_settings\nimport numpy\n")


@pytest.mark.parametrize("script", ["import (", "import not_a_module_at_all\n", "\0"])
def test_what_cannot_be_read_or_found_is_left_to_the_trial_to_say(folder: Path, script: str) -> None:
    assert found(folder, script) == []
    assert modules_to_preload([PYTHON, "not_there.py"], "auto") == []
    assert modules_to_preload([PYTHON, "-m", "not_there"], "auto") == []


def test_a_function_needs_its_watch_and_what_its_module_imports(folder: Path) -> None:
    (folder / "own_function.py").write_text("import json\n")
    command = [PYTHON, "-m", FUNCTION, "own_function:run"]
    assert modules_to_preload(command, "auto") == [WATCH, "json"]
    assert modules_to_preload(command, ["torch"]) == [WATCH, "torch"]


def test_a_module_run_with_m_is_read_like_a_script(folder: Path) -> None:
    (folder / "own_package").mkdir()
    (folder / "own_package" / "__init__.py").write_text("")
    (folder / "own_package" / "__main__.py").write_text("import numpy\n")
    (folder / "own_module.py").write_text("import json\n")
    assert modules_to_preload([PYTHON, "-m", "own_package"], "auto") == ["numpy"]
    assert modules_to_preload([PYTHON, "-m", "own_module"], "auto") == ["json"]
    assert modules_to_preload([PYTHON, "own_module.py"], ["numpy"]) == ["numpy"]
