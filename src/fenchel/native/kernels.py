"""Native kernels on tensors: float32 or float64 on the CPU, contiguous, (g, r, n)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from fenchel.native.compiled import loaded

__all__ = [
    "POINTS",
    "Points",
    "distance",
    "exact_point",
    "first_order",
    "mean_error",
    "products",
    "seen",
    "serves",
    "thresholds",
]

POINTS = 3
"""Points that mixing combines."""


class _Shared(Structure):
    """A row that many rows share, or a row each: an address and the strides of a group and of a row."""

    _fields_ = (("data", c_void_p), ("group", c_int64), ("row", c_int64))


class _Point(Structure):
    _fields_ = (("part", _Shared * 4), ("square", c_void_p), ("low", c_int64))


class _History(Structure):
    _fields_ = (
        ("point", POINTER(_Point) * POINTS),
        ("along", c_void_p * 2),
        ("between", c_void_p),
        ("count", c_int64),
    )


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "fenchel_following": (POINTER(_History), c_int64, c_int64, c_int64, c_float, c_void_p, c_void_p, c_int),
    "fenchel_mixed": (
        POINTER(_History),
        *(c_int64, c_int64, c_int64, c_float, c_float, _Shared),
        *(c_void_p,) * 5,
        c_int,
    ),
    "fenchel_along": (POINTER(_History), *(c_int64,) * 3, c_void_p, c_void_p, c_int),
    "fenchel_products": (c_int64, c_int64, c_void_p, c_void_p, c_int, c_void_p, c_int),
    "fenchel_further": (POINTER(_History), c_int64, c_int64, c_int64, _Shared, *(c_void_p,) * 5, c_int),
    "fenchel_first_order": (*(c_int64,) * 3, c_float, _Shared, _Shared, *(c_void_p,) * 4, c_int),
    "fenchel_seen": (*(c_int64,) * 3, c_double, *(_Shared,) * 3, *(c_void_p,) * 6, c_int),
    "fenchel_exact_point": (*(c_int64,) * 3, c_float, _Shared, *(c_void_p,) * 6, c_int),
    "fenchel_mean_error": (*(c_int64,) * 3, *(_Shared,) * 3, *(c_void_p,) * 7, c_int),
    "fenchel_distance": (c_int64, c_int64, *(c_void_p,) * 6, c_int),
    **{
        f"fenchel_thresholds_{real}": (
            *(*(c_int64,) * 3, c_double, _Shared, c_void_p),
            *(*(_Shared,) * 3, *(c_void_p,) * 2, c_int),
        )
        for real in ("float", "double")
    },
    **{
        f"fenchel_differentiated_{real}": (c_int64, c_int64, c_int, *(c_void_p,) * 3, c_int)
        for real in ("float", "double")
    },
}


@cache
def _function(name: str) -> Any:
    found = getattr(loaded(), name)
    found.argtypes, found.restype = _SIGNATURES[name], None
    return found


def _call(name: str, *arguments: object) -> None:
    _function(name)(*arguments, torch.get_num_threads())


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _shared(tensor: Tensor) -> _Shared:
    (group, row, _), (groups, rows, _) = tensor.stride(), tensor.shape
    return _Shared(tensor.data_ptr(), group if groups > 1 else 0, row if rows > 1 else 0)


def serves(*tensors: Tensor, shared: Sequence[Tensor] = (), dtype: torch.dtype = torch.float32) -> bool:
    """Whether native kernels take these tensors: contiguous on the CPU, and ``shared`` ones with contiguous rows.

    Args:
        tensors: Arrays (g, r, n).
        shared: Arrays (g or 1, r or 1, n).
        dtype: What they have to be.
    """
    everything = (*tensors, *shared)
    return (
        not torch.compiler.is_compiling()
        and all(
            type(part) is Tensor and part.dtype == dtype and part.device.type == "cpu" and part.numel() > 0
            for part in everything
        )
        and all(part.is_contiguous() for part in tensors)
        and all(part.stride(-1) == 1 or part.shape[-1] == 1 for part in shared)
        and not (torch.is_grad_enabled() and any(part.requires_grad for part in everything))
        # What torch.func transforms, or has transformed, has no memory to point to.
        and not any(map(_functorch.is_functorch_wrapped_tensor, everything))
        and loaded() is not None
    )


def products(one: Tensor, other: Tensor) -> Tensor:
    """Inner products of rows (g, r, n), float32, with others, which may be bfloat16; (g, r)."""
    g, r, n = one.shape
    found, low = one.new_empty(g, r), int(other.dtype == torch.bfloat16)
    _call("fenchel_products", g * r, n, one.data_ptr(), other.data_ptr(), low, found.data_ptr())
    return found


def first_order(
    scores: Tensor, log_preference: Tensor, rest: Tensor, alpha: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The argument log u + αs, the weights p and the gradient u - p of attention's point, each (g, r, n).

    Args:
        scores: s, (g, r, n).
        log_preference: log u, (g or 1, r or 1, n).
        rest: u, likewise.
        alpha: α.
    """
    g, r, n = scores.shape
    argument, weights, residual = (torch.empty_like(scores) for _ in range(3))
    _call(
        "fenchel_first_order",
        *(g * r, r, n, alpha, _shared(log_preference), _shared(rest)),
        *map(_address, (scores, argument, weights, residual)),
    )
    return argument, weights, residual


