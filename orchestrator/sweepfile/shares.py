"""Shares of a trial's steps: ``5%`` as the value of a field that counts steps."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

_NUMBER = re.compile(r"[0-9]{1,3}(\.[0-9]{1,12})?")


def is_share(value: Any) -> bool:
    """Whether ``value`` is meant as a share."""
    return isinstance(value, str) and value.endswith("%")


def share_problem(text: str) -> tuple[str, str] | None:
    """The problem of ``text``, which ends with a percent sign, as a share of the steps, and its remedy."""
    number = text.removesuffix("%")
    if not _NUMBER.fullmatch(number.strip()) or Fraction(number.strip()) > 100:
        return f"{text!r:.80} is refused: not a share of the steps", "write 0% to 100%, such as 5% or 2.5%"
    if number != number.strip():
        return f"{text!r:.80} is refused: there is a space in it", f"write {number.strip()}%"
    return None


def steps_of_share(text: str, steps: int) -> int:
    """The share ``text`` of ``steps`` in whole steps: the nearest number, but no share above zero becomes zero."""
    share = Fraction(text.removesuffix("%")) / 100
    return max(round(share * steps), int(share > 0))
