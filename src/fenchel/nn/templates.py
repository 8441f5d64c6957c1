r"""Banks of templates that persist between calls, and the spread of templates as a penalty.

The error of first order tends to 0 with α and with the spread of the templates under u. For every λ,

.. math:: \tfrac\alpha2\lVert h(\lambda) - \mu\rVert^2
          \;\le\; \chi^2(p(\lambda), u)\,\cdot\,\tfrac\alpha2\operatorname{tr}\operatorname{Cov}_u(t),
          \qquad \chi^2(p, u) = \sum_i \frac{(p_i - u_i)^2}{u_i},

by Cauchy-Schwarz on :math:`h - \mu = \sum_i \frac{p_i - u_i}{\sqrt{u_i}}\,\sqrt{u_i}(t_i - \mu)`. At first order the
left side is the gap of the certificate (fact 1), so the penalty
:math:`\frac\alpha2\operatorname{tr}\operatorname{Cov}_u(t)` bounds it up to the factor χ², the deviation of the weights
from u.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.errors import ProblemError
from fenchel.nn.arguments import check_sizes
from fenchel.tensors import (
    BOOL,
    WHOLE,
    check_flags,
    check_indices,
    check_tensor,
    check_type,
    checked_argument,
    log_weights,
    may_attend,
    widened,
)


class AbstractTemplateBank(nn.Module, ABC):
    """Base class of banks with ``per_class`` templates for each class, of the width of a layer's inputs.

    Args:
        embed_dim: Width E of the layer that uses the bank.
        classes: Number of classes; 1 is a bank without classes.
        per_class: Number of templates of each class.
        own_class: Whether an input with a label may use only the templates of its class. An input without a label may
            use all.

    Raises:
        ProblemError: If a size is below 1.
    """

    templates: Tensor

    def __init__(self, embed_dim: int, classes: int, per_class: int = 1, *, own_class: bool = False) -> None:
        super().__init__()
        check_sizes(type(self).__name__, embed_dim=embed_dim, classes=classes, per_class=per_class)
        check_flags(own_class=own_class)
        self.embed_dim = embed_dim
        self.classes = classes
        self.per_class = per_class
        self.own_class = own_class

    def forward(self, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """All templates, and which of them each input may use.

        Args:
            labels: Class of each input, int64 (N,), -1 if unknown; None if all are.

        Returns:
            Templates, (classes * per_class, E), class after class; and a mask, bool (N, classes * per_class), or
            (1, classes * per_class) where it is the same for all, True = may be used.

        Raises:
            ProblemError: If labels have a wrong dtype or shape, or are out of range.
        """
        filled = self.filled.repeat_interleave(self.per_class).unsqueeze(0)
        # A clone, since a bank may be updated before the backward pass.
        templates = self.templates.clone().flatten(0, 1)
        if labels is None:
            return templates, filled
        self._check_labels(labels)
        if not self.own_class:
            return templates, filled
        classes = torch.arange(self.classes, device=labels.device).repeat_interleave(self.per_class)
        label = labels.unsqueeze(1)
        return templates, filled & ((label == classes) | (label < 0))

    @property
    @abstractmethod
    def filled(self) -> Tensor:
        """Which classes have templates, bool (classes,)."""

    @abstractmethod
    def update(self, inputs: Tensor, labels: Tensor, padding: Tensor | None = None) -> None:
        """Update the templates from a training batch.

        Args:
            inputs: Inputs of the layer, (N, S, E).
            labels: Class of each, int64 (N,), -1 if unknown.
            padding: True where there is no token, bool (N, S).
        """

    def _check_labels(self, labels: Tensor) -> None:
        form, device = "(N,), the class of each input, -1 if unknown", self.templates.device
        check_tensor("labels", labels, form, dtypes=WHOLE, dims=1, device=device, other="the bank")
        expected = f"classes 0 to {self.classes - 1}, or -1 if unknown"
        check_indices("labels", labels, -1, self.classes, expected)

    def extra_repr(self) -> str:
        """Sizes and ``own_class``."""
        return f"{self.embed_dim}, classes={self.classes}, per_class={self.per_class}, own_class={self.own_class}"


class LearnedTemplateBank(AbstractTemplateBank):
    r"""Templates that are parameters.

    Args:
        embed_dim: Width E of the layer that uses the bank.
        classes: Number of classes; 1 is a bank without classes.
        per_class: Number of templates of each class.
        own_class: Whether an input with a label may use only the templates of its class.

    Raises:
        ProblemError: If a size is below 1.

    Example:
        >>> bank = LearnedTemplateBank(8, classes=3, per_class=2, own_class=True)
        >>> templates, mask = bank(torch.tensor([2, -1]))
        >>> templates.shape, mask.int().tolist()
        (torch.Size([6, 8]), [[0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1]])
    """

    def __init__(
        self, embed_dim: int, classes: int = 1, per_class: int = 1, *, own_class: bool = False
    ) -> None:
        super().__init__(embed_dim, classes, per_class, own_class=own_class)
        self.templates = nn.Parameter(torch.empty(classes, per_class, embed_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the templates from the standard normal distribution, with the scale of the output of a layer norm."""
        nn.init.normal_(self.templates)

    @property
    def filled(self) -> Tensor:
        """True for every class."""
        return torch.ones(self.classes, dtype=torch.bool, device=self.templates.device)

    def update(self, inputs: Tensor, labels: Tensor, padding: Tensor | None = None) -> None:
        """Do nothing: the optimiser updates the templates."""


