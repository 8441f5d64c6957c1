"""Pairs of SNLI with their counterfactual revisions, from their files."""

from __future__ import annotations

from pathlib import Path

from fenchel.arguments import shown
from fenchel.data.labelled_pairs import ENTAILMENT, LabelledPairs
from fenchel.data.splits import Splits
from fenchel.data.tab_separated import rows_of
from fenchel.data.text_folder import TextFolder
from fenchel.errors import InputError

__all__ = ["CAD_NLI_FILES", "CAD_NLI_NAME", "CAD_NLI_PARTS", "load_cad_nli"]

CAD_NLI_NAME = "cad-nli"

CAD_NLI_FILES = ("train.tsv", "dev.tsv", "test.tsv")
"""What is trained on, validated on and tested on."""

CAD_NLI_PARTS = {
    "all_combined": (8330, 1000, 2000),
    "original": (1666, 200, 400),
    "revised_combined": (6664, 800, 1600),
    "revised_hypothesis": (3332, 400, 800),
    "revised_premise": (3332, 400, 800),
}
"""The folders there are, with the numbers of pairs in the three files of each."""

_COLUMNS = ("sentence1", "sentence2", "gold_label")
_PAGE = "https://github.com/acmi-lab/counterfactually-augmented-data/tree/master/NLI"


def load_cad_nli(
    part: str = "all_combined", path: str | Path | None = None, *, root: str | Path | None = None
) -> Splits[LabelledPairs]:
    """Reads pairs of SNLI and what people made of them so that another label holds.

    Args:
        part: One of ``CAD_NLI_PARTS``: the pairs as published, those with a revised premise or hypothesis, or all.
        path: A folder that holds ``train.tsv``, ``dev.tsv`` and ``test.tsv``. Default: ``nli_cad_snli/PART`` under
            ``root``.
        root: The folder that holds a folder for each data set. Default: the environment's ``FENCHEL_DATA``.

    Raises:
        InputError: If there is no such part, a file is missing, or a row has other columns, an empty sentence or an
            unknown label.
    """
    if part not in CAD_NLI_PARTS:
        raise InputError(
            f"{CAD_NLI_NAME} has no part {shown(part)}; expected {CAD_NLI_NAME}:PART with one of "
            f"{', '.join(CAD_NLI_PARTS)}."
        )
    place = TextFolder(CAD_NLI_NAME, f"nli_cad_snli/{part}", CAD_NLI_FILES, _PAGE)
    asked = f"{CAD_NLI_NAME}:{part}" if path is None else str(path)
    folder = place.found(CAD_NLI_NAME if path is None else asked, root)
    official = CAD_NLI_PARTS[part] if path is None else (None, None, None)
    parts = [
        _read(place, place.file(folder, file), asked, count)
        for file, count in zip(CAD_NLI_FILES, official, strict=True)
    ]
    return Splits(*parts)


def _read(place: TextFolder, file: Path, asked: str, official: int | None) -> LabelledPairs:
    premises, hypotheses, labels = [], [], []
    for number, (premise, hypothesis, label) in rows_of(place, file, _COLUMNS):
        if not premise.strip() or not hypothesis.strip():
            raise InputError(f"{file}, line {number} has an empty sentence; expected two of some words.")
        if label not in ENTAILMENT:
            raise InputError(
                f"{file}, line {number} has the label {shown(label)}; expected one of {', '.join(ENTAILMENT)}."
            )
        premises.append(premise.strip())
        hypotheses.append(hypothesis.strip())
        labels.append(ENTAILMENT.index(label))
    note = (
        ""
        if official in (None, len(labels))
        else f"{len(labels):,} pairs in {file.name}, not the official {official:,}"
    )
    return LabelledPairs(tuple(premises), tuple(hypotheses), tuple(labels), ENTAILMENT, None, asked, note)
