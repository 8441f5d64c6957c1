"""A soft window of any width around any place."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import check_flags
from fenchel.errors import ProblemError
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.preference.table import head_row, table
from fenchel.nn.sizes import check_positive, check_sizes

__all__ = ["GaussianWindow"]


class GaussianWindow(AbstractPreference):
    r"""A Gaussian over the keys' positions, :math:`\log u_{ij} = -(j - c_{hi})^2 / 2\sigma_{hi}^2`.

    * **Fixed location**: :math:`c_{hi} = a i + \delta_h`, i being the query's position on the keys' axis; the
      parameter ``shift`` :math:`\delta` starts at 0. The pace a is 1 within a sequence; between two it is how many
      places of the keys go with one of the queries'.
    * **Predicted location** (Luong's local-p): :math:`c_{hi} = f + (l - f)\,\mathrm{sigmoid}(v_h^\top\tanh(W x_i))`
      with the query's input :math:`x_i` and the positions f and l of the first and last key that is not padding.
    * **Width**: :math:`\log\sigma_{hi} = \rho_h`, a parameter, or :math:`\rho_h + r_h^\top x_i` if it is predicted,
      with r starting at 0. It is positive whatever the parameters are.

    Luong's window is cut off at two widths; this one is not: multiply by :class:`Window` where a hard border is wanted.

    Args:
        heads: Number of heads, or 1 to share location and width.
        width: Every :math:`\sigma` at the start.
        predict_location: Whether each query predicts its location.
        predict_width: Whether each query predicts its width.
        query_dim: Width of the layer's query argument; needed if something is predicted.
        pace: a; other than 1 only with a fixed location.

    Raises:
        ProblemError: If a size is not positive, or ``query_dim`` is missing, or given and not used, or ``pace`` is
            given and the location predicted; when called, if something is predicted and ``query_inputs`` is None or of
            another width.

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
        super().__init__()
        check_sizes("GaussianWindow", heads=heads)
        check_positive("GaussianWindow", width=width, pace=pace)
        check_flags(predict_location=predict_location, predict_width=predict_width)
        predicts = predict_location or predict_width
        if predicts and query_dim is None:
            raise ProblemError(
                "GaussianWindow needs query_dim, the width of the layer's query, to predict from it."
            )
        if query_dim is not None and not predicts:
            raise ProblemError(
                f"GaussianWindow got query_dim={query_dim}, but predicts nothing; "
                "set predict_location or predict_width."
            )
        if predict_location and pace != 1:
            raise ProblemError(
                f"GaussianWindow got pace={pace}, but predicts its location; leave pace out, or predict_location."
            )
        self.heads, self.query_dim, self.pace = heads, query_dim, pace
        self.depends_on_distance = not predicts and pace == 1
        self.log_width = nn.Parameter(torch.full((heads,), math.log(width)))
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

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The Gaussian's logarithm, from tables with an entry for every head, or for every query and head."""
        precision, heads = self._precision(inputs), self.heads or 1
        width_is_predicted = precision.dim() == 3
        if self.location is None:
            shift = table(self.shift) if self.shift is not None else precision.new_zeros(heads)
            position, pace = inputs.query_position(), self.pace

            def from_query(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
                row = head_row(h, heads)
                distance = k - pace * position(q) - shift[row]
                return -distance * distance * (precision[b, q, row] if width_is_predicted else precision[row])

            return from_query
        locations = self._locations(self.location, inputs)

        def from_location(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            row = head_row(h, heads)
            distance = k - locations[b, q, row]
            return -distance * distance * (precision[b, q, row] if width_is_predicted else precision[row])

        return from_location

    def _query_inputs(self, inputs: AttentionInputs) -> Tensor:
        return inputs.required("query_inputs", reader="GaussianWindow", width=self.query_dim)

    def _precision(self, inputs: AttentionInputs) -> Tensor:
        """1/(2σ²), (heads,) or (B, m, heads)."""
        log_width = table(self.log_width)
        if self.width_change is not None:
            log_width = log_width + self.width_change(self._query_inputs(inputs))
        return torch.exp(-2 * log_width) / 2

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

    def extra_repr(self) -> str:
        """Heads and what is predicted."""
        predicted = [
            f", {name}=True"
            for name, module in (("predict_location", self.location), ("predict_width", self.width_change))
            if module is not None
        ]
        query_dim = f", query_dim={self.query_dim}" if predicted else ""
        pace = "" if self.pace == 1 else f", pace={self.pace:g}"
        return f"heads={self.heads}{''.join(predicted)}{query_dim}{pace}"
