"""Places in inputs, beliefs, angles and pairs: from the papers, and by the models of transformers where they are."""

import math

import torch
from torch import Tensor
from transformers import SwinConfig, T5Config, XLNetConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.swin.modeling_swin import SwinAttention, window_partition, window_reverse
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

from fenchel.nn.evidence import RelativeGridKeys, RelativeKeys, Rotary, TransformerXL
from fenchel.nn.preference import GridPosition, RelativePosition
from tests.nn.placed_scores import scores


def softmax_attention(query: Tensor, key: Tensor, value: Tensor, scores: Tensor | float = 0.0) -> Tensor:
    """Scaled dot-product attention with numbers added to its scores."""
    return (query @ key.mT / math.sqrt(key.shape[-1]) + scores).softmax(-1) @ value


def heads_of(x: Tensor, project: Tensor) -> list[Tensor]:
    return [torch.einsum("bnw,hwd->bhnd", x, weight) for weight in project]


def learned_absolute(x: Tensor, places: Tensor, project: Tensor) -> Tensor:
    return softmax_attention(*heads_of(x + places, project))


def sinusoidal_code(n: int, width: int) -> Tensor:
    code = torch.zeros(n, width, dtype=torch.float64)
    for place in range(n):
        for c in range(width // 2):
            angle = place / 10000 ** (2 * c / width)
            code[place, 2 * c], code[place, 2 * c + 1] = math.sin(angle), math.cos(angle)
    return code


def sinusoidal(x: Tensor, project: Tensor) -> Tensor:
    """The score as its four terms."""
    places = sinusoidal_code(x.shape[1], x.shape[2]).expand_as(x)
    (query, key, value), (q_place, k_place, v_place) = heads_of(x, project), heads_of(places, project)
    terms = query @ key.mT, query @ k_place.mT, q_place @ key.mT, q_place @ k_place.mT
    return (sum(terms) / math.sqrt(key.shape[-1])).softmax(-1) @ (value + v_place)  # pyright: ignore[reportAttributeAccessIssue]


def t5(query: Tensor, key: Tensor, value: Tensor, network: RelativePosition) -> Tensor:
    config = T5Config(
        d_model=8,
        num_heads=query.shape[1],
        relative_attention_num_buckets=network.buckets,
        relative_attention_max_distance=network.max_distance,
    )
    theirs = T5Attention(config, has_relative_attention_bias=True)
    theirs.relative_attention_bias.weight = network.relative_attention_bias.weight
    bias = theirs.compute_bias(query.shape[2], key.shape[2]).detach()
    return (query @ key.mT + bias).softmax(-1) @ value


def causal_scores(query: Tensor) -> Tensor:
    n = query.shape[2]
    return torch.full((n, n), -torch.inf, dtype=query.dtype).triu(1)


def alibi(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Bloom adds slope times the key's place, which differs from the paper by what all keys of a query share."""
    batch, heads, n = query.shape[:3]
    bias = build_alibi_tensor(torch.ones(batch, n), heads, query.dtype).view(batch, heads, 1, n)
    return softmax_attention(query, key, value, bias + causal_scores(query))


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def sliding_window(query: Tensor, key: Tensor, value: Tensor, width: int) -> Tensor:
    answers = []
    for i in range(query.shape[2]):
        near = slice(max(0, i - width // 2), i + width // 2 + 1)
        one = query[:, :, i : i + 1]
        answers.append(softmax_attention(one, key[:, :, near], value[:, :, near]))
    return torch.cat(answers, 2)


def rotary(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scores(Rotary(query.shape[-1]), query, key).softmax(-1) @ value


def transformer_xl(x: Tensor, memory: Tensor, project: Tensor, network: TransformerXL) -> Tensor:
    length, (query, *_) = memory.shape[1], heads_of(x, project)
    _, key, value = heads_of(torch.cat([memory, x], 1), project)
    later = torch.ones(x.shape[1], key.shape[2], dtype=torch.bool).triu(length + 1)
    return scores(network, query, key, length).masked_fill(later, -torch.inf).softmax(-1) @ value


def xlnet(
    x: Tensor, asking: Tensor, memory: Tensor, order: Tensor, project: Tensor, network: TransformerXL
) -> Tensor:
    """By the attention of transformers, with its own shift of relative scores."""
    heads, dim, width = network.distance_weight.shape
    theirs = XLNetRelativeAttention(
        XLNetConfig(d_model=heads * dim, n_head=heads, d_head=dim, n_layer=1, d_inner=4, dropout=0.0)
    )
    theirs.r_w_bias.data, theirs.r_r_bias.data = network.key_importance.data, network.distance_importance.data
    n, length = x.shape[1], memory.shape[1]
    seen = torch.cat([memory, x], 1)
    key, value = (torch.einsum("bnw,hwd->nbhd", seen, weight) for weight in project[1:])
    backs = torch.arange(n + length, -n, -1, dtype=x.dtype)
    angles = backs.unsqueeze(-1) / 10000 ** (torch.arange(0, width, 2, dtype=x.dtype) / width)
    code = torch.cat([angles.sin(), angles.cos()], -1)
    relative = torch.einsum("pw,hdw->phd", code, network.distance_weight.detach()).unsqueeze(1)
    answers = []
    for stream, hidden in ((x, order > order.unsqueeze(-1)), (asking, order >= order.unsqueeze(-1))):
        mask = torch.cat([torch.zeros(n, length, dtype=torch.bool), hidden], 1).to(x.dtype)
        query = torch.einsum("bnw,hwd->nbhd", stream, project[0])
        found = theirs.rel_attn_core(query, key, value, relative, attn_mask=mask[:, :, None, None])
        answers.append(found.permute(1, 2, 0, 3))  # pyright: ignore[reportAttributeAccessIssue]
    return torch.stack(answers)


def shaw(x: Tensor, project: Tensor, network: RelativeKeys, value_vectors: Tensor) -> Tensor:
    (query, key, value), most, places = heads_of(x, project), network.max_distance, torch.arange(x.shape[1])
    weights = scores(network, query, key).softmax(-1)
    steps = (places - places.unsqueeze(-1)).clamp(-most, most) + most
    return weights @ value + torch.einsum("bhij,ijd->bhid", weights, value_vectors[steps])


def stand_alone(x: Tensor, project: Tensor, network: RelativeGridKeys) -> Tensor:
    (query, key, value), places, columns = heads_of(x, project), torch.arange(x.shape[1]), network.grid[1]
    down, across = ((at - at.unsqueeze(-1)).abs() for at in (places // columns, places % columns))
    far = torch.maximum(down, across) > network.reach
    return scores(network, query, key).masked_fill(far, -torch.inf).softmax(-1) @ value


def swin(image: Tensor, project: Tensor, network: GridPosition, shift: int) -> Tensor:
    """By the windows, table and attention of transformers, with masks of regions as the paper draws them."""
    rows, columns, width = image.shape[1:]
    side, heads = network.grid[0], network.bias.shape[0]
    config = SwinConfig(qkv_bias=False, attention_probs_dropout_prob=0.0)
    config._attn_implementation = "sdpa"
    theirs = SwinAttention(config, width, heads, side).to(image.dtype).eval()
    table = network.bias.detach().flatten(1).T
    theirs.relative_position_bias.relative_position_bias_table.data = table
    moved = torch.roll(image, (-shift, -shift), (1, 2))
    region = torch.zeros(1, rows, columns, 1, dtype=image.dtype)
    bounds = (slice(0, -side), slice(-side, -shift), slice(-shift, None))
    for number, (down, across) in enumerate((down, across) for down in bounds for across in bounds):
        region[:, down, across] = number
    of_window = window_partition(region, side).flatten(1)
    mask = (of_window.unsqueeze(1) - of_window.unsqueeze(2)).ne(0) * -1e9
    windows = window_partition(moved, side).flatten(1, 2)
    weights = [weight.permute(1, 0, 2).flatten(1).T for weight in project]
    named = {"q_proj.weight": weights[0], "k_proj.weight": weights[1], "v_proj.weight": weights[2]}
    named["o_proj.weight"] = torch.eye(width, dtype=image.dtype)
    named["o_proj.bias"] = torch.zeros(width, dtype=image.dtype)
    found, _ = torch.func.functional_call(theirs, named, (windows, mask.to(image.dtype)))
    joined = window_reverse(found.unflatten(1, (side, side)), side, rows, columns)
    return torch.roll(joined, (shift, shift), (1, 2))
