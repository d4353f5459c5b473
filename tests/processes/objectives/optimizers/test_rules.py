"""Compiled update rules; compiling starts a compiler."""

import pytest
import torch
from rule_cases import STEPS, Members

from objectives.optimizers.facts import OPTIMIZERS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it loads its code generator
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_compiled_rule_is_the_eager_one(optimizer) -> None:
    own = Members(optimizer)
    eager, compiled = (own.train(own.packed(compiled=compiled), range(STEPS)) for compiled in (False, True))
    assert compiled._advance._compiled is not None
    torch.testing.assert_close(compiled.params_Kn, eager.params_Kn, rtol=1e-9, atol=1e-12)
