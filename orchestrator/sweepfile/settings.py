"""The settings of a trial as a user asks for them: its configuration holds only what acts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from objectives.base import OBJECTIVES, TrainingConfig
from objectives.fields import with_features_off
from orchestrator.base.vocabulary import CUSTOM_KINDS


def settings_of(objective: str, config: Mapping[str, Any], cell: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A trial's configuration, plus the features that are off and the values of its ``cell``.

    For a custom objective the features are those that all objectives have; a custom trainer has none.
    """
    known = dict(config)
    if objective not in CUSTOM_KINDS:
        config_class = OBJECTIVES[objective].config_class if objective in OBJECTIVES else TrainingConfig
        known = with_features_off(config_class, config)
    return {**(cell or {}), **known}
