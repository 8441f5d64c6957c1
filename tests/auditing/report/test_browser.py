"""The page in a real browser: what a pointer, a keyboard and a narrow screen make of it."""

import base64
import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

from fenchel.arguments import Kind
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.examples import Packing, Passage, Picture, packed, unpacked
from fenchel.auditing.heads import HeadKey
from fenchel.auditing.report import render_html
from fenchel.auditing.report.plots import farthest_heads
from fenchel.drawing import decimal, short
from tests.auditing.report.samples import HOSTILE, effects_of, sample_report
from tests.auditing.report.test_html import cells_of, rows_of
from tests.pages import MINUS, cell

pytestmark = pytest.mark.browser

SHAPE: dict[Kind, tuple[int, int]] = {"encoder_self": (3, 4), "cross": (2, 4)}


@pytest.fixture(scope="module")
def report() -> AuditReport:
    return sample_report(SHAPE, queries=40, unbounded=True, missed=1)


def test_a_long_table_is_shown_in_full_when_asked(visit: Any) -> None:
    seen = visit(render_html(sample_report({"decoder_self": (15, 14)}, queries=2)))
    assert len(seen.column(0)) == 200
    seen.page.get_by_role("button", name="Show all 210").click()
    assert len(seen.column(0)) == 210


def test_script_and_server_write_the_same_numbers_and_colours(visit: Any, report: AuditReport) -> None:
    """Infinity among them, whose mean and colour are those that need care."""
    html = render_html(report)
    seen = visit(html)
    rows = seen.page.locator("#heads-table tbody tr")
    shown = [rows.nth(i).locator("td").all_text_contents() for i in range(rows.count())]
    assert shown == rows_of(html)
    seen.page.select_option("#heat-statistic", "max")
    seen.page.select_option("#heat-statistic", "")
    for (metric, index), (style, text) in cells_of(html).items():
        found = seen.page.locator(cell(metric, index))
        assert (found.get_attribute("class"), found.text_content()) == (style, text)


def test_a_heat_map_is_read_by_pointer_and_keyboard(visit: Any, report: AuditReport) -> None:
    seen = visit(render_html(report))
    key = report.statistics.keys()[6]
    assert key == HeadKey("encoder_self", 2, 3)
    tooltip = seen.page.locator("#tooltip")
    assert not tooltip.is_visible()
    seen.page.locator(cell("total_variation", 6)).hover()
    *words, _, last = tooltip.inner_text().split("\n")
    assert last == "Click or press Enter to open the head"
    assert words[:2] == ["Encoder self-attention, layer 2, head 3", "Total variation"]
    record: Any = report.statistics.record(key)
    names = {"mean": "mean", "median": "p50", "95th percentile": "p95", "maximum": "max"}
    expected = {name: decimal(record[f"total_variation_{of}"]) for name, of in names.items()}
    assert dict(zip(words[2::2], words[3::2], strict=True)) == expected | {"queries": "40"}
    seen.page.mouse.move(5, 5)
    assert not tooltip.is_visible()
    seen.page.locator("#heat-statistic").focus()
    for pressed, place in (
        ("Tab", "layer 1, head 1"),
        ("ArrowRight", "layer 1, head 2"),
        ("ArrowDown", "layer 2, head 2"),
        ("End", "layer 2, head 4"),
        ("ArrowUp", "layer 1, head 4"),
        ("Home", "layer 1, head 1"),
    ):
        seen.page.keyboard.press(pressed)
        assert place in tooltip.inner_text()
    seen.page.keyboard.press("Escape")
    assert not tooltip.is_visible()


