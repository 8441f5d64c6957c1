"""Attention between pixels, convolution, hashing and gates, from their papers; the LSTM is torch's."""

import itertools
import math
from typing import Any

import torch
from torch import Tensor


def sagan(x: Tensor, f: Tensor, g: Tensor, h: Tensor, v: Tensor, gamma: Tensor) -> Tensor:
    """Section 3 as it stands: s_ij = f(x_i)ᵀg(x_j), β_ji its softmax over i, o_j = v(Σ_i β_ji h(x_i)), y = γo + x."""
    scores = torch.einsum("bic,bjc->bij", x @ f, x @ g)
    beta = scores.softmax(1)
    answers = torch.einsum("bij,bic->bjc", beta, x @ h) @ v
    return gamma * answers + x


def non_local_gaussian(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    relation = torch.einsum("bic,bjc->bij", x, x).exp()
    return (relation @ (x @ g)) / relation.sum(-1, keepdim=True) @ w + x


def non_local_embedded(x: Tensor, theta: Tensor, phi: Tensor, g: Tensor, w: Tensor) -> Tensor:
    relation = torch.einsum("bic,bjc->bij", x @ theta, x @ phi).exp()
    return (relation @ (x @ g)) / relation.sum(-1, keepdim=True) @ w + x


def non_local_dot(x: Tensor, theta: Tensor, phi: Tensor, g: Tensor, w: Tensor) -> Tensor:
    relation = torch.einsum("bic,bjc->bij", x @ theta, x @ phi)
    return (relation @ (x @ g)) / x.shape[1] @ w + x


def a2_net(x: Tensor, features: Tensor, gather: Tensor, distribute: Tensor, bias: Tensor) -> Tensor:
    """The paper's matrices have a column a place: A is (m, n), B and V are (k, n)."""
    images = []
    for image in x:
        a, b = (image @ features).mT, (image @ gather).mT.softmax(1)
        v = (image @ distribute + bias).mT.softmax(0)
        images.append(((a @ b.mT) @ v).mT)
    return torch.stack(images)


def convolution(image: Tensor, weight: Tensor, bias: Tensor, belief: Any) -> Tensor:
    del belief
    return torch.nn.functional.conv2d(image, weight, bias, padding=1)


def windows(query: Tensor, rotations: Tensor, chunk: int) -> list[tuple[list[int], list[list[int]]]]:
    """Of one head, a round each: the bucket of every token, and the chunks of tokens sorted by bucket and place."""
    rounds = []
    for number in range(rotations.shape[1]):
        turned = query @ rotations[:, number]
        buckets = torch.cat([turned, -turned], -1).argmax(-1).tolist()
        order = sorted(range(len(buckets)), key=lambda i, row=buckets: (row[i], i))
        rounds.append((buckets, [order[at : at + chunk] for at in range(0, len(order), chunk)]))
    return rounds


def reformer(query: Tensor, value: Tensor, rotations: Tensor, chunk: int) -> Tensor:
    """Appendix A: o_i = Σ_r exp(z_i^r - z_i) Σ_j exp(⟨q_i, k_j⟩ - m_ij^r - z_i^r) v_j, with m the log of counts."""
    output = torch.empty_like(value)
    for head, i in itertools.product(range(query.shape[1]), range(query.shape[2])):
        q, v = query[0, head], value[0, head]
        keys = q / q.norm(dim=-1, keepdim=True)
        met: list[set[int]] = []
        for buckets, chunks in windows(q, rotations[head], chunk):
            (own,) = (number for number, tokens in enumerate(chunks) if i in tokens)
            near = chunks[own] + (chunks[own - 1] if own else [])
            met.append({j for j in near if buckets[j] == buckets[i] and j <= i})
        numbers, answers = [], []
        for near in met:
            tokens = sorted(near)
            m = [1e5 if j == i else math.log(sum(j in other for other in met)) for j in tokens]
            scores = keys[tokens] @ q[i] - q.new_tensor(m)
            numbers.append(scores.logsumexp(0))
            answers.append(scores.softmax(0) @ v[tokens])
        output[0, head, i] = torch.stack(numbers).softmax(0) @ torch.stack(answers)
    return output


def reformer_as_run(query: Tensor, value: Tensor, rotations: Tensor, chunk: int) -> Tensor:
    """All rounds' chunks in one ring, each with the one before; every meeting is an entry of one softmax."""
    output = torch.empty_like(value)
    for head in range(query.shape[1]):
        q, v = query[0, head], value[0, head]
        keys = q / q.norm(dim=-1, keepdim=True)
        ring = [tokens for _, chunks in windows(q, rotations[head], chunk) for tokens in chunks]
        for i in range(query.shape[2]):
            met = [
                j for own, tokens in enumerate(ring) if i in tokens for j in ring[own - 1] + tokens if j < i
            ] or [i]
            output[0, head, i] = (keys[met] @ q[i]).softmax(0) @ v[met]
    return output


def u_gat_it(x: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("bnc,c->bnc", x, weight)


def u_gat_it_classifier(x: Tensor, weight: Tensor) -> Tensor:
    return torch.sigmoid(torch.einsum("bnc,c->b", x, weight) / x.shape[1])


def residual_attention(features: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return features + features / (1 + torch.exp(-(torch.einsum("bnk,kc->bnc", mask, weight) + bias)))


def squeeze_excitation(x: Tensor, reduce: Tensor, expand: Tensor) -> Tensor:
    squeezed = torch.nn.functional.adaptive_avg_pool1d(x.mT, 1).squeeze(-1)
    return x * torch.sigmoid(torch.relu(squeezed @ reduce) @ expand)[:, None]


def lstm(x: Tensor, h: Tensor, c: Tensor, weight_x: Tensor, weight_h: Tensor, bias: Tensor) -> Tensor:
    return torch.cat(torch.lstm_cell(x, [h, c], weight_x, weight_h, bias, torch.zeros_like(bias)), -1)
