"""Tasks of a swap: language modelling, sentence embeddings, and examples with losses and scores."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_map_only

from fenchel.arguments import number_of, shown
from fenchel.auditing.inputs import device_and_dtype
from fenchel.errors import InputError, ModelError
from fenchel.integrations.transformers import LanguageHead
from fenchel.io.batches import Batch, Cursor, ImageBatches, check_known
from fenchel.io.documents import Document, Documents, open_documents
from fenchel.io.windows import ReadyBatches, TokenWindows, Window, pieces, special_tokens, token_ids
from fenchel.run_options import SwapOptions
from fenchel.swap.observation import IGNORED, Observation, Step, Task, observe_layers

# Function of the output of the model for B rows and their target that returns (B,) numbers.
Measure = Callable[[Any, Any], Tensor]


def _inputs(batch: Batch) -> Any:
    return dict(batch.inputs)


class CutTexts(TokenWindows):
    """Batches of texts that are a window each: their tokens, truncated to the maximum length, with special tokens.

    Args:
        documents: The texts; None where there are other ones only.
        tokenizer: A tokenizer of ``transformers``.
        config: The model's configuration.
        options: Options with the maximum length of a text including special tokens (by default that of tokenizer and
            model, at most 512), the maximum number of tokens of all texts, and the batch size.

    Attributes:
        texts: Tokens of each text, by document number; filled by the user.
        truncated: Number of texts that were truncated.
    """

    def __init__(
        self, documents: Documents | None, tokenizer: Any, config: Any, options: SwapOptions
    ) -> None:
        super().__init__(
            documents or open_documents([]),
            tokenizer,
            config=config,
            max_length=options.max_length,
            batch_size=options.batch_size,
        )
        # An encoder reads them, or a classifier that makes the decoder's input itself.
        self._decoder_start = None
        self._left = options.max_tokens or math.inf
        self.texts: dict[int, tuple[int, ...]] = {}
        self.truncated = 0

    def read(self) -> Iterator[Document]:
        """The documents until as many tokens have been cut as are to be read."""
        for document in self.documents:
            if self._left <= 0:
                return
            yield document

    def cut(self, text: str) -> tuple[int, ...]:
        """The tokens of a text."""
        ids = list[int]()
        for piece, _ in pieces(text):
            ids += token_ids(self.tokenizer, piece)
            if len(ids) > self.room:
                break
        check_known(ids[: self.room], self.tokenizer, self._config)
        self.truncated += len(ids) > self.room
        result = (*self.prefix, *ids[: self.room], *self.suffix)
        self._left -= len(result)
        return result

    def _windows(self, start: Cursor) -> Iterator[Window]:
        ends = list(accumulate(map(len, self.texts.values())))
        for place, (number, end) in enumerate(zip(self.texts, ends, strict=True), start=1):
            if place > start.document:
                tokens, after = self.texts[number], Cursor(place, 1, end, place)
                yield Window(tokens, [True] * len(tokens), (), [], number, after, end / ends[-1])


class LanguageTask(Task):
    """Language modelling: windows of text with the tokens to predict.

    * masked: a random share ``mask_probability`` (at least one) of the counted tokens of every window that are not
      special is replaced by the mask token and predicted. It depends only on the seed, the document and the window, so
      it is the same for every condition, batch size and resumed session.
    * causal: every counted token but the first of a window is predicted from those before it.
    * seq2seq: the decoder reads the target (without one, the text itself) shifted right, and predicts it.

    Args:
        windows: The text.
        head: Kind of the language-model head.
        options: Options with the masked share and the seed.

    Raises:
        ModelError: If a masked model's tokenizer has no mask token.
    """

    unit = "windows"

    def __init__(self, windows: TokenWindows, head: LanguageHead, options: SwapOptions) -> None:
        self.source = self._windows = windows
        self._head = head
        self._mask_probability, self._seed = options.mask_probability, options.seed
        tokenizer = windows.tokenizer
        self._special = set(getattr(tokenizer, "all_special_ids", ()))
        self._mask_token = getattr(tokenizer, "mask_token_id", None)
        if head == "masked" and self._mask_token is None:
            raise ModelError(
                f"the tokenizer ({type(tokenizer).__name__}) has no mask token, which a masked language model needs. "
                "Set tokenizer.mask_token, or use the tokenizer that the model was trained with"
            )
        suffix = special_tokens(tokenizer)[1]
        self._last_label = suffix[-1] if suffix else IGNORED

    def description(self) -> dict[str, Any]:
        """See ``Task``."""
        masking = {"mask_probability": self._mask_probability} if self._head == "masked" else {}
        return {
            "task": self._head,
            "texts": self._windows.description,
            "text_sha256": self._windows.text_sha256,
            "max_length": self._windows.max_length,
            "stride": self._windows.stride,
            "max_tokens": self._windows.max_tokens,
            **masking,
        }

    def steps(self, start: Cursor) -> Iterator[Step]:
        """See ``Task``."""
        for batch in self.source.batches(start):
            assert batch.counted is not None  # noqa: S101 - windows of text say which of their tokens count
            if self._head == "masked":
                yield self._hidden(batch, batch.counted)
            elif self._head == "causal":
                yield Step(batch, _shifted(batch.inputs["input_ids"], batch.counted))
            else:
                yield self._translated(batch)

    def _hidden(self, batch: Batch, counted: Tensor) -> Step:
        ids = batch.inputs["input_ids"]
        candidates = counted & ~torch.isin(ids, torch.tensor(sorted(self._special), dtype=ids.dtype))
        labels = torch.full_like(ids, IGNORED)
        for row, (document, window) in enumerate(zip(batch.documents, batch.windows, strict=True)):
            positions = candidates[row].nonzero().flatten()
            if not len(positions):
                continue
            name = f"{self._seed}/{document}/{window}".encode()
            digest = int.from_bytes(hashlib.sha256(name).digest()[:7], "big")
            generator = torch.Generator().manual_seed(digest)
            draws = torch.rand(len(positions), generator=generator)
            chosen = draws < self._mask_probability
            chosen[draws.argmin()] = True
            labels[row, positions[chosen]] = ids[row, positions[chosen]]
        ids = ids.masked_fill(labels != IGNORED, int(self._mask_token or 0))
        return Step(replace(batch, inputs={**batch.inputs, "input_ids": ids}), labels)

    def _translated(self, batch: Batch) -> Step:
        ids, real = batch.inputs["decoder_input_ids"], batch.inputs["decoder_attention_mask"].bool()
        labels = _shifted(ids, real)
        # The token after the last one that the decoder reads is not in the batch: it ends every text.
        labels[torch.arange(len(ids)), real.sum(1) - 1] = self._last_label
        counted = batch.counted_decoder
        return Step(batch, labels if counted is None else labels.masked_fill(~counted, IGNORED))


def _shifted(ids: Tensor, counted: Tensor) -> Tensor:
    """The next token of each position, where it counts."""
    result = torch.full_like(ids, IGNORED)
    result[:, :-1] = ids[:, 1:].masked_fill(~counted[:, 1:], IGNORED)
    return result


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of sentences with scores.

    Attributes:
        description: Their source.
        sentences: Two sentences per pair.
        scores: A score per pair, higher for more similar.
        sha256: Digest of the file; None without one.
    """

    description: str
    sentences: tuple[tuple[str, str], ...]
    scores: tuple[float, ...]
    sha256: str | None = None