def test_the_table_is_sorted_and_filtered_and_statistics_are_chosen(visit: Any, report: AuditReport) -> None:
    """Equals keep their order, and infinity is above all numbers."""
    seen = visit(render_html(report))
    header = seen.page.locator("#heads-table th[data-metric=certificate]")
    for press, order, first in (
        (header.locator("button").click, "descending", 0),
        (lambda: header.locator("button").press("Enter"), "ascending", -1),
    ):
        press()
        assert header.get_attribute("aria-sort") == order
        assert seen.column(7)[first] == "∞"
        shown = [float(one.replace("∞", "inf")) for one in seen.column(7)]
        assert shown == sorted(shown, reverse=order == "descending")
    seen.page.locator("#heads-table th[data-column=head] button").click()
    seen.page.locator("#heads-table th[data-column=layer] button").click()
    assert header.get_attribute("aria-sort") == "none"
    places = list(zip(seen.column(1), seen.column(2), strict=True))
    assert places == sorted(places)

    key = report.statistics.keys()[0]
    seen.page.select_option("#heat-statistic", "max")
    most = report.statistics.of(*key)["mean_error_max"]
    assert seen.page.locator(cell("mean_error", 0)).text_content() == short(most)
    seen.page.select_option("#table-statistic", "p95")
    assert decimal(report.statistics.of(*key)["certificate_p95"]) in seen.column(7)
    panels = seen.page.locator(".panels.layers:visible")
    assert panels.first.get_attribute("data-metric") == "relative_deviation"
    seen.page.locator("fieldset[data-group=by-layer]").get_by_text("Error of the mean").click()
    assert {panels.nth(i).get_attribute("data-metric") for i in range(panels.count())} == {"mean_error"}

    seen.page.select_option("#filter-kind", label="Cross-attention")
    seen.page.select_option("#filter-layer", "2")
    assert (seen.column(0), seen.column(1)) == (["Cross"] * 4, ["2"] * 4)
    assert seen.page.locator("#shown").inner_text() == "4 of 20 heads shown"


@pytest.mark.parametrize("width", [1280, 400])
def test_hostile_and_long_names_do_nothing_and_nothing_sticks_out(visit: Any, width: int) -> None:
    shape: dict[Kind, tuple[int, int]] = {"encoder_self": (2, 12), "decoder_self": (2, 8), "cross": (1, 1)}
    said: dict[str, Any] = dict.fromkeys(("token", "model", "texts"), HOSTILE + 60 * "very")
    report = sample_report(shape, queries=10, unbounded=True, missed=2, twin=True, moved=True, **said)
    seen = visit(render_html(report), width=width)
    seen.page.locator(cell("mean_error", 0)).hover()
    assert seen.page.locator("h1").inner_text() == said["model"]
    assert seen.page.locator(".weights code").first.inner_text() == said["model"]
    assert seen.overflow() == 0
    seen.page.evaluate("location.hash = '#L1H1'")
    assert seen.page.locator(".sentence .token").first.inner_text().startswith(said["model"])
    seen.page.locator("table.attention tbody td").first.hover()
    assert HOSTILE in seen.page.locator(".readout").inner_text()
    assert seen.overflow() == 0
    assert seen.page.locator("img").count() == 0


def test_the_watch_sees_what_sticks_out_errors_requests_and_dialogs(visit: Any) -> None:
    seen = visit(
        "<!doctype html><link rel=icon href='data:,'><div style='width:2000px'>wide</div>"
        "<img src='http://127.0.0.1:9/x.png'>"
        "<script>alert('a'); console.error('b'); throw new Error('c')</script>"
    )
    seen.page.wait_for_load_state()
    kinds = {trouble.split(":")[0] for trouble in seen.troubles}
    assert kinds == {"console", "error", "request", "dialog"}
    seen.troubles.clear()
    assert seen.overflow() > 0


def test_the_page_is_readable_without_scripts_and_dark_but_not_on_paper(
    visit: Any, report: AuditReport
) -> None:
    html, ink = render_html(report), "getComputedStyle(document.body).color"
    light = visit(html, java_script_enabled=False, color_scheme="light")
    assert not light.page.locator("#heat-statistic").is_visible()
    assert light.page.locator("#heads-table tbody tr").count() == 20
    assert light.page.locator(cell("certificate", 0)).is_visible()
    assert not light.page.locator("#opened").is_visible()
    dark = visit(html, color_scheme="dark")
    assert light.page.evaluate(ink) != dark.page.evaluate(ink)
    dark.page.emulate_media(media="print", color_scheme="dark")
    assert light.page.evaluate(ink) == dark.page.evaluate(ink)


FIRST, OTHER = HeadKey("encoder_self", 2, 3), HeadKey("cross", 2, 3)


@pytest.fixture(scope="module")
def opening() -> AuditReport:
    return sample_report(SHAPE, queries=40, twin=True, moved=True)


@pytest.fixture(scope="module")
def page_html(opening: AuditReport) -> str:
    return render_html(opening)


