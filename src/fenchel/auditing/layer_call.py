"""A call of an attention layer of ``fenchel.nn`` as the attention call that an audit measures."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.auditing.attention_call import AttentionCall
from fenchel.auditing.heads import Kind
from fenchel.auditing.sites import AttentionSite
from fenchel.errors import ModelError
from fenchel.integrations.transformers.real_queries import RealQueries
from fenchel.nn.inference import LayerCall
from fenchel.preference.discrete import may_attend

__all__ = ["attention_call", "kind_of"]


def attention_call(site: AttentionSite, asked: LayerCall, space: str, real: RealQueries) -> AttentionCall:
    """What a layer asks, with reliability 1.

    Args:
        site: Where.
        asked: What.
        space: "input" or "key".
        real: Which queries of the batch are real.

    Raises:
        ModelError: If templates are no linear map of the input, or not shared by heads, in space "input".
    """
    evidence, templates, values, alpha, scale = asked.problem[:5]
    projection = None
    if space == "input":
        projection = asked.projection
        if projection is None or asked.added:
            raise ModelError(
                f"{site.name} has templates that are no linear map of its input: they are normalised, made by its "
                "evidence, or added (add_bias_kv, add_zero_attn). Audit it with space='key' (--space key)"
            )
    query, key, scaling = _with_reliability(site.name, space, evidence, templates, alpha, scale)
    preference = _log_preference(asked)
    return AttentionCall(
        site=site,
        query=query,
        key=key,
        scaling=scaling,
        preference=preference,
        counted=_counted(site, asked, preference, real),
        inputs=None if projection is None else projection.inputs,
        key_weight=None if projection is None else projection.weight,
        key_bias=None if projection is None else projection.bias,
        value=values if values.shape[:3] == key.shape[:3] else None,
    )


def _log_preference(asked: LayerCall) -> Tensor | None:
    """Log u, or a mask, with four dimensions."""
    given = asked.log_preference
    if given is None:
        return None
    if given.dtype != torch.bool:
        given = given.to(torch.float64 if asked.problem.evidence.dtype == torch.float64 else torch.float32)
    return given.reshape((1,) * (4 - given.dim()) + tuple(given.shape))


def kind_of(asked: LayerCall) -> Kind:
    """How the queries of a call and its keys belong together."""
    if not asked.asks_itself:
        return "cross"
    queries, preference = asked.problem.evidence.shape[2], _log_preference(asked)
    if preference is None or preference.shape[2] < 2:
        return "encoder_self"
    tokens = _own_keys(asked)
    later = torch.ones(queries, tokens, dtype=torch.bool, device=preference.device).triu(1 + tokens - queries)
    seen = preference[..., :tokens].expand(*preference.shape[:2], queries, tokens)
    return "encoder_self" if bool(may_attend(seen)[..., later].any()) else "decoder_self"


def _with_reliability(
    name: str,
    space: str,
    evidence: Tensor,
    templates: Tensor,
    alpha: float | Tensor,
    scale: float | Tensor,
) -> tuple[Tensor, Tensor, float]:
    r"""The same problems with reliability 1: templates and evidence times √α, which leaves every measure as it is.

    .. math:: \tfrac\alpha2\lVert\mu + z - \mathbb{E}_p[t]\rVert^2
              = \tfrac12\lVert\sqrt\alpha\mu + \sqrt\alpha z - \mathbb{E}_p[\sqrt\alpha t]\rVert^2
    """
    scaling = float(scale)
    own = torch.as_tensor(alpha, dtype=torch.float64).flatten()
    if bool((own == own[0]).all()):
        root = float(own[0]) ** 0.5
        if root == 1:
            return evidence, templates, scaling
        return _widened(evidence) * root, templates, scaling * root
    if space == "input":
        raise ModelError(
            f"the heads of {name} have α of their own, and in space 'input' they would have to share their templates. "
            "Audit it with space='key' (--space key)"
        )
    roots = own.sqrt().reshape(-1, 1, 1).to(evidence.device)
    query, key = (_widened(part) for part in (evidence, templates))
    return query * roots.to(query.dtype), key * roots.to(key.dtype), scaling


def _widened(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _counted(site: AttentionSite, asked: LayerCall, preference: Tensor | None, real: RealQueries) -> Tensor:
    name, kind = site.name, site.kind
    evidence = asked.problem.evidence
    empty = None if preference is None else ~may_attend(preference).any(-1, keepdim=True)
    # Masks of a batch say nothing of queries that are some of its positions, or none.
    of_decoder = kind != "encoder_self" and real.fits(evidence, decoder=True)
    if of_decoder:
        counted, padding = (
            real(name, evidence, empty, decoder=True),
            asked.key_padding if asked.asks_itself else None,
        )
    elif not asked.asks_itself or evidence.shape[2] != _own_keys(asked):
        counted, padding = RealQueries({}, None, None)(name, evidence, empty, decoder=False), None
    else:
        counted, padding = real(name, evidence, empty, decoder=False), asked.key_padding
    padding = asked.query_padding if asked.query_padding is not None else padding
    return counted if padding is None or padding.shape != counted.shape else counted & ~padding


def _own_keys(asked: LayerCall) -> int:
    """How many templates come from the layer's input; what it adds itself comes after them."""
    return asked.problem.templates.shape[2] - asked.added
