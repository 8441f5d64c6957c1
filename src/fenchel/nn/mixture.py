"""Multi-head attention whose keys are Gaussians."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from fenchel.errors import ProblemError
from fenchel.estimators import Estimator, EstimatorName
from fenchel.functional import Mixture
from fenchel.nn.arguments import check_choice, check_positive, check_sizes
from fenchel.nn.attention import MultiheadAttention
from fenchel.nn.calls import AttentionInputs, KeyValueCache, TorchCall
from fenchel.nn.inference import Problem
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.tensors import check_flags, check_tensor

VARIANCES = ("input", "learned", "given")
ANSWERS = ("values", "memories")


class MixtureAttention(MultiheadAttention):
    r"""Attention whose keys are Gaussians, with a mean and a variance for each memory.

    The preference of a head is the mixture :math:`\sum_k w_k N(m_k, \operatorname{diag} s_k)` whose means are the
    projected keys. With :math:`\varsigma = \mathtt{scale}\cdot\lambda` the responsibility of a memory is

    .. math:: r_k \propto w_k\exp\bigl(\langle m_k,\varsigma\rangle + \tfrac12\langle s_k,\varsigma^2\rangle\bigr),

    and the output is the mean of the values under r, or of the memories themselves, :math:`\sum_k r_k(m_k +
    s_k\circ\varsigma)` (fact 11). Everything else is as in :class:`~fenchel.nn.MultiheadAttention`: masks, layouts, the
    preference, estimators, certificates and the names of shared entries of the state dict.

    Args:
        embed_dim: Width E of queries and output, divisible by ``num_heads``.
        num_heads: Heads H; each has head dimension d = E / H.
        dropout: Probability in [0, 1) with which a responsibility is dropped in training.
        bias: Whether the projections have a bias.
        add_bias_kv: Whether a learned memory and value, without variance, are added to every sequence.
        add_zero_attn: Whether a memory and value of zeros, without variance, are added.
        kdim: Width of keys; ``embed_dim`` if None.
        vdim: Width of values; ``embed_dim`` if None.
        batch_first: Whether batched sequences are (N, L, E) rather than (L, N, E).
        device: Device of the parameters.
        dtype: Dtype of the parameters.
        variances: Source of the variances. ``"input"``: a linear map of the key's input, through softplus.
            ``"learned"``: a parameter, through softplus, shared by all keys, or separate for each memory with
            ``memories``. ``"given"``: an argument of every call.
        answer: ``"values"``: the mean of the projected values. ``"memories"``: E[x] itself; the ``value`` argument is
            not used.
        spherical: One variance per memory and head instead of d, at nearly the cost of softmax attention.
        memories: For ``variances="learned"``: the number S of keys of every call, each with its own variances.
        initial_variance: Initial value of the variances, > 0.
        preference: log w, an :class:`~fenchel.nn.preference.AbstractPreference`; None is uniform.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``; or an object with its options, such as
            ``fenchel.Exact(tol=1e-6)``.
        alpha: Reliability α > 0 of the evidence.
        learn_alpha: Whether every head learns its α.
        keep_certificate: Whether a call stores :attr:`last_certificate`; may be set at any time.
        tol: Tolerance of the exact estimator.
        max_steps: Maximum number of steps of the exact estimator.

    Raises:
        ProblemError: If an argument is invalid.

    Reference:
        Section 7; fact 11 of the documentation's mathematics.

    Example:
        >>> layer = MixtureAttention(16, 4, batch_first=True, answer="memories")
        >>> x = torch.randn(2, 5, 16)
        >>> layer(x, x, x, need_weights=False)[0].shape
        torch.Size([2, 5, 16])
    """

    raw_variance: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        variances: str = "input",
        answer: str = "values",
        spherical: bool = False,
        memories: int | None = None,
        initial_variance: float = 0.1,
        preference: AbstractPreference | None = None,
        estimator: EstimatorName | Estimator = "first_order",
        alpha: float = 1.0,
        learn_alpha: bool = False,
        keep_certificate: bool = False,
        tol: float | None = None,
        max_steps: int = 50,
    ) -> None:
        owner = "MixtureAttention"
        check_choice(owner, VARIANCES, variances=variances)
        check_choice(owner, ANSWERS, answer=answer)
        check_flags(spherical=spherical)
        check_positive(owner, initial_variance=initial_variance)
        shape = (embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first)
        super().__init__(
            *shape,
            device=device,
            dtype=dtype,
            preference=preference,
            estimator=estimator,
            alpha=alpha,
            learn_alpha=learn_alpha,
            keep_certificate=keep_certificate,
            tol=tol,
            max_steps=max_steps,
        )
        _check_memories(memories, variances, answer, self.estimator)
        self.variances, self.answer_with, self.spherical = variances, answer, spherical
        self.memories, self.initial_variance = memories, float(initial_variance)
        width = 1 if spherical else self.head_dim
        weight = self.out_proj.weight
        learned = weight.new_empty(num_heads, memories or 1, width) if variances == "learned" else None
        self.register_parameter("raw_variance", None if learned is None else nn.Parameter(learned))
        self.variance_proj = (
            nn.Linear(self.kdim, num_heads * width, device=device, dtype=dtype)
            if variances == "input"
            else None
        )
        self._reset_variances()

    def _reset_variances(self) -> None:
        """Set every variance to its initial value, for any input."""
        # softplus(log(eˢ - 1)) = s, in a form without overflow of eˢ.
        start = self.initial_variance + math.log(-math.expm1(-self.initial_variance))
        if self.raw_variance is not None:
            nn.init.constant_(self.raw_variance, start)
        if self.variance_proj is not None:
            nn.init.zeros_(self.variance_proj.weight)
            nn.init.constant_(self.variance_proj.bias, start)

    def reset_parameters(self) -> None:
        """Reset all parameters to their initial values."""
        super().reset_parameters()
        self._reset_variances()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        variances: Tensor | None = None,
        query_offset: int | None = None,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The output and the responsibilities; as in :meth:`fenchel.nn.MultiheadAttention.forward`.

        Args:
            query: (N, L, E) where ``batch_first``, else (L, N, E); or (L, E) unbatched.
            key: (N, S, kdim), (S, N, kdim) or (S, kdim), projected to the means of the memories.
            value: (N, S, vdim), (S, N, vdim) or (S, vdim).
            key_padding_mask: (N, S) or (S,). bool, True = padding; or float, added to log w.
            need_weights: Whether to return the responsibilities, which takes memory for all of them.
            attn_mask: (L, S) or (N * num_heads, L, S). bool, True = masked; or float, added to log w.
            average_attn_weights: Whether they are the mean over heads.
            is_causal: A hint that ``attn_mask``, which has to be given, is causal.
            variances: Of the projected keys, for a layer with ``variances="given"``: finite and at least 0, in the
                layout of ``key`` with a last dimension of E, num_heads (one per head) or 1 (one per key).
            query_offset: Position of the first query among the keys, as in
                :meth:`fenchel.nn.MultiheadAttention.forward`.
            cache: Keys and values of earlier calls, without a window, for a layer with ``variances="input"``.

        Returns:
            The output, of the layout of ``query`` and width E; and None, or the responsibilities, after dropout where
            ``answer`` is ``"values"`` and before it where it is ``"memories"``.

        Raises:
            ProblemError: On a wrong shape, dtype or device, no keys, and missing or unexpected variances.
        """
        if self.keep_gap or self.keep_norm_penalty:
            kept = "keep_gap" if self.keep_gap else "keep_norm_penalty"
            raise ProblemError(
                f"{kept} of MixtureAttention is True, which is not supported; set it to False. keep_certificate keeps "
                "the gap, without gradient"
            )
        if isinstance(cache, KeyValueCache) and (cache.window is not None or self.variances != "input"):
            raise ProblemError(
                f"cache has window={cache.window} and MixtureAttention was built with variances={self.variances!r}; "
                "expected a cache without a window, and variances='input', computed from all keys"
            )
        if (variances is None) == (self.variances == "given"):
            what = "are missing" if variances is None else "are given"
            raise ProblemError(
                f"variances {what}, but MixtureAttention was built with variances={self.variances!r}; pass them with "
                "every call of a layer with variances='given', and of no other"
            )
        torch_arguments = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
        call = TorchCall(
            query, key, value, *torch_arguments, self.batch_first, query_offset, cache, variances
        )
        return self._attended(call)

    def _refined(self, problem: Problem, inputs: AttentionInputs, call: TorchCall) -> Problem:
        variances = self._variances(inputs, call).to(problem.templates.dtype)
        added = problem.templates.shape[2] - inputs.keys
        if added:
            full = variances.expand(*variances.shape[:2], inputs.keys, variances.shape[3])
            variances = nn.functional.pad(full, (0, 0, 0, added))
        return replace(problem, variant=Mixture(variances), reads_templates=self.answer_with == "memories")

    def _variances(self, inputs: AttentionInputs, call: TorchCall) -> Tensor:
        """(B or 1, H or 1, n or 1, d or 1)."""
        if call.variances is not None:
            weight, sizes = self.out_proj.weight, (*call.key.shape[:-1], (self.embed_dim, self.num_heads, 1))
            form = "in the layout of key, with a last dimension of embed_dim, num_heads or 1"
            check_tensor("variances", call.variances, form, sizes=sizes, like=weight, other="the layer")
            return call.to_heads(call.variances, 1 if call.variances.shape[-1] == 1 else self.num_heads)
        if self.raw_variance is not None:
            if self.memories not in (None, inputs.keys):
                raise ProblemError(
                    f"key has {inputs.keys} tokens, but MixtureAttention was built with memories={self.memories}, the "
                    "number of keys with their own variances; give as many keys, or use variances='input'"
                )
            return nn.functional.softplus(self.raw_variance.unsqueeze(0))
        assert self.variance_proj is not None  # noqa: S101 -- variances are given, learned or projected
        assert inputs.key_inputs is not None  # noqa: S101 -- the layer's own call has them
        # Of rows: compiled by aot_eager, torch mispredicts the strides of softplus's gradient, which matter elsewhere.
        variances = nn.functional.softplus(self.variance_proj(inputs.key_inputs.flatten(0, 1)))
        by_key = variances.unflatten(0, inputs.key_inputs.shape[:2])
        return by_key.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def extra_repr(self) -> str:
        """Options that the child modules do not show."""
        parts = [super().extra_repr(), f"variances={self.variances!r}", f"answer={self.answer_with!r}"]
        if self.spherical:
            parts.append("spherical=True")
        if self.memories is not None:
            parts.append(f"memories={self.memories}")
        return ", ".join(parts)


def _check_memories(memories: int | None, variances: str, answer: str, estimator: str) -> None:
    if memories is not None:
        check_sizes("MixtureAttention", memories=memories)
        if variances != "learned":
            raise ProblemError(
                f"memories is {memories} and variances is {variances!r}; expected variances='learned', with its own "
                "variances for each key, or memories=None"
            )
    elif variances == "learned" and answer == "values" and estimator == "first_order":
        raise ProblemError(
            "variances is 'learned' and memories is None; all keys would share the variances, which have no effect at "
            "first order; expected memories=S, one set per key, answer='memories', or variances='input'"
        )
