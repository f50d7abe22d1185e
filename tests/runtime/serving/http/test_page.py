"""The playground: served with a policy that lets in nothing from outside, and found in the wheel."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from zipfile import ZipFile

import pytest

from dflash_runtime.serving.http.page import FOLDER
from tests.conftest import ROOT
from tests.runtime.serving.http.conftest import Running, running

ASSETS = {"page/app.js": "text/javascript", "page/style.css": "text/css", "page/icon.svg": "image/svg+xml"}
SVG_NAMESPACE = "http://www.w3.org/2000/svg"  # a name, fetched by nobody
OUTSIDE = re.compile(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*|@import|url\(")


class Outline(HTMLParser):
    """What a page asks for, what its labels name, and what of it would run or style from within."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.labelled: set[str] = set()
        self.controls: set[str] = set()
        self.inline: list[str] = []
        self._open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given, self._open = dict(attrs), tag
        if tag in ("script", "link", "img"):
            self.asked.append(given.get("src") or given.get("href") or "")
        if tag == "label" and given.get("for"):
            self.labelled.add(str(given["for"]))
        if tag in ("input", "textarea", "select") and given.get("type") != "checkbox":
            self.controls.add(str(given["id"]))
        self.inline += [name for name in given if name == "style" or name.startswith("on")]

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style") and data.strip():
            self.inline.append(data)


@pytest.fixture(scope="module")
def outline() -> Outline:
    outline = Outline()
    outline.feed((FOLDER / "index.html").read_text())
    return outline


def test_the_page_and_what_it_asks_for_are_served(server: Running, outline: Outline) -> None:
    page = server.http.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert sorted(outline.asked) == sorted(ASSETS)
    for path, kind in ASSETS.items():
        found = server.http.get(f"/{path}")
        assert found.status_code == 200
        assert found.headers["content-type"].startswith(kind)
        assert found.content == (FOLDER / path.removeprefix("page/")).read_bytes()


@pytest.mark.parametrize("path", ["/", *(f"/{path}" for path in ASSETS)])
def test_the_policy_lets_in_nothing_from_outside(server: Running, path: str) -> None:
    headers = server.http.get(path).headers
    directives = [part.strip().split() for part in headers["content-security-policy"].split(";")]
    policy = {name: values for name, *values in directives}
    assert policy["default-src"] == ["'none'"]
    assert policy["frame-ancestors"] == policy["base-uri"] == ["'none'"]
    assert {value for values in policy.values() for value in values} == {"'none'", "'self'"}
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["index.html", *(path.removeprefix("page/") for path in ASSETS)])
def test_nothing_of_it_names_another_place(name: str) -> None:
    text = (FOLDER / name).read_text().replace(SVG_NAMESPACE, "")
    assert not OUTSIDE.findall(re.sub(r"//\s.*", "", text))


def test_all_of_it_lies_in_files_that_the_policy_allows(outline: Outline) -> None:
    assert outline.inline == []
    assert outline.controls == outline.labelled


@pytest.mark.parametrize("path", ["/page/../app.py", "/page/%2e%2e%2fapp.py", "/page/page.py"])
def test_no_other_file_is_served(server: Running, path: str) -> None:
    assert server.http.get(path).status_code == 404


def test_a_server_without_the_page_still_has_its_api(parrot_folder: Path) -> None:
    with running(parrot_folder, page=False) as server:
        assert [server.http.get(path).status_code for path in ("/", "/page/app.js")] == [404, 404]
        assert server.http.get("/v1/models").status_code == 200


def test_the_page_needs_no_key_and_the_api_does(parrot_folder: Path) -> None:
    with running(parrot_folder, api_keys=("sesame",)) as server:
        assert server.http.get("/").status_code == 200
        assert server.http.get("/v1/models").status_code == 401


def test_no_page_of_the_server_loads_scripts_of_others(server: Running) -> None:
    """FastAPI's own pages would."""
    assert [server.http.get(path).status_code for path in ("/docs", "/redoc")] == [404, 404]


def test_the_wheel_holds_the_page(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in ZipFile(wheel).namelist() if name.startswith("dflash_runtime/serving/page/")}
    assert held == {f"dflash_runtime/serving/page/{name}" for name in ("index.html", "app.js", "style.css", "icon.svg")}
