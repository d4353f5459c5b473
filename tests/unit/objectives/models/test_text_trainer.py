"""A custom packed objective on text: it reads what `gpt` reads, in packs as alone, and its fields act."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from curve_cases import assert_goes_on_as_alone, assert_resumes, curves
from pack_cases import SMALL, trainer_of
from safetensors.torch import load_file
from tiers import one_of

from objectives.base import ExecutionPlan, TrainingConfig, load_objective
from objectives.models.data import held_out_batches, load_corpus
from objectives.models.facts.feed import DATA_FIELDS, FeedFields
from objectives.models.text_trainer import TextTrainer
from orchestrator.answers.map import MapQuery
from orchestrator.api.export_weights import export_weights
from orchestrator.base.errors import InputError
from orchestrator.driver.keeping import kept_bytes
from orchestrator.driver.planning import check_runnable
from orchestrator.driver.texts import texts_of
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

NUM_STEPS = 12
SIZES = {"batch_size": 4, "context": 8, "validation_batches": 2}
EXAMPLE = Path(__file__).parents[4] / "sweeps" / "trainers" / "next_byte.py"
OBJECTIVE = load_objective("next_byte:OBJECTIVE", str(EXAMPLE.parent))


def config_of(**fields: Any) -> TrainingConfig:
    return OBJECTIVE.config_of({"steps": NUM_STEPS, "lr": 1e-2, "width": 4, **SIZES, **fields})


def start(configs: Sequence[TrainingConfig], seeds: Sequence[int]) -> TextTrainer[Any]:
    trainer = OBJECTIVE.start(configs, seeds, "cpu", ExecutionPlan(len(configs)))
    assert isinstance(trainer, TextTrainer)
    return trainer


@pytest.fixture
def lines(tmp_path: Path) -> str:
    """A thousand lines, a quarter of which are copies."""
    content = [f"line {number % 750:04} has {number % 750 * 7919 % 997:03} of them\n" for number in range(1000)]
    (tmp_path / "lines.txt").write_text("".join(content))
    return str(tmp_path / "lines.txt")


RECIPES: list[dict[str, Any]] = [
    {},
    {"duplicated_share": 0.2, "duplicated_times": 5},
    {"noise_share": 0.3, "noise_kind": "markup"},
    {"dedup": "exact"},
    {"quality": "compression", "quality_keep": 0.5},
    {"curriculum": "loss", "curriculum_steps": 6},
    {"corrupted": 0.5},
    {"burst_at": 3, "burst_length": 2},
]


@pytest.mark.parametrize("fields", one_of(4, RECIPES), ids=str)
def test_it_reads_the_same_bytes_as_gpt(lines: str, fields: dict[str, Any]) -> None:
    fields = {"text": [lines], "separator": "\n", **fields}
    gpt = trainer_of("gpt", [load_objective("gpt").config_of({"steps": 9, **SMALL["gpt"], **SIZES, **fields})], [3])
    own = start([config_of(**fields)], [3])
    for _ in range(9):
        tokens_BS = own.tokens()[0]
        own.step(), gpt.step()
        assert torch.equal(tokens_BS, gpt._drawn[1][0])


def test_each_kind_of_text_is_another_one(lines: str) -> None:
    fields = {"text": [lines], "separator": "\n"}
    sums = [curves(start([config_of(**fields, **recipe)], [3]), NUM_STEPS)["loss"].sum().item() for recipe in RECIPES]
    assert len({*sums}) == len(RECIPES)


def test_the_loss_is_that_of_plain_torch_on_the_same_bytes(lines: str) -> None:
    own = start([config_of(text=[lines], optimizer="sgd", beta1=0.0)], [5])
    weights = {name: weight.requires_grad_() for name, weight in own.initial_weights(5).items()}
    for _ in range(NUM_STEPS):
        tokens_BS = own.tokens()[0]
        found = own.step()["loss"]
        inputs = torch.cat([torch.zeros(4, 2, dtype=torch.long), tokens_BS[:, :-1]], dim=1)
        embedded = torch.cat([weights["embedding"][inputs[:, n : n + 8]] for n in range(3)], dim=2)
        logits = torch.tanh(embedded @ weights["hidden"]) @ weights["head"]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens_BS[:, 1:].flatten())
        torch.testing.assert_close(found[0], loss.detach())
        for weight, grad in zip(weights.values(), torch.autograd.grad(loss, [*weights.values()]), strict=True):
            weight.data -= 1e-2 * grad
    corpus = load_corpus((lines,))
    with torch.no_grad():
        held_out = held_out_batches(corpus, 2, 4, 8).flatten(0, 1)
        alone = own.byte_losses({name: weight.detach() for name, weight in weights.items()}, held_out)
    torch.testing.assert_close(own.validate([0])[0], alone.mean())


def mixed(texts: tuple[str, str], lines: str) -> list[TrainingConfig]:
    """Members whose domains, mixture, shift, dirt, lengths and changes in mid-run differ."""
    shared = {"domains": {texts[0]: 2, lines: 1}, "shift_text": [texts[1]], "mix_text": [texts[1]]}
    shared |= {"curriculum": "length", "curriculum_steps": 6}
    changes = [
        {"domain_temperature": 3.0, "curriculum_from": 1.0},
        {"shift_at": 4, "rollback": 1},
        {"mix_share": 0.5, "corrupted": 0.2, "interventions": [{"at": 6, "set": {"mix_share": 0.0}}]},
        {"curriculum_to": 0.5, "interventions": [{"at": 3, "set": {"domain_temperature": 9.0}, "over": 3}]},
    ]
    return [config_of(**shared, **{"curriculum_from": 0.25, **change}) for change in changes]


def test_members_train_in_a_pack_as_alone_and_resume_to_the_bit(
    texts: tuple[str, str], lines: str, tmp_path: Path
) -> None:
    configs = mixed(texts, lines)
    assert_goes_on_as_alone(start, configs, [0, 0, 1, 2], [1, 3], NUM_STEPS)
    assert_resumes(start, configs, [0, 0, 1, 2], 5, NUM_STEPS, tmp_path)
    together, alone = start(configs, [0, 0, 1, 2]), start(configs[2:3], [1])
    for trainer in (together, alone):
        curves(trainer, 4)
    assert torch.equal(together.validate([2]), alone.validate([0]))


def test_a_curriculum_of_lengths_trains_on_the_first_bytes(lines: str) -> None:
    growing = {"curriculum": "length", "curriculum_from": 0.25, "curriculum_to": 1.0, "curriculum_steps": 4}
    trainer = start([config_of(text=[lines], **growing)], [1])
    for length in (2, 3, 5, 6, 8, 8):
        weights = {name: weight[0].detach().clone() for name, weight in trainer.weights.items()}
        of_bytes = trainer.byte_losses(weights, trainer.tokens()[0])
        torch.testing.assert_close(trainer.step()["loss"][0], of_bytes[:, :length].mean())


def test_each_domain_has_a_loss_and_the_validation_loss_is_their_mean(texts: tuple[str, str]) -> None:
    trainer = start([config_of(domains={texts[0]: 9, texts[1]: 0})] * 2, [0, 1])
    curves(trainer, NUM_STEPS - 1)
    losses = trainer.own_readings(slice(1, 2))
    assert [*losses] == ["domain_loss/letters.txt", "domain_loss/digits.txt"]
    torch.testing.assert_close(trainer.validate([1]), sum(losses.values()) / 2)
    assert losses["domain_loss/letters.txt"] < losses["domain_loss/digits.txt"]


def test_its_data_fields_are_those_that_gpt_has() -> None:
    assert load_objective("gpt").data_fields == OBJECTIVE.data_fields == DATA_FIELDS
    assert {*DATA_FIELDS} <= {*FeedFields.model_fields}
    text = OBJECTIVE.batch_text(config_of(), 0, 3)
    assert text is not None
    assert "bytes" in text


SWEEP = """
name: dirt
objective: {packed: "next_byte:OBJECTIVE", folder: FOLDER}
steps: 30
fixed: {lr: 0.003, context: 8, batch_size: 4, width: 4, separator: "\\n", text: [TEXT], mix_text: [OTHER]}
axes:
  noise_share: {values: [0.0, 0.5]}
  mix_share: {values: [0.0, 0.3]}
