"""Models and inputs of audits and swaps: how they are loaded and opened, and how a model is run."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments import checked, path_name, reason_of, shown
from fenchel.errors import InputError, ModelError, OutputError
from fenchel.integrations.registry import quiet, require_transformers
from fenchel.integrations.sites import named_arguments
from fenchel.integrations.transformers import load_model
from fenchel.io.batches import ImageBatches, ImageFiles, open_images
from fenchel.io.documents import Documents, open_documents
from fenchel.io.runs import WHOLE, Shard
from fenchel.io.storage import PREFIX, digest_of_bytes, tensors_digest
from fenchel.io.windows import ReadyBatches, TokenWindows
from fenchel.nn.inference import attention_layers
from fenchel.run_options import AuditOptions, ReadingOptions
from fenchel.tensors import check_type

Texts = str | Path | Iterable[str] | Iterable[Mapping[str, Any]]

# Sources of batches that can be iterated again, from any cursor.
Batches = TokenWindows | ImageBatches | ReadyBatches


@dataclass(frozen=True)
class LoadedRun:
    """The result of a loader.

    Attributes:
        model: The trained model.
        batches: Its inputs, see :class:`fenchel.io.windows.ReadyBatches`; they can be iterated over repeatedly.
        folder: The folder of the run, as the user gave it.
        loader: The file of the loader, likewise.
        sha256: SHA-256 of the file.
    """

    model: nn.Module
    batches: Iterable[Mapping[str, Any]]
    folder: str
    loader: str
    sha256: str

    @property
    def manifest(self) -> dict[str, str]:
        """Entries of the manifest."""
        return {"loader": self.loader, "loader_sha256": self.sha256}


def load_run(loader: str | Path, folder: object) -> LoadedRun:
    """Import a Python file and call its ``load(folder)``, which returns a model and its batches.

    Modules in the folder of the file can be imported meanwhile, as in a script.

    Args:
        loader: A Python file with ``load(folder) -> (model, batches)``.
        folder: The folder of the run.

    Raises:
        InputError: If the file or folder does not exist, or the file has no ``load``, or it raises or returns something
            else.
    """
    path: Path = checked("loader", loader)
    run: Path = path_name(f"the folder of a run for loader {path}").check("model", folder)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"loader {path} cannot be read: {reason_of(error)}. Give a Python file.") from error
    if not run.is_dir():
        raise InputError(f"there is no folder {run} for loader {path} to load. Give the folder of a run.")
    with _importable(path.resolve().parent):
        load = getattr(_imported(path), "load", None)
        if not callable(load):
            raise InputError(f"loader {path} has no function load(folder) that returns (model, batches).")
        with _raising_input_error(f"load({str(run)!r}) of loader {path}"):
            result = load(run)
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], nn.Module):
        got = f"({', '.join(map(shown, result))})" if isinstance(result, tuple) else shown(result)
        raise InputError(f"load of loader {path} returned {got}; expected (model, batches).")
    model, batches = result
    if (
        isinstance(batches, Mapping | str)
        or not isinstance(batches, Iterable)
        or isinstance(batches, Iterator)
    ):
        raise InputError(
            f"load of loader {path} returned batches that are {shown(batches)}; expected a list, or an iterable that "
            "can be read repeatedly. Write list(batches)."
        )
    return LoadedRun(model, batches, str(folder), str(loader), digest_of_bytes(content))


def refuse_beside_loader(loader: object, **given: object) -> None:
    """Raise if an argument was given that a loader replaces.

    Raises:
        InputError: Naming the first.
    """
    if loader is None:
        return
    for name in (name.replace("_", " ") for name, value in given.items() if value is not None):
        raise InputError(
            f"{name} was given with a loader, which loads both the model and its inputs. Leave {name} out."
        )


def refuse_texts_as_tokenizer(tokenizer: object) -> None:
    """Raise if texts are in the place of the tokenizer.

    Raises:
        InputError: With the right order of arguments.
    """
    if isinstance(tokenizer, str | list | tuple):
        raise InputError(
            f"tokenizer is {shown(tokenizer)}; expected a tokenizer, or None for that of a named model. Texts come "
            "after it: (model, None, texts)."
        )


def _imported(path: Path) -> object:
    name = f"fenchel_loader_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"loader {path} is not a Python file; expected one that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look for their module there
    with _raising_input_error(f"loader {path}"):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Import modules from a folder first, even if others of the same names were imported before."""
    path, beside = list(sys.path), {one.stem for one in folder.glob("*.py")}
    others = {name: sys.modules.pop(name) for name in beside & sys.modules.keys() if not _is_in(folder, name)}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = path
        sys.modules.update(others)


