"""Open the texts, images and batches that audits and swaps read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fenchel.errors import InputError
from fenchel.integrations.sites import named_arguments
from fenchel.io.documents import Documents, open_documents
from fenchel.io.images import ImageBatches, ImageFiles, open_images
from fenchel.io.runs import WHOLE, Shard
from fenchel.io.windows import ReadyBatches, TokenWindows, ready_made
from fenchel.loading import LoadedRun, RunModel, image_processor, refuse_beside_loader
from fenchel.nn.inference import attention_layers
from fenchel.run_options import AuditOptions, ReadingOptions

Texts = str | Path | Iterable[str] | Iterable[Mapping[str, Any]]


# Sources of batches that can be iterated again, from any cursor.
Batches = TokenWindows | ImageBatches | ReadyBatches


def opened_documents(
    options: AuditOptions, texts: Texts | None, source: Any
) -> Documents | ImageFiles | None:
    """Open texts or images; returns None for ready-made inputs.

    Args:
        options: Options of the audit.
        texts: Texts, or ready-made inputs.
        source: Name of the model, or the tokenizer.

    Raises:
        InputError: If neither or both were given, an option of texts is given without texts, or they cannot be read.
    """
    if options.loader is not None:
        refuse_beside_loader(options.loader, texts=texts, images=options.images, revision=options.revision)
        options.refuse_options_of_text("a loader was")
        return None
    needed = "texts (--text FILE), images (--images FOLDER), or the file that loads the folder of a run (--loader FILE)"
    require_one_source(texts, options.images, needed=needed, command="an audit")
    if options.images is not None:
        options.refuse_options_of_text("images were", "max_tokens")
        return open_images(options.images)
    if ready_made(texts, source):
        options.refuse_options_of_text("ready-made inputs were")
        return None
    return open_documents(texts, **options.of_text)  # pyright: ignore[reportArgumentType]


def require_one_source(texts: Any, images: Path | None, *, needed: str, command: str) -> None:
    """Raise unless either texts or images were given.

    Args:
        texts: Texts, or ready-made inputs.
        images: Images.
        needed: What can be given.
        command: What reads them.
    """
    if texts is None and images is None:
        raise InputError(f"there is nothing to read: give {needed}.")
    if texts is not None and images is not None:
        raise InputError(
            f"both texts and images were given; {command} reads one of them. Leave --text or --images out."
        )


def opened_batches(
    options: AuditOptions,
    texts: Texts | None,
    documents: Documents | ImageFiles | None,
    found: RunModel,
    run: LoadedRun | None = None,
) -> Batches:
    """Create the batches of an audit.

    Args:
        options: Options of the audit.
        texts: Texts, or ready-made inputs.
        documents: Result of :func:`opened_documents`.
        found: The model.
        run: Model and batches of a loader.

    Raises:
        InputError: If there are texts without a tokenizer, or images for a model that does not read images.
    """
    kind = type(found.model).__name__
    if options.alpha != 1 and attention_layers(found.model):
        raise InputError(
            f"alpha is {options.alpha:g}, but the attention layers of {kind} have their own α, which is audited. "
            "Leave alpha out, or set it with fenchel.nn.use_estimator(model, 'first_order', alpha=...)."
        )
    if options.template_scale != "model" and attention_layers(found.model):
        raise InputError(
            f"template scale is {options.template_scale}, but the attention layers of {kind} have their own scale, "
            "which is audited. Leave it out."
        )
    if documents is not None:
        return batches_of(documents, found, options, shard=options.shard)
    inputs: Any = texts if run is None else run.batches
    shared = {"max_tokens": options.max_tokens, "shard": options.shard, "loader": run and run.loader}
    return ReadyBatches(inputs, config=found.config, **shared)


def batches_of(
    source: Documents | ImageFiles, found: RunModel, options: ReadingOptions, *, shard: Shard = WHOLE
) -> ImageBatches | TokenWindows:
    """Create the batches of texts or images.

    Args:
        source: The texts or images.
        found: The model that reads them.
        options: Options of the run.
        shard: Share of the texts or images that is read.

    Raises:
        InputError: If the model does not read texts or images.
    """
    config = found.config
    if isinstance(source, ImageFiles):
        processor = image_processor(found, options.revision)
        return ImageBatches(
            source, processor, config=config or processor, batch_size=options.batch_size, shard=shard
        )
    if found.tokenizer is None:
        named = named_arguments(found.model) or ["inputs"]
        names = [getattr(found.model, "main_input_name", None) or named[0]]
        names += ["decoder_input_ids"] if getattr(config, "is_encoder_decoder", False) else []
        example = ", ".join(f"'{name}': tensor" for name in names)
        images = ", or images (--images FOLDER)" if names == ["pixel_values"] else ""
        raise InputError(
            f"{type(found.model).__name__} was given texts without a tokenizer. Give its tokenizer, or in Python "
            f"ready-made inputs such as [{{{example}}}]{images}."
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
