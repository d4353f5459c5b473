"""Blocks as HTML: headings, paragraphs, tables and figures, with every text escaped."""

from __future__ import annotations

import base64
import html
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.render.blocks import Block, Caution, Drawing, Figure, File, Heading, Line, Table

if TYPE_CHECKING:
    import pandas as pd

# Where no style sheet of ours applies, as in a notebook.
_PLAIN_STYLE = """
body { font-family: system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; line-height: 1.45; }
table { border-collapse: collapse; margin: 0.5rem 0; }
th, td { padding: 0.15rem 0.7rem 0.15rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #ddd; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.caution { border-left: 3px solid #D55E00; padding-left: 0.6rem; }
img { max-width: 100%; }
"""


def blocks_html(blocks: Iterable[Block]) -> str:
    """Return ``blocks`` as HTML. Lines below a line are a list, figures are SVG."""
    return "\n".join(_parts(blocks))


def _parts(blocks: Iterable[Block]) -> Iterator[str]:
    items: list[str] = []
    for block in blocks:
        if isinstance(block, Line) and block.indent:
            items.append(f"<li>{text_html(block.text)}</li>")
            continue
        yield from _list(items)
        items = []
        match block:
            case Heading():
                yield f"<h3>{text_html(block.text)}</h3>"
            case Line():
                yield f"<p>{text_html(block.text)}</p>" if block.text else ""
            case Caution():
                yield f'<p class="caution"><strong>{text_html(block.label)}:</strong> {text_html(block.text)}</p>'
            case Table():
                yield _table(block)
            case Drawing():
                yield f"<pre>{text_html(block.text.plain)}</pre>"
            case Figure():
                yield figure_html(block)
            case File():
                name, content = text_html(block.path.name), text_html(block.content)
                yield f"<details><summary>{name}</summary><pre>{content}</pre></details>"
    yield from _list(items)


_LABELS = ("cause", "next", "cheapest", "lowest loss")  # of lines that an answer opens with
_DEEPEST = 3  # indent with a look
_FEW = 6  # lines of a card; more are a click away


def cards_html(blocks: Iterable[Block]) -> str:
    """Return ``blocks`` as HTML without figures; a line with others below it is a card."""
    return "\n".join(_cards([block for block in blocks if not isinstance(block, Figure)]))


def _cards(blocks: Sequence[Block]) -> Iterator[str]:
    cards: list[str] = []
    starts = [i for i, block in enumerate(blocks) if not (isinstance(block, Line) and block.indent)]
    starts = starts if starts[:1] == [0] else [0, *starts]
    for start, end in itertools.pairwise([*starts, len(blocks)]):
        head, below = blocks[start], [block for block in blocks[start + 1 : end] if isinstance(block, Line)]
        if isinstance(head, Line) and below and not _label_of(head.text):
            cards.append(_card(head, below))
            continue
        yield from _in_columns(cards)
        cards = []
        yield _lead(head) if isinstance(head, Line) else "\n".join(_parts([head]))
        yield from _list([_item(line) for line in below])
    yield from _in_columns(cards)


def _in_columns(cards: Sequence[str]) -> Iterator[str]:
    if cards:
        yield f'<div class="cards">{"".join(cards)}</div>'


def _card(head: Line, below: Sequence[Line]) -> str:
    items = "".join(map(_item, below))
    title = f'<div class="card-head">{_labelled(head.text)}</div>'
    if len(below) <= _FEW:
        return f'<article class="card">{title}<ul>{items}</ul></article>'
    return f'<article class="card"><details><summary>{title}</summary><ul>{items}</ul></details></article>'


def _item(line: Line) -> str:
    return f'<li class="depth-{min(line.indent, _DEEPEST)}">{text_html(line.text.removeprefix("- "))}</li>'


def _label_of(text: str) -> str:
    label, colon, _ = text.partition(": ")
    return label if colon and label in _LABELS else ""


def _lead(line: Line) -> str:
    return f"<p>{_labelled(line.text)}</p>" if line.text else ""


def _labelled(text: str) -> str:
    """Return the text, whose label stands out if it is one that an answer opens with."""
    label = _label_of(text)
    return f'<span class="label">{label}</span> {text_html(text[len(label) + 2 :])}' if label else text_html(text)


def _list(items: list[str]) -> Iterator[str]:
    if items:
        yield f"<ul>{''.join(items)}</ul>"


def figure_html(figure: Figure) -> str:
    """Return a figure as an image that is part of the page."""
    content = base64.b64encode(figure.draw("svg")).decode()
    alt = html.escape(figure.alt, quote=True)
    return f'<figure><img alt="{alt}" src="data:image/svg+xml;base64,{content}"></figure>'


def _table(table: Table) -> str:
    title = f"<p>{text_html(table.title)}</p>" if table.title else ""
    return title + table_html(table.head, table.rows, table.right)


def table_html(head: Iterable[str], rows: Iterable[Iterable[Any]], right: Iterable[int] = ()) -> str:
    """Return a table of values, which are escaped; the columns at the places ``right`` hold numbers."""
    names, numbers = tuple(head), frozenset(right)

    def cells(kind: str, values: Iterable[Any]) -> str:
        marked = ((' class="number"' if i in numbers else "", value) for i, value in enumerate(values))
        return "".join(f"<{kind}{mark}>{html.escape(str(value))}</{kind}>" for mark, value in marked)

    top = f"<thead><tr>{cells('th', names)}</tr></thead>" if any(names) else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def frame_html(table: pd.DataFrame) -> str:
    """Return a data frame as a table; a missing value is empty."""
    from orchestrator.base.space import format_value

    shown = table.map(lambda value: "" if value is None or value != value else format_value(value))
    return table_html(shown.columns, shown.itertuples(index=False))


def answer_document(title: str, blocks: Iterable[Block]) -> str:
    """Return an HTML file with ``blocks`` that loads nothing."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:"><meta name="viewport" content="width=device-width">'
        f"<style>{_PLAIN_STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1>\n{blocks_html(blocks)}</body></html>\n"
    )


def text_html(text: str) -> str:
    """Return escaped text, whose `code` is marked as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
