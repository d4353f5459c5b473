"""Processes that share the batches of a trial, when one of the others is gone."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from objectives.base import RankLost
from objectives.training.ranks import Ranks


@pytest.mark.parametrize("where", ["scatter_object_list", "broadcast", "reduce"])
def test_a_rank_that_reaches_no_other_has_no_error_of_its_own(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def receive(received: list[Any], _: None) -> None:
        received[0] = ((), True)

    def fail(*_: Any) -> None:
        raise RuntimeError("Connection closed by peer\nmore")

    monkeypatch.setattr(dist, "scatter_object_list", receive)
    for name in ("broadcast", "reduce"):
        monkeypatch.setattr(dist, name, lambda *_: None)
    monkeypatch.setattr(dist, where, fail)
    ranks = object.__new__(Ranks)
    with pytest.raises(RankLost, match=r"^Connection closed by peer$"):
        ranks.serve(torch.zeros(1, 2), lambda: (torch.zeros(1), torch.zeros(1, 2)))


def test_an_error_of_its_own_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def differentiate() -> tuple[torch.Tensor, torch.Tensor]:
        raise RuntimeError("no such product")

    def receive(received: list[Any], _: None) -> None:
        received[0] = ((), False)

    monkeypatch.setattr(dist, "scatter_object_list", receive)
    with pytest.raises(RuntimeError, match="no such product") as raised:
        object.__new__(Ranks).serve(torch.zeros(1, 2), differentiate)
    assert not isinstance(raised.value, RankLost)
