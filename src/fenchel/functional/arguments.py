"""The door: what every attention op is given, checked once and brought into one form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.errors import ProblemError
from fenchel.functional.precision import compute_dtype, under_autocast

__all__ = ["ESTIMATORS", "AttentionArguments", "broadcasts_to", "checked"]

ESTIMATORS = ("first_order", "second_order", "exact")
"""Estimators that attention can take, by name."""


@dataclass(frozen=True)
class AttentionArguments:
    """Arguments of a call that fit together.

    Attributes:
        query: Evidence z, (B, H, m, d).
        key: (B, H_kv, n, d); templates are scale·key.
        value: (B, H_kv, n, d_v).
        log_preference: log u up to a constant a row, bool or floating, (B or 1, H or 1, m or 1, n), with something
            to attend to in every row; None is uniform.
        empty_rows: Bool, (B or 1, H or 1, m or 1, 1): rows that had nothing to attend to; None where that is known
            not to happen.
        alpha: α, a number, or a tensor (B or 1, H or 1, m or 1, 1).
        scale: A number; a tensor that was given has been multiplied into the key.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    log_preference: Tensor | None
    empty_rows: Tensor | None
    alpha: float | Tensor
    scale: float

    @property
    def log_preference_is_shared(self) -> bool:
        """Whether all queries of a head have the same preference."""
        return self.log_preference is None or self.log_preference.shape[2] == 1

    def problem_in(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Evidence, templates, log-preference and α as tensors, all but the preference in a dtype."""
        query, alpha = self.query.to(dtype), self.alpha
        if not isinstance(alpha, Tensor):
            alpha = query.new_full((1, 1, 1, 1), alpha)
        return query, self.key.to(dtype) * self.scale, self.log_preference, alpha.to(dtype)

    def without_empty_rows(self, result: Tensor) -> Tensor:
        """Zeros in the rows that have nothing to attend to, and so no gradient to anything."""
        return result if self.empty_rows is None else result.masked_fill(self.empty_rows, 0)


def checked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    log_preference: Tensor | None,
    alpha: float | Tensor,
    scale: float | Tensor | None,
    estimator: str,
    dropout_p: float,
    enable_gqa: bool,
) -> AttentionArguments:
    """The arguments of an attention call, if they fit together.

    Values (NaN, α ≤ 0) are looked at except under ``torch.compile``; those of query, key and value only by the exact
    estimator, since the others hand a NaN on.

    Raises:
        ProblemError: Naming the argument, what it was and what it should be.
    """
    if estimator not in ESTIMATORS:
        raise ProblemError(f"estimator is {estimator!r}; expected one of {', '.join(map(repr, ESTIMATORS))}")
    if not 0 <= dropout_p < 1:
        raise ProblemError(f"dropout_p is {dropout_p}; expected a probability in [0, 1)")
    _check_tensors(query, key, value, enable_gqa)
    lead = tuple(query.shape[:3])
    factor, key = _scale(scale, query, key)
    opened, empty = _open(_preference(log_preference, query, key), query)
    arguments = AttentionArguments(
        query=under_autocast(query),
        key=under_autocast(key),
        value=under_autocast(value),
        log_preference=opened,
        empty_rows=empty,
        alpha=_alpha(alpha, lead, query),
        scale=factor,
    )
    if estimator == "exact" and not torch.compiler.is_compiling():
        for name, tensor in (("query", query), ("key", key)):
            if not bool(torch.isfinite(tensor).all()):
                raise ProblemError(
                    f"{name} contains NaN or infinity; every entry must be finite, masked ones too"
                )
    return arguments


def broadcasts_to(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts to another without making that one larger."""
    aligned = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(size in (1, full) for size, full in aligned)


def _check_tensors(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    given = {"query": query, "key": key, "value": value}
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise ProblemError(
                f"{name} is a {type(tensor).__name__}; expected a tensor (batch, heads, tokens, dim)"
            )
        if tensor.dim() != 4:
            raise ProblemError(
                f"{name} has shape {tuple(tensor.shape)}; expected 4 dimensions (batch, heads, tokens, dim)"
            )
        if not tensor.is_floating_point():
            raise ProblemError(f"{name} has dtype {tensor.dtype}; expected a floating-point dtype")
        if tensor.device != query.device:
            raise ProblemError(f"{name} is on {tensor.device}, query on {query.device}; move one of them")
        if tensor.dtype != query.dtype and not torch.is_autocast_enabled(query.device.type):
            raise ProblemError(f"{name} has dtype {tensor.dtype}, query {query.dtype}; convert one of them")
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in given.items())
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise ProblemError(f"batch sizes differ: {shapes}; expected the same first dimension")
    if key.shape[1:3] != value.shape[1:3]:
        raise ProblemError(f"key and value differ in heads or tokens: {shapes}")
    if query.shape[3] != key.shape[3]:
        raise ProblemError(f"query and key differ in their last dimension: {shapes}")
    if key.shape[2] == 0:
        raise ProblemError(f"there is nothing to attend to (no tokens in key): {shapes}")
    heads, key_heads = query.shape[1], key.shape[1]
    if heads != key_heads and (key_heads == 0 or heads % key_heads):
        raise ProblemError(f"query has {heads} heads, which {key_heads} heads of key do not divide: {shapes}")
    if heads != key_heads and not enable_gqa:
        raise ProblemError(
            f"query has {heads} heads and key {key_heads}: pass enable_gqa=True if {heads // key_heads} heads "
            "of the query are to share each head of the key"
        )


def _scale(scale: float | Tensor | None, query: Tensor, key: Tensor) -> tuple[float, Tensor]:
    if isinstance(scale, Tensor):
        if scale.numel() != 1:
            raise ProblemError(
                f"scale has shape {tuple(scale.shape)}; expected a number or one tensor element"
            )
        # In half precision a sum over all keys, which the gradient of the scale is, would lose most of its digits.
        wide = compute_dtype(key.dtype)
        return 1.0, (key.to(wide) * scale.to(key.device, wide).reshape(())).to(key.dtype)
    if scale is None:
        return query.shape[-1] ** -0.5, key
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ProblemError(f"scale is {scale!r}; expected a finite number or a tensor")
    return float(scale), key


def _alpha(alpha: float | Tensor, lead: tuple[int, ...], query: Tensor) -> float | Tensor:
    if not isinstance(alpha, Tensor):
        if not isinstance(alpha, int | float) or not (math.isfinite(alpha) and alpha > 0):
            raise ProblemError(
                f"alpha is {alpha!r}; expected a finite number > 0: the reliability of the evidence"
            )
        return float(alpha)
    if alpha.device != query.device and alpha.dim():
        raise ProblemError(f"alpha is on {alpha.device}, query on {query.device}; move one of them")
    if not broadcasts_to(alpha.shape, lead) or not alpha.is_floating_point():
        raise ProblemError(
            f"alpha has shape {tuple(alpha.shape)} and dtype {alpha.dtype}; expected a floating tensor that broadcasts "
            f"to (batch, heads, queries) = {lead}; one a head has shape ({lead[1]}, 1)"
        )
    if not torch.compiler.is_compiling():
        bad = ~(torch.isfinite(alpha) & (alpha > 0))
        if bool(bad.any()):
            raise ProblemError(
                f"alpha is {alpha[bad].flatten()[0].item():g}; expected finite numbers > 0: the reliability of "
                "the evidence"
            )
    return alpha.to(query.device).reshape((1,) * (3 - alpha.dim()) + tuple(alpha.shape)).unsqueeze(-1)


def _preference(log_preference: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    if log_preference is None:
        return None
    if not isinstance(log_preference, Tensor):
        raise ProblemError(f"log_preference is a {type(log_preference).__name__}; expected a tensor")
    shape = (*query.shape[:3], key.shape[2])
    given = tuple(log_preference.shape)
    if log_preference.dtype != torch.bool and not log_preference.is_floating_point():
        raise ProblemError(
            f"log_preference has dtype {log_preference.dtype}; expected floating log weights (-inf where masked) or "
            "bool (True = attend)"
        )
    if not broadcasts_to(given, shape):
        raise ProblemError(
            f"log_preference has shape {given}; expected one that broadcasts to (batch, heads, queries, keys) = {shape}"
        )
    if log_preference.device != query.device:
        raise ProblemError(
            f"log_preference is on {log_preference.device}, query on {query.device}; move one of them"
        )
    if not given or given[-1] != shape[-1]:
        log_preference = log_preference.expand(*given[:-1], shape[-1])
    return log_preference.reshape((1,) * (4 - log_preference.dim()) + tuple(log_preference.shape))


def _open(log_preference: Tensor | None, query: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The preference with rows that allow nothing opened up, on which kernels disagree; and which they were."""
    if log_preference is None:
        return None, None
    if log_preference.dtype == torch.bool:
        empty = ~log_preference.any(-1, keepdim=True)
        if torch.compiler.is_compiling() or bool(empty.any()):
            return log_preference | empty, empty
        return log_preference, None
    largest = log_preference.detach().amax(-1, keepdim=True)
    empty = largest == -torch.inf
    if not torch.compiler.is_compiling():
        if not bool((largest < torch.inf).all()):
            raise ProblemError(
                "log_preference contains NaN or +inf; expected finite log weights, or -inf where masked"
            )
        if not bool(empty.any()):
            return log_preference, None
    return torch.where(empty, torch.zeros_like(largest), log_preference), empty
