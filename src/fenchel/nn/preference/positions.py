"""Preferences that depend on the positions of query and key: penalties and learned weights of distances; sinusoids."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fenchel.errors import ProblemError
from fenchel.nn.arguments import check_choice, check_grid, check_positive, check_sizes
from fenchel.nn.calls import AttentionInputs, IndexFunction
from fenchel.nn.preference.abstract import AbstractGridPreference, AbstractPreference, table
from fenchel.tensors import FLOATING, INTEGERS, check_flags, check_tensor


class ALiBi(AbstractPreference):
    r"""A penalty proportional to the distance, :math:`\log u_{ij} = -s_h \lvert i - j \rvert`.

    i is the query's position on the keys' axis and :math:`s_h > 0` the head's slope. With :class:`Causal` this is the
    paper's form; alone it is the symmetric form for encoders.

    Args:
        heads: Number of heads, or 1 to share a slope.
        symmetric: Whether to penalise both directions. If False, the log-weight is :math:`-s_h (i - j)`, which favours
            keys after the query unless multiplied by :class:`Causal`.
        learned: Whether slopes are learned, as exponentials of a parameter. They start as :func:`alibi_slopes`.

    Raises:
        ProblemError: If ``heads`` is not a whole number of at least 1.

    Reference:
        Press et al. 2022, Train short, test long, section 3.

    Example:
        >>> from fenchel.nn.preference import Causal
        >>> Causal() * ALiBi(heads=8)
        Causal() * ALiBi(heads=8)
    """

    depends_on_distance = True
    fixed_slopes: Tensor

    def __init__(self, heads: int, symmetric: bool = True, learned: bool = False) -> None:
        super().__init__(heads=heads)
        check_flags(symmetric=symmetric, learned=learned)
        self.symmetric, self.learned = symmetric, learned
        self.log_slopes = nn.Parameter(alibi_slopes(heads).log()) if learned else None
        self.register_buffer("fixed_slopes", None if learned else alibi_slopes(heads), persistent=False)

    @property
    def slopes(self) -> Tensor:
        """The slope of each head, positive, (heads,)."""
        return table(self.fixed_slopes) if self.log_slopes is None else table(self.log_slopes).exp()

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """Minus the slope times the distance."""
        symmetric, slopes = self.symmetric, self.slopes
        return inputs.by_distance(
            lambda h, distance: slopes[h] * (-distance.abs() if symmetric else distance)
        )


def alibi_slopes(heads: int) -> Tensor:
    """The paper's slopes, float32 (heads,): :math:`2^{-8/H}, 2^{-16/H}, ...` for a power of two H.

    For other H, the slopes of the next lower power of two come first, then every other slope of the next higher one.

    Example:
        >>> alibi_slopes(3).tolist()
        [0.0625, 0.00390625, 0.25]
    """
    below = 2 ** math.floor(math.log2(heads))

    def geometric(count: int) -> list[float]:
        return [2.0 ** (-8.0 * (i + 1) / count) for i in range(count)]

    return torch.tensor(geometric(below) + geometric(2 * below)[::2][: heads - below])


class QuadraticPosition(AbstractPreference):
    r"""Quadratic relative position, :math:`\log u_{ij} = -a_h (i - j)^2 + b_h (i - j)`, :math:`a_h > 0`.

    i is the query's position on the keys' axis. Up to a constant this is a Gaussian around :math:`i - b/2a` of width
    :math:`1/\sqrt{2a}`: with large a the head attends to one shift, and heads with all shifts make a convolution. a is
    the exponential of the parameter ``log_curvature``; b is the parameter ``drift``, which starts at 0.

    Args:
        heads: Number of heads, or 1 to share a and b.
        width: Initial width :math:`1/\sqrt{2a}`.

    Raises:
        ProblemError: If ``heads`` or ``width`` is not positive.

    Reference:
        Cordonnier et al. 2020, On the relationship between self-attention and convolutional layers, section 2.3,
        eq. (8), in one dimension.

    Example:
        >>> QuadraticPosition(heads=4, width=2.0).curvature[0].item()
        0.125
    """

    depends_on_distance = True

    def __init__(self, heads: int, width: float = 8.0) -> None:
        super().__init__(heads=heads)
        check_positive("QuadraticPosition", width=width)
        self.log_curvature = nn.Parameter(torch.full((heads,), -math.log(2 * width**2)))
        self.drift = nn.Parameter(torch.zeros(heads))

    @property
    def curvature(self) -> Tensor:
        """Each head's a, positive, (heads,)."""
        return table(self.log_curvature).exp()

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The parabola at the distance of q and k."""
        curvature, drift = self.curvature, table(self.drift)
        return inputs.by_distance(lambda h, distance: -(drift[h] + curvature[h] * distance) * distance)


class RelativePosition(AbstractPreference):
    r"""One learned log-weight for every head and bucket of distances, :math:`\log u_{ij} = w_{h, \beta(j - i)}`.

    Each small distance has its own bucket, larger ones share buckets that widen logarithmically up to ``max_distance``;
    all beyond share the last. i is the query's position on the keys' axis.

    The parameter is ``relative_attention_bias.weight`` of shape (buckets, heads), drawn from a normal distribution with
    standard deviation 0.02, so a new layer is close to uniform. It has T5's name: that entry of the state dict of a T5
    stack's first ``SelfAttention`` module can be loaded directly.

    Args:
        heads: Number of heads, or 1 to share the bias.
        buckets: Number of buckets; even if ``bidirectional``.
        max_distance: Distance from which all share a bucket.
        bidirectional: Buckets for both directions, as in T5's encoder; otherwise all keys after the query share the
            bucket of distance 0, as in its decoder, which is causal.

    Raises:
        ProblemError: If there are too few buckets, or ``max_distance`` does not exceed the distances with their own
            buckets.

    Reference:
        Raffel et al. 2020, Exploring the limits of transfer learning, section 2.1.

    Example:
        >>> import torch
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(2, 8, 5, 7, torch.device("cpu"), torch.float32, query_offset=0)
        >>> RelativePosition(heads=8)(inputs).shape
        torch.Size([1, 8, 5, 7])
    """

    depends_on_distance = True
    bucket_of_distance: Tensor

    def __init__(
        self, heads: int, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__(heads=heads, buckets=buckets, max_distance=max_distance)
        check_flags(bidirectional=bidirectional)
        one_way = buckets // 2 if bidirectional else buckets
        if one_way < 2 or (bidirectional and buckets % 2):
            needed = "an even number of at least 4" if bidirectional else "at least 2"
            raise ProblemError(
                f"RelativePosition got buckets={buckets}; bidirectional={bidirectional} needs {needed}."
            )
        if max_distance <= one_way // 2:
            raise ProblemError(
                f"RelativePosition got max_distance={max_distance}, but with buckets={buckets} each distance below "
                f"{one_way // 2} has its own bucket; max_distance has to be larger than that."
            )
        self.buckets, self.max_distance, self.bidirectional = buckets, max_distance, bidirectional
        self.relative_attention_bias = nn.Embedding(buckets, heads)
        nn.init.normal_(self.relative_attention_bias.weight, std=0.02)
        # Beyond max_distance the bucket no longer changes, so a table of clamped distances has them all.
        distances = torch.arange(-max_distance, max_distance + 1)
        bucket_of_distance = relative_position_bucket(distances, buckets, max_distance, bidirectional)
        self.register_buffer("bucket_of_distance", bucket_of_distance, persistent=False)

    @classmethod
    def from_t5(cls, weight: Tensor, max_distance: int = 128, bidirectional: bool = True) -> RelativePosition:
        """The relative position bias of a pretrained T5.

        Args:
            weight: ``relative_attention_bias.weight`` of the first block of a stack, (buckets, heads); it is copied.
            max_distance: ``config.relative_attention_max_distance``.
            bidirectional: True for the encoder's, False for the decoder's.

        Raises:
            ProblemError: If the weight is not a matrix.
        """
        check_tensor("weight", weight, "(buckets, heads)", dims=2)
        preference = cls(weight.shape[1], weight.shape[0], max_distance, bidirectional)
        preference.to(device=weight.device, dtype=weight.dtype)
        with torch.no_grad():
            preference.relative_attention_bias.weight.copy_(weight)
        return preference

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The log-weight of the bucket of k - q, from a table with a row for every distance up to the largest."""
        limit, rows = self.max_distance, table(self.relative_attention_bias(self.bucket_of_distance))
        return inputs.by_distance(lambda h, distance: rows[distance.clamp(-limit, limit) + limit, h])


