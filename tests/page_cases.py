"""Pages of the docs whose blocks are run: files are written as shown, commands run as shown."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from typer.testing import CliRunner

from orchestrator.cli import app

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SOURCES = {"python": "py"}
ROOT = Path(__file__).parents[1]


def section(page: str, title: str) -> str:
    return page.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def blocks(text: str, language: str) -> list[str]:
    return [content for found, content in BLOCK.findall(text) if found == language]


def write_files(text: str, folder: Path) -> None:
    """Sources under the file name that was said last, sweep files under their sweep's name."""
    for block in BLOCK.finditer(text):
        language, content = block.groups()
        if language == "yaml" and (name := re.match(r"name: (\w+)\n", content)):
            (folder / f"{name[1]}.yaml").write_text(content)
        elif language in SOURCES:
            named = re.findall(rf"`(\w+\.{SOURCES[language]})`", text[: block.start()])
            (folder / named[-1]).write_text(content)


def copy_linked(text: str, folder: Path) -> None:
    """Copy the trainers to which a page links, and of which it shows at most some lines."""
    for path in re.findall(r"\]\(\.\./(sweeps/trainers/\S+\.(?:py|c))\)", text):
        shutil.copy(ROOT / path, folder)


def shipped(text: str) -> str:
    """The content of all trainers to which a page links."""
    paths = re.findall(r"\]\(\.\./(sweeps/trainers/\S+\.(?:py|c))\)", text)
    return "".join((ROOT / path).read_text() for path in paths)


def invoke(arguments: Sequence[str], folder: Path) -> str:
    """What a command prints that must end well, and that this process may run."""
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, f"{arguments}\n{done.output}"
    return done.output


def run_commands(text: str, folder: Path) -> str:
    """What the commands of ``text`` print, each of which must end well."""
    printed = ""
    for block in BLOCK.finditer(text):
        if block[1] != "sh":
            continue
        for line in block[2].splitlines():
            program, *arguments = shlex.split(line)
            assert program in ("sweep", "python", "cc")
            own = Path(sys.executable).with_name(program)
            command = [program if program == "cc" else str(own), *arguments]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            printed += done.stdout
    return printed
