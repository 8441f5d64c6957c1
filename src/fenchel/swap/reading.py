"""Inputs of a swap: a model, and texts, pairs of sentences, labels, images or batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fenchel.arguments import checked, number_of, shown
from fenchel.auditing.inputs import RunModel, batches_of, load_run, refuse_beside_loader, require_one_source
from fenchel.errors import InputError, ModelError
from fenchel.integrations.registry import has_own_layers
from fenchel.integrations.sites import check_names, named_arguments
from fenchel.io.batches import Batch, ImageFiles, open_images
from fenchel.io.documents import (
    Documents,
    checked_text,
    file_sha256,
    missing_column,
    open_documents,
    readable_file,
    table_rows,
    text_of,
)
from fenchel.io.windows import ReadyBatches, TokenWindows, model_inputs
from fenchel.run_options import PairColumns, SwapOptions
from fenchel.swap.conditions import as_first_order
from fenchel.swap.observation import Task
from fenchel.swap.tasks import (
    ExampleTask,
    LanguageTask,
    Measure,
    ScoredPairs,
    SentenceTask,
    class_numbers,
    classes_of,
    classified,
    labelled_texts,
)
from fenchel.tensors import check_type, widened

_FEWEST = 3


def scored_pairs(
    pairs: str | Path | Iterable[Sequence[object]],
    columns: PairColumns = PairColumns(),  # noqa: B008 - it cannot be changed
    max_pairs: int | None = None,
) -> ScoredPairs:
    """Read scored pairs of sentences.

    Args:
        pairs: A table: ``.csv``, ``.jsonl``, ``.json`` or ``.parquet``, or else with columns separated by tabs, whose
            first line has their names, as of :func:`fenchel.io.documents.open_documents`; or tuples (sentence,
            sentence, score).
        columns: Names of the columns of a file.
        max_pairs: Maximum number of pairs. Default: all.

    Returns:
        The pairs.

    Raises:
        InputError: If the file cannot be read, a column is missing, a sentence or score is invalid, or there are too
            few to rank.
    """
    if isinstance(pairs, str | Path):
        file = readable_file(checked("pairs", pairs))
        description, sha256, rows = str(pairs), file_sha256(file), _file_rows(file, columns)
    else:
        description, sha256, rows = "Python pairs", None, _python_rows(pairs)
    result = list(islice(rows, max_pairs))
    scores = tuple(score for _, _, score in result)
    if len(result) < _FEWEST:
        raise InputError(
            f"{description} has {number_of(len(result), 'pair')}; a rank correlation needs at least "
            f"{_FEWEST}. Give more."
        )
    if len(set(scores)) == 1:
        raise InputError(
            f"{description} gives every pair the score {scores[0]:g}, so there is no ranking to compare with."
        )
    return ScoredPairs(description, tuple((first, second) for first, second, _ in result), scores, sha256)


def _python_rows(pairs: Iterable[Sequence[object]]) -> Iterator[tuple[str, str, float]]:
    if not isinstance(pairs, Iterable) or isinstance(pairs, Mapping):
        raise InputError(f"pairs is {shown(pairs)}; expected a path, or pairs such as [('a', 'b', 3.5)].")
    for number, pair in enumerate(pairs, start=1):
        whole = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 3
        if not whole or not all(isinstance(sentence, str) and sentence.strip() for sentence in pair[:2]):
            raise InputError(
                f"pair {number} is {shown(pair)}; expected two sentences and a score, such as ('a', 'b', 3.5)."
            )
        first, second, score = map(str, pair)
        checked_text(f"{first} {second}", f"pair {number}")
        yield first, second, _score(score, f"pair {number}")


def _file_rows(path: Path, columns: PairColumns) -> Iterator[tuple[str, str, float]]:
    sentences = (columns.first, columns.second)
    for number, row, _ in table_rows(path, (*sentences, columns.score)):
        where = f"row {number} of {path}"
        first, second = (text_of(row, name, where, label=False).strip() for name in sentences)
        if not first or not second:
            raise InputError(f"{where} has an empty sentence. Fix or drop the row.")
        if columns.score not in row:
            raise missing_column(columns.score, row, where)
        yield first, second, _score(str(row[columns.score]), where)


def _score(text: str, where: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{where} has the score {shown(text)}, which is not a number. Fix or drop it.")
    return score


# The model and the task.
Loaded = tuple[RunModel, Task]


@dataclass(frozen=True)
class Given:
    """Arguments of a swap.

    Attributes:
        model: A model, or the name or folder of one.
        tokenizer: Its tokenizer or image processor, if any.
        texts: Texts, or batches of ready-made inputs.
        pairs: Scored pairs of sentences.
        measures: The loss and the score of an output and its target, as far as given.
        options: Options of the swap.
    """

    model: str | nn.Module
    tokenizer: Any
    texts: Any
    pairs: Any
    measures: Mapping[str, Measure]
    options: SwapOptions

    def __post_init__(self) -> None:
        for name, measure in self.measures.items():
            expected = "a function of the model's output and the target"
            check_type(name, measure, Callable, expected, error=InputError)

    def opened(self) -> Callable[[], Loaded]:
        """Open texts, pairs or images, and return a function that loads the model and creates the task.

        Raises:
            InputError: If there is nothing to read, or it does not fit the model. The returned function raises it if
                the model does not read the inputs, and ``ModelError`` if the model cannot be loaded.
        """
        options, texts = self.options, self.texts
        if options.loader is not None:
            given = {"tokenizer": self.tokenizer, "texts": texts, "pairs": self.pairs, **self.measures}
            also = options.model_dump(include={"images", "revision", "max_pairs"})
            refuse_beside_loader(options.loader, **given, **also)
            options.refuse_options_of_text("a loader was")
            return partial(self._of_loader, options.loader)
        first = texts[0] if isinstance(texts, Sequence) and len(texts) else None
        if not has_own_layers(self.model) and options.images is None and not isinstance(first, Mapping):
            return self._opened_texts()
        if self.pairs is not None or options.max_pairs is not None:
            raise InputError(
                "scored pairs are for models of transformers that embed sentences, without other inputs. Leave them "
                "out; for batches give a score of each example: fenchel.swap.swap(model, None, batches, "
                "score=function)."
            )
        needed = "batches of inputs, such as [{'images': tensor}], or images (--images FOLDER)"
        require_one_source(texts, options.images, needed=needed, command="a swap")
        if options.images is not None:
            unlabelled = options.model_copy(update={"label_column": None})
            unlabelled.refuse_options_of_text("images were", "max_tokens")
            return partial(self._of_images, open_images(options.images, label_column=options.label_column))
        if isinstance(texts, str | Path) or isinstance(first, str):
            return partial(self._of_windows, open_documents(texts, **options.of_text))
        options.refuse_options_of_text("ready-made inputs were", "max_tokens")
        if isinstance(texts, Tensor | Mapping) or not isinstance(texts, Iterable):
            raise InputError(
                f"texts is {shown(texts)}; expected a list of batches, each the inputs of the model by name, or a pair "
                "of inputs and their target. Write [inputs]."
            )
        return partial(self._of_batches, list(texts))

    def _opened_texts(self) -> Callable[[], Loaded]:
        options = self.options
        if self.texts is None and self.pairs is None:
            raise InputError(
                "there is nothing to read: give texts (--text FILE), scored pairs (--pairs FILE), or both; or the file "
                "that loads the folder of a run (--loader FILE)."
            )
        for name in self.measures:
            raise InputError(
                f"{name} cannot be given with a model of transformers, where a swap measures the loss or embeddings "
                "of texts (--text FILE). It is for batches of inputs from Python, or for a model with attention "
                "layers of fenchel.nn."
            )
        if options.label_column is not None and (self.texts is None or self.pairs is not None):
            raise InputError(
                "label column names the classes of texts, and scored pairs were given. Give texts alone (--text FILE)."
            )
        if self.pairs is None and options.max_pairs is not None:
            raise InputError(
                f"max pairs is {options.max_pairs}, but no scored pairs were given. Add --pairs, or leave it out."
            )
        if self.pairs is None and options.columns != PairColumns():
            raise InputError("columns of pairs were given without scored pairs. Add --pairs FILE.")
        documents = None if self.texts is None else open_documents(self.texts, **options.of_text)
        scored = None if self.pairs is None else scored_pairs(self.pairs, options.columns, options.max_pairs)
        return partial(self._of_texts, documents, scored)

    def _loaded(
        self, *, with_head: bool = True, classifies: bool | Callable[[Any], bool] = False
    ) -> RunModel:
        return RunModel.of(
            self.model, self.tokenizer, self.options, with_head=with_head, classifies=classifies
        )

    def _of_loader(self, loader: Path) -> Loaded:
        """Model and batches of a loader; each row is an example."""
        run = load_run(loader, self.model)
        found, max_tokens = RunModel.of_run(run, self.options), self.options.max_tokens
        described: dict[str, Any] = {**run.manifest, "max_tokens": max_tokens}
        if (trained_with := as_first_order(found.model)) is not None:
            described["trained_with"] = trained_with
        ready = ReadyBatches(run.batches, config=found.config, max_tokens=max_tokens, loader=run.loader)
        measures = own_measures(run.batches)
        task = ExampleTask(ready, unit="examples", targets=_whole, measures=measures, described=described)
        return found, task

    def _of_images(self, source: ImageFiles) -> Loaded:
        # Without other measures, classes are.
        labels = None if self.measures else source.labels
        by_folder = labels if source.stored is None else None
        found = self._loaded(
            classifies=labels is not None if by_folder is None else partial(_names_a_class, by_folder)
        )
        measured: dict[str, Any] = {"measures": self.measures}
        if by_folder is not None and not _names_a_class(by_folder, found.config, type(found.model).__name__):
            labels = None
            measured["described"] = {"unlabelled": "no folder has the name of a class of the model"}
        if labels is not None:
            _check_classifies(found.model, "images")
            named = zip(map("image {}".format, source.paths), labels, strict=True)
            flat = " Without labels, put all images in one folder." if source.stored is None else ""
            measured = classified(class_numbers(dict(named), found.config, otherwise=flat))
        return found, ExampleTask(batches_of(source, found, self.options), unit="images", **measured)

    def _of_windows(self, documents: Documents) -> Loaded:
        """Texts for a model with layers of ``fenchel.nn``."""
        found = self._loaded()
        windows = batches_of(documents, found, self.options)
        return found, ExampleTask(windows, unit="windows", measures=self.measures)

    def _of_batches(self, batches: list[Any]) -> Loaded:
        found = self._loaded()
        inputs, targets = _parted(batches, found.model)
        ready = ReadyBatches(inputs, config=found.config)
        if not self.measures and (measures := own_measures(inputs)):
            return found, ExampleTask(ready, unit="examples", targets=_whole, measures=measures)

        def target(batch: Batch) -> Any:
            result = targets[batch.after.document - 1]
            return dict(batch.inputs) if result is None else result

        return found, ExampleTask(ready, unit="examples", targets=target, measures=self.measures)

    def _of_texts(self, documents: Documents | None, scored: ScoredPairs | None) -> Loaded:
        """Texts for a model of transformers that classifies, predicts or embeds them."""
        from fenchel.integrations.transformers import language_head

        options, labelled = self.options, self.options.label_column is not None
        found = self._loaded(with_head=scored is None, classifies=labelled)
        model, tokenizer = found.model, found.tokenizer
        if tokenizer is None:
            raise InputError(
                f"{type(model).__name__} has no tokenizer, but texts need one. Give the tokenizer that it was trained "
                "with, or a model that reads text."
            )
        if documents is not None and labelled:
            _refuse_stride(options, "texts with labels are read one by one")
            _check_classifies(model, "texts")
            texts, labels = labelled_texts(documents, tokenizer, model.config, options)
            described = {"max_length": texts.max_length, "truncated": texts.truncated}
            return found, ExampleTask(texts, unit="texts", **classified(labels), described=described)
        head = language_head(type(model).__name__) if scored is None else None
        if head is not None and documents is not None:
            windows = batches_of(documents, found, options)
            assert isinstance(windows, TokenWindows)  # noqa: S101 - they are of texts
            return found, LanguageTask(windows, head, options)
        _refuse_stride(options, "sentences are embedded one by one")
        # A sentence is embedded by the encoder, if there is one, without the head.
        has_decoder = getattr(model.config, "is_encoder_decoder", False)
        encoder = model.get_encoder() if has_decoder else model.base_model
        task = SentenceTask(documents, scored, tokenizer, encoder.config, options)
        return replace(found, model=encoder), task


def _check_classifies(model: Any, of: Literal["texts", "images"]) -> None:
    from fenchel.integrations.transformers import names_classes

    if names_classes(type(model).__name__) == of:
        return
    such = {"texts": "BertForSequenceClassification", "images": "ViTForImageClassification"}[of]
    raise ModelError(
        f"{type(model).__name__} is not a classifier of {of}; expected a model such as {such}. Leave the label column "
        "out, or give a classifier"
    )


def _refuse_stride(options: SwapOptions, why: str) -> None:
    if options.stride is not None:
        raise InputError(f"stride is {options.stride}, but {why} and not cut into windows. Leave it out.")


def own_measures(batches: Iterable[Any]) -> dict[str, Measure]:
    """The loss and the score of ready-made batches, as far as the first one has them."""
    first: Any = next(iter(batches), None)
    if model_inputs(first) is first:
        return {}
    return {name: partial(_own_measure, name) for name in ("loss", "score") if first.get(name) is not None}


def _own_measure(name: str, output: Any, batch: Batch) -> Tensor:
    measure = getattr(batch, name)
    if measure is None:
        raise InputError(
            f"batch {batch.after.document} has no {name}, but the first has one; expected one for each, or none."
        )
    # On the CPU, where batches are, and half precision as float32.
    return measure(tree_map_only(Tensor, lambda tensor: widened(tensor).cpu(), output))


def _whole(batch: Batch) -> Batch:
    return batch


def _parted(batches: Sequence[Any], model: nn.Module) -> tuple[list[dict[str, Any]], list[Any]]:
    """Split batches into inputs by name and targets."""
    inputs, targets, rows = [], [], 0
    for number, batch in enumerate(batches, start=1):
        content, target = batch, None
        if isinstance(batch, list | tuple):
            if len(batch) != 2:
                raise InputError(
                    f"batch {number} is a {type(batch).__name__} of {len(batch)}; expected the model's inputs by name, "
                    "or a pair of inputs and their target."
                )
            content, target = batch
        if isinstance(content, Tensor):
            content = {_first_argument(model): content}
        tensors = model_inputs(content)
        if not isinstance(tensors, Mapping) or not all(
            isinstance(value, Tensor) for value in tensors.values()
        ):
            raise InputError(
                f"batch {number} is {shown(tensors)}; expected the model's inputs, a mapping of names to tensors or "
                "one tensor, or a pair of these and their target."
            )
        check_names(model, tensors)
        inputs.append(dict(content))
        targets.append(target)
        rows += sum(len(value) for value in tensors.values() if value.dim())
    if inputs and not rows:
        raise InputError("there are no examples: the batches have no rows. Give at least one.")
    missing = [target is None for target in targets]
    if any(missing) and not all(missing):
        raise InputError(
            f"batch {missing.index(True) + 1} has no target, but others have one; expected a target for each, or none."
        )
    return inputs, targets


def _first_argument(model: nn.Module) -> str:
    if names := named_arguments(model):
        return names[0]
    raise InputError(
        f"the forward of {type(model).__name__} has no named argument, so batches have to be mappings of names to "
        "tensors."
    )


def _names_a_class(folders: Iterable[str], config: Any, *class_names: str) -> bool:
    """Whether a model classifies images, and some folder has the name of a class.

    Args:
        folders: Names of the folders.
        config: Configuration of the model.
        class_names: Name of its class. Default: of those that the weights were saved with.
    """
    from fenchel.integrations.transformers import names_classes

    of_images = "images" in map(names_classes, class_names or getattr(config, "architectures", None) or ())
    return of_images and not {name.strip() for name in folders}.isdisjoint(classes_of(config))
