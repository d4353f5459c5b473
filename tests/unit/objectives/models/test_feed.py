"""Texts by weight, and curricula: who reads what at which step; packs, resumed and forked runs stay exact."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from curve_cases import Curves, assert_goes_on_as_alone, assert_resumes, assert_same, curves
from pack_cases import SMALL, trainer_of
from sweep_cases import sweep_of

from objectives.base import ExecutionPlan, GptConfig, RowSpec
from objectives.models import texts as stored_texts
from objectives.models.data import load_corpus
from objectives.models.drawn import domain_draws
from objectives.models.facts.feed import domain_names, domain_readings
from objectives.models.facts.text import NAMED_TEXTS, Recipe
from objectives.models.gpt import GptTrainer
from objectives.models.origins import batch_origin
from objectives.models.quality import byte_loss, compression_ratio
from objectives.models.texts import StoredBytes, load_text
from orchestrator.base.errors import InputError

SIZES = {**SMALL["gpt"], "batch_size": 6}
NUM_STEPS = 12
start = partial(trainer_of, "gpt")


@pytest.fixture
def three(texts: tuple[str, str], tmp_path: Path) -> tuple[str, str, str]:
    """Letters, digits and capitals: a byte says which text it is of."""
    (tmp_path / "capitals.txt").write_bytes(bytes(range(65, 91)) * 1000)
    return (*texts, str(tmp_path / "capitals.txt"))


@pytest.fixture
def lines(tmp_path: Path) -> str:
    """Lines from hard to easy: the first ones are random letters, the last ones repeat two."""
    random = np.random.RandomState(0)
    content = [bytes(random.randint(97, 97 + max(26 - n // 20, 2), 60).tolist()) + b"\n" for n in range(600)]
    (tmp_path / "lines.txt").write_bytes(b"".join(content))
    return str(tmp_path / "lines.txt")


def weighed(domains: dict[str, float], **more: Any) -> GptConfig:
    return GptConfig(**{"steps": NUM_STEPS, "lr": 1e-2, "domains": domains, **SIZES, **more})


def ordered(text: str, **more: Any) -> GptConfig:
    own = {"text": (text,), "separator": "\n", "curriculum": "compression", "curriculum_steps": 8}
    return GptConfig(**{"steps": NUM_STEPS, "lr": 1e-2, **own, **SIZES, **more})


def read_by(configs: list[GptConfig], seeds: list[int]) -> np.ndarray:
    """The bytes that each member trains on, (steps, K, B, S)."""
    trainer, found = start(configs, seeds), []
    for _ in range(NUM_STEPS):
        trainer.step()
        found.append(trainer._drawn[1])
    return torch.stack(found).numpy()


def kinds_of(tokens: np.ndarray) -> np.ndarray:
    """Which of the three texts each sequence is of, (...,)."""
    kinds = np.select([tokens >= 97, tokens < 58], [0, 1], 2)
    assert (kinds == kinds[..., :1]).all(), "a sequence is of one text"
    return kinds[..., 0]


def trained(config: GptConfig) -> Curves:
    return curves(start([config], [3]), NUM_STEPS)


# --- domains ---


def test_each_member_has_the_texts_by_their_weights_and_draws_of_its_seed(three: tuple[str, ...]) -> None:
    config = weighed(dict(zip(three, (3, 2, 1), strict=True)))
    temperatures = [1.0, 0.5, 1e6]
    found = kinds_of(read_by([config.model_copy(update={"domain_temperature": t}) for t in temperatures], [5] * 3))
    draws = np.stack([domain_draws(5, step, 6) for step in range(NUM_STEPS)])
    for k, shares in enumerate(([3, 2, 1], [9, 4, 1], [1, 1, 1])):
        bounds = np.cumsum(shares) / sum(shares)
        assert (found[:, k] == np.searchsorted(bounds, draws, side="right")).all()
    assert {*found.ravel().tolist()} == {0, 1, 2}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_text_with_all_of_the_weight_is_trained_on_as_alone(three: tuple[str, ...], place: int) -> None:
    alone = GptConfig(steps=NUM_STEPS, lr=1e-2, text=three[place : place + 1], **SIZES)
    weights = {text: float(number == place) for number, text in enumerate(three)}
    assert_same(trained(weighed(weights)), trained(alone))


def test_the_weights_of_a_second_text_are_those_of_a_mixture_in_its_share_alone(three: tuple[str, ...]) -> None:
    """Their draws are streams of their own, so a mixture can stand on domains."""
    config = weighed({three[0]: 1, three[1]: 1}, mix_text=three[2:], mix_share=0.4)
    found, without = (kinds_of(read_by([one], [1])) for one in (config, config.model_copy(update={"mix_share": 0.0})))
    assert (found[found != 2] == without[found != 2]).all()
    assert 0.2 < (found == 2).mean() < 0.6


def test_the_validation_loss_is_the_mean_of_the_losses_on_each_text(three: tuple[str, ...]) -> None:
    config = weighed(dict(zip(three, (8, 1, 0), strict=True)), validation_batches=2)
    trainer = start([config, config.model_copy(update={"lr": 3e-2})], [0, 1])
    for _ in range(NUM_STEPS - 1):
        trainer.step()
    readings = trainer.own_readings(slice(None))
    names = [f"domain_loss/{name}.txt" for name in ("letters", "digits", "capitals")]
    losses = [readings[name] for name in names]
    torch.testing.assert_close(trainer.validate([0, 1]), sum(losses) / 3)
    assert (losses[0] < losses[2]).all(), "the text that nobody trains on has the higher loss"
    assert domain_readings(config.model_dump(mode="json")) == tuple(names)
    alone = start([config.model_copy(update={"domains": (), "text": three[2:]})], [0])
    alone._params_Kn.copy_(trainer._params_Kn[:1])
    assert torch.equal(alone.validate([0])[0], losses[2][0])


def test_names_that_are_alike_are_numbered() -> None:
    assert domain_names(["a/x.txt", "b/x.txt", "tables"]) == ["x.txt-1", "x.txt-2", "tables"]


def test_the_temperature_may_change_in_mid_run(three: tuple[str, ...]) -> None:
    entries = ({"at": 6, "set": {"domain_temperature": 1e-3}},)
    config = weighed({three[0]: 1, three[1]: 2}, interventions=entries)
    found = kinds_of(read_by([config], [0]))[:, 0]
    assert {*found[:6].ravel().tolist()} == {0, 1}
    assert (found[6:] == 1).all()


# --- curricula ---


@pytest.mark.parametrize("kind", ["compression", "loss"])
def test_sequences_come_from_the_easy_share_of_the_documents_and_it_grows(lines: str, kind: str) -> None:
    configs = [ordered(lines, curriculum=kind), ordered(lines, curriculum=kind, curriculum_reversed=True)]
    seen = [[[origin.start for origin in batch_origin(one, 0, step)] for step in range(NUM_STEPS)] for one in configs]
    corpus = load_corpus((lines,), configs[0].recipe)
    num_starts = len(corpus.training) - 8
    shares = np.minimum(0.1 + 0.9 * np.arange(NUM_STEPS) / 8, 1)
    easy, hard = np.array(seen) / num_starts
    assert (easy.max(axis=1) <= shares + 1e-3).all()
    assert (hard.min(axis=1) >= 1 - shares - 1e-3).all()
    assert np.array_equal(easy[8:], hard[8:])
    tokens = np.concatenate([read_by([config], [0]) for config in configs], axis=1)
    for k, step in np.ndindex(2, NUM_STEPS):
        for place, sequence in zip(seen[k][step], tokens[step, k], strict=True):
            assert corpus.training[place : place + 9].tolist() == sequence.tolist()


@pytest.mark.parametrize(("kind", "score"), [("compression", compression_ratio), ("loss", byte_loss)])
def test_the_documents_are_all_there_from_easy_to_hard(lines: str, kind: str, score: Any) -> None:
    plain = load_text((lines,), ordered(lines, curriculum=None).recipe).training[:].tobytes().splitlines()
    found = load_text((lines,), ordered(lines, curriculum=kind).recipe).training[:].tobytes().splitlines()
    assert sorted(filter(None, found)) == sorted(plain)  # an empty line may follow the one that is cut
    whole = [line + b"\n" for line in plain[:-1]]
    easy = {*np.array(plain[:-1], dtype=object)[np.argsort(score(lambda: whole))[:100]].tolist()}
    assert len(easy & {*found[:120]}) > 95, "the last line, which is cut, may change a few"
    assert np.mean([len({*line}) for line in found[:100]]) < np.mean([len({*line}) for line in found[-100:]]) - 10


def test_clean_documents_come_before_noise_in_their_own_order(lines: str) -> None:
    config = ordered(lines, curriculum="noise", noise_share=0.25, curriculum_from=0.7)
    text = load_text((lines,), config.recipe)
    is_noise = text.documents.is_noise_D
    assert (np.diff(is_noise.astype(int)) >= 0).all()
    assert (np.diff(text.documents.number_D[~is_noise]) > 0).all()
    first, last = (batch_origin(config, 2, step) for step in (0, 11))
    assert not any(origin.is_noise for origin in first)
    assert any(origin.is_noise for origin in [*last, *batch_origin(config, 2, 10), *batch_origin(config, 2, 9)])


def test_the_first_domains_come_first(three: tuple[str, ...]) -> None:
    weights = dict(zip(three, (1, 1, 2), strict=True))
    more = {"curriculum": "domains", "curriculum_from": 0.25, "curriculum_steps": 8}
    configs = [weighed(weights, **more), weighed(weights, **more, curriculum_reversed=True)]
    found = kinds_of(np.concatenate([read_by([config], [0]) for config in configs], axis=1))
    whole = kinds_of(read_by([weighed(weights)], [0]))[:, 0]
    assert (found[:1, 0] == 0).all()
    assert (found[:4, 0] < 2).all()
    assert (found[:4, 1] == 2).all()
    assert {*found[9:, 0].ravel().tolist()} == {0, 1, 2}
    assert np.array_equal(found[8:, 0], whole[8:])
    assert np.array_equal(found[8:, 1], whole[8:])


def test_short_to_long_is_the_growth_of_context_start(lines: str) -> None:
    shared = {"steps": NUM_STEPS, "lr": 1e-2, "text": (lines,), **SIZES}
    shares = {"curriculum": "length", "curriculum_from": 0.25, "curriculum_steps": 7}
    assert_same(trained(GptConfig(**shared, **shares)), trained(GptConfig(**shared, context_start=2, context_steps=7)))
    shrinking = GptConfig(**shared, **{**shares, "curriculum_from": 1.0, "curriculum_to": 0.5})
    trainer = start([shrinking], [0])
    for _ in range(9):
        trainer.step()
    assert trainer._batch()[1].context_K.tolist() == [4]


WHOLE = [
    {"curriculum_steps": 5, "curriculum_from": 0.5, "curriculum_to": 0.5},
    {"curriculum_from": 0.2},
]


@pytest.mark.parametrize("fields", [{}, {"noise_share": 0.2}, {"shift_at": 4}, {"corrupted": 0.3}], ids=str)
def test_without_a_curriculum_a_run_is_the_same_to_the_bit(
    lines: str, three: tuple[str, ...], fields: dict[str, Any]
) -> None:
    fields = {
        "text": (lines,),
        "separator": "\n",
        **fields,
        **({"shift_text": three[:1]} if "shift_at" in fields else {}),
    }
    plain = GptConfig(steps=NUM_STEPS, lr=1e-2, **SIZES, **fields)
    for numbers in WHOLE:
        assert_same(trained(plain.model_copy(update=numbers)), trained(plain))


def test_a_curriculum_of_the_whole_text_is_a_run_on_its_documents_in_order(lines: str, tmp_path: Path) -> None:
    config = ordered(lines, curriculum_from=1.0)
    text = load_text((lines,), config.recipe)
    num_bytes = next(n for n in range(len(text.training), 10**6) if int(n * 0.9) == len(text.training))
    rest = (text.held_out[:].tobytes() * 2)[: num_bytes - len(text.training)]
    (tmp_path / "sorted.txt").write_bytes(text.training[:].tobytes() + rest)
    plain = GptConfig(steps=NUM_STEPS, lr=1e-2, text=(str(tmp_path / "sorted.txt"),), **SIZES)
    assert len(load_corpus(plain.text).training) == len(text.training)
    for reversed_ in (False, True):
        assert_same(trained(config.model_copy(update={"curriculum_reversed": reversed_})), trained(plain))


CASES: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({}, [{}, {"curriculum_to": 0.2}, {"curriculum_steps": 2}, {"curriculum_from": 0.5, "rollback": 1}]),
    (
        {"curriculum_reversed": True},
        [{}, {"curriculum_to": 0.2}, {"curriculum_steps": 2}, {"interventions": ({"at": 3, "skip": 4},)}],
    ),
    ({"curriculum": "length"}, [{}, {"curriculum_from": 1.0}, {"curriculum_steps": 3}, {"curriculum_to": 0.5}]),
]


@pytest.mark.parametrize(("shared", "changes"), CASES, ids=["documents", "reversed", "length"])
def test_members_of_a_curriculum_train_in_a_pack_as_alone_and_resume_and_fork_to_the_bit(
    lines: str, tmp_path: Path, shared: dict[str, Any], changes: list[dict[str, Any]]
) -> None:
    configs = [ordered(lines, **shared, **change) for change in changes]
    assert_goes_on_as_alone(start, configs, [0, 0, 1, 2], [1, 3], NUM_STEPS)
    assert_resumes(start, configs, [0, 0, 1, 2], 5, NUM_STEPS, tmp_path)
    together = start(configs, [0, 0, 1, 2])
    curves(together, 5)
    together.arrange([RowSpec(configs[1], 0, 1), RowSpec(configs[1], 0, 1)])
    fork, straight = curves(together, 7), curves(start([configs[1]], [0]), NUM_STEPS)
    for k in range(2):
        assert torch.equal(fork["loss"][:, k], straight["loss"][5:, 0])


def test_members_of_domains_by_turns_train_in_a_pack_as_alone_and_resume(
    three: tuple[str, ...], tmp_path: Path
) -> None:
    config = weighed(dict.fromkeys(three, 1.0), curriculum="domains", curriculum_steps=6)
    ramp = {"at": 2, "set": {"domain_temperature": 5.0}, "over": 3}
    changes = [{}, {"domain_temperature": 3.0}, {"curriculum_to": 0.4}, {"interventions": (ramp,)}]
    configs = [GptConfig.model_validate({**config.model_dump(), **change}) for change in changes]
    assert_goes_on_as_alone(start, configs, [0, 0, 1, 2], [1, 3], NUM_STEPS)
    assert_resumes(start, configs, [0, 0, 1, 2], 5, NUM_STEPS, tmp_path)
    for step in range(NUM_STEPS):
        files = [three.index(origin.file) for origin in batch_origin(configs[2], 1, step)]
        assert files == kinds_of(read_by([configs[2]], [1]))[step, 0].tolist() if step in (0, 7) else True


def test_the_native_kernel_trains_ahead_in_the_same_order(lines: str) -> None:
    configs = [ordered(lines), ordered(lines, curriculum_steps=4)]
    one, many = (GptTrainer(configs, [0, 1], "cpu", ExecutionPlan(2, kernels="native")) for _ in range(2))
    expected = [one.step()["loss"] for _ in range(NUM_STEPS)]
    assert all(map(torch.equal, [found["loss"] for found in many.steps_ahead(NUM_STEPS)], expected))


def test_a_text_on_disk_is_read_in_the_same_order(lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = trained(ordered(lines))
    monkeypatch.setattr(stored_texts, "MOST_IN_MEMORY", 5000)
    load_corpus.cache_clear()
    trainer = start([ordered(lines)], [3])
    assert isinstance(trainer.corpus.training, StoredBytes)
    assert_same(curves(trainer, NUM_STEPS), in_memory)
    load_corpus.cache_clear()


# --- what is refused ---


BASE = "name: case\nobjective: gpt\nsteps: 20\n"
REFUSED = {
    "fixed: {domains: {missing.txt: 1}}\n": ("case.yaml:4", "fixed.domains", "matches no file"),
    "fixed: {domains: {licenses: 1}}\n": ("fixed.domains", "did you mean `licences`?"),
    "fixed: {domains: {python: -1, tables: 1}}\n": ("weights of 0 or more",),
    "fixed: {domains: {python: 0}}\n": ("weights of 0 or more",),
    "fixed: {domains: {python: 1}, text: [tables]}\n": ("domains replace text",),
    "fixed: {domains: [python, tables]}\n": ("case.yaml:4", "fixed.domains"),
    "fixed: {domains: {python: much}}\n": ("case.yaml:4", "fixed.domains"),
    "fixed: {domain_temperature: 2}\n": ("fixed.domain_temperature", "domains is not empty"),
    "fixed: {curriculum: domains}\n": ("curriculum = domains needs domains",),
    "fixed: {curriculum: noise}\n": ("curriculum = noise needs noise_share",),
    "fixed: {curriculum: length, context_start: 4, context_steps: 5}\n": ("context_start",),
    "fixed: {curriculum: length, curriculum_reversed: true}\n": ("fixed.curriculum_reversed", "curriculum is"),
    "fixed: {curriculum: loss, curriculum_from: 0.0}\n": ("case.yaml:4", "fixed.curriculum_from"),
    "fixed: {curriculum_steps: 5}\n": ("fixed.curriculum_steps", "curriculum is not null"),
}  # fmt: skip


@pytest.mark.parametrize("body", REFUSED)
def test_settings_that_do_not_fit_are_refused(body: str) -> None:
    with pytest.raises(InputError) as refused:
        sweep_of(body, BASE)
    assert all(word in str(refused.value) for word in REFUSED[body]), str(refused.value)


def test_weights_and_kinds_are_axes_and_a_resolved_sweep_reads_back(three: tuple[str, ...]) -> None:
    one, other = {three[0]: 1.0, "tables": 2.0}, {three[0]: 1.0, "tables": 5.0}
    sweep = sweep_of(
        f"axes: {{domains: {{values: [{one}, {other}]}}, curriculum: {{values: [null, domains]}}}}\n", BASE
    )
    assert [trial.config["domains"] for trial in sweep.trials][::2] == [
        list(map(list, each.items())) for each in (one, other)
    ]
    assert len({trial.trial_id for trial in sweep.trials}) == 4
    assert "text" not in sweep.trials[0].config
    again = sweep_of(sweep.text, "")
    assert [trial.trial_id for trial in again.trials] == [trial.trial_id for trial in sweep.trials]


def test_weights_read_as_the_pairs_that_a_trial_has(texts: tuple[str, str]) -> None:
    mapping, pairs = (
        sweep_of(f"fixed: {{domains: {given}}}\n", BASE)
        for given in (f"{{'{texts[0]}': 1, tables: 2}}", f"[['{texts[0]}', 1.0], [tables, 2.0]]")
    )
    assert [trial.trial_id for trial in pairs.trials] == [trial.trial_id for trial in mapping.trials]


@pytest.mark.parametrize("name", NAMED_TEXTS)
def test_a_text_with_a_name_is_on_this_machine_and_the_same_each_time(name: str) -> None:
    first, again = (load_text((name,), Recipe()) for _ in range(2))
    assert first.sha256 == again.sha256
    assert len(first.names) > 20
    assert len(first.training) > 100_000
