"""What every layer that attends has: an onlooker who sees what it asks, and another inference for a while."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fenchel.functional.certificate import AttentionCertificate
from fenchel.functional.close_arguments import closeness_of_heads
from fenchel.nn.inference import Inferred, Problem, infer

__all__ = ["AttendingLayer", "KeyProjection", "LayerCall", "OtherInference", "attention_layers", "lies_in"]


class KeyProjection(NamedTuple):
    """The linear map that made the keys of a call.

    Attributes:
        inputs: What it took, (B, n, width).
        weight: One map a head, (H, d, width).
        bias: (H, d), or None.
    """

    inputs: Tensor
    weight: Tensor
    bias: Tensor | None


class LayerCall(NamedTuple):
    """What a layer asks of its heads in one call.

    Attributes:
        problem: Evidence, templates, values, α and scale.
        log_preference: log u, or bool with True = attend, broadcastable to (B, H, m, n); None is uniform.
        projection: For an onlooker, where the templates come from; None where they are no linear map of the input.
        key_padding: For an onlooker, True where a key is padding, bool (B, n before what is added), or None.
        asks_itself: For an onlooker, whether the queries are of the sequence that the keys are of.
        added: How many templates follow those of the keys.
        query_padding: For an onlooker, True where a query is padding, bool (B, m), or None.
    """

    problem: Problem
    log_preference: Tensor | None
    projection: KeyProjection | None = None
    key_padding: Tensor | None = None
    asks_itself: bool = False
    added: int = 0
    query_padding: Tensor | None = None


@dataclass
class OtherInference:
    """How heads of a layer infer for a while; see :func:`fenchel.nn.use_estimator`.

    Attributes:
        name: Qualified name of the layer.
        estimator: "first_order", "second_order" or "exact"; None is the layer's own.
        alpha: α; None is the layer's own.
        heads: Numbers of the heads that do so, from 1; None is all.
        tol: Of "exact"; None is the layer's own.
        max_steps: Of "exact"; None is the layer's own.
        called: Whether the layer has attended.
        times: What the layer's own α is multiplied by where ``alpha`` is None.
    """

    name: str
    estimator: str | None
    alpha: float | None
    heads: tuple[int, ...] | None
    tol: float | None = None
    max_steps: int | None = None
    called: bool = False
    times: float = 1.0

    def options(self, own: dict[str, Any]) -> dict[str, Any]:
        """A layer's options of inference with those of this one in their place."""
        given = {"estimator": self.estimator, "tol": self.tol, "max_steps": self.max_steps}
        return {**own, **{name: value for name, value in given.items() if value is not None and name in own}}

    def reliability(self, own: float | Tensor) -> float | Tensor:
        """α for the heads that infer so."""
        if self.alpha is not None:
            return self.alpha
        return own if self.times == 1.0 else own * self.times

    @property
    def own_reliability(self) -> bool:
        """Whether α is the layer's own."""
        return self.alpha is None and self.times == 1.0


