"""Attention as inference: output, certificate, weights and gap, by one of three estimators."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from fenchel.functional.certificate import AttentionCertificate
from fenchel.functional.inference import Options, infer


def attention(query: Tensor, key: Tensor, value: Tensor, **options: Unpack[Options]) -> Tensor:
    r"""Infer one distribution over the keys for each query, and average the values under it.

    Templates are :math:`t_i = \mathtt{scale}\cdot k_i`, the evidence z is the query, and

    .. math:: o = \sum_i p_i v_i, \qquad p_i \propto u_i \exp\langle t_i, \lambda\rangle, \qquad \lambda =
        \begin{cases}
        \alpha z & \text{first order (14): softmax attention}\\
        \alpha(I + \alpha\Sigma_u)^{-1} z & \text{second order (13)}\\
        \arg\max_\lambda\ \langle\lambda, \mu + z\rangle - \tfrac{1}{2\alpha}\lVert\lambda\rVert^2
        - \log\sum_i u_i e^{\langle t_i,\lambda\rangle} & \text{exact (7)}
        \end{cases}

    First order runs on torch's fused kernels, or block by block if the preference requires a gradient, for which the
    kernels raise or allocate (m, n) arrays. The gradient of the exact estimator comes from the implicit function
    theorem (one linear solve per query), not from its steps. Half types are solved in float32.

    An accelerator is synchronised when values are read: never at first order, nor at second order if queries share
    preference and α; once per call at second order otherwise; at every step of the exact estimator. Values of arguments
    are therefore checked only on the CPU, or on every device inside ``torch.autograd.detect_anomaly()``.

    Args:
        query: (B, H, m, d). As in torch, B and H of query, key and value broadcast: they may be missing or 1.
        key: (B, H_kv, n, d). If n is 0, there is nothing to attend to.
        value: (B, H_kv, n, d_v).
        log_preference: log u up to a constant per row, floating-point with -inf where masked, or bool with True =
            attend; broadcastable to (B, H, m, n): (n,) is shared by all queries, (m, n) by all heads. Cheapest if
            shared by queries. Differentiable. ``causal_upper_left(m, n)`` and ``causal_lower_right(m, n)`` of
            ``torch.nn.attention.bias`` are accepted wherever a log-preference is.
        alpha: α > 0, the reliability of the evidence: a number, or a tensor that broadcasts to (B, H, m); (H, 1) is one
            per head.
        scale: Multiplies keys to give templates: a number, or a tensor with one element, whose products with the keys
            are rounded to their dtype; None is 1/√d.
        closeness: D instead of the Kullback-Leibler divergence, such as :class:`fenchel.Tsallis`, whose weights can be
            exactly zero: then :math:`p = \nabla D^*(T\lambda)`, μ is the mean at λ = 0, and second order uses the
            curvature there. Its numbers may differ by head, (H, 1), and be learned. None is softmax.
        estimator: ``"first_order"``, ``"second_order"``, ``"exact"``, or an object: ``fenchel.Exact(tol=1e-6)``.
        dropout_p: Probability with which a weight is dropped; the others are divided by 1 - p. Pass 0 in evaluation.
        enable_gqa: Allow H_kv < H: H / H_kv heads of the query share each head of the key.
        tol: Tolerance of the exact estimator: ‖λ - λ*‖ ≤ tol·‖λ‖. By default 1e-5, and 1e-10 in float64.
        max_steps: Maximum number of steps of a query.

    Returns:
        (B, H, m, d_v) in the dtype of the query (autocast's, under autocast), without B or H where neither query, key
        nor value has them. A query with nothing to attend to gets zeros and no gradient.

    Raises:
        ProblemError: If the arguments are inconsistent, or a second derivative that is not implemented is taken.
        ConvergenceError: If the exact estimator does not reach ``tol`` for some query.

    Reference:
        Sections 4 and 6, eqs. (7)-(16).

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
        >>> causal = torch.ones(5, 5, dtype=torch.bool).tril()
        >>> softmax = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=causal)
        >>> torch.allclose(attention(q, k, v, log_preference=causal), softmax)
        True
        >>> attention(q, k, v, log_preference=causal, estimator="exact").shape
        torch.Size([1, 2, 5, 4])
        >>> from fenchel import Tsallis
        >>> sparse = attention_weights(q, 4 * k, log_preference=causal, closeness=Tsallis(2))      # sparsemax
        >>> bool((sparse.triu(1) == 0).all()), bool((sparse.sum(-1) - 1 < 1e-12).all())
        (True, True)
    """
    return infer(query, key, value, **options).output


def attention_with_certificate(
    query: Tensor, key: Tensor, value: Tensor, **options: Unpack[Options]
) -> tuple[Tensor, AttentionCertificate]:
    r"""The output of :func:`attention`, and bounds on its distance from the exact inference.

    .. math:: \mathrm{gap} = \tfrac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2, \qquad
              \nabla\mathcal{D}(\lambda) = \mu + z - \lambda/\alpha - \hat h

    ĥ comes from the same pass over the keys, with values [V, K] in place of V. At first order the gradient is μ - ĥ:
    the certificate of softmax attention is the shift of the mean (fact 1).

    Args:
        query: Same as in :func:`attention`, like all arguments.
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax. The bounds hold for any closeness, except that total variation is at most √(gap/2σ)
            for one with modulus of strong convexity σ.
        estimator: Estimator of output and certificate.
        dropout_p: The certificate refers to the weights before dropout.
        enable_gqa: Allow H_kv < H.
        tol: Tolerance of the exact estimator.
        max_steps: Maximum number of steps of the exact estimator.

    Returns:
        The output, and its :class:`AttentionCertificate` in float32 (float64 for float64), without gradient.

    Raises:
        ProblemError, ConvergenceError: As :func:`attention`.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
        >>> _, first = attention_with_certificate(q, k, v)
        >>> _, exact = attention_with_certificate(q, k, v, estimator="exact")
        >>> bool((first.gap > exact.gap).all()), bool((exact.dual_error < 1e-9).all())
        (True, True)
    """
    return infer(query, key, value, **options).certified()


def attention_weights(query: Tensor, key: Tensor, **options: Unpack[Options]) -> Tensor:
    """The weights p that :func:`attention` puts on the values, as one (B, H, m, n) array.

    Args:
        query: Same as in :func:`attention`, like all arguments.
        key: (B, H_kv, n, d).
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax.
        estimator: Estimator of the weights.
        enable_gqa: Allow H_kv < H.
        tol: Tolerance of the exact estimator.
        max_steps: Maximum number of steps of the exact estimator.

    Returns:
        (B, H, m, n) in the dtype of the query; a row with nothing to attend to is zero. Differentiable like
        :func:`attention`.

    Raises:
        ProblemError, ConvergenceError: As :func:`attention`.

    Example:
        >>> import torch
        >>> q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64)
        >>> attention_weights(q, k, estimator="second_order").sum(-1).allclose(torch.ones(1, 2, 5, dtype=torch.float64))
        True
    """
    return infer(query, key, **options).weights


def gap(query: Tensor, key: Tensor, **options: Unpack[Options]) -> Tensor:
    r"""The duality gap of the estimate of :func:`attention`, differentiable.

    .. math:: \mathrm{gap} = \tfrac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2, \qquad
              \nabla\mathcal{D}(\lambda) = \mu + z - \lambda/\alpha - \hat h

    The same numbers as those of :func:`attention_with_certificate`, which have no gradient. As a term of a loss it
    trains queries, keys, preference and α to keep the closed form near the exact inference. At first order it is
    :math:`\frac\alpha2\lVert\mu - \hat h\rVert^2`, computed by attention with keys as values.

    Args:
        query: Same as in :func:`attention`, like all arguments.
        key: (B, H_kv, n, d).
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax.
        estimator: ``"first_order"`` or ``"second_order"``. The exact solution has a gap of 0 up to its tolerance.
        enable_gqa: Allow H_kv < H.

    Returns:
        (B, H, m) in float32, float64 for float64; 0 for a query with nothing to attend to.

    Raises:
        ProblemError: If the arguments are inconsistent, or ``estimator`` is ``"exact"``.

    Reference:
        Fact 1 of the documentation's mathematics.

    Example:
        >>> import torch
        >>> q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64).requires_grad_()
        >>> loss = gap(q, k).mean()
        >>> to_query, to_key = torch.autograd.grad(loss, (q, k))
        >>> to_key.shape
        torch.Size([1, 2, 5, 4])
    """
    return infer(query, key, **options).gap
