"""Models of human attention, as sums over items."""

import math

import torch
from torch import Tensor


def averaged(responses: Tensor, value: Tensor) -> Tensor:
    """Responses (..., m, n) divided by their sums, and the values' mean."""
    return torch.einsum("...mn,...nd->...md", responses, value) / responses.sum(-1, keepdim=True)


def scores(query: Tensor, key: Tensor) -> Tensor:
    return torch.einsum("bhmd,bhnd->bhmn", query, key)


def winner_take_all(salience: Tensor, value: Tensor) -> Tensor:
    return torch.stack([value[b, :, int(salience[b, 0].argmax())] for b in range(len(value))]).unsqueeze(2)


def filter(  # noqa: A001
    query: Tensor, key: Tensor, value: Tensor, channel: Tensor, attended: Tensor
) -> Tensor:
    """Only the attended channel's keys are there at all."""
    rows = []
    for i, own in enumerate(attended.tolist()):
        passed = [j for j, c in enumerate(channel.tolist()) if c == own]
        row = scores(query[:, :, i : i + 1], key[:, :, passed]) / math.sqrt(query.shape[-1])
        rows.append(row.softmax(-1) @ value[:, :, passed])
    return torch.cat(rows, 2)


def attenuation(
    query: Tensor, key: Tensor, value: Tensor, channel: Tensor, attended: Tensor, leak: Tensor
) -> Tensor:
    strength = torch.stack([torch.stack([leak ** int(c != a) for c in channel]) for a in attended])
    return averaged(strength * torch.exp(scores(query, key) / math.sqrt(query.shape[-1])), value)


def spotlight(
    query: Tensor, key: Tensor, value: Tensor, places: Tensor, centre: Tensor, width: Tensor
) -> Tensor:
    distances = (centre[:, None] - places).square().sum(-1)
    light = torch.exp(-distances / (2 * width.expand(len(centre))[:, None] ** 2))
    return averaged(light * torch.exp(scores(query, key) / math.sqrt(query.shape[-1])), value)


zoom_lens = spotlight


def inhibition_of_return(
    query: Tensor, key: Tensor, value: Tensor, inhibition: Tensor, memory: Tensor
) -> Tensor:
    drive = torch.exp(scores(query, key))
    trust, looks = torch.ones_like(drive), []
    for _ in range(4):
        looks.append(averaged(trust * drive, value))
        shares = trust * drive / (trust * drive).sum(-1, keepdim=True)
        trust = trust**memory * (1 - inhibition * shares)
    return torch.cat(looks, 2)


def guided_search(features: Tensor, wanted: Tensor, value: Tensor, contrast: Tensor) -> Tensor:
    n = features.shape[2]
    outputs = []
    for f, w, v in zip(features[:, 0], wanted[:, 0], value[:, 0], strict=True):
        bottom_up = [sum((f[j] - f[k]).abs().sum() for k in range(n)) / (n - 1) for j in range(n)]
        activation = torch.stack([contrast * b for b in bottom_up]) + w @ f.T
        outputs.append(activation.softmax(-1) @ v)
    return torch.stack(outputs).unsqueeze(1)


def similarity(features: Tensor, target: Tensor, value: Tensor, grouping: Tensor) -> Tensor:
    n = features.shape[2]
    outputs = []
    for f, t, v in zip(features[:, 0], target[:, 0], value[:, 0], strict=True):
        alike = [
            sum(torch.exp(-(f[j] - f[k]).norm()) for k in range(n) if k != j) / (n - 1) for j in range(n)
        ]
        activation = t @ f.T - torch.stack([grouping * one for one in alike])
        outputs.append(activation.softmax(-1) @ v)
    return torch.stack(outputs).unsqueeze(1)


def routing(
    places: Tensor, outputs: Tensor, value: Tensor, shift: Tensor, zoom: Tensor, width: Tensor
) -> Tensor:
    """Windows around the places that each output is mapped to."""
    mapped = zoom * outputs[0, 0] + shift
    distances = (mapped[:, None] - places[0, 0]).square().sum(-1)
    return averaged(torch.exp(-distances / (2 * width**2))[None, None], value)


def gain_field(query: Tensor, key: Tensor, value: Tensor, gain: Tensor) -> Tensor:
    return averaged(gain * torch.exp(scores(query, key)), value)


def precision(query: Tensor, key: Tensor, value: Tensor, precision: Tensor) -> Tensor:
    return (precision.unsqueeze(-1) * scores(query, key)).softmax(-1) @ value


def top_down(goal: Tensor, key: Tensor, value: Tensor, salience: Tensor) -> Tensor:
    return averaged(torch.exp(salience.unsqueeze(-2)) * torch.exp(scores(goal, key)), value)
