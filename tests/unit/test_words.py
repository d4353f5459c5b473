"""How often docstrings, messages and docs use phrases that read as translated."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 1.5  # in 1,000 words
PHRASES = re.compile(
    r"\b(?:(?:that|those) of|(?:none|null|empty|unknown) where|those (?:that|who|which)|beside"
    r"|(?:told|tells?)\b(?! apart)|of (?:it|them)\b(?! (?:self|all))|(?:of|in|for|at|from|to) which"
    r"|(?:is|are|was|were) no (?!longer\b|more\b|such\b)[a-z]+|from (?:step |there |then |[0-9.e-]+ )?on)\b",
    re.IGNORECASE,
)
SOURCES = sorted([*ROOT.glob("orchestrator/**/*.py"), *ROOT.glob("objectives/**/*.py")])
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


@cache
def trees() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in SOURCES]


def texts_of_code(kind: str) -> list[str]:
    texts = []
    for tree in trees():
        own = list(docstrings(tree))
        if kind == "docstrings":
            texts += [str(node.value) for node in own]
            continue
        constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        ids = {id(node) for node in own}
        texts += [node.value for node in constants if id(node) not in ids and len(node.value.split()) >= 4]
    return texts


def prose() -> list[str]:
    """The pages without code and the targets of links."""
    return [re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", " ", path.read_text(), flags=re.DOTALL) for path in PAGES]


@pytest.mark.parametrize("kind", ["docstrings", "messages", "docs"])
def test_few_phrases_read_as_translated(kind: str) -> None:
    texts = [" ".join(text.split()) for text in (prose() if kind == "docs" else texts_of_code(kind))]
    found = [text[max(0, m.start() - 30) : m.end() + 30] for text in texts for m in PHRASES.finditer(text)]
    assert 1000 * len(found) / sum(len(text.split()) for text in texts) < MOST, found[:40]


def test_the_count_knows_such_a_phrase() -> None:
    assert (
        len(PHRASES.findall("The value of the last cell, None where there is no loss, beside those of the map.")) == 4
    )