def waits_for(seen: Any, title: str | None) -> None:
    seen.page.wait_for_function(
        "title => (document.querySelector('#opened-title')?.textContent ?? null) === title", arg=title
    )


def opened(visit: Any, page_html: str, address: str, **options: Any) -> Any:
    """The page with the head of an address open."""
    seen = visit(page_html, **options)
    seen.page.evaluate(f"location.hash = '{address}'")
    seen.page.locator("#opened .card").first.wait_for()
    return seen


def moved(one: Picture | Passage) -> list[float]:
    first, exact = (unpacked(side, Packing.FINE) for side in (one.first_order, one.exact))
    return [after - before for before, after in zip(first, exact, strict=True)]


def said(change: float) -> str:
    return f"{MINUS if change < 0 else '+'}{short(abs(change))}"


def marks(style: str | None) -> set[str]:
    return {"more", "less"} & set((style or "").split())


def mark_of(change: float, least: float) -> set[str]:
    return set() if abs(change) < least else {"more" if change > 0 else "less"}


def test_a_click_opens_a_head_with_its_address_and_escape_returns_to_the_cell(
    visit: Any, page_html: str
) -> None:
    seen = visit(page_html)
    seen.page.locator(cell("mean_error", 6)).click()
    waits_for(seen, "Encoder self-attention, layer 2, head 3")
    assert seen.page.evaluate("location.hash") == "#L2H3"
    assert seen.page.evaluate("document.activeElement.id") == "opened-title"
    assert seen.page.locator("td.opened[aria-selected=true]").count() == 4
    seen.page.keyboard.press("Escape")
    waits_for(seen, None)
    assert seen.page.evaluate("location.hash") == ""
    focused = seen.page.evaluate(
        "document.activeElement.matches('[data-metric=mean_error] [data-row=\"6\"]')"
    )
    assert focused
    assert seen.page.locator("td.opened").count() == 0
    seen.page.keyboard.press("Enter")
    waits_for(seen, "Encoder self-attention, layer 2, head 3")
    seen.page.get_by_role("button", name="close").click()
    waits_for(seen, None)


def test_an_address_opens_its_head_and_back_closes_what_was_opened_here(visit: Any, page_html: str) -> None:
    seen = visit(page_html)
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
    waits_for(seen, None)
    seen.page.locator("#heads-table tbody tr").nth(1).get_by_role("link").click()
    waits_for(seen, "Encoder self-attention, layer 1, head 2")


def test_an_open_head_shows_its_numbers_beside_those_of_the_twin(
    visit: Any, page_html: str, opening: AuditReport
) -> None:
    seen = opened(visit, page_html, "#L2H3")
    assert opening.twin is not None
    row = seen.page.locator("table.numbers-of-head tbody tr").nth(2).locator("th, td").all_text_contents()
    records: Any = [source.record(FIRST) for source in (opening.statistics, opening.twin)]
    record, twin = records
    expected = [decimal(record[f"total_variation_{name}"]) for name in ("mean", "p50", "p95", "max")]
    assert row[:6] == ["Total variation", *expected, decimal(twin["total_variation_mean"])]
    above = sum(
        (head["total_variation_mean"] or 0) > record["total_variation_mean"] for head in opening.heads
    )
    assert row[-1] == f"{above + 1} of 20"
    assert seen.page.locator(".histogram svg path.twin-bars").count() == 3
    assert short(record["predicted_deviation_mean"]) in seen.page.locator(".beside").inner_text()
    assert "fortune" in seen.page.locator(".pattern").inner_text()
    # Its sentences are shaded by what would move.
    shown = opening.far_queries[FIRST]
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
    own, other = (source.mean("mean_error", *FIRST) for source in (opening.statistics, opening.twin))
    head = seen.page.locator(cell("mean_error", 6))
    for source, text in (("twin", short(other)), ("difference", said(own - other)), ("model", short(own))):
        seen.page.select_option("#heat-source", source)
        assert head.text_content() == text
        assert bool(marks(head.get_attribute("class"))) == (source == "difference")
    style = "name => getComputedStyle(document.querySelector(`.legend.change i.${name}.by8`)).backgroundImage"
    assert seen.page.evaluate(style, "more") == "none"
    assert "repeating-linear-gradient" in seen.page.evaluate(style, "less")


