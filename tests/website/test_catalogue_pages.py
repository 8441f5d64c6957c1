"""The catalogue on the site: every entry has its section, its formula and its picture, and words stay words."""

import re
from functools import cache
from html import unescape
from pathlib import Path

import pytest

from fenchel.catalogue import ENTRIES, FAMILIES, NOTES, Entry
from fenchel.catalogue.parts import AbstractFiniteParts
from tests.website.html_page import HtmlPage
from website.pages import family_page, picture, with_tables


def of_the_site(site: Path, entry: Entry) -> Path:
    return site / family_page(entry.family).replace(".md", ".html")


@cache
def places(path: Path) -> set[str]:
    return HtmlPage(path).places


def test_every_family_has_a_page_of_its_own(site: Path) -> None:
    expected = {family_page(family).replace(".md", ".html") for family in FAMILIES}
    assert {path.relative_to(site).as_posix() for path in site.glob("catalogue/*.html")} == expected
    assert len(expected) == len(FAMILIES)


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_an_entry_has_its_section(site: Path, entry: Entry) -> None:
    path = of_the_site(site, entry)
    text = path.read_text(encoding="utf-8")
    assert entry.name in places(path)
    section = re.split(r"<h2 ", text.split(f'<h2 id="{entry.name}"')[1])[0]
    formula = re.sub(
        r"</?su[bp]>", "", unescape(section.split('<pre class="equation">')[1].split("</pre>")[0])
    )
    # Every index and power is drawn; nothing else changes.
    assert formula == re.sub(r"[_^{}]", "", entry.formula)
    assert f"fenchel catalogue {entry.name}" in unescape(re.sub(r"<[^>]*>", "", section))
    asked = entry.run(entry.estimators[0]).inferences if entry.estimators else ()
    drawable = any(isinstance(parts, AbstractFiniteParts) for parts in asked)
    assert ('<svg class="weights"' in section) == drawable


def test_a_transpose_is_no_part_of_an_index(site: Path) -> None:
    text = of_the_site(site, ENTRIES["gated-delta"]).read_text(encoding="utf-8")
    assert "k<sub>i</sub> k<sub>i</sub>ᵀ" in text


def test_a_family_says_what_is_to_be_known_of_all_of_it(site: Path) -> None:
    for family, note in NOTES.items():
        page = (site / family_page(family)).with_suffix(".html")
        assert note.split(":")[0] in unescape(page.read_text(encoding="utf-8"))


def test_the_overview_lists_every_entry() -> None:
    page = with_tables("<!-- catalogue: overview -->\nnothing yet\n<!-- end of catalogue -->")
    assert "nothing yet" not in page
    rows = {
        name: f'{family_page(one.family)}#{name}) | <code class="name">{name}</code> |'
        for name, one in ENTRIES.items()
    }
    assert [name for name, row in rows.items() if row not in page] == []


def test_a_picture_shows_more_weight_darker() -> None:
    drawn = picture({"first": [[0.0, 0.25, 0.75]], "exact": [[1.0]]}, "<three>")
    opacities = [float(one) for one in re.findall(r'fill-opacity="([\d.]+)"', drawn)]
    assert opacities == pytest.approx([0.0, 0.5, 0.75**0.5, 1.0], abs=1e-3)
    assert 'aria-label="&lt;three&gt;"' in drawn
    assert "query 1, key 2: 0.250" in drawn


def test_the_table_of_layers_stands_between_its_marks() -> None:
    page = with_tables("before\n<!-- catalogue: layers -->\nold\n<!-- end of catalogue -->\nafter\n")
    assert "old" not in page
    assert "| Scaled dot-product attention (Vaswani et al. 2017) | `Uniform()` | `ScaledDot()` |" in page
