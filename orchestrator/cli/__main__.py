"""`python -m orchestrator.cli`: the command line without its console script."""

from orchestrator.cli.entry import main

main()
