"""Sentences to embed: documents, the sentences of pairs, and a seeded sample of pairs of documents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import checked
from fenchel.errors import InputError
from fenchel.io.documents import Documents
from fenchel.io.tokens import (
    check_known,
    longest_window,
    padding_token,
    pieces,
    special_tokens,
    token_ids,
)
from fenchel.swap.observation import Observation, observe
from fenchel.swap.pairs import ScoredPairs
from fenchel.swap.step import Place, Step

__all__ = ["SentenceTask", "sampled_pairs"]


@dataclass(frozen=True)
class _Sources:
    documents: Documents | None
    pairs: ScoredPairs | None


class SentenceTask:
    """Different sentences, the shortest first, so that batches hold little padding.

    A sentence that is longer than the model takes is cut off, as sentence encoders do; ``description`` says how many.

    Args:
        documents: Texts, each a sentence; None without.
        pairs: Scored pairs; None without.
        tokenizer: A tokenizer of ``transformers``.
        config: The model's configuration.
        max_length: Tokens of a sentence, special ones included. Default: what tokenizer and model can take, at most
            512.
        batch_size: Sentences in a batch.
        max_tokens: Take documents until they have this many tokens. Default: all.
        sample_pairs: How many pairs of documents to compare.
        seed: Of the sample.

    Raises:
        InputError: If there are too few sentences or an option cannot be met.
    """

    def __init__(
        self,
        documents: Documents | None,
        pairs: ScoredPairs | None,
        tokenizer: Any,
        *,
        config: Any,
        max_length: int | None,
        batch_size: int,
        max_tokens: int | None,
        sample_pairs: int,
        seed: int,
    ) -> None:
        self._sources = _Sources(documents, pairs)
        self._batch_size = checked("batch_size", batch_size)
        self._max_tokens = checked("max_tokens", max_tokens)
        self.max_length = longest_window(tokenizer, config, max_length)
        self._padding = padding_token(tokenizer, config)
        prefix, suffix = special_tokens(tokenizer)
        room = self.max_length - len(prefix) - len(suffix)
        if room < 1:
            raise InputError(
                f"max length {self.max_length} leaves no room for text: this tokenizer adds {self.max_length - room} "
                f"special tokens to a sentence. Give at least {self.max_length - room + 1}."
            )
        self._numbers: dict[str, int] = {}
        self._ids: list[tuple[int, ...]] = []
        self.truncated = 0

        def number(text: str) -> int:
            if text not in self._numbers:
                ids = list[int]()
                for piece, _ in pieces(text):
                    ids += token_ids(tokenizer, piece)
                    if len(ids) > room:
                        break
                check_known(ids[:room], tokenizer, config)
                self.truncated += len(ids) > room
                self._numbers[text] = len(self._ids)
                self._ids.append((*prefix, *ids[:room], *suffix))
            return self._numbers[text]

        read: list[int] = []
        tokens = 0
        for document in documents or ():
            if document.target is not None:
                raise InputError(
                    "a target column was named, but sentences are embedded and nothing is written for them. "
                    "Leave it out."
                )
            if tokens >= (self._max_tokens or float("inf")):
                break
            known = len(self._ids)
            read.append(number(document.text.strip()))
            if len(self._ids) > known:
                tokens += len(self._ids[-1])
        self.documents = len(read)
        of_documents = sorted(set(read))
        different = len({self._ids[index] for index in of_documents})
        if documents is not None and different < 3:
            raise InputError(
                f"{documents.description} has {different} sentence{'' if different == 1 else 's'} "
                "that the tokenizer tells apart"
                "; how a model ranks similarities needs at least 3, one a line. Give more, or scored pairs (--pairs)."
            )
        self.scored: Tensor | None = None
        self.scores: Tensor | None = None
        if pairs is not None:
            self.scored = torch.tensor([[number(first), number(second)] for first, second in pairs.sentences])
            self.scores = torch.tensor(pairs.scores, dtype=torch.float64)
        if not any(len(ids) > len(prefix) + len(suffix) for ids in self._ids):
            source = " and ".join(given.description for given in (documents, pairs) if given is not None)
            raise InputError(
                f"{source} has no token to embed: the tokenizer turns every sentence into nothing. Check the file and "
                "the tokenizer."
            )
        kinds = set() if self.scored is None else {self._kind(*pair) for pair in self.scored.tolist()}
        if pairs is not None and len(kinds) < 2:
            raise InputError(
                f"{pairs.description} holds one pair of sentences again and again, or pairs of equal ones, as far as "
                "the tokenizer tells them apart, so there are no similarities to rank. Give different pairs."
            )
        self.ranked = self.scored
        if documents is not None:
            self.ranked = torch.tensor(of_documents)[
                sampled_pairs(len(of_documents), checked("sample_pairs", sample_pairs), seed)
            ]
        self._order = sorted(range(len(self._ids)), key=lambda index: (len(self._ids[index]), index))

    def _kind(self, first: int, second: int) -> frozenset[tuple[int, ...]]:
        """What the similarity of two sentences depends on, and 1 where they are equal."""
        return (
            frozenset({self._ids[first], self._ids[second]})
            if self._ids[first] != self._ids[second]
            else frozenset()
        )

    @property
    def count(self) -> int:
        """How many different sentences there are."""
        return len(self._ids)

    def description(self) -> dict[str, Any]:
        """See ``Task``."""
        documents, pairs = self._sources.documents, self._sources.pairs
        content = hashlib.sha256(repr(self._ids).encode()).hexdigest()
        return {
            "task": "embedding",
            "texts": None if documents is None else documents.description,
            "text_sha256": None if documents is None else documents.text_sha256,
            "pairs": None if pairs is None else pairs.description,
            "pairs_sha256": None if pairs is None else pairs.sha256,
            "scored_pairs": 0 if self.scored is None else len(self.scored),
            "ranked_pairs": 0 if self.ranked is None else len(self.ranked),
            "sentences": self.count,
            "sentences_sha256": content,
            "truncated": self.truncated,
            "max_length": self.max_length,
            "max_tokens": self._max_tokens,
        }

    def observed(self, model: Any, step: Step, inputs: dict[str, Tensor]) -> Observation:
        """See ``Task``."""
        assert step.counted is not None  # noqa: S101 - what ``steps`` gives
        return observe(model, inputs, step.counted, step.counted_decoder, step.labels)

    def steps(self, place: Place) -> Iterator[Step]:
        """See ``Task``."""
        lengths = [len(self._ids[index]) for index in self._order]
        total = sum(lengths)
        for begin in range(place.get("sentence", 0), self.count, self._batch_size):
            end = min(begin + self._batch_size, self.count)
            units = self._order[begin:end]
            longest = lengths[end - 1]
            ids = torch.full((len(units), longest), self._padding)
            mask = torch.zeros(len(units), longest, dtype=torch.long)
            for row, unit in enumerate(units):
                ids[row, : len(self._ids[unit])] = torch.tensor(self._ids[unit])
                mask[row, : len(self._ids[unit])] = 1
            tokens = sum(lengths[:end])
            yield Step(
                inputs={"input_ids": ids, "attention_mask": mask},
                counted=mask.bool(),
                counted_decoder=None,
                labels=None,
                units=torch.tensor(units),
                after={"sentence": end},
                documents=end,
                tokens=tokens,
                fraction=tokens / total,
            )


def sampled_pairs(count: int, pairs: int, seed: int) -> Tensor:
    """Different pairs of different things: all of them, or a seeded sample.

    Args:
        count: How many things there are.
        pairs: How many pairs at most.
        seed: Of the sample.

    Returns:
        (P, 2) numbers from 0, the smaller one first, in order.

    Example:
        >>> sampled_pairs(3, 10, 0).tolist()
        [[0, 1], [0, 2], [1, 2]]
    """
    everything = count * (count - 1) // 2
    if everything <= pairs:
        return torch.combinations(torch.arange(count))
    generator = torch.Generator().manual_seed(seed)
    found: set[tuple[int, int]] = set()
    while len(found) < pairs:
        for first, second in torch.randint(count, (pairs, 2), generator=generator).tolist():
            if first != second and len(found) < pairs:
                found.add((min(first, second), max(first, second)))
    return torch.tensor(sorted(found))
