"""The page of maps over the learning rate says what the maps that ship say."""

import csv
import math
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "lr-edge.md").read_text().split())
Row = dict[str, str]


def cells_of(name: str, table: str = "map", **values: str) -> list[Row]:
    """The cells of a map with these values."""
    with (ROOT / "results" / "reference" / name / f"{table}.csv").open() as file:
        return [row for row in csv.DictReader(file) if all(row[key] == value for key, value in values.items())]


def held_out(row: Row) -> float:
    return float(row["median_validation_loss"])


def loss_at(name: str, table: str = "map", **values: str) -> float:
    (row,) = cells_of(name, table, **values)
    return held_out(row)


def ends(rows: list[Row], of: Callable[[Row], float] = held_out) -> tuple[float, float]:
    return min(map(of, rows)), max(map(of, rows))


def test_the_losses_of_the_model_of_today_are_those_of_its_map() -> None:
    def loss(preset: str, lr: str, qk_norm: str = "false", table: str = "map") -> float:
        return loss_at("lr_model", table, preset=preset, lr=lr, qk_norm=qk_norm)

    assert f"ends {loss('small', '0.0025') - loss('llama', '0.0025'):.2f} lower on held-out text" in PAGE
    guards = ("false", "map"), ("false", "map_softcap"), ("true", "map")
    lost, capped, normed = (loss("llama", "0.16", *guard) - loss("llama", "0.0025", *guard) for guard in guards)
    assert f"`llama` has lost {lost:.2f}, with the softcap {capped:.2f}, with `qk_norm` {normed:.2f}." in PAGE


def test_the_models_of_today_share_an_edge_whatever_guards_their_logits() -> None:
    def num_stable(lr: str) -> int:
        return sum(
            int(row["num_stable"]) for table in ("map", "map_softcap") for row in cells_of("lr_model", table, lr=lr)
        )

    assert (num_stable("0.64"), num_stable("1.28")) == (23, 0)
    assert "are stable at lr 0.64, but for one seed of 24, and not at 1.28" in PAGE


def test_the_losses_of_muon_are_those_of_its_map() -> None:
    adamw, muon = (cells_of("lr_muon", optimizer=name, width="64") for name in ("adamw", "muon"))
    there = [[row for row in rows if row["median_validation_loss"]] for rows in (adamw, muon)]
    best, best_of_muon = (min(map(held_out, rows)) for rows in there)
    assert f"at width 64 {best_of_muon:.2f} on held-out text, where AdamW's best of this range is {best:.2f}" in PAGE
    low, high = ends([row for row in muon if float(row["lr"]) <= 0.02])
    assert f"from 0.005 to 0.02 it changes by {high - low:.2f}" in PAGE


def test_the_edges_of_muon_and_of_qk_clip_are_those_of_their_maps() -> None:
    def edge(width: str, optimizer: str, table: str = "map") -> float:
        rows = sorted(cells_of("lr_muon", table, width=width, optimizer=optimizer), key=lambda row: float(row["lr"]))
        lost = next(place for place, row in enumerate(rows) if row["state"] != "stable")
        return math.sqrt(float(rows[lost - 1]["lr"]) * float(rows[lost]["lr"]))

    widths = "16", "32", "64"
    assert [round(edge(width, "muon"), 2) for width in widths] == [0.91, 0.91, 0.45]
    assert [edge(width, "adamw") for width in widths[1:]] == [edge(width, "muon") for width in widths[1:]]
    (odd,) = (row for row in cells_of("lr_muon", width="16", optimizer="muon") if row["lr"] == "1.28")
    assert (edge("16", "adamw") > 1.28, odd["num_stable"]) == (True, "2")
    for optimizer in ("adamw", "muon"):
        for width in widths:
            assert abs(math.log2(edge(width, optimizer, "map_qk_clip") / edge(width, optimizer))) < 1.01
        pairs = zip(*(cells_of("lr_muon", table, optimizer=optimizer) for table in ("map", "map_qk_clip")), strict=True)
        gains = [held_out(a) - held_out(b) for a, b in pairs if a["state"] == b["state"] == "stable"]
        assert round(max(gains), 1) == 0.3
    assert "it lowers the held-out loss of either by up to 0.3." in PAGE


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


def test_what_copies_cost_is_that_of_their_map() -> None:
    def at(share: str, times: str) -> Row:
        (row,) = cells_of("data_repeat", duplicated_share=share, duplicated_times=times)
        return row

    base, few, many = at("0.003", "1"), at("0.003", "1000"), at("0.1", "1000")
    rise, fall = held_out(few) - held_out(base), float(base["median_final_loss"]) - float(few["median_final_loss"])
    assert f"600 steps end {rise:.2f} higher on held-out text, while the training loss falls by {fall:.2f}" in PAGE
    assert f"a thousand times it is {held_out(many) - held_out(base):.2f}." in PAGE
    assert max(map(held_out, cells_of("data_repeat", duplicated_times="10"))) - held_out(base) < 0.1
    assert {row["fraction_stable"] for row in cells_of("data_repeat")} == {"1.0"}


def test_what_the_weights_of_texts_move_is_that_of_their_map() -> None:
    rows = [row for row in cells_of("data_domains") if row["state"] == "stable"]
    best = {t: min((row for row in rows if row["domain_temperature"] == t), key=held_out) for t in ("0.3", "100.0")}
    python, dumps = (
        [float(best[t][f"median_domain_loss/{name}"]) for t in ("0.3", "100.0")] for name in ("python", "tables")
    )
    assert (
        f"Python rises by {python[1] - python[0]:.2f} and that on hex dumps falls by {dumps[0] - dumps[1]:.2f}" in PAGE
    )
    below = [row for row in cells_of("data_domains") if float(row["lr"]) < 0.016]
    assert {row["num_stable"] for row in below} == {"3"}
    assert f"at 0.04 in {sum(int(row['num_stable']) for row in cells_of('data_domains', lr='0.04'))} of 12 runs" in PAGE


def test_the_losses_of_curricula_are_those_of_their_map() -> None:
    rows = [row for row in cells_of("curriculum") if row["state"] == "stable"]
    none, length, compression, loss = (
        min(held_out(row) for row in rows if row["curriculum"] == kind)
        for kind in ("", "length", "compression", "loss")
    )
    assert f"{none:.2f}" == f"{length:.2f}"
    words = (
        f"it is {none:.2f} without a curriculum and with `length`, {compression:.2f} by `compression`, {loss:.2f} by"
    )
    assert words in PAGE
    at_edge = {row["curriculum"]: row["num_stable"] for row in cells_of("curriculum") if row["lr"].startswith("0.0251")}
    assert at_edge == {"": "2", "length": "3", "compression": "3", "loss": "3"}
    assert {row["num_stable"] for row in cells_of("curriculum") if float(row["lr"]) >= 0.04} == {"0"}


def test_what_dirt_costs_is_that_of_its_map() -> None:
    rows = cells_of("data_dirt")
    assert {row["num_stable"] for row in rows if float(row["lr"]) <= 0.02} == {"3"}
    assert f"{sum(int(row['num_stable']) for row in rows if row['lr'] == '0.04')} of 12 at 0.04" in PAGE
    best = [
        min(held_out(row) for row in rows if row["noise_share"] == share and row["state"] == "stable")
        for share in ("0.0", "0.1", "0.3", "0.9")
    ]
    first, second, third, last = (f"{loss:.2f}" for loss in best)
    assert f"is {first}, {second}, {third} and {last}." in PAGE