class RunningTemplateBank(AbstractTemplateBank):
    r"""Templates that are running means of the tokens of each class in training, without gradient.

    Every token of an input of class c is assigned to the nearest template of c. With :math:`\bar x_k` the mean of the
    tokens of template k,

    .. math:: t_k \leftarrow m\, t_k + (1 - m)\,\bar x_k ,

    which for one template per class is the running mean of its tokens. A class starts with evenly spaced tokens of its
    first input, or with their mean if it has one template; before that it has none. Padding and tokens with a NaN or an
    infinity are left out. Templates are buffers: they are saved with the model, and DistributedDataParallel copies
    those of rank 0 to all.

    Args:
        embed_dim: Width E of the layer that uses the bank.
        classes: Number of classes.
        per_class: Number of templates of each class.
        momentum: m, in [0, 1).
        own_class: Whether an input with a label may use only the templates of its class.

    Raises:
        ProblemError: On a size below 1, or a momentum outside [0, 1).

    Reference:
        Nearest templates as running means: van den Oord et al., Neural Discrete Representation Learning (2017), A.1.

    Example:
        >>> bank = RunningTemplateBank(2, classes=2, momentum=0.5)
        >>> bank.update(torch.tensor([[[1.0, 0.0], [3.0, 0.0]]]), torch.tensor([1]))
        >>> bank.update(torch.tensor([[[4.0, 2.0], [4.0, 2.0]]]), torch.tensor([1]))
        >>> templates, mask = bank()
        >>> templates.tolist(), mask.tolist()
        ([[0.0, 0.0], [3.0, 1.0]], [[False, True]])
    """

    _filled: Tensor

    def __init__(
        self,
        embed_dim: int,
        classes: int,
        per_class: int = 1,
        *,
        momentum: float = 0.9,
        own_class: bool = False,
    ) -> None:
        super().__init__(embed_dim, classes, per_class, own_class=own_class)
        self.momentum = checked_argument("momentum", momentum)
        self.register_buffer("templates", torch.zeros(classes, per_class, embed_dim))
        self.register_buffer("_filled", torch.zeros(classes, dtype=torch.bool))

    @property
    def filled(self) -> Tensor:
        """The classes that :meth:`update` has seen, bool (classes,)."""
        return self._filled

    @torch.no_grad()
    def update(self, inputs: Tensor, labels: Tensor, padding: Tensor | None = None) -> None:
        """Update the templates of the classes in a batch.

        Args:
            inputs: Inputs of the layer, (N, S, E).
            labels: Class of each, int64 (N,), -1 if unknown.
            padding: True where there is no token, bool (N, S).

        Raises:
            ProblemError: If labels have a wrong dtype or shape, or are out of range.
        """
        self._check_labels(labels)
        self._check_inputs(inputs, labels, padding)
        tokens = inputs.detach().to(self.templates.dtype)
        valid = torch.isfinite(tokens).all(-1)
        valid = valid if padding is None else valid & ~padding
        for label in labels[labels >= 0].unique().tolist():
            rows = (labels == label) & valid.any(1)
            if bool(rows.any()):
                self._move(label, tokens[rows], valid[rows])

    def _check_inputs(self, inputs: Tensor, labels: Tensor, padding: Tensor | None) -> None:
        place: dict[str, Any] = {"device": self.templates.device, "other": "the bank"}
        sizes = (len(labels), None, self.embed_dim)
        check_tensor("inputs", inputs, "(N, S, E), as many as labels", sizes=sizes, **place)
        if padding is not None:
            form = "(N, S), True where there is no token"
            check_tensor("padding", padding, form, dtypes=BOOL, sizes=inputs.shape[:2], **place)

    def _move(self, label: int, tokens: Tensor, valid: Tensor) -> None:
        of_class = tokens[valid]
        if not bool(self._filled[label]):
            first = tokens[0][valid[0]]
            places = torch.linspace(
                0, len(first) - 1, self.per_class, dtype=torch.float32, device=first.device
            )
            self.templates[label] = of_class.mean(0) if self.per_class == 1 else first[places.round().long()]
            self._filled[label] = True
            return
        templates = self.templates[label]
        nearest = torch.cdist(of_class, templates).argmin(1)
        belongs = nn.functional.one_hot(nearest, self.per_class).to(templates.dtype)
        count = belongs.sum(0).unsqueeze(1)
        means = belongs.mT @ of_class / count.clamp_min(1)
        moved = self.momentum * templates + (1 - self.momentum) * means
        self.templates[label] = torch.where(count > 0, moved, templates)

    def extra_repr(self) -> str:
        """Sizes, ``own_class`` and the momentum."""
        return f"{super().extra_repr()}, momentum={self.momentum}"


