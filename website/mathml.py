"""Formulas of a page as MathML, which browsers draw by themselves: nothing is loaded for it."""

from __future__ import annotations

import html
import re
import unicodedata

from latex2mathml.converter import convert

from fenchel.errors import InputError

# What pymdownx.arithmatex leaves of $...$ and $$...$$.
_LEFT = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', flags=re.DOTALL)
# What latex2mathml does not know, and the same in what it does.
_SPELT_OUT = (
    (r"\\arg\b", r"\\operatorname{arg}"),
    (r"\\[bB]igg?[lrm]?\s*(?=\\[lr](?:angle|Vert|vert)\b)", ""),
)
_NO_SPACE = r"(?:(?:<msu\w+>)?<mo[^>]*>(?:&#x0002[89];|&#x0005[BD];|[()\[\]])|</(?:math|mrow|mtd)>)"
_FOR_BROWSERS = (
    (r' xmlns="http://www.w3.org/1998/Math/MathML"', ""),
    # The name of an operator has a thin space at its sides, but for that of a sign, a parenthesis or an end.
    (r"<m([oi])>([A-Za-z]{2,})</m\1>", r'<mo lspace="0.17em" rspace="0.17em">\2</mo>'),
    (rf'rspace="0.17em">(\w+</mo>(?:(?:<m\w>[^<]*</m\w>){{0,2}}</msu\w+>)?{_NO_SPACE})', r'rspace="0">\1'),
    (r'(<(?:math[^>]*|mrow|mtd)>(?:<msub>)?|</mo>(?:<msub>)?)<mo lspace="0.17em"', r'\1<mo lspace="0"'),
    # A limit is below it in a line of its own.
    (
        r"<msub>(<mo [^>]*)>((?:min|max|sup|inf)</mo><m\w>[^<]*</m\w>)</msub>",
        r'<munder>\1 movablelimits="true">\2</munder>',
    ),
    # Bars of a norm are as high as their line; a short root would be drawn as wide as the largest.
    (r"<mo>(&#x02016;|&#x0007C;|‖|\|)</mo>", r'<mo stretchy="false">\1</mo>'),
    (r"<msqrt>(<m[in]>[^<]+</m[in]>)</msqrt>", r"<mrow><mi>√</mi>\1</mrow>"),
    # Signs of words that latex2mathml leaves as they are.
    (r"<(?![/a-z])", "&lt;"),
    (r"&(?!#?\w+;)", "&amp;"),
)


def with_mathml(page: str) -> str:
    """A page's HTML with each formula of pymdownx.arithmatex as MathML.

    Args:
        page: HTML.

    Returns:
        HTML without a backslash of TeX in a formula.

    Raises:
        InputError: If a formula has a command that is not known; it names both.
    """
    return _LEFT.sub(lambda found: formula(html.unescape(found[2]), display=found[1] == "div"), page)


def formula(tex: str, *, display: bool = False) -> str:
    r"""A formula in TeX as MathML.

    Args:
        tex: Without dollars.
        display: Whether it stands in a line of its own.

    Returns:
        A ``math`` element.

    Raises:
        InputError: If a command is not known.

    Example:
        >>> formula(r"\mathbb E_p").replace("\U0001d53c", "E")  # one letter of Unicode, double-struck
        '<math display="inline"><mrow><msub><mi>E</mi><mi>p</mi></msub></mrow></math>'
    """
    spelt = tex.strip()
    for pattern, instead in _SPELT_OUT:
        spelt = re.sub(pattern, instead, spelt)
    drawn = convert(spelt, display="block" if display else "inline")
    if unknown := re.search(r"\\[A-Za-z]+", drawn):
        raise InputError(
            f"{unknown[0]} in the formula {tex.strip()} is no command that latex2mathml knows. Write it otherwise, or "
            "say in website/mathml.py what to write for it."
        )
    # Browsers know no mathvariant but "normal": letters are written as what Unicode has for them.
    drawn = re.sub(r'<mi mathvariant="(double-struck|script|bold|monospace)">(\w)</mi>', _letter, drawn)
    for pattern, instead in _FOR_BROWSERS:
        drawn = re.sub(pattern, instead, drawn)
    return f'<div class="formula">{drawn}</div>' if display else drawn


def _letter(found: re.Match[str]) -> str:
    name = re.sub("^(LATIN|GREEK) | LETTER", "", unicodedata.name(found[2]))
    styled = f"{found[1].upper()} {name}"
    try:
        return f"<mi>{unicodedata.lookup(f'MATHEMATICAL {styled}')}</mi>"
    except KeyError:  # what Unicode had before the others, as ℝ and ℒ
        return f"<mi>{unicodedata.lookup(styled)}</mi>"
