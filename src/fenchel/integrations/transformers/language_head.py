"""Which language-model head a checkpoint has, told by the class that saved it."""

from __future__ import annotations

from typing import Any, Literal

from fenchel.errors import ModelError
from fenchel.integrations.transformers.requirement import require_transformers

__all__ = ["LanguageHead", "automatic_class", "language_head", "names_classes", "swaps_whole_model"]

LanguageHead = Literal["masked", "causal", "seq2seq"]
"""What a head predicts: tokens that are hidden, the next token, or the next token of another text."""

_AUTOMATIC: dict[LanguageHead, str] = {
    "seq2seq": "AutoModelForSeq2SeqLM",
    "masked": "AutoModelForMaskedLM",
    "causal": "AutoModelForCausalLM",
}
# These predict hidden tokens, and whether one sentence follows another; the second head is left out.
_MASKED_AND_MORE = frozenset(
    {"AlbertForPreTraining", "BertForPreTraining", "BigBirdForPreTraining", "MegatronBertForPreTraining"}
    | {"MobileBertForPreTraining"}
)


def language_head(class_name: str) -> LanguageHead | None:
    """The language-model head of a model class of transformers.

    Args:
        class_name: Such as an entry of ``config.architectures``.

    Returns:
        ``"masked"``, ``"causal"``, ``"seq2seq"``; None for a class without such a head.

    Raises:
        MissingExtraError: If transformers is not installed.

    Example:
        >>> [language_head(name) for name in ("BertForMaskedLM", "GPT2LMHeadModel", "MarianMTModel", "BertModel")]
        ['masked', 'causal', 'seq2seq', None]
    """
    require_transformers()
    from transformers.models.auto import modeling_auto

    if class_name in _MASKED_AND_MORE:
        return "masked"
    # Some classes are in two tables: BART fills gaps as an encoder-decoder, XLM predicts hidden tokens either way.
    tables: tuple[tuple[LanguageHead, Any], ...] = (
        ("seq2seq", modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
        ("masked", modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        ("causal", modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    )
    return next((head for head, table in tables if class_name in table.values()), None)


def names_classes(class_name: str) -> bool:
    """Whether a model class of transformers has a head that names the class of a text.

    Example:
        >>> names_classes("BertForSequenceClassification"), names_classes("BertForMaskedLM")
        (True, False)
    """
    require_transformers()
    from transformers.models.auto import modeling_auto

    return class_name in modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.values()


def swaps_whole_model(model: Any) -> bool:
    """Whether a checkpoint is more than an encoder to whoever predicts tokens with it or embeds sentences.

    Args:
        model: A loaded model, with or without the head that its checkpoint has.

    Returns:
        False for an encoder-decoder without a language-model head, whose encoder alone embeds; else true.
    """
    config = getattr(model, "config", None)
    if not getattr(config, "is_encoder_decoder", False):
        return True
    return any(
        language_head(name) for name in getattr(config, "architectures", None) or [type(model).__name__]
    )


def automatic_class(config: Any, name: str, *, classifies: bool = False) -> Any:
    """The automatic class of transformers that loads a checkpoint with its language-model head.

    Args:
        config: The checkpoint's configuration.
        name: What the user called it, for messages.
        classifies: Load it with its head that names the class of a text instead.

    Returns:
        ``AutoModelForMaskedLM`` or the like; ``AutoModel`` for a checkpoint without a language-model head.

    Raises:
        ModelError: If the configuration names several classes whose heads differ, or none with the head wanted.
    """
    transformers = require_transformers()
    classes = list(getattr(config, "architectures", None) or ())
    if classifies:
        if not any(map(names_classes, classes)):
            raise ModelError(
                f"{name} was saved as {', '.join(classes) or 'nothing known'}, which names no classes of texts; "
                "expected one such as BertForSequenceClassification. Leave the label column out, or give a classifier"
            )
        return transformers.AutoModelForSequenceClassification
    heads: set[LanguageHead | None] = {language_head(class_name) for class_name in classes}
    if len(heads) > 1:
        raise ModelError(
            f"the config.json of {name} names {', '.join(classes)}, whose heads differ; expected one class. Leave the "
            "one under 'architectures' that saved the weights"
        )
    head: LanguageHead | None = next(iter(heads), None)
    return transformers.AutoModel if head is None else getattr(transformers, _AUTOMATIC[head])