def seen(
    scores: Tensor,
    x: Tensor,
    lifted: Tensor,
    log_preference: Tensor,
    rest: Tensor,
    squares: Tensor,
    alpha: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """A point in Gram coordinates evaluated in float64.

    Args:
        scores: s, (g, r, n).
        x: Its coordinates, (g, r, n).
        lifted: Gx, (g, r, n); overwritten.
        log_preference: log u, (g or 1, r or 1, n).
        rest: u, likewise.
        squares: Squared norms of the templates, (g or 1, 1, n).
        alpha: α.

    Returns:
        Potential over α and gradient in float32, (g, r, n); in float64, (3, g, r), what ‖λ/α‖² is beyond ‖z‖², the sum
        of the sizes of the gradient's coordinates, and the weighted sum of the squares.
    """
    g, r, n = scores.shape
    potential, residual = (torch.empty_like(scores, dtype=torch.float32) for _ in range(2))
    sums = scores.new_empty(3, g, r)
    _call(
        "fenchel_seen",
        *(g * r, r, n, alpha, _shared(log_preference), _shared(rest), _shared(squares)),
        *map(_address, (scores, x, lifted, potential, residual, sums)),
    )
    return potential, residual, sums


def exact_point(
    scores: Tensor, first: Tensor, x: Tensor, potential: Tensor, log_preference: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """Weights (g, r, n) at a point in Gram coordinates.

    Args:
        scores: s, (g, r, n).
        first: Attention's weights, (g, r, n).
        x: The point's coordinates, (g, r, n).
        potential: Its potential over α, (g, r, n).
        log_preference: log u, (g or 1, r or 1, n).
        alpha: α.

    Returns:
        Also sums (3, g, r): what ‖λ/α‖² is beyond ‖z‖², ‖λ/α - z‖², and the sum of the sizes of differences of weights.
    """
    g, r, n = scores.shape
    weights, sums = torch.empty_like(scores), scores.new_empty(3, g, r)
    _call(
        "fenchel_exact_point",
        *(g * r, r, n, alpha, _shared(log_preference)),
        *map(_address, (scores, first, x, potential, weights, sums)),
    )
    return weights, sums


def mean_error(
    scores: Tensor,
    residual: Tensor,
    lifted_residual: Tensor,
    mean: Tensor,
    image: Tensor,
    weights: Tensor,
    *,
    rest: Tensor,
    lifted_rest: Tensor,
    centre: Tensor,
) -> Tensor:
    """Sums (3, g, r): ‖ĥ - h‖², the weighted products of templates with their centre, and ‖h‖² about the centre.

    Args:
        scores: s, (g, r, n).
        residual: Attention's gradient u - p̂, (g, r, n).
        lifted_residual: Its lift, (g, r, n).
        mean: Coordinates of h, (g, r, n).
        image: The potential over α of the point that stands for h, (g, r, n).
        weights: (g, r, n).
        rest: u, (g or 1, r or 1, n).
        lifted_rest: Its lift, likewise.
        centre: Products of the centred templates with their centre, (g or 1, 1, n).
    """
    g, r, n = scores.shape
    sums = scores.new_empty(3, g, r)
    _call(
        "fenchel_mean_error",
        *(g * r, r, n, _shared(rest), _shared(lifted_rest), _shared(centre)),
        *map(_address, (scores, residual, lifted_residual, mean, image, weights, sums)),
    )
    return sums


def distance(scores: Tensor, x: Tensor, potential: Tensor, other: Tensor, lifted: Tensor) -> Tensor:
    """Squared distances, (g, r), of points by coordinates and potential over α from others by coordinates and lift."""
    g, r, n = scores.shape
    found = scores.new_empty(g, r)
    _call("fenchel_distance", g * r, n, *map(_address, (scores, x, potential, other, lifted, found)))
    return found


def thresholds(
    potential: Tensor, a: float | Tensor, base: Tensor | None, weight: Tensor | None, whole: Tensor | None
) -> Tensor:
    """Sparse weights of potentials (g, r, n), float32 or float64; see :mod:`fenchel.closeness.threshold`.

    Args:
        potential: f.
        a: β - 1, not small: one number, or float64 (g or 1, r or 1, 1).
        base: What is added to af, -inf where masked, (g or 1, r or 1, n); nothing where None.
        weight: w, likewise; 1 where None.
        whole: :math:`w^{-a}`, likewise.
    """
    g, r, n = potential.shape
    found = torch.empty_like(potential)
    scratch = torch.empty(torch.get_num_threads(), 3 * n, dtype=torch.float64)
    shared = (_Shared() if part is None else _shared(part) for part in (base, weight, whole))
    name = f"fenchel_thresholds_{_real(potential)}"
    one, orders = (0.0, _shared(a)) if isinstance(a, Tensor) else (a, _Shared())
    _call(name, g * r, r, n, one, orders, potential.data_ptr(), *shared, found.data_ptr(), scratch.data_ptr())
    return found


def differentiated(weights: Tensor, gradient: Tensor, *, squares: bool) -> Tensor:
    """What a gradient of sparse weights is to their scores in Bregman's sense, at a = 1, or 1/2 where ``squares``.

    Args:
        weights: p, (..., n), float32 or float64.
        gradient: Likewise.
        squares: Which.
    """
    n, found = weights.shape[-1], torch.empty_like(weights)
    pointers = map(_address, (weights, gradient, found))
    _call(f"fenchel_differentiated_{_real(weights)}", weights.numel() // n, n, int(squares), *pointers)
    return found


def _real(tensor: Tensor) -> str:
    return "float" if tensor.dtype == torch.float32 else "double"


class Points:
    """The last points of a mixing iteration, newest first, with the inner products of their gradients.

    Args:
        log_preference: log u, (g or 1, r or 1, n).
        alpha: α.
    """

    def __init__(self, log_preference: Tensor, alpha: float) -> None:
        self._log_preference, self._alpha = log_preference, alpha
        self._parts: list[tuple[Tensor, ...]] = []
        self._points: list[_Point] = []
        self._along: Tensor | None = None
        self._between: Tensor | None = None

    def add(self, parts: tuple[Tensor, Tensor, Tensor, Tensor], square: Tensor, along: Tensor | None) -> None:
        """Take a point.

        Args:
            parts: The mean that it stands for, (g or 1, r or 1, n), its potential over α, its gradient and the lift
                of that, (g, r, n), which may be bfloat16.
            square: The gradient's squared norm, (g, r).
            along: The gradient's products with those of the newest two points, (2, g, r); None where there is no point.
        """
        self._between = None if self._along is None else self._along[0]
        self._along = along
        square = square.contiguous()
        low = parts[3].dtype == torch.bfloat16
        point = _Point((_Shared * 4)(*map(_shared, parts)), square.data_ptr(), low)
        # What points to tensors is kept with them.
        self._parts = [(*parts, square), *self._parts[: POINTS - 1]]
        self._points = [point, *self._points[: POINTS - 1]]

    def along(self, residual: Tensor) -> Tensor | None:
        """Products of a gradient (g, r, n) with those of the newest two points, (2, g, r); None without points."""
        if not self._points:
            return None
        g, r, n = residual.shape
        found = residual.new_empty(2, g, r)
        _call("fenchel_along", self._history(), g * r, r, n, residual.data_ptr(), found.data_ptr())
        return found

    def following(self, damping: float) -> tuple[Tensor, Tensor]:
        """The mean and the potential of the point that a step of length ``damping`` leads to."""
        potential = torch.empty_like(self._parts[0][1])
        return self.following_mean(damping, potential), potential

    def following_mean(self, damping: float, potential: Tensor | None = None) -> Tensor:
        """The mean alone; the potential is put into an array where one is given."""
        mean = torch.empty_like(self._parts[0][1])
        g, r, n = mean.shape
        _call(
            "fenchel_following", self._history(), g * r, r, n, damping, mean.data_ptr(), _address(potential)
        )
        return mean

    def mixed(self, damping: float, *, rounded: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
        """The same with the gradient there, the gradient in bfloat16 where asked for, and its products (2, g, r)."""
        mean, potential, residual = (torch.empty_like(self._parts[0][1]) for _ in range(3))
        low = torch.empty_like(residual, dtype=torch.bfloat16) if rounded else None
        g, r, n = mean.shape
        along = mean.new_empty(2, g, r)
        _call(
            "fenchel_mixed",
            *(self._history(), g * r, r, n, damping, self._alpha, _shared(self._log_preference)),
            *map(_address, (mean, potential, residual, low, along)),
        )
        return mean, potential, residual, low, along

    def further(self, rest: Tensor, most: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One point further, undamped, in rows where that is near; see :class:`fenchel.solver.certified.CertifiedRows`.

        Args:
            rest: u, (g or 1, r or 1, n).
            most: The squared distance to which it is near, (g, r); negative where it never is.

        Returns:
            Coordinates of the point, its potential over α, the mean and what stands for that, each (g, r, n).
        """
        x, potential, mean, image = (torch.empty_like(self._parts[0][1]) for _ in range(4))
        g, r, n = mean.shape
        _call(
            "fenchel_further",
            *(self._history(), g * r, r, n, _shared(rest)),
            *map(_address, (most, x, potential, mean, image)),
        )
        return x, potential, mean, image

    def _history(self) -> _History:
        found = _History(count=len(self._points), between=_address(self._between))
        for number, point in enumerate(self._points):
            found.point[number] = ctypes.pointer(point)
        if self._along is not None:
            first = self._along.data_ptr()
            found.along[0], found.along[1] = first, first + self._along.stride(0) * self._along.element_size()
        return found
