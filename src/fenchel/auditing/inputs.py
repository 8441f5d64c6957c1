"""What audits and swaps read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fenchel.errors import InputError
from fenchel.integrations.layer_calls import has_layers
from fenchel.io.documents import Documents, open_documents
from fenchel.io.images import ImageBatches, ImageFiles, open_images
from fenchel.io.runs import Shard
from fenchel.io.windows import ReadyBatches, TokenWindows, ready_made
from fenchel.loading import LoadedRun, RunModel, image_processor, refuse_beside_loader
from fenchel.run_options import AuditOptions, ReadingOptions

_WHOLE = Shard()

Texts = str | Path | Iterable[str] | Iterable[Mapping[str, Any]]


Batches = TokenWindows | ImageBatches | ReadyBatches
"""Gives the same batches at every pass, from any place between two of them."""


def opened_documents(
    options: AuditOptions, texts: Texts | None, source: Any
) -> Documents | ImageFiles | None:
    """The documents of texts, or the images; None where the inputs are ready-made.

    Args:
        options: What was asked for.
        texts: As they were given.
        source: The name of the model, or the tokenizer.

    Raises:
        InputError: If there are neither or both, an option of texts is given with something else, or they cannot be
            read.
    """
    if options.loader is not None:
        refuse_beside_loader(options.loader, texts=texts, images=options.images, revision=options.revision)
        options.refuse_options_of_text("a loader was")
        return None
    if (texts is None) == (options.images is None):
        raise InputError(
            "there is nothing to read: give texts (--text FILE), images (--images FOLDER), or the file that loads "
            "the folder of a run (--loader FILE)."
            if texts is None
            else "both texts and images were given; an audit reads one of them. Leave --text or --images out."
        )
    if options.images is not None:
        options.refuse_options_of_text("images were", "max_tokens")
        return open_images(options.images)
    if ready_made(texts, source):
        options.refuse_options_of_text("ready-made inputs were")
        return None
    return open_documents(texts, **options.of_text)  # pyright: ignore[reportArgumentType]


def opened_batches(
    options: AuditOptions,
    texts: Texts | None,
    documents: Documents | ImageFiles | None,
    found: RunModel,
    run: LoadedRun | None = None,
) -> Batches:
    """The batches that the model reads.

    Args:
        options: What was asked for.
        texts: As they were given.
        documents: What :func:`opened_documents` made of them.
        found: The model.
        run: What a loader gave.

    Raises:
        InputError: If there are texts and no tokenizer, or images for a model that reads none.
    """
    if options.alpha != 1 and has_layers(found.model):
        raise InputError(
            f"alpha is {options.alpha:g}, but the attention layers of {type(found.model).__name__} have α of "
            "their own, "
            "which is what is audited. Leave alpha out, or set it with fenchel.nn.use_estimator(model, "
            "'first_order', alpha=...)."
        )
    if options.template_scale != "model" and has_layers(found.model):
        raise InputError(
            f"template scale is {options.template_scale}, but the attention layers of {type(found.model).__name__} "
            "have a scale of their own, which is what is audited. Leave it out."
        )
    config, shared = (
        getattr(found.model, "config", None),
        {"max_tokens": options.max_tokens, "shard": options.shard},
    )
    if documents is not None:
        return batches_of(documents, found, options, shard=options.shard)
    if run is not None:
        return ReadyBatches(run.batches, config=config, loader=run.loader, **shared)
    return ReadyBatches(texts, config=config, **shared)  # pyright: ignore[reportArgumentType]


def batches_of(
    source: Documents | ImageFiles, found: RunModel, options: ReadingOptions, *, shard: Shard = _WHOLE
) -> ImageBatches | TokenWindows:
    """The batches of texts or images.

    Args:
        source: The texts or images.
        found: The model that reads them.
        options: What was asked for.
        shard: Which of the texts or images.

    Raises:
        InputError: If the model does not read them.
    """
    config = getattr(found.model, "config", None)
    if isinstance(source, ImageFiles):
        processor = image_processor(found, options.revision)
        return ImageBatches(
            source, processor, config=config or processor, batch_size=options.batch_size, shard=shard
        )
    if found.tokenizer is None:
        raise InputError(
            f"{type(found.model).__name__} was given texts without a tokenizer. Give its tokenizer, or ready-made "
            "inputs such as [{'pixel_values': tensor}], or images (--images FOLDER)."
        )
    return TokenWindows(
        source,
        found.tokenizer,
        config=config,
        max_length=options.max_length,
        stride=options.stride,
        batch_size=options.batch_size,
        max_tokens=options.max_tokens,
        shard=shard,
    )
