"""What is swapped and on what: a model of transformers on texts, or one with attention layers of ``fenchel.nn``."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments import shown
from fenchel.errors import InputError
from fenchel.io.batches import Batch
from fenchel.io.documents import Documents, open_documents
from fenchel.io.images import ImageBatches, open_images
from fenchel.io.windows import ReadyBatches, TokenWindows
from fenchel.loading import LoadedRun, RunModel, image_processor, load_run, refuse_beside_loader
from fenchel.options import PairColumns, SwapOptions
from fenchel.swap.examples import ExampleTask, Measure
from fenchel.swap.language import LanguageTask
from fenchel.swap.layer_switch import as_first_order, has_own_layers
from fenchel.swap.pairs import ScoredPairs, read_pairs, scored_pairs
from fenchel.swap.sentences import SentenceTask
from fenchel.swap.tasks import task_of

__all__ = ["Given", "Subject"]


@dataclass(frozen=True)
class Subject:
    """A model that is swapped, and what it is asked to do.

    Attributes:
        found: What was given, loaded.
        model: What of it is run.
        task: What it is asked to do.
    """

    found: RunModel
    model: Any
    task: LanguageTask | SentenceTask | ExampleTask


@dataclass(frozen=True)
class Given:
    """What a swap is given to work on.

    Attributes:
        model: A model, or the name or folder of one.
        tokenizer: Its tokenizer or image processor, if one was given.
        texts: Texts; or batches of ready-made inputs.
        pairs: Scored pairs of sentences.
        images: A folder of images, or one.
        loss: Of an output and its target, for each example.
        score: Likewise, higher is better.
        loader: The file that loads the model and its batches.
    """

    model: str | nn.Module
    tokenizer: Any
    texts: Any
    pairs: Any
    images: str | Path | None
    loss: Measure | None
    score: Measure | None
    loader: Path | None = None

    def __post_init__(self) -> None:
        for name, measure in (("loss", self.loss), ("score", self.score)):
            if measure is not None and not callable(measure):
                raise InputError(
                    f"{name} is {shown(measure)}; expected a function of what the model returns and the target."
                )

    @property
    def of_layers(self) -> bool:
        """Whether attention layers of ``fenchel.nn`` are switched."""
        return has_own_layers(self.model)

    @property
    def _reads_texts(self) -> bool:
        """Whether a model of transformers reads texts or pairs, and not examples as any model does."""
        return not self.of_layers and self.images is None and not _are_batches(self.texts)

    def opened(self, options: SwapOptions) -> _Opened:
        """The texts, pairs and images, seen to be there before a model is loaded.

        Raises:
            InputError: If there is nothing to read, or something that does not go with the model.
        """
        if self.loader is not None:
            given = {
                name: getattr(self, name)
                for name in ("tokenizer", "texts", "images", "pairs", "loss", "score")
            }
            refuse_beside_loader(self.loader, **given, revision=options.revision, max_pairs=options.max_pairs)
            _refuse_options_of_text(options, "what a loader loads were")
            return _Opened()
        if self._reads_texts:
            self._refuse_all_but_texts()
            return _Opened(_documents(options, self.texts), _scored(options, self.pairs))
        if self.pairs is not None or options.max_pairs is not None:
            raise InputError(
                "scored pairs are for models of transformers that embed sentences, and nothing is read beside them. "
                "Leave them out; with batches a score of each example can be given: fenchel.swap.swap(model, None, "
                "batches, score=function)."
            )
        if (self.texts is None) == (self.images is None):
            raise InputError(
                "there is nothing to read: give batches of inputs, such as [{'images': tensor}], or images "
                "(--images FOLDER)."
                if self.texts is None
                else "both texts and images were given; a swap reads one of them. Leave --text or --images out."
            )
        if self.images is not None:
            _refuse_options_of_text(options, "images were", "max_tokens")
            return _Opened(images=open_images(self.images))
        if _are_texts(self.texts):
            return _Opened(_documents(options, self.texts))
        _refuse_options_of_text(options, "ready-made inputs were", "max_tokens")
        return _Opened(batches=list(_iterated(self.texts)))

    def _refuse_all_but_texts(self) -> None:
        if self.texts is None and self.pairs is None and self.images is None:
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

    def subject(self, opened: _Opened, options: SwapOptions) -> Subject:
        """The model, loaded, with its task.

        Args:
            opened: What ``opened`` gave.
            options: What was asked for.

        Raises:
            InputError: If the model does not read what was given.
            ModelError: If it cannot be loaded.
        """
        where: dict[str, Any] = {
            "device": options.device,
            "dtype": options.dtype,
            "revision": options.revision,
        }
        if self.loader is not None:
            run = load_run(self.loader, self.model)
            found = RunModel.of_run(run, **where)
            return Subject(found, found.model, _examples_of_run(found, run, options))
        if self._reads_texts:
            found = RunModel.of(self.model, self.tokenizer, **where, with_head=opened.scored is None)
            return Subject(found, *task_of(found, opened.documents, opened.scored, options))
        found = RunModel.of(self.model, self.tokenizer, **where, with_head=True)
        return Subject(found, found.model, self._examples(found, opened, options))

    def _examples(self, found: RunModel, opened: _Opened, options: SwapOptions) -> ExampleTask:
        if opened.images is not None:
            processor = image_processor(found, options.revision)
            images = ImageBatches(
                opened.images,
                processor,
                config=getattr(found.model, "config", processor),
                batch_size=options.batch_size,
            )
            return ExampleTask(images, unit="images", loss=self.loss, score=self.score)
        if opened.documents is not None:
            if found.tokenizer is None:
                raise InputError(
                    f"{type(found.model).__name__} was given texts without a tokenizer. Give its tokenizer, or batches "
                    "of ready-made inputs such as [{'images': tensor}]."
                )
            windows = TokenWindows(
                opened.documents,
                found.tokenizer,
                max_length=options.max_length,
                stride=options.stride,
                batch_size=options.batch_size,
                max_tokens=options.max_tokens,
            )
            return ExampleTask(windows, unit="windows", loss=self.loss, score=self.score)
        batches = opened.batches or []
        inputs, targets = _parted(batches, found.model)
        ready = ReadyBatches(inputs, config=getattr(found.model, "config", None))
        own = _own_measures(inputs) if self.loss is None and self.score is None else {}
        if own:
            return ExampleTask(
                ready, unit="examples", targets=_whole, loss=own.get("loss"), score=own.get("score")
            )

        def target(batch: Batch) -> Any:
            return targets[batch.after.document - 1]

        paired = any(one is not None for one in targets)
        return ExampleTask(
            ready, unit="examples", targets=target if paired else None, loss=self.loss, score=self.score
        )


@dataclass(frozen=True)
class _Opened:
    documents: Documents | None = None
    scored: ScoredPairs | None = None
    images: Any = None
    batches: list[Any] | None = None


def _examples_of_run(found: RunModel, run: LoadedRun, options: SwapOptions) -> ExampleTask:
    """What a loader gave, each row an example."""
    trained_with, own = as_first_order(found.model), _own_measures(run.batches)
    ready = ReadyBatches(
        run.batches,
        config=getattr(found.model, "config", None),
        max_tokens=options.max_tokens,
        loader=run.loader,
    )
    return ExampleTask(
        ready,
        unit="examples",
        targets=_whole,
        loss=own.get("loss"),
        score=own.get("score"),
        described={
            **run.manifest,
            "max_tokens": options.max_tokens,
            **({} if trained_with is None else {"trained_with": trained_with}),
        },
    )


def _own_measures(batches: Iterable[Any]) -> dict[str, Measure]:
    """The loss and the score that batches bring with them, by what the first of them has."""
    first = next(iter(batches), None)
    if not isinstance(first, Mapping) or not isinstance(first.get("inputs"), Mapping):
        return {}
    return {name: _own_measure(name) for name in ("loss", "score") if first.get(name) is not None}


def _own_measure(name: str) -> Measure:
    def measure(output: Any, batch: Batch) -> Tensor:
        own = getattr(batch, name)
        if own is None:
            raise InputError(
                f"batch {batch.after.document} has no {name} and the first has one; expected one for each, or none."
            )
        return own(_on_processor(output))

    return measure


def _on_processor(output: Any) -> Any:
    """What a model returned on the CPU, where batches are, and in float32 if it was in half precision."""
    if isinstance(output, Tensor):
        return output.float().cpu() if output.dtype in (torch.float16, torch.bfloat16) else output.cpu()
    if isinstance(output, Mapping):
        return type(output)(**{name: _on_processor(value) for name, value in output.items()})
    if isinstance(output, list | tuple):
        moved = map(_on_processor, output)
        return type(output)(*moved) if hasattr(output, "_fields") else type(output)(moved)
    return output


def _whole(batch: Batch) -> Batch:
    return batch


def _are_batches(texts: Any) -> bool:
    return isinstance(texts, Sequence) and bool(len(texts)) and isinstance(texts[0], Mapping)


def _are_texts(texts: Any) -> bool:
    if isinstance(texts, str | Path):
        return True
    return isinstance(texts, Sequence) and bool(len(texts)) and isinstance(texts[0], str)


def _iterated(texts: Any) -> Iterable[Any]:
    if isinstance(texts, Tensor | Mapping) or not isinstance(texts, Iterable):
        raise InputError(
            f"texts is {shown(texts)}; expected a list of batches, each the inputs of the model by name, or a pair of "
            "inputs and their target. Write [inputs]."
        )
    return texts


def _parted(batches: Sequence[Any], model: nn.Module) -> tuple[list[dict[str, Tensor]], list[Any]]:
    """The inputs of each batch by name, and what came with them."""
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
        _check_names(model, own)
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


def _check_names(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    from fenchel.auditing.sites import check_names

    forward = inspect.signature(model.forward).parameters.values()
    if not any(one.kind is one.VAR_KEYWORD for one in forward):
        check_names(model, inputs)


def _first_argument(model: nn.Module) -> str:
    named = (
        name
        for name, one in inspect.signature(model.forward).parameters.items()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.POSITIONAL_ONLY)
    )
    first = next(named, None)
    if first is None:
        raise InputError(
            f"the forward of {type(model).__name__} names no argument, so batches have to be mappings of names to "
            "tensors."
        )
    return first


def _refuse_options_of_text(options: SwapOptions, read: str, *besides: str) -> None:
    options.refuse_options_of_text(read, *besides, "sample_pairs", "mask_probability", "columns")


def _documents(options: SwapOptions, texts: str | Path | Iterable[str] | None) -> Documents | None:
    """The documents of texts, if there are texts."""
    return None if texts is None else open_documents(texts, **options.of_text)


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
        found = scored_pairs(pairs)
        return replace(
            found, sentences=found.sentences[: options.max_pairs], scores=found.scores[: options.max_pairs]
        )
    if options.max_pairs is not None:
        raise InputError(
            f"max pairs is {options.max_pairs}, but no scored pairs were given. Add --pairs, or leave it out."
        )
    if options.columns != PairColumns():
        raise InputError("columns of pairs were named, but no scored pairs were given. Add --pairs FILE.")
    return None