def _is_in(folder: Path, module: str) -> bool:
    file = getattr(sys.modules[module], "__file__", None)
    return file is not None and Path(file).resolve().parent == folder


@contextlib.contextmanager
def _raising_input_error(source: str) -> Iterator[None]:
    """Turn any exception of a loader into one line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise InputError(f"{source} raised {type(error).__name__}: {reason_of(error)}") from error


@dataclass(frozen=True)
class RunModel:
    """A model that is ready to run: one of transformers, or one with attention layers of ``fenchel.nn``.

    Attributes:
        model: The model, on its device and in its dtype.
        tokenizer: Its tokenizer, if any.
        name: The name that the user gave, or its own.
        revision: Commit or digest of its weights; None if unknown.
        named: Whether it was loaded by its name.
    """

    model: Any
    tokenizer: Any
    name: str
    revision: str | None
    named: bool = False

    @property
    def config(self) -> Any:
        """The configuration of the model, if it has one."""
        return getattr(self.model, "config", None)

    @property
    def class_names(self) -> list[str]:
        """Names of the classes whose weights a named model was saved with, if known; else that of the model's class."""
        saved = getattr(self.config, "architectures", None) if self.named else None
        return saved or [type(self.model).__name__]

    @classmethod
    def of(
        cls,
        model: str | Path | nn.Module,
        tokenizer: Any,
        options: ReadingOptions,
        *,
        with_head: bool = False,
        classifies: bool | Callable[[Any], bool] = False,
    ) -> RunModel:
        """Load a named model, or move a loaded one.

        Args:
            model: A model, or the name or folder of one.
            tokenizer: The tokenizer; None for that of a named model.
            options: Options with the device and the dtype, by default those of the model, ``cpu`` and ``float32`` for
                a named one, and the revision of a named one.
            with_head: Whether to load a named model with its language-model head, if it has one.
            classifies: Whether to load it with its head for the classes of texts or images, or a function of its
                configuration that says so.

        Raises:
            InputError: If a loaded model was given a revision, or its device has no float64.
            ModelError: If a named model cannot be loaded, or ``model`` is not a model.
        """
        device, dtype, revision = options.device, options.dtype, options.revision
        if isinstance(model, str | Path):
            model = str(model)
            _check_float64(device or "cpu")
            loaded, own_tokenizer, info = load_model(
                model,
                device=device or "cpu",
                dtype=dtype or "float32",
                revision=revision,
                with_head=with_head,
                classifies=classifies,
            )
            tokenizer = own_tokenizer if tokenizer is None else tokenizer
            return cls(loaded, tokenizer, model, info.revision, named=True)
        if not isinstance(model, nn.Module) or not (hasattr(model, "config") or attention_layers(model)):
            raise ModelError(
                f"model is {shown(model)}; expected a model of transformers, with a config, or the name or "
                "folder of one, or a module with attention layers of fenchel.nn."
            )
        if revision is not None:
            raise InputError(
                f"revision {revision!r} was given with a model that is already loaded. Give the model's name, or load "
                "that revision yourself."
            )
        _check_float64(device or device_and_dtype(model)[0])
        if dtype not in (None, "auto"):
            model = model.to(dtype=getattr(torch, dtype))
        config = getattr(model, "config", None)
        commit = getattr(config, "_commit_hash", None)
        return cls(
            model if device is None else model.to(device=device),
            tokenizer,
            getattr(config, "_name_or_path", None) or type(model).__name__,
            commit or (_weights_digest(model) if attention_layers(model) else None),
        )

    @classmethod
    def of_run(cls, run: LoadedRun, options: ReadingOptions) -> RunModel:
        """The model of a loader, named by its folder; with options as of ``of``."""
        result = cls.of(run.model, None, options)
        return replace(result, name=run.folder, revision=_weights_digest(result.model))