telemetry: {every: 5}
tracking: {enabled: false}
"""


@pytest.mark.usefixtures("without_files")
def test_dirt_and_mixtures_are_axes_of_its_map(lines: str, train: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(Path(lines).read_text().upper())
    text = SWEEP.replace("FOLDER", str(EXAMPLE.parent)).replace("TEXT", lines).replace("OTHER", str(other))
    sweep = build_sweep(parse_document(text, "dirt.yaml"), allow_import=True)
    assert {text for text, _ in texts_of(sweep)} == {(lines,), (str(other),)}
    train(sweep)
    with LedgerReader(tmp_path / "dirt" / "ledger.db") as ledger:
        frame = MapQuery(metric="domain_loss/mix_text").ask(read_table(ledger)).frame()
    assert frame["median_domain_loss/mix_text"].nunique() == 2
    assert frame["median_validation_loss"].nunique() == 4


KEPT = """
name: kept
objective: {packed: "next_byte:OBJECTIVE", folder: FOLDER}
steps: 4
fixed: {lr: 0.01, context: 8, batch_size: 4, width: 4, text: [TEXT]}
keep: {every: 2, last: 2}
tracking: {enabled: false}
"""


@pytest.mark.usefixtures("without_files")
def test_its_states_are_kept_by_declaration_and_leave_sweep_with_their_loss(
    lines: str, train: Any, tmp_path: Path
) -> None:
    text = KEPT.replace("FOLDER", str(EXAMPLE.parent)).replace("TEXT", lines)
    sweep = build_sweep(parse_document(text, "kept.yaml"), allow_import=True)
    check_runnable(sweep, tmp_path / "kept")
    train(sweep)
    with pytest.raises(InputError, match="allow-import"):
        [*export_weights(tmp_path / "kept", None, None, tmp_path / "out")]
    list(export_weights(tmp_path / "kept", None, None, tmp_path / "out", allow_import=True))
    with LedgerReader(tmp_path / "kept" / "ledger.db") as ledger:
        (trial,) = ledger.trials()
    stored = load_file(tmp_path / "out" / "weights.safetensors")
    assert sum(weight.numel() for weight in stored.values()) * 8 <= kept_bytes(sweep) / 2
    assert json.loads((tmp_path / "out" / "config.json").read_text())["validation_loss"] == trial.validation_loss
    silent = replace(sweep, objective=replace(OBJECTIVE, num_weights=None))
    with pytest.raises(InputError, match="num_weights=") as refused:
        check_runnable(silent, tmp_path / "other")
    assert refused.value.problems[0].key == "keep"
