"""Weights from and to the ``BertForMaskedLM`` of the ``transformers`` library."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments import shown
from fenchel.errors import MissingExtraError, ModelError
from fenchel.models.cloze.head import WordHead
from fenchel.models.cloze.layer import FeedForward, TransformationLayer
from fenchel.models.cloze.model import Cloze

__all__ = ["from_transformers", "to_transformers"]

_NEXT = 2  # classes of BERT's other head: the second segment follows, or it does not
_NEEDED: dict[str, Any] = {
    "last": "standard",
    "preference": "uniform",
    "layer_preference": "uniform",
    "masked": "padding",
    "causal": False,
    "score": "dot",
    "estimator": "first_order",
    "closeness": None,
    "alpha": 1.0,
    "languages": 0,
}
"""What a model has to be for BERT to compute the same."""


def to_transformers(model: Cloze) -> Any:
    """The same model as ``transformers`` has it.

    Args:
        model: With ``last="standard"``, uniform preferences, first order and α = 1: what BERT computes.

    Returns:
        A ``BertForMaskedLM``; with two classes a ``BertForPreTraining``, whose ``seq_relationship`` tells them. Its
        weights are copies, of the model's dtype, and it is in the mode that the model is in.

    Raises:
        ModelError: If the model computes what BERT does not, naming the option that stands in the way.
        MissingExtraError: If ``transformers`` is not installed.

    Reference:
        Devlin et al. 2019, BERT.

    Example:
        >>> model = Cloze(30, width=8, depth=2, heads=2, longest=16, last="standard", preference="uniform").eval()
        >>> bert, numbers = to_transformers(model), torch.tensor([[2, 9, 4, 7, 3]])
        >>> bool(torch.allclose(bert(numbers).logits, model(numbers)["words"], atol=1e-5))
        True
    """
    if not isinstance(model, Cloze):
        raise ModelError(f"model is {shown(model)}; expected a Cloze")
    given = model.configuration()
    for name, needed in _NEEDED.items():
        if given[name] != needed:
            raise ModelError(
                f"{name} of the model is {given[name]!r}, which BERT has not; only {needed!r} can be converted"
            )
    if given["classes"] not in (0, _NEXT):
        raise ModelError(
            f"classes of the model is {given['classes']}; only none, or the {_NEXT} of next sentences, can be converted"
        )
    transformers = _transformers()
    config = transformers.BertConfig(
        vocab_size=given["vocabulary"],
        hidden_size=given["width"],
        num_hidden_layers=given["depth"],
        num_attention_heads=given["heads"],
        intermediate_size=given["mlp_width"],
        hidden_act="gelu",
        hidden_dropout_prob=given["dropout"],
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=given["longest"],
        type_vocab_size=given["segments"],
        layer_norm_eps=given["norm_eps"],
        pad_token_id=0,
    )
    kind = transformers.BertForPreTraining if given["classes"] else transformers.BertForMaskedLM
    bert = kind(config).to(model.embeddings.word.weight.dtype)
    own = {name: value.detach() for name, value in _written(model).items()}
    missing, unknown = bert.load_state_dict(own, strict=False)
    left = [name for name in missing if not name.endswith(("position_ids", "token_type_ids"))]
    if left or unknown:
        raise ModelError(f"this version of transformers names weights otherwise: {(left + unknown)[0]}")
    return bert.train(model.training)


def from_transformers(bert: Any, *, mask: int | None = None) -> Cloze:
    """A model with the weights of one of ``transformers``.

    Attention weights are not dropped in training, which those of BERT are where its configuration says so.

    Args:
        bert: A ``BertForMaskedLM`` or ``BertForPreTraining`` with learned positions, exact GELU and tied embeddings.
        mask: The number of ``[MASK]``, if it is to be known.

    Raises:
        ModelError: If it is something else, or is configured otherwise, naming what stands in the way.
        MissingExtraError: If ``transformers`` is not installed.
    """
    transformers = _transformers()
    if not isinstance(bert, transformers.BertForMaskedLM | transformers.BertForPreTraining):
        raise ModelError(
            f"the model is {shown(bert)}; expected a BertForMaskedLM or BertForPreTraining of transformers"
        )
    config = bert.config
    needed: dict[str, tuple[Any, Any]] = {
        "hidden_act": (config.hidden_act, "gelu"),
        "position_embedding_type": (
            getattr(config, "position_embedding_type", None) or "absolute",
            "absolute",
        ),
        "pad_token_id": (config.pad_token_id, 0),
        "is_decoder": (bool(getattr(config, "is_decoder", False)), False),
    }
    for name, (value, only) in needed.items():
        if value != only:
            raise ModelError(f"{name} of the model is {value!r}; only {only!r} can be converted")
    weights = bert.state_dict()
    decoder = weights.get("cls.predictions.decoder.weight")
    if decoder is not None and not torch.equal(decoder, weights["bert.embeddings.word_embeddings.weight"]):
        raise ModelError(
            "the model scores words by other weights than their embeddings; only tied ones can be converted"
        )
    model = Cloze(
        config.vocab_size,
        width=config.hidden_size,
        depth=config.num_hidden_layers,
        heads=config.num_attention_heads,
        mlp_width=config.intermediate_size,
        dropout=config.hidden_dropout_prob,
        longest=config.max_position_embeddings,
        segments=config.type_vocab_size,
        classes=_NEXT if isinstance(bert, transformers.BertForPreTraining) else 0,
        mask=mask,
        last="standard",
        preference="uniform",
        norm_eps=config.layer_norm_eps,
    )
    model.to(bert.dtype)
    with torch.no_grad():
        for name, value in _written(model).items():
            value.copy_(weights[name])
    return model.train(bert.training)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("transformers", "hf") from None
    return transformers


def _written(model: Cloze) -> dict[str, Tensor]:
    """The model's weights by the names that BERT has for them; they are views of its own."""
    found: dict[str, Tensor] = {}

    def written(name: str, module: nn.Module | None) -> None:
        if module is not None:
            found.update({f"{name}.{kind}": value for kind, value in module.named_parameters()})

    def finished(start: str, norm: nn.Module, network: nn.Module) -> None:
        assert isinstance(network, FeedForward)  # noqa: S101 - what the model builds
        written(f"{start}.attention.output.LayerNorm", norm)
        written(f"{start}.intermediate.dense", network.linear1)
        written(f"{start}.output.dense", network.linear2)
        written(f"{start}.output.LayerNorm", network.norm)

    embeddings, head = model.embeddings, model.head
    assert isinstance(head, WordHead)  # noqa: S101 - what the model builds
    for name, module in (
        ("word_embeddings", embeddings.word),
        ("position_embeddings", embeddings.position),
        ("token_type_embeddings", embeddings.segment),
        ("LayerNorm", embeddings.norm),
    ):
        written(f"bert.embeddings.{name}", module)
    for number, layer in enumerate(model.layers):
        assert isinstance(layer, TransformationLayer)  # noqa: S101 - what the model builds
        start, attention = f"bert.encoder.layer.{number}", layer.self_attn
        split = zip(
            ("query", "key", "value"),
            attention.in_proj_weight.chunk(3),
            attention.in_proj_bias.chunk(3),
            strict=True,
        )
        for name, weight, bias in split:
            found[f"{start}.attention.self.{name}.weight"] = weight
            found[f"{start}.attention.self.{name}.bias"] = bias
        written(f"{start}.attention.output.dense", attention.out_proj)
        finished(start, layer.norm, layer.feed_forward)
    start = f"bert.encoder.layer.{len(model.layers)}"
    for name, module in (("query", model.evidence), ("key", model.templates), ("value", model.values)):
        written(f"{start}.attention.self.{name}", module)
    written(f"{start}.attention.output.dense", model.output)
    finished(start, model.norm, model.feed_forward)
    written("cls.predictions.transform.dense", head.linear)
    written("cls.predictions.transform.LayerNorm", head.norm)
    found["cls.predictions.bias"] = found["cls.predictions.decoder.bias"] = head.bias
    found["cls.predictions.decoder.weight"] = embeddings.word.weight
    written("bert.pooler.dense", model.pooler)
    written("cls.seq_relationship", model.classify)
    return found