class SentenceTask(Task):
    """Sentence embeddings: distinct sentences, the shortest first, so that batches have little padding.

    Sentences that are too long are truncated, as by sentence encoders; ``description`` has their number.

    Args:
        documents: Texts, each a sentence; None without.
        pairs: Scored pairs; None without.
        tokenizer: A tokenizer of ``transformers``.
        config: The model's configuration.
        options: Options with those of :class:`CutTexts` and the maximum number of compared pairs of documents.

    Raises:
        InputError: If there are too few sentences or an option cannot be met.
    """

    unit = "sentences"

    def __init__(
        self,
        documents: Documents | None,
        pairs: ScoredPairs | None,
        tokenizer: Any,
        config: Any,
        options: SwapOptions,
    ) -> None:
        self._documents, self._pairs, self._options = documents, pairs, options
        self.source = self._cut = CutTexts(documents, tokenizer, config, options)
        self._numbers: dict[str, int] = {}
        self._ids: list[tuple[int, ...]] = []
        read = sorted({self._number(text) for text in self._texts()})
        sentences = () if pairs is None else pairs.sentences
        scored = [[self._number(first), self._number(second)] for first, second in sentences]
        self._check(read, scored)
        by_length = sorted(
            enumerate(self._ids, start=1), key=lambda sentence: (len(sentence[1]), sentence[0])
        )
        self._cut.texts = dict(by_length)
        self.scored = None if pairs is None else torch.tensor(scored)
        self.scores = None if pairs is None else torch.tensor(pairs.scores, dtype=torch.float64)
        # Whether the ranked pairs are of all sentences, so that sentences are resampled instead of pairs.
        self.by_sentence = documents is not None
        self.ranked = (
            torch.tensor(read)[sampled_pairs(len(read), options.sample_pairs, options.seed)]
            if self.by_sentence
            else torch.tensor(scored)
        )

    def _texts(self) -> Iterator[str]:
        """The sentences of the documents."""
        for document in () if self._documents is None else self._cut.read():
            if document.target is not None:
                raise InputError(
                    "a target column was given, but embedded sentences have no target. Leave it out."
                )
            yield document.text.strip()

    def _number(self, text: str) -> int:
        """Index of a sentence, which is cut if it is new."""
        if text not in self._numbers:
            self._numbers[text] = len(self._ids)
            self._ids.append(self._cut.cut(text))
        return self._numbers[text]

    def _check(self, read: list[int], scored: list[list[int]]) -> None:
        """Raise if there are no similarities to rank, given the sentences of documents and of pairs."""
        documents, pairs = self._documents, self._pairs
        different = len({self._ids[index] for index in read})
        if documents is not None and different < 3:
            raise InputError(
                f"{documents.description} has {number_of(different, 'sentence')} that the tokenizer "
                "tells apart; a ranking of similarities needs at least 3, one per line. Give more, or scored pairs "
                "(--pairs)."
            )
        bare = len(self._cut.prefix) + len(self._cut.suffix)
        if not any(len(ids) > bare for ids in self._ids):
            source = " and ".join(given.description for given in (documents, pairs) if given is not None)
            raise InputError(
                f"{source} has no token to embed: the tokenizer returns none for any sentence. Check the file and the "
                "tokenizer."
            )
        compared = [frozenset(self._ids[index] for index in pair) for pair in scored]
        # Equal sentences always have similarity 1.
        if pairs is not None and len({pair if len(pair) == 2 else None for pair in compared}) < 2:
            raise InputError(
                f"{pairs.description} repeats one pair of sentences, or pairs equal ones, as far as the tokenizer "
                "tells them apart, so there are no similarities to rank. Give different pairs."
            )

    @property
    def count(self) -> int:
        """Number of distinct sentences."""
        return len(self._ids)

    def description(self) -> dict[str, Any]:
        """See ``Task``."""
        documents, pairs = self._documents, self._pairs
        content = hashlib.sha256(repr(self._ids).encode()).hexdigest()
        return {
            "task": "embedding",
            "texts": None if documents is None else documents.description,
            "text_sha256": None if documents is None else documents.text_sha256,
            "pairs": None if pairs is None else pairs.description,
            "pairs_sha256": None if pairs is None else pairs.sha256,
            "scored_pairs": 0 if self.scored is None else len(self.scored),
            "ranked_pairs": len(self.ranked),
            "sentences": self.count,
            "sentences_sha256": content,
            "truncated": self._cut.truncated,
            "max_length": self._cut.max_length,
            "max_tokens": self._options.max_tokens,
        }


