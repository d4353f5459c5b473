"""The command `sweep`, and its processes: `python -P sweep_stability.py -m MODULE ...`.

A folder of the user may have the name of one of sweep's packages. They are imported from beside this file, which no
entry of sys.path precedes; then sys.path is as it was, so the user's own modules are found where they always are.
"""

import os
import runpy
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import objectives  # noqa: F401
import orchestrator  # noqa: F401

del sys.path[0]


def main() -> None:
    """Run the command line."""
    from orchestrator.base.environment import collect_rarely
    from orchestrator.cli import main

    if "--allow-import" not in sys.argv:
        collect_rarely()
    main()


def mlflow_app() -> object:
    """Return MLflow's server behind the login of `sweep ui`; uvicorn would search the working folder for modules."""
    from orchestrator.mirrors.mlflow_server import app_with_login

    return app_with_login()


if __name__ == "__main__":
    if "-m" in sys.argv:
        sys.argv = sys.argv[sys.argv.index("-m") + 1 :]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        main()
