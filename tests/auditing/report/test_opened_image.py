"""Heads of audits of images that open, in a real browser: the image, its patches and what is no patch."""

import base64
import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.examples import Packing, Picture, packed, unpacked
from fenchel.auditing.heads import HeadKey
from fenchel.auditing.report import render_html
from fenchel.drawing import short
from tests.auditing.report.samples import sample_report
from tests.browsing import MINUS

pytestmark = pytest.mark.browser

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
def report() -> AuditReport:
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
def html(report: AuditReport) -> str:
    return render_html(report)


def opened(visit: Any, html: str, **options: Any) -> Any:
    seen = visit(html, **options)
    seen.page.evaluate("location.hash = '#L1H2'")
    seen.page.locator("#opened .of-image").first.wait_for()
    return seen


def moved(one: Picture) -> list[float]:
    first, exact = (unpacked(side, Packing.FINE) for side in (one.first_order, one.exact))
    return [after - before for before, after in zip(first, exact, strict=True)]


def said(change: float) -> str:
    return f"{MINUS if change < 0 else '+'}{short(abs(change))}"


def test_patches_are_shaded_by_what_would_move(visit: Any, html: str, report: AuditReport) -> None:
    seen = opened(visit, html)
    cards = seen.page.locator("#opened .card")
    assert cards.count() == len(report.far_queries[KEY]) == 3
    for number, example in enumerate(sorted(report.far_queries[KEY], key=lambda one: one.rank, reverse=True)):
        assert example.picture is not None
        card, changes = cards.nth(number), moved(example.picture)
        images = card.locator(".of-image img")
        assert [images.nth(i).get_attribute("src") for i in range(images.count())] == [
            example.picture.image
        ] * 2
        assert images.first.evaluate("image => image.complete && image.naturalWidth") == 8
        patches = card.locator(".shaded [data-place]")
        assert patches.count() == ROWS * COLUMNS
        own = changes[EXTRA:]
        for place, change in enumerate(own):
            style = set((patches.nth(place).get_attribute("class") or "").split())
            assert {"more", "less"} & style == (
                {"more" if change > 0 else "less"} if abs(change) > 4e-4 else set()
            )
            words = patches.nth(place).get_attribute("aria-label")
            assert words == f"row {place // COLUMNS + 1}, column {place % COLUMNS + 1}: {said(change)}"
        largest = max(range(len(own)), key=lambda i: abs(own[i]))
        assert "by8" in (patches.nth(largest).get_attribute("class") or "")
        framed = [i for i in range(len(own)) if "query" in (patches.nth(i).get_attribute("class") or "")]
        assert framed == ([COLUMNS + 2] if example.token == "row 2, column 3" else [])  # noqa: S105
        extra = card.locator(".extra-tokens .token")
        for place, name in enumerate(("[CLS]", "extra token 2")):
            assert extra.nth(place).inner_text() == f"{name}{said(changes[place])}"
            asked = "query" in (extra.nth(place).get_attribute("class") or "")
            assert asked == (name == example.token)
        assert f"image {example.document}, position {example.position}" in card.inner_text()
        assert "window" not in card.inner_text()
    # The patches lie on the image, row by row.
    box = cards.first.locator(".shaded").bounding_box()
    last = cards.first.locator(".shaded [data-place]").last.bounding_box()
    assert box["width"] / box["height"] == pytest.approx(COLUMNS / ROWS, rel=0.02)
    assert last["x"] + last["width"] == pytest.approx(box["x"] + box["width"], abs=1)
    assert last["y"] + last["height"] == pytest.approx(box["y"] + box["height"], abs=1)
    assert last["width"] == pytest.approx(box["width"] / COLUMNS, abs=1)
    assert not seen.troubles


def test_a_patch_is_read_by_pointer_and_keyboard(visit: Any, html: str, report: AuditReport) -> None:
    seen = opened(visit, html)
    card = seen.page.locator("#opened .card").first
    example = max(report.far_queries[KEY], key=lambda one: one.rank)
    assert example.picture is not None
    first, exact = (
        unpacked(side, Packing.FINE) for side in (example.picture.first_order, example.picture.exact)
    )

    def reads(name: str, place: int) -> None:
        words = card.locator(".of-image .readout").inner_text()
        assert words.startswith(f"{name}: attention {short(first[place])}, exact {short(exact[place])}")
        assert words.endswith(said(exact[place] - first[place]))

    changes = moved(example.picture)
    most = max(range(POSITIONS), key=lambda place: abs(changes[place]))
    assert f"difference {said(changes[most])}" in card.locator(".of-image .readout").inner_text()
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
        ("ArrowUp", "row 1, column 4", 3),
        ("Home", "row 1, column 1", 0),
    ):
        seen.page.keyboard.press(pressed)
        reads(name, EXTRA + place)
    assert card.locator(".shaded [tabindex='0']").count() == 1
    assert not seen.troubles


@pytest.mark.parametrize("width", [1280, 400])
def test_images_fit_every_screen_and_a_dark_one(visit: Any, html: str, width: int) -> None:
    for scheme in ("light", "dark"):
        seen = opened(visit, html, width=width, color_scheme=scheme)
        assert seen.overflow() <= 0
        inside = "part => part.scrollWidth <= part.clientWidth + 1"
        lists = seen.page.locator("#opened .places > div")
        assert all(lists.nth(i).evaluate(inside) for i in range(lists.count()))


def test_an_audit_of_text_has_no_pictures(visit: Any) -> None:
    seen = visit(render_html(sample_report({"encoder_self": (1, 2)}, queries=40)))
    seen.page.evaluate("location.hash = '#L1H2'")
    seen.page.locator("#opened .card").first.wait_for()
    assert seen.page.locator("#opened .of-image").count() == 0
    assert "window 1" in seen.page.locator("#opened .card").first.inner_text()
