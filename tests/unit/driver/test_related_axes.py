"""Sweeps with related axes, trained from the file to the map."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_cases import sweep_of

import orchestrator
from orchestrator.api.results import SweepResults
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor

BASE = "name: case\nobjective: quadratic\nsteps: 60\n"


def results(folder: Path, body: str) -> SweepResults:
    sweep = sweep_of(f"{body}tracking: {{enabled: false}}\n", BASE)
    assert run_sweep(sweep, folder, InlineExecutor).exit_code == 0
    return orchestrator.load(folder)


def brackets(found: SweepResults) -> list[list[tuple[float, float]]]:
    """The edges of each row."""
    return [[(edge["stable"], edge["not_stable"]) for edge in row["edges"]] for row in found.boundary().rows]


def test_tied_to_the_curvature_the_edge_of_gradient_descent_is_at_a_base_of_two_everywhere(tmp_path: Path) -> None:
    found = results(
        tmp_path,
        "axes: {lr: {values: [0.5, 1.5, 2.5, 5.0]}, curvature: {values: [0.1, 1.0, 30.0]}}\n"
        "fixed: {optimizer: sgd, beta1: 0.0}\n"
        "tie: {lr: lr / curvature}\n",
    )
    assert brackets(found) == [[(1.5, 2.5)]] * 3
    assert found.trials.effective_lr.tolist() == pytest.approx((found.trials.lr / found.trials.curvature).tolist())


def test_zipped_with_the_curvature_so_is_the_edge_of_their_product(tmp_path: Path) -> None:
    found = results(
        tmp_path,
        "axes: {lr: {values: [10, 1, 0.1]}, curvature: {values: [0.15, 1.5, 25]}}\n"
        "fixed: {optimizer: sgd, beta1: 0.0}\nzip: [[lr, curvature]]\n",
    )
    assert brackets(found) == [[(1.0, 0.1)]]
    assert len(found.trials) == 3


def test_momentum_exists_for_one_optimizer_only(tmp_path: Path) -> None:
    found = results(
        tmp_path,
        "axes:\n  lr: {log: [0.1, 10], num: 5}\n  optimizer: {values: [sgd, adamw]}\n"
        "  beta1: {values: [0.0, 0.5], when: {optimizer: sgd}}\n",
    )
    assert len(found.trials) == 15
    assert sorted(found.trials.groupby("optimizer").beta1.nunique(dropna=False).items()) == [("adamw", 1), ("sgd", 2)]
    rows = found.boundary("lr", "beta1", where={"optimizer": "sgd"}).rows
    (edges,) = [row["edges"] for row in rows if row["setting"] == {"beta1": 0.0}]
    assert [edge["stable"] for edge in edges] == [1.0]
    assert found.recommend(1.5).chosen.setting["optimizer"] == "sgd"