def relative_position_bucket(
    distance: Tensor, buckets: int, max_distance: int, bidirectional: bool
) -> Tensor:
    r"""T5's bucket :math:`\beta` of a distance j - i.

    With e exact buckets in each direction out of b, a distance r has bucket r if r < e and otherwise
    :math:`\min(b - 1, e + \lfloor (b - e)\log(r/e) / \log(r_{\max}/e) \rfloor)`; computed in float32 as T5 does,
    since the floor depends on rounding.

    Args:
        distance: Key position minus query position, integers of any shape.
        buckets: Number of buckets.
        max_distance: :math:`r_{\max}`.
        bidirectional: Whether keys after the query have half of the buckets, or share bucket 0.

    Returns:
        Buckets from 0 to ``buckets`` - 1, int64, in the shape of ``distance``.

    Example:
        >>> relative_position_bucket(torch.tensor([-200, -3, 0, 3, 50]), 32, 128, bidirectional=True).tolist()
        [15, 3, 0, 19, 29]
    """
    start = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        start = (distance > 0).long() * buckets
        reach = distance.abs()
    else:
        reach = -distance.clamp(max=0)
    exact = buckets // 2
    # The 1 keeps the logarithm of distance 0, which has its own bucket, finite.
    growth = torch.log(reach.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    logarithmic = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
    return start + torch.where(reach < exact, reach, logarithmic)


class GridPosition(AbstractGridPreference):
    r"""A learned log-weight for every head and offset in an image, :math:`\log u_{ij} = w_{h,\Delta r,\Delta c}`.

    Tokens are the pixels of a grid, row by row, and the offset is that of query i from key j, in rows and columns. The
    parameter ``bias`` (heads, 2 · rows − 1, 2 · columns − 1), whose first entry is for keys farthest below and to the
    right, is drawn from a normal distribution with standard deviation 0.02. Swin's table is this one, flattened over
    offsets and transposed.

    Args:
        heads: Number of heads, or 1 to share the bias.
        grid: Rows and columns of the image, or of the window.

    Raises:
        ProblemError: If a size is not positive; when called, if tokens do not fill the grid.

    Reference:
        Liu et al. 2021, Swin transformer, eq. (4).

    Example:
        >>> import torch
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(2, 8, 6, 6, torch.device("cpu"), torch.float32)
        >>> GridPosition(heads=8, grid=(2, 3))(inputs).shape
        torch.Size([1, 8, 6, 6])
    """

    def __init__(self, heads: int, grid: tuple[int, int]) -> None:
        super().__init__(grid, heads=heads)
        rows, columns = self.grid
        self.bias = nn.Parameter(0.02 * torch.randn(heads, 2 * rows - 1, 2 * columns - 1))

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The entry of the bias at the offset of q from k."""
        (rows, columns), bias = self.grid, table(self.bias)
        return self.by_offset(inputs, lambda h, down, right: bias[h, rows - 1 - down, columns - 1 - right])


class QuadraticGridPosition(AbstractGridPreference):
    r"""Attention to a shift per head, :math:`\log u_{hij} = -a_h\lVert x_j - x_i - \Delta_h\rVert^2`, :math:`a_h > 0`.

    :math:`x_i` is the row and column of query i. Tokens are the pixels of a grid, row by row; with ``padding`` the keys
    are those of the grid with that many more rows and columns on every side, whose values are 0 in a convolution. The
    centres :math:`\Delta_h` are learned and start as the shifts of a kernel, one per head; a is the exponential of the
    parameter ``log_curvature``.

    **For large a this is convolution.** Where z = 0 and :math:`x_i + \Delta_h` is a pixel c of the keys, the weight of
    all other pixels is at most ``leakage``,

    .. math:: 1 - p_c = \frac{S}{1 + S} \le S \le 4\varepsilon(1 + \varepsilon), \qquad
              S = \sum_{j \ne c} e^{-a\lVert x_j - x_c\rVert^2}, \qquad \varepsilon = \frac{e^{-a}}{1 - e^{-3a}}

    since S is at most the sum over all of :math:`\mathbb{Z}^2` but 0, which is
    :math:`(1 + 2\sum_{k \ge 1} e^{-ak^2})^2 - 1`, and :math:`k^2 \ge 1 + 3(k - 1)`. So a head's output is within
    :math:`4\varepsilon(1 + \varepsilon)` times the largest :math:`\lVert v_j - v_c\rVert` of the shifted pixel's value,
    and heads that are mapped by :math:`W_h` and added are within :math:`\sum_h \lVert W_h\rVert` times that of a
    convolution with the kernel :math:`W`: an error of order :math:`e^{-a}`.

    Args:
        grid: Rows and columns of the image, whose pixels are the queries.
        heads: Number of heads, one per shift; 1 is one centre for all.
        kernel: Rows and columns of the shifts, one shift per head; None is K x K for K² heads. They are those of
            ``torch.nn.Conv2d(kernel, padding="same")``: from -(K - 1) // 2 to K // 2.
        width: Initial width :math:`1/\sqrt{2a}`.
        padding: Further rows and columns of keys, or one number for both.

    Raises:
        ProblemError: If sizes are not positive, or the numbers of heads and shifts differ; when called, if tokens do
            not fill the grids.

    Reference:
        Cordonnier et al. 2020, On the relationship between self-attention and convolutional layers, theorem 1, lemma 1
        and section 2.3, eq. (8).

    Example:
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(1, 9, 6, 20, torch.device("cpu"), torch.float32)
        >>> u = QuadraticGridPosition((2, 3), heads=9, width=0.2, padding=1)
        >>> u(inputs).softmax(-1)[0, 0, 0].argmax().item()             # up and to the left of the first pixel: padding
        0
        >>> QuadraticGridPosition((2, 3), heads=5)
        Traceback (most recent call last):
        fenchel.errors.ProblemError: heads of QuadraticGridPosition is 5; expected a square number of centres, ...
    """

    def __init__(
        self,
        grid: tuple[int, int],
        heads: int,
        kernel: tuple[int, int] | None = None,
        width: float = 0.5,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__(grid, heads=heads)
        name = type(self).__name__
        check_positive(name, width=width)
        both = padding if isinstance(padding, tuple | list) else (padding, padding)
        self.padding = check_grid(name, both, "padding", "reach")
        rows, columns = (
            torch.arange(-((size - 1) // 2), size // 2 + 1, dtype=torch.get_default_dtype())
            for size in _checked_kernel(name, heads, kernel)
        )
        self.centre = nn.Parameter(torch.cartesian_prod(rows, columns).view(heads, 2))
        self.log_curvature = nn.Parameter(torch.full((heads,), -math.log(2 * width**2)))

    @property
    def curvature(self) -> Tensor:
        """Each head's a, positive, (heads,)."""
        return table(self.log_curvature).exp()

    @property
    def leakage(self) -> Tensor:
        """Upper bound of a head's weight outside its centre, if that is a key and z = 0, (heads,)."""
        curvature = self.curvature
        beside = torch.exp(-curvature) / -torch.expm1(-3 * curvature)
        return (4 * beside * (1 + beside)).clamp_max(1)

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The paraboloid at the shift from q to k."""
        curvature, centre = self.curvature, table(self.centre)

        def paraboloid(h: Tensor, down: Tensor, right: Tensor) -> Tensor:
            down = down - centre[h, torch.zeros_like(h)]
            right = right - centre[h, torch.ones_like(h)]
            return -curvature[h] * (down * down + right * right)

        return self.by_offset(inputs, paraboloid)


def _checked_kernel(name: str, heads: int, kernel: tuple[int, int] | None) -> tuple[int, int]:
    """Rows and columns of the centres."""
    side = math.isqrt(heads)
    rows, columns = (side, side) if kernel is None else check_grid(name, kernel, "kernel")
    if rows * columns != heads:
        raise ProblemError(
            f"heads of {name} is {heads}; expected a square number of centres, such as {side * side} or "
            f"{(side + 1) ** 2}, or as many as kernel=(rows, columns) has, such as kernel=(1, {heads})."
        )
    return rows, columns


LAYOUTS = ("pairs", "halves")


def sinusoids(places: Tensor, width: int, *, base: float = 10_000.0, layout: str = "pairs") -> Tensor:
    r"""The sinusoidal code of positions, :math:`(\sin\omega_c s, \cos\omega_c s)` with :math:`\omega_c = b^{-2c/w}`.

    A shift is a rotation: the code of s + r is that of s with each pair rotated by the angle :math:`\omega_c r`, so
    ⟨code of s, code of s'⟩ depends only on s - s'.

    Args:
        places: Positions s, of any shape and sign, whole or not.
        width: w, even.
        base: b.
        layout: ``"pairs"``: sine and cosine alternate, as in the first transformer; ``"halves"``: all sines, then all
            cosines, as in Transformer-XL.

    Returns:
        (..., width), in the floating dtype of ``places``, or torch's default for whole numbers.

    Raises:
        ProblemError: If ``places`` is not a tensor of real or whole numbers, ``width`` is odd, or another argument is
            invalid.

    Reference:
        Vaswani et al. 2017, Attention is all you need, section 3.5.

    Example:
        >>> sinusoids(torch.tensor([0.0, 1.0]), 4, base=1.0)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.8415, 0.5403]])
    """
    form = "of positions, real or whole numbers, such as torch.arange(20)"
    check_tensor("places", places, form, dtypes=(*FLOATING, *INTEGERS))
    check_choice("sinusoids", LAYOUTS, layout=layout)
    dtype = places.dtype if places.is_floating_point() else torch.get_default_dtype()
    angles = places.unsqueeze(-1) * frequencies(width, base, places.device, owner="sinusoids")
    both = (angles.sin().to(dtype), angles.cos().to(dtype))
    return torch.stack(both, -1).flatten(-2) if layout == "pairs" else torch.cat(both, -1)


def frequencies(
    width: int, base: float, device: torch.device | None = None, *, owner: str, argument: str = "width"
) -> Tensor:
    """The frequencies :math:`b^{-2c/w}`, float64 (width / 2,), on a device.

    Raises:
        ProblemError: If ``width`` is odd, or an argument is not positive; the message has the owner's name of the
            argument.
    """
    check_sizes(owner, **{argument: width})
    check_positive(owner, base=base)
    if width % 2:
        raise ProblemError(
            f"{argument} of {owner} is {width}; expected an even number: sines and cosines are pairs."
        )
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
