"""Dictionaries, kernels and readers, from their books and papers."""

from typing import Any

import torch
from torch import Tensor, nn


def soft_dictionary(query: Tensor, key: Tensor, value: Tensor, score: Any) -> Tensor:
    del score  # minus the city-block distance
    scores = -(query.unsqueeze(-2) - key.unsqueeze(-3)).abs().sum(-1)
    return scores.softmax(-1) @ value


def masked(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)


def nadaraya_watson(query: Tensor, key: Tensor, value: Tensor, w: Tensor) -> Tensor:
    rows = []
    for i in range(query.shape[-2]):
        kernel = torch.exp(-(w**2) / 2 * (query[:, :, i : i + 1] - key).square().sum(-1))
        rows.append((kernel.unsqueeze(-1) * value).sum(-2) / kernel.sum(-1, keepdim=True))
    return torch.stack(rows, -2)


def dot(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(query, key, value, scale=1.0)


def scaled_dot(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(query, key, value)


def additive(state: Tensor, annotations: Tensor, network: Any) -> Tensor:
    W, c, U, v = network.of_query.weight, network.of_query.bias, network.of_key.weight, network.score[0]
    contexts = []
    for s in state.unbind(1):
        energies = [torch.tanh(s @ W.T + c + h @ U.T) @ v for h in annotations.unbind(1)]
        shares = torch.stack(energies, -1).softmax(-1)
        contexts.append(sum(shares[:, j : j + 1] * annotations[:, j] for j in range(annotations.shape[1])))
    return torch.stack(contexts, 1).unsqueeze(1)


def attention_pooling(tokens: Tensor, weight: Tensor, bias: Tensor, query: Tensor) -> Tensor:
    scores = torch.tanh(tokens @ weight + bias) @ query
    return torch.einsum("bhn,bhnd->bhd", scores.softmax(-1), tokens).unsqueeze(-2)


def decomposable(premise: Tensor, hypothesis: Tensor, attend: Any, compare: Any, aggregate: Any) -> Tensor:
    logits = []
    for a, b in zip(premise, hypothesis, strict=True):
        e = torch.stack([torch.stack([attend(x) @ attend(y) for y in b]) for x in a])
        beta, gamma = e.softmax(1) @ b, e.softmax(0).T @ a
        one = sum(compare(torch.cat([x, other])) for x, other in zip(a, beta, strict=True))
        two = sum(compare(torch.cat([y, other])) for y, other in zip(b, gamma, strict=True))
        logits.append(aggregate(torch.cat([one, two])))  # pyright: ignore[reportArgumentType]
    return torch.stack(logits)


def soft(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The mean over all places that may be drawn."""
    log_p = torch.log_softmax(torch.einsum("bhmd,bhnd->bhmn", query, key), -1)
    return sum(log_p[..., s : s + 1].exp() * value[..., s : s + 1, :] for s in range(key.shape[-2]))  # pyright: ignore[reportReturnType]


def hard(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    best = torch.einsum("bhmd,bhnd->bhmn", query, key).argmax(-1, keepdim=True)
    return value.gather(-2, best.expand(*best.shape[:-1], value.shape[-1]))
