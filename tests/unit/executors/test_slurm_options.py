"""What --slurm says."""

from __future__ import annotations

import importlib
import sys

import pytest

from orchestrator.base.errors import InputError
from orchestrator.executors.slurm_cluster import read_options


def test_options_are_read_from_the_command_line() -> None:
    assert read_options(["partition=gpu", "mem-gb=4", "comment=a=b"]) == {
        "partition": "gpu", "mem_gb": "4", "comment": "a=b",
    }  # fmt: skip
    with pytest.raises(InputError, match="'partition' is not KEY=VALUE"):
        read_options(["partition"])


def test_without_submitit_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    monkeypatch.delitem(sys.modules, "orchestrator.executors.slurm", raising=False)
    with pytest.raises(InputError, match=r"pip install 'sweep-stability\[slurm\]'"):
        importlib.import_module("orchestrator.executors.slurm")
