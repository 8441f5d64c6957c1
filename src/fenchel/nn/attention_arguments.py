"""What an attention layer is built and called with, checked once."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from fenchel.arguments import shown
from fenchel.arguments.tensor import check_device, check_tensor, checked_argument, is_under_autocast
from fenchel.closeness import Tsallis
from fenchel.conjugate.tensors import tensors_of
from fenchel.errors import ProblemError
from fenchel.functional.arguments import check_estimator
from fenchel.functional.close_arguments import check_kind
from fenchel.nn.evidence.positional import AbstractPositionalEvidence
from fenchel.nn.evidence.templates import RelativeTemplates
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.sizes import check_positive, check_sizes

__all__ = [
    "check_alpha",
    "check_causal_hint",
    "check_closeness",
    "check_places",
    "check_problem",
    "check_radius",
    "check_sequences",
    "check_widths",
    "checked_answer",
]

_OWNER = "MultiheadAttention"


class _TorchLayer(Protocol):
    """What of a layer its sequences are checked against."""

    batch_first: bool
    kdim: Any
    vdim: Any
    embed_dim: Any

    @property
    def out_proj(self) -> nn.Linear: ...


def check_widths(
    embed_dim: int,
    num_heads: int,
    kdim: int | None,
    vdim: int | None,
    dropout: float,
    *,
    owner: str = _OWNER,
) -> None:
    """Check what ``torch.nn.MultiheadAttention`` is built with too."""
    given = {"embed_dim": embed_dim, "num_heads": num_heads, "kdim": kdim, "vdim": vdim}
    optional = ("kdim", "vdim")
    check_sizes(owner, **{n: size for n, size in given.items() if size is not None or n not in optional})
    if embed_dim % num_heads:
        raise ProblemError(
            f"embed_dim is {embed_dim} and num_heads is {num_heads}; expected a number of heads that divides the width"
        )
    checked_argument("dropout", dropout)


def check_problem(preference: Any, evidence: Any, estimator: str, tol: float | None, max_steps: int) -> None:
    """Check what makes attention an inference problem, and how it is solved."""
    if preference is not None and not isinstance(preference, AbstractPreference):
        raise ProblemError(
            f"preference is a {type(preference).__name__}; expected one of fenchel.nn.preference, such as Causal(), "
            "or None"
        )
    if evidence is not None and (
        not isinstance(evidence, nn.Module) or isinstance(evidence, AbstractPreference)
    ):
        raise ProblemError(
            f"evidence is a {type(evidence).__name__}; expected a module of fenchel.nn.evidence, or None"
        )
    check_estimator(estimator, tol, max_steps)


def check_places(evidence: nn.Module, *, added: bool, normalised: bool, penalised: bool) -> None:
    """Refuse what a layer cannot offer with evidence that looks at places."""
    if not isinstance(evidence, AbstractPositionalEvidence):
        return
    name = type(evidence).__name__
    if added:
        raise ProblemError(
            f"evidence is {name}, which looks at places, and add_bias_kv or add_zero_attn is True, whose templates "
            "have none; leave those out"
        )
    if not evidence.differs_by_query:
        return
    for option, wanted in (("normalize_templates", normalised), ("keep_norm_penalty", penalised)):
        if wanted:
            raise ProblemError(
                f"{option} is True and evidence {name}, whose templates differ by query, so that there is no norm of a "
                f"template; set {option} to False"
            )


def checked_answer(
    evidence: nn.Module, answer: Any
) -> tuple[Tensor, Tensor | RelativeTemplates, float | Tensor]:
    """What a module of evidence answered, if it is evidence, templates and their scale; their kinds are seen later."""
    if not isinstance(answer, tuple) or len(answer) != 3:
        got = f"{len(answer)} values" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
        raise ProblemError(
            f"evidence {type(evidence).__name__} answered with {got}; expected a tuple of three: evidence, templates "
            "and their scale"
        )
    differs = isinstance(evidence, AbstractPositionalEvidence) and evidence.differs_by_query
    if differs is not isinstance(answer[1], RelativeTemplates):
        raise ProblemError(
            f"evidence {type(evidence).__name__} answered with templates of type {type(answer[1]).__name__}; expected "
            "a tensor, or RelativeTemplates from an AbstractPositionalEvidence whose differs_by_query is True"
        )
    templates = answer[1].key if isinstance(answer[1], RelativeTemplates) else answer[1]
    for name, tensor in (("evidence", answer[0]), ("templates", templates)):
        check_tensor(
            f"the {name} that {type(evidence).__name__} answered with", tensor, "(N, num_heads, L, d)", dims=4
        )
    return answer


def check_alpha(alpha: float) -> None:
    """Check the reliability of the evidence."""
    check_positive(_OWNER, alpha=alpha)


def check_closeness(closeness: Any, learn_order: Any, estimator: str) -> None:
    """Check what keeps the heads' answers near their preferences, and whether its order can be learned."""
    check_kind(closeness, estimator)
    if learn_order is True and not isinstance(closeness, Tsallis):
        raise ProblemError(
            f"learn_order is True and closeness {shown(closeness)}; expected a fenchel.Tsallis, whose order is "
            "learned, such as closeness=fenchel.Tsallis(1.5)"
        )
    if closeness is None:
        return
    learned = [name for name, part in tensors_of(closeness).items() if part.requires_grad]
    if learned:
        raise ProblemError(
            f"{learned[0]} of closeness requires a gradient, and a layer would neither hold nor save it; expected "
            "learn_order=True, which makes a parameter of the layer, or numbers. functional.attention takes any tensor"
        )
    if learn_order is True and not (isinstance(closeness.order, float) and 1 < closeness.order < 2):
        raise ProblemError(
            f"learn_order is True and closeness {closeness!r}; expected an order strictly between 1 and 2 to start at, "
            "one number"
        )