def template_spread(templates: Tensor, log_preference: Tensor | None = None) -> Tensor:
    r"""Mean squared distance of the templates from their mean, under the preference.

    .. math:: \operatorname{tr}\operatorname{Cov}_u(t) = \sum_i u_i\lVert t_i\rVert^2
              - \Big\lVert\sum_i u_i t_i\Big\rVert^2

    Args:
        templates: t, (B, H, n, d), scale included. Half types are computed in float32.
        log_preference: Log weights, or bool with True = attend, broadcastable to (B, H, m, n); None is uniform.

    Returns:
        (B, H, m), or (B, H, 1) if queries share a preference; 0 for queries with all keys masked.

    Example:
        >>> templates = torch.tensor([[[[1.0], [3.0], [100.0]]]])
        >>> template_spread(templates, torch.tensor([True, True, False]))
        tensor([[[1.]]])
    """
    templates = widened(templates)
    centred = templates - templates.mean(-2, keepdim=True)  # reduces rounding errors
    squares = centred.square().sum(-1, keepdim=True)
    if log_preference is None:
        return squares.mean(-2)
    moments = _weights(log_preference, templates) @ torch.cat([centred, squares], -1)
    return moments[..., -1] - moments[..., :-1].square().sum(-1)


def _weights(log_preference: Tensor, templates: Tensor) -> Tensor:
    """The preference u (B or 1, H or 1, m or 1, n), with zeros in fully masked rows."""
    full = log_weights(log_preference[(None,) * (4 - log_preference.dim())], templates.dtype)
    full = full.expand(*full.shape[:-1], templates.shape[-2])
    live = may_attend(full).any(-1, keepdim=True)
    return torch.where(live, torch.where(live, full, 0.0).softmax(-1), 0.0)


def norm_penalty(model: nn.Module) -> Tensor:
    r"""The norm penalty of the last forward, a number to add to a loss.

    .. math:: \mathop{\mathrm{mean}}_{\text{layers}}\;\mathop{\mathrm{mean}}_{\text{sequences, heads, queries}}\;
              \tfrac\alpha2\operatorname{tr}\operatorname{Cov}_u(t)

    The papers note that norms of templates may grow in training until α is no longer small. They propose norm
    regularisation (this penalty) or normalised templates, ``normalize_templates=True`` of
    :class:`~fenchel.nn.MultiheadAttention`.

    Args:
        model: A model, or one layer. Its layers with ``keep_norm_penalty`` true are collected.

    Returns:
        A scalar with gradient to the key projections, to learned preferences and to learned α.

    Raises:
        ProblemError: If no layer keeps its penalty, or such a layer has not been called.

    Reference:
        "Limitations and other comments" of the first version of the paper.

    Example:
        >>> from fenchel.nn import MultiheadAttention
        >>> layer = MultiheadAttention(16, 2, batch_first=True, keep_norm_penalty=True)
        >>> x = torch.randn(3, 5, 16)
        >>> output, _ = layer(x, x, x)
        >>> loss = output.square().mean() + 0.1 * norm_penalty(layer)
        >>> loss.backward()
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    layers = [module for module in model.modules() if getattr(module, "keep_norm_penalty", False)]
    if not layers:
        raise ProblemError(
            f"no layer of this {type(model).__name__} keeps its norm penalty; set keep_norm_penalty = True on the "
            "fenchel.nn.MultiheadAttention layers to penalise, and run the model"
        )
    penalties: list[Any] = [layer.last_norm_penalty for layer in layers]
    return torch.stack(penalties).mean()
