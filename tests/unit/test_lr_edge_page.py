"""The page of maps over the learning rate says what the maps that ship say."""

import csv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "lr-edge.md").read_text().split())
Row = dict[str, str]


def cells_of(name: str, **values: str) -> list[Row]:
    """The cells of a map with these values."""
    with (ROOT / "results" / "reference" / name / "map.csv").open() as file:
        return [row for row in csv.DictReader(file) if all(row[key] == value for key, value in values.items())]


def held_out(row: Row) -> float:
    return float(row["median_validation_loss"])


def loss_at(name: str, **values: str) -> float:
    (row,) = cells_of(name, **values)
    return held_out(row)


def ends(rows: list[Row], of: Callable[[Row], float] = held_out) -> tuple[float, float]:
    return min(map(of, rows)), max(map(of, rows))


def test_the_losses_of_the_model_of_today_are_those_of_its_map() -> None:
    def loss(preset: str, lr: str, qk_norm: str = "false") -> float:
        return loss_at("lr_model", preset=preset, lr=lr, qk_norm=qk_norm)

    assert f"ends {loss('small', '0.0025') - loss('llama', '0.0025'):.2f} lower on held-out text" in PAGE
    lost, with_norm = (loss("llama", "0.16", norm) - loss("llama", "0.0025", norm) for norm in ("false", "true"))
    assert f"`llama` has lost {lost:.2f}, " in PAGE
    assert f"with `qk_norm` {with_norm:.2f}" in PAGE


def test_the_losses_of_muon_are_those_of_its_map() -> None:
    adamw, muon = (cells_of("lr_muon", optimizer=name, width="64") for name in ("adamw", "muon"))
    there = [[row for row in rows if row["median_validation_loss"]] for rows in (adamw, muon)]
    best, best_of_muon = (min(map(held_out, rows)) for rows in there)
    assert f"at width 64 {best_of_muon:.2f} on held-out text, where AdamW's best of this range is {best:.2f}" in PAGE
    low, high = ends([row for row in muon if float(row["lr"]) <= 0.02])
    assert f"from 0.005 to 0.02 it changes by {high - low:.2f}" in PAGE


def test_the_collapsed_routers_and_their_losses_are_those_of_the_maps() -> None:
    without, some, full = (cells_of("moe_balance", balance_weight=weight) for weight in ("0.0", "0.01", "1.0"))
    collapsed = [sum(int(row["num_collapsed"]) for row in rows) for rows in (without, some, full)]
    assert collapsed[2] == 0
    words = f"{collapsed[0]} of 15 routers collapse without a balance, {collapsed[1]} of 15 at Switch's weight of 0.01"
    assert words in PAGE
    (best, worst), (low, high) = ends(full), ends(without)
    assert f"{best:.2f} to {worst:.2f}, against {low:.2f} to {high:.2f} without" in PAGE
    by_experts = {(row["experts"], row["num_collapsed"]) for row in cells_of("moe_experts")}
    assert by_experts >= {("2", "0"), ("16", "3"), ("32", "3")}
    assert not {("2", "1"), ("2", "2"), ("2", "3")} & by_experts
