"""Heads that open, in a real browser: by pointer, keyboard and address; what they show and how they are left."""

import base64
import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.examples import Packing, Passage, Picture, packed, unpacked
from fenchel.auditing.heads import HeadKey
from fenchel.auditing.report import render_html
from fenchel.auditing.report.plots import farthest_heads
from fenchel.drawing import decimal, short
from tests.auditing.report.samples import effects_of, sample_report
from tests.auditing.report.test_browser import SHAPE
from tests.pages import MINUS, cell

pytestmark = pytest.mark.browser

FIRST, OTHER = HeadKey("encoder_self", 2, 3), HeadKey("cross", 2, 3)


@pytest.fixture(scope="module")
def report() -> AuditReport:
    return sample_report(SHAPE, queries=40, twin=True, moved=True)


@pytest.fixture(scope="module")
def html(report: AuditReport) -> str:
    return render_html(report)


def open_head(seen: Any) -> str | None:
    """The title of the head that is open."""
    title = seen.page.locator("#opened-title")
    return title.inner_text() if title.count() and title.is_visible() else None


def focused(seen: Any) -> str:
    return seen.page.evaluate("document.activeElement.dataset.row ?? document.activeElement.id")


def waits_for(seen: Any, title: str | None) -> None:
    seen.page.wait_for_function(
        "title => (document.querySelector('#opened-title')?.textContent ?? null) === title", arg=title
    )


def opened(visit: Any, html: str, address: str, **options: Any) -> Any:
    """The page with the head of an address open."""
    seen = visit(html, **options)
    seen.page.evaluate(f"location.hash = '{address}'")
    seen.page.locator("#opened .card").first.wait_for()
    return seen


def moved(one: Picture | Passage) -> list[float]:
    first, exact = (unpacked(side, Packing.FINE) for side in (one.first_order, one.exact))
    return [after - before for before, after in zip(first, exact, strict=True)]


def said(change: float) -> str:
    return f"{MINUS if change < 0 else '+'}{short(abs(change))}"


def marks(style: str) -> set[str]:
    return {"more", "less"} & set(style.split())


def mark_of(change: float, least: float) -> set[str]:
    return set() if abs(change) < least else {"more" if change > 0 else "less"}


def test_a_click_opens_a_head_with_its_address_and_escape_returns_to_the_cell(visit: Any, html: str) -> None:
    seen = visit(html)
    assert not seen.page.locator("#opened").is_visible()
    seen.page.locator(cell("mean_error", 6)).click()
    waits_for(seen, "Encoder self-attention, layer 2, head 3")
    assert seen.page.evaluate("location.hash") == "#L2H3"
    assert focused(seen) == "opened-title"
    assert seen.page.locator("td.opened[aria-selected=true]").count() == 4
    seen.page.keyboard.press("Escape")
    waits_for(seen, None)
    assert seen.page.evaluate("location.hash") == ""
    assert focused(seen) == "6"
    assert seen.page.evaluate("document.activeElement.closest('table').dataset.metric") == "mean_error"
    assert seen.page.locator("td.opened").count() == 0
    seen.page.keyboard.press("Enter")
    waits_for(seen, "Encoder self-attention, layer 2, head 3")
    seen.page.get_by_role("button", name="close").click()
    waits_for(seen, None)


def test_an_address_opens_its_head_and_back_closes_what_was_opened_here(visit: Any, html: str) -> None:
    seen = visit(html)
    address = seen.page.url
    seen.page.goto("about:blank")
    seen.page.goto(address + "#cross-L2H3")
    waits_for(seen, "Cross-attention, layer 2, head 3")
    # Nothing to go back to on this page: closing leaves the address without the head.
    seen.page.keyboard.press("Escape")
    waits_for(seen, None)
    assert seen.page.url == address
    seen.page.locator(cell("total_variation", 2)).click()
    waits_for(seen, "Encoder self-attention, layer 1, head 3")
    seen.page.get_by_role("button", name="Next:").click()
    waits_for(seen, "Encoder self-attention, layer 1, head 4")
    seen.page.go_back()
    waits_for(seen, None)
    seen.page.goto(address + "#L99H1")
    assert open_head(seen) is None
    seen.page.locator("#heads-table tbody tr").nth(1).get_by_role("link").click()
    waits_for(seen, "Encoder self-attention, layer 1, head 2")
    seen.page.locator("nav a[href='#table']").click()
    waits_for(seen, None)
    assert seen.page.evaluate("location.hash") == "#table"