def check_radius(radius: float, learn_radius: bool, normalize_templates: bool) -> None:
    """Check the norm of normalised templates."""
    check_positive(_OWNER, radius=radius)
    if (learn_radius or radius != 1) and not normalize_templates:
        raise ProblemError(
            f"radius is {radius} and learn_radius {learn_radius}, but normalize_templates is False; a radius is the "
            "norm of normalised templates, set normalize_templates=True"
        )


def check_causal_hint(is_causal: bool, attn_mask: Tensor | None, advice: str = "") -> None:
    """Refuse the hint without the mask that it is a hint of, with advice on what else to do."""
    if is_causal and attn_mask is None:
        raise ProblemError(
            "is_causal is True and attn_mask is None; the hint needs the mask that it is a hint of "
            f"(torch.nn.Transformer.generate_square_subsequent_mask){advice}"
        )


def check_sequences(layer: _TorchLayer, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check the three sequences of a call against one another and against the layer.

    Raises:
        ProblemError: If anything does not fit, with its name, what was got and what was expected.
    """
    layout = "(N, L, E)" if layer.batch_first else "(L, N, E)"
    for name, sequence in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, sequence, f"{layout}, or (L, E) unbatched")
    if query.dim() not in (2, 3):
        raise ProblemError(f"query has shape {tuple(query.shape)}; expected {layout}, or (L, E) unbatched")
    widths = {
        "query": ("embed_dim", layer.embed_dim),
        "key": ("kdim", layer.kdim),
        "value": ("vdim", layer.vdim),
    }
    weight = layer.out_proj.weight
    for (name, (argument, width)), tensor in zip(widths.items(), (query, key, value), strict=True):
        shape = tuple(tensor.shape)
        if tensor.dim() != query.dim():
            raise ProblemError(
                f"{name} has shape {shape} and query {tuple(query.shape)}; expected all batched (3-D) or all unbatched "
                "(2-D)"
            )
        if shape[-1] != width:
            raise ProblemError(f"{name} has width {shape[-1]} (shape {shape}); expected {argument} = {width}")
        check_device(name, tensor, weight.device, "the layer")
        if tensor.dtype != weight.dtype and not is_under_autocast(tensor):
            raise ProblemError(
                f"{name} has dtype {tensor.dtype}, the layer {weight.dtype}; convert one of them, or use torch.autocast"
            )
    if key.shape[:-1] != value.shape[:-1]:
        raise ProblemError(
            f"key has shape {tuple(key.shape)} and value {tuple(value.shape)}; expected the same batch and length"
        )
    batch_at = 0 if layer.batch_first else 1
    if query.dim() == 3 and query.shape[batch_at] != key.shape[batch_at]:
        raise ProblemError(
            f"query has batch size {query.shape[batch_at]} (shape {tuple(query.shape)}) and key {key.shape[batch_at]} "
            f"(shape {tuple(key.shape)}) with batch_first={layer.batch_first}; expected the same"
        )