class AttendingLayer:
    """The part of a layer that can be watched and switched. It comes before ``torch.nn.Module`` among its bases.

    A layer says its ``estimator`` and how many heads it has, ``num_heads``, and hands its calls to :meth:`answer`.
    """

    estimator: str
    num_heads: int
    onlooker: Callable[[nn.Module, LayerCall], None] | None = None
    """Told of every call, inside of it; only while an audit looks."""
    other: OtherInference | None = None
    """Another inference, only inside of ``use_estimator``."""

    @property
    def effective_estimator(self) -> str:
        """What the layer infers by now; where its heads differ, what those do that are not first order."""
        other = self.other
        if other is None or other.estimator is None:
            return self.estimator
        return self.estimator if self._in_part and other.estimator == "first_order" else other.estimator

    @property
    def _in_part(self) -> bool:
        """Whether some heads are switched and some are not."""
        other = self.other
        return other is not None and other.heads is not None and len(set(other.heads)) < self.num_heads

    def answer(self, call: LayerCall, **options: Any) -> Inferred:
        """What the heads infer, by the layer's own estimator or, for a while, another.

        Args:
            call: What is asked.
            **options: As :func:`fenchel.nn.inference.infer` takes them.
        """
        if self.other is None and self.onlooker is None:
            return infer(call.problem, call.log_preference, **options)
        found = self._inferred_for_now(call, options)
        if self.onlooker is not None:
            other, problem = self.other, call.problem
            if other is not None and not other.own_reliability:
                problem = problem._replace(alpha=self._alpha_for_now(problem, other))
            self.onlooker(self, call._replace(problem=problem))  # pyright: ignore[reportArgumentType]
        return found

    def _inferred_for_now(self, call: LayerCall, options: dict[str, Any]) -> Inferred:
        other, problem, log_preference = self.other, call.problem, call.log_preference
        if other is None:
            return infer(problem, log_preference, **options)
        other.called = True
        switched = other.options(options)
        if not self._in_part:
            problem = problem._replace(alpha=other.reliability(problem.alpha))
            return infer(problem, log_preference, **switched)
        chosen, rest = self._parted(problem.evidence.device)
        part, kept = _of_heads(problem, chosen), _of_heads(problem, rest)
        return _joined(
            infer(
                part._replace(alpha=other.reliability(part.alpha)),
                _preference_of_heads(log_preference, chosen),
                **switched,
            ),
            infer(kept, _preference_of_heads(log_preference, rest), **options),
            torch.cat((chosen, rest)).argsort(),
        )

    def _parted(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The heads that are switched and those that are not, from 0."""
        heads = set((self.other and self.other.heads) or ())
        both = (
            [head for head in range(self.num_heads) if (head + 1 in heads) is wanted]
            for wanted in (True, False)
        )
        chosen, rest = (torch.tensor(some, dtype=torch.int64, device=device) for some in both)
        return chosen, rest

    def _alpha_for_now(self, problem: Problem, other: OtherInference) -> float | Tensor:
        """α where some heads have another for a while."""
        if not self._in_part:
            return other.reliability(problem.alpha)
        evidence = problem.evidence
        own = torch.as_tensor(problem.alpha, dtype=torch.float64).expand(self.num_heads, 1).clone()
        chosen = self._parted(own.device)[0]
        own[chosen] = torch.as_tensor(other.reliability(own[chosen]), dtype=own.dtype, device=own.device)
        return own.to(evidence.device)

    def reset_parameters(self) -> None:
        """Draw the weights anew, and put what heads learn of their own back to where it started."""
        self._reset_parameters()  # pyright: ignore[reportAttributeAccessIssue]
        for name in ("alpha", "radius", "gamma"):
            logarithms = getattr(self, f"log_{name}", None)
            if logarithms is not None:
                logarithms.data.fill_(math.log(getattr(self, f"_{name}")))

    def __getstate__(self) -> dict[str, Any]:
        # Who looks on and what lasts for a while is not the layer's: copies and files are without.
        inherited = getattr(super(), "__getstate__", None)
        state = self.__dict__ if inherited is None else inherited()
        return {name: value for name, value in state.items() if name not in ("onlooker", "other")}


def attention_layers(model: nn.Module) -> dict[str, AttendingLayer]:
    """The layers of a model that attend and can be watched and switched, by qualified name, in its own order.

    Example:
        >>> from fenchel.nn import MultiheadAttention
        >>> block = nn.TransformerEncoderLayer(16, 4)
        >>> block.self_attn = MultiheadAttention(16, 4)
        >>> list(attention_layers(nn.TransformerEncoder(block, 2, enable_nested_tensor=False)))
        ['layers.0.self_attn', 'layers.1.self_attn']
    """
    return {name: module for name, module in model.named_modules() if isinstance(module, AttendingLayer)}


def lies_in(part: Tensor, whole: Tensor) -> bool:
    """Whether a tensor is another one, or begins inside of its memory, as a slice of it does.

    Example:
        >>> tokens = torch.ones(2, 3, 4)
        >>> lies_in(tokens[:, :1], tokens), lies_in(tokens.clone(), tokens)
        (True, False)
    """
    if part is whole:
        return True
    if part.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
        return False
    spread = sum((size - 1) * step for size, step in zip(whole.shape, whole.stride(), strict=True))
    return whole.storage_offset() <= part.storage_offset() <= whole.storage_offset() + spread


def _of_heads(problem: Problem, index: Tensor) -> Problem:
    def taken(tensor: Tensor) -> Tensor:
        return tensor if tensor.shape[1] == 1 else tensor.index_select(1, index)

    alpha, memory = problem.alpha, problem.memory
    if memory is not None:
        memory = memory._replace(variances=taken(memory.variances))
    relative = problem.relative
    if relative is not None:
        relative = relative._replace(table=taken(relative.table))
    closeness = problem.closeness and closeness_of_heads(problem.closeness, index)
    if isinstance(alpha, Tensor) and alpha.dim() == 2 and alpha.shape[0] > 1:
        alpha = alpha.index_select(0, index)
    return problem._replace(
        evidence=problem.evidence.index_select(1, index),
        templates=taken(problem.templates),
        values=taken(problem.values),
        alpha=alpha,
        memory=memory,
        closeness=closeness,
        relative=relative,
    )


def _preference_of_heads(log_preference: Tensor | None, index: Tensor) -> Tensor | None:
    if log_preference is None or log_preference.dim() < 3 or log_preference.shape[-3] == 1:
        return log_preference
    return log_preference.index_select(-3, index)


def _joined(one: Inferred, other: Inferred, order: Tensor) -> Inferred:
    """Two answers side by side along the heads, then in ``order``."""

    def side_by_side(first: Tensor | None, second: Tensor | None) -> Tensor | None:
        if first is None or second is None:
            return None
        return torch.cat((first, second), 1).index_select(1, order)

    certificate = None
    if one.certificate is not None and other.certificate is not None:
        pairs = zip(one.certificate, other.certificate, strict=True)
        certificate = AttentionCertificate(*(torch.cat(pair, 1).index_select(1, order) for pair in pairs))
    return Inferred(
        torch.cat((one.output, other.output), 1).index_select(1, order),
        side_by_side(one.weights, other.weights),
        certificate,
        side_by_side(one.gap, other.gap),
    )
