"""The frame of a page: a document that loads nothing, and what a browser lets it do."""

from __future__ import annotations

import base64
import hashlib
import html
from importlib.resources import files

from orchestrator.render import style


def document(title: str, policy: str, body: str) -> str:
    """An HTML document in the style of the report; ``title`` is text, ``body`` HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width">'
        f"<style>{style_sheet()}\n{page_file('page.css')}</style></head>"
        f"<body>\n{body}</body></html>\n"
    )


def content_policy(code: str = "", *, is_live: bool = False) -> str:
    """What a browser lets the page do: run this one script, and load nothing but, if it is live, news of itself."""
    parts = ["default-src 'none'", "style-src 'unsafe-inline'"]
    if code:
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        parts += [f"script-src 'sha256-{digest}'", "img-src data:"]  # pictures that are in the data
    if is_live:
        parts.append("connect-src 'self'")
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'"])


def page_file(name: str) -> str:
    """A script or a style sheet of the pages."""
    return files("orchestrator.pages").joinpath("page", name).read_text(encoding="utf-8")


def style_sheet() -> str:
    """The colours that the page's style sheet uses."""
    colours = {
        "stable": style.FRACTION_COLOURS[-1],
        "hatch": style.HATCH_COLOUR,
        "episode": style.EPISODE,
        "verdict": style.LIMIT,
    }
    return ":root {" + " ".join(f"--{name}: {colour};" for name, colour in colours.items()) + "}"
