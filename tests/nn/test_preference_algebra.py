"""Preferences multiply: log-weights add, masks stay masks, and one function of indices comes out."""

import pytest
import torch

from fenchel.nn.arguments import combined
from fenchel.nn.preference import (
    ALiBi,
    AttentionInputs,
    Causal,
    KeyPadding,
    LearnedBias,
    Product,
    QuadraticPosition,
    RelativePosition,
    Tempered,
    Uniform,
    Window,
)
from tests.nn.preferences import HEADS, as_log_weights, attention_inputs, by_index, perturbed

A, B, C = Causal(), perturbed(QuadraticPosition(HEADS)), perturbed(ALiBi(1, learned=True))


def test_log_weights_add():
    inputs = attention_inputs()
    product = as_log_weights((A * B * C)(inputs), inputs)
    expected = sum(as_log_weights(u(inputs), inputs) for u in (A, B, C))
    torch.testing.assert_close(product, expected)


def test_multiplication_is_associative_and_flat():
    inputs = attention_inputs()
    left, right = (A * B) * C, A * (B * C)
    assert repr(left) == repr(right) == "Causal() * QuadraticPosition(heads=3) * ALiBi(heads=1, learned=True)"
    torch.testing.assert_close(left(inputs), right(inputs), rtol=0, atol=0)
    assert isinstance(left, Product)
    assert len(left.factors) == 3
    assert len(Product(Product(A, B), Product(C)).factors) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_factors_of_distance_are_put_together_as_any_others(dtype):
    products = (
        (Causal(), ALiBi(HEADS)),
        (Causal(), ALiBi(1)),
        (Causal(), Window(2, None)),
        (Window(2, 1), RelativePosition(1), ALiBi(HEADS, learned=True), Causal()),
    )
    for queries, keys, offset in ((4, 6, 2), (6, 6, 0), (5, 3, 0), (1, 7, 6)):
        inputs = AttentionInputs(2, HEADS, queries, keys, torch.device("cpu"), dtype, query_offset=offset)
        for factors in products:
            one_by_one = combined([factor(inputs) for factor in factors])
            assert one_by_one is not None
            torch.testing.assert_close(Product(*factors)(inputs), one_by_one, rtol=0, atol=0)


def test_uniform_is_the_identity():
    assert (Uniform() * B) is B
    assert (B * Uniform()) is B
    assert isinstance(Uniform() * Uniform(), Uniform)
    assert isinstance(Uniform() ** 2.0, Uniform)
    inputs = attention_inputs()
    assert Uniform()(inputs) is None
    assert Product(Uniform())(inputs) is None
    assert Product(Uniform()).score_mod(inputs) is None
    assert (Causal() * Uniform() * KeyPadding())(inputs) is not None


def test_masks_multiply_to_a_mask():
    inputs = attention_inputs()
    product = (Causal() * KeyPadding() * Window(2, 2))(inputs)
    assert product is not None
    assert product.dtype == torch.bool
    parts = [u(inputs) for u in (Causal(), KeyPadding(), Window(2, 2))]
    expected = parts[0] & parts[1] & parts[2]  # pyright: ignore[reportOptionalOperand]
    assert torch.equal(product, expected)


def test_a_mask_times_log_weights_forbids():
    inputs = attention_inputs()
    product = (B * Causal())(inputs)
    alone, mask = B(inputs), Causal()(inputs)
    assert product is not None
    assert alone is not None
    assert mask is not None
    assert (product[~mask.expand(product.shape)] == -torch.inf).all()
    assert torch.equal(product[mask.expand(product.shape)], alone[mask.expand(product.shape)])


def test_a_power_scales_log_weights_and_leaves_masks():
    inputs = attention_inputs()
    torch.testing.assert_close((B**0.3)(inputs), 0.3 * B(inputs))  # pyright: ignore[reportOptionalOperand]
    assert torch.equal((Causal() ** 0.3)(inputs), Causal()(inputs))  # pyright: ignore[reportArgumentType]
    squared, multiplied = (B**2)(inputs), (B * B)(inputs)
    torch.testing.assert_close(squared, multiplied)
    torch.testing.assert_close(((A * B) ** 0.5)(inputs), (A * B**0.5)(inputs))


def test_a_learned_power_has_a_gradient_also_where_something_is_forbidden():
    inputs = attention_inputs()
    tempered = Tempered(Causal() * perturbed(QuadraticPosition(HEADS)), 0.7, learned=True)
    tempered.log_power.data = tempered.log_power.data.double()  # pyright: ignore[reportOptionalMemberAccess]
    log_u = tempered(inputs)
    assert log_u is not None
    fixed = (Causal() * perturbed(QuadraticPosition(HEADS)) ** 0.7)(inputs)
    torch.testing.assert_close(log_u, fixed, rtol=1e-6, atol=1e-6)
    log_u.softmax(-1).square().sum().backward()
    gradient = tempered.log_power.grad  # pyright: ignore[reportOptionalMemberAccess]
    assert gradient is not None
    assert torch.isfinite(gradient)
    assert gradient != 0
    with torch.no_grad():
        tempered.log_power.sub_(50.0)  # pyright: ignore[reportOptionalMemberAccess]
    assert tempered.weight > 0


def test_a_product_reads_small_tables_only():
    inputs = attention_inputs(9, 11)
    everything = Causal() * KeyPadding() * ALiBi(HEADS, learned=True) * LearnedBias(1, 1, 20) * B**0.5
    seen: list[int] = []

    def tables(function: object) -> None:
        for cell in getattr(function, "__closure__", None) or ():
            content = cell.cell_contents
            for part in content if isinstance(content, tuple) else (content,):
                if isinstance(part, torch.Tensor):
                    seen.append(part.numel())
                else:
                    tables(part)

    tables(everything.score_mod(inputs))
    tables(everything.mask_mod(inputs))
    assert len(seen) == 5  # padding, slopes, bias, curvature, drift
    assert max(seen) <= 2 * 11
    torch.testing.assert_close(
        by_index(everything, inputs), as_log_weights(everything(inputs), inputs), rtol=1e-6, atol=1e-6
    )


def test_representations_can_be_read():
    assert repr(Causal() * KeyPadding()) == "Causal() * KeyPadding()"
    assert repr((Causal() * ALiBi(8)) ** 0.5) == "(Causal() * ALiBi(heads=8)) ** 0.5"
    assert repr(Causal() * ALiBi(8) ** 2) == "Causal() * ALiBi(heads=8) ** 2.0"
    assert repr(Window(1, None, dilation=2) ** 2) == "Window(before=1, after=None, dilation=2) ** 2.0"
    assert repr(Tempered(ALiBi(2), 0.25, learned=True)) == "Tempered(ALiBi(heads=2), 0.25, learned=True)"
