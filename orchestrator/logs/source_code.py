"""Lines of Python in a log: the source of the script itself, which some scripts print before they train."""

from __future__ import annotations

import re

_SIMPLE = rb"(?:\w[\w.]*\(|[\w.\[\]]+ ?[-+*/]?= ?|(?:return|raise|yield|continue|break|pass)\b)"
_MODULE = rb"\w[\w.]*(?: as \w+)?"
# Lines that no log has: statements with a block, with the block on the same line, and others.
_STATEMENT = re.compile(
    rb"\s*(?:"
    rb"(?:async )?def \w+\(|class \w+(?:\(.*\))?:|(?:for .+ in|if|elif|while|with) .*:\s*(?:#.*)?$|"
    rb"(?:(?:if|elif|while) .+|for .+ in .+|with \w[\w.]*\(.*|else|try|finally|except\b.*): *" + _SIMPLE + rb"|"
    rb"import " + _MODULE + rb"(?:, *" + _MODULE + rb")*\s*(?:#.*)?$|"
    rb"from [\w.]+ import \S|@\w[\w.]*(?:\(.*)?$|(?:else|try|finally|except\b.*):\s*(?:#.*)?$|print0?\(|"
    rb"assert .*[=<>(]|raise \w+[\w.]*\(|global \w+(?:, *\w+)*$|(?:pass|continue|break)\s*$)|"
    rb"\s+return\b(?!\s*[:=])"
)
# Lines that look like a log, but belong to a source soon after its statements.
_BESIDE = re.compile(
    rb"\s*(?:(?:self\.)?\w+(?:: ?[\w.\[\]]+)? [-+*/]?= |\w+ *: *\w+ *= |#|[rRfFbBuU]{0,2}[\"']|\w+(?:\.\w+)+\(|[)\]}])|"
    rb"\s+\w+=.*[,)]\s*$"
)
_QUOTES = re.compile(rb'"""|\'\'\'')
_RULER = re.compile(rb"\s*([=*~_-])\1{9,}\s*$")  # that scripts print below their source
_WITHIN = 30  # lines after a statement
_MAX_QUOTED = 300  # lines between triple quotes


class SourceCode:
    """Tells lines of source code from lines of a log. A single indented line, as warnings quote it, opens no source."""

    def __init__(self) -> None:
        self._since = _WITHIN  # lines since the last statement of a source
        self._quotes = b""  # that are open
        self._num_quoted = 0

    @property
    def is_near(self) -> bool:
        """Whether a next line may belong to a source."""
        return self._since < _WITHIN or bool(self._quotes)

    def holds(self, line: bytes) -> bool:
        """Whether the next ``line`` of the log is source code."""
        if self._quotes:
            return self._is_quoted(line)
        if _STATEMENT.match(line):
            if self.is_near or not line[:1].isspace():
                self._since = 0
            return True
        self._since = min(_WITHIN, self._since + 1)
        if self._since >= _WITHIN:
            return False
        if _RULER.match(line):
            self._since = _WITHIN
            return True
        if len(quotes := _QUOTES.findall(line)) % 2:
            self._quotes, self._num_quoted = quotes[-1], 0
            return True
        return _BESIDE.match(line) is not None

    def _is_quoted(self, line: bytes) -> bool:
        self._num_quoted += 1
        if self._quotes in line or self._num_quoted >= _MAX_QUOTED:
            self._quotes, self._since = b"", 0
        return True
