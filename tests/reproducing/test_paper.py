"""What the papers print, as far as it can be checked from itself."""

from __future__ import annotations

import pytest

from fenchel.arguments import ARGUMENTS
from fenchel.errors import InputError
from fenchel.reproducing.paper import BERT, FIGURES, T5, PaperPanel


def panel(figure: str, place: int = 0) -> PaperPanel:
    return FIGURES[figure][place]


def test_every_figure_has_one_name_everywhere() -> None:
    assert ARGUMENTS["figure"].kind == tuple(FIGURES)
    for figure in FIGURES:
        assert ARGUMENTS["figure"].check("figure", figure) == figure
    with pytest.raises(InputError, match="expected one of figure4, figure5, figures6-8"):
        ARGUMENTS["figure"].check("figure", "figure3")


def test_bert_has_twelve_layers_of_twelve_heads_and_t5_six_of_eight() -> None:
    assert [len(row) for row in panel("figure4").printed] == [1] * 12
    assert [len(row) for row in panel("figure5").printed] == [12] * 12
    for shown in FIGURES["figures6-8"]:
        assert [len(row) for row in shown.printed] == [8] * 6
    for shown in FIGURES["figure4"][1:]:
        assert [len(row) for row in shown.printed] == [1] * 6
    assert {shown.model for shown in FIGURES["figure4"]} == {BERT, T5}


def test_figure_4a_is_the_mean_of_figure_5() -> None:
    """They agree to what rounding to three digits can do, in all layers but the first."""
    means = [sum(row) / len(row) for row in panel("figure5").printed]
    printed = [row[0] for row in panel("figure4").printed]
    assert means[1:] == pytest.approx(printed[1:], abs=1e-3)
    assert means[0] == pytest.approx(printed[0], abs=3e-3)


def test_what_the_remarks_say_of_figure_4b() -> None:
    layers = {shown.kind: [row[0] for row in shown.printed] for shown in FIGURES["figure4"][1:]}
    heads = {shown.kind: [sum(row) / len(row) for row in shown.printed] for shown in FIGURES["figures6-8"]}
    assert layers["encoder_self"] == layers["decoder_self"]
    for kind, means in layers.items():
        assert any(abs(mean - of_heads) > 5e-3 for mean, of_heads in zip(means, heads[kind], strict=True))
    assert heads["encoder_self"][1] == pytest.approx(0.034, abs=5e-4)
    assert heads["cross"][0] == pytest.approx(0.084, abs=5e-4)