def test_the_attention_in_a_sentence_is_read_by_pointer_and_keyboard(
    visit: Any, page_html: str, opening: AuditReport
) -> None:
    seen = opened(visit, page_html, "#cross-L2H3")
    matrix = opening.matrices[OTHER]
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
        in_order = [level for _, level in sorted(zip(weights, found, strict=True))]
        assert in_order == sorted(in_order) != in_order[::-1]

    # And it is drawn as lines.
    seen.page.locator(".matrix .choice").get_by_text("Lines", exact=True).click()
    lines = seen.page.locator("svg.lines path")
    assert lines.count() == sum(weight >= 0.02 for weight in exact)
    tokens = seen.page.locator("svg.lines text")
    assert tokens.count() == 12 + 13
    tokens.nth(2).hover()
    shown = seen.page.locator("svg.lines path:not(.aside)")
    assert shown.count() == sum(weight >= 0.02 for weight in exact[2 * 13 : 3 * 13])
    tokens.nth(0).focus()
    for key, side, place in (("ArrowDown", "query", 1), ("ArrowRight", "key", 1), ("ArrowUp", "key", 0)):
        seen.page.keyboard.press(key)
        focus = seen.page.evaluate("({...document.activeElement.dataset})")
        assert focus == {"side": side, "place": str(place)}
    seen.page.locator(".matrix .choice").get_by_text("Exact − attention", exact=True).click()
    assert {lines.nth(i).get_attribute("class") for i in range(lines.count())} == {"gains", "loses"}


def test_commands_can_be_copied_and_points_of_the_swap_open_heads(visit: Any, opening: AuditReport) -> None:
    opening.effects = effects_of(opening)
    seen = visit(render_html(opening), permissions=["clipboard-read", "clipboard-write"])
    opening.effects = None
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


def test_patches_are_shaded_by_what_would_move_and_read_by_pointer_and_keyboard(
    visit: Any, pictured: AuditReport
) -> None:
    html = render_html(pictured)
    seen = opened(visit, html, "#L1H2", width=1000)
    expected: list[Any] = [card["example"].picture for card in farthest_heads(pictured)]
    sources = "all => all.map(one => one.querySelector('img').src)"
    images = seen.page.locator("#farthest .card .picture .of-image").evaluate_all(sources)
    assert images == [picture.image for picture in expected]
    cards = seen.page.locator("#opened .card")
    examples = sorted(pictured.far_queries[KEY], key=lambda one: one.rank, reverse=True)
    assert cards.count() == len(examples) == 3
    for number, example in enumerate(examples):
        assert example.picture is not None
        card, changes = cards.nth(number), moved(example.picture)
        image = card.locator(".of-image img").first
        assert image.get_attribute("src") == example.picture.image
        assert image.evaluate("image => image.complete && image.naturalWidth") == 8
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
    # The patches lie on the image, row by row.
    box, last = (
        cards.first.locator(place).last.bounding_box() for place in (".shaded", ".shaded [data-place]")
    )
    for side, length, count in (("x", "width", COLUMNS), ("y", "height", ROWS)):
        assert last[length] == pytest.approx(box[length] / count, abs=1)
        assert last[side] + last[length] == pytest.approx(box[side] + box[length], abs=1)
    assert opened(visit, html, "#L1H2", width=400, color_scheme="dark").overflow() <= 0
    picture: Any = examples[0].picture
    first, exact = (unpacked(side, Packing.FINE) for side in (picture.first_order, picture.exact))

    def reads(name: str, place: int) -> None:
        words = cards.first.locator(".of-image .readout").inner_text()
        assert words.startswith(f"{name}: attention {short(first[place])}, exact {short(exact[place])}")
        assert words.endswith(said(exact[place] - first[place]))

    cards.first.locator(".extra-tokens .token").nth(1).hover()
    reads("extra token 2", 1)
    patches = cards.first.locator(".shaded [data-place]")
    patches.nth(5).hover()
    reads("row 2, column 2", EXTRA + 5)
    patches.first.focus()
    for pressed, name, place in (("ArrowRight", "row 1, column 2", 1), ("ArrowDown", "row 2, column 2", 5)):
        seen.page.keyboard.press(pressed)
        reads(name, EXTRA + place)
