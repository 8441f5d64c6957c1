"""The block g of the papers' figure 1: from templates, a preference and evidence to the inferred mean."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import checked_argument
from fenchel.closeness.named import closeness_name, closeness_named
from fenchel.errors import ProblemError
from fenchel.functional.close_arguments import check_kind
from fenchel.nn.attending import AttendingLayer, KeyProjection, LayerCall
from fenchel.nn.inference import Inferred, Problem
from fenchel.nn.sizes import check_positive, check_sizes
from fenchel.preference.mask import log_weights

__all__ = ["Inference"]


class Inference(AttendingLayer, nn.Module):
    r"""Infers p near the preference u whose mean is near :math:`\mu + z`, and answers with the mean of the values.

    .. math:: p = \arg\min_p \tfrac\alpha2\lVert\mu + z - \mathbb{E}_p[t]\rVert^2 + \mathcal{K}(p, u), \qquad
              h = \mathbb{E}_p[v]

    It learns nothing: the modules around it make its templates, preference and evidence. Audits, swaps and
    :func:`fenchel.nn.use_estimator` find it in a model.

    Args:
        heads: How many problems are solved side by side.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``.
        alpha: α > 0, the reliability of the evidence.
        closeness: The name of 𝒦, such as ``"tsallis:1.5"``; None is Kullback and Leibler's.
        tol: Tolerance of ``"exact"``; None is that of :func:`fenchel.functional.attention`.
        max_steps: Largest number of steps of ``"exact"``.

    Raises:
        ProblemError: On an argument that cannot be used, with its value and what was expected.

    Reference:
        The papers' figure 1 and equation (1); textbook's 15.4.1.

    Example:
        >>> import torch
        >>> templates, z = torch.randn(2, 1, 5, 8), torch.randn(2, 1, 3, 8)
        >>> Inference(estimator="exact")(templates, templates, z).output.shape
        torch.Size([2, 1, 3, 8])
    """

    def __init__(
        self,
        heads: int = 1,
        *,
        estimator: str = "first_order",
        alpha: float = 1.0,
        closeness: str | None = None,
        tol: float | None = None,
        max_steps: int = 50,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        check_sizes(owner, heads=heads)
        check_positive(owner, alpha=alpha)
        self.estimator = checked_argument("estimator", estimator, name=f"estimator of {owner}")
        self.num_heads, self.alpha, self.tol, self.max_steps = heads, alpha, tol, max_steps
        self.closeness = closeness_name(closeness)
        self.effective_closeness = closeness_named(self.closeness)
        check_kind(self.effective_closeness, estimator)

    def forward(
        self,
        templates: Tensor,
        values: Tensor,
        evidence: Tensor,
        log_preference: Tensor | None = None,
        *,
        scale: float = 1.0,
        projection: KeyProjection | None = None,
        key_padding: Tensor | None = None,
        query_padding: Tensor | None = None,
        asks_itself: bool = False,
        need_weights: bool = False,
        need_certificate: bool = False,
    ) -> Inferred:
        """h, and what else is asked for.

        Args:
            templates: Before their scale, (B, heads, n, d).
            values: (B, heads, n, d').
            evidence: z, (B, heads, m, d).
            log_preference: log u, or bool with True = attend, broadcastable to (B, heads, m, n); None is uniform.
            scale: Of the templates.
            projection: For audits, the linear map that made the templates, if one did.
            key_padding: For audits, True where a key is padding, bool (B, n). It has to be in ``log_preference`` too.
            query_padding: For audits, True where a query is padding, bool (B, m): its answer is not measured.
            asks_itself: For audits, whether the queries are of the sequence that the keys are of.
            need_weights: Whether to return p.
            need_certificate: Whether to return the certificate.

        Raises:
            ProblemError: If shapes, dtypes or devices do not fit each other.
        """
        if evidence.shape[1] != self.num_heads:
            raise ProblemError(
                f"evidence has shape {tuple(evidence.shape)}; expected (batch, heads, queries, d) with "
                f"{self.num_heads} heads"
            )
        call = LayerCall(
            Problem(evidence, templates, values, self.alpha, scale, closeness=self.effective_closeness),
            log_preference,
            projection,
            key_padding,
            asks_itself,
            query_padding=query_padding,
        )
        return self.answer(
            call,
            dropout=0.0,
            need_weights=need_weights,
            need_certificate=need_certificate,
            estimator=self.estimator,
            tol=self.tol,
            max_steps=self.max_steps,
        )

    @contextlib.contextmanager
    def steps(self) -> Iterator[None]:
        """Calls inside are queries of one problem, asked one after the other, as a decoder does that sees the answers.

        Who looks on, such as an audit, is told of them once, at the end and side by side. The templates of all calls
        have to be the same.
        """
        onlooker = self.onlooker
        if onlooker is None:
            yield
            return
        calls: list[LayerCall] = []
        self.onlooker = lambda _, call: calls.append(call)
        try:
            yield
        finally:
            self.onlooker = onlooker
        if calls:
            onlooker(self, _side_by_side(calls))

    def _reset_parameters(self) -> None:
        """Nothing is learned here."""

    def extra_repr(self) -> str:
        """How it infers."""
        closeness = f", closeness={self.closeness!r}" if self.closeness else ""
        return f"heads={self.num_heads}, estimator={self.estimator!r}, alpha={self.alpha:g}{closeness}"


def _side_by_side(calls: Sequence[LayerCall]) -> LayerCall:
    """One call with the queries of all."""
    first, given = calls[0], [call.log_preference for call in calls]
    evidence = torch.cat([call.problem.evidence for call in calls], 2)
    if all(one is given[0] for one in given):  # what all steps share has not to be repeated
        log_preference = given[0]
    else:
        queries = [call.problem.evidence.shape[2] for call in calls]
        rows = [_four(one, first.problem.evidence) for one in given]
        keys = first.problem.templates.shape[2]
        most = max(row.shape[0] for row in rows), max(row.shape[1] for row in rows)
        log_preference = torch.cat(
            [row.expand(*most, count, keys) for row, count in zip(rows, queries, strict=True)], 2
        )
    return first._replace(
        problem=first.problem._replace(evidence=evidence),
        log_preference=log_preference,
        query_padding=_paddings(calls),
    )


def _paddings(calls: Sequence[LayerCall]) -> Tensor | None:
    """Which queries of all calls are padding; None where no call says it."""
    given = [call.query_padding for call in calls]
    if all(one is None for one in given):
        return None
    shapes = [call.problem.evidence for call in calls]
    rows = [
        like.new_zeros(len(like), like.shape[2], dtype=torch.bool) if one is None else one
        for one, like in zip(given, shapes, strict=True)
    ]
    return torch.cat(rows, 1)


def _four(log_preference: Tensor | None, like: Tensor) -> Tensor:
    """Log u as numbers, with four dimensions."""
    if log_preference is None:
        return like.new_zeros(1, 1, 1, 1)
    numbers = log_weights(log_preference, like.dtype)
    return numbers.reshape((1,) * (4 - numbers.dim()) + tuple(numbers.shape))