def test_an_open_head_shows_its_numbers_beside_those_of_the_twin(
    visit: Any, html: str, report: AuditReport
) -> None:
    seen = opened(visit, html, "#L2H3")
    assert report.twin is not None
    row = seen.page.locator("table.numbers-of-head tbody tr").nth(2).locator("th, td").all_text_contents()
    record, twin = (source.record(FIRST) for source in (report.statistics, report.twin))
    expected = [decimal(record[f"total_variation_{name}"]) for name in ("mean", "p50", "p95", "max")]  # pyright: ignore[reportArgumentType]
    assert row[:6] == ["Total variation", *expected, decimal(twin["total_variation_mean"])]  # pyright: ignore[reportArgumentType]
    above = sum(head["total_variation_mean"] > record["total_variation_mean"] for head in report.heads)  # pyright: ignore[reportOperatorIssue]
    assert row[-1] == f"{above + 1} of 20"
    assert seen.page.locator(".histogram svg path.twin-bars").count() == 3
    assert short(record["predicted_deviation_mean"]) in seen.page.locator(".beside").inner_text()  # pyright: ignore[reportArgumentType]
    assert "fortune" in seen.page.locator(".pattern").inner_text()
    # Its sentences are shaded by what would move.
    shown = report.far_queries[FIRST]
    cards = seen.page.locator("#opened .card")
    assert cards.count() == len(shown) == 3
    for place, example in enumerate(shown):
        tokens = cards.nth(place).locator(".sentence .token")
        assert example.passage is not None
        changes = moved(example.passage)
        classes = [tokens.nth(i).get_attribute("class") or "" for i in range(tokens.count())]
        assert [marks(style) for style in classes] == [mark_of(change, 0.004) for change in changes]
        assert [i for i, style in enumerate(classes) if "query" in style] == [example.position - 1]
        most = max(range(len(changes)), key=lambda i: abs(changes[i]))
        assert "by8" in classes[most]
        # What colour and hatching say is there as a number too.
        assert tokens.nth(most).locator("sub").inner_text() == said(changes[most])
    # Maps show the twin and the difference, in colours that differ in more than hue.
    own, other = (source.mean("mean_error", *FIRST) for source in (report.statistics, report.twin))
    head = seen.page.locator(cell("mean_error", 6))
    plain = (head.get_attribute("class"), head.text_content())
    seen.page.select_option("#heat-source", "twin")
    assert head.text_content() == short(other)
    seen.page.select_option("#heat-source", "difference")
    assert head.text_content() == said(own - other)
    assert ("more" if own > other else "less") in (head.get_attribute("class") or "")
    style = "name => getComputedStyle(document.querySelector(`.legend.change i.${name}.by8`)).backgroundImage"
    assert seen.page.evaluate(style, "more") == "none"
    assert "repeating-linear-gradient" in seen.page.evaluate(style, "less")
    seen.page.select_option("#heat-source", "model")
    assert (head.get_attribute("class"), head.text_content()) == plain


def test_the_attention_in_a_sentence_is_read_by_pointer_and_keyboard(
    visit: Any, html: str, report: AuditReport
) -> None:
    seen = opened(visit, html, "#cross-L2H3")
    matrix = report.matrices[OTHER]
    cells = seen.page.locator("table.attention tbody td")
    assert cells.count() == 12 * 13
    first, exact = (unpacked(side, Packing.ROUGH) for side in (matrix.first_order, matrix.exact))

    def said(place: int) -> None:
        words = seen.page.locator(".readout").inner_text()
        assert f"attention {short(first[place])}, exact {short(exact[place])}" in words

    cells.nth(13 + 2).hover()
    said(13 + 2)
    assert seen.page.locator(".readout").inner_text().startswith("is (2) on a (3)")
    cells.nth(0).focus()
    for key, place in (("ArrowRight", 1), ("ArrowDown", 14), ("End", 25), ("Home", 13), ("ArrowUp", 0)):
        seen.page.keyboard.press(key)
        said(place)

    def styles() -> list[str]:
        return seen.page.evaluate(
            "[...document.querySelectorAll('table.attention tbody td')].map(c => c.className)"
        )

    assert {style.split()[0] for style in styles() if style} == {"more", "less"}
    for view, weights in (("Attention", first), ("Exact", exact)):
        seen.page.locator(".matrix .choice").get_by_text(view, exact=True).click()
        found = [int(style.removeprefix("q")) for style in styles()]
        strongest = max(range(len(weights)), key=weights.__getitem__)
        assert found[strongest] == max(found)
        in_order = [level for _, level in sorted(zip(weights, found, strict=True))]
        assert in_order == sorted(in_order)


