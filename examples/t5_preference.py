"""T5 adds a position bias and a mask to its scores. Here both are one preference, what is believed before any query.

The script takes a small T5 with random weights, rebuilds the self-attention of every block as a
``fenchel.nn.MultiheadAttention``, and compares with T5's own output. Then it does what T5 cannot: the
same weights with a preference that is trusted less, and with an exact inference.

    python examples/t5_preference.py
"""

from typing import Any

import torch
from torch import Tensor
from transformers import T5Config, T5Model

from experiment import run_positional
from fenchel.nn import MultiheadAttention
from fenchel.nn.evidence import ScaledDot
from fenchel.nn.preference import AbstractPreference, Causal, KeyPadding, RelativePosition


def small_t5() -> Any:
    """A random T5, its bias and its scores large enough to see."""
    config = T5Config(d_model=32, d_kv=8, num_heads=4, d_ff=64, num_layers=2, vocab_size=100)
    model: Any = T5Model(config).eval()
    with torch.no_grad():
        for stack in (model.encoder, model.decoder):
            stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight.normal_()
            for block in stack.block:
                block.layer[0].SelfAttention.q.weight.mul_(8)
    return model


def as_inference(attention: Any, preference: AbstractPreference) -> MultiheadAttention:
    """T5's attention, with its weights, as a layer that infers. T5 does not scale its scores."""
    given = {"preference": preference, "evidence": ScaledDot(scale=1.0)}
    layer = MultiheadAttention(attention.inner_dim, attention.n_heads, bias=False, batch_first=True, **given)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat([attention.q.weight, attention.k.weight, attention.v.weight]))
        layer.out_proj.weight.copy_(attention.o.weight)
    return layer.eval()


def difference(layer: MultiheadAttention, inputs: Tensor, padding: Tensor | None, expected: Tensor) -> float:
    """Of the layer's output from the expected one, relative to that."""
    with torch.no_grad():
        output, _ = layer(inputs, inputs, inputs, key_padding_mask=padding, need_weights=False)
    return ((output - expected).norm() / expected.norm()).item()


def main() -> None:
    """Compare every self-attention of the model with its twin."""
    torch.manual_seed(0)
    model = small_t5()
    seen, attentions = {}, {m: n for n, m in model.named_modules() if n.endswith("SelfAttention")}
    for module in attentions:
        module.register_forward_hook(lambda m, x, out: seen.update({attentions[m]: (m, x[0], out[0])}))
    real = torch.ones(2, 10, dtype=torch.long)
    real[1, 7:] = 0  # the second text is three tokens shorter
    with torch.no_grad():
        ids = torch.randint(2, 100, (2, 10))
        model(input_ids=ids, attention_mask=real, decoder_input_ids=torch.randint(2, 100, (2, 6)))

    first = (stack.block[0].layer[0].SelfAttention for stack in (model.encoder, model.decoder))
    read, written = (attention.relative_attention_bias.weight for attention in first)
    preferences = {  # one a stack: its blocks share it, as in T5
        "encoder": RelativePosition.from_t5(read) * KeyPadding(),
        "decoder": RelativePosition.from_t5(written, bidirectional=False) * Causal(),
    }
    for stack, preference in preferences.items():
        print(f"{stack}: {preference}")

    for name, (attention, inputs, expected) in seen.items():
        stack = name.split(".")[0]
        layer = as_inference(attention, preferences[stack])
        call = layer, inputs, real == 0 if stack == "encoder" else None, expected
        same = difference(*call)
        layer.estimator = "exact"
        exact = difference(*call)
        layer.estimator, layer.preference = "first_order", preferences[stack] ** 0.5
        print(
            f"{name}: differs from T5's own output by {same:.0e}; inferred exactly, by {exact:.0%}; "
            f"with the preference ** 0.5, by {difference(*call):.0%}"
        )


if __name__ == "__main__":
    run_positional(main, __doc__)
