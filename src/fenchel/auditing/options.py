"""What an audit is asked for, checked once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol

from fenchel.arguments import checked
from fenchel.auditing.layer_capture import has_layers
from fenchel.closeness import AbstractCloseness
from fenchel.closeness.tsallis import closeness_name, closeness_named
from fenchel.data.batch import Batch, Cursor
from fenchel.data.image_batches import ImageBatches
from fenchel.data.image_files import ImageFiles, open_images
from fenchel.data.ready_batches import ReadyBatches, ready_made
from fenchel.data.shard import Shard
from fenchel.data.text.documents import Documents, open_documents
from fenchel.data.text.windows import TokenWindows
from fenchel.errors import InputError
from fenchel.runs.loader import LoadedRun, refuse_beside_loader
from fenchel.runs.model import RunModel, image_processor
from fenchel.runs.observer import SilentObserver
from fenchel.runs.occupied import refuse_without_folder
from fenchel.runs.progress import ReadingObserver

__all__ = ["AuditOptions", "Baseline", "Batches", "Texts", "shard_directory"]

Texts = str | Path | Iterable[str] | Iterable[Mapping[str, Any]]

Baseline = Literal["auto", "twin", "none"]
"""Whether the model's untrained twin is audited beside it: if that takes less than a minute, in any case, or not."""

_NOT_IN_THE_TABLE = frozenset({"closeness", "dtype", "shard"})  # checked where they are understood


