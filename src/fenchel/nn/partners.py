"""Which other input of a batch lends its templates to each input."""

from __future__ import annotations

import torch
from torch import Tensor

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
    if not isinstance(partners, Tensor):
        raise ProblemError(f"partners are a {type(partners).__name__}; expected an int64 tensor ({batch},)")
    if partners.shape != (batch,) or partners.dtype != torch.int64:
        raise ProblemError(
            f"partners have shape {tuple(partners.shape)} and dtype {partners.dtype}; expected int64 ({batch},), the "
            "index in the batch of another input, or -1 for none"
        )
    if partners.device != device:
        raise ProblemError(f"partners are on {partners.device}, the inputs on {device}; move one of them")
    if torch.compiler.is_compiling() or batch == 0:
        return partners
    smallest, largest = (int(end) for end in partners.aminmax())
    if smallest < -1 or largest >= batch:
        wrong = smallest if smallest < -1 else largest
        raise ProblemError(f"partners contain {wrong}; expected indices 0 to {batch - 1}, or -1 for none")
    own = partners == torch.arange(batch, device=device)
    if bool(own.any()):
        raise ProblemError(
            f"input {int(own.nonzero()[0])} is its own partner; expected another, or -1 for none"
        )
    return None if largest < 0 else partners
