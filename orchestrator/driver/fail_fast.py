"""Starts no other trial where the first ones all fail in the same way before any loss: they would fail too."""

from __future__ import annotations

import re

_ENOUGH = 2  # failures alike
# What differs between failures of one cause: numbers, ids, paths of a trial's folder.
_DIFFERENT = re.compile(r"[0-9a-f]{8,}|\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)


class FailFast:
    """Whether the packs that ended so far say that no other should be started."""

    def __init__(self) -> None:
        self._has_trained = False
        self._alike = 0
        self._cause = ""
        self.reason: str | None = None  # why no other should be started

    def trained(self) -> None:
        """Some trial of this run has a loss or a result."""
        self._has_trained, self.reason = True, None

    def failed(self, cause: str) -> bool:
        """A pack failed for ``cause`` before it had a loss; returns whether there is a reason from now on."""
        kind = _DIFFERENT.sub("#", cause)
        self._alike = self._alike + 1 if kind == self._cause else 1
        self._cause = kind
        is_new = self.reason is None and self._alike >= _ENOUGH and not self._has_trained
        if is_new:
            self.reason = f"no other trial is started: the first {self._alike} failed alike before their first loss"
        return is_new