def test_the_attention_in_a_sentence_is_drawn_as_lines(visit: Any, html: str, report: AuditReport) -> None:
    seen = opened(visit, html, "#cross-L2H3")
    seen.page.locator(".matrix .choice").get_by_text("Lines", exact=True).click()
    seen.page.locator(".matrix .choice").get_by_text("Exact", exact=True).click()
    assert seen.page.locator("table.attention").count() == 0
    exact = unpacked(report.matrices[OTHER].exact, Packing.ROUGH)
    lines = seen.page.locator("svg.lines path")
    assert lines.count() == sum(weight >= 0.02 for weight in exact)
    tokens = seen.page.locator("svg.lines text")
    assert tokens.count() == 12 + 13
    tokens.nth(2).hover()
    of_third = exact[2 * 13 : 3 * 13]
    shown = seen.page.locator("svg.lines path:not(.aside)")
    assert shown.count() == sum(weight >= 0.02 for weight in of_third)
    assert short(max(of_third)) in seen.page.locator(".readout").inner_text()
    seen.page.mouse.move(5, 5)
    assert shown.count() == lines.count()
    tokens.nth(0).focus()
    for key, side, place in (("ArrowDown", "query", 1), ("ArrowRight", "key", 1), ("ArrowUp", "key", 0)):
        seen.page.keyboard.press(key)
        focus = seen.page.evaluate("({...document.activeElement.dataset})")
        assert focus == {"side": side, "place": str(place)}
    seen.page.locator(".matrix .choice").get_by_text("Exact − attention", exact=True).click()
    styles = {lines.nth(i).get_attribute("class") for i in range(lines.count())}
    assert styles == {"gains", "loses"}


def test_commands_can_be_copied_and_points_of_the_swap_open_heads(visit: Any, report: AuditReport) -> None:
    report.effects = effects_of(report)
    seen = visit(render_html(report), permissions=["clipboard-read", "clipboard-write"])
    report.effects = None
    button = seen.page.locator("button.copy").first
    command = seen.page.locator(f"#{button.get_attribute('data-of')}").inner_text()
    button.click()
    seen.page.wait_for_function("document.querySelector('button.copy').textContent !== 'copy'")
    copied = (
        "navigator.clipboard.readText()" if button.inner_text() == "copied" else "getSelection().toString()"
    )
    assert seen.page.evaluate(copied) == command
    assert seen.page.locator("#effects .scatter").count() == 2
    seen.page.locator("#effects .scatter a").nth(6).focus()
    seen.page.keyboard.press("Enter")
    waits_for(seen, "Encoder self-attention, layer 2, head 3")
    assert "0.070 (0.056 to 0.084)" in seen.page.locator(".beside").inner_text()


ROWS, COLUMNS, EXTRA = 3, 4, 2
POSITIONS = EXTRA + ROWS * COLUMNS
KEY = HeadKey("encoder_self", 1, 2)


def picture(seed: int) -> Picture:
    generator = torch.Generator().manual_seed(seed)
    weights = (2 * torch.randn(2, POSITIONS, generator=generator)).softmax(-1)
    file = io.BytesIO()
    Image.new("RGB", (8, 6), (40 * seed, 90, 200)).save(file, "PNG")
    image = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return Picture(image, ROWS, COLUMNS, EXTRA, *(packed(side, Packing.FINE) for side in weights))


@pytest.fixture(scope="module")
def pictured() -> AuditReport:
    made = sample_report({"encoder_self": (2, 2)}, queries=40, moved=True, reads="images")
    for key, examples in made.far_queries.items():
        made.far_queries[key] = tuple(
            replace(
                example,
                passage=None,
                context="",
                context_token=None,
                token=("[CLS]", "row 2, column 3", "extra token 2")[number],
                position=(1, EXTRA + COLUMNS + 3, 2)[number],
                picture=picture(1 + number),
            )
            for number, example in enumerate(examples)
        )
    return made