def sampled_pairs(count: int, pairs: int, seed: int) -> Tensor:
    """Distinct pairs of distinct items: all of them, or a random sample.

    Args:
        count: Number of items.
        pairs: Maximum number of pairs.
        seed: Seed of the sample.

    Returns:
        (P, 2) sorted indices from 0, the smaller one first.

    Example:
        >>> sampled_pairs(3, 10, 0).tolist()
        [[0, 1], [0, 2], [1, 2]]
    """
    everything = count * (count - 1) // 2
    if everything <= pairs:
        return torch.combinations(torch.arange(count))
    generator = torch.Generator().manual_seed(seed)
    result: set[tuple[int, int]] = set()
    while len(result) < pairs:
        for first, second in torch.randint(count, (pairs, 2), generator=generator).tolist():
            if first != second and len(result) < pairs:
                result.add((min(first, second), max(first, second)))
    return torch.tensor(sorted(result))


def labelled_texts(
    documents: Documents, tokenizer: Any, config: Any, options: SwapOptions
) -> tuple[CutTexts, Tensor]:
    """Texts, and the index of the class of each.

    Args:
        documents: The texts, with labels for targets: names of classes, or their numbers.
        tokenizer: A tokenizer of ``transformers``.
        config: The model's configuration, which names its classes.
        options: As for ``SentenceTask``.

    Raises:
        InputError: If a label is not a class of the model.
    """
    result = CutTexts(documents, tokenizer, config, options)
    labels: dict[str, str | None] = {}
    for number, document in enumerate(result.read(), start=1):
        result.texts[number] = result.cut(document.text)
        labels[f"document {document.number}"] = document.target
    return result, class_numbers(labels, config)


