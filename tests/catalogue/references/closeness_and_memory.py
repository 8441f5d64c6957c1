"""What came beside and after softmax, from its papers, token by token."""

import math

import torch
from torch import Tensor


def scaled_scores(query: Tensor, key: Tensor) -> Tensor:
    return torch.einsum("bhmd,bhnd->bhmn", query, key) / math.sqrt(query.shape[-1])


def sparsemax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Algorithm 1 of the paper: sort, find the support, subtract the threshold."""
    scores = scaled_scores(query, key)
    falling = scores.sort(-1, descending=True).values
    rank = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)
    support = (1 + rank * falling > falling.cumsum(-1)).sum(-1, keepdim=True)
    threshold = (falling.cumsum(-1).gather(-1, support - 1) - 1) / support
    return (scores - threshold).clamp(min=0) @ value


def entmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Order 1.5, whose threshold on the right support is the smaller root of a quadratic equation."""
    scores = scaled_scores(query, key) / 2
    rows = []
    for row in scores.flatten(0, -2):
        falling = row.sort(descending=True).values
        for size in range(len(row), 0, -1):
            top = falling[:size]
            spread = top.square().mean() - top.mean() ** 2
            threshold = top.mean() - ((1 / size - spread).clamp(min=1e-300)).sqrt()
            if 1 / size >= spread and top[-1] > threshold:
                break
        rows.append((row - threshold).clamp(min=0).square())  # pyright: ignore[reportPossiblyUnboundVariable]
    return torch.stack(rows).view_as(scores) @ value


def transport(
    query: Tensor, key: Tensor, value: Tensor, atoms: Tensor, atom_values: Tensor, gamma: Tensor
) -> Tensor:
    """The whole coupling, query by query, source by source."""
    everything, values = torch.cat([key, atoms], 2), torch.cat([value, atom_values], 2)
    outputs = []
    for h in range(query.shape[1]):
        t, width = everything[0, h], gamma[h, 0]
        cost = torch.stack([(t - k).square().sum(-1) for k in key[0, h]])
        rows = [
            torch.stack([((t @ q - away) / width).softmax(-1) for away in cost]).mean(0) for q in query[0, h]
        ]
        outputs.append(torch.stack(rows) @ values[0, h])
    return torch.stack(outputs).unsqueeze(0)


def sinkhorn(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Rows and columns divided by their sums in turn, rows last."""
    plan = scaled_scores(query, key).exp()
    m, n = plan.shape[-2:]
    for _ in range(60):
        plan = plan / plan.sum(-1, keepdim=True)
        plan = plan * (m / n) / plan.sum(-2, keepdim=True)
    return (plan / plan.sum(-1, keepdim=True)) @ value


def hopfield(state: Tensor, patterns: Tensor, beta: Tensor) -> Tensor:
    for _ in range(3):
        state = (patterns.mT @ (beta * patterns @ state.mT).softmax(-2)).mT
    return state


def induced_points(points: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    summary = torch.nn.functional.scaled_dot_product_attention(points, key, value)
    return torch.nn.functional.scaled_dot_product_attention(query, summary, summary)


def sink(query: Tensor, key: Tensor, value: Tensor, sink: Tensor) -> Tensor:
    raised = scaled_scores(query, key).exp()
    return (raised / (sink.exp()[:, None, None] + raised.sum(-1, keepdim=True))) @ value


def linear_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    def phi(x: Tensor) -> Tensor:
        return torch.where(x > 0, x + 1, x.exp())

    similarity = torch.einsum("bhmd,bhnd->bhmn", phi(query), phi(key))
    return torch.einsum("bhmn,bhnv->bhmv", similarity, value) / similarity.sum(-1, keepdim=True)


def retention(query: Tensor, key: Tensor, value: Tensor, decay: Tensor) -> Tensor:
    """The recurrent form, equation by equation."""
    state, outputs = torch.zeros(*key.shape[:2], key.shape[-1], value.shape[-1], dtype=key.dtype), []
    for q, k, v in zip(query.unbind(2), key.unbind(2), value.unbind(2), strict=True):
        state = decay[:, None, None] * state + k.unsqueeze(-1) * v.unsqueeze(-2)
        outputs.append((q.unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outputs, 2)


def forgetting(query: Tensor, key: Tensor, value: Tensor, gate: Tensor) -> Tensor:
    n, scores, rows = key.shape[2], scaled_scores(query, key).exp(), []
    for i in range(n):
        raised = [gate[..., j + 1 : i + 1].prod(-1) * scores[..., i, j] for j in range(i + 1)]
        shares = torch.stack(raised, -1)
        rows.append((shares / shares.sum(-1, keepdim=True)).unsqueeze(-2) @ value[:, :, : i + 1])
    return torch.cat(rows, 2)


def mesa(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, ridge: Tensor) -> Tensor:
    """Ridge regression on what each query has seen, solved anew."""
    rows = []
    for i, own in enumerate(seen):
        k, v = key[:, :, own], value[:, :, own]
        normal = k.mT @ k + ridge * torch.eye(k.shape[-1], dtype=k.dtype)
        rows.append(v.mT @ k @ torch.linalg.solve(normal, query[:, :, i].unsqueeze(-1)))
    return torch.cat(rows, -1).mT


def gated_delta(query: Tensor, key: Tensor, value: Tensor, rate: Tensor, gate: Tensor) -> Tensor:
    """The recurrence multiplied out: what is left of each pair after all that came later."""
    n, d = key.shape[-2:]
    eye, outputs = torch.eye(d, dtype=key.dtype), []
    for i in range(n):
        total = torch.zeros(*key.shape[:2], value.shape[-1], d, dtype=key.dtype)
        for j in range(i + 1):
            left = (rate[..., j, None] * value[:, :, j]).unsqueeze(-1) * key[:, :, j].unsqueeze(-2)
            for later in range(j + 1, i + 1):
                k, b, a = key[:, :, later], rate[..., later], gate[..., later]
                erased = eye - b[..., None, None] * k.unsqueeze(-1) * k.unsqueeze(-2)
                left = a[..., None, None] * left @ erased
            total = total + left
        outputs.append(torch.einsum("bhvd,bhd->bhv", total, query[:, :, i]))
    return torch.stack(outputs, 2)
