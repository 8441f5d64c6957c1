"""What a multi-head layer makes of a call: sequences into heads, heads into problems, answers into a sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments.causal_bias import without_causal_bias
from fenchel.arguments.tensor import MASK, check_flags, check_tensor
from fenchel.closeness import AbstractCloseness
from fenchel.functional.certificate import AttentionCertificate
from fenchel.nn.attending import AttendingLayer, LayerCall
from fenchel.nn.attention_arguments import check_causal_hint, check_places, check_sequences, checked_answer
from fenchel.nn.evidence.positional import AbstractPositionalEvidence
from fenchel.nn.evidence.templates import RelativeTemplates
from fenchel.nn.inference import Inferred, Problem, Relative, has_kernel, infer_fused
from fenchel.nn.last_call import LastCall
from fenchel.nn.layout import SequenceLayout
from fenchel.nn.masks import TorchMasks, torch_masks, with_added_templates
from fenchel.nn.nested import nested_self_attention
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.dense import combined
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.projection import projected, seen
from fenchel.nn.template_norm import template_spread

__all__ = ["HeadProblems"]


class HeadProblems(AttendingLayer, LastCall, nn.MultiheadAttention):
    """A layer with the projections of torch's, whose heads infer: what :class:`MultiheadAttention` calls."""

    preference: AbstractPreference | None
    evidence: nn.Module
    normalize_templates: bool
    keep_certificate: bool
    keep_gap: bool
    keep_norm_penalty: bool
    tol: float | None
    max_steps: int

    @property
    def alpha(self) -> float | Tensor:
        """α, a number or (num_heads,)."""
        raise NotImplementedError

    @property
    def effective_closeness(self) -> AbstractCloseness | None:
        """D of the heads, with what they have learned of it."""
        raise NotImplementedError

    @property
    def radius(self) -> float | Tensor:
        """Norm of normalised templates, a number or (num_heads,)."""
        raise NotImplementedError

    def _attended(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        need_weights: bool,
        attn_mask: Tensor | None,
        average_attn_weights: bool,
        is_causal: bool,
        *,
        query_offset: int | None,
        given: Any = None,
    ) -> tuple[Tensor, Tensor | None]:
        """A call of ``torch.nn.MultiheadAttention``, with whatever else the layer was given for its problems."""
        check_flags(need_weights=need_weights, average_attn_weights=average_attn_weights, is_causal=is_causal)
        if any(isinstance(given, Tensor) and given.is_nested for given in (query, key, value)):
            plain = attn_mask is None and key_padding_mask is None and not need_weights
            return nested_self_attention(
                self, query, key, value, plain=plain, query_offset=query_offset
            ), None
        check_sequences(self, query, key, value)
        check_causal_hint(is_causal, attn_mask, ". Or build the layer with preference=Causal()")
        layout = SequenceLayout(self.batch_first, batched=query.dim() == 3)
        queries, keys, values = (
            layout.to_heads(sequence, self.num_heads) for sequence in projected(self, query, key, value)
        )
        batch, heads, m, n = *queries.shape[:3], keys.shape[2]
        masks = torch_masks(
            attn_mask,
            key_padding_mask,
            sizes=(batch, heads, m, n),
            batched=layout.batched,
            device=query.device,
        )
        if query_offset is None and m >= n and not torch.compiler.is_compiling():
            # Own preferences may read the number; a graph with an open number of tokens cannot be asked for it.
            query_offset = 0
        inputs = AttentionInputs(
            batch,
            heads,
            m,
            n,
            device=queries.device,
            dtype=queries.dtype,
            query_inputs=layout.to_batch_first(query),
            key_inputs=layout.to_batch_first(key),
            key_padding=masks.key_padding,
            query_offset=query_offset,
        )
        self.forget_last_call()
        inferred = self._inferred(queries, keys, values, inputs, masks, need_weights, given)
        if inferred.certificate is not None:
            self._last_certificate = AttentionCertificate(*map(layout.without_batch, inferred.certificate))
        if inferred.gap is not None:
            self._last_gap = layout.without_batch(inferred.gap)
        weights = inferred.weights
        if weights is not None:
            weights = layout.without_batch(weights.mean(1) if average_attn_weights else weights)
        return self.out_proj(layout.from_heads(inferred.output)), weights

    def _inferred(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        inputs: AttentionInputs,
        masks: TorchMasks,
        need_weights: bool,
        given: Any,
    ) -> Inferred:
        extended = (self._extended(keys, self.bias_k), self._extended(values, self.bias_v))
        problem, tied = self._problem(queries, *extended, inputs)
        problem = self._refined(problem, inputs, given)
        if self.preference is not None and not need_weights and self._can_fuse(problem, inputs, masks):
            return infer_fused(problem, self.preference, inputs)
        prior = None if self.preference is None else self.preference(inputs)
        if prior is not None:
            prior = without_causal_bias(
                "the answer of preference", prior, inputs.queries, inputs.keys, queries.device
            )
            check_tensor(
                "the answer of preference", prior, "broadcasting to (N, num_heads, L, S)", dtypes=MASK
            )
        added = problem.values.shape[2] - inputs.keys
        log_u = with_added_templates(combined([prior, tied, masks.preference]), inputs.keys, added)
        if self.keep_norm_penalty:
            spread = template_spread(problem.templates * problem.scale, log_u)
            self._last_norm_penalty = (problem.alpha / 2 * spread).mean()
        call = LayerCall(problem, log_u, added=added)
        if self.onlooker is not None:
            call = seen(self, call, keys, inputs)
        return self.answer(
            call,
            dropout=self.dropout if self.training else 0.0,
            need_weights=need_weights,
            need_certificate=self.keep_certificate,
            need_gap=self.keep_gap,
            estimator=self.estimator,
            tol=self.tol,
            max_steps=self.max_steps,
        )

    def _refined(self, problem: Problem, inputs: AttentionInputs, given: Any) -> Problem:
        """The problem with what the kind of layer adds to it; here nothing."""
        del inputs, given
        return problem

    def _can_fuse(self, problem: Problem, inputs: AttentionInputs, masks: TorchMasks) -> bool:
        """Whether one kernel that takes the preference as functions of indices computes all that is asked for."""
        return (
            self.estimator == "first_order"
            and problem.is_plain
            and self.onlooker is None
            and self.other is None
            and masks.is_key_padding
            and not (self.keep_certificate or self.keep_gap or self.keep_norm_penalty)
            and not (self.training and self.dropout > 0)
            and not (self.add_zero_attn or self.bias_k is not None)
            and has_kernel(problem, self.preference, inputs)
        )

    def _extended(self, sequence: Tensor, bias: Tensor | None) -> Tensor:
        """Keys or values (B, H, n, d) with what add_bias_kv and add_zero_attn append."""
        one = (sequence.shape[0], self.num_heads, 1, self.head_dim)
        added = [] if bias is None else [bias.view(1, *one[1:]).expand(one).to(sequence.dtype)]
        if self.add_zero_attn:
            added.append(sequence.new_zeros(one))
        return torch.cat([sequence, *added], 2) if added else sequence

    def _problem(
        self, queries: Tensor, keys: Tensor, values: Tensor, inputs: AttentionInputs
    ) -> tuple[Problem, Tensor | None]:
        """What is asked of the heads, and what of log u is tied to their templates."""
        alpha, radius, evidence = self.alpha, self.radius, self.evidence
        check_places(
            evidence,
            added=self.add_zero_attn or self.bias_k is not None,
            normalised=self.normalize_templates,
            penalised=self.keep_norm_penalty,
        )
        at = {"query_offset": inputs.first_query} if isinstance(evidence, AbstractPositionalEvidence) else {}
        z, templates, scale = checked_answer(evidence, evidence(queries, keys, **at))
        relative = tied = None
        if isinstance(templates, RelativeTemplates):
            templates, table, index, tied = templates
            relative = Relative(table, index)
        elif self.normalize_templates:
            radius = radius.view(-1, 1, 1) if isinstance(radius, Tensor) else radius
            templates, scale = (nn.functional.normalize(templates, dim=-1) * radius).to(templates.dtype), 1.0
        alpha = alpha.unsqueeze(-1) if isinstance(alpha, Tensor) else alpha
        closeness = self.effective_closeness
        return Problem(z, templates, values, alpha, scale, closeness=closeness, relative=relative), tied
