"""The site that `make docs` builds: every page has its place in it, links lead somewhere, and it asks for nothing.

What needs the site builds it from a copy, with the environment that `make docs` made; without one it is skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests import browser
from tests.browser import Browser
from tests.test_docs import PAGES, ROOT, blocks_of, name_of

DOCS = ROOT / "docs"
BUILDER = ROOT / ".venv-docs"
READY = """
    addEventListener('load', () => { document.body.dataset.ready = 'yes' })
    const attach = Element.prototype.attachShadow
    Element.prototype.attachShadow = function (how) { return attach.call(this, { ...how, mode: 'open' }) }
"""
"""A program for `Browser.open`: it marks a page as ready when it is loaded, and opens its closed parts to us."""


def in_nav() -> list[str]:
    """The pages that the site's navigation names, in its order."""
    _, _, nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    return re.findall(r"(\S+\.md)$", nav, re.M)


def test_every_page_has_one_place_in_the_navigation_and_every_place_has_a_page() -> None:
    assert sorted(in_nav()) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_begins_with_its_title_and_has_one(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = {line for block in blocks_of(page) for line in range(block.line, block.line + block.text.count("\n"))}
    titles = [n for n, line in enumerate(text.splitlines()) if line.startswith("# ") and n not in blocks]
    assert titles == [0]


def test_a_page_links_to_nothing_that_the_site_does_not_have() -> None:
    for page in sorted(DOCS.rglob("*.md")):
        for link in re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8")):
            if not re.match(r"\w+:", link):
                assert (page.parent / link).resolve().is_relative_to(DOCS), f"{name_of(page)} links to {link}"


# -- the site itself ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built anew from a copy."""
    if not (BUILDER / "installed").exists():
        pytest.skip("the site isn't built here: `make docs` makes what builds it")
    copy = tmp_path_factory.mktemp("copy")
    for name in ("Makefile", "mkdocs.yml", "pyproject.toml"):
        shutil.copy2(ROOT / name, copy / name)
    shutil.copytree(DOCS, copy / "docs")
    (copy / BUILDER.name).symlink_to(BUILDER)
    built = subprocess.run(
        ["make", "-o", f"{BUILDER.name}/installed", "docs"], cwd=copy, capture_output=True, text=True, check=False,
        timeout=300, env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    return copy / "site"


class Seen(HTMLParser):
    """What a page of HTML has: its anchors, where it links to, and what it loads by itself."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        self.anchors.update(has[name] for name in ("id", "name") if name in has)
        if tag == "a" and "href" in has:
            self.links.append(has["href"])
        loads = tag in ("script", "img", "iframe", "source") or (tag == "link" and has.get("rel") != "canonical")
        self.loads += [has[name] for name in ("src", "href") if loads and name in has]


def pages_of(site: Path) -> Iterator[tuple[Path, Seen]]:
    for path in sorted(site.rglob("*.html")):
        yield path, Seen(path)


def test_every_page_is_built(site: Path) -> None:
    made = {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"404.html"}
    wanted = {re.sub(r"README\.md$", "index.md", name) for name in in_nav()}
    assert made == {re.sub(r"\.md$", ".html", name) for name in wanted}


def test_every_link_of_the_site_leads_to_a_page_and_to_an_anchor_that_is_there(site: Path) -> None:
    seen = {path.resolve(): page for path, page in pages_of(site)}
    for path, page in seen.items():
        if path.name == "404.html":
            continue  # its links begin at the root of a server
        for link in page.links:
            if re.match(r"\w+:", link):
                continue
            target, _, anchor = unquote(link).partition("#")
            there = (path.parent / target).resolve() if target else path
            there = there / "index.html" if there.is_dir() else there
            assert there.exists(), f"{path.name} links to {link}"
            assert not anchor or anchor in seen[there].anchors, f"{path.name} links to {link}"


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for path, page in pages_of(site):
        assert not [what for what in page.loads if re.match(r"(\w+:)?//", what)], path.name
    for style in (site / "assets").rglob("*.css"):
        assert not re.findall(r"url\(['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style.name


@pytest.fixture(scope="module")
def seen_by() -> Iterator[Browser]:
    with browser.opened() as page:
        page.size(1280)
        yield page


def troubles_of(page: Browser) -> list[str]:
    """What a page complained about, and what it asked for that is no file of this machine."""
    return page.complaints + [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))]


@browser.needed
def test_opened_from_the_disk_it_draws_its_diagrams_and_asks_for_nothing(site: Path, seen_by: Browser) -> None:
    seen_by.open(site / "machine.html", READY)
    seen_by.run("document.querySelector('.mermaid').scrollIntoView()")
    seen_by.wait("document.querySelector('div.mermaid')?.shadowRoot?.querySelector('svg')")
    drawn = seen_by.run("document.querySelector('div.mermaid').shadowRoot.textContent")
    assert "epoch_begin" in drawn
    assert "Exhausted" in drawn
    assert troubles_of(seen_by) == []


SEARCHED = """(async () => {
    const hosts = () => [...document.querySelectorAll('*')].filter((each) => each.shadowRoot)
    const input = hosts().map((each) => each.shadowRoot.querySelector('input')).find(Boolean)
    if (!input) return false
    input.value = 'accumulation window'
    input.dispatchEvent(new Event('input', { bubbles: true, composed: true }))
    await new Promise((done) => setTimeout(done, 1000))
    return hosts().some((each) => each.shadowRoot.textContent.includes('Accumulation windows'))
})()"""
"""A program that asks for two words, and says after a second whether the section about them is among what was found."""


@browser.needed
def test_opened_from_the_disk_it_searches(site: Path, seen_by: Browser) -> None:
    seen_by.open(site / "reference" / "trainer.html", READY)
    for _ in range(30):  # what is asked for before the page listens is lost
        seen_by.press("/")
        if seen_by.run(SEARCHED):
            break
    else:
        pytest.fail("nothing was found")
    assert troubles_of(seen_by) == []


@browser.needed
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_is_dark_where_that_is_preferred(site: Path, seen_by: Browser, scheme: str) -> None:
    seen_by.prefer(scheme)
    seen_by.size(400)
    try:
        for name in ("index.html", "features.html", "comparison.html", "machine.html"):
            seen_by.open(site / name, f"localStorage.clear(); {READY}")
            assert seen_by.run("document.documentElement.scrollWidth") <= 400, name
            dark = seen_by.run("document.body.dataset.mdColorScheme") == "slate"
            assert dark == (scheme == "dark")
            assert troubles_of(seen_by) == []
    finally:
        seen_by.size(1280)
        seen_by.prefer("light")
