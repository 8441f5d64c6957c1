"""What the papers report of trained models: the mean relative deviations that figures 4 to 8 print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from fenchel.arguments import Kind

BERT: Final = "google-bert/bert-base-uncased"
"""The model of figures 4a and 5."""

T5: Final = "google-t5/t5-small"
"""The model of figures 4b, 6, 7 and 8."""

SETTING: Final = (
    "templates are the inputs of the key map divided by the square root of the head's width, the evidence is z = KᵀQx, "
    "α = 1, and λ* is found by gradient ascent"
)
"""The setting of all of them, section 8."""

UNSAID: Final = "the text and how much of it, which BERT-base, and when the ascent was ended"
"""What the papers do not say."""


@dataclass(frozen=True)
class PaperPanel:
    """A figure, or a part of one: the mean over queries of ‖λ* − αz‖ / ‖λ*‖, layer by layer.

    Attributes:
        name: Where it is printed, such as "figure 4a".
        model: The name of the model on the hub.
        kind: How it attends.
        by: Whether a number is printed for each layer or for each head of it.
        printed: A row a layer, with one number or a number a head.
        remark: What to know when comparing; empty where there is nothing.
    """

    name: str
    model: str
    kind: Kind
    by: Literal["layer", "head"]
    printed: tuple[tuple[float, ...], ...]
    remark: str = ""


def _rows(*lines: str) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(f"0{number}") for number in line.split()) for line in lines)


_HEADS_OF_BERT = _rows(
    ".092 .040 .034 .093 .102 .093 .052 .033 .069 .040 .074 .142",
    ".072 .041 .065 .050 .056 .127 .030 .082 .092 .044 .103 .044",
    ".022 .016 .015 .024 .023 .013 .026 .020 .012 .019 .016 .017",
    " ".join([".001"] * 12),
    *[" ".join([".000"] * 12)] * 8,
)
_SELF_OF_T5 = _rows(".029", ".042", ".061", ".054", ".050", ".051")
_NOT_THE_MEANS = "these are not the means of the heads that figures 6 to 8 print"
_AT_THE_MEAN = (
    "0.000 says that the exact output is the preference's mean to within 1/2000 of the length of λ*"
)

FIGURES: Final[Mapping[str, tuple[PaperPanel, ...]]] = {
    "figure4": (
        PaperPanel(
            "figure 4a",
            BERT,
            "encoder_self",
            "layer",
            _rows(".074", ".067", ".019", ".001", *[".000"] * 8),
            _AT_THE_MEAN,
        ),
        PaperPanel("figure 4b", T5, "encoder_self", "layer", _SELF_OF_T5, _NOT_THE_MEANS),
        PaperPanel(
            "figure 4b",
            T5,
            "decoder_self",
            "layer",
            _SELF_OF_T5,
            f"the paper prints the encoder's six numbers again; {_NOT_THE_MEANS}",
        ),
        PaperPanel(
            "figure 4b",
            T5,
            "cross",
            "layer",
            _rows(".057", ".062", ".071", ".069", ".074", ".075"),
            _NOT_THE_MEANS,
        ),
    ),
    "figure5": (PaperPanel("figure 5", BERT, "encoder_self", "head", _HEADS_OF_BERT, _AT_THE_MEAN),),
    "figures6-8": (
        PaperPanel(
            "figure 6",
            T5,
            "encoder_self",
            "head",
            _rows(
                ".038 .025 .038 .020 .022 .029 .028 .030",
                ".028 .031 .028 .036 .031 .040 .039 .041",
                ".044 .044 .046 .054 .043 .051 .060 .052",
                ".038 .038 .039 .042 .036 .042 .046 .043",
                ".036 .039 .036 .043 .035 .040 .042 .043",
                ".037 .039 .034 .046 .039 .043 .046 .046",
            ),
        ),
        PaperPanel(
            "figure 7",
            T5,
            "decoder_self",
            "head",
            _rows(
                ".016 .026 .023 .018 .018 .023 .028 .019",
                ".017 .030 .037 .026 .034 .033 .028 .026",
                ".014 .029 .033 .027 .029 .030 .029 .030",
                ".018 .034 .034 .033 .032 .036 .036 .037",
                ".019 .038 .035 .031 .033 .033 .034 .030",
                ".041 .056 .058 .054 .058 .061 .056 .055",
            ),
        ),
        PaperPanel(
            "figure 8",
            T5,
            "cross",
            "head",
            _rows(
                ".087 .081 .083 .071 .092 .090 .077 .093",
                ".072 .075 .083 .072 .073 .076 .072 .072",
                ".071 .074 .076 .077 .073 .070 .068 .062",
                ".066 .076 .073 .077 .069 .064 .069 .058",
                ".078 .087 .081 .080 .076 .067 .079 .071",
                ".076 .077 .089 .082 .070 .070 .087 .078",
            ),
        ),
    ),
}
"""By the name that ``fenchel reproduce`` takes, the panels in the papers' order."""
