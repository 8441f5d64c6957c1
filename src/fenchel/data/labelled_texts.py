"""Labelled sentences and pairs of sentences by name or path, in the parts that are trained, validated and tested on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fenchel.arguments import checked
from fenchel.data.cad_nli import CAD_NLI_FILES, CAD_NLI_NAME, load_cad_nli
from fenchel.data.hub_rows import HUB_PREFIX
from fenchel.data.hub_texts import hub_pairs, hub_sentences
from fenchel.data.labelled_pairs import LabelledPairs
from fenchel.data.sentences import Sentences
from fenchel.data.sick import load_sick
from fenchel.data.splits import Splits
from fenchel.data.sst import SST_FILES, SST_NAMES, load_sst
from fenchel.data.trec import load_sentences
from fenchel.errors import InputError

__all__ = ["load_labelled_pairs", "load_labelled_sentences"]

_TREC_FILES = ("raw_TREC.train", "train_5500.label")


def load_labelled_sentences(name_or_path: str | Path, *, root: str | Path | None = None) -> Splits[Sentences]:
    """Reads labelled sentences. Nothing is downloaded but ``hf:`` names.

    Args:
        name_or_path: ``trec``, ``sst2`` or ``sst5``; the path of a folder with the files of one of them; or
            ``hf:NAME``, ``hf:NAME:CONFIG`` or ``hf:FOLDER``.
        root: The folder that holds a folder for each data set. Default: the environment's ``FENCHEL_DATA``.

    Raises:
        InputError: If the name is unknown, or a file is missing or has a line that cannot be used, naming it.
        MissingExtraError: If ``datasets`` is not installed and an ``hf:`` name is given.
    """
    name = str(checked("data_path", name_or_path, name="data"))
    if name.startswith(HUB_PREFIX):
        return hub_sentences(name)
    if name in SST_NAMES:
        return load_sst(name, root=root)
    if name != "trec":
        folder = _folder(name, ("trec", *SST_NAMES))
        # A folder that holds the files of several, as the published one does, is read as TREC.
        for kind, files in SST_FILES.items():
            if _holds(folder, files) and not _holds(folder, _TREC_FILES):
                return load_sst(kind, folder)
    train, test = load_sentences(name, root=root)
    return Splits(train, None, test)


def load_labelled_pairs(name_or_path: str | Path, *, root: str | Path | None = None) -> Splits[LabelledPairs]:
    """Reads pairs of sentences with what one says of the other. Nothing is downloaded but ``hf:`` names.

    Args:
        name_or_path: ``sick``; ``cad-nli``, or ``cad-nli:PART`` with one of ``original``, ``revised_premise``,
            ``revised_hypothesis`` and ``revised_combined``; the path of a folder with the files of one of them; or
            ``hf:NAME``, ``hf:NAME:CONFIG`` or ``hf:FOLDER``.
        root: The folder that holds a folder for each data set. Default: the environment's ``FENCHEL_DATA``.

    Raises:
        InputError: If the name is unknown, or a file is missing or has a line that cannot be used, naming it.
        MissingExtraError: If ``datasets`` is not installed and an ``hf:`` name is given.
    """
    name = str(checked("data_path", name_or_path, name="data"))
    kind, _, part = name.partition(":")
    if name.startswith(HUB_PREFIX):
        return hub_pairs(name)
    if name == "sick":
        return load_sick(root=root)
    if kind == CAD_NLI_NAME:
        return load_cad_nli(part or "all_combined", root=root)
    folder = _folder(name, ("sick", CAD_NLI_NAME))
    if _holds(folder, CAD_NLI_FILES):
        return load_cad_nli(path=folder)
    return load_sick(folder)


def _folder(name: str, names: Sequence[str]) -> Path:
    path = Path(name).expanduser()
    if not path.is_dir():
        raise InputError(
            f"{name!r} is neither a known set of texts nor a folder that exists; expected one of {', '.join(names)}, a "
            "folder that holds the files of one of them, or hf:NAME."
        )
    return path


def _holds(folder: Path, files: Sequence[str]) -> bool:
    return any((folder / file).is_file() for file in files)
