"""How far is the attention of a trained BERT from the inference that it approximates? One pass tells.

The script loads a layer of the bundled sentence encoder (a BERT of 6 layers and 12 heads) into a
``fenchel.nn.MultiheadAttention``, checks that it computes what BERT computes, and reads its certificate. Then
it infers exactly, to see how much of what the certificate allowed was so.

    python examples/bert_certificate.py [layer, from 1 to 6]
"""

from typing import Any

import torch

from experiment import run_positional
from fenchel.errors import InputError
from fenchel.integrations.transformers import load_model
from fenchel.nn import MultiheadAttention

TEXTS = [
    "The ferry left at six in the morning, when the harbour was still the colour of slate.",
    "His grandmother had told him that an island is a place where everything has to be carried.",
    "By the time the sun came over the hills the wind had turned, and the captain eased the boat to the north.",
    "The lighthouse has been empty for forty years; a small machine turns the lamp.",
    "A good loaf needs flour, water, salt and time, and of these the last is the one that people try to save.",
    "Rivers do not run straight for long, because water moves faster on the outer side of a bend.",
    "Old maps of the valley show the river in five different beds.",
    "In the dry season children build dams there, and the first flood of October removes them in a night.",
]


def as_inference(attention: Any, dense: torch.nn.Linear) -> MultiheadAttention:
    """BERT's self-attention with its output map, with their weights."""
    layer = MultiheadAttention(attention.all_head_size, attention.num_attention_heads, batch_first=True)
    maps = (attention.query, attention.key, attention.value)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat([m.weight for m in maps]))
        layer.in_proj_bias.copy_(torch.cat([m.bias for m in maps]))
        layer.out_proj.load_state_dict(dense.state_dict())
    return layer.eval()


def main(number: int = 3) -> None:
    """Certify layer ``number`` on a few sentences."""
    model, tokenizer, _ = load_model("demo")
    last = len(model.encoder.layer)
    if not 1 <= number <= last:
        raise InputError(f"number is {number}; expected a layer from 1 to {last}. Give one of them.")
    tokens = tokenizer(TEXTS, padding=True, return_tensors="pt")
    block = model.encoder.layer[number - 1].attention
    seen = {}
    block.self.register_forward_hook(lambda module, args, output: seen.update(inputs=args[0]))
    block.output.dense.register_forward_hook(lambda module, args, output: seen.update(output=output))
    with torch.no_grad():
        model(**tokens)

    layer = as_inference(block.self, block.output.dense)
    layer.keep_certificate = True
    inputs, real = seen["inputs"], tokens["attention_mask"].bool()
    with torch.no_grad():
        call = {"key_padding_mask": ~real, "average_attn_weights": False}
        output, first = layer(inputs, inputs, inputs, **call)
        certificate = layer.last_certificate
        layer.estimator = "exact"
        _, exact = layer(inputs, inputs, inputs, **call)

    def a_head(quantity: torch.Tensor) -> torch.Tensor:
        """The mean over real tokens, one number a head."""
        return quantity.transpose(0, 1)[:, real].mean(1)

    difference = (output - seen["output"])[real].abs().max()
    bound = (certificate.gap / 2).sqrt().clamp(max=1)  # on the total variation, query by query
    distance = (first - exact).abs().sum(-1) / 2
    allowed, result = a_head(bound), a_head(distance)
    print(f"Layer {number} on {real.sum()} tokens. It differs from BERT's own output by {difference:.0e}.")
    print("Of every 100 units of attention, so many are elsewhere than in the exact inference:")
    for kind, head in (("closest to", int(result.argmin())), ("furthest from", int(result.argmax()))):
        print(
            f"  head {head + 1:2}, the {kind} exact: at most {100 * allowed[head]:.0f} (certified by the one pass "
            f"that it takes anyway), in fact {100 * result[head]:.0f} (solved)"
        )
    print(f"  all heads: at most {100 * allowed.mean():.0f}, in fact {100 * result.mean():.0f}")
    broken = (distance > bound + 1e-4).transpose(0, 1)[:, real].sum()
    print(f"Certificates that did not hold: {broken} of {bound.shape[1] * real.sum()}.")


if __name__ == "__main__":
    run_positional(main, __doc__)
