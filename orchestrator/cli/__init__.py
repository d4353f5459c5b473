"""The command line: `sweep` and its commands."""

from orchestrator.cli.app import app, main

__all__ = ["app", "main"]
