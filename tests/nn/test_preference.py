"""What holds for every preference: two forms that agree, sizes, positions, gradients, errors."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.errors import ProblemError
from fenchel.nn import MultiheadAttention
from fenchel.nn.calls import IndexFunction
from fenchel.nn.preference import (
    AbstractPreference,
    Additive,
    ALiBi,
    AttentionInputs,
    Causal,
    LearnedBias,
    Product,
    QuadraticPosition,
    RelativePosition,
    Tempered,
    Uniform,
    Window,
)
from tests.functional.calls import directional_derivatives
from tests.nn.preferences import (
    EVERY,
    HEADS,
    LOWERED,
    NOT_LOWERED,
    as_log_weights,
    attention_inputs,
    by_index,
    perturbed,
)


def same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-10, atol=1e-10) and a.shape == b.shape


PRODUCTS = {
    "causal alibi": lambda: Causal() * ALiBi(1),
    "two masks": lambda: Causal() * Window(2, None),
    "four": lambda: Window(2, 1) * RelativePosition(1) * ALiBi(HEADS, learned=True) * Causal(),
}
"""Products of factors of the distance alone."""


@pytest.mark.parametrize(
    ("queries", "keys", "offset"), [(5, 7, 0), (5, 7, 3), (1, 7, 6), (7, 5, 0), (6, 6, 0), (4, 1, 1)]
)
@pytest.mark.parametrize("name", [*LOWERED, *PRODUCTS])
def test_functions_of_indices_agree_with_the_tensor(name, queries, keys, offset):
    preference = perturbed({**LOWERED, **PRODUCTS}[name]())
    inputs = attention_inputs(queries, keys, offset=offset)
    assert preference.lowers
    assert same(by_index(preference, inputs), as_log_weights(preference(inputs), inputs))


@pytest.mark.parametrize("name", EVERY)
def test_a_later_query_without_its_position_is_an_error_unless_it_has_the_same_row_everywhere(name):
    preference, whole, one = perturbed(EVERY[name]()), attention_inputs(9, 9), attention_inputs(1, 9)
    first, last = (as_log_weights(preference(replace(one, query_offset=at)), one) for at in (0, 8))
    unsaid = replace(one, query_offset=None)
    if same(first, last):
        assert same(as_log_weights(preference(unsaid), unsaid), first)
    else:
        with pytest.raises(ProblemError, match=r"query_offset is not given, .* expected query_offset=8"):
            preference(unsaid)
        if preference.lowers:
            with pytest.raises(ProblemError, match="query_offset is not given"):
                by_index(preference, unsaid)
    as_many = replace(whole, query_offset=None)
    assert same(as_log_weights(preference(as_many), as_many), as_log_weights(preference(whole), whole))


@pytest.mark.parametrize("name", [name for name in EVERY if list(EVERY[name]().parameters())])
def test_gradients_against_finite_differences(name):
    preference, inputs = perturbed(EVERY[name]()), attention_inputs()

    def log_weights(**parameters: Tensor) -> Tensor:
        log_u = as_log_weights(torch.func.functional_call(preference, parameters, (inputs,)), inputs)
        return torch.where(log_u > -torch.inf, log_u, 0.0)

    found = directional_derivatives(log_weights, dict(preference.named_parameters()), 1e-6)
    for parameter, (numeric, analytic) in found.items():
        assert abs(analytic) > 1e-4, parameter
        assert analytic == pytest.approx(numeric, rel=1e-5, abs=1e-7), parameter


@pytest.mark.parametrize("name", EVERY)
def test_copies_and_state_dicts_say_the_same(name):
    preference, inputs = perturbed(EVERY[name]()), attention_inputs()
    twin = EVERY[name]().double()
    twin.load_state_dict(preference.state_dict())
    for copied in (twin, copy.deepcopy(preference)):
        assert same(as_log_weights(copied(inputs), inputs), as_log_weights(preference(inputs), inputs))
        assert repr(copied) == repr(preference)
    assert "\n" not in repr(preference)


@pytest.mark.parametrize("name", NOT_LOWERED)
def test_what_does_not_lower_says_so_by_name(name):
    preference, inputs = NOT_LOWERED[name](), attention_inputs()
    assert not preference.lowers
    with pytest.raises(ProblemError, match=r"(Additive|Location) cannot be put into a fused kernel"):
        preference.score_mod(inputs)
    with pytest.raises(ProblemError, match=r"(Additive|Location) cannot be put into a fused kernel"):
        preference.mask_mod(inputs)


WRITTEN: list[tuple[dict[str, Any], str]] = [
    ({}, r"Written has no log-weights: implement its method log_weight\(inputs\) or mask_mod\(inputs\)"),
    ({"log_weight": lambda b, h, q, k: k <= q}, r"log_weight gives torch\.bool; .* belongs in mask_mod"),
    ({"mask_mod": lambda b, h, q, k: -1.0 * (k > q)}, r"mask_mod gives torch\.float32; .* belong in log_weight"),
    ({"log_weight": torch.zeros(5, 7)}, r"log_weight gives a Tensor; expected a function of indices \(b, h, q, k\)"),
    ({"mask_mod": torch.zeros(5, 7)}, r"mask_mod gives a Tensor; expected a function of indices \(b, h, q, k\)"),
    ({"log_weight": lambda b, h, q, k: 0.0}, r"log_weight gives 0\.0; expected a tensor of "),
    ({"mask_mod": lambda b, h, q, k: 0.0}, r"mask_mod gives 0\.0; expected a tensor of "),
]  # fmt: skip


@pytest.mark.parametrize(
    "put", [lambda u: u, lambda u: u**0.5, lambda u: ALiBi(HEADS) * u, lambda u: Causal() * u * Causal()]
)
@pytest.mark.parametrize(("methods", "message"), WRITTEN)
def test_a_preference_of_ones_own_that_is_written_wrongly_says_so(put, methods, message):
    class Written(AbstractPreference):
        pass

    for name, answer in methods.items():
        setattr(Written, name, lambda self, inputs, answer=answer: answer)
    inputs, index = attention_inputs(), torch.zeros((), dtype=torch.long)
    with pytest.raises(ProblemError, match=message):
        put(Written())(inputs)
    if "mask_mod" not in methods:
        with pytest.raises(ProblemError, match=message):
            put(Written()).score_mod(inputs)(torch.zeros(()), index, index, index, index)


def test_a_tensor_of_another_shape_is_named_in_a_product_and_beside_a_mask() -> None:
    class Square(AbstractPreference):
        def forward(self, inputs):
            return torch.zeros(3, 3)

    with pytest.raises(
        ProblemError, match=r"Square\(inputs\) has shape \(3, 3\); expected one that broadcasts to"
    ):
        (Causal() * Square())(attention_inputs())
    layer, x = MultiheadAttention(8, 2, preference=Square()), torch.zeros(5, 1, 8)
    with pytest.raises(ProblemError, match=r"Square\(inputs\) has shape \(3, 3\); .* = \(1, 2, 5, 5\)"):
        layer(x, x, x, key_padding_mask=torch.zeros(1, 5, dtype=torch.bool))


def test_a_user_can_write_a_preference_of_indices():
    class Stripes(AbstractPreference):
        def log_weight(self, inputs: AttentionInputs) -> IndexFunction:
            return lambda b, h, q, k: 0.5 * ((q + k + h) % 2)

        def mask_mod(self, inputs: AttentionInputs) -> IndexFunction:
            return lambda b, h, q, k: k > 0

    inputs = attention_inputs()
    preference = Stripes() * Causal()
    log_u: Any = Stripes()(inputs)
    assert tuple(log_u.shape) == (1, HEADS, 5, 7)
    assert log_u[0, 1, 0, 1:].tolist() == [0, 0.5, 0, 0.5, 0, 0.5]
    assert (log_u[..., 0] == -torch.inf).all()
    assert same(by_index(preference, inputs), as_log_weights(preference(inputs), inputs))


def test_an_empty_batch_and_no_keys_give_empty_log_weights():
    inputs = AttentionInputs(0, 2, 0, 4, torch.device("cpu"), torch.float32)
    for preference in (ALiBi(2), Causal(), LearnedBias(2, 5, 5), EVERY["relative position, shared"]()):
        log_u: Any = preference(inputs)
        assert log_u.shape[-2:] == (0, 4)


A, B, C = Causal(), perturbed(QuadraticPosition(HEADS)), perturbed(ALiBi(1, learned=True))


def test_multiplication_is_associative_and_uniform_is_its_identity():
    inputs = attention_inputs()
    left, right = (A * B) * C, A * (B * C)
    assert repr(left) == repr(right) == "Causal() * QuadraticPosition(heads=3) * ALiBi(heads=1, learned=True)"
    torch.testing.assert_close(left(inputs), right(inputs), rtol=0, atol=0)
    assert (Uniform() * B) is (B * Uniform()) is B
    assert isinstance(Uniform() * Uniform() ** 2.0, Uniform)
    assert Product(Uniform())(inputs) is Product(Uniform()).score_mod(inputs) is None


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
    log_u: Any = tempered(inputs)
    fixed = (Causal() * perturbed(QuadraticPosition(HEADS)) ** 0.7)(inputs)
    torch.testing.assert_close(log_u, fixed, rtol=1e-6, atol=1e-6)
    log_u.softmax(-1).square().sum().backward()
    gradient: Any = tempered.log_power.grad  # pyright: ignore[reportOptionalMemberAccess]
    assert torch.isfinite(gradient)
    assert gradient != 0
    with torch.no_grad():
        tempered.log_power.sub_(50.0)  # pyright: ignore[reportOptionalMemberAccess]
    assert tempered.weight > 0


def test_gradients_of_each_example_to_a_preference_in_blocks() -> None:
    preference = Additive(2, 8, hidden=3, block_entries=1).double()
    parameters = {name: parameter.detach() for name, parameter in preference.named_parameters()}
    examples = torch.randn(3, 1, 5, 8, dtype=torch.float64)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        inputs = AttentionInputs(1, 2, 5, 5, x.device, x.dtype, query_inputs=x, key_inputs=x)
        return torch.func.functional_call(preference, parameters, (inputs,)).softmax(-1).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, examples)
    each = [torch.func.grad(loss)(parameters, x) for x in examples]
    torch.testing.assert_close(found, {name: torch.stack([one[name] for one in each]) for name in found})
