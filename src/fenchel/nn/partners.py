"""Which other input of a batch lends its templates to each input."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.arguments.tensor import WHOLE, check_device, check_tensor, values_are_known
from fenchel.errors import ProblemError

__all__ = ["checked_partners"]


def checked_partners(partners: Tensor | None, *, batch: int, device: torch.device) -> Tensor | None:
    """The partners of a batch, if they fit it.

    Args:
        partners: int64 (N,), the index in the batch of another input, or -1 for none; None is -1 for all.
        batch: N.
        device: Where they have to be.

    Returns:
        The same, or None where no input has one. Under ``torch.compile`` their values are not looked at.

    Raises:
        ProblemError: On a wrong shape, dtype or device, a partner that is not in the batch or is the input itself.

    Example:
        >>> checked_partners(torch.tensor([-1, -1]), batch=2, device=torch.device("cpu")) is None
        True
    """
    if partners is None:
        return None
    form = f"({batch},), the index in the batch of another input, or -1 for none"
    check_tensor("partners", partners, form, dtypes=WHOLE)
    if partners.shape != (batch,):
        raise ProblemError(f"partners have shape {tuple(partners.shape)}; expected int64 {form}")
    check_device("partners", partners, device, "the inputs")
    if not values_are_known(partners) or batch == 0:
        return partners
    smallest, largest = (int(end) for end in partners.aminmax())
    if smallest < -1 or largest >= batch:
        wrong = smallest if smallest < -1 else largest
        raise ProblemError(f"partners contain {wrong}; expected indices 0 to {batch - 1}, or -1 for none")
    own = partners == torch.arange(batch, device=device)
    if bool(own.any()):
        raise ProblemError(
            f"partners name {int(own.nonzero()[0])} as the partner of itself; expected another, or -1 for none"
        )
    return None if largest < 0 else partners
