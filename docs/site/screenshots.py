"""Make the pictures of the page in docs/maps.md, from the report of a sweep that was run.

    make run
    python docs/site/screenshots.py results/beta2_eps/report.html

A cell at the edge is opened. It needs `pip install '.[browser]'` and a Chromium.
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

PICTURES = Path(__file__).parents[1] / "pictures"
SIZES = ((400, 1600), (1280, 940), (2560, 1300))  # windows: a phone, a laptop, a large screen
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
COLOURS = 256  # which make a picture a third as large, and look the same


def main() -> None:
    """Write page_400.png, page_1280.png and page_2560.png."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--cell", default="beta2=0.95 eps=0.001", help="the cell that is opened")
    parser.add_argument("--folder", type=Path, default=PICTURES)
    options = parser.parse_args()
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for width, height in SIZES:
            page = browser.new_context(viewport={"width": width, "height": height}).new_page()
            page.goto(options.report.resolve().as_uri())
            page.locator(f'#map button[aria-label^="{options.cell}:"]').click()
            page.locator("#cell figure svg").first.wait_for()
            page.mouse.move(0, 0)  # else the cell under it shows a small curve
            page.evaluate("scrollTo(0, 0)")
            shown = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            shown.quantize(COLOURS).save(options.folder / f"page_{width}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