def _weights_digest(model: nn.Module) -> str:
    """Digest of a model's parameters and buffers."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return PREFIX + tensors_digest([dict(tensors)])


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


def ready_made(texts: Any, tokenizer: Any) -> bool:
    """Whether ``texts`` (a path, strings, or mappings of tensors) are model inputs rather than texts."""
    if isinstance(texts, str | Path):
        return False
    if isinstance(texts, Mapping):
        raise InputError("texts is one mapping; expected a list of mappings of model inputs. Write [inputs].")
    check_type("texts", texts, Iterable, "a path, strings, or mappings of model inputs", error=InputError)
    first = texts[0] if isinstance(texts, Sequence) and texts else None
    return isinstance(first, Mapping | Tensor) or (tokenizer is None and not isinstance(first, str))


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


def image_processor(run: RunModel, revision: str | None) -> Any:
    """The image processor of a vision model: the one given in place of the tokenizer, or that of a named model.

    Raises:
        InputError: If the model has no image inputs, or was given loaded and without a processor.
        ModelError: If a named model was saved without one, or it cannot be loaded.
    """
    takes = named_arguments(run.model)
    # Without a processor and a configuration the input may have any name.
    is_named = run.tokenizer is not None or run.config is not None
    if is_named and getattr(run.tokenizer, "input_name", "pixel_values") not in takes:
        raise InputError(
            f"{type(run.model).__name__} reads no images: its forward takes {', '.join(takes[:4])}. Give it a "
            "text (--text)."
        )
    if run.tokenizer is not None:
        return run.tokenizer
    if not run.named:
        name = "images" if run.config is None else "pixel_values"
        raise InputError(
            f"{type(run.model).__name__} was given images without an image processor. Give it in place of the "
            f"tokenizer, the name or folder of the model, or ready-made inputs such as [{{'{name}': tensor}}]."
        )
    options = {"local_files_only": True} if Path(run.name).is_dir() else {"revision": revision or "main"}
    transformers = require_transformers()
    try:
        with quiet():
            return transformers.AutoImageProcessor.from_pretrained(run.name, **options)
    except Exception as error:  # broken configurations raise every kind of error
        raise ModelError(
            f"the image processor of {run.name} cannot be loaded: {reason_of(error)}. Save it beside the model "
            "(preprocessor_config.json)"
        ) from error


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, and restore the mode of every module afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextlib.contextmanager
def seeded(seed: int, model: nn.Module) -> Iterator[None]:
    """Seed torch, and restore its random state afterwards."""
    cuda = sorted({parameter.device.index for parameter in model.parameters() if parameter.is_cuda})
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def running(
    model: nn.Module, options: ReadingOptions, manifest: Mapping[str, Any], save: Callable[[], None]
) -> Iterator[None]:
    """Measure a model in evaluation mode from a seed, tell the observer, and save if the block is interrupted.

    Args:
        model: The model.
        options: Options with the observer and the seed.
        manifest: Manifest of the run.
        save: Saves what is complete. It is not called if writing has failed: the last checkpoint remains.
    """
    options.progress_observer.started(manifest)
    try:
        with evaluating(model), seeded(options.seed, model):
            yield
    except BaseException as error:
        if not isinstance(error, OutputError):
            with contextlib.suppress(Exception):  # the first error is the one to report
                save()
        raise
    finally:
        options.progress_observer.finished()


def device_and_dtype(model: Any) -> tuple[torch.device, torch.dtype]:
    """Device and dtype of a model: its attributes, or those of its first floating-point parameter.

    Example:
        >>> device_and_dtype(nn.Linear(2, 2).double())
        (device(type='cpu'), torch.float64)
    """
    device, dtype = getattr(model, "device", None), getattr(model, "dtype", None)
    if device is not None and dtype is not None:
        return device, dtype
    first = next((one for one in model.parameters() if one.is_floating_point()), torch.empty(0))
    return first.device, first.dtype


def _check_float64(device: torch.device | str) -> None:
    """Raise if a device, such as Apple's, cannot compute in float64, as certificates are."""
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except TypeError as error:
        raise InputError(
            f"device is {device}, but {reason_of(error)}; expected one with float64, such as cpu"
        ) from None


def on_device(inputs: dict[str, Tensor], model: Any) -> dict[str, Tensor]:
    """The inputs on the model's device, floating-point ones in its dtype."""
    device, dtype = device_and_dtype(model)
    return {
        name: value.to(device, dtype if value.is_floating_point() else None) for name, value in inputs.items()
    }
