"""The site: every link and anchor resolves, nothing is loaded from elsewhere, and it is searched without a server."""

import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from fenchel.catalogue import ENTRIES, Entry
from fenchel.catalogue.parts import AbstractFiniteParts
from fenchel.catalogue.registry import FAMILIES, NOTES
from tests.pages import text_of
from website.pages import family_page, with_tables


class HtmlPage:
    """One page: what its anchors lead to, what a browser loads by itself, and its ids and names."""

    def __init__(self, path: Path) -> None:
        tags = re.findall(r"<[a-z][^>]*>", path.read_text(encoding="utf-8"))
        # A link element of these relations says something and loads nothing.
        said = re.compile(r'<link [^>]*rel="?(canonical|prev|next|alternate)')
        self.links = [target for tag in tags if tag.startswith("<a ") for target in attribute(tag, "href")]
        loading = [tag for tag in tags if re.match("<(script|img|iframe|source|video|link|object) ", tag)]
        loading = [tag for tag in loading if not said.match(tag)]
        self.loaded = [target for tag in loading for target in attribute(tag, "src|href|data")]
        self.places = {place for tag in tags for place in attribute(tag, "id|name")}


def attribute(tag: str, names: str) -> list[str]:
    """The values of the attributes of a tag that have one of these names."""
    values = re.findall(rf""" (?:{names})=(?:"([^"]*)"|'([^']*)'|([^\s>"']+))""", tag)
    return [unescape("".join(value)) for value in values]


@pytest.fixture(scope="module")
def known(site: Path) -> dict[Path, HtmlPage]:
    return {path: HtmlPage(path) for path in sorted(site.rglob("*.html"))}


def is_elsewhere(target: str) -> bool:
    return bool(urlsplit(target).scheme or urlsplit(target).netloc)


def test_every_link_and_anchor_resolves(known: dict[Path, HtmlPage]) -> None:
    assert len(known) > 40
    assert sum(len(page.links) for page in known.values()) > 2000
    lost = []
    for path, page in known.items():
        for target in page.links + page.loaded:
            if is_elsewhere(target):
                assert target in page.loaded or urlsplit(target).scheme == "https"
                continue
            parts = urlsplit(target)
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            if not file.is_file() or (place and file in known and place not in known[file].places):
                lost.append(f"{path.name}: {target}")
    assert lost == []


def test_nothing_is_loaded_from_elsewhere(site: Path, known: dict[Path, HtmlPage]) -> None:
    loaded = {target for page in known.values() for target in page.loaded}
    assert {target for target in loaded if is_elsewhere(target) and not target.startswith("data:")} == set()
    for style in site.rglob("*.css"):
        sources = re.findall(r"url\(([^)]*)\)|@import\s+(\S+)", style.read_text(encoding="utf-8"))
        named = {(url or name).strip("'\"") for url, name in sources}
        files = {name for name in named if not name.startswith("data:")}
        assert {name for name in files if is_elsewhere(name) or not (style.parent / name).exists()} == set()