def classes_of(config: Any) -> dict[str, int]:
    """Indices of the classes of a configuration, by name and by number in words; of two also by false and true.

    Tables and models write these in small letters or capitals: a class of one of these names is found by either.
    """
    known = {str(name): int(number) for name, number in (getattr(config, "label2id", None) or {}).items()}
    count = int(getattr(config, "num_labels", 0))
    numbers = {str(number): number for number in range(count)}
    named = {name.lower(): number for name, number in known.items() if name.lower() in ("false", "true")}
    truth = named or ({"false": 0, "true": 1} if count == 2 else {})
    capitals = {name.capitalize(): number for name, number in truth.items()}
    return {**numbers, **truth, **capitals, **known}


def class_numbers(labels: Mapping[str, str | None], config: Any, *, otherwise: str = "") -> Tensor:
    """Class indices of labels, which are names or indices of classes.

    Args:
        labels: Label of each example, by the name of the example.
        config: The model's configuration, which names its classes.
        otherwise: Another way out, for the error.

    Raises:
        InputError: If a label is not a class of the model.
    """
    numbers, count = classes_of(config), int(getattr(config, "num_labels", 0))
    known = [str(name) for name in getattr(config, "label2id", None) or {}]
    for example, label in labels.items():
        if label is None or label.strip() not in numbers:
            raise InputError(
                f"{example} has the label {shown(label)}, which is not a class of the model; expected a number from 0 "
                f"to {count - 1} or one of {', '.join(known[:10])}.{otherwise}"
            )
    return torch.tensor([numbers[str(label).strip()] for label in labels.values()])


def classified(labels: Tensor) -> dict[str, Any]:
    """Arguments of :class:`ExampleTask` for a classifier, given the class index of each example."""

    def target(batch: Batch) -> Tensor:
        return labels[torch.tensor(batch.documents) - 1]

    def loss(output: Any, target: Tensor) -> Tensor:
        return cross_entropy(output.logits.double(), target, reduction="none")

    def score(output: Any, target: Tensor) -> Tensor:
        return output.logits.argmax(-1) == target

    return {"targets": target, "measures": {"loss": loss, "score": score}, "names": {"score": "accuracy"}}


@dataclass
class ExampleTask(Task):
    """Examples, each one unit of any size.

    Attributes:
        source: The batches.
        unit: Name of the examples, in the plural.
        measures: The ``loss``, for which lower is better, and the ``score``, for which higher is.
        targets: Function from a batch to the target of losses and scores. Default: its inputs.
        names: Names of loss and score in reports, if different.
        described: Further entries of the manifest.
    """

    source: TokenWindows | ImageBatches | ReadyBatches
    unit: str
    measures: Mapping[str, Measure]
    targets: Callable[[Batch], Any] = _inputs
    names: Mapping[str, str] = field(default_factory=dict)
    described: Mapping[str, Any] = field(default_factory=dict)

    def description(self) -> dict[str, Any]:
        """See ``Task``."""
        reads = getattr(self.source, "reads", "text")
        return {
            "task": "examples",
            "unit": self.unit,
            "measures": {name: self.names.get(name, name) for name in self.measures},
            "texts": self.source.description,
            **({} if reads == "text" else {"reads": reads}),
            "text_sha256": self.source.text_sha256,
            **self.described,
        }

    def observed(self, model: Any, step: Step) -> Observation:
        """See ``Task``."""
        output, stacks = observe_layers(model, step)
        device = device_and_dtype(model)[0]
        target = tree_map_only(Tensor, lambda one: one.to(device), self.targets(step.batch))
        rows = len(step.batch.documents)
        result = {name: _measured(name, one, output, target, rows) for name, one in self.measures.items()}
        return Observation(stacks, losses=result.get("loss"), scores=result.get("score"))


def _measured(name: str, measure: Measure, output: Any, target: Any, rows: int) -> Tensor:
    with torch.no_grad():
        result = measure(output, target)
    if not isinstance(result, Tensor) or result.shape != (rows,):
        got = tuple(result.shape) if isinstance(result, Tensor) else shown(result)
        raise InputError(
            f"{name} gave {got} for {rows} examples; expected a tensor of one number per example, ({rows},), such as "
            'cross_entropy(output, target, reduction="none")'
        )
    result = result.detach().double().cpu()
    if bool(result.isnan().any()):
        raise InputError(f"{name} gave NaN for an example, so its mean is undefined. Fix the function.")
    return result
