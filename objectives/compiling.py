"""torch.compile for packs: fixed shapes, a cache that outlives the process, and a way back to eager."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

_log = logging.getLogger(__name__)
# Every pack size is a compilation of its own; the default limit of 8 would silently go back to eager.
_LARGEST_NUMBER_OF_SHAPES = 64


class Compiled:
    """``function`` compiled at its first call; where that fails, eager from then on, said in one line.

    ``failure`` is that line, empty while all is well.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        torch._dynamo.config.recompile_limit = _LARGEST_NUMBER_OF_SHAPES
        self._function = function
        self._compiled: Callable[..., Any] | None = torch.compile(function, dynamic=False, **options)
        self._has_run = False
        self.failure = ""

    def __call__(self, *arguments: Any) -> Any:
        """The function's value."""
        if self._compiled is None:
            return self._function(*arguments)
        if self._has_run:
            return self._compiled(*arguments)
        try:
            result = self._compiled(*arguments)
        except (RuntimeError, OSError, ImportError) as error:  # no compiler, or one that cannot
            self.failure = f"eager, as compilation failed: {(str(error).strip() or repr(error)).splitlines()[0][:200]}"
            _log.warning(self.failure)
            self._compiled = None
            return self._function(*arguments)
        self._has_run = True
        return result
