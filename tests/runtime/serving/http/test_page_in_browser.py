"""The playground in headless Chromium, by what a person sees and by keyboard alone."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BUILD
from tests.runtime.serving.http.conftest import Running, running, until

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the optional package playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs the optional package chromium (a browser)"),
]
PHONE, DESKTOP = {"width": 360, "height": 740}, {"width": 1280, "height": 800}
SAID = "The robot dipped its brush, and every stroke it drew was its own. " * 3
NOTHING_DRAFTED = "\N{EN DASH}"
Page = Any  # of playwright, which may not be installed


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # tests may run as root
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, server: Running) -> Iterator[Page]:
    """Fails at the end if anything was blocked by the policy, not found, or thrown."""
    context = browser.new_context(viewport=DESKTOP)
    page, wrong = opened(context, server.url)
    yield page
    context.close()
    assert wrong == []


def opened(context: Any, url: str) -> tuple[Page, list[str]]:
    page, wrong = context.new_page(), list[str]()
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(url) else wrong.append(request.url))
    page.goto(url)
    page.locator("#model", has_text="parrot").wait_for()
    return page, wrong


def ask(page: Page, text: str = SAID) -> None:
    page.fill("#prompt", f"<say>{text}</say>")
    page.press("#prompt", "Control+Enter")


def texts(page: Page, selector: str) -> list[str]:
    return list(page.locator(selector).all_text_contents())


def test_every_verified_block_is_shown(page: Page, server: Running) -> None:
    ask(page)
    page.locator("#told", has_text="The two answers are the same.").wait_for()
    for panel in ("#with", "#without"):
        assert "".join(texts(page, f"{panel} .block")) == SAID
    drafted, own = texts(page, "#with .drafted"), texts(page, "#with .own")
    assert all(drafted)
    assert all(len(text) == 1 for text in own)  # a byte a token, one token of the target's own a block
    assert texts(page, "#without .drafted") == []
    assert "".join(texts(page, "#without .own")) == SAID
    assert int(page.locator("#with [data-fact=tokens]").inner_text()) == len(SAID) + 1  # the stop token counts
    gain = float(page.locator("#with [data-fact=gain]").inner_text())
    assert gain == pytest.approx((len(SAID) + 1) / (len(texts(page, "#with .block")) - 1), rel=0.1)
    assert page.locator("#without [data-fact=gain]").inner_text() == "1.00"
    assert page.locator("#without [data-fact=accepted]").inner_text() == NOTHING_DRAFTED


def test_drafted_and_own_text_differ_by_more_than_colour(page: Page) -> None:
    ask(page)
    page.locator("#told", has_text="Without: ").wait_for()
    styles = [
        page.locator(f"#with .{kind}").first.evaluate(
            "e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).textDecorationLine]"
        )
        for kind in ("drafted", "own")
    ]
    assert styles[0][0] != styles[1][0]
    assert [style[1] for style in styles] == ["none", "underline"]


def test_numbers_move_while_the_answer_is_written(page: Page, slow: Running) -> None:
    ask(page)
    page.locator("#with[aria-busy=true] .block").nth(3).wait_for()
    early = int(page.locator("#with [data-fact=tokens]").inner_text())
    assert 0 < early < len(SAID)
    assert float(page.locator("#with [data-fact=speed]").inner_text()) > 0
    page.locator("#told", has_text="Without: ").wait_for()
    assert int(page.locator("#with [data-fact=tokens]").inner_text()) > early


def test_escape_stops_and_the_server_is_free_again(page: Page, slow: Running) -> None:
    ask(page)
    page.locator("#with .block").first.wait_for()
    page.keyboard.press("Escape")
    page.locator("#told", has_text="Stopped.").wait_for()
    until(lambda: slow.idle)
    assert page.locator("#run").is_enabled()
    assert texts(page, "#without .block") == []


def test_by_keyboard_alone(page: Page, slow: Running) -> None:
    """Tab reaches everything in order, and no press loses the focus."""
    reached = []
    for _ in range(7):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert reached == ["A", "prompt", "run", "compare", "SUMMARY", "DIV", "DIV"]
    page.fill("#prompt", f"<say>{SAID}</say>")
    page.focus("#run")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "stop"
    page.keyboard.press("Enter")
    page.locator("#told", has_text="Stopped.").wait_for()
    assert page.evaluate("document.activeElement.id") == "run"


def test_what_the_model_writes_stays_text(page: Page) -> None:
    hostile = "<img src=x onerror=alert(1)><b>bold</b>"
    ask(page, hostile)
    page.locator("#told", has_text="Without: ").wait_for()
    assert page.locator(".answer img, .answer b").count() == 0
    assert "".join(texts(page, "#with .block")) == hostile


def test_an_error_is_told_in_words(browser: Any, server: Running) -> None:
    context = browser.new_context(viewport=DESKTOP)
    page, _ = opened(context, server.url)
    ask(page, "long " * 1000)
    page.locator("#fault", has_text="this model's context is").wait_for()
    assert page.locator("#run").is_enabled()
    context.close()


def test_a_missing_key_leads_to_its_field(browser: Any, parrot_folder: Path) -> None:
    with running(parrot_folder, api_keys=("sesame",)) as locked:
        page = browser.new_page()
        page.goto(locked.url)
        page.locator("#model", has_text="needs an API key").wait_for()
        ask(page)
        page.locator("#fault", has_text="the API key is missing or wrong").wait_for()
        assert page.evaluate("document.activeElement.id") == "api-key"
        page.keyboard.type("sesame")
        page.keyboard.press("Control+Enter")
        page.locator("#told", has_text="The two answers are the same.").wait_for()
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_readable_everywhere(browser: Any, server: Running, scheme: str, size: dict[str, int]) -> None:
    """No sideways scrolling, contrast of 4.5 to 1 at least (WCAG AA), places to touch of 44 pixels at least."""
    context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    page, wrong = opened(context, server.url)
    ask(page)
    page.locator("#told", has_text="Without: ").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("getComputedStyle(document.querySelector('.block')).animationName") == "none"
    for selector in ("body", ".hint", "dt", ".drafted", ".own", "#run:enabled", "label"):
        ink, ground = page.locator(selector).first.evaluate(COLOURS)
        assert contrast(ink, ground) >= 4.5, selector
    for selector in ("#prompt", "#run", "#stop", ".check"):
        assert page.locator(selector).bounding_box()["height"] >= 44, selector
    folder = BUILD / "test" / "page"
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{size['width']}-{scheme}.png", full_page=True)
    context.close()
    assert wrong == []


COLOURS = """e => {
  const numbers = (c) => c.match(/[\\d.]+/g).map(Number);
  let under = e;
  while (under.parentElement && numbers(getComputedStyle(under).backgroundColor)[3] === 0) under = under.parentElement;
  return [numbers(getComputedStyle(e).color), numbers(getComputedStyle(under).backgroundColor)];
}"""


def contrast(one: list[float], other: list[float]) -> float:
    """Of two sRGB colours, by WCAG 2."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: list[float]) -> float:
    parts = [c / 255 for c in colour[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
