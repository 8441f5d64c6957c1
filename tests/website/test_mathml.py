"""Formulas in TeX as MathML that browsers draw."""

from __future__ import annotations

import pytest

from fenchel.errors import InputError
from website.mathml import formula, with_mathml


@pytest.mark.parametrize(
    ("tex", "drawn"),
    [
        (r"\mathbb E", "\U0001d53c"),
        (r"\mathbb R", "ℝ"),
        (r"\mathcal D", "\U0001d49f"),
        (r"\arg\min_x", "<mi>arg</mi>"),
        (r"\bigl\langle x \bigr\rangle", "&#x027E8;"),
        (r"\operatorname{Cov}_p(T)", "<mi>Cov</mi>"),
        (r"\lVert x\rVert", '<mo stretchy="false">&#x02016;</mo>'),
    ],
)
def test_signs_are_those_that_browsers_know(tex: str, drawn: str) -> None:
    found = formula(tex)
    assert drawn in found
    assert "mathvariant" not in found


def test_an_unknown_command_is_one_line_that_names_it() -> None:
    with pytest.raises(InputError, match=r"\\nosuch in the formula x \+ \\nosuch is no command"):
        formula(r"x + \nosuch")


def test_a_page_keeps_everything_else() -> None:
    page = '<p>a <span class="arithmatex">\\(x &lt; y\\)</span> b</p><div class="arithmatex">\\[z\\]</div>'
    found = with_mathml(page)
    assert found.startswith('<p>a <math display="inline">')
    assert "&#x0003C;" in found
    assert found.endswith("</math></div>")
    assert 'display="block"' in found
    assert with_mathml("<p>no formula, and $5</p>") == "<p>no formula, and $5</p>"
