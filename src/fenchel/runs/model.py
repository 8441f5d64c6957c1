"""The model that a run reads texts with: loaded or found as the caller left it, and put back so at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments import checked, shown
from fenchel.data.digest import tensors_digest
from fenchel.errors import InputError, ModelError
from fenchel.nn.inference import attention_layers
from fenchel.runs.loader import LoadedRun
from fenchel.storage.digest import PREFIX

__all__ = ["RunModel", "device_and_dtype", "evaluating", "image_processor", "on_device", "seeded"]


@dataclass(frozen=True)
class RunModel:
    """A model that is ready to run: one of transformers, or one with attention layers of ``fenchel.nn``.

    Attributes:
        model: The model, where and as it is to run.
        tokenizer: Its tokenizer, None if there is none.
        name: What the user called it, or what it calls itself.
        revision: Commit or digest of what was loaded; None if nobody knows.
        named: Whether it was loaded by its name.
    """

    model: Any
    tokenizer: Any
    name: str
    revision: str | None
    named: bool = False

    @classmethod
    def of(
        cls,
        model: str | nn.Module,
        tokenizer: Any,
        *,
        device: str | None,
        dtype: Any,
        revision: str | None,
        with_head: bool = False,
    ) -> RunModel:
        """Load a named model, or move a loaded one.

        Args:
            model: A model, or the name or folder of one.
            tokenizer: The tokenizer to use; None for the named model's own.
            device: Where to run; None for where it is, ``cpu`` for a named one.
            dtype: What to run in, as torch has it or by name; None for what it is in, ``float32`` for a named one.
            revision: Revision of a named model.
            with_head: Whether a named model is loaded with its language-model head, if it has one.

        Raises:
            InputError: If the dtype is none to compute in, or a revision is asked of a loaded model or a folder.
            ModelError: If a named model cannot be loaded, or what was given is no model.
        """
        chosen = None if dtype is None else checked("dtype", dtype)
        if isinstance(model, str):
            from fenchel.integrations.transformers.loading import load_model

            loaded, own, info = load_model(
                model,
                device=device or "cpu",
                dtype=chosen or "float32",
                revision=revision,
                with_head=with_head,
            )
            return cls(loaded, own if tokenizer is None else tokenizer, model, info.revision, named=True)
        if not isinstance(model, nn.Module) or not (hasattr(model, "config") or attention_layers(model)):
            raise ModelError(
                f"model is {shown(model)}; expected a model of transformers, with a config, or the name or "
                "folder of one, or a module with attention layers of fenchel.nn."
            )
        if revision is not None:
            raise InputError(
                f"revision {revision!r} was given with a model that is loaded already. Give the model's name, or load "
                "that revision yourself."
            )
        if chosen not in (None, "auto"):
            model = model.to(dtype=getattr(torch, chosen))
        config = getattr(model, "config", None)
        commit = getattr(config, "_commit_hash", None)
        return cls(
            model if device is None else model.to(device=device),
            tokenizer,
            getattr(config, "_name_or_path", None) or type(model).__name__,
            commit or (_weights_digest(model) if attention_layers(model) else None),
        )

    @classmethod
    def of_run(cls, run: LoadedRun, **where: Any) -> RunModel:
        """The model that a loader gave, under the name of its folder.

        Args:
            run: What the loader gave.
            **where: ``device``, ``dtype`` and ``revision``; see ``of``.
        """
        found = cls.of(run.model, None, **where)
        return replace(found, name=run.folder, revision=_weights_digest(found.model))


def _weights_digest(model: nn.Module) -> str:
    """What tells a model of no name from another of its class."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return PREFIX + tensors_digest([dict(tensors)])


def image_processor(found: RunModel, revision: str | None) -> Any:
    """What makes the inputs of a vision model from images: what was given with it, or what a named one was saved with.

    Raises:
        InputError: If the model reads no images, or is loaded already and came without a processor.
        ModelError: If a named model was saved without one.
    """
    from fenchel.integrations.transformers.image_processor import check_reads_images, load_image_processor

    if found.tokenizer is None and not hasattr(found.model, "config") and attention_layers(found.model):
        raise InputError(
            f"{type(found.model).__name__} was given images without an image processor. Give what makes its inputs in "
            "the place of the tokenizer, or ready-made inputs such as [{'images': tensor}]."
        )
    check_reads_images(found.model, getattr(found.tokenizer, "input_name", "pixel_values"))
    if found.tokenizer is not None:
        return found.tokenizer
    if not found.named:
        raise InputError(
            f"{type(found.model).__name__} was given images without an image processor. Give it in the place of the "
            "tokenizer, or the name or folder of the model."
        )
    return load_image_processor(found.name, revision)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards every module is as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextlib.contextmanager
def seeded(seed: int, model: nn.Module) -> Iterator[None]:
    """Torch's random numbers from ``seed``; afterwards they go on as if nothing had been drawn."""
    cuda = sorted({parameter.device.index for parameter in model.parameters() if parameter.is_cuda})
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        yield


def device_and_dtype(model: Any) -> tuple[torch.device, torch.dtype]:
    """Where a model is, and what it computes in: as it says itself, or by its first floating parameter.

    Example:
        >>> device_and_dtype(nn.Linear(2, 2).double())
        (device(type='cpu'), torch.float64)
    """
    device, dtype = getattr(model, "device", None), getattr(model, "dtype", None)
    if device is not None and dtype is not None:
        return device, dtype
    first = next((one for one in model.parameters() if one.is_floating_point()), torch.empty(0))
    return first.device, first.dtype


def on_device(inputs: dict[str, Tensor], model: Any) -> dict[str, Tensor]:
    """The inputs where the model is; floating-point inputs in its dtype."""
    device, dtype = device_and_dtype(model)
    return {
        name: value.to(device, dtype if value.is_floating_point() else None) for name, value in inputs.items()
    }
