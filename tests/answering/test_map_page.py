"""Pages and figures of attention maps: whole, escaped, without network, words and cells of images."""

from __future__ import annotations

import base64
import io
import re

import pytest
import torch

from fenchel.answering import AttentionMap, Grid, ShownAnswer, write_shown
from fenchel.answering.map_page import PAGE_FILE, render_page

Image = pytest.importorskip("PIL.Image")


def of_words(solved: bool = True) -> AttentionMap:
    weights = torch.tensor([[0.7, 0.3], [0.004, 0.996]], dtype=torch.float64)
    return AttentionMap(
        "<script>alert(1)</script> $x$",
        ("a", "$b"),
        ("<b>c</b>", "d"),
        weights,
        weights.flip(0),
        torch.tensor([0.7, 0.7], dtype=torch.float64),
        torch.tensor([1e-9, 0.0], dtype=torch.float64),
        torch.tensor([solved, True]),
        "exact",
    )


def of_cells() -> AttentionMap:
    written = io.BytesIO()
    Image.new("RGB", (24, 16), "white").save(written, "PNG")
    uri = f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"
    weights = torch.eye(6, dtype=torch.float64)[:5]
    return AttentionMap(
        "cells",
        tuple("abcde"),
        tuple("123456"),
        weights,
        weights,
        torch.zeros(5, dtype=torch.float64),
        torch.zeros(5, dtype=torch.float64),
        torch.ones(5, dtype=torch.bool),
        "first_order",
        Grid(uri, 2, 3),
    )


def test_a_page_and_a_figure_an_answer_are_written(tmp_path):
    shown = [ShownAnswer("q & a", "<i>x</i>", (of_words(), of_words())), ShownAnswer("i", "c", (of_cells(),))]
    page = write_shown(shown, tmp_path / "new", title="a <run>")
    assert page == tmp_path / "new" / PAGE_FILE
    for number in (1, 2):
        with Image.open(tmp_path / "new" / f"attention-{number}.png") as image:
            assert min(image.size) > 150
    assert write_shown(shown, tmp_path / "new", title="again") == page


def test_everything_is_escaped_and_nothing_is_fetched():
    text = render_page([ShownAnswer("q", "a", (of_words(solved=False), of_cells()))], title="<t>")
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "&lt;b&gt;c&lt;/b&gt;" in text
    assert not re.search(r"""(href|src)="(?!data:)""", text)
    assert "default-src 'none'" in text
    assert "not solved" in text
    assert text.count("<svg") == 10
    assert text.count("≤ 1e-9") == 1
    assert 'title="a → &lt;b&gt;c&lt;/b&gt;: 0.7000">.700<' in text


def test_cells_without_weight_are_dark_and_the_heaviest_is_as_it_was():
    text = render_page([ShownAnswer("q", "a", (of_cells(),))], title="t")
    drawing = text.split("<svg")[1]
    assert re.findall(r'fill-opacity="([\d.]+)"', drawing) == ["0.0", *["0.86"] * 5]