@pytest.fixture(scope="module")
def pictured_html(pictured: AuditReport) -> str:
    return render_html(pictured)


def test_patches_are_shaded_by_what_would_move(visit: Any, pictured_html: str, pictured: AuditReport) -> None:
    seen = opened(visit, pictured_html, "#L1H2")
    cards = seen.page.locator("#opened .card")
    examples = sorted(pictured.far_queries[KEY], key=lambda one: one.rank, reverse=True)
    assert cards.count() == len(examples) == 3
    for number, example in enumerate(examples):
        assert example.picture is not None
        card, changes = cards.nth(number), moved(example.picture)
        images = card.locator(".of-image img")
        assert images.first.get_attribute("src") == example.picture.image
        assert images.first.evaluate("image => image.complete && image.naturalWidth") == 8
        patches, own = card.locator(".shaded [data-place]"), changes[EXTRA:]
        styles = [patches.nth(place).get_attribute("class") or "" for place in range(patches.count())]
        assert [marks(style) for style in styles] == [mark_of(change, 4e-4) for change in own]
        assert "by8" in styles[max(range(len(own)), key=lambda i: abs(own[i]))]
        framed = [place for place, style in enumerate(styles) if "query" in style]
        assert framed == ([COLUMNS + 2] if example.token == "row 2, column 3" else [])  # noqa: S105
        assert patches.nth(5).get_attribute("aria-label") == f"row 2, column 2: {said(own[5])}"
        extra = card.locator(".extra-tokens .token")
        for place, name in enumerate(("[CLS]", "extra token 2")):
            assert extra.nth(place).inner_text() == f"{name}{said(changes[place])}"
            assert ("query" in (extra.nth(place).get_attribute("class") or "")) == (name == example.token)
        assert f"image {example.document}, position {example.position}" in card.inner_text()
    # The patches lie on the image, row by row.
    box = cards.first.locator(".shaded").bounding_box()
    last = cards.first.locator(".shaded [data-place]").last.bounding_box()
    assert box["width"] / box["height"] == pytest.approx(COLUMNS / ROWS, rel=0.02)
    assert last["x"] + last["width"] == pytest.approx(box["x"] + box["width"], abs=1)
    assert last["y"] + last["height"] == pytest.approx(box["y"] + box["height"], abs=1)
    assert last["width"] == pytest.approx(box["width"] / COLUMNS, abs=1)
    assert opened(visit, pictured_html, "#L1H2", width=400, color_scheme="dark").overflow() <= 0


def test_the_cards_of_the_farthest_heads_have_the_picture_of_their_query(
    visit: Any, pictured_html: str, pictured: AuditReport
) -> None:
    images = visit(pictured_html).page.locator("#farthest .card .picture .of-image")
    expected: list[Any] = [card["example"].picture for card in farthest_heads(pictured)]
    found = [images.nth(place).locator("img").first for place in range(images.count())]
    assert [image.get_attribute("src") for image in found] == [picture.image for picture in expected]


def test_a_patch_is_read_by_pointer_and_keyboard(
    visit: Any, pictured_html: str, pictured: AuditReport
) -> None:
    seen = opened(visit, pictured_html, "#L1H2")
    card = seen.page.locator("#opened .card").first
    example = max(pictured.far_queries[KEY], key=lambda one: one.rank)
    assert example.picture is not None
    first, exact = (
        unpacked(side, Packing.FINE) for side in (example.picture.first_order, example.picture.exact)
    )

    def reads(name: str, place: int) -> None:
        words = card.locator(".of-image .readout").inner_text()
        assert words.startswith(f"{name}: attention {short(first[place])}, exact {short(exact[place])}")
        assert words.endswith(said(exact[place] - first[place]))

    patches = card.locator(".shaded [data-place]")
    patches.nth(5).hover()
    reads("row 2, column 2", EXTRA + 5)
    card.locator(".extra-tokens .token").nth(1).hover()
    reads("extra token 2", 1)
    patches.first.focus()
    for pressed, name, place in (
        ("ArrowRight", "row 1, column 2", 1),
        ("ArrowDown", "row 2, column 2", 5),
        ("End", "row 2, column 4", 7),
        ("ArrowUp", "row 1, column 4", 3),
        ("Home", "row 1, column 1", 0),
    ):
        seen.page.keyboard.press(pressed)
        reads(name, EXTRA + place)
    assert card.locator(".shaded [tabindex='0']").count() == 1
