"""Formulas in TeX as MathML that browsers draw, and what stands between marks of a page."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from fenchel.errors import InputError
from website.marks import between_marks
from website.mathml import formula, with_mathml


@pytest.mark.parametrize(
    ("tex", "drawn"),
    [
        (r"\mathbb E", "\U0001d53c"),
        (r"\mathbb R", "ℝ"),
        (r"\mathcal D", "\U0001d49f"),
        (r"\arg\min_x", "<mi>arg</mi>"),
        (r"\bigl\langle x \bigr\rangle", "⟨"),
        (r"\operatorname{Cov}_p(T)", "<mi>Cov</mi>"),
        (r"\lVert x\rVert", '<mo stretchy="false">‖</mo>'),
        (r"k/\sqrt d", "<mrow><mi>√</mi><mi>d</mi></mrow>"),
        (r"\sqrt{1 + x}", "<msqrt>"),
        (r"\text{a < b}", "a\u00a0&lt;\u00a0b"),
    ],
)
def test_signs_are_those_that_browsers_know(tex: str, drawn: str) -> None:
    found = formula(tex)
    assert drawn in found
    assert "mathvariant" not in found


@pytest.mark.parametrize(
    "tex", [r"\arg\min_p x", r"\operatorname{Cov}_p(T)", r"\max_i f_i^2", r"\log_2^3 x", r"\inf_{p_i} x"]
)
@pytest.mark.parametrize("display", [False, True])
def test_what_has_an_index_has_one(tex: str, display: bool) -> None:
    """A browser draws an element with too many parts as an error, all in one line."""
    parts = {"msub": 2, "msup": 2, "munder": 2, "mover": 2, "msubsup": 3, "munderover": 3, "mfrac": 2}
    tree = ElementTree.fromstring(re.sub("</?div[^>]*>", "", formula(tex, display=display)))  # noqa: S314
    found = [element for element in tree.iter() if element.tag in parts]
    assert found
    assert all(len(element) == parts[element.tag] for element in found)


def test_a_limit_stands_below_in_a_line_of_its_own_and_beside_in_text() -> None:
    assert "<munder><mi>min</mi><mi>p</mi></munder><mspace" in formula(r"\arg\min_p x", display=True)
    assert "<msub><mi>min</mi><mi>p</mi></msub><mspace" in formula(r"\arg\min_p x")
    assert "<msub><mi>Cov</mi><mi>p</mi></msub><mo" in formula(r"\operatorname{Cov}_p(T)", display=True)


def test_a_named_operator_keeps_its_distance_from_letters_alone() -> None:
    found = formula(r"\alpha\operatorname{Cov}_p(I + \operatorname{Cov}_p)^{-1} = \log\sum_i x_i")
    thin = '<mspace width="0.17em"></mspace>'
    assert found.count(thin) == 2
    assert f"<mi>α</mi>{thin}<msub><mi>Cov</mi>" in found
    assert f"<mi>log</mi>{thin}<msub><mo>∑</mo>" in found


def test_an_unknown_command_is_one_line_that_names_it() -> None:
    with pytest.raises(InputError, match=r"\\nosuch in the formula x \+ \\nosuch is no command"):
        formula(r"x + \nosuch")


def test_a_page_keeps_everything_else() -> None:
    page = '<p>a <span class="arithmatex">\\(x &lt; y\\)</span> b</p><div class="arithmatex">\\[z\\]</div>'
    found = with_mathml(page)
    assert found.startswith('<p>a <math display="inline">')
    assert "<mo>&lt;</mo>" in found
    assert found.endswith("</math></div>")
    assert 'display="block"' in found
    assert with_mathml("<p>no formula, and $5</p>") == "<p>no formula, and $5</p>"


PAGE = """# Title
<!-- results: one -->
old
<!-- end of results -->
between
<!-- results: two-b -->
<!-- end of results -->
<!-- catalogue: one -->
other
<!-- end of catalogue -->
"""


def test_what_is_made_replaces_what_was_there_and_again_the_same():
    said = {"one": r"new \\1"}
    filled = between_marks(PAGE, "results", said.get)
    assert filled == PAGE.replace("old\n", "\nnew \\\\1\n\n")
    assert between_marks(filled, "results", said.get) == filled
    assert between_marks(PAGE, "results", lambda _: None) == PAGE
    assert between_marks(PAGE, "nonsense", lambda _: "x") == PAGE
