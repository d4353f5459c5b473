"""The loss of documents by a small model that is trained on them: its definition, its bits, and its cache."""

from pathlib import Path

import numpy as np
import pytest
import torch

from objectives.models import model_loss
from objectives.models.gpt_model import cross_entropy, initial_weights
from objectives.models.quality import stored_model_loss

DOCUMENTS = [b"number %d has words %s\n" % (n, b"ab" * (n % 90)) for n in range(120)] + [b"x", b""]


@pytest.fixture(autouse=True)
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_loss, "STEPS", 3)


def test_batches_are_random_places_of_the_joined_documents() -> None:
    joined = b"".join(DOCUMENTS)
    batches = model_loss._batches(DOCUMENTS, len(joined)).flatten(0, 1)
    assert all(bytes(row) in joined for row in batches.tolist())
    assert len({bytes(row) for row in batches.tolist()}) > len(batches) / 2
    assert torch.equal(batches, model_loss._batches([joined], len(joined)).flatten(0, 1))


def test_a_document_has_the_mean_loss_of_its_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_loss, "STEPS", 0)
    monkeypatch.setattr(model_loss, "reference_config", lambda: config)
    config = model_loss.GptConfig(steps=1, context=64, batch_size=32)
    weights = {name: weight[None] for name, weight in initial_weights(config, 0).items()}
    found = model_loss.model_loss(lambda: DOCUMENTS)
    for number in (1, 30, 31, 89):
        content = DOCUMENTS[number]
        wanted = min(4, -(-len(content) // 65))
        starts = [int(start) for start in np.linspace(0, max(len(content) - 65, 0), wanted)]
        pieces = [torch.tensor([[list(content[start : start + 65])]]) for start in starts]
        losses = [float(cross_entropy(config, weights, piece)[0]) for piece in pieces]
        assert found[number] == pytest.approx(np.mean(losses), rel=1e-5)
    whole = found[:-2] @ [sum(min(64, len(d) - 1) for _ in range(min(4, -(-len(d) // 65)))) for d in DOCUMENTS[:-2]]
    assert found[-1] == found[-2] == pytest.approx(whole / 64 / 120, rel=0.5)


def test_the_losses_have_the_same_bits_however_many_threads_there_are() -> None:
    alone = model_loss.model_loss(lambda: DOCUMENTS)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert model_loss.model_loss(lambda: DOCUMENTS).tobytes() == alone.tobytes()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert model_loss.model_loss(lambda: [b"too short"]).tolist() == [0]


def test_equal_documents_are_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = stored_model_loss(lambda: DOCUMENTS)
    monkeypatch.setattr(model_loss, "model_loss", lambda documents: np.zeros(1))
    assert stored_model_loss(lambda: iter(DOCUMENTS)).tobytes() == first.tobytes()
    assert len(stored_model_loss(lambda: DOCUMENTS[1:])) == 1, "other documents are scored anew"


def test_a_damaged_file_of_losses_is_written_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path))
    first = stored_model_loss(lambda: DOCUMENTS)
    (path,) = tmp_path.rglob("*.npy")
    path.write_bytes(b"damaged")
    assert stored_model_loss(lambda: DOCUMENTS).tobytes() == first.tobytes()
    assert np.load(path).tobytes() == first.tobytes()