class Batches(Protocol):
    """Gives the same batches at every pass, from any place between two of them."""

    @property
    def max_length(self) -> int | None:
        """Tokens in a window."""
        ...

    @property
    def stride(self) -> int | None:
        """Tokens from the start of one window's text to that of the next."""
        ...

    @property
    def description(self) -> str:
        """The source as it was given."""
        ...

    @property
    def text_sha256(self) -> str | None:
        """SHA-256 of the source, or None where it has no fixed content to hash."""
        ...

    def batches(self, start: Cursor = ...) -> Iterable[Batch]:
        """The batches from a place on."""
        ...


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """The options of ``fenchel.audit``, by the same names; see there."""

    space: Literal["input", "key"]
    closeness: str | None
    even_so: bool
    alpha: float
    tol: float
    max_length: int | None
    stride: int | None
    batch_size: int
    max_tokens: int | None
    layers: tuple[int, ...] | None
    heads: tuple[int, ...] | None
    baseline: Baseline | None
    device: str | None
    dtype: Any
    revision: str | None
    whole_file: bool
    text_column: str | None
    target_column: str | None
    shard: Shard
    seed: int
    observer: ReadingObserver | None
    directory: Path | None
    resume: bool
    overwrite: bool
    keep_queries: bool
    checkpoint_seconds: float
    memory_budget: int
    queries: int | None
    loader: Path | None = None

    @classmethod
    def checked(cls, **given: Any) -> AuditOptions:
        """The options as they were given.

        Args:
            **given: The options by name.

        Raises:
            InputError: If one cannot be meant, or asks for a folder where there is none.
        """
        options = {
            field.name: given[field.name]
            if field.name in _NOT_IN_THE_TABLE
            else checked(field.name, given[field.name])
            for field in fields(cls)
            if field.name in given
        }
        near = closeness_name(given["closeness"])
        own = {"space": options["space"] or ("input" if options.get("loader") is None else "key")}
        self = cls(**{**options, **own, "shard": Shard.of(given["shard"]), "closeness": near})
        refuse_without_folder(
            self.folder, resume=self.resume, overwrite=self.overwrite, keep_queries=self.keep_queries
        )
        return self

    @property
    def measured_closeness(self) -> AbstractCloseness | None:
        """D, or None for softmax."""
        return closeness_named(self.closeness)

    @property
    def folder(self) -> Path | None:
        """Where this shard's files go."""
        return None if self.directory is None else shard_directory(self.directory, self.shard)

    @property
    def told(self) -> ReadingObserver:
        """Who is told about the progress."""
        return self.observer or SilentObserver()

    @property
    def control(self) -> Baseline:
        """The baseline: by default the twin if a report is written and it takes less than a minute."""
        return self.baseline or ("none" if self.directory is None else "auto")

    @property
    def of_text(self) -> dict[str, Any]:
        """How texts are read."""
        return {
            "whole_file": self.whole_file,
            "text_column": self.text_column,
            "target_column": self.target_column,
        }

    def _refuse_options_of_text(self, read: str, **more: object) -> None:
        of_text = {"max_length": self.max_length, "stride": self.stride, **more, **self.of_text}
        given = [name for name, value in of_text.items() if value not in (None, False)]
        if given:
            raise InputError(
                f"{given[0].replace('_', ' ')} is an option of texts, and {read} given. Leave it out."
            )

    def documents(
        self, texts: Texts | None, source: Any, images: str | Path | None = None
    ) -> Documents | ImageFiles | None:
        """The documents of texts, or the images; None where the inputs are ready-made.

        Args:
            texts: As they were given.
            source: The name of the model, or the tokenizer.
            images: As they were given.

        Raises:
            InputError: If there are neither or both, an option of texts is given with something else, or they cannot be
                read.
        """
        if self.loader is not None:
            refuse_beside_loader(self.loader, texts=texts, images=images, revision=self.revision)
            self._refuse_options_of_text("a loader was")
            return None
        if (texts is None) == (images is None):
            raise InputError(
                "there is nothing to read: give texts (--text FILE), images (--images FOLDER), or the file that loads "
                "the folder of a run (--loader FILE)."
                if texts is None
                else "both texts and images were given; an audit reads one of them. Leave --text or --images out."
            )
        if images is not None:
            self._refuse_options_of_text("images were", max_tokens=self.max_tokens)
            return open_images(images)
        if ready_made(texts, source):
            return None
        return open_documents(texts, **self.of_text)  # pyright: ignore[reportArgumentType]

    def batches(
        self,
        texts: Texts | None,
        documents: Documents | ImageFiles | None,
        found: RunModel,
        run: LoadedRun | None = None,
    ) -> Batches:
        """The batches that the model reads.

        Args:
            texts: As they were given.
            documents: What ``documents`` made of them.
            found: The model.
            run: What a loader gave.

        Raises:
            InputError: If there are texts and no tokenizer, or images for a model that reads none.
        """
        if self.alpha != 1 and has_layers(found.model):
            raise InputError(
                f"alpha is {self.alpha:g}, but the attention layers of {type(found.model).__name__} have α of "
                "their own, "
                "which is what is audited. Leave alpha out, or set it with fenchel.nn.use_estimator(model, "
                "'first_order', alpha=...)."
            )
        config, shared = (
            getattr(found.model, "config", None),
            {"max_tokens": self.max_tokens, "shard": self.shard},
        )
        if isinstance(documents, ImageFiles):
            processor = image_processor(found, self.revision)
            return ImageBatches(
                documents,
                processor,
                config=config or processor,
                batch_size=self.batch_size,
                shard=self.shard,
            )
        if run is not None:
            return ReadyBatches(run.batches, config=config, loader=run.loader, **shared)
        if documents is None:
            return ReadyBatches(texts, config=config, **shared)  # pyright: ignore[reportArgumentType]
        if found.tokenizer is None:
            raise InputError(
                f"{type(found.model).__name__} was given texts without a tokenizer. Give its tokenizer, or ready-made "
                "inputs such as [{'pixel_values': tensor}], or images (--images FOLDER)."
            )
        return TokenWindows(
            documents,
            found.tokenizer,
            config=config,
            max_length=self.max_length,
            stride=self.stride,
            batch_size=self.batch_size,
            **shared,
        )


def shard_directory(directory: str | Path, shard: Shard | str | Sequence[int]) -> Path:
    """The folder of one shard's files: ``directory`` itself where there is only one.

    Example:
        >>> shard_directory("out", (1, 4)).as_posix()
        'out/shard-1-of-4'
    """
    part = Shard.of(shard)
    folder: Path = checked("directory", directory)
    return folder if part.count == 1 else folder / f"shard-{part.index}-of-{part.count}"
