"""torch.compile for packs: fixed shapes, a cache that outlives the process, and a fallback to eager code."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

_log = logging.getLogger(__name__)
# Each pack size is a separate compilation; at the default limit of 8, torch would silently fall back to eager.
_LARGEST_NUMBER_OF_SHAPES = 64


class Compiled:
    """Compile ``function`` at its first call, or run it eagerly if compilation fails.

    ``failure`` is one line that says why compilation failed, or "".
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self._function, self._options = function, options
        self._compiled: Callable[..., Any] | None = None
        self.failure = ""

    def __call__(self, *arguments: Any) -> Any:
        """Return the function's value."""
        if self._compiled is not None:
            return self._compiled(*arguments)
        if self.failure:
            return self._function(*arguments)
        try:
            torch._dynamo.config.recompile_limit = _LARGEST_NUMBER_OF_SHAPES
            compiled = torch.compile(self._function, dynamic=False, **self._options)
            result = compiled(*arguments)
        except (RuntimeError, OSError, ImportError) as error:  # no compiler, or one that fails
            self.failure = f"eager, as compilation failed: {(str(error).strip() or repr(error)).splitlines()[0][:200]}"
            _log.warning(self.failure)
            return self._function(*arguments)
        self._compiled = compiled
        return result
