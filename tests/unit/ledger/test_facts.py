from __future__ import annotations

import json

import pytest

from objectives.base import Objective, TrainingConfig, per_member, structural
from orchestrator.ledger.facts import PackedObjective, packed_fact, packed_from_fact


class OwnConfig(TrainingConfig):
    """A model of somebody's."""

    batch_size: int = structural(2, "points", "points per step", ge=1)
    qk_norm: bool = structural(False, "switch", "normed queries and keys", off=True)
    penalty: float = per_member(0.0, "1", "a penalty", off=True, ge=0)
    shape: tuple[str, ...] = structural((), "words", "a shape", off=True)


OWN = Objective("own", OwnConfig, "own", spike_rise=0.1, can_compile=False, layer_groups=("a", "b"), has_logits=True)


def test_the_facts_of_an_objective_survive_the_ledger_with_the_fields_that_are_off() -> None:
    known = packed_from_fact(packed_fact(OWN))
    assert (known.layer_groups, known.has_logits, known.data_fields) == (("a", "b"), True, ("batch_size",))
    assert {name: known.features[name] for name in ("qk_norm", "penalty", "shape")} == {
        "qk_norm": False, "penalty": 0.0, "shape": (),
    }  # fmt: skip
    assert "batch_size" not in known.features
    assert packed_from_fact(json.dumps({**json.loads(packed_fact(OWN)), "features": {}})) == PackedObjective(
        ("a", "b"), True, ("batch_size",), {}
    )


@pytest.mark.parametrize("text", ["", "[", "{}", "[]", "null", '{"layer_groups": 1}'])
def test_facts_that_are_damaged_raise_what_a_reader_reports_as_damage(text: str) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        packed_from_fact(text)
