"""What a swap is given to work on: a model, and texts, pairs of sentences, labels, images or batches for it to read."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fenchel.arguments import checked, shown
from fenchel.auditing.inputs import batches_of
from fenchel.errors import InputError, ModelError
from fenchel.io.batches import Batch
from fenchel.io.documents import (
    Documents,
    check_text,
    file_lines,
    file_sha256,
    listed_names,
    open_documents,
    readable_file,
)
from fenchel.io.images import ImageFiles, open_images
from fenchel.io.windows import ReadyBatches, TokenWindows
from fenchel.loading import LoadedRun, RunModel, load_run, refuse_beside_loader
from fenchel.run_options import PairColumns, SwapOptions
from fenchel.swap.conditions import as_first_order, has_own_layers
from fenchel.swap.observation import Task, mapped
from fenchel.swap.tasks import (
    ExampleTask,
    LabelledTexts,
    LanguageTask,
    Measure,
    ScoredPairs,
    SentenceTask,
    class_numbers,
    classified,
)

_FEWEST = 3
_LONGEST_LINE = 1 << 20


def read_pairs(path: str | Path, columns: PairColumns, max_pairs: int | None = None) -> ScoredPairs:
    """Reads a table of pairs: UTF-8, columns separated by tabs, their names in the first line.

    Args:
        path: The file; a name that ends in ``.gz`` is decompressed.
        columns: Names of the columns.
        max_pairs: Read only the first so many. Default: all.

    Returns:
        The pairs.

    Raises:
        InputError: If the file cannot be read, a column is missing, or a sentence or score is not one.
    """
    file = readable_file(checked("pairs", path))
    rows = _rows(file, columns)
    chosen = list(rows if max_pairs is None else islice(rows, max_pairs))
    return _checked(str(path), chosen, file_sha256(file))


def scored_pairs(pairs: Iterable[Sequence[object]]) -> ScoredPairs:
    """Takes pairs from Python.

    Args:
        pairs: (sentence, sentence, score) each.

    Returns:
        The pairs.

    Raises:
        InputError: If one is anything else, or there are too few.
    """
    result = []
    if not isinstance(pairs, Iterable) or isinstance(pairs, Mapping):
        raise InputError(f"pairs is {shown(pairs)}; expected a path, or pairs such as [('a', 'b', 3.5)].")
    for number, pair in enumerate(pairs, start=1):
        whole = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 3
        if not whole or not all(isinstance(sentence, str) and sentence.strip() for sentence in pair[:2]):
            raise InputError(
                f"pair {number} is {shown(pair)}; expected two sentences and a score, such as ('a', 'b', 3.5)."
            )
        check_text(f"{pair[0]} {pair[1]}", f"pair {number}")
        result.append((str(pair[0]), str(pair[1]), _score(str(pair[2]), f"pair {number}")))
    return _checked("Python pairs", result, None)


def _rows(path: Path, columns: PairColumns) -> Iterator[tuple[str, str, float]]:
    lines = file_lines(path, longest=_LONGEST_LINE)
    _, header, _ = next(lines)
    names = header.split("\t")
    wanted = {"first": columns.first, "second": columns.second, "score": columns.score}
    for name in wanted.values():
        if names.count(name) != 1:
            raise InputError(
                f"{path} has {names.count(name) or 'no'} column{'s' if names.count(name) else ''} {shown(name)}; its "
                f"first line names {listed_names(names)}, separated by tabs. Name the sentences' columns with "
                "--first-column and --second-column and the score's with --score-column."
            )
    places = {role: names.index(name) for role, name in wanted.items()}
    for number, line, _ in lines:
        if not line.strip():
            continue
        cells = line.split("\t")
        where = f"line {number} of {path}"
        if len(cells) != len(names):
            raise InputError(
                f"{where} has {len(cells)} columns, and the first line has {len(names)}. Mend the line."
            )
        first, second = cells[places["first"]].strip(), cells[places["second"]].strip()
        if not first or not second:
            raise InputError(f"{where} has an empty sentence. Mend or drop the line.")
        yield first, second, _score(cells[places["score"]], where)


def _score(text: str, where: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{where} has the score {shown(text)}, which is not a number. Mend or drop it.")
    return score


def _checked(description: str, rows: list[tuple[str, str, float]], sha256: str | None) -> ScoredPairs:
    if len(rows) < _FEWEST:
        raise InputError(
            f"{description} has {len(rows)} pair{'' if len(rows) == 1 else 's'}; a rank correlation needs at least "
            f"{_FEWEST}. Give more."
        )
    scores = tuple(score for _, _, score in rows)
    if len(set(scores)) == 1:
        raise InputError(
            f"{description} gives every pair the score {scores[0]:g}, so there is no ranking to compare with."
        )
    return ScoredPairs(description, tuple((first, second) for first, second, _ in rows), scores, sha256)


@dataclass(frozen=True)
class _Opened:
    source: Documents | ImageFiles | None = None
    scored: ScoredPairs | None = None
    batches: list[Any] | None = None


@dataclass(frozen=True)
class Given:
    """What a swap is given to work on.

    Attributes:
        model: A model, or the name or folder of one.
        tokenizer: Its tokenizer or image processor, if one was given.
        texts: Texts; or batches of ready-made inputs.
        pairs: Scored pairs of sentences.
        loss: Of an output and its target, for each example.
        score: Likewise, higher is better.
    """

    model: str | nn.Module
    tokenizer: Any
    texts: Any
    pairs: Any
    loss: Measure | None
    score: Measure | None

    def __post_init__(self) -> None:
        for name, measure in (("loss", self.loss), ("score", self.score)):
            if measure is not None and not callable(measure):
                raise InputError(
                    f"{name} is {shown(measure)}; expected a function of what the model returns and the target."
                )

    def _reads_texts(self, options: SwapOptions) -> bool:
        """Whether a model of transformers reads texts or pairs, and not examples as any model does."""
        batches = isinstance(self.texts, Sequence) and len(self.texts) and isinstance(self.texts[0], Mapping)
        return not has_own_layers(self.model) and options.images is None and not batches

    def opened(self, options: SwapOptions) -> _Opened:
        """The texts, pairs and images, seen to be there before a model is loaded.

        Raises:
            InputError: If there is nothing to read, or something that does not go with the model.
        """
        if options.loader is not None:
            given = {name: getattr(self, name) for name in ("tokenizer", "texts", "pairs", "loss", "score")}
            also = {name: getattr(options, name) for name in ("images", "revision", "max_pairs")}
            refuse_beside_loader(options.loader, **given, **also)
            _refuse_options_of_text(options, "what a loader loads were")
            return _Opened()
        if self._reads_texts(options):
            return self._opened_texts(options)
        if self.pairs is not None or options.max_pairs is not None:
            raise InputError(
                "scored pairs are for models of transformers that embed sentences, and nothing is read beside them. "
                "Leave them out; with batches a score of each example can be given: fenchel.swap.swap(model, None, "
                "batches, score=function)."
            )
        if (self.texts is None) == (options.images is None):
            raise InputError(
                "there is nothing to read: give batches of inputs, such as [{'images': tensor}], or images "
                "(--images FOLDER)."
                if self.texts is None
                else "both texts and images were given; a swap reads one of them. Leave --text or --images out."
            )
        if options.images is not None:
            unlabelled = options.model_copy(update={"label_column": None})
            _refuse_options_of_text(unlabelled, "images were", "max_tokens")
            return _Opened(open_images(options.images, label_column=options.label_column))
        of_texts = isinstance(self.texts, Sequence) and len(self.texts) and isinstance(self.texts[0], str)
        if isinstance(self.texts, str | Path) or of_texts:
            return _Opened(open_documents(self.texts, **options.of_text))
        _refuse_options_of_text(options, "ready-made inputs were", "max_tokens")
        if isinstance(self.texts, Tensor | Mapping) or not isinstance(self.texts, Iterable):
            raise InputError(
                f"texts is {shown(self.texts)}; expected a list of batches, each the inputs of the model by name, or a "
                "pair of inputs and their target. Write [inputs]."
            )
        return _Opened(batches=list(self.texts))

    def _opened_texts(self, options: SwapOptions) -> _Opened:
        if self.texts is None and self.pairs is None:
            raise InputError(
                "there is nothing to read: give texts (--text FILE), scored pairs (--pairs FILE), or both; or the file "
                "that loads the folder of a run (--loader FILE)."
            )
        given = {"loss": self.loss, "score": self.score}
        wrong = next((name for name, value in given.items() if value is not None), None)
        if wrong is not None:
            raise InputError(
                f"{wrong} cannot be given with a model of transformers, of which a swap measures the loss or the "
                "embeddings of texts (--text FILE). It is for batches of inputs, from Python, or for a model with "
                "attention layers of fenchel.nn."
            )
        if options.label_column is not None and (self.texts is None or self.pairs is not None):
            raise InputError(
                "label column names the classes of texts, and scored pairs were given. Give texts alone (--text FILE)."
            )
        documents = None if self.texts is None else open_documents(self.texts, **options.of_text)
        return _Opened(documents, _scored(options, self.pairs))

    def subject(self, opened: _Opened, options: SwapOptions) -> tuple[RunModel, Any, Task]:
        """What was given, loaded; what of it is run; and what that is asked to do.

        Args:
            opened: What ``opened`` gave.
            options: What was asked for.

        Raises:
            InputError: If the model does not read what was given.
            ModelError: If it cannot be loaded.
        """
        where = {name: getattr(options, name) for name in ("device", "dtype", "revision")}
        if options.loader is not None:
            run = load_run(options.loader, self.model)
            result = RunModel.of_run(run, **where)
            return result, result.model, _examples_of_run(result, run, options)
        reads_texts = self._reads_texts(options)
        classifies = options.label_column is not None if reads_texts else self._labels(opened) is not None
        result = RunModel.of(
            self.model,
            self.tokenizer,
            **where,
            with_head=not reads_texts or opened.scored is None,
            classifies=classifies,
        )
        if reads_texts:
            documents = None if isinstance(opened.source, ImageFiles) else opened.source
            return result, *_task_of_texts(result, documents, opened.scored, options)
        return result, result.model, self._examples(result, opened, options)

    def _labels(self, opened: _Opened) -> tuple[str, ...] | None:
        """The classes of images, where those of the model are measured and nothing that was given."""
        source = opened.source if self.loss is None and self.score is None else None
        return source.labels if isinstance(source, ImageFiles) else None

    def _examples(self, found: RunModel, opened: _Opened, options: SwapOptions) -> ExampleTask:
        config, measures = getattr(found.model, "config", None), {"loss": self.loss, "score": self.score}
        if (source := opened.source) is not None:
            batches, labels = batches_of(source, found, options), self._labels(opened)
            unit = "images" if isinstance(source, ImageFiles) else "windows"
            if not isinstance(source, ImageFiles) or labels is None:
                return ExampleTask(batches, unit=unit, measures=measures)
            _check_classifies(found.model, "images")
            numbers = class_numbers(
                {f"image {path}": label for path, label in zip(source.paths, labels, strict=True)}, config
            )
            return ExampleTask(batches, unit=unit, **classified(numbers))
        inputs, targets = _parted(opened.batches or [], found.model)
        ready = ReadyBatches(inputs, config=config)
        own = own_measures(inputs) if self.loss is None and self.score is None else {}
        if own:
            return ExampleTask(ready, unit="examples", targets=_whole, measures=own)

        def target(batch: Batch) -> Any:
            return targets[batch.after.document - 1]

        paired = any(one is not None for one in targets)
        return ExampleTask(ready, unit="examples", targets=target if paired else None, measures=measures)


def _examples_of_run(found: RunModel, run: LoadedRun, options: SwapOptions) -> ExampleTask:
    """What a loader gave, each row an example."""
    trained_with = as_first_order(found.model)
    ready = ReadyBatches(
        run.batches,
        config=getattr(found.model, "config", None),
        max_tokens=options.max_tokens,
        loader=run.loader,
    )
    described = {**run.manifest, "max_tokens": options.max_tokens}
    if trained_with is not None:
        described["trained_with"] = trained_with
    own = own_measures(run.batches)
    return ExampleTask(ready, unit="examples", targets=_whole, measures=own, described=described)


def _task_of_texts(
    found: RunModel, documents: Documents | None, scored: ScoredPairs | None, options: SwapOptions
) -> tuple[Any, Task]:
    """The model of transformers that is run on texts, and what it is asked: to name classes, to predict, to embed."""
    from fenchel.integrations.transformers.loading import language_head

    model, tokenizer = found.model, found.tokenizer
    if tokenizer is None:
        raise InputError(
            f"{type(model).__name__} comes without a tokenizer, and texts need one. Give the tokenizer that it was "
            "trained with, or a model that reads text."
        )
    if documents is not None and options.label_column is not None:
        _refuse_stride(options, "texts with labels are read one by one")
        _check_classifies(model, "texts")
        texts = LabelledTexts(documents, tokenizer, model.config, options)
        return model, ExampleTask(texts, unit="texts", **classified(texts.labels), described=texts.described)
    head = language_head(type(model).__name__) if scored is None else None
    if head is not None and documents is not None:
        windows = batches_of(documents, found, options)
        assert isinstance(windows, TokenWindows)  # noqa: S101 - they are of texts
        return model, LanguageTask(
            windows, head, mask_probability=options.mask_probability, seed=options.seed
        )
    _refuse_stride(options, "sentences are embedded one by one")
    # A sentence is embedded by the encoder alone, where there is one, and never by a head.
    encoder = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model.base_model
    return encoder, SentenceTask(documents, scored, tokenizer, encoder.config, options)


def _check_classifies(model: Any, of: Literal["texts", "images"]) -> None:
    from fenchel.integrations.transformers.loading import names_classes

    if names_classes(type(model).__name__) == of:
        return
    such, otherwise = {
        "texts": ("BertForSequenceClassification", "Leave the label column out"),
        "images": ("ViTForImageClassification", "Give a folder of images without labels"),
    }[of]
    raise ModelError(
        f"{type(model).__name__} names no classes of {of}; expected a model such as {such}. {otherwise}, or give a "
        "classifier"
    )


def _refuse_stride(options: SwapOptions, why: str) -> None:
    if options.stride is not None:
        raise InputError(f"stride is {options.stride}, but {why} and not cut into windows. Leave it out.")


def own_measures(batches: Iterable[Any]) -> dict[str, Measure]:
    """The loss and the score that batches bring with them, by what the first of them has."""
    first = next(iter(batches), None)
    if not isinstance(first, Mapping) or not isinstance(first.get("inputs"), Mapping):
        return {}
    return {name: own_measure(name) for name in ("loss", "score") if first.get(name) is not None}


def own_measure(name: str) -> Measure:
    """The loss or the score that each batch brings with it, as a measure whose target is the batch."""

    def measure(output: Any, batch: Batch) -> Tensor:
        own = getattr(batch, name)
        if own is None:
            raise InputError(
                f"batch {batch.after.document} has no {name} and the first has one; expected one for each, or none."
            )
        return own(mapped(output, _on_processor))

    return measure


def _on_processor(output: Tensor) -> Tensor:
    """On the CPU, where batches are, and in float32 if it was in half precision."""
    return output.float().cpu() if output.dtype in (torch.float16, torch.bfloat16) else output.cpu()


def _whole(batch: Batch) -> Batch:
    return batch


def _parted(batches: Sequence[Any], model: nn.Module) -> tuple[list[dict[str, Tensor]], list[Any]]:
    """The inputs of each batch by name, and what came with them."""
    from fenchel.integrations.sites import check_names, takes_any_name

    anything = takes_any_name(model)
    inputs, targets, rows = [], [], 0
    for number, batch in enumerate(batches, start=1):
        own, target = batch, None
        if isinstance(batch, list | tuple):
            if len(batch) != 2:
                raise InputError(
                    f"batch {number} is a {type(batch).__name__} of {len(batch)}; expected the model's inputs by name, "
                    "or a pair of inputs and their target."
                )
            own, target = batch
        if isinstance(own, Tensor):
            own = {_first_argument(model): own}
        said = own if isinstance(own, Mapping) and isinstance(own.get("inputs"), Mapping) else {}
        own = said.get("inputs", own)
        if not isinstance(own, Mapping) or not all(isinstance(value, Tensor) for value in own.values()):
            raise InputError(
                f"batch {number} is {shown(own)}; expected the model's inputs, a mapping of names to tensors or one "
                "tensor, or a pair of these and their target."
            )
        if not anything:
            check_names(model, own)
        inputs.append(dict(said or own))
        targets.append(target)
        rows += sum(len(value) for value in own.values() if value.dim())
    if inputs and not rows:
        raise InputError("there are no examples: the batches have no rows. Give at least one.")
    without = next((number for number, one in enumerate(targets, start=1) if one is None), None)
    if without is not None and any(one is not None for one in targets):
        raise InputError(
            f"batch {without} has no target and others have one; expected a target for each, or none."
        )
    return inputs, targets


def _first_argument(model: nn.Module) -> str:
    taken = inspect.signature(model.forward).parameters.items()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    first = next((name for name, one in taken if one.kind in kinds), None)
    if first is None:
        raise InputError(
            f"the forward of {type(model).__name__} names no argument, so batches have to be mappings of names to "
            "tensors."
        )
    return first


def _refuse_options_of_text(options: SwapOptions, read: str, *besides: str) -> None:
    own = ("sample_pairs", "mask_probability", "columns", "label_column")
    options.refuse_options_of_text(read, *besides, *own)


def _scored(
    options: SwapOptions, pairs: str | Path | Iterable[Sequence[object]] | None
) -> ScoredPairs | None:
    """The scored pairs, if there are any.

    Raises:
        InputError: If they cannot be read, or an option is about pairs and there are none.
    """
    if isinstance(pairs, str | Path):
        return read_pairs(pairs, options.columns, options.max_pairs)
    if pairs is not None:
        result = scored_pairs(pairs)
        return replace(
            result, sentences=result.sentences[: options.max_pairs], scores=result.scores[: options.max_pairs]
        )
    if options.max_pairs is not None:
        raise InputError(
            f"max pairs is {options.max_pairs}, but no scored pairs were given. Add --pairs, or leave it out."
        )
    if options.columns != PairColumns():
        raise InputError("columns of pairs were named, but no scored pairs were given. Add --pairs FILE.")
    return None
