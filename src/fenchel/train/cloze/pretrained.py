"""A model that fills in blanks, made ready to tell classes: its words, and the weights that it begins with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fenchel import models
from fenchel.data.subwords import TOKENIZER_FILE, Subwords
from fenchel.errors import InputError
from fenchel.storage.digest import digest_of_bytes
from fenchel.train.checkpoint import CHECKPOINT_FILE, Checkpoint
from fenchel.train.files import read_file

__all__ = ["Pretrained", "extended"]

_TASK = "cloze"
_OF_WORDS = ("embeddings.word.weight", "head.bias")
_OF_CLASSES = ("pooler.", "classify.")
_LEAST = 2


@dataclass(frozen=True)
class Pretrained:
    """The training of a ``cloze``.

    Attributes:
        tokenizer: Of its words.
        configuration: Of its model.
        weights: Those that it kept.
        digest: SHA-256 of its checkpoint.
    """

    tokenizer: Subwords
    configuration: dict[str, Any]
    weights: dict[str, Tensor]
    digest: str

    @classmethod
    def read(cls, folder: str | Path) -> Pretrained:
        """Reads the folder of a training.

        Raises:
            InputError: If it holds none, or that of another model, or a damaged one.
        """
        path = Path(folder)
        file = path / CHECKPOINT_FILE
        if not file.is_file():
            raise InputError(
                f"pretrained is {str(folder)!r}, which holds no trained model ({CHECKPOINT_FILE} is not there); "
                "expected the folder of a training, such as one that fenchel train --model cloze made."
            )
        checkpoint = Checkpoint.read(path)
        if checkpoint.task != _TASK:
            raise InputError(
                f"pretrained is {str(folder)!r}, the folder of a training of {checkpoint.model.get('name')!r}; "
                "expected one of 'cloze'."
            )
        text = read_file(path, TOKENIZER_FILE, checkpoint.model.get("files", {}))
        return cls(
            Subwords(text),
            dict(checkpoint.model["configuration"]),
            dict(checkpoint.selected or checkpoint.weights),
            digest_of_bytes(file.read_bytes()),
        )

    def classifier(self, vocabulary: int, classes: int, dropout: float) -> models.Cloze:
        """The same model for another number of words and classes, its weights drawn from torch's generator."""
        return models.Cloze(
            **{**self.configuration, "vocabulary": vocabulary, "classes": classes, "dropout": dropout}
        )

    def give(self, model: nn.Module) -> None:
        """Copies the weights into a ``classifier``; those of further words and of the classes stay as they are."""
        own = model.state_dict()
        with torch.no_grad():
            for name, value in self.weights.items():
                if name in _OF_WORDS:
                    own[name][: len(value)].copy_(value)
                elif not name.startswith(_OF_CLASSES):
                    own[name].copy_(value)


def extended(tokenizer: Subwords, texts: Iterable[str]) -> Subwords:
    """A tokenizer that knows further words of some texts; one of pieces of words knows them all, and is given back.

    Args:
        tokenizer: Of words.
        texts: Their words are apart by spaces; those that are there twice are added, the most frequent first.

    Example:
        >>> known = Subwords.learned(["a dog barks"] * 2, size=10, kind="word")
        >>> more = extended(known, ["a cat purrs", "a cat sleeps"])
        >>> len(more) - len(known), more.number("cat") == len(known)
        (1, True)
    """
    if tokenizer.kind != "word":
        return tokenizer
    content = json.loads(tokenizer.text)
    known = content["model"]["vocab"]
    lower = any(
        one.get("type") == "Lowercase" for one in (content["normalizer"] or {}).get("normalizers", ())
    )
    counts = Counter(word.lower() if lower else word for text in texts for word in text.split())
    more = [word for word, count in counts.items() if count >= _LEAST and word not in known]
    for word in sorted(more, key=lambda word: (-counts[word], word)):
        known[word] = len(known)
    return Subwords(json.dumps(content, ensure_ascii=False))
