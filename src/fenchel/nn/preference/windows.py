"""Preferences that mask or discount keys by their position: masks, and windows with hard or Gaussian borders."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from fenchel.arguments import checked
from fenchel.errors import ProblemError
from fenchel.nn.arguments import check_positive, check_sizes
from fenchel.nn.calls import AttentionInputs, IndexFunction
from fenchel.nn.preference.abstract import AbstractGridPreference, AbstractPreference, table
from fenchel.tensors import check_flags


class Causal(AbstractPreference):
    r"""No weight on later keys: :math:`u_j = 0` for j > i, where i is the query's position on the keys' axis.

    Example:
        >>> import torch
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(1, 1, 2, 3, torch.device("cpu"), torch.float32, query_offset=1)
        >>> Causal()(inputs)
        tensor([[[[ True,  True, False],
                  [ True,  True,  True]]]])
    """

    depends_on_distance = True

    def mask_mod(self, inputs: AttentionInputs) -> IndexFunction | None:
        """True where key k is not later than query q."""
        return inputs.by_distance(lambda h, distance: distance <= 0)


class KeyPadding(AbstractPreference):
    r"""No weight on padding: :math:`u_j = 0` where ``inputs.key_padding`` is True, for every query.

    Uniform where ``inputs.key_padding`` is None.

    Example:
        >>> import torch
        >>> from fenchel.nn.preference import AttentionInputs
        >>> padding = torch.tensor([[False, False, True]])
        >>> inputs = AttentionInputs(1, 2, 4, 3, padding.device, torch.float32, key_padding=padding)
        >>> KeyPadding()(inputs)
        tensor([[[[ True,  True, False]]]])
    """

    def mask_mod(self, inputs: AttentionInputs) -> IndexFunction | None:
        """True where key k of example b is not padding."""
        if inputs.key_padding is None:
            return None
        real = ~inputs.key_padding
        return lambda b, h, q, k: real[b, k]


class Window(AbstractPreference):
    r"""A window around the query: :math:`u_j = 0` unless :math:`-\text{before} \le j - i \le \text{after}`.

    i is the query's position on the keys' axis.

    Args:
        before: Number of keys before a query's position in its window; None for all.
        after: Number of keys after a query's position in its window; None for all.
        dilation: Only keys with j - i divisible by it are in the window.

    Raises:
        ProblemError: If a size is negative or not whole, or all keys would be in the window.

    Reference:
        Beltagy et al. 2020, Longformer, section 3.1 (sliding and dilated sliding window).

    Example:
        >>> import torch
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(1, 1, 3, 3, torch.device("cpu"), torch.float32)
        >>> Window(1, 0)(inputs)
        tensor([[[[ True, False, False],
                  [ True,  True, False],
                  [False,  True,  True]]]])
    """

    depends_on_distance = True

    def __init__(self, before: int | None, after: int | None, dilation: int = 1) -> None:
        super().__init__(dilation=dilation)
        for name, size in (("before", before), ("after", after)):
            checked("reach", size, name=f"{name} of Window", error=ProblemError)
        if before is None and after is None and dilation == 1:
            raise ProblemError(
                "Window got before=None and after=None, which restricts nothing; use Uniform()."
            )
        self.before, self.after, self.dilation = before, after, dilation

    def mask_mod(self, inputs: AttentionInputs) -> IndexFunction | None:
        """True where key k is in the window of query q."""
        before, after, dilation = self.before, self.after, self.dilation

        def is_near(h: Tensor, distance: Tensor) -> Tensor:
            near = distance == distance if before is None else distance >= -before
            if after is not None:
                near = near & (distance <= after)
            if dilation > 1:
                near = near & (distance % dilation == 0)
            return near

        return inputs.by_distance(is_near)


class GridWindow(AbstractGridPreference):
    r"""A window around each pixel: :math:`u_j = 0` unless j is within ``reach`` rows and columns of i.

    Tokens are the pixels of a grid, row by row. At the border a window has fewer pixels; some implementations pad the
    image with zero keys instead.

    Args:
        grid: Rows and columns of the image.
        reach: Largest distance in rows and in columns: (k − 1) / 2 for a window of k × k.

    Raises:
        ProblemError: If the grid is not two sizes or the reach is negative; when called, if tokens do not fill the
            grid.

    Reference:
        Ramachandran et al. 2019, Stand-alone self-attention in vision models, section 3.

    Example:
        >>> import torch
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(1, 1, 6, 6, torch.device("cpu"), torch.float32)
        >>> GridWindow((2, 3), reach=1)(inputs)[0, 0, 0].int().tolist()
        [1, 1, 0, 1, 1, 0]
    """

    def __init__(self, grid: tuple[int, int], reach: int) -> None:
        super().__init__(grid, reach=reach)
        self.reach = reach

    def mask_mod(self, inputs: AttentionInputs) -> IndexFunction | None:
        """True where key k is in the window of query q."""
        reach = self.reach
        return self.by_offset(inputs, lambda h, down, right: (down.abs() <= reach) & (right.abs() <= reach))


class _AbstractGaussian(AbstractPreference):
    """A Gaussian over the keys' positions; subclasses give its centres and may vary its width.

    Args:
        heads: Number of heads, or 1 to share the width.
        width: Initial standard deviation; its logarithm is the parameter ``log_width``.
    """

    def __init__(self, heads: int, width: float) -> None:
        super().__init__(heads=heads)
        check_positive(type(self).__name__, width=width)
        self.log_width = nn.Parameter(torch.full((heads,), math.log(width)))

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The logarithm of the Gaussian, from tables with an entry for every head, or for every query and head."""
        precision, distance = torch.exp(-2 * self._log_widths(inputs)) / 2, self._distance(inputs)
        differs_by_query = precision.dim() == 3

        def gaussian(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            apart = distance(b, h, q, k)
            return -apart * apart * (precision[b, q, h] if differs_by_query else precision[h])

        return gaussian

    def _log_widths(self, inputs: AttentionInputs) -> Tensor:
        """Log σ, (heads,) or (B, m, heads)."""
        return table(self.log_width)

    @abstractmethod
    def _distance(self, inputs: AttentionInputs) -> IndexFunction:
        """The function of indices that returns how far key k is from the centre of query q."""


class GaussianWindow(_AbstractGaussian):
    r"""A Gaussian over the keys' positions, :math:`\log u_{ij} = -(j - c_{hi})^2 / 2\sigma_{hi}^2`.

    * **Fixed location**: :math:`c_{hi} = a i + \delta_h`, i being the query's position on the keys' axis; the
      parameter ``shift`` :math:`\delta` starts at 0. The pace a is 1 within a sequence, and the number of keys per
      query in cross-attention.
    * **Predicted location** (Luong's local-p): :math:`c_{hi} = f + (l - f)\,\mathrm{sigmoid}(v_h^\top\tanh(W x_i))`
      with the query's input :math:`x_i` and the positions f and l of the first and last key that is not padding.
    * **Width**: :math:`\log\sigma_{hi} = \rho_h`, a parameter, or :math:`\rho_h + r_h^\top x_i` if it is predicted,
      with r starting at 0.

    Luong's window is cut off at two widths; this one has no hard border unless multiplied by :class:`Window`.

    Args:
        heads: Number of heads, or 1 to share location and width.
        width: Every :math:`\sigma` at the start.
        predict_location: Whether each query predicts its location.
        predict_width: Whether each query predicts its width.
        query_dim: Width of the layer's query argument; required if location or width is predicted.
        pace: a; 1 unless the location is fixed.

    Raises:
        ProblemError: If a size is not positive, ``query_dim`` is missing, or given without being used, or ``pace`` is
            given and the location is predicted; when called, if ``query_inputs`` is needed and is None or has another
            width.

    Reference:
        Luong et al. 2015, Effective approaches to attention-based neural machine translation, eq. (9) and (10).

    Example:
        >>> import torch
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(1, 1, 3, 3, torch.device("cpu"), torch.float32)
        >>> (-2 * GaussianWindow(heads=1, width=1.0)(inputs)[0, 0, 0]).tolist()
        [0.0, 1.0, 4.0]
    """

    def __init__(
        self,
        heads: int,
        width: float = 8.0,
        *,
        predict_location: bool = False,
        predict_width: bool = False,
        query_dim: int | None = None,
        pace: float = 1.0,
    ) -> None:
        super().__init__(heads, width)
        check_positive("GaussianWindow", pace=pace)
        check_flags(predict_location=predict_location, predict_width=predict_width)
        predicts = predict_location or predict_width
        if predicts is (query_dim is None):
            raise ProblemError(
                f"query_dim of GaussianWindow is {query_dim}, predict_location {predict_location} and predict_width "
                f"{predict_width}; expected the width of the layer's query if one of them is predicted, else None."
            )
        if predict_location and pace != 1:
            raise ProblemError(
                f"GaussianWindow got pace={pace}, but predicts its location; omit pace, or predict_location."
            )
        self.query_dim, self.pace = query_dim, pace
        self.predict_location, self.predict_width = predict_location, predict_width
        self.depends_on_distance = not predicts and pace == 1
        self.shift = None if predict_location else nn.Parameter(torch.zeros(heads))
        self.location = self.width_change = None
        if query_dim is not None:
            check_sizes("GaussianWindow", query_dim=query_dim)
            if predict_location:
                hidden = nn.Linear(query_dim, query_dim, bias=False)
                self.location = nn.Sequential(hidden, nn.Tanh(), nn.Linear(query_dim, heads, bias=False))
            if predict_width:
                self.width_change = nn.Linear(query_dim, heads, bias=False)
                nn.init.zeros_(self.width_change.weight)

    def _distance(self, inputs: AttentionInputs) -> IndexFunction:
        if self.location is not None:
            locations = self._locations(self.location, inputs)
            return lambda b, h, q, k: k - locations[b, q, h]
        assert self.shift is not None  # noqa: S101 -- there is one or the other
        shift, position, pace = table(self.shift), inputs.query_position(), self.pace
        return lambda b, h, q, k: k - pace * position(q).to(shift.dtype) - shift[h]

    def _query_inputs(self, inputs: AttentionInputs) -> Tensor:
        return inputs.required("query_inputs", reader="GaussianWindow", width=self.query_dim)

    def _log_widths(self, inputs: AttentionInputs) -> Tensor:
        log_width = super()._log_widths(inputs)
        if self.width_change is None:
            return log_width
        return log_width + self.width_change(self._query_inputs(inputs))

    def _locations(self, location: nn.Module, inputs: AttentionInputs) -> Tensor:
        """c, (B, m, heads), between the first and the last key that is not padding."""
        share = table(location(self._query_inputs(inputs))).sigmoid()
        if inputs.key_padding is None:
            return share * max(inputs.keys - 1, 0)
        real = (~inputs.key_padding).to(share.dtype)
        if inputs.keys == 0:
            return share * 0
        first = real.argmax(-1).to(share.dtype)
        last = inputs.keys - 1 - real.flip(-1).argmax(-1).to(share.dtype)
        return first[:, None, None] + share * (last - first)[:, None, None]


class ProportionalWindow(_AbstractGaussian):
    r"""A Gaussian around the proportional position, :math:`\log u_{hij} = -(j - c_i)^2 / 2\sigma_h^2`.

    With m queries and n keys, query i is at the fraction :math:`(i + \tfrac12)/m` of its sequence, and :math:`c_i =
    (i + \tfrac12)\,n/m - \tfrac12` is at the same fraction of the keys. m and n exclude padding, which is assumed to be
    at the end; m includes the ``query_offset`` queries before the first one (0 if all queries are given at once). The
    logarithm of :math:`\sigma_h` is a parameter.

    Args:
        heads: Number of heads, or 1 to share the width.
        width: Every :math:`\sigma` at the start.

    Raises:
        ProblemError: If a size is not positive.

    Reference:
        The papers' section 3.1: the preference is larger for words at similar places in the sentence.

    Example:
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(1, 1, 2, 4, torch.device("cpu"), torch.float32, query_offset=0)
        >>> (-2 * ProportionalWindow(heads=1, width=1.0)(inputs)[0, 0, 0]).tolist()  # around 0.5
        [0.25, 0.25, 2.25, 6.25]
    """

    def __init__(self, heads: int, width: float = 4.0) -> None:
        super().__init__(heads, width)

    def _distance(self, inputs: AttentionInputs) -> IndexFunction:
        dtype = torch.promote_types(inputs.dtype, torch.float32)
        counts = [
            torch.full((inputs.batch, 1), count, dtype=dtype, device=inputs.device)
            if padding is None
            else (~padding).sum(1, keepdim=True).to(dtype)
            for count, padding in ((inputs.keys, inputs.key_padding), (inputs.queries, inputs.query_padding))
        ]
        share = counts[0] / (counts[1] + inputs.first_query).clamp_min(1)
        places = (inputs.query_positions.to(dtype) + 0.5) * share - 0.5
        return lambda b, h, q, k: k - places[b, q]
