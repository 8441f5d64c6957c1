"""Flex attention, as far as it runs without a GPU: uncompiled, against attention with the preference's tensor."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from fenchel import functional as F
from fenchel.errors import ProblemError
from fenchel.functional import flex
from fenchel.functional.arguments import AttentionArguments
from fenchel.functional.flex import _check_kernel, _kept, block_mask, flex_attention
from fenchel.nn.preference import Causal, KeyPadding, Window
from tests.functional.ops import OPS, infer
from tests.nn.preferences import HEADS, LOWERED, attention_inputs, perturbed
from tests.normal import drawn

DIM = 16


def tensors(dtype: torch.dtype = torch.float64, key_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    key, value = (drawn(2, key_heads, 7, DIM, seed=seed).to(dtype) for seed in (1, 2))
    return drawn(2, HEADS, 5, DIM).to(dtype), key, value


INDEXED = [
    *("uniform", "key padding", "gaussian, both", "learned bias, shared", "masks", "three", "three, learned"),
    *("square", "tempered, learned"),
]


@pytest.mark.parametrize("name", INDEXED)
def test_functions_of_indices_do_what_the_tensor_does_and_reach_their_tables(name):
    preference, inputs = perturbed(LOWERED[name]()), attention_inputs(offset=2)
    functions = {"score_mod": preference.score_mod(inputs), "mask_mod": preference.mask_mod(inputs)}
    fused = flex_attention(*tensors(), **functions, eager=True)
    dense = F.attention(*tensors(), log_preference=preference(inputs))
    torch.testing.assert_close(fused, dense)
    if parameters := list(preference.parameters()):
        gradients = [torch.autograd.grad(out.square().sum(), parameters) for out in (fused, dense)]
        torch.testing.assert_close(*gradients)
        assert any(gradient.any() for gradient in gradients[0])


@pytest.mark.parametrize("alpha", [0.5, torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64)])
@pytest.mark.parametrize("scale", [None, 0.7, torch.tensor(0.7, dtype=torch.float64)])
@torch.no_grad()
def test_alpha_scale_and_shared_heads(alpha, scale):
    given = tensors(key_heads=1)
    options = {"alpha": alpha, "scale": scale, "enable_gqa": True}
    fused = flex_attention(*given, **options, eager=True)
    torch.testing.assert_close(fused, F.attention(*given, **options))
    with pytest.raises(ProblemError, match="enable_gqa=True"):
        flex_attention(*given, eager=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_row_that_may_attend_to_nothing_is_zero(dtype):
    inputs = replace(attention_inputs(), key_padding=torch.arange(7).expand(2, 7) < torch.tensor([[7], [2]]))
    out = flex_attention(*tensors(dtype), mask_mod=KeyPadding().mask_mod(inputs), eager=True)
    assert out.dtype == dtype
    assert not out[0].any()
    assert out[1].any(-1).all()


def test_the_cpu_has_no_backward_and_no_kernel():
    query, key, value = tensors()
    key.requires_grad_()
    with pytest.raises(
        ProblemError, match=r"gradient to key is required, but .* no backward pass on the CPU; use"
    ):
        flex_attention(query, key, value, eager=True)
    with pytest.raises(ProblemError, match="a gradient to alpha is required"):
        flex_attention(*tensors(), alpha=torch.ones(HEADS, 1, requires_grad=True), eager=True)
    with torch.no_grad():
        assert flex_attention(query, key, value, eager=True).shape == (2, HEADS, 5, DIM)
    with pytest.raises(ProblemError, match=r"query is on the CPU, where .* pass eager=True"):
        flex_attention(*tensors())


@pytest.mark.parametrize(
    ("dtype", "dim", "message"),
    [
        (torch.float64, 16, "query has dtype torch.float64; .* float32, float16 and bfloat16"),
        (torch.float32, 8, r"query has shape \(1, 1, 2, 8\); .* at least 16"),
    ],
)
def test_what_there_is_no_kernel_for_is_named(dtype, dim, message):
    # The meta device stands in for a GPU.
    x = torch.zeros(1, 1, 2, dim, dtype=dtype, device="meta")
    arguments = AttentionArguments(x, x, x, None, None, 1.0, 1.0)
    with pytest.raises(ProblemError, match=message):
        _check_kernel(arguments, eager=False)
    _check_kernel(arguments, eager=True)


def test_block_masks_are_kept_by_what_functions_capture_and_those_of_data_are_made_anew():
    def made(preference: Any, offset: int = 0, padding: Tensor | None = None) -> BlockMask:
        inputs = attention_inputs(offset=offset)
        if padding is not None:
            inputs = replace(inputs, key_padding=padding)
        return block_mask(preference.mask_mod(inputs), 2, HEADS, 5, 7, torch.device("cpu"))

    _kept.cache_clear()
    with torch.inference_mode():
        made(Causal())
    assert not made(Causal()).kv_indices.is_inference()
    same = [made(preference) for preference in (Causal(), Causal(), Window(2, 1), Window(2, 1))]
    others = [made(Causal(), offset=1), made(Window(2, None)), made(Causal() * Window(2, 1))]
    assert same[0] is same[1] is not same[2] is same[3]
    assert len({id(mask) for mask in (*same, *others)}) == 5
    nobody = torch.zeros(2, 7, dtype=torch.bool)
    for padding in (nobody, ~nobody):
        rows = made(Causal() * KeyPadding(), padding=padding)
        assert bool(rows.to_dense().any()) is not bool(padding.any())
        assert rows.kv_num_blocks.shape[:2] == (2, 1)  # no larger than what it depends on
    assert same[0].kv_num_blocks.shape[:2] == (1, 1)


@torch.no_grad()
def test_what_is_compiled_once_is_given_everything(monkeypatch):
    query, key, value = tensors(torch.float32)
    inputs = attention_inputs(dtype=torch.float32)
    compiled = torch.compile(flex._torch_flex, backend="eager", fullgraph=True)
    monkeypatch.setattr(flex, "_compiled", lambda *_, **__: compiled)
    monkeypatch.setattr(flex, "_check_kernel", lambda *_: None)
    for preference in (LOWERED["three"](), LOWERED["three, learned"]()):
        functions = {"score_mod": preference.score_mod(inputs), "mask_mod": preference.mask_mod(inputs)}
        fused = flex_attention(query, key, value, **functions, alpha=0.5)
        expected = F.attention(query, key, value, log_preference=preference(inputs), alpha=0.5)
        torch.testing.assert_close(fused, expected)


def test_first_order_relative_attention_never_writes_templates_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("templates were written out")

    monkeypatch.setattr("fenchel.functional.relative._by_query", refuse)
    call = OPS["relative"].call(preference=(5, 7))
    output, bounds = infer(OPS["relative"], call, "first_order").certified()
    assert (output.shape, bounds.gap.shape) == ((2, 4, 5, 2), (2, 4, 5))
