"""What is swapped and on what: a model of transformers on texts, or one with attention layers of ``fenchel.nn``."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fenchel.arguments import shown
from fenchel.auditing.trained import is_training, refuse_tested, trained_inputs, trained_model
from fenchel.auditing.trained_examples import TrainedExamples
from fenchel.data.batch import Batch
from fenchel.data.image_batches import ImageBatches
from fenchel.data.image_files import open_images
from fenchel.data.labelled_images import LabelledImages
from fenchel.data.ready_batches import ReadyBatches
from fenchel.data.text.documents import Documents
from fenchel.data.text.windows import TokenWindows
from fenchel.errors import InputError
from fenchel.runs.model import RunModel, image_processor
from fenchel.swap.examples import ExampleTask, Measure
from fenchel.swap.language import LanguageTask
from fenchel.swap.layer_switch import has_own_layers
from fenchel.swap.options import SwapOptions
from fenchel.swap.pairs import ScoredPairs
from fenchel.swap.sentences import SentenceTask
from fenchel.swap.tasks import task_of
from fenchel.swap.trained import as_first_order, trained_task

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
        test_images: How many of the images that a training was tested on.
        test_examples: How many of the examples that one on something else was tested on.
        loss: Of an output and its target, for each example.
        score: Likewise, higher is better.
    """

    model: str | nn.Module
    tokenizer: Any
    texts: Any
    pairs: Any
    images: str | Path | None
    test_images: int | None
    test_examples: int | None
    loss: Measure | None
    score: Measure | None

    def __post_init__(self) -> None:
        for name, measure in (("loss", self.loss), ("score", self.score)):
            if measure is not None and not callable(measure):
                raise InputError(
                    f"{name} is {shown(measure)}; expected a function of what the model returns and the target."
                )

    @property
    def of_layers(self) -> bool:
        """Whether attention layers of ``fenchel.nn`` are switched."""
        return is_training(self.model) or has_own_layers(self.model)

    def opened(self, options: SwapOptions) -> _Opened:
        """The texts, pairs and images, seen to be there before a model is loaded.

        Raises:
            InputError: If there is nothing to read, or something that does not go with the model.
        """
        if not self.of_layers:
            self._refuse_all_but_texts()
            return _Opened(options.documents(self.texts), options.scored(self.pairs))
        if self.pairs is not None or options.max_pairs is not None:
            raise InputError(
                "scored pairs are for models of transformers that embed sentences. Leave them out; with batches a "
                "score of each example can be given: fenchel.swap.swap(model, None, batches, score=function)."
            )
        whole = is_training(self.model) and self.images is None and self.texts is None
        if (self.texts is None) == (self.images is None) and not whole:
            raise InputError(
                "there is nothing to read: give batches of inputs, such as [{'images': tensor}], or images "
                "(--images FOLDER)."
                if self.texts is None
                else "both texts and images were given; a swap reads one of them. Leave --text or --images out."
            )
        if not whole:
            refuse_tested(test_images=self.test_images, test_examples=self.test_examples)
        if whole or self.images is not None:
            options.refuse_options_of_text("images")
        if whole:
            if self.loss is not None or self.score is not None:
                raise InputError(
                    "a loss or a score was given, and that of the training is taken where its own test images are read."
                    " Leave it out, or give batches."
                )
            own = trained_inputs(
                str(self.model), test_images=self.test_images, test_examples=self.test_examples
            )
            return _Opened(examples=own) if isinstance(own, TrainedExamples) else _Opened(images=own)
        if self.images is not None:
            return _Opened(images=open_images(self.images))
        if _are_texts(self.texts):
            return _Opened(options.documents(self.texts))
        options.refuse_options_of_text("ready-made inputs")
        return _Opened(batches=list(_iterated(self.texts)))

    def _refuse_all_but_texts(self) -> None:
        if self.texts is None and self.pairs is None and self.images is None:
            raise InputError(
                "there is nothing to read: give texts (--text FILE), scored pairs (--pairs FILE), or both."
            )
        given = {
            "images": self.images,
            "test images": self.test_images,
            "test examples": self.test_examples,
            "loss": self.loss,
            "score": self.score,
        }
        wrong = next((name for name, value in given.items() if value is not None), None)
        if wrong is not None:
            raise InputError(
                f"{wrong} cannot be given with a model of transformers, of which a swap measures the loss or the "
                "embeddings of texts (--text FILE). It is for the folder of a training, or, from Python, for "
                "a model with attention layers of fenchel.nn."
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
        if not self.of_layers:
            found = RunModel.of(self.model, self.tokenizer, **where, with_head=opened.scored is None)
            return Subject(found, *task_of(found, opened.documents, opened.scored, options))
        given = {"texts": self.texts, "images": self.images}
        reads = next((name for name, value in given.items() if value is not None), None)
        found = trained_model(self.model, reads=reads, **where)
        found = found or RunModel.of(self.model, self.tokenizer, **where)
        return Subject(found, found.model, self._examples(found, opened, options))

    def _examples(self, found: RunModel, opened: _Opened, options: SwapOptions) -> ExampleTask:
        if opened.examples is not None:
            return trained_task(opened.examples, as_first_order(found.model))
        if opened.images is not None:
            processor = image_processor(found, options.revision)
            images = ImageBatches(opened.images, processor, config=processor, batch_size=options.batch_size)
            if not isinstance(opened.images, LabelledImages):
                return ExampleTask(images, unit="images", loss=self.loss, score=self.score)
            labels = opened.images.dataset.labels
            return ExampleTask(
                images,
                unit="images",
                targets=lambda batch: labels[[document - 1 for document in batch.documents]],
                loss=_cross_entropy,
                score=_hits,
                loss_name="cross-entropy",
                score_name="accuracy",
                described={"test_images": len(opened.images)},
            )
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
        inputs, targets = _parted(opened.batches or [], found.model)

        def target(batch: Batch) -> Any:
            return targets[batch.after.document - 1]

        ready = ReadyBatches(inputs, config=getattr(found.model, "config", None))
        paired = any(one is not None for one in targets)
        return ExampleTask(
            ready, unit="examples", targets=target if paired else None, loss=self.loss, score=self.score
        )


@dataclass(frozen=True)
class _Opened:
    documents: Documents | None = None
    scored: ScoredPairs | None = None
    images: Any = None
    examples: TrainedExamples | None = None
    batches: list[Any] | None = None


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
    inputs, targets = [], []
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
        if not isinstance(own, Mapping) or not all(isinstance(value, Tensor) for value in own.values()):
            raise InputError(
                f"batch {number} is {shown(own)}; expected the model's inputs, a mapping of names to tensors or one "
                "tensor, or a pair of these and their target."
            )
        _check_names(model, own)
        inputs.append(dict(own))
        targets.append(target)
    if inputs and not any(len(value) for own in inputs for value in own.values() if value.dim()):
        raise InputError("there are no examples: the batches have no rows. Give at least one.")
    without = next((number for number, one in enumerate(targets, start=1) if one is None), None)
    if without is not None and any(one is not None for one in targets):
        raise InputError(
            f"batch {without} has no target and others have one; expected a target for each, or none."
        )
    return inputs, targets


def _check_names(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    from fenchel.auditing.capture_arguments import check_names

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


def _cross_entropy(output: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(output.float(), labels, reduction="none")


def _hits(output: Tensor, labels: Tensor) -> Tensor:
    return (output.argmax(-1) == labels).to(torch.float64)
