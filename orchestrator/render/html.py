"""Blocks as HTML: headings, paragraphs, tables and figures, with every text escaped."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Iterator
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


def blocks_html(blocks: Iterable[Block], *, with_figures: bool = True) -> str:
    """Return ``blocks`` as HTML. Lines below a line are a list; ``with_figures`` draws the figures as SVG."""
    return "\n".join(_parts(blocks, with_figures=with_figures))


def _parts(blocks: Iterable[Block], *, with_figures: bool) -> Iterator[str]:
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
                yield figure_html(block) if with_figures else ""
            case File():
                name, content = text_html(block.path.name), text_html(block.content)
                yield f"<details><summary>{name}</summary><pre>{content}</pre></details>"
    yield from _list(items)


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