def test_formulas_are_drawn_by_the_browser_and_none_is_left_as_it_was_written(site: Path) -> None:
    drawn, left = 0, []
    for path in sorted(site.rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        drawn += text.count("<math ")
        assert 'class="arithmatex"' not in text
        read = re.sub(r"<(script|style|pre|code)\b.*?</\1>", "", text, flags=re.DOTALL)
        words = text_of(read)
        left += [(path.name, found) for found in re.findall(r"\$\$|\\[A-Za-z]{2,}|:math:`", words)]
    assert left == []
    assert drawn > 150


def test_every_fact_is_where_its_number_says(site: Path) -> None:
    text = (site / "mathematics.html").read_text(encoding="utf-8")
    headed = {int(number) for number in re.findall(r"<h2[^>]*>Fact (\d+)\.", text)}
    (elsewhere,) = re.findall(r"Facts are numbered as in the code\.(.*?)</p>", text, re.DOTALL)
    named = {int(number) for number in re.findall(r"\b\d+\b", text_of(elsewhere))}
    assert headed | named == set(range(1, 16))
    assert headed & named == {2}  # of which two are a part


@pytest.mark.browser
def test_what_is_typed_is_searched_as_words_without_a_server(site: Path, browser: Any) -> None:
    page = browser.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto((site / "index.html").as_uri())
    for typed, first in (
        ("--resume", "resume"),
        ("how to install", "#install"),
        ("heads matter", "which-heads"),
        ("α", "mathematics.html"),
        ("alpha", "mathematics.html"),
    ):
        page.evaluate("document.querySelector('.md-search-result__list').replaceChildren()")
        page.fill("input[name=query]", typed)
        page.wait_for_selector(".md-search-result__item a", timeout=60_000)
        links = page.locator(".md-search-result__item").first.locator("a").all()
        assert first in " ".join(link.get_attribute("href") for link in links)
    assert complaints == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


_CUT = """(selector) => [...document.querySelectorAll(selector)]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.innerText.slice(0, 60))"""


@pytest.mark.browser
def test_commands_and_tables_of_results_are_whole_on_a_desk_and_what_scrolls_on_a_phone_says_so(
    site: Path, browser: Any
) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 800})
    wrapped = "!document.querySelector('table') || document.querySelector('.md-typeset__scrollwrap')"
    for name in ("index", "start-model", "sweeps", "faq"):
        page.goto((site / f"{name}.html").as_uri(), wait_until="domcontentloaded")
        page.wait_for_function(wrapped)
        parts = ".language-console code, .language-text code, .md-typeset__scrollwrap"
        assert page.evaluate(_CUT, parts) == []
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto((site / "mathematics.html").as_uri(), wait_until="domcontentloaded")
    assert page.evaluate(_CUT, ".formula")
    drawn = "getComputedStyle(document.querySelector('.formula')).backgroundImage"
    assert page.evaluate(drawn).count("linear-gradient") == 4
    # The problem itself is whole.
    beyond = "[...document.querySelectorAll('.formula')].slice(0, 2).map((one) => one.scrollWidth - one.clientWidth)"
    assert max(page.evaluate(beyond)) <= 0


@pytest.mark.browser
def test_no_page_is_wider_than_its_window(site: Path, browser: Any) -> None:
    """Every page on a phone, but one alone of those made of docstrings; on a desk what is wide: code and tables."""
    made = {site / "api" / "fenchel.html", site / "catalogue" / "textbook.html"}
    written = {path for path in site.rglob("*.html") if path.parent.name not in ("api", "catalogue")}
    wide = []
    for width, pages in ((390, written | made), (1400, {site / "families.html"} | made)):
        page = browser.new_page(viewport={"width": width, "height": 800})
        for path in sorted(pages):
            page.goto(path.as_uri(), wait_until="domcontentloaded")
            if page.evaluate("document.documentElement.scrollWidth") > width:
                wide.append((path.name, width))
        page.close()
    assert wide == []


def test_every_family_has_a_page_that_says_what_is_to_be_known_of_it(site: Path) -> None:
    pages = {site / family_page(family).replace(".md", ".html"): family for family in FAMILIES}
    assert {*site.glob("catalogue/*.html")} == pages.keys()
    for path, family in pages.items():
        assert NOTES.get(family, "").split(":")[0] in unescape(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_an_entry_has_its_section(site: Path, entry: Entry) -> None:
    text = (site / family_page(entry.family).replace(".md", ".html")).read_text(encoding="utf-8")
    section = text.split(f'<h2 id="{entry.name}"')[1].split("<h2 ")[0]
    equation = section.split('<pre class="equation">')[1].split("</pre>")[0]
    formula = re.sub(r"</?su[bp]>", "", unescape(equation))
    # Every index and power is drawn; nothing else changes.
    assert formula == re.sub(r"[_^{}]", "", entry.formula)
    assert f"fenchel catalogue {entry.name}" in text_of(section)
    asked = entry.run(entry.estimators[0]).inferences if entry.estimators else ()
    drawable = any(isinstance(parts, AbstractFiniteParts) for parts in asked)
    assert ('<svg class="weights"' in section) == drawable


def test_tables_stand_between_their_marks() -> None:
    page = with_tables("<!-- catalogue: overview -->\nold\n<!-- end of catalogue -->")
    rows = [f"{family_page(one.family)}#{name}) | <code " for name, one in ENTRIES.items()]
    assert [row for row in rows if row not in page] == []
    layers = with_tables("before\n<!-- catalogue: layers -->\nold\n<!-- end of catalogue -->\nafter\n")
    assert "old" not in page + layers
    assert "| Scaled dot-product attention (Vaswani et al. 2017) | `Uniform()` | `ScaledDot()` |" in layers
