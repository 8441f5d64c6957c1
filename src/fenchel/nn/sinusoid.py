"""Places as vectors of sines and cosines."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.arguments.tensor import FLOATING, INTEGERS, check_tensor
from fenchel.errors import ProblemError
from fenchel.nn.sizes import check_choice, check_positive, check_sizes

__all__ = ["LAYOUTS", "frequencies", "sinusoids"]

LAYOUTS = ("pairs", "halves")


def sinusoids(places: Tensor, width: int, *, base: float = 10_000.0, layout: str = "pairs") -> Tensor:
    r"""The sinusoidal code of places, :math:`(\sin\omega_c s, \cos\omega_c s)` with :math:`\omega_c = b^{-2c/w}`.

    A shift is a rotation: the code of s + r is that of s with each pair turned by the angle :math:`\omega_c r`,
    whatever s is, so that ⟨code of s, code of s'⟩ depends on s - s' alone.

    Args:
        places: s, of any shape and sign, whole or not.
        width: w, even.
        base: b.
        layout: ``"pairs"``: sine and cosine in turn, as in the first transformer; ``"halves"``: all sines, then all
            cosines, as in Transformer-XL.

    Returns:
        (..., width), in the floating dtype of ``places``, or torch's default for whole numbers.

    Raises:
        ProblemError: If ``places`` is not a tensor of real or whole numbers, ``width`` is odd, or another argument
            cannot be used.

    Reference:
        Vaswani et al. 2017, Attention is all you need, section 3.5.

    Example:
        >>> sinusoids(torch.tensor([0.0, 1.0]), 4, base=1.0)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.8415, 0.5403]])
    """
    form = "of places, real or whole numbers, such as torch.arange(20)"
    check_tensor("places", places, form, dtypes=(*FLOATING, *INTEGERS))
    check_choice("sinusoids", LAYOUTS, layout=layout)
    dtype = places.dtype if places.is_floating_point() else torch.get_default_dtype()
    angles = places.unsqueeze(-1) * frequencies(width, base, owner="sinusoids").to(places.device)
    both = (angles.sin().to(dtype), angles.cos().to(dtype))
    return torch.stack(both, -1).flatten(-2) if layout == "pairs" else torch.cat(both, -1)


def frequencies(width: int, base: float, *, owner: str, argument: str = "width") -> Tensor:
    """The frequencies :math:`b^{-2c/w}`, float64 (width / 2,).

    Raises:
        ProblemError: If ``width`` is odd, or an argument is not positive, naming the owner and what it calls them.
    """
    check_sizes(owner, **{argument: width})
    check_positive(owner, base=base)
    if width % 2:
        raise ProblemError(
            f"{argument} of {owner} is {width}; expected an even number: sines and cosines are pairs."
        )
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
