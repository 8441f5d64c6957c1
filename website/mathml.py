"""Formulas of a page as MathML, which browsers draw by themselves: nothing is loaded for it."""

from __future__ import annotations

import html
import re
import unicodedata
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert

from fenchel.errors import InputError

__all__ = ["formula", "with_mathml"]

# What pymdownx.arithmatex leaves of $...$ and $$...$$.
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', flags=re.DOTALL)
_DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', flags=re.DOTALL)

# Browsers know no mathvariant but "normal": letters are written as what Unicode has for them.
_STYLED = re.compile(r'<mi mathvariant="(double-struck|script|bold|monospace)">(\w)</mi>')
_STYLES = {"double-struck": "DOUBLE-STRUCK", "script": "SCRIPT", "bold": "BOLD", "monospace": "MONOSPACE"}
# What latex2mathml does not know, and the same in what it does.
_SPELT_OUT = (
    (re.compile(r"\\arg\b"), r"\\operatorname{arg}"),
    (re.compile(r"\\[bB]igg?[lrm]?\s*(?=\\[lr](?:angle|Vert|vert)\b)"), ""),
)
# Signs of words that latex2mathml leaves as they are.
_BARE = ((re.compile(r"&(?!#?\w+;)"), "&amp;"), (re.compile(r"<(?![/a-z])"), "&lt;"))
_NAMED_OPERATOR = re.compile(r"<mo>([A-Za-z]{2,})</mo>")
# Which browsers draw with a gap as wide as the largest root they have.
_SHORT_ROOT = re.compile(r"<msqrt>(<m[in]>[^<]+</m[in]>)</msqrt>")
_SCRIPTED = ("msub", "msup", "msubsup", "munder", "mover", "munderover")
_LIMITS = ("min", "max", "sup", "inf")


def with_mathml(page: str) -> str:
    """A page's HTML with each formula of pymdownx.arithmatex as MathML.

    Args:
        page: HTML.

    Returns:
        HTML without a backslash of TeX in a formula.

    Raises:
        InputError: If a formula has a command that is not known; it names both.
    """
    page = _DISPLAY.sub(lambda found: formula(html.unescape(found[1]), display=True), page)
    return _INLINE.sub(lambda found: formula(html.unescape(found[1])), page)


def formula(tex: str, *, display: bool = False) -> str:
    r"""A formula in TeX as MathML.

    Args:
        tex: Without dollars.
        display: Whether it stands in a line of its own.

    Returns:
        A ``math`` element.

    Raises:
        InputError: If a command is not known, or what comes of it is no MathML.

    Example:
        >>> formula(r"\mathbb E_p").replace("\U0001d53c", "E")  # one letter of Unicode, double-struck
        '<math display="inline"><mrow><msub><mi>E</mi><mi>p</mi></msub></mrow></math>'
    """
    spelt = tex.strip()
    for pattern, instead in _SPELT_OUT:
        spelt = pattern.sub(instead, spelt)
    drawn = convert(spelt, display="block" if display else "inline")
    unknown = re.search(r"\\[A-Za-z]+", drawn)
    if unknown:
        raise InputError(
            f"{unknown[0]} in the formula {tex.strip()} is no command that latex2mathml knows. Write it otherwise, or "
            "say in website/mathml.py what to write for it."
        )
    drawn = drawn.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")
    drawn = _STYLED.sub(lambda found: f"<mi>{_letter(found[2], found[1])}</mi>", drawn)
    # Bars of a norm are as high as their line, whatever stands beside them.
    drawn = re.sub(r"<mo>(&#x02016;|&#x0007C;|‖|\|)</mo>", r'<mo stretchy="false">\1</mo>', drawn)
    drawn = _SHORT_ROOT.sub(r"<mrow><mi>√</mi>\1</mrow>", drawn)
    # An operator's name is an identifier to a browser, or it stands apart from its parentheses.
    try:
        drawn = _with_operators(_NAMED_OPERATOR.sub(r"<mi>\1</mi>", drawn), display=display)
    except ElementTree.ParseError as error:
        raise InputError(f"the formula {tex.strip()} is no MathML after latex2mathml: {error}.") from error
    return f'<div class="formula">{drawn}</div>' if display else drawn


def _with_operators(drawn: str, *, display: bool) -> str:
    """Thin spaces around a named operator, whose index is below it where it is a limit in a line of its own."""
    for pattern, instead in _BARE:
        drawn = pattern.sub(instead, drawn)
    tree = ElementTree.fromstring(drawn)  # noqa: S314 - what latex2mathml has just written
    for parent in tree.iter():
        if display and parent.tag == "msub" and parent[0].text in _LIMITS:
            parent.tag = "munder"
        if parent.tag in _SCRIPTED:
            continue
        for place in reversed(range(1, len(parent))):
            before, after = parent[place - 1], parent[place]
            if (_is_operator(before) and not _is_sign(after)) or (
                _is_operator(after) and not _is_sign(before)
            ):
                parent.insert(place, Element("mspace", width="0.17em"))
    return ElementTree.tostring(tree, encoding="unicode", short_empty_elements=False)


def _is_operator(element: Element) -> bool:
    base = element[0] if element.tag in _SCRIPTED else element
    return base.tag == "mi" and re.fullmatch("[A-Za-z]{2,}", base.text or "") is not None


def _is_sign(element: Element) -> bool:
    """Whether it keeps its own distance: a space, or a sign that is no sum."""
    base = element[0] if element.tag in _SCRIPTED else element
    return base.tag == "mspace" or (base.tag == "mo" and (base.text or "") not in "∑∏")


def _letter(letter: str, variant: str) -> str:
    case = "DIGIT" if letter.isdigit() else ("CAPITAL" if letter.isupper() else "SMALL")
    name = f"MATHEMATICAL {_STYLES[variant]} {case} {unicodedata.name(letter).split()[-1]}"
    try:
        return unicodedata.lookup(name)
    except KeyError:
        # Those that Unicode had before the others have names of their own, as ℝ and ℒ.
        return unicodedata.lookup(f"{_STYLES[variant]} {case} {unicodedata.name(letter).split()[-1]}")
