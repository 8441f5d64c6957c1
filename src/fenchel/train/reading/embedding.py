"""Where words get their numbers or vectors from: the text that is trained on, or a frozen encoder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fenchel.data.subwords import Subwords
from fenchel.train.reading.options import LEARNED, ReadingOptions
from fenchel.train.reading.texts import Texts, cut_to, learned_words

__all__ = ["Embedding"]


class Embedding:
    """Makes texts into what a model is given.

    Args:
        subwords: The tokenizer.
        encoder: Name of a frozen encoder whose tokenizer it is; None where words have numbers.
        longest: How many tokens a sentence has at most.
    """

    def __init__(self, subwords: Subwords, encoder: str | None, longest: int) -> None:
        self.subwords, self.encoder, self.longest = subwords, encoder, longest

    @classmethod
    def of(cls, options: ReadingOptions, trained: Iterable[str]) -> Embedding:
        """What options ask for.

        Args:
            options: Of a training.
            trained: The texts that are trained on.

        Raises:
            MissingExtraError: If ``tokenizers``, or what the encoder needs, is not installed.
        """
        if options.embed == LEARNED:
            subwords = learned_words(trained, size=options.vocabulary, least=options.least)
            return cls(subwords, None, options.longest)
        from fenchel.integrations.transformers.frozen_encoder import frozen_encoder

        return cls(Subwords(frozen_encoder(options.embed).tokenizer), options.embed, options.longest)

    def texts(self, sentences: Sequence[str], where: str) -> tuple[Texts, int]:
        """Sentences as a model is given them, and how many were cut.

        Raises:
            InputError: If one has no tokens.
        """
        tokens, cut = cut_to(self.subwords.encoded(sentences), self.longest, where)
        if self.encoder is None:
            return Texts(tokens), cut
        from fenchel.integrations.transformers.frozen_encoder import frozen_encoder

        return Texts(tokens, frozen_encoder(self.encoder).states(tokens)), cut

    @property
    def sizes(self) -> dict[str, Any]:
        """``vocabulary`` and ``given``, as models take them."""
        if self.encoder is None:
            return {"vocabulary": len(self.subwords), "given": None}
        from fenchel.integrations.transformers.frozen_encoder import frozen_encoder

        return {"vocabulary": None, "given": frozen_encoder(self.encoder).width}

    @property
    def fingerprints(self) -> dict[str, str]:
        """Of what decides numbers: the encoder's files."""
        if self.encoder is None:
            return {}
        from fenchel.integrations.transformers.frozen_encoder import frozen_encoder

        return {"encoder_revision": str(frozen_encoder(self.encoder).revision)}
