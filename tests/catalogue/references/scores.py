"""Luong's scores and windows, and the addressing of a neural Turing machine, from their papers."""

import torch
from torch import Tensor

from fenchel.nn.evidence import General
from fenchel.nn.preference import Location


def location(state: Tensor, annotations: Tensor, network: Location) -> Tensor:
    weights = torch.einsum("bmw,nw->bmn", state, network.weight[0, : annotations.shape[1]]).softmax(-1)
    return (weights @ annotations).unsqueeze(1)


def general(query: Tensor, key: Tensor, value: Tensor, network: General) -> Tensor:
    return torch.einsum("bhmi,hij,bhnj->bhmn", query, network.weight, key).softmax(-1) @ value


def local_m(query: Tensor, key: Tensor, value: Tensor, reach: int) -> Tensor:
    answers = []
    for i in range(query.shape[2]):
        near = range(max(0, i - reach), min(key.shape[2], i + reach + 1))
        scores = torch.stack([(query[:, :, i] * key[:, :, j]).sum(-1) for j in near], -1)
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        answers.append(sum(weights[..., place, None] * value[:, :, j] for place, j in enumerate(near)))
    return torch.stack(answers, 2)


def local_p(
    query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, direction: Tensor, reach: int
) -> Tensor:
    (batch, heads, m), n = query.shape[:3], key.shape[2]
    output = value.new_zeros(batch, heads, m, value.shape[3])
    for b, h, i in torch.cartesian_prod(*map(torch.arange, (batch, heads, m))).tolist():
        q = query[b, h, i]
        centre = n / (1 + torch.exp(-(torch.tanh(hidden.T @ q) @ direction)))
        near = [j for j in range(n) if abs(j - float(centre.detach())) <= reach]
        align = torch.stack([torch.exp(q @ key[b, h, j]) for j in near])
        align = align / align.sum()
        for weight, j in zip(align, near, strict=True):
            bell = torch.exp(-((j - centre) ** 2) / (2 * (reach / 2) ** 2))
            output[b, h, i] = output[b, h, i] + weight * bell * value[b, h, j]
    return output


def content(query: Tensor, memory: Tensor, strength: Tensor) -> Tensor:
    return _by_content(query, memory, strength) @ memory


def _by_content(query: Tensor, memory: Tensor, strength: Tensor) -> Tensor:
    similar = torch.cosine_similarity(query.unsqueeze(-2), memory.unsqueeze(-3), dim=-1)
    return (strength.unsqueeze(-1) * similar).softmax(-1)


def neural_turing_machine(
    query: Tensor,
    memory: Tensor,
    strength: Tensor,
    before: Tensor,
    gate: Tensor,
    shift: Tensor,
    sharpness: Tensor,
) -> Tensor:
    gated = gate[..., None] * _by_content(query, memory, strength) + (1 - gate[..., None]) * before
    n = memory.shape[-2]
    steps = {0: shift[..., 1], 1: shift[..., 2], n - 1: shift[..., 0]}
    shifted = torch.stack(
        [
            sum(gated[..., j] * steps[(i - j) % n] for j in range(n) if (i - j) % n in steps)  # pyright: ignore[reportArgumentType]
            for i in range(n)
        ],
        -1,
    )
    sharp = shifted ** sharpness[..., None]
    return sharp / sharp.sum(-1, keepdim=True) @ memory
