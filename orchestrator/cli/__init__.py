"""The command line: `sweep` and its commands."""

from orchestrator.cli.app import app
from orchestrator.cli.entry import main

__all__ = ["app", "main"]
