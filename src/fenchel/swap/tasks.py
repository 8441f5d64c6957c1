"""What a model that is swapped is asked to do: predict words, or embed sentences."""

from __future__ import annotations

from typing import Any

from fenchel.data.text.documents import Documents
from fenchel.data.text.windows import TokenWindows
from fenchel.errors import InputError
from fenchel.options import SwapOptions
from fenchel.runs.model import RunModel
from fenchel.swap.language import LanguageTask
from fenchel.swap.pairs import ScoredPairs
from fenchel.swap.sentences import SentenceTask

__all__ = ["task_of"]


def task_of(
    found: RunModel, documents: Documents | None, scored: ScoredPairs | None, options: SwapOptions
) -> tuple[Any, LanguageTask | SentenceTask]:
    """The model that is run, and what it is asked to do.

    Args:
        found: The model and its tokenizer.
        documents: The texts, if there are any.
        scored: Pairs of sentences with scores, if there are any.
        options: What was asked for.

    Raises:
        InputError: If there is no tokenizer, or an option is about the other task.
    """
    from fenchel.integrations.transformers.language_head import language_head

    model, tokenizer = found.model, found.tokenizer
    if tokenizer is None:
        raise InputError(
            f"{type(model).__name__} comes without a tokenizer, and texts need one. Give the tokenizer that it was "
            "trained with, or a model that reads text."
        )
    head = language_head(type(model).__name__) if scored is None else None
    if head is not None and documents is not None:
        windows = TokenWindows(
            documents,
            tokenizer,
            config=model.config,
            max_length=options.max_length,
            stride=options.stride,
            batch_size=options.batch_size,
            max_tokens=options.max_tokens,
        )
        return model, LanguageTask(
            windows, head, mask_probability=options.mask_probability, seed=options.seed
        )
    if options.stride is not None:
        raise InputError(
            f"stride is {options.stride}, but sentences are embedded one by one and not cut into windows. Leave it out."
        )
    # A sentence is embedded by the encoder alone, where there is one, and never by a head.
    encoder = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model.base_model
    task = SentenceTask(
        documents,
        scored,
        tokenizer,
        config=encoder.config,
        max_length=options.max_length,
        batch_size=options.batch_size,
        max_tokens=options.max_tokens,
        sample_pairs=options.sample_pairs,
        seed=options.seed,
    )
    return encoder, task
