"""The entry point of the console script: errors become messages and exit codes."""

from __future__ import annotations

import sys

from orchestrator.base.environment import missing_library_error
from orchestrator.base.errors import EXIT_INTERRUPTED, SweepError, printable
from orchestrator.cli.app import app


def main() -> None:
    """Run the command line, and end with its exit code."""
    try:
        app(prog_name="sweep")
    except SweepError as error:
        _end_with(error)
    except ModuleNotFoundError as error:
        if (told := missing_library_error(error)) is None:
            raise
        _end_with(told)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _end_with(error: SweepError) -> None:
    print(f"error: {printable(str(error))}", file=sys.stderr)
    sys.exit(error.exit_code)
