"""`python -m orchestrator.cli`: the command line without its console script."""

from orchestrator.cli.app import main

main()
