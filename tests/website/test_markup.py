"""Formulas in TeX as MathML that browsers draw, and docstrings as Markdown."""

import re
from html import unescape
from xml.etree import ElementTree

import pytest

from fenchel.errors import InputError
from website.mathml import formula, with_mathml


@pytest.mark.parametrize(
    ("tex", "drawn"),
    [
        (r"\mathbb E", "\U0001d53c"),
        (r"\mathbb R", "ℝ"),
        (r"\mathcal D", "\U0001d49f"),
        (r"\arg\min_x", ">arg</mo>"),
        (r"\bigl\langle x \bigr\rangle", "⟨"),
        (r"\operatorname{Cov}_p(T)", ">Cov</mo>"),
        (r"\lVert x\rVert", '<mo stretchy="false">‖</mo>'),
        (r"k/\sqrt d", "<mrow><mi>√</mi><mi>d</mi></mrow>"),
        (r"\sqrt{1 + x}", "<msqrt>"),
        (r"\text{a < b}", "a\u00a0&lt;\u00a0b"),
    ],
)
def test_signs_are_those_that_browsers_know(tex: str, drawn: str) -> None:
    found = formula(tex)
    assert drawn in re.sub("&#x[0-9A-F]{5};", lambda sign: unescape(sign[0]), found)
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


def test_a_limit_stands_below_in_a_line_of_its_own() -> None:
    found = formula(r"\arg\min_p x", display=True)
    assert re.search('<munder><mo [^>]*movablelimits="true">min</mo><mi>p</mi></munder>', found)
    assert re.search(
        "<msub><mo [^>]*>Cov</mo><mi>p</mi></msub>", formula(r"\operatorname{Cov}_p", display=True)
    )


def test_a_named_operator_keeps_its_distance_from_letters_alone() -> None:
    found = formula(r"\alpha\operatorname{Cov}_p(I + \operatorname{Cov}_p)^{-1} = \log\sum_i x_i \log x")
    spaces = re.findall(r'<mo lspace="([\d.]+)(?:em)?" rspace="([\d.]+)(?:em)?">', found)
    assert spaces == [("0.17", "0"), ("0", "0"), ("0", "0.17"), ("0.17", "0.17")]


def test_an_unknown_command_is_one_line_that_names_it() -> None:
    with pytest.raises(InputError, match=r"\\nosuch in the formula x \+ \\nosuch is no command"):
        formula(r"x + \nosuch")


def test_a_page_keeps_everything_else() -> None:
    page = '<p>a <span class="arithmatex">\\(x &lt; y\\)</span> b</p><div class="arithmatex">\\[z\\]</div>'
    found = with_mathml(page)
    assert found.startswith('<p>a <math display="inline">')
    assert "<mo>&#x0003C;</mo>" in found
    assert found.endswith("</math></div>")
    assert 'display="block"' in found
    assert with_mathml("<p>no formula, and $5</p>") == "<p>no formula, and $5</p>"
