from __future__ import annotations

import logging

import pytest
import torch
from pack_cases import cannot_compile

from objectives.stacking import Compiled


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@pytest.mark.parametrize("error", [RuntimeError("\nno C++ compiler\nat all"), OSError("no C++ compiler"),
                                   ImportError("no C++ compiler")], ids=lambda e: type(e).__name__)  # fmt: skip
def test_what_cannot_be_compiled_runs_eager_and_says_so_in_one_line(monkeypatch, caplog, error) -> None:
    monkeypatch.setattr(torch, "compile", cannot_compile(error))
    with caplog.at_level(logging.WARNING):
        function = Compiled(double)
        assert function.failure == ""
        results = [float(function(torch.tensor(x))) for x in (1.0, 2.0, 3.0)]
    assert results == [2.0, 4.0, 6.0]
    assert [record.getMessage() for record in caplog.records] == [function.failure]
    assert function.failure == "eager, as compilation failed: no C++ compiler"


def test_where_torch_refuses_to_compile_at_all_it_runs_eager(monkeypatch, caplog) -> None:
    def refuse(*_, **__):
        raise RuntimeError("torch.compile is not supported on this Python")

    monkeypatch.setattr(torch, "compile", refuse)
    function = Compiled(double)
    assert float(function(torch.tensor(1.0))) == 2.0
    assert function.failure == "eager, as compilation failed: torch.compile is not supported on this Python"


def test_an_error_of_the_function_itself_is_not_taken_for_one_of_the_compiler(monkeypatch) -> None:
    monkeypatch.setattr(torch, "compile", cannot_compile(ValueError("x is too small")))
    with pytest.raises(ValueError, match="too small"):
        Compiled(double)(torch.tensor(1.0))


def test_once_it_has_run_compiled_an_error_is_an_error(monkeypatch) -> None:
    def compile_(function, **options):
        def compiled(x):
            if x > 1:
                raise RuntimeError("out of memory")
            return function(x)

        return compiled

    monkeypatch.setattr(torch, "compile", compile_)
    function = Compiled(double)
    assert float(function(torch.tensor(1.0))) == 2.0
    with pytest.raises(RuntimeError, match="memory"):
        function(torch.tensor(2.0))
    assert function.failure == ""
