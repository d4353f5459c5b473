"""Kernels are compiled once for a machine, by whatever C++ compiler it has."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from sweep_cases import sweep_of

from objectives.base import Rounding
from objectives.native import library
from orchestrator.base.errors import InputError
from orchestrator.driver.planning import check_runnable, plan_of


@pytest.fixture(autouse=True)
def forgets_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel of a false compiler is loaded by a test that runs later in this process."""
    for name in ("_hash", "load"):
        monkeypatch.setattr(library, name, cache(getattr(library, name).__wrapped__))


def compiler_that(folder: Path, does: str) -> str:
    """A program that notes its calls, then ``does``."""
    path = folder / "cxx"
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder / "calls"}\n{does}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def compilations(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


COMPILES = 'while [ $# -gt 1 ]; do shift; done; echo compiled > "$1"'


def test_workers_that_start_together_compile_once(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CXX", compiler_that(tmp_path, COMPILES))
    with ThreadPoolExecutor(8) as crew:
        paths = {future.result() for future in [crew.submit(library.built, "adamw", tmp_path / "k") for _ in range(8)]}
    assert len(paths) == len(compilations(tmp_path)) == 1
    assert paths.pop().read_text() == "compiled\n"
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o700


def test_another_compiler_or_another_type_of_numbers_is_another_kernel(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CXX", compiler_that(tmp_path, COMPILES))
    single, double = (library.built("adamw", tmp_path, real) for real in ("float", "double"))
    library._hash.cache_clear()
    monkeypatch.setenv("CXX", compiler_that(tmp_path, f"true; {COMPILES}"))
    assert len({single, double, library.built("adamw", tmp_path)}) == 3


def test_a_compiler_may_be_called_through_another_program(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CXX", f"env A=b '{compiler_that(tmp_path, COMPILES)}' -m64")
    assert library.built("adamw", tmp_path / "k").read_text() == "compiled\n"
    assert compilations(tmp_path)[0].startswith("-m64 -std=c++17 ")


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CXX", compiler_that(tmp_path, "echo no such flag >&2; exit 1"))
    with pytest.raises(RuntimeError, match=r"no such flag .*resources.kernels: default"):
        library.load("adamw", tmp_path / "k")
    assert not list((tmp_path / "k").glob("*.so"))


def test_a_damaged_kernel_is_an_error_that_names_the_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CXX", compiler_that(tmp_path, COMPILES))
    with pytest.raises(RuntimeError, match=r"cannot load .*adamw-float-.*\.so.*delete it"):
        library.load("adamw", tmp_path / "k")


def test_without_a_compiler_new_sweeps_are_eager_and_a_native_one_says_what_to_install(tmp_path, monkeypatch) -> None:
    assert library.compiler(), "the tests need one"
    assert Rounding.of_new_results(False, "auto", 0) == Rounding(kernels="native")
    assert Rounding.of_new_results(False, "default", 0) == Rounding()
    assert Rounding.of_new_results(False, "auto", 1) == Rounding()
    assert Rounding.of_new_results(True, "auto", 0) == Rounding(compiled=True)
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert Rounding.of_new_results(False, "auto", 0) == Rounding()
    with pytest.raises(RuntimeError, match="no C\\+\\+ compiler was found"):
        library.load("adamw", tmp_path / "k")


def test_a_compiler_that_fails_is_an_error_of_plan_and_run_and_not_of_each_trial(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SWEEP_KERNELS", str(tmp_path / "kernels"))
    monkeypatch.setenv("CXX", compiler_that(tmp_path, "echo no such flag >&2; exit 1"))
    sweep = sweep_of("axes: {lr: {values: [0.1]}}\n", "name: s\nobjective: gpt\nsteps: 2\n")
    for call in (plan_of, check_runnable):
        with pytest.raises(InputError) as caught:
            call(sweep, tmp_path / "results")
        (problem,) = caught.value.problems
        assert problem.key == "kernels"
        assert "no such flag" in problem.message
    assert len(compilations(tmp_path)) == 2
    check_runnable(replace(sweep, roundings={"": Rounding()}), tmp_path / "results")


def test_a_compiler_is_tried_by_a_line_and_not_at_all_once_a_kernel_is_there(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SWEEP_KERNELS", str(tmp_path / "kernels"))
    monkeypatch.setenv("CXX", compiler_that(tmp_path, COMPILES))
    assert library.failure() is None
    assert ["probe.cpp" in call for call in compilations(tmp_path)] == [True]
    library.compile_kernels(["adamw"])
    num_calls = len(compilations(tmp_path))
    assert library.failure() is None
    assert len(compilations(tmp_path)) == num_calls
