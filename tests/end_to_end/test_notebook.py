"""docs/notebook.ipynb: its cells run in order, and it holds what they gave."""

import ast
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

CELLS = json.loads((Path(__file__).parents[2] / "docs" / "notebook.ipynb").read_text())["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; its value is that of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_the_notebook_shows_what_its_cells_gave_and_no_error() -> None:
    outputs = [output for cell in CODE for output in cell["outputs"]]
    assert len(outputs) > len(CODE)
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}


@pytest.mark.slow
def test_its_cells_run_in_order(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    names: dict[str, Any] = {}
    values = [run_cell("".join(cell["source"]), names) for cell in CODE]
    assert "stability map" in values[1]._repr_html_()
    assert values[3].chosen.setting.keys() == {"lr", "beta2"}
    named = {ruling.mechanism for ruling in values[5].causes.values()}
    assert named <= {"preconditioner_decay", "over_the_threshold", "not enough evidence", "sharpening"}
    assert str(values[6]).startswith("notebook: lr=")
    assert values[-1].dims == ("beta2",)
    assert (tmp_path / "results" / "notebook" / "ledger.db").exists()
