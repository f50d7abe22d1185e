"""Pictures of the playground, of a server that runs: `python -m scripts.screenshots http://127.0.0.1:8000 docs`."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, ViewportSize, sync_playwright

PLACES: dict[str, tuple[ViewportSize, str]] = {
    "page-desktop": ({"width": 1100, "height": 700}, "light"),
    "page-phone": ({"width": 360, "height": 740}, "dark"),
}
MOST_TOKENS = "64"


def main(url: str, folder: Path) -> None:
    """Ask the page's own example, and wait for both answers."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in PLACES:
            take(browser, url, name, folder / f"{name}.png")
        browser.close()


def take(browser: Browser, url: str, name: str, to: Path) -> None:
    """One picture, at one of PLACES."""
    size, scheme = PLACES[name]
    page = browser.new_page(viewport=size, color_scheme="dark" if scheme == "dark" else "light")
    page.goto(url)
    page.locator("#state.ready").wait_for(timeout=120_000)
    page.locator("summary").click()
    page.fill("#max-tokens", MOST_TOKENS)
    page.locator("summary").click()
    page.click("#run")
    page.locator("#told", has_text="Without: ").wait_for(timeout=120_000)
    page.screenshot(path=to, full_page=True)
    page.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
